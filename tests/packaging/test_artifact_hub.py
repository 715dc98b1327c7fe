"""What Artifact Hub would read from the chart: by its documented rules, which its linter has, and true to the sources.

The linter itself (`ah lint`) is not run: the module proxy refused its Go module (github.com/artifacthub/hub). `wrong`
has its rules for charts, those of https://artifacthub.io/docs/topics/annotations/helm and of what is refused there, and
is stricter in one respect: an annotation that Artifact Hub does not know is a mistake here, and not ignored. `make
generate` writes the annotations, and the test of generated files fails where they are stale.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from artifact_hub import EXAMPLE, changes, describe_chart, first_sentence  # noqa: E402 - tools/ is no package

CHART = yaml.safe_load((ROOT / "charts/bert-operator/Chart.yaml").read_text())
VALUES = yaml.safe_load((ROOT / "charts/bert-operator/values.yaml").read_text())
PREFIX = "artifacthub.io/"
CATEGORIES = {
    *("ai-machine-learning", "database", "integration-delivery", "monitoring-logging", "networking", "security"),
    *("storage", "streaming-messaging", "skip-prediction"),
}
CAPABILITIES = {"basic install", "seamless upgrades", "full lifecycle", "deep insights", "auto pilot"}
CHANGES = {"added", "changed", "deprecated", "removed", "fixed", "security"}
IMAGE = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)+(:[\w][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?")

Json = dict[str, Any]


def is_link(entry: Any) -> bool:
    return bool(isinstance(entry, dict) and entry.get("name") and urlsplit(entry.get("url", "")).scheme == "https")


def is_change(entry: Any) -> bool:
    """A list of texts is allowed as well; ours has kinds."""
    return isinstance(entry, dict) and entry.get("kind") in CHANGES and bool(entry.get("description"))


def is_definition(entry: Any) -> bool:
    return isinstance(entry, dict) and all(entry.get(key) for key in ("kind", "version", "name", "displayName"))


def is_image(entry: Any) -> bool:
    known = isinstance(entry, dict) and entry.keys() <= {"name", "image", "whitelisted", "platforms"}
    return known and bool(IMAGE.fullmatch(entry.get("image", ""))) and entry.get("whitelisted") in {None, True, False}


ENTRIES: dict[str, Callable[[Any], bool]] = {
    "crds": is_definition,
    "crdsExamples": lambda entry: isinstance(entry, dict) and bool(entry.get("kind")),
    "images": is_image,
    "links": is_link,
    "changes": is_change,
    "recommendations": lambda entry: str(entry.get("url")).startswith("https://artifacthub.io/packages/"),
}
WORDS: dict[str, Callable[[str], bool]] = {
    "category": CATEGORIES.__contains__,
    "license": lambda word: word == "Apache-2.0",
    "operatorCapabilities": lambda word: word.lower() in CAPABILITIES,
    **dict.fromkeys(("operator", "prerelease", "containsSecurityUpdates"), {"true", "false"}.__contains__),
}


def wrong(annotations: dict[str, Any]) -> list[str]:
    """Return the names of annotations that Artifact Hub would refuse or not understand."""
    found = []
    for full, text in annotations.items():
        name = full.removeprefix(PREFIX)
        if not full.startswith(PREFIX):
            continue
        if not isinstance(text, str) or name not in {*ENTRIES, *WORDS}:
            found.append(name)
        elif name in WORDS:
            found += [] if WORDS[name](text) else [name]
        else:
            entries = yaml.safe_load(text)
            found += [] if isinstance(entries, list) and all(map(ENTRIES[name], entries)) else [name]
    return found


def test_artifact_hub_would_take_every_annotation() -> None:
    ours = {name for name in CHART["annotations"] if name.startswith(PREFIX)}
    assert ours == {PREFIX + name for name in {*ENTRIES, *WORDS}}
    assert wrong(CHART["annotations"]) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("category", "machine-learning"),
        ("operator", "yes"),
        ("prerelease", True),
        ("operatorCapabilities", "Deep Insight"),
        ("crds", "- kind: BertPretrainJob\n  version: v1alpha1\n"),
        ("crdsExamples", "kind: BertPretrainJob\n"),
        ("images", "- name: bert-operator\n  image: Registry/Bert Operator\n"),
        ("images", "- name: bert-operator\n  image: ghcr.io/a/b:1\n  scanned: false\n"),
        ("links", "- name: source\n"),
        ("changes", "- kind: improved\n  description: More\n"),
        ("changes", "- kind: added\n"),
        ("recommendations", "- url: https://example.org\n"),
        ("capabilities", "Deep Insights"),
    ],
)
def test_a_planted_mistake_is_found(name: str, text: object) -> None:
    assert wrong({**CHART["annotations"], PREFIX + name: text}) == [name]


def describe(**changed: Any) -> Json:
    """Return the annotations for sources with something changed."""
    given: Json = {
        "chart": CHART,
        "values": VALUES,
        "project": {"license": "Apache-2.0"},
        "changelog": (ROOT / "CHANGELOG.md").read_text(),
        "example": (ROOT / EXAMPLE).read_text(),
    }
    return describe_chart(**{**given, **changed})


def test_the_example_is_of_the_definition_that_is_listed() -> None:
    definition, example = (yaml.safe_load(CHART["annotations"][PREFIX + name])[0] for name in ("crds", "crdsExamples"))
    assert example["apiVersion"].partition("/")[2] == definition["version"]
    assert example["kind"] == definition["kind"] == "BertPretrainJob"
    assert definition["name"] == "bertpretrainjobs.bert-operator.dev"


def test_images_that_resolve_nowhere_are_not_scanned_and_others_are() -> None:
    values = {**VALUES, "image": {"repository": "ghcr.io/somebody/bert-operator", "tag": ""}}
    assert describe(values=values)["images"] == [
        {"name": "bert-operator", "image": f"ghcr.io/somebody/bert-operator:{CHART['appVersion']}"},
        {"name": "bert-trainer", "image": VALUES["settings"]["trainerImage"], "whitelisted": True},
    ]


def test_a_repository_that_the_project_names_is_linked_to() -> None:
    project = {"license": "Apache-2.0", "urls": {"Repository": "https://github.com/somebody/bert"}}
    found = {entry["name"]: entry["url"] for entry in describe(project=project)["links"]}
    assert found["support"] == "https://github.com/somebody/bert/issues"
    assert found["Changelog"] == f"https://github.com/somebody/bert/blob/v{CHART['version']}/CHANGELOG.md"
    assert "support" not in {entry["name"] for entry in describe()["links"]}


def test_changes_are_those_of_the_chart_s_version_or_else_those_to_come() -> None:
    log = "## [Unreleased]\n\n### Fixed\n\n- New.\n\n## [0.2.0]\n\n### Added\n\n#### Jobs\n\n- Old\n  one.\n- B.\n"
    assert changes(log, "0.2.0") == [
        {"kind": "added", "description": "Old one."},
        {"kind": "added", "description": "B."},
    ]
    assert changes(log, "0.3.0") == [{"kind": "fixed", "description": "New."}]
    assert changes(log.replace("### Added", "### Worth knowing"), "0.2.0") == []


def test_a_change_is_one_sentence_without_markup() -> None:
    text = "[Kueue](docs/q.md) 0.19 reads `a: b`\n  ([every field](docs/r.md)). `--small` **runs** it."
    assert first_sentence(text) == "Kueue 0.19 reads a: b."
    assert not any(re.search(r"\]\(|\*\*|`", entry["description"]) for entry in describe()["changes"])


def test_a_release_that_mends_a_known_vulnerability_says_so() -> None:
    log = "## [Unreleased]\n\n### Security\n\n- {} is mended.\n"
    for word, expected in (("CVE-2026-1", "true"), ("GHSA-abcd", "true"), ("A limit", "false")):
        assert describe(changelog=log.format(word))["containsSecurityUpdates"] == expected


def test_a_version_with_a_suffix_is_a_prerelease() -> None:
    assert describe()["prerelease"] == "false"
    assert describe(chart={**CHART, "version": "0.3.0-rc.1"})["prerelease"] == "true"
