"""Plants fault after fault in a healthy cluster and counts what the doctor says of each."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass

from bert_operator.doctor.command import run
from bert_operator.doctor.reading import Reader
from bert_operator.doctor.report import Report
from doctor_api import ApiCluster, ApiReader
from doctor_faults import Fault


@dataclass(frozen=True)
class Trial:
    """What was said of one fault."""

    fault: Fault
    """What was wrong."""
    said: tuple[str, ...]
    """Problems that its own check named."""
    false: tuple[str, ...]
    """What other checks said, or could not look at."""

    @property
    def is_found(self) -> bool:
        """Whether its own check said what it should."""
        return any(self.fault.says in problem for problem in self.said)


def look(reader: Reader, *, pre: bool = False) -> Report:
    """Make all checks."""
    return run(argparse.Namespace(pre=pre), reader)


def try_fault(cluster: ApiCluster, fault: Fault, reader: Reader | None = None) -> Trial:
    """Plant a fault, look, and heal the cluster."""
    with cluster.planted(fault.plant):
        report = look(reader or ApiReader(cluster.api))
    return Trial(fault, tuple(problems(report, {fault.check})), false_alarms(report, {fault.check}))


def problems(report: Report, checks: Iterable[str]) -> list[str]:
    """Return what these checks have found."""
    return [found.problem for outcome in report.outcomes if outcome.check in checks for found in outcome.findings]


def false_alarms(report: Report, checks: set[str]) -> tuple[str, ...]:
    """Return what all other checks have found, and what could not be looked at."""
    others = {outcome.check for outcome in report.outcomes} - checks
    unseen = (f"{outcome.check}: not looked at: {', '.join(outcome.missing)}" for outcome in report.unseen)
    return (*problems(report, others), *unseen)
