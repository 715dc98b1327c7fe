"""What machine this is: versions, what is missing, what the card can do at most, whether each attention works on it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import torch

from gpu_report import stand_ins
from gpu_report.part import Part, Result, Table, Verdict, find_peak_tflops

PACKAGES = (
    "torch", "triton", "numpy", "h5py", "tokenizers", "safetensors",
    "pydantic", "psutil", "pytest", "pytest-timeout", "transformers", "horovod", "mpi4py",
)  # fmt: skip
_QUERY = "name,driver_version,memory.total,power.limit,clocks.max.sm,temperature.gpu,ecc.mode.current"


def report_environment(part: Part) -> None:
    """Publish versions first, then what is measured."""
    result = Result()
    for name in PACKAGES:
        result.figures[f"package {name}"] = _version_of(name)
    missing = stand_ins.install()
    if missing:
        result.left_out.append(
            f"not installed: {', '.join(missing)}. In place of pydantic and psutil the report brings the little that a "
            "run uses (types of settings are checked, bounds are not); nothing calls the others"
        )
    result.figures |= _describe_machine()
    part.publish(result)
    if part.device == "cuda":
        result.figures |= _describe_card()
        part.publish(result)
    _measure_ceilings(part, result)
    _try_attention(part, result)
    _try_compiler(part, result)
    result.done = True
    part.publish(result)


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        there = package not in stand_ins.install() and importlib.util.find_spec(package.replace("-", "_"))
        return "there, version unknown" if there else "missing"


def _describe_machine() -> dict[str, str | int | float | None]:
    models = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return {
        "Python": f"{platform.python_version()} ({sys.executable})",
        "kernel": platform.release(),
        "processor": f"{models[0] if models else platform.machine()}, {len(os.sched_getaffinity(0))} usable",
        "memory, GiB": round(memory / 2**20, 1),
        "torch built for": f"CUDA {torch.version.cuda}, {' '.join(torch.cuda.get_arch_list()) or 'no card here'}",
        "C compiler": next((path for name in ("gcc", "cc", "clang") if (path := shutil.which(name))), "missing"),
        "Python.h": str(headers) if headers.exists() else "missing",
        "mpirun": shutil.which("mpirun") or "missing",
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _describe_card() -> dict[str, str | int | float | None]:
    properties = torch.cuda.get_device_properties(0)
    figures: dict[str, str | int | float | None] = {
        "cards": torch.cuda.device_count(),
        "card": properties.name,
        "capability": f"sm_{properties.major}{properties.minor}",
        "card's memory, GiB": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
        "NCCL": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
        "cuDNN": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    }
    if shutil.which("nvidia-smi"):
        asked = subprocess.run(
            ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
        lines = asked.stdout.strip().splitlines()
        if asked.returncode == 0 and lines:
            figures |= dict(
                zip([f"nvidia-smi {name}" for name in _QUERY.split(",")], lines[0].split(", "), strict=False)
            )
    return figures


def _try_compiler(part: Part, result: Result) -> None:
    from bert_trainer.model.backends.gpu.compilation import why_not_compiled

    started_s = time.perf_counter()
    reason = why_not_compiled(torch.device(part.device))
    result.figures["torch.compile, first function, s"] = round(time.perf_counter() - started_s, 1)
    got = "works" if reason is None else reason
    result.verdicts.append(Verdict("torch.compile", "works", got, reason is None))
    part.publish(result)


def _try_attention(part: Part, result: Result) -> None:
    """Run the trainer's self-test of every attention, type and head size that this device should have."""
    from bert_trainer.model.backends.gpu.self_test import find_fault

    fp32, fp16, bf16 = torch.float32, torch.float16, torch.bfloat16
    tried = [("padded", fp32)]
    if part.device == "cuda":
        at_least_ampere = torch.cuda.get_device_capability() >= (8, 0)
        tried += [("padded", fp16), ("efficient", fp32), ("efficient", fp16)]
        tried += [("padded", bf16), ("efficient", bf16), ("flash", fp16), ("flash", bf16)] if at_least_ampere else []
    rows = []
    for name, dtype in tried:
        for head_size in (32, 64, 128):
            fault = find_fault(name, torch.device(part.device), dtype, head_size)  # type: ignore[arg-type]
            rows.append([name, str(dtype).removeprefix("torch."), head_size, fault or "passed"])
    passed = sum(row[-1] == "passed" for row in rows)
    result.tables.append(Table("Attention's self-test", ["attention", "type", "head size", "result"], rows))
    wanted, got = f"{len(rows)} of {len(rows)}", f"{passed} of {len(rows)}"
    result.verdicts.append(Verdict("values and gradients of attention on this device", wanted, got, wanted == got))
    part.publish(result)


def _measure_ceilings(part: Part, result: Result) -> None:
    on_card = part.device == "cuda"
    size, dtype = (8192, torch.bfloat16) if on_card else (512, torch.float32)
    a, b = (torch.randn(size, size, device=part.device, dtype=dtype) for _ in range(2))
    seconds = time_median(lambda: a @ b, part.device)
    rate = 2 * size**3 / seconds / 1e12
    result.figures[f"large products ({size}, {str(dtype).removeprefix('torch.')}), TFLOP/s"] = round(rate, 3)
    peak = find_peak_tflops(torch.cuda.get_device_name()) if on_card else None
    if peak is not None:
        result.figures["by the data sheet, TFLOP/s"] = peak
    source = torch.randn((1 << 30 if on_card else 1 << 22) // 4, device=part.device)
    target = torch.empty_like(source)
    seconds = time_median(lambda: target.copy_(source), part.device)
    result.figures["copy within its memory, GB/s read and written"] = round(2 * source.nbytes / seconds / 1e9, 1)
    part.publish(result)


def time_median(action: object, device: str) -> float:
    """Return the median seconds of ten calls after three, each between two waits for the device."""
    assert callable(action)
    found = []
    for _ in range(13):
        _wait(device)
        started_s = time.perf_counter()
        action()
        _wait(device)
        found.append(time.perf_counter() - started_s)
    return statistics.median(found[3:])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
