"""Names of other people's objects are what Kubernetes lets them be, by the types and by the definition."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bert_job.problems import render_path
from bert_operator.api.crd import render_crd
from bert_operator.api.parsing.schema_problems import PATTERNS
from bert_operator.api.schema.json_schema import Node, job_node
from bert_operator.cluster.settings import load_settings
from bert_operator.errors import InvalidJob, SettingsError
from job_changes import both, put
from sample_job import sample_job

SUBDOMAIN = ("2024-gpus", "0", "a.b-c.d", "x" * 253)
NO_SUBDOMAIN = ("", "A", "a_b", "-a", "a-", "a..b", "a.-b", "a-.b", ".a", "a.", "a/b", "a\n", "x" * 254)
LABELED = ("2024-gpus", "team-nlp-large-language-models-2026-weekend", "a.b", "x" * 63)
NO_LABELED = ("", "A", "a_b", "a..b", "a.", "x" * 64)
LABEL = ("2024-gpus", "0", "x" * 63)
NO_LABEL = ("", "A", "a.b", "a_b", "-a", "a-", "x" * 64)
SERVERS = (
    *(
        "nas",
        "nas.example.com",
        "10.0.0.1",
        "nas_1",
        "::1",
        "fe80::1",
        "2001:db8::",
        "2001:DB8:0:0:0:0:0:1",
        "::ffff:10.0.0.1",
    ),
    *("[2001:db8::1]", "[fe80::1%eth0]"),
)
NO_SERVERS = (
    "",
    "nas:/export",
    "nas:2049",
    "a b",
    "-a",
    "nas,b",
    "[nas]",
    "[::1",
    "::1]",
    "fe80::1%eth0",
    "nas\n",
    "a:",
)
SCHEDULERS = ("default-scheduler", "Kai_Scheduler", "volcano", "example.com/fair", "x" * 253)
NO_SCHEDULERS = ("", "a b", "é", "a\n", "x" * 254)

AFFINITY = ("scheduling", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
TERM = {"topologyKey": "kubernetes.io/hostname"}
CLAIMS = ("resources", "resourceClaims")
Names = tuple[str, ...]

PLACES: dict[str, tuple[tuple[str | int, ...], Any, Names, Names]] = {
    # Where it stands, what is put there with NAME in it, what may be written, what not.
    "queue": (("queueName",), "NAME", LABELED, NO_LABELED),
    "priority in the queue": (("workloadPriorityClass",), "NAME", LABELED, NO_LABELED),
    "profile": (("profile",), "NAME", LABELED, NO_LABELED),
    "priority class": (("scheduling", "priorityClassName"), "NAME", SUBDOMAIN, NO_SUBDOMAIN),
    "runtime class": (("scheduling", "runtimeClassName"), "NAME", SUBDOMAIN, NO_SUBDOMAIN),
    "scheduler": (("scheduling", "schedulerName"), "NAME", SCHEDULERS, NO_SCHEDULERS),
    "namespaces": (AFFINITY, [{**TERM, "namespaces": ["NAME"]}], LABEL, NO_LABEL),
    "pull secret": (("imagePullSecrets",), [{"name": "NAME"}], SUBDOMAIN, NO_SUBDOMAIN),
    "claim": (("output", "volume"), {"persistentVolumeClaim": {"claimName": "NAME"}}, SUBDOMAIN, NO_SUBDOMAIN),
    "server": (("output", "volume"), {"nfs": {"server": "NAME", "path": "/"}}, SERVERS, NO_SERVERS),
    "secret": (("env",), [{"name": "A", "secret": {"name": "NAME", "key": "a"}}], SUBDOMAIN, NO_SUBDOMAIN),
    "config map": (("env",), [{"name": "A", "configMap": {"name": "NAME", "key": "a"}}], SUBDOMAIN, NO_SUBDOMAIN),
    "secret of many": (("envFrom",), [{"secret": "NAME"}], SUBDOMAIN, NO_SUBDOMAIN),  # pragma: allowlist secret
    "config map of many": (("envFrom",), [{"configMap": "NAME"}], SUBDOMAIN, NO_SUBDOMAIN),
    "device claim": (CLAIMS, [{"name": "a", "resourceClaimName": "NAME"}], SUBDOMAIN, NO_SUBDOMAIN),
    "device template": (CLAIMS, [{"name": "a", "resourceClaimTemplateName": "NAME"}], SUBDOMAIN, NO_SUBDOMAIN),
    "device request": (
        CLAIMS,
        [{"name": "a", "resourceClaimName": "b", "request": "NAME"}],
        LABEL,
        NO_LABEL,
    ),
}


def filled(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: filled(item, name) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, name) for item in value]
    return name if value == "NAME" else value


def place_of(value: Any, path: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Return the path of NAME in what is put at a path."""
    if value == "NAME":
        return path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if found := place_of(item, (*path, key)):
            return found
    return ()


def in_definition(path: tuple[str | int, ...]) -> dict[str, Any]:
    schema = render_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for part in path:
        schema = schema["items"] if isinstance(part, int) else schema["properties"][part]
    found: dict[str, Any] = schema
    return found


@pytest.mark.parametrize("place", PLACES)
def test_a_name_may_be_what_its_owner_lets_it_be(place: str) -> None:
    path, value, good, bad = PLACES[place]
    where = place_of(value, path)
    schema = in_definition(where)
    queue = put("queueName", value="bert") if place == "priority in the queue" else lambda _: None
    for name in good:
        sample_job(both(queue, put(*path, value=filled(value, name))))
        assert re.search(schema["pattern"], name), name
        assert schema["minLength"] <= len(name) <= schema["maxLength"], name
    for name in bad:
        with pytest.raises(InvalidJob) as refused:
            sample_job(both(queue, put(*path, value=filled(value, name))))
        assert refused.value.problems[0].path == render_path(("spec", *where))
        # Python's $ is before a line feed at the end as well, the server's is not.
        is_of_pattern = re.search(schema["pattern"].replace("$", r"\Z"), name)
        assert not (is_of_pattern and schema["minLength"] <= len(name) <= schema["maxLength"]), name


def test_every_pattern_is_told_in_words() -> None:
    def texts(node: Node) -> set[str]:
        own = {node.schema["pattern"]} if "pattern" in node.schema else set()
        inner = [
            *node.fields.values(),
            *([node.entries] if node.entries else []),
            *([node.values] if node.values else []),
        ]
        return own.union(*map(texts, inner))

    assert texts(job_node()) <= PATTERNS.keys()


def test_a_profile_that_no_job_could_name_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("profiles: {GPU_large: {slotsPerWorker: 8}, 8-gpus: {slotsPerWorker: 8}}\n")
    with pytest.raises(SettingsError, match="profiles.GPU_large: got .*; allowed: lower-case letters, digits"):
        load_settings(file)
    file.write_text("profiles: {8-gpus: {slotsPerWorker: 8}}\n")
    assert "8-gpus" in load_settings(file).profiles
