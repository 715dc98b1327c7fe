"""``collect``: one archive with what others need to help, and no secret in it."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_operator.plugin.redaction import HIDDEN, redact, redact_text
from kubectl_stand_in import KubectlStandIn, items, refuses, says
from seen_jobs import UID, pod, progress, running

Bert = Callable[..., int]
PLANTED = "hunter2hunter2"
JWT = f"eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.{PLANTED}"  # pragma: allowlist secret


@pytest.mark.parametrize(
    "text",
    [
        f"https://user:{PLANTED}@proxy.example.com/simple",
        f"Authorization: Bearer {PLANTED}",
        f"WANDB_API_KEY={PLANTED}",
        f'"password": "{PLANTED}"',
        f"--hub-token {PLANTED} --epochs 3",
        f"aws_secret_access_key = {PLANTED}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{PLANTED}\n-----END RSA PRIVATE KEY-----",  # pragma: allowlist secret
        f"-----BEGIN PRIVATE KEY-----\n{PLANTED}",  # pragma: allowlist secret
        JWT,
    ],
)
def test_what_looks_like_a_secret_is_taken_out_of_text(text: str) -> None:
    assert PLANTED not in redact_text(text)
    assert HIDDEN in redact_text(text)


@pytest.mark.parametrize(
    "text",
    [
        progress(10, 9.5, real_tokens_per_s=24721, sequences_per_s=241.4),
        "Read 4,096 tokens of the vocabulary",
        "masked-LM accuracy 13.7%: token 17 of 20",
        "https://example.com/path?x=1",
        "secretName: results-token",
    ],
)
def test_what_people_need_to_help_stays(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "-",
        "token-",
        "token=",
        "a.",
        "eyJ-",
        "Bearer ",
        "x://",
        "-----BEGIN PRIVATE KEY",  # pragma: allowlist secret
    ],
)
def test_a_line_of_any_length_is_read_in_time(piece: str) -> None:
    assert redact_text(piece * 100_000), "the test's time limit would pass if time grew with the square"


def test_documents_lose_values_by_the_names_of_their_keys_and_variables() -> None:
    document = {
        "metadata": {
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": PLANTED, "note": "mine"},
            "managedFields": [],
        },
        "env": [
            {"name": "HF_TOKEN", "value": PLANTED},
            {"name": "STEPS", "value": "3"},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
        ],
        "password": PLANTED,  # pragma: allowlist secret
        "args": [f"--token={PLANTED}", "--steps=3"],
        "automountServiceAccountToken": False,
        "secretName": "results",  # pragma: allowlist secret
    }
    assert redact(document) == {
        "metadata": {"annotations": {"note": "mine"}},
        "env": [
            {"name": "HF_TOKEN", "value": HIDDEN},
            {"name": "STEPS", "value": "3"},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
        ],
        "password": HIDDEN,
        "args": [f"--token={HIDDEN}", "--steps=3"],
        "automountServiceAccountToken": False,
        "secretName": "results",  # pragma: allowlist secret
    }


def test_an_archive_holds_objects_events_and_logs_without_what_was_planted(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    document = running()
    document["spec"]["env"] = [{"name": "HF_TOKEN", "value": PLANTED}]
    launcher: dict[str, Any] = pod("corpus-a3-launcher-x", metadata={"ownerReferences": [{"uid": UID}]})
    kubectl.answer("get bertpretrainjobs.bert-operator.dev corpus", says(document))
    kubectl.answer("get pods", items(launcher))
    kubectl.answer("get events", refuses("Forbidden", "may not list"))
    kubectl.answer("get configmaps", items({"kind": "ConfigMap", "metadata": {"name": "corpus-frozen"}, "data": {}}))
    kubectl.answer("get", items())
    kubectl.answer("logs", says(f"{progress(10, 9.0)}\nuses https://me:{PLANTED}@proxy\n"))
    kubectl.answer("version", says({"clientVersion": {"gitVersion": "v1.36.0"}}))
    path = tmp_path / "support.tar.gz"
    assert bert("collect", "corpus", "--file", str(path)) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        texts = {Path(name).name: archive.extractfile(name).read().decode() for name in archive.getnames()}  # type: ignore[union-attr]
    assert sorted(texts) == [
        "configmap-corpus-frozen.json",
        "corpus-a3-launcher-x.log",
        "job.json",
        "missing.txt",
        "pod-corpus-a3-launcher-x.json",
        "status.txt",
        "versions.json",
    ]
    assert not [name for name, text in texts.items() if PLANTED in text]
    assert "event=progress" in texts["corpus-a3-launcher-x.log"]
    assert json.loads(texts["job.json"])["spec"]["env"] == [{"name": "HF_TOKEN", "value": HIDDEN}]
    assert texts["missing.txt"].startswith("events: kubectl get events")
    assert not any("secrets" in call for call in kubectl.calls())
    capsys.readouterr()
    assert bert("collect", "corpus", "--file", str(path)) == 1, "nothing is overwritten"
    assert "cannot be written (File exists)" in capsys.readouterr().err
