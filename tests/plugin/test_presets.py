"""``kubectl bert submit --preset``: jobs out of the examples' numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bert_operator.api.parsing.documents import read_job_document
from bert_operator.client import Client, make_manifest
from bert_operator.cluster.settings import Settings
from bert_operator.cluster.settings_rules import read_cluster_job
from bert_operator.errors import InputError
from bert_operator.plugin.presets import PRESETS, list_presets
from kubectl_stand_in import KubectlStandIn, changes, says
from seen_jobs import job

ROOT = Path(__file__).parents[2]
TEXT = "pvc/wiki/text"
Bert = Callable[..., int]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_job_that_a_cluster_takes(preset: str) -> None:
    manifest = make_manifest(preset, text=TEXT, output="pvc/results/runs/mine", workers=4)
    read = read_cluster_job(manifest, Settings())
    assert (read.metadata.name, read.spec.workers, read.spec.model.preset) == (f"bert-{preset}", 4, preset)
    kinds = [next(key for key in stage if key != "name") for stage in manifest["spec"]["stages"]]
    assert kinds == ["prepare", "pretrain", "pretrain", "evaluate", "export"]


@pytest.mark.parametrize("preset", PRESETS)
def test_the_numbers_of_a_preset_are_those_of_its_example(preset: str) -> None:
    assert tuple(list_presets()) == PRESETS
    example = read_job_document(ROOT / list_presets()[preset]["from"])["spec"]
    spec = make_manifest(preset, text=TEXT)["spec"]
    assert spec["optimizer"] == example["optimizer"]
    ours, theirs = ([stage["pretrain"] for stage in of["stages"] if "pretrain" in stage] for of in (spec, example))
    for name in ("sequenceLength", "globalBatchSize", "learningRate", "warmup", "length"):
        assert [stage[name] for stage in ours] == [stage[name] for stage in theirs], name


def test_the_manifest_has_what_was_said_and_nothing_of_a_platform() -> None:
    assert make_manifest(
        "tiny",
        text=TEXT,
        name="mine",
        changes=["spec.precision=bf16", "stages[phase2].pretrain.length.steps=7", "runPolicy.suspend=true"],
    )["spec"] | {"stages": None, "model": None} == {
        "model": None,
        "optimizer": {"name": "adamw"},
        "checkpoint": {"everySeconds": 60},
        "stages": None,
        "output": {"path": "mine", "ifExists": "Resume"},
        "volumes": [
            {
                "name": "text",
                "source": {"persistentVolumeClaim": {"claimName": "wiki"}, "mountPath": "/mnt/text"},
            }
        ],
        "precision": "bf16",
        "runPolicy": {"suspend": True},
    }
    built_in = make_manifest("tiny", text="builtin:python-docs", output="pvc/results", changes=["stages[0].name=data"])
    assert built_in["spec"]["output"]["volume"] == {"persistentVolumeClaim": {"claimName": "results"}}
    assert built_in["spec"]["stages"][0] == {
        "name": "data",
        "prepare": {"vocabularySize": 4096, "text": "builtin:python-docs"},
    }
    assert "volumes" not in built_in["spec"]
    beside = make_manifest("tiny", text="pvc/same/text", output="pvc/same/text-runs")
    assert beside["spec"]["output"]["path"] == "text-runs"


@pytest.mark.parametrize(
    ("more", "got"),
    [
        ({"text": "wiki"}, "--text: got 'wiki'"),
        ({"text": "pvc/"}, "--text: got 'pvc/'"),
        ({"output": "results"}, "--output: got 'results'"),
        ({"text": "pvc/same", "output": "pvc/same/runs"}, "--text: got pvc/same, and results go into it"),
        ({"text": "pvc/same/runs", "output": "pvc/same/runs/x"}, "results go into it, to runs/x"),
        ({"text": "pvc/same/.", "output": "pvc/same"}, "results go into it, to bert-tiny"),
        ({"changes": ["precision"]}, "--set: got 'precision'"),
        ({"changes": ["a b=1"]}, "--set: got 'a b=1'"),
        ({"changes": ["stages[phase9].name=x"]}, "no entry phase9; allowed: prepare, phase1, phase2"),
        ({"changes": ["model[0].x=1"]}, "allowed: none, it is no list"),
        ({"changes": ["stages[0]=1"]}, "a field at the end of the path"),
        ({"changes": ["optimizer.name.x=1"]}, "name is no section"),
        ({"changes": ["output=5"]}, "--set: got 5 for output"),
        ({"changes": ["output=null"]}, "--set: got None for output"),
        ({"workers": 0}, "--workers: got 0"),
        ({"name": ""}, "--name: got an empty one"),
    ],
)
def test_what_cannot_be_is_named(more: dict[str, Any], got: str) -> None:
    with pytest.raises(InputError) as caught:
        make_manifest("tiny", **{"text": TEXT, **more})
    assert got in str(caught.value)


@pytest.mark.parametrize("text", ["NaN", "[" * 5000, "-Infinity"])
def test_what_json_cannot_be_is_text(text: str) -> None:
    assert make_manifest("tiny", text=TEXT, changes=[f"seed={text}"])["spec"]["seed"] == text


def test_it_is_handed_to_kubectl_as_a_file_would_be(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer("apply -f - --dry-run=server", says("bert-tiny created (server dry run)\n"))
    kubectl.answer("diff -f -", says("-a\n+b\n", code=1))
    words = ("submit", "--preset", "tiny", "--text", TEXT, "--set", "precision=bf16")
    assert bert(*words, "--dry-run=server") == 0
    given = yaml.safe_load(kubectl.given("apply -f -"))
    assert given["spec"]["precision"] == "bf16"
    assert bert(*words, "--diff") == 1
    assert yaml.safe_load(kubectl.given("diff -f -")) == given
    capsys.readouterr()
    assert bert(*words, "-o", "yaml") == 0
    output, remarks = capsys.readouterr()
    assert yaml.safe_load(output) == given
    assert remarks.splitlines() == [
        "model, optimizer and pretraining are those of examples/01-laptop/job.yaml",
        "output.volume is left to the cluster's profile; --to pvc/CLAIM names one",
    ]
    assert len(kubectl.calls()) == 2


def test_it_can_be_watched_and_tried_without_a_cluster(
    bert: Bert, kubectl: KubectlStandIn, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("submit", "--preset", "large", "--text", TEXT, "--name", "corpus")
    assert bert(*words, "--dry-run=client") == 0
    assert capfd.readouterr().out.startswith("valid; ")
    assert kubectl.calls() == []
    kubectl.answer("apply", says("bertpretrainjob.bert-operator.dev/corpus created\n"))
    kubectl.answer("--watch", changes(("ADDED", job(phase="Succeeded", attempt=1)), hangs=True))
    kubectl.answer("get -f", says(job()))
    assert bert(*words, "--watch") == 0


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("job.yaml", "--text", TEXT),
        ("job.yaml", "--set", "precision=bf16"),
        ("job.yaml", "-o", "yaml"),
        ("job.yaml", "--workers", "0"),
        ("job.yaml", "--name", ""),
        ("--preset", "tiny"),
        ("job.yaml", "--preset", "tiny", "--text", TEXT),
    ],
)
def test_a_file_and_a_preset_are_one_or_the_other(bert: Bert, kubectl: KubectlStandIn, words: tuple[str, ...]) -> None:
    assert bert("submit", *words) == 2
    assert kubectl.calls() == []


def test_the_same_from_python(kubectl: KubectlStandIn) -> None:
    kubectl.answer("apply -f -", says(job("bert-tiny")))
    assert Client().submit(make_manifest("tiny", text=TEXT)).name == "bert-tiny"
