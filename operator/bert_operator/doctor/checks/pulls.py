"""Images on their way to nodes: pulls that fail, and those that take long. From pods and Events."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from bert_operator.doctor.finding import Finding, error, note
from bert_operator.doctor.objects import name_of, namespace_of, place_of
from bert_operator.doctor.snapshot import Snapshot
from bert_operator.json_paths import dig, entries

SLOW_S = 120.0
"""Seconds of a pull from which on it is worth a word: every new node takes them before its first step."""

_FAILED = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
# kubelet: Successfully pulled image "x" in 1m3.2s (1m10s including waiting). Image size: 123 bytes.
_PULLED = re.compile(r'pulled image "([^"]+)" in ([0-9hmsµun.]+)')
_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s|µs|us|ns)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6, "ns": 1e-9}


def check_pulls(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that nodes pull the images of jobs, and how long that takes."""
    seen: set[tuple[str, str]] = set()
    for pod in snapshot.items("job pods"):
        status = pod.get("status")
        for state in chain(entries(status, "initContainerStatuses"), entries(status, "containerStatuses")):
            waiting = dig(state, "state", "waiting") or {}
            image = str(state.get("image"))
            if waiting.get("reason") in _FAILED and (namespace_of(pod), image) not in seen:
                seen.add((namespace_of(pod), image))
                yield error(
                    f"Pod {place_of(pod)}: {waiting['reason']} of {image} on node {dig(pod, 'spec', 'nodeName')}: "
                    f"{waiting.get('message') or 'no message'}",
                    "the job is Blocked with ImagePullFailed until the node has the image",
                    f"kubectl -n {namespace_of(pod)} describe pod {name_of(pod)}; correct the name, push the image, or "
                    "name a Secret with the registry's credentials in imagePullSecrets of the job or profile",
                )
    slowest: dict[str, tuple[float, str]] = {}
    uids = {dig(pod, "metadata", "uid") for pod in snapshot.items("job pods")}
    for event in snapshot.items("pull events"):
        found = _PULLED.search(str(event.get("message")))
        if found and dig(event, "involvedObject", "uid") in uids:
            seconds = parse_duration(found[2])
            place = f"{dig(event, 'involvedObject', 'namespace')}/{dig(event, 'involvedObject', 'name')}"
            slowest[found[1]] = max(slowest.get(found[1], (0.0, "")), (seconds, place))
    for image, (seconds, place) in sorted(slowest.items()):
        if seconds > SLOW_S:
            yield note(
                f"image {image}: a node took {seconds:.0f} s to pull it for Pod {place}",
                "the first job on every new node waits as long, and hostfile and ssh wait with it",
                "have a registry or mirror near the nodes, or load the image into them beforehand",
            )


def parse_duration(text: str) -> float:
    """Return a Go duration such as 1m3.2s in seconds."""
    return sum(float(value) * _SECONDS[unit] for value, unit in _PART.findall(text))
