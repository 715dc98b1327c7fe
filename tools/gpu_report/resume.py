"""A run that is killed and resumed beside one that is not, bit for bit; and whether the device repeats itself."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from gpu_report.dataset import make_dataset
from gpu_report.documents import Run, ended, read_records, run_trainer, start_trainer
from gpu_report.part import Cell, Part, Result, Table, Verdict

_FILES = ("model.safetensors", "optimizer.safetensors")
_PATIENCE_S = 300.0
"""The part's own limit is below it, but for a rehearsal's."""


def compare_resumed(part: Part) -> None:
    """Run five beside one another: whole, whole again, killed, and two with kernels that promise the same bits."""
    result = Result()
    length = 64 if part.small else 512
    data = make_dataset(part.folder / "data", length=length, rows=512, vocabulary=500 if part.small else 30522)
    steps, layers, hidden, heads = (12, 2, 64, 2) if part.small else (30, 4, 768, 12)
    run = Run(
        data=data,
        layers=layers,
        hidden=hidden,
        heads=heads,
        steps=steps,
        global_batch_size=16 if part.small else 64,
        micro_batch_size=8 if part.small else 32,
        device=part.device,
        precision="fp32" if part.device == "cpu" else "bf16",
        report_steps=1,
        checkpoint_steps=steps // 3,
    )
    folders = {name: part.folder / name for name in ("whole", "again", "killed", "exact", "exact-killed")}
    whole, again = start_trainer(run, folders["whole"]), start_trainer(run, folders["again"])
    exact = start_trainer(run, folders["exact"], "--deterministic")
    with ended(whole), ended(again), ended(exact):
        with ThreadPoolExecutor(2) as threads:
            killed = threads.submit(_kill_and_resume, run, folders["killed"])
            exact_killed = threads.submit(_kill_and_resume, run, folders["exact-killed"], "--deterministic")
        result.figures["killed after step"] = f"{killed.result()} and {exact_killed.result()}"
        part.publish(result)
        codes = [process.wait(timeout=_PATIENCE_S) for process in (whole, again, exact)]
    if any(codes):
        result.left_out.append(f"runs that were not killed ended with {codes}; output.log says why")
    pairs = {
        "killed and resumed": ("whole", "killed"),
        "the same run twice": ("whole", "again"),
        "killed and resumed, deterministic kernels": ("exact", "exact-killed"),
    }
    rows: list[list[Cell]] = []
    for what, (one, other) in pairs.items():
        differing, largest = compare_checkpoints(folders[one], folders[other])
        rows.append([what, differing, largest])
        got = "equal to the bit" if differing == 0 else f"{differing} tensors differ, by {largest:.1e} at most"
        # What the device does not repeat in a run of its own, a resumed one cannot repeat either.
        judged = differing == 0 if "twice" not in what else None
        result.verdicts.append(Verdict(what, "equal to the bit", got, judged))
    columns = ["pair", "tensors that differ", "largest difference"]
    result.tables.append(Table("Weights and moments at the end", columns, rows))
    result.done = not any(codes)
    part.publish(result)


def _kill_and_resume(run: Run, folder: Path, *arguments: str) -> int:
    """Kill a run between two checkpoints, let it resume to its end; return the step after which it was killed."""
    assert run.checkpoint_steps is not None
    with ended(start_trainer(run, folder, *arguments)) as process:
        until_s = time.monotonic() + _PATIENCE_S
        while process.poll() is None and time.monotonic() < until_s:
            records, saved = read_records(folder), read_records(folder, "checkpoint")
            if saved and records and int(records[-1]["step"]) > run.checkpoint_steps:
                break
            time.sleep(0.02)
        process.kill()
    killed_at = int(read_records(folder)[-1]["step"])
    code = run_trainer(run, folder, *arguments)
    assert code == 0, f"the resumed run ended with {code}"
    resumed = read_records(folder, "resumed")
    print(f"killed after step {killed_at}; {[record['message'] for record in resumed]}", flush=True)
    return killed_at


def compare_checkpoints(one: Path, other: Path) -> tuple[int, float]:
    """Return how many tensors of two runs' last checkpoints differ in any bit, and by how much at most."""
    paths = [max((run / "checkpoints").glob("*/manifest.json"), key=_step_of).parent for run in (one, other)]
    differing, largest = 0, 0.0
    for name in _FILES:
        first, second = (load_file(path / name) for path in paths)
        assert first.keys() == second.keys()
        for key, tensor in first.items():
            if not torch.equal(_bits(tensor), _bits(second[key])):
                differing += 1
                largest = max(largest, float((tensor.double() - second[key].double()).abs().max()))
    return differing, largest


def _bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _step_of(manifest: Path) -> int:
    return int(manifest.parent.name.rpartition("-")[2])
