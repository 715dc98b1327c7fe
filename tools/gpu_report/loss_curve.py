"""The loss of 200 steps beside a processor's, which ``cpu_losses.json`` beside this file holds.

Same seed, same rows, same features dropped; no dropout of attention weights, whose bits are the device's own. To make
the file again: ``tools/gpu_report.sh --write-cpu-losses``.
"""

from __future__ import annotations

import json
from pathlib import Path

from gpu_report.dataset import MadeDataset, make_dataset
from gpu_report.documents import Run, ended, read_records, run_trainer, start_trainer
from gpu_report.part import Part, Result, Table, Verdict, write_atomically

FILE = Path(__file__).with_name("cpu_losses.json")
STEPS = 200
_NEAR = {"fp32": 1e-3, "bf16": 2e-2}
"""Of the mean loss of twenty steps, the furthest of all."""
_PIECE = 20


def _make_data(folder: Path) -> MadeDataset:
    return make_dataset(folder, length=64, rows=4096, vocabulary=128, seed=3)


def _make_run(data: MadeDataset, device: str, precision: str) -> Run:
    return Run(
        data=data,
        layers=2,
        hidden=64,
        heads=2,
        steps=STEPS,
        global_batch_size=32,
        micro_batch_size=32,
        device=device,
        precision=precision,
        learning_rate=1e-2,
        attention_dropout=0.0,
        report_steps=1,
    )


def compare_losses(part: Part) -> None:
    """Train in fp32 and, on a card, in bf16, and hold the curves to the file's."""
    result = Result()
    kept = json.loads(FILE.read_text())
    data = _make_data(part.folder / "data")
    if data.sha256 != kept["dataset"]:
        result.left_out.append("the rows made here are not those of the file: its losses are not comparable")
    precisions = ["fp32", "bf16"] if part.device == "cuda" else ["fp32"]
    runs = {precision: _make_run(data, part.device, precision) for precision in precisions}
    started = [start_trainer(run, part.folder / precision) for precision, run in runs.items()]
    for precision, process in zip(precisions, started, strict=True):
        with ended(process):
            process.wait()
        losses = [float(record["loss"]) for record in read_records(part.folder / precision)]
        if len(losses) < STEPS:
            result.left_out.append(f"{precision}: {len(losses)} of {STEPS} steps; output.log says why")
            continue
        pairs = [*zip(_means(losses), _means(kept["losses"]), strict=True)]
        furthest = max(abs(mine / theirs - 1) for mine, theirs in pairs)
        rows = [[_PIECE * (at + 1), round(mine, 4), round(theirs, 4)] for at, (mine, theirs) in enumerate(pairs)]
        here = f"{part.device}, {precision}"
        result.tables.append(Table(f"Loss, mean of {_PIECE} steps", ["step", here, "processor, fp32"], rows))
        verdict = Verdict(
            f"loss of {STEPS} steps, {precision}", f"within {_NEAR[precision]:.1%}", f"{furthest:.1e}",
            furthest < _NEAR[precision],
        )  # fmt: skip
        result.verdicts.append(verdict)
        part.publish(result)
    result.figures["processor's curve"] = f"{kept['processor']}, torch {kept['torch']}"
    result.done = len(result.verdicts) == len(precisions)
    part.publish(result)


def _means(losses: list[float]) -> list[float]:
    return [sum(losses[at : at + _PIECE]) / _PIECE for at in range(0, len(losses), _PIECE)]


def write_cpu_losses(folder: Path) -> None:
    """Train on this machine's processor and write the file."""
    import torch

    data = _make_data(folder / "data")
    code = run_trainer(_make_run(data, "cpu", "fp32"), folder / "run")
    assert code == 0, f"the trainer ended with {code}"
    losses = [round(float(record["loss"]), 6) for record in read_records(folder / "run")]
    found = {
        "dataset": data.sha256,
        "processor": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "losses": losses,
    }
    write_atomically(FILE, json.dumps(found) + "\n")
