"""The report: ``tools/gpu_report.sh FOLDER``. Every part in a process of its own, most important first.

FOLDER holds, at every moment, what is known: report.md, results.json, output.log and the raw files. It may lie
anywhere; what the parts need while they run goes below TMPDIR and is deleted.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpu_report.page import render_page
from gpu_report.part import Part, Result, read_result, write_atomically
from gpu_report.schedule import ENTRIES, Entry, find_work

NEEDED = ("torch", "numpy", "h5py", "tokenizers", "safetensors")
TOTAL_S = 540.0
SMALL_PATIENCE = 4
"""Times a part's limit, for machines on which others work as well."""
MIN_DURATION_S = 15.0
"""Left for a part below which it is not begun."""
_KEPT_BYTES = 2 << 20
"""Of one part's output."""
_SUFFIXES = 4  # .pt.trace.json.gz
_POLL_S = 0.5


@dataclass(slots=True)
class Running:
    """A part's process."""

    entry: Entry
    process: subprocess.Popen[bytes]
    output: Path
    started_s: float
    limit_s: float


@dataclass(slots=True)
class Report:
    """Starts parts, ends them at their limits, and keeps the page up to date."""

    entries: Sequence[Entry]
    device: str
    small: bool
    folder: Path
    scratch: Path
    ends_at_s: float
    running: list[Running] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)

    def run(self) -> None:
        """Run all parts; parts that are not timed run beside one another on a card."""
        waiting = [*self.entries]
        while waiting or self.running:
            while waiting and self._may_begin(waiting[0]):
                self._begin(waiting.pop(0))
            self._look()
            if self.running:
                time.sleep(_POLL_S)

    def _may_begin(self, entry: Entry) -> bool:
        if not self.running:
            return True
        return self.device == "cuda" and not entry.timed and not any(one.entry.timed for one in self.running)

    def _begin(self, entry: Entry) -> None:
        left_s = self.ends_at_s - time.monotonic()
        if left_s < MIN_DURATION_S:
            self.states[entry.name] = "not begun: no time left"
            return
        self.states[entry.name] = "runs"
        output = self.scratch / f"{entry.name}.log"
        command = [sys.executable, "-m", "gpu_report", "--part", entry.name, "--device", self.device]
        command += [*(["--small"] if self.small else []), str(self.scratch)]
        with output.open("wb") as file:
            # A group of its own, which ends as a whole, in this session, which whoever ends that reaches as well.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, process_group=0
            )
        limit_s = entry.limit_s * (SMALL_PATIENCE if self.small else 1)
        self.running.append(Running(entry, process, output, time.monotonic(), min(limit_s, left_s)))
        print(f"{entry.name}: begun, {left_s:.0f} s left", flush=True)

    def _look(self) -> None:
        changed = False
        for one in [*self.running]:
            changed = self._read(one.entry) or changed
            spent_s = time.monotonic() - one.started_s
            over = one.process.poll() is None and spent_s > one.limit_s
            if over or one.process.poll() is not None:
                end_group(one.process)
                self._read(one.entry)
                self.states[one.entry.name] = self._describe_end(one, spent_s, cut=over)
                print(f"{one.entry.name}: {self.states[one.entry.name]}", flush=True)
                self._keep(one)
                self.running.remove(one)
                changed = True
        if changed or not (self.folder / "report.md").exists():
            self.write()

    def _read(self, entry: Entry) -> bool:
        found = read_result(self.scratch, entry.name)
        if found is None or found == self.results.get(entry.name):
            return False
        self.results[entry.name] = found
        return True

    def _describe_end(self, one: Running, spent_s: float, *, cut: bool) -> str:
        if cut:
            return f"ended at its limit of {one.limit_s:.0f} s; what it had found is below"
        result = self.results.get(one.entry.name)
        if one.process.returncode == 0 and result is not None and result.done:
            return f"done in {spent_s:.0f} s"
        return f"failed after {spent_s:.0f} s with status {one.process.returncode}; output.log says why"

    def _keep(self, one: Running) -> None:
        """Append a part's output, its end where it is long, and copy its raw files."""
        with one.output.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _KEPT_BYTES))
            kept = file.read()
        with (self.folder / "output.log").open("ab") as log:
            log.write(f"=== {one.entry.name}: {self.states[one.entry.name]}\n".encode() + kept.rstrip() + b"\n")
        for path in self.results.get(one.entry.name, Result()).files:
            # By the part alone, so that a later report replaces it.
            shutil.copy(path, self.folder / f"{one.entry.name}{''.join(Path(path).suffixes[-_SUFFIXES:])}")

    def write(self) -> None:
        """Write the page and the results."""
        heading = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, device {self.device}" + (
            ". Small sizes: a rehearsal, whose figures say nothing of a card" if self.small else ""
        )
        write_atomically(self.folder / "report.md", render_page(heading, self.entries, self.results, self.states))
        found = {name: asdict(result) | {"state": self.states.get(name)} for name, result in self.results.items()}
        write_atomically(self.folder / "results.json", json.dumps(found, indent=1) + "\n")

    def stop(self) -> None:
        """End what runs, and keep what it had found."""
        for one in [*self.running]:
            end_group(one.process)
            self._read(one.entry)
            self.states[one.entry.name] = "stopped with the report; what it had found is below"
            self._keep(one)
        self.write()


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a part and everything that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> int:
    """Return 0 if every part came to its end and no verdict is against it."""
    options = _parse()
    if options.part is not None:
        return run_part(options)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{sys.executable} lacks {', '.join(missing)}, without which nothing can be shown", file=sys.stderr)
        return 2
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        (options.folder / "output.log").write_bytes(b"")
    except OSError as error:
        print(f"{options.folder}: cannot be written ({error.strerror}); name another folder", file=sys.stderr)
        return 2
    if options.write_cpu_losses:
        from gpu_report import stand_ins

        stand_ins.install()
        from gpu_report import loss_curve

        with tempfile.TemporaryDirectory(prefix="gpu-report-") as scratch:
            loss_curve.write_cpu_losses(Path(scratch))
        return 0
    wanted = options.only.split(",") if options.only else [entry.name for entry in ENTRIES]
    entries = [entry for entry in ENTRIES if entry.name in wanted and entry.name not in options.skip.split(",")]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="gpu-report-", ignore_cleanup_errors=True) as scratch:
        # Below the scratch folder, so that the parts share what one of them has compiled.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(scratch) / "inductor"))
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        ends_at_s = time.monotonic() + options.seconds
        device = options.device or find_device()
        if device == "cpu":
            # At such sizes threads wait for one another longer than they compute.
            os.environ.setdefault("OMP_NUM_THREADS", "1")
        report = Report(entries, device, options.small, options.folder, Path(scratch), ends_at_s)
        try:
            report.run()
        finally:
            report.stop()
    against = [one for result in report.results.values() for one in result.verdicts if one.holds is False]
    ended = sum(state.startswith("done") for state in report.states.values())
    print(f"{options.folder / 'report.md'}: {ended} of {len(entries)} parts done, {len(against)} verdict(s) against it")
    return 0 if ended == len(entries) and not against else 1


