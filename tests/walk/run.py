"""``make walk``: a random walk over the spec on a real API server, with a last line that counts.

An episode that has a finding is walked again and shortened; its steps and the end of the operator's log are printed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("operator", "tools/local_cluster", "tests/support", "tests/walk")]

from bert_operator.api.crd import render_crd  # noqa: E402
from control_plane import ControlPlane  # noqa: E402
from operator_process import OperatorProcess, install_operator  # noqa: E402
from spec_walk import BURSTS, MAX_FINDINGS, SpecWalk, prepare_namespace, settings  # noqa: E402 - after the path


def main() -> int:
    """Walk; return 1 where anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transitions", type=int, default=2000)
    parser.add_argument("--each", type=int, default=100, help="transitions of an episode")
    parser.add_argument("--bursts", type=int, nargs="+", default=BURSTS, help="lengths to draw from (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first episode; further ones count on")
    parser.add_argument("--shorten", type=int, default=12, metavar="TRIES", help="how often to try for a shorter way")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spec-walk-") as name:
        folder = Path(name)
        with ControlPlane(folder / "control-plane", definitions=[render_crd()]) as control_plane:
            config = control_plane.kubeconfig(install_operator(control_plane))
            prepare_namespace(control_plane.api, "walk")
            first, rival = (
                OperatorProcess(folder / name, config, namespaces=["walk"], name=name, **settings())
                for name in ("operator", "rival")
            )
            with first, SpecWalk(control_plane.api, "walk", first, rival, tuple(arguments.bursts)) as walk:
                findings = run(walk, arguments)
    print(f"walk: seed={arguments.seed} {walk.count} findings={findings}")
    return 1 if findings else 0


def run(walk: SpecWalk, arguments: argparse.Namespace) -> int:
    """Walk episode by episode; return the number of those with a finding."""
    findings, seed = 0, arguments.seed
    while (left := arguments.transitions - sum(walk.count.transitions.values())) > 0 and findings < MAX_FINDINGS:
        finding = walk.episode(seed, min(left, arguments.each))
        print(f"seed {seed}: {walk.count}", flush=True)
        if finding is not None:
            findings += 1
            print(finding, flush=True)
            if arguments.shorten:
                print("shorter:", walk.shorten(finding, tries=arguments.shorten), flush=True)
        seed += 1
    return findings


if __name__ == "__main__":
    sys.exit(main())
