"""``benchmarks/gpu.py``: the step with nothing around it, beside Hugging Face's or a plain one under torch.compile."""

from __future__ import annotations

import re
import subprocess
import sys

from gpu_report.part import Part, Result, Table, Verdict

BARS = {512: 800.0, 128: 2400.0}
"""Sequences/s of BERT-large on one H200 in bf16, real lengths, dropout 0.1."""
RATIO = 2.5
"""Times the peer under torch.compile with SDPA, at 512."""
PEER = "peer, sequences/s"
_ARGUMENTS = {512: ("--sequences", "1024"), 128: ("--sequences", "4096")}
_SMALL = ("--device", "cpu", "--preset", "tiny", "--sequences", "8", "--rounds", "2")


def run_benchmark(part: Part, length: int, graphs: bool = False) -> None:
    """Measure one phase, and publish its table as soon as it is printed."""
    result = Result()
    arguments = ["--phases", str(length)]
    arguments += _SMALL if part.small else ["--attention", "flash", "--rounds", "3", *_ARGUMENTS[length]]
    arguments += ["--cuda-graphs"] if graphs else []
    command = [sys.executable, str(part.root / "benchmarks/gpu.py"), *arguments]
    result.notes.append("`benchmarks/gpu.py " + " ".join(arguments) + "`")
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            lines.append(line.strip())
            read_table(lines, length, result, judged=part.device == "cuda")
            part.publish(result)
    if process.returncode:
        result.left_out.append(f"benchmarks/gpu.py ended with {process.returncode}; output.log says why")
    result.done = process.returncode == 0
    part.publish(result)


def read_table(lines: list[str], length: int, result: Result, *, judged: bool) -> None:
    """Fill in what the benchmark has printed so far."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    result.notes[1:] = [line for line in lines if "host waits" in line or "against plain" in line]
    if len(cells) < 4:  # heading, rule, a side, the peer
        return
    columns, _, *rows = cells
    result.tables = [Table(f"Length {length}", columns, [[*row] for row in rows])]
    fast, peer = rows[0], rows[-1]
    rate, ratio = (_median(fast[columns.index(name)]) for name in ("sequences/s: median (range)", "x peer"))
    result.figures = {
        "sequences/s": rate,
        "times the peer": ratio,
        PEER: _median(peer[columns.index("sequences/s: median (range)")]),
    }
    result.verdicts = [
        Verdict(f"benchmark's step at {length}, sequences/s", f"≥ {BARS[length]:,.0f}", f"{rate:,.0f}",
                rate >= BARS[length] if judged else None),
        Verdict(f"benchmark's step at {length}, times {peer[1]}", f"≥ {RATIO}", f"{ratio:.2f}",
                ratio >= RATIO if judged else None),
    ]  # fmt: skip


def _median(cell: str) -> float:
    """Read ``1,234 (1,200-1,300)``."""
    match = re.match(r"[\d,.e+]+", cell)
    return float(match[0].replace(",", "")) if match else float("nan")
