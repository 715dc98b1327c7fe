"""``make chaos``: every fault at seeded moments of real jobs on a cluster of one node, beside an undisturbed run.

Needs root and what ``tools/node_packages.sh`` installs. The results are kept after every fault, so that an interrupted
campaign goes on with ``--resume``; ``--page docs/reliability.md`` writes the table into a page instead.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / name) for name in ("tools/local_cluster", "tests/support", "tests/chaos")]

from bench import Bench, prepare_bench  # noqa: E402 - after the path
from campaign import plan_moments, run_fault  # noqa: E402
from catalog import FAULTS  # noqa: E402
from fault import GROUPS, Fault  # noqa: E402
from own_cluster import own_cluster  # noqa: E402
from table import fill_page, findings, last_line, table, verdict_of  # noqa: E402

Records = dict[str, dict[str, Any]]


class Campaign:
    """The faults that are to be tried, and what was found so far, kept in a folder."""

    def __init__(self, folder: Path, *, seed: int, moments: int, resume: bool, limit_s: float) -> None:
        self.folder, self.seed, self.moments, self.limit_s = folder, seed, moments, limit_s
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "results.json"
        self.records: Records = json.loads(self._file.read_text()) if resume and self._file.exists() else {}
        self._lock = threading.Lock()
        self._started_s = time.monotonic()

    def is_left(self, fault: Fault) -> bool:
        """Tell whether a fault has not been tried yet, as often and with the seed that is asked for."""
        record = self.records.get(fault.name)
        return record is None or (record["seed"], record["planned"]) != (self.seed, self.moments)

    def run(self, bench: Bench, faults: Sequence[Fault]) -> None:
        """Try the faults: two jobs at a time where a fault touches only its own, then the others."""
        with ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(lambda fault: self._try(bench, fault), [fault for fault in faults if not fault.is_serial]))
        for fault in faults:
            if fault.is_serial:
                self._try(bench, fault)

    def _try(self, bench: Bench, fault: Fault) -> None:
        if time.monotonic() - self._started_s > self.limit_s:
            return
        say(f"{fault.name} ...")
        started_s = time.monotonic()
        jobs = run_fault(bench, fault, plan_moments(fault, self.seed, self.moments))
        record = {"seed": self.seed, "planned": self.moments, "took_s": time.monotonic() - started_s, "jobs": jobs}
        with self._lock:
            self.records[fault.name] = record
            fresh = self._file.with_suffix(".new")
            fresh.write_text(json.dumps(self.records, indent=1) + "\n")
            fresh.replace(self._file)
        say(f"{fault.name}: {verdict_of(record)} after {record['took_s']:.0f} s")
        for line in findings({fault.name: record}):
            say(f"  {line}")


def main(words: Sequence[str]) -> int:
    """Run a campaign; 0 where every fault that was tried is resilient."""
    arguments = _parse(words)
    chosen = [fault for fault in FAULTS if _is_chosen(fault, arguments)]
    if not chosen:
        print("chaos: no such fault; allowed:", *(fault.name for fault in FAULTS), sep="\n  ", file=sys.stderr)
        return 2
    if arguments.list:
        print(*(f"{fault.group}: {fault.name}" for fault in chosen), sep="\n")
        return 0
    campaign = Campaign(
        arguments.output,
        seed=arguments.seed,
        moments=arguments.moments,
        resume=arguments.resume or arguments.page is not None,
        limit_s=arguments.limit_s,
    )
    if arguments.page is not None:
        arguments.page.write_text(fill_page(arguments.page.read_text(), FAULTS, campaign.records))
        print(last_line(campaign.records))
        return 0
    left = [fault for fault in chosen if campaign.is_left(fault)]
    started_s = time.monotonic()
    if left:
        _run(campaign, left)
    print(table(FAULTS, campaign.records))
    say(f"{(time.monotonic() - started_s) / 60:.1f} minutes")
    print(last_line(campaign.records), flush=True)
    return 0 if all(verdict_of(record) == "resilient" for record in campaign.records.values()) else 1


def _run(campaign: Campaign, faults: Sequence[Fault]) -> None:
    with own_cluster("chaos") as (cluster, folder):
        say("the cluster is up; installing the operator, and the undisturbed run")
        cluster.install_operator(folder / "overlay")
        bench = prepare_bench(cluster, campaign.folder / "dataset")
        say(f"undisturbed: {bench.start_s:.1f} s from the start of its processes to the first step")
        try:
            campaign.run(bench, faults)
        finally:
            bench.close()


def _is_chosen(fault: Fault, arguments: argparse.Namespace) -> bool:
    named = not arguments.only or any(name.lower() in fault.name.lower() for name in arguments.only)
    return named and arguments.group in (None, fault.group)


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="faults whose name holds this; may be repeated")
    parser.add_argument("--group", choices=GROUPS, help="the faults of one group")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default: 1)")
    parser.add_argument("--moments", type=int, default=3, help="how often each fault happens (default: 3)")
    parser.add_argument("--output", type=Path, default=Path("runs/chaos"), help="folder of the results and the dataset")
    parser.add_argument("--resume", action="store_true", help="leave out what the folder has results of")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin no fault after so many seconds")
    parser.add_argument("--page", type=Path, help="write the tables of the results into this page, and run nothing")
    parser.add_argument("--list", action="store_true", help="list the faults, and run nothing")
    return parser.parse_args(words)


def say(text: str) -> None:
    """Say what happens."""
    print(f"--- {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
