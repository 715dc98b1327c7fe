"""``tree``: a job and everything that it owns, as Kubernetes' owner references say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bert_job.foreign_text import one_line
from bert_operator.plugin.job import Job, Json, read_pods
from bert_operator.plugin.terminal import Cell, Ink, table
from bert_operator.plugin.views.phases import age, phase_cell
from bert_operator.timestamps import time_of

_ORDER = ("ConfigMap", "NetworkPolicy", "Job", "MPIJob", "Pod")


def show_tree(job: Job, objects: Sequence[Json], ink: Ink, now_s: float) -> list[str]:
    """Return the tree, one object a line.

    Args:
        job: The root.
        objects: What may hang below it; others, such as those of a namesake, are left out.
        ink: How to write.
        now_s: Seconds since 1970, from which ages count.
    """
    rows: list[list[Cell]] = [[f"BertPretrainJob/{job.name}", phase_cell(job), "-", age(job.created_s, now_s), ""]]
    # Those that have lost their owner hang below the job whose label they have: they may be in its way.
    owned = [item if _owners(item) else _hung(item, job.uid) for item in objects]
    orphans = {_uid(item) for item in objects if not _owners(item)}
    for lead, item in _below(job.uid, "", owned, ink, set()):
        metadata = item.get("metadata") or {}
        state, node, why = _state(item)
        if _uid(item) in orphans:
            why = "; ".join(filter(None, ("no owner: it is not deleted with the job", why)))
        created = age(time_of(metadata.get("creationTimestamp")), now_s)
        rows.append([f"{lead}{item.get('kind')}/{metadata.get('name')}", state, node, created, why])
    return table(["OBJECT", "STATE", "NODE", "AGE", "WHY"], rows, ink)


def _below(owner: str, lead: str, objects: list[Json], ink: Ink, shown: set[str]) -> Iterator[tuple[str, Json]]:
    """Yield what hangs below an owner. shown: uids; each object stands once, whatever others make own each other."""
    children = sorted((item for item in objects if owner in _owners(item) and _uid(item) not in shown), key=_place)
    shown.update(map(_uid, children))
    for number, item in enumerate(children):
        is_last = number == len(children) - 1
        branch = ink.sign("└─ ", "`- ") if is_last else ink.sign("├─ ", "|- ")
        yield lead + branch, item
        more = "   " if is_last else ink.sign("│  ", "|  ")
        yield from _below(_uid(item), lead + more, objects, ink, shown)


def _hung(item: Json, owner: str) -> Json:
    return {**item, "metadata": {**(item.get("metadata") or {}), "ownerReferences": [{"uid": owner}]}}


def _uid(item: Json) -> str:
    return str((item.get("metadata") or {}).get("uid"))


def _owners(item: Json) -> list[str]:
    return [str(owner.get("uid")) for owner in (item.get("metadata") or {}).get("ownerReferences") or ()]


def _place(item: Json) -> tuple[int, str, str]:
    kind, metadata = str(item.get("kind")), item.get("metadata") or {}
    return (
        _ORDER.index(kind) if kind in _ORDER else len(_ORDER),
        str(metadata.get("creationTimestamp")),
        metadata["name"],
    )


def _state(item: Json) -> tuple[Cell, str, str]:
    """Return the state of an object, its node, and what is wrong with it."""
    if item.get("kind") == "Pod":
        (pod,) = read_pods([item])
        return pod.phase, pod.node or "-", one_line(pod.trouble or "")
    status = item.get("status") or {}
    true = [found for found in status.get("conditions") or () if found.get("status") == "True"]
    if (item.get("metadata") or {}).get("deletionTimestamp"):
        return "Leaving", "-", ""
    if not true:
        return ("Active" if status.get("active") else "-"), "-", ""
    newest = true[-1]
    failed = newest.get("type") in ("Failed", "FailureTarget")
    why = f"{newest.get('reason', '')}: {newest.get('message', '')}".strip(": ") if failed else ""
    return (str(newest.get("type")), "red") if failed else str(newest.get("type")), "-", one_line(why)
