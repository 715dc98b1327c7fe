"""The operator's settings: there, readable, with images that somebody has named."""

from __future__ import annotations

from collections.abc import Iterator

from bert_operator.doctor.demands import find_demands
from bert_operator.doctor.finding import Finding, error
from bert_operator.doctor.objects import images, name_of, namespace_of, place_of
from bert_operator.doctor.snapshot import Snapshot
from bert_operator.json_paths import dig

PLACEHOLDER = "registry.invalid"
"""The registry of the names that are shipped, which resolves nowhere (``render.images``)."""
DEFAULT_TRAINER = f"{PLACEHOLDER}/bert-operator/trainer"

_PAGE = "docs/guides/install.md"


def check_settings(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that the settings exist and are valid."""
    found = snapshot.settings
    if found is None:
        for deployment in snapshot.operators():
            problem = f"Deployment {place_of(deployment)}: the ConfigMap of its settings does not exist"
            yield error(problem, "its pod cannot start", f"apply the overlay or the chart again ({_PAGE})")
        return
    if found.problem:
        why = "the operator ends with exit code 2 when its pod starts next"
        yield error(f"ConfigMap {found.source}: {found.problem}", why, f"fix it; its fields are those of {_PAGE}")
        return
    known = snapshot.profiles()
    default = found.document.get("defaultProfile")
    if default and default not in known:
        yield error(
            f"ConfigMap {found.source}, defaultProfile: got {default}; allowed: {', '.join(sorted(known)) or 'none'}",
            "the operator ends with exit code 2 when its pod starts next",
            "correct the name, or add the profile",
        )
    for job in snapshot.own_jobs():
        named = dig(job, "spec", "profile")
        if named and named not in known:
            yield error(
                f"job {namespace_of(job)}/{name_of(job)}, spec.profile: got {named}; allowed: "
                f"{', '.join(sorted(known)) or 'none: the settings have no profiles'}",
                "the job is Invalid",
                f"correct the name in the job, or add the profile to ConfigMap {found.source}",
            )


def check_images(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that all images are set to names in a real registry."""
    for deployment in snapshot.operators():
        for image in images(deployment):
            if _is_placeholder(image):
                problem = f"Deployment {place_of(deployment)}: its image is {image}, a name that resolves nowhere"
                remedy = f"name yours at images of the overlay, or image.repository of the chart ({_PAGE}, Images)"
                yield error(problem, "the operator's pod waits with ImagePullBackOff", remedy)
    if snapshot.settings is None or snapshot.settings.problem:
        return
    default = str(snapshot.settings.document.get("trainerImage") or DEFAULT_TRAINER)
    if _is_placeholder(default):
        problem = f"ConfigMap {snapshot.settings.source}, trainerImage: got {default}, a name that resolves nowhere"
        remedy = f"build the trainer's image, push it to your registry and name it there ({_PAGE}, Images)"
        yield error(problem, "jobs that name no image are Blocked with ImageNotNamed", remedy)
    for demand in find_demands(snapshot):
        if _is_placeholder(demand.image):
            problem = f"{demand.owner}, image: got {demand.image}, a name that resolves nowhere"
            yield error(problem, "its pods wait with ImagePullBackOff", "name an image of your registry")


def _is_placeholder(image: str) -> bool:
    return image.startswith(f"{PLACEHOLDER}/")
