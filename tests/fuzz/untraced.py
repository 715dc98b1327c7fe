"""Shows one input to one reader in a process of its own, without atheris: ``python untraced.py READER FILE``.

Tracing makes code that looks at short lines four times as slow, so that an input that took too long while it was traced
is timed again as users would meet it. Prints the verdict as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parents[1] / name) for name in ("operator", "trainer", "tests/support", "tests/fuzz")]

from fuzz_reader import Reader  # noqa: E402 - after the path
from trial import Verdict, judge  # noqa: E402

_MAX_SECONDS = 300.0


def judge_untraced(reader: Reader, path: Path) -> Verdict | None:
    """Return what an input comes to in a process without atheris; None where none comes out of it."""
    try:
        told = subprocess.run(
            [sys.executable, __file__, reader.name, str(path)],
            capture_output=True,
            text=True,
            timeout=_MAX_SECONDS,
            check=True,
        ).stdout
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    return Verdict(**json.loads(told))


def main() -> None:
    """Judge, and print the verdict."""
    from readers import find_reader

    logging.disable(logging.CRITICAL)
    reader = find_reader(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="bert-fuzz-") as folder:
        given, work = Path(folder, "given"), Path(folder, "work")
        given.mkdir()
        work.mkdir()
        list(reader.seeds(given))  # some inputs are a file of the folder that the writers leave
        print(json.dumps(dataclasses.asdict(judge(reader, Path(sys.argv[2]).read_bytes(), work))))


if __name__ == "__main__":
    main()