def find_device() -> str:
    """Return cuda where a process of its own sees a card: the report itself never loads torch."""
    asked = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return "cuda" if subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0 else "cpu"


def run_part(options: argparse.Namespace) -> int:
    """Run one part in this process."""
    from gpu_report import stand_ins

    stand_ins.install()
    part = Part(options.part, options.device, options.small, options.folder)
    find_work(options.part)(part)
    result = read_result(options.folder, options.part)
    return 0 if result is not None and result.done else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_report.sh", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="for the page and the raw files")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="cuda where there is a card")
    parser.add_argument(
        "--small", action="store_true", help="everything at small size: a rehearsal, also on a processor"
    )
    parser.add_argument("--seconds", type=float, default=TOTAL_S, help=f"for all parts together ({TOTAL_S:.0f})")
    names = ",".join(entry.name for entry in ENTRIES)
    parser.add_argument("--only", metavar="PARTS", help=f"of {names}")
    parser.add_argument("--skip", metavar="PARTS", default="", help="leave these out")
    parser.add_argument(
        "--write-cpu-losses", action="store_true", help="train on this processor and write cpu_losses.json"
    )
    parser.add_argument("--part", choices=[entry.name for entry in ENTRIES], help=argparse.SUPPRESS)
    options = parser.parse_args()
    asked = {name for given in (options.only or "", options.skip) for name in given.split(",") if name}
    if unknown := sorted(asked - {entry.name for entry in ENTRIES}):
        parser.error(f"--only, --skip: got {', '.join(unknown)}; allowed: {names}")
    return options


if __name__ == "__main__":
    sys.exit(main())
