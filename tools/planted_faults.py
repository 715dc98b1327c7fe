"""Plant faults in a copy of the product, one at a time, and see which of them the tests find.

``tests/planted/faults.toml`` lists them. Each is planted in a scratch clone of HEAD with a ``.venv`` of its own, whose
path file and programs lead to the clone: its code is tested wherever a test starts a process. The test that the list
names as ``caught_by`` runs first, then test folders that import the package of the fault, then the others, until one
test fails. The checkout is never written to.

    .venv/bin/python tools/planted_faults.py --check
    .venv/bin/python tools/planted_faults.py --run --known   # 12 minutes
    .venv/bin/python tools/planted_faults.py --run --jobs 1 --resume /tmp/planted.jsonl
    .venv/bin/python tools/planted_faults.py --only tr-schedule-step --run "pytest -n0 tests/schedule"

A command that names tests runs these alone. ``pytest`` is that of the clone; -x and -q are added. Tests that end
otherwise than by a failure (an hour, wrong options) are told as ``broken``, which is no catch. A test that fails
without any fault catches all: see ``make test`` pass first. Real weights: ``BERT_TEST_MINILM=$(tools/minilm.sh)``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAULTS = Path("tests/planted/faults.toml")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests\S+)", re.MULTILINE)
_KERNELS = "trainer/bert_trainer/model/backends/cpu/lib"
_MAX_DURATION_S = "3600"


@dataclass(frozen=True, slots=True)
class Fault:
    """A text of a file that is there once, and what takes its place."""

    id: str
    file: str
    old: str
    new: str
    why: str
    caught_by: str = ""

    def problem(self, root: Path) -> str:
        """Return why it cannot be planted; empty if it can."""
        text = (root / self.file).read_text()
        if text.count(self.old) != 1 or self.old == self.new:
            return f"{self.id}: {self.file}: old is there {text.count(self.old)} times; allowed: once, and another new"
        try:
            compile(text.replace(self.old, self.new), self.file, "exec")
        except SyntaxError as error:
            return f"{self.id}: {self.file}: {error}"
        return ""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a fault: the test that found it, ``survived`` or ``broken``."""

    id: str
    file: str
    outcome: str
    seconds: float


def read_faults(root: Path) -> list[Fault]:
    """Return the list."""
    faults = [Fault(**entry) for entry in tomllib.loads((root / FAULTS).read_text())["fault"]]
    assert len({fault.id for fault in faults}) == len(faults), "every fault has an id of its own"
    return faults


def clone(to: Path) -> None:
    """Clone HEAD, with a .venv whose packages are links but for what names the checkout."""
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(to)], check=True)
    if (ROOT / _KERNELS).exists():  # compiled by tools/setup.sh, and ignored by git
        shutil.copytree(ROOT / _KERNELS, to / _KERNELS)
    venv = (ROOT / ".venv").resolve()
    packages = next((venv / "lib").glob("python*/site-packages")).relative_to(venv)
    real = {Path("bin"), packages, *packages.parents} - {Path()}
    for folder in sorted({Path(), *real}):
        (to / ".venv" / folder).mkdir(parents=True, exist_ok=True)
        for entry in (venv / folder).iterdir():
            if folder / entry.name in real:
                continue
            place = to / ".venv" / folder / entry.name
            text = "" if entry.is_symlink() or not entry.is_file() else entry.read_bytes().decode(errors="ignore")
            if (folder == Path("bin") or entry.suffix == ".pth") and str(ROOT) in text and "\0" not in text:
                place.write_text(text.replace(str(ROOT), str(to)))
                shutil.copymode(entry, place)
            elif entry.is_symlink() and not Path(os.readlink(entry)).is_absolute():
                place.symlink_to(os.readlink(entry))
            else:
                place.symlink_to(entry)


def split_tests(root: Path, file: str) -> list[list[str]]:
    """Return the test folders that import the module of a file, those that import its package, and the others."""
    module = ".".join(Path(file).with_suffix("").parts[1:])
    wanted = [re.compile(rf"\b{re.escape(name)}\b") for name in (module, module.rpartition(".")[0])]
    tiers: list[list[str]] = [[], [], []]
    for folder in sorted({path.parent for path in (root / "tests").rglob("test_*.py")}):
        text = "".join(path.read_text() for path in folder.glob("*.py"))
        tier = next((number for number, name in enumerate(wanted) if name.search(text)), len(wanted))
        tiers[tier].append(str(folder.relative_to(root)))
    return [folders for folders in tiers if folders]


