"""The trainer itself on a prepared dataset: speed, share of the card's rate, memory, waiting."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from gpu_report.benchmark import BARS
from gpu_report.dataset import MadeDataset, make_dataset
from gpu_report.documents import Document, Run, ended, read_records, start_trainer
from gpu_report.part import Part, Result, Verdict, find_peak_tflops

SIZES = {"large": (24, 1024, 16), "base": (12, 768, 12)}
"""Layers, hidden size, heads (Devlin et al. 2019)."""
SEQUENCES = "sequences/s"
TRACED_STEPS = 10
_STEPS = 200
_BATCHES = {512: (256, 128), 128: (1024, 512)}
"""Rows of a step and of a pass on one card."""
_TINY = (2, 64, 2)
_ASKED_MFU, _HOPED_FOR = 0.5, 1000.0


def measure_training(part: Part, size: str, length: int) -> None:
    """Train 200 steps and publish as intervals are reported. The last ten steps of the large model are traced."""
    result = Result()
    run = _make_run(part, size, length)
    data, folder = run.data, part.folder / "run"
    result.figures["tokens of a row, mean"] = round(data.mean_tokens, 1)
    with ended(start_trainer(run, folder)) as process:
        while process.poll() is None:
            time.sleep(0.5)
            _read(part, run, size, folder, result)
    _read(part, run, size, folder, result)
    if process.returncode:
        result.left_out.append(f"the trainer ended with {process.returncode}; output.log says why")
    result.done = process.returncode == 0
    part.publish(result)


def make_speed_dataset(part: Part, length: int) -> MadeDataset:
    """Return rows of real lengths, drawn again in every epoch by the trainer."""
    rows, vocabulary = (256, 500) if part.small else ({512: 16384, 128: 32768}[length], 30522)
    started_s = time.perf_counter()
    data = make_dataset(part.folder / "data", length=64 if part.small else length, rows=rows, vocabulary=vocabulary)
    print(f"{data.rows} rows of {data.length} made in {time.perf_counter() - started_s:.1f} s", flush=True)
    return data


def _make_run(part: Part, size: str, length: int) -> Run:
    layers, hidden, heads = _TINY if part.small else SIZES[size]
    batch, micro = (16, 8) if part.small else _BATCHES[length]
    steps = 30 if part.small else _STEPS
    traced = (steps - TRACED_STEPS + 1, steps) if (size, length) == ("large", 512) else None
    return Run(
        data=make_speed_dataset(part, length),
        layers=layers,
        hidden=hidden,
        heads=heads,
        steps=steps,
        global_batch_size=batch,
        micro_batch_size=micro,
        device=part.device,
        precision="fp32" if part.device == "cpu" else "bf16",
        # So small that weights of 0.02 stay about what they are: nothing here is about learning.
        learning_rate=1e-4,
        report_steps=5 if part.small else 10,
        profile=traced,
    )


def _read(part: Part, run: Run, size: str, folder: Path, result: Result) -> None:
    records = read_records(folder)
    traced_from = run.profile[0] if run.profile else run.steps + 1
    timed = [record for record in records[1:] if int(record["step"]) < traced_from]
    if not timed:
        return
    rates = [float(record["sequences_per_s"]) for record in timed]
    rate = statistics.median(rates)
    flops = rate * run.data.flop_per_sequence(run.layers, run.hidden)
    peak = find_peak_tflops(_name_card()) if part.device == "cuda" else None
    result.figures |= {
        "steps": int(records[-1]["step"]),
        SEQUENCES: round(rate, 1),
        "sequences/s, slowest and fastest interval": f"{min(rates):,.1f} to {max(rates):,.1f}",
        "real tokens/s": round(statistics.median(float(record["real_tokens_per_s"]) for record in timed)),
        "TFLOP/s on real tokens": round(flops / 1e12, 3),
        "MFU on real tokens": f"{flops / 1e12 / peak:.1%}" if peak else "no data sheet's rate for this device",
        "tensors' peak, GiB" if part.device == "cuda" else "resident, GiB": _gib(records[-1]),
        "waiting for data, share of the time": round(
            statistics.fmean(float(record["data_wait_share"]) for record in timed), 4
        ),
        "until the first report, s": round(float(records[0]["run_s"]), 1),
        "loss, first and last interval": f"{records[0]['loss']:.3f} to {records[-1]['loss']:.3f}",
    }
    result.verdicts = _judge(part, run, size, rate, flops / 1e12 / peak if peak else None)
    part.publish(result)


def _judge(part: Part, run: Run, size: str, rate: float, mfu: float | None) -> list[Verdict]:
    if size != "large":
        return []
    on_card, length = part.device == "cuda", 512 if part.name.endswith("512") else 128
    asked = [(BARS[length], "")] + ([(_HOPED_FOR, " (to be reached for)")] if length == 512 else [])
    verdicts = [
        Verdict(f"trainer's step at {length}, sequences/s{note}", f"≥ {bar:,.0f}", f"{rate:,.0f}",
                rate >= bar if on_card else None)
        for bar, note in asked
    ]  # fmt: skip
    if length == 512 and mfu is not None:
        got = f"{mfu:.1%}"
        verdicts.append(
            Verdict("trainer's MFU at 512 (to be reached for)", f"≥ {_ASKED_MFU:.0%}", got, mfu >= _ASKED_MFU)
        )
    return verdicts


def _name_card() -> str:
    import torch  # Here alone: the trainer is another process, and so may be where its trace is read.

    return torch.cuda.get_device_name()


def _gib(record: Document) -> float:
    return round(float(record["memory_bytes"]) / 2**30, 3)


def make_traced_run(part: Part) -> Run:
    """Return twenty steps of the large model at 512, of which the last ten are traced."""
    steps = 2 * TRACED_STEPS
    return _make_run(part, "large", 512).with_(steps=steps, profile=(steps - TRACED_STEPS + 1, steps))
