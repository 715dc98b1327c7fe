"""Judge a report of osv-scanner: ``python tools/known_vulnerabilities.py REPORT --scanned requirements.lock ...``.

REPORT is what ``osv-scanner scan source --all-packages --format json`` wrote: every package that it looked up, with
what is known of it. A scan that looked up nothing must not pass for a clean one: a report that is missing, empty, or
holds no package of one of the files that were to be scanned is a failure. What the VEX document
(tools/release/vex.json) states as not affecting us or as fixed is named and passes; everything else fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

VEX = Path(__file__).parent / "release/vex.json"
_PASSES = ("not_affected", "fixed")


class EmptyScan(Exception):
    """Why a report says nothing."""


def main(words: list[str] | None = None) -> int:
    """Print what is known, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--scanned", nargs="+", required=True, help="every file that it was to look at")
    parser.add_argument("--vex", type=Path, default=VEX)
    arguments = parser.parse_args(words)
    try:
        results = read_results(arguments.report, arguments.scanned)
    except EmptyScan as error:
        print(f"known vulnerabilities: {error}", file=sys.stderr)
        return 2
    stated = stated_names(json.loads(arguments.vex.read_text()))
    packages = [package for result in results for package in result["packages"]]
    open_ones = 0
    for package in packages:
        what = package["package"]
        for names in vulnerabilities(package):
            status = find_status(stated, names, what)
            open_ones += status not in _PASSES
            print(
                f"{what['name']} {what['version']}: {', '.join(sorted(names))}: {status or 'no statement in the VEX'}"
            )
    print(f"known vulnerabilities: files={len(arguments.scanned)} packages={len(packages)} open={open_ones}")
    return 1 if open_ones else 0


def read_results(report: Path, scanned: list[str]) -> list[dict[str, Any]]:
    """Return the report's results.

    Raises:
        EmptyScan: There is no report, or it looked up no package of one of the files.
    """
    try:
        document = json.loads(report.read_text())
    except (OSError, ValueError) as error:
        raise EmptyScan(f"{report}: {error}; the scan or its database failed") from None
    results: list[dict[str, Any]] = document.get("results") or []
    for file in scanned:
        # The whole path: another folder has a requirements.lock too.
        found = [result for result in results if Path(result["source"]["path"]).absolute() == Path(file).absolute()]
        if not any(result.get("packages") for result in found):
            raise EmptyScan(f"{report}: no package of {file} was looked up; run osv-scanner with --all-packages")
    return results


def stated_names(vex: dict[str, Any]) -> dict[str, list[tuple[str, set[str]]]]:
    """Return what an OpenVEX document states, by each name of a vulnerability: a status, and the packages it is of."""
    found: dict[str, list[tuple[str, set[str]]]] = {}
    for statement in vex["statements"]:
        parts = {part["@id"] for product in statement.get("products", ()) for part in product.get("subcomponents", ())}
        vulnerability = statement["vulnerability"]
        for name in (vulnerability["name"], *vulnerability.get("aliases", ())):
            found.setdefault(name, []).append((statement["status"], parts))
    return found


def find_status(stated: dict[str, list[tuple[str, set[str]]]], names: set[str], package: dict[str, Any]) -> str:
    """Return what is stated of a vulnerability in a package of this very version; empty: nothing.

    A statement was made by looking at one version: it says nothing of another one, nor of another package that the
    same vulnerability is in.
    """
    url = f"pkg:{package['ecosystem'].lower()}/{package['name'].lower()}@{package['version']}"
    return next((status for name in sorted(names) for status, parts in stated.get(name, ()) if url in parts), "")


def vulnerabilities(package: dict[str, Any]) -> list[set[str]]:
    """Return the names of each vulnerability of a package; databases name one differently."""
    known = package.get("vulnerabilities") or []
    return [{item["id"], *item.get("aliases", ()), *item.get("upstream", ())} for item in known]


if __name__ == "__main__":
    sys.exit(main())
