"""Fuzzes one reader in a process of its own, forked from one that has imported and instrumented everything.

What it finds is kept as a file and the run goes on; an input that ends the process, or hangs, is told by what libFuzzer
leaves.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

from fuzz_reader import Chance, Reader
from fuzz_results import Result
from reached import Line, lines_of, trace
from trial import SLOW, Verdict, judge, limit_memory
from untraced import judge_untraced

_COUNTS = struct.Struct("<QQddQ")
"""Inputs, refusals, most seconds, most MB, findings."""
_HANG_SECONDS = 60
"""Of the clock: for one input that uses no processor at all."""


def fuzz(reader: Reader, kept: Path, findings: Path, *, seconds: float, inputs: int, seed: int) -> Result:
    """Fuzz one reader; files of findings go to a folder.

    Args:
        reader: what is fuzzed.
        kept: its corpus of the repository; may be missing.
        findings: where inputs of findings are written.
        seconds: how long.
        inputs: how many at most; 0: as many as there is time for.
        seed: libFuzzer's.
    """
    result = Result(reader.name)
    with tempfile.TemporaryDirectory(prefix="bert-fuzz-") as scratch:
        place = Path(scratch)
        for name in ("corpus", "seeds", "work", "left"):
            (place / name).mkdir()
        given = place / "given"
        given.mkdir()
        # Here, where what the writers leave for the reader is found by both children.
        for number, data in enumerate(reader.seeds(given)):
            (place / "seeds" / f"{number:04}").write_bytes(data)
        if kept.is_dir():
            for path in kept.iterdir():
                shutil.copyfile(path, place / "seeds" / f"kept-{path.name}")
        with mmap.mmap(-1, _COUNTS.size) as shared:
            child = os.fork()
            if child == 0:
                _run_child(reader, findings, place, shared, (seconds, inputs, seed))
            _, status = os.waitpid(child, 0)
            result.inputs, result.refused, result.slowest_s, result.peak_mb, _ = _COUNTS.unpack(shared[:])
        result.problems = [path.read_text() for path in sorted((place / "left").glob("*.txt"))]
        for path in sorted((place / "left").glob("*-*")):
            if path.suffix != ".txt":
                result.problems.append(f"ended or hung the process: {_keep(findings, reader, path.read_bytes())}")
        if not os.WIFEXITED(status) or (os.WEXITSTATUS(status) and not result.problems):
            result.problems.append(f"the process ended with status {status}")
        hit, left_out = _measure(reader, place, max(4.0, seconds / 3))
        wanted = lines_of(reader)
        result.coverage = len(hit) / max(1, len(wanted))
        result.problems += [f"leaves_out holds what an input enters: {name}" for name in left_out]
        for file, line in sorted(wanted - hit):
            result.unreached.setdefault(Path(file).name, []).append(line)
    return result


def _keep(findings: Path, reader: Reader, data: bytes) -> Path:
    path = findings / reader.name / hashlib.sha256(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _run_child(reader: Reader, findings: Path, place: Path, shared: mmap.mmap, how: Any) -> None:
    """Fuzz until time is up; never returns."""
    import atheris

    status = 1
    try:
        seconds, inputs, seed = how
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        quiet = os.open(os.devnull, os.O_WRONLY)
        log = os.open(place / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(quiet, 1)
        os.dup2(log, 2)
        limit_memory()
        seen: set[str] = set()

        def try_one(data: bytes) -> None:
            verdict = judge(reader, data, place / "work")
            if verdict.place == SLOW:
                # What a user would wait for decides, not what tracing adds.
                (place / "slow").write_bytes(data)
                verdict = judge_untraced(reader, place / "slow") or verdict
            _count(shared, verdict)
            if verdict.problem and verdict.place not in seen:
                seen.add(verdict.place)
                file = _keep(findings, reader, data)
                (place / "left" / f"{len(seen):04}.txt").write_text(f"{verdict.place}: {verdict.problem} ({file})")

        # In an order of ours and never read again: a run with the same seed then meets the same inputs.
        (place / "order").write_text(",".join(str(path) for path in sorted((place / "seeds").iterdir())))
        arguments = ["fuzz", str(place / "corpus"), f"-seed_inputs=@{place / 'order'}", "-reload=0"]
        arguments += ["-shuffle=0", f"-artifact_prefix={place / 'left'}/"]
        arguments += [f"-max_total_time={max(1, int(seconds))}", f"-timeout={_HANG_SECONDS}", "-rss_limit_mb=0"]
        arguments += [f"-seed={seed}", f"-max_len={reader.max_bytes}", "-len_control=0", f"-runs={inputs or -1}"]
        options = {}
        if reader.mutate is not None:
            change = reader.mutate

            def mutate(data: bytes, most: int, number: int) -> bytes:
                chance = Chance(number, lambda part: atheris.Mutate(bytes(part), max(len(part) + 64, 64)))
                changed = change(bytes(data), chance)
                return changed if 0 < len(changed) <= most else atheris.Mutate(bytes(data), most)

            options["custom_mutator"] = mutate
        atheris.Setup(arguments, try_one, **options)
        atheris.Fuzz()
        status = 0
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException as error:  # noqa: BLE001 - a parent that waits has to learn of it
        (place / "left" / "9999.txt").write_text(f"the harness failed: {error!r}")
    finally:
        os._exit(status)


def _count(shared: mmap.mmap, verdict: Verdict) -> None:
    inputs, refused, slowest, peak, findings = _COUNTS.unpack(shared[:])
    shared[:] = _COUNTS.pack(
        inputs + verdict.shown,
        refused + verdict.refused,
        max(slowest, verdict.seconds),
        max(peak, verdict.peak_mb),
        findings + bool(verdict.problem),
    )


def _measure(reader: Reader, place: Path, seconds: float) -> tuple[set[Line], list[str]]:
    """Return the lines that sound inputs and those that libFuzzer kept reach, and what they should not enter.

    In a process of its own, for a limited time: what is not reached in it counts as not reached.
    """
    report, child = place / "reached", os.fork()
    if child == 0:
        try:
            # As many as there is time for, those that were found last first: they reach what others do not.
            kept = sorted((place / "corpus").iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
            inputs = [path.read_bytes() for path in [*sorted((place / "seeds").iterdir()), *kept]]
            limit_memory()
            found = trace(reader, inputs, place / "work", seconds=seconds)
            report.write_text(json.dumps([sorted(found.lines), sorted(found.left_out)]))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    lines, left_out = json.loads(report.read_text()) if report.exists() else ((), ())
    return {(file, line) for file, line in lines}, left_out
