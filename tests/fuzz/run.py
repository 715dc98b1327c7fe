"""``make fuzz``: coverage-guided fuzzing of everything that reads files from elsewhere, one reader after another.

The last line is ``fuzz: readers=... inputs=... least_coverage=... crashes=... slowest_s=... peak_mb=...``. The exit
status is 1 where anything was found, or where a reader was shown nothing or none of its lines was reached; 2 where
nothing could be fuzzed: atheris is not installed, or no reader has the name. Inputs of findings are left under
``runs/fuzz``; once fixed, a finding's file belongs into ``tests/fuzz/findings``, which ``tests/fuzz/test_findings.py``
replays without atheris.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("operator", "trainer", "tests/support", "tests/fuzz")]


def main() -> int:
    """Fuzz, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="for all readers together (120)")
    parser.add_argument(
        "--inputs", type=int, default=0, help="most inputs of one reader (as many as there is time for)"
    )
    parser.add_argument("--only", action="append", help="a reader, or the beginning of its name; may be repeated")
    parser.add_argument("--seed", type=int, default=1, help="of libFuzzer")
    parser.add_argument("--unreached", action="store_true", help="list the lines that no input reached")
    parser.add_argument("--findings", type=Path, default=ROOT / "runs/fuzz", help="folder for inputs of findings")
    options = parser.parse_args()
    if "PYTHONHASHSEED" not in os.environ:
        # Sets of text have an order of their own in each process, and what is reached first decides what comes next.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606
    try:
        import atheris
    except ImportError:
        print(
            "fuzz: nothing was fuzzed: atheris is not installed, which has wheels for Python 3.11 to 3.13 on Linux on "
            "x86-64 alone; next: run it there, or replay what was found with pytest tests/fuzz",
            file=sys.stderr,
        )
        return 2
    started = time.monotonic()
    with atheris.instrument_imports(include=["bert_trainer", "bert_operator"]):
        from readers import every_reader

        readers = tuple(every_reader())
    from campaign import fuzz
    from fuzz_results import empty_scans

    logging.disable(logging.CRITICAL)
    chosen = [
        reader for reader in readers if not options.only or any(reader.name.startswith(name) for name in options.only)
    ]
    if not chosen:
        names = ", ".join(reader.name for reader in readers)
        print(f"fuzz: --only: got {', '.join(options.only)}; allowed: beginnings of {names}", file=sys.stderr)
        return 2
    results = []
    for number, reader in enumerate(chosen):
        left_s = options.seconds - (time.monotonic() - started)
        share = max(1.0, 0.75 * left_s / (len(chosen) - number))
        kept = HERE / "corpus" / reader.name
        found = fuzz(reader, kept, options.findings, seconds=share, inputs=options.inputs, seed=options.seed)
        results.append(found)
        print(found.line(), flush=True)
        for problem in found.problems:
            print(f"  {problem}", flush=True)
        if options.unreached:
            for file, lines in found.unreached.items():
                print(f"  not reached: {file}: {', '.join(map(str, lines))}")
    empty = empty_scans(results)
    for problem in empty:
        print(f"fuzz: {problem}; next: give it more time (--seconds), or fuzz it alone (--only)")
    crashes = sum(len(found.problems) for found in results)
    print(
        f"fuzz: readers={len(results)} inputs={sum(found.inputs for found in results)} "
        f"least_coverage={100 * min(found.coverage for found in results):.0f}% crashes={crashes} "
        f"slowest_s={max(found.slowest_s for found in results):.2f} "
        f"peak_mb={max(found.peak_mb for found in results):.0f}"
    )
    return 1 if crashes or empty else 0


if __name__ == "__main__":
    sys.exit(main())
