"""The release of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator

from bert_operator.doctor.finding import Finding, warning
from bert_operator.doctor.objects import name_of, release_of
from bert_operator.doctor.snapshot import Snapshot
from bert_operator.json_paths import dig

OLDEST, NEWEST = (1, 31), (1, 36)


def check_kubernetes(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that API server and nodes run a tested release of Kubernetes."""
    told = str(dig(snapshot.one("version"), "gitVersion"))
    release = release_of(told)
    if release is not None and not OLDEST <= release[:2] <= NEWEST:
        yield warning(
            f"the API server is of {told}; tested: 1.{OLDEST[1]} to 1.{NEWEST[1]}",
            "rules of the definition, or fields of pods, may be missing or mean something else",
            "use a release of the operator that is tested with it, or upgrade Kubernetes",
        )
    for node in snapshot.items("nodes"):
        told = str(dig(node, "status", "nodeInfo", "kubeletVersion"))
        kubelet = release_of(told)
        if kubelet is not None and kubelet[:2] < OLDEST:
            yield warning(
                f"Node {name_of(node)}: its kubelet is of {told}; tested: 1.{OLDEST[1]} and newer",
                "fields of pods may be ignored there",
                "upgrade the node",
            )
