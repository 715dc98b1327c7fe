"""The definition of BertPretrainJob, against the release of the operator and of the doctor."""

from __future__ import annotations

from collections.abc import Iterator

from bert_operator.doctor.finding import Finding, error, warning
from bert_operator.doctor.objects import condition, some
from bert_operator.doctor.snapshot import Snapshot
from bert_operator.json_paths import Json, entries, mapping
from bert_operator.names import API_GROUP, API_VERSION

NAME = f"bertpretrainjobs.{API_GROUP}"
_APPLY = "kubectl apply --server-side -f deploy/kustomize/base/crd.yaml of the operator's release"


def check_definition(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that the CRD is served and has every field of this release."""
    definition = snapshot.one("definition")
    if definition is None:
        why = "nobody can submit a job, and the operator cannot start"
        yield error(f"there is no CustomResourceDefinition {NAME}", why, f"{_APPLY} (docs/guides/install.md)")
        return
    established = condition(definition, "Established")
    if established.get("status") != "True":
        told = established.get("message") or "no condition Established"
        yield error(f"CustomResourceDefinition {NAME} is not established: {told}", "no job is accepted", _APPLY)
    version = API_VERSION.rpartition("/")[2]
    schema = next((item for item in entries(definition, "spec", "versions") if item.get("name") == version), {})
    if not schema.get("served"):
        yield error(f"CustomResourceDefinition {NAME} does not serve {version}", "the operator sees no job", _APPLY)
        return
    if not snapshot.fields:
        return  # built without the list
    has = frozenset(field_paths(mapping(schema, "schema", "openAPIV3Schema", "properties", "spec"), "spec"))
    if missing := _outermost(snapshot.fields - has):
        yield error(
            f"CustomResourceDefinition {NAME} is of another release: it lacks {some(missing)}, of {snapshot.release}",
            "kubectl apply refuses jobs with these fields, or the API server drops them without a word",
            _APPLY,
        )
    if more := _outermost(has - snapshot.fields):
        yield warning(
            f"CustomResourceDefinition {NAME} has fields that {snapshot.release} does not know: {some(more)}",
            "an operator of that release calls jobs with them Invalid; this doctor does not know them either",
            "run the doctor, and the operator, of the release whose definition it is",
        )


def field_paths(schema: Json, path: str) -> Iterator[str]:
    """Yield the path of every field that a schema has; ``[]`` stands for every entry of a list."""
    yield path
    for name, field in mapping(schema, "properties").items():
        yield from field_paths(field, f"{path}.{name}")
    if items := mapping(schema, "items"):
        yield from field_paths(items, f"{path}[]")


def _outermost(paths: frozenset[str]) -> list[str]:
    """Return paths in order, without those below another one."""
    kept: list[str] = []
    for path in sorted(paths):
        if not any(path.startswith((f"{other}.", f"{other}[")) for other in kept):
            kept.append(path)
    return kept
