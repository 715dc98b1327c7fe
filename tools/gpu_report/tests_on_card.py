"""tests/gpu as it is, by pytest; a result per test, so that a cut-off run names those that ran."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter

from gpu_report.part import Part, Result, Table, Verdict

_OUTCOME = "PASSED|FAILED|SKIPPED|ERROR|XFAIL"
# Of one process "TEST OUTCOME [ 10%]", of pytest-xdist "[gw0] [ 10%] OUTCOME TEST".
_LINE = re.compile(
    rf"^(?:\[gw\d+\]\s+\[\s*\d+%\]\s+(?P<first>{_OUTCOME})\s+)?(?P<test>tests/\S+::.+?)"
    rf"(?:\s+(?P<last>{_OUTCOME}).*)?$"
)
_PROCESSES = 6  # Most of the time is compiling, on processors.


def run_tests(part: Part) -> None:
    """Run the file that needs a card first, then the others."""
    result = Result()
    if importlib.util.find_spec("pytest") is None:
        result.left_out.append(
            "pytest is not installed. The self-test of every attention and of the "
            "compiler in the environment part, needs none"
        )
        result.done = True
        part.publish(result)
        return
    outcomes: Counter[str] = Counter()
    failed: list[list[str | int | float | None]] = []
    # One that needs a card is skipped without one; then a file that runs anywhere shows that the rest works.
    files = ["tests/gpu/test_bucket_padding.py"] if part.small else ["tests/gpu/test_on_a_gpu.py", "tests/gpu"]
    command = [sys.executable, "-m", "pytest", "-c", str(part.root / "tools/gpu_report/pytest.ini")]
    command += [f"--rootdir={part.root}", "-p", "gpu_report.pytest_plugin", "-v", "--tb=short", *files]
    if importlib.util.find_spec("xdist") is not None and not part.small:
        command += ["-n", str(_PROCESSES)]
    with subprocess.Popen(
        command, cwd=part.root, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            found = read_outcome(line.rstrip())
            if found is None:
                continue
            test, outcome = found
            outcomes[outcome] += 1
            if outcome in ("FAILED", "ERROR"):
                failed.append([test])
            result.figures = {name.lower(): count for name, count in sorted(outcomes.items())}
            part.publish(result)
    result.tables = [Table("Failed", ["test"], failed)] if failed else []
    got = ", ".join(f"{count} {name.lower()}" for name, count in sorted(outcomes.items())) or "none ran"
    good = process.returncode == 0 and outcomes["PASSED"] > 0
    result.verdicts.append(Verdict("tests/gpu", "all that this device can run pass", got, good))
    result.done = True
    part.publish(result)


def read_outcome(line: str) -> tuple[str, str] | None:
    """Return the test and the outcome of a line of pytest's, None of any other line."""
    match = _LINE.match(line)
    outcome = match and (match["first"] or match["last"])
    return (match["test"], outcome) if match and outcome else None
