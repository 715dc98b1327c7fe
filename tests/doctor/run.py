"""``make test-doctor``: a healthy cluster on a real API server, then one fault after the other; a line that counts.

The last line is about the faults that were asked for, the one before about all others. ``--page`` writes what was said
into docs/guides/doctor.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("operator", "tools/local_cluster", "tests/support", "tests/doctor")]

from bert_operator.api.crd import render_crd  # noqa: E402
from bert_operator.plugin.kubectl import Kubectl  # noqa: E402
from bert_operator.plugin.kubectl_reader import KubectlReader  # noqa: E402
from control_plane import ControlPlane  # noqa: E402
from doctor_api import ApiCluster  # noqa: E402
from doctor_cluster import queue_definitions  # noqa: E402
from doctor_faults import ASKED_FOR, FURTHER, Fault  # noqa: E402
from doctor_trial import Trial, false_alarms, look, try_fault  # noqa: E402 - after the path

PAGE = ROOT / "docs/guides/doctor.md"
MARKS = ("<!-- faults: begin -->", "<!-- faults: end -->")


def main() -> int:
    """Plant all faults; return 1 where one was not found, or anything was said that is not so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="store_true", help=f"write the table of {PAGE.relative_to(ROOT)}")
    parser.add_argument(
        "--kubectl", action="store_true", help="read by kubectl throughout, as people do (a minute more)"
    )
    arguments = parser.parse_args()
    with ControlPlane(start=(), definitions=[render_crd(), *queue_definitions()]) as control_plane:
        cluster = ApiCluster(control_plane)
        kubectl = KubectlReader(
            Kubectl(
                (
                    "--kubeconfig",
                    str(control_plane.folder / "kubeconfig-admin"),
                )
            )
        )
        report = look(kubectl)
        print("\n".join(["a healthy cluster:", *report.lines()]), flush=True)
        false = false_alarms(report, set())
        groups = [try_all(cluster, faults, kubectl if arguments.kubectl else None) for faults in (ASKED_FOR, FURTHER)]
    if arguments.page:
        write_page([trial for trials in groups for trial in trials])
    asked_for, further = groups
    print(f"also: {count(further, ())}")
    print(f"doctor: {count(asked_for, false)}")
    trials = [*asked_for, *further]
    return 0 if all(trial.is_found and not trial.false for trial in trials) and not false else 1


def try_all(cluster: ApiCluster, faults: Sequence[Fault], reader: KubectlReader | None) -> list[Trial]:
    """Try faults one after the other, and print what was said."""
    trials = []
    for fault in faults:
        trial = try_fault(cluster, fault, reader)
        print(f"{'found' if trial.is_found else 'NOT FOUND'}: {fault.words}")
        for problem in trial.said:
            print(f"    {fault.check}: {problem}")
        for problem in trial.false:
            print(f"    FALSE: {problem}")
        sys.stdout.flush()
        trials.append(trial)
    return trials


def count(trials: Sequence[Trial], false: Sequence[str]) -> str:
    """Return the figures of a line."""
    wrong = len(false) + sum(len(trial.false) for trial in trials)
    return f"planted={len(trials)} found={sum(trial.is_found for trial in trials)} false={wrong}"


def write_page(trials: Sequence[Trial]) -> None:
    """Put the table into the page, between its marks."""
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    # On one line, and in one cell.
    texts = [(trial.fault, " ".join(trial.said[0].split()).replace("|", "\\|")) for trial in trials if trial.said]
    rows = [f"| {fault.words} | `{fault.check}` | {text} |" for fault, text in texts]
    table = "\n".join(["| fault | check | what it says |", "| --- | --- | --- |", *rows])
    PAGE.write_text(f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{after}")


if __name__ == "__main__":
    sys.exit(main())