def default_command() -> list[str]:
    """Return what ``make test`` runs, by its own words, with as many processes."""
    found = re.search(r"^test:.*\n.*?/pytest -m \"([^\"]*)\"", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None, "the Makefile's target test runs pytest"
    return ["pytest", "-m", found[1], "-n", "2", "--dist", "worksteal"]


def run_tests(fault: Fault, root: Path, command: list[str], *, known: bool) -> Result:
    """Plant a fault in a clone, run the tests, and take it out again. known: the test alone that the list names."""
    path, began_s, outcome = root / fault.file, time.monotonic(), "survived"
    before = path.read_text()
    names_tests = any(word.startswith("tests") for word in command)
    environment = {**os.environ, "PATH": f"{root}/.venv/bin:{os.environ['PATH']}"}
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "VIRTUAL_ENV"):
        environment.pop(name, None)
    path.write_text(before.replace(fault.old, fault.new))
    try:
        runs = []
        if fault.caught_by and not names_tests:
            runs.append((["pytest", "-n0", "-m", ""], [fault.caught_by]))  # whatever its marker
        if not known:
            runs += [(command, folders) for folders in ([[]] if names_tests else split_tests(root, fault.file))]
        for (program, *options), places in runs:
            words = ["timeout", "-k", "10", _MAX_DURATION_S, f"{root}/.venv/bin/{program}", *options, "-x", "-q"]
            ended = subprocess.run([*words, *places], cwd=root, env=environment, capture_output=True, text=True)
            names = _FAILED.findall(ended.stdout) if ended.returncode in (1, 2) else []
            # 4: the test is gone, 5: nothing but what is left out stands in these folders.
            if ended.returncode not in (0, 5) and not (ended.returncode == 4 and places == [fault.caught_by]):
                outcome = f"caught_by={names[0]}" if names else f"broken ({ended.returncode})"
                break
    finally:
        path.write_text(before)
    return Result(fault.id, fault.file, outcome, round(time.monotonic() - began_s, 1))


def run_all(faults: list[Fault], command: list[str], jobs: int, resume: Path | None, *, known: bool) -> list[Result]:
    """Run what has no result yet, each job in a clone of its own, and print a line for each."""
    lines = resume.read_text().splitlines() if resume is not None and resume.exists() else []
    wanted = {fault.id for fault in faults}
    results = [found for found in (Result(**json.loads(line)) for line in lines) if found.id in wanted]
    left = [fault for fault in faults if fault.id not in {found.id for found in results}]
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:

        def work(number: int) -> None:
            place = Path(folder) / str(number)
            clone(place)
            while left:
                found = run_tests(left.pop(0), place, command, known=known)
                results.append(found)
                print(f"{found.id} {found.file} {found.outcome} {found.seconds:g}", flush=True)
                if resume is not None:
                    with resume.open("a") as file:
                        file.write(json.dumps(asdict(found)) + "\n")

        with ThreadPoolExecutor(jobs) as pool:
            try:
                list(pool.map(work, range(min(jobs, len(left)))))
            finally:  # also at Ctrl-C: the tests that run come to their end, and the clones are deleted
                left.clear()
    return results


def main() -> int:
    """Check the list, or run it; return 0 where every fault was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only see that every fault can be planted")
    parser.add_argument("--run", metavar="COMMAND", nargs="?", const="", help="default: what make test runs")
    parser.add_argument("--only", metavar="ID", action="append", help="this fault alone; may be repeated")
    parser.add_argument("--known", action="store_true", help="run the test alone that the list names for a fault")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--resume", type=Path, metavar="FILE", help="results so far, as JSON lines")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    faults = [fault for fault in read_faults(ROOT) if not arguments.only or fault.id in arguments.only]
    if problems := [problem for problem in (fault.problem(ROOT) for fault in faults) if problem]:
        sys.exit("\n".join(problems))
    if arguments.check or arguments.run is None:
        print(f"{len(faults)} faults can be planted")
        return 0
    command = shlex.split(arguments.run) or default_command()
    results = run_all(faults, command, arguments.jobs, arguments.resume, known=arguments.known)
    caught = sum(found.outcome.startswith("caught_by=") for found in results)
    print(f"planted={len(results)} caught={caught}")
    return 0 if caught == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
