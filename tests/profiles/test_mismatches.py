"""``check`` says where a valid job would not run as it is meant: on nobody's image, or on nodes of another kind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_operator.__main__ import main
from examples import OVERLAYS, Example, list_examples, settings_of
from job_changes import both, put
from sample_job import Document, sample_document

PLACEHOLDER = "registry.invalid/bert-operator/trainer:0.2.0"
OWN = "registry.example.com/trainer:0.2.0"
Check = Callable[..., tuple[int, str]]
KINDS = {
    overlay.name: "GPU" if "accelerator" in settings_of(overlay.name).profiles[overlay.name]["resources"] else "CPU"
    for overlay in OVERLAYS.iterdir()
}
"""What the nodes of an overlay have, by its profile."""


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Check a job by an overlay's settings, as they are shipped or with an image of one's own."""

    def run(job: Path | Document, overlay: str, *, is_edited: bool = True, more: str = "") -> tuple[int, str]:
        if isinstance(job, dict):
            (tmp_path / "job.yaml").write_text(json.dumps(job))
            job = tmp_path / "job.yaml"
        text = (OVERLAYS / overlay / "settings.yaml").read_text()
        assert PLACEHOLDER in text
        file = tmp_path / "settings.yaml"
        file.write_text((text.replace(PLACEHOLDER, OWN) if is_edited else text) + more)
        code = main(["check", str(job), "--settings", str(file)])
        found = capsys.readouterr()
        return code, found.out + found.err

    return run


@pytest.mark.parametrize("example", list_examples(), ids=lambda example: example.name)
def test_an_example_suits_its_overlays_and_no_nodes_of_another_kind(example: Example, check: Check) -> None:
    kinds = {KINDS[overlay] for overlay in example.overlays}
    for overlay, kind in KINDS.items():
        code, text = check(example.path, overlay)
        if overlay in example.overlays:
            assert code == 0, f"{overlay}: {text}"
        elif kinds == {"GPU"} or (kinds == {"CPU"} and example.overlays == ("xeon-nfs",) and kind == "GPU"):
            assert code == 2, f"{overlay}: {text}"
            # Or a profile of its own, which these settings do not have.
            assert f"profile {overlay}" in text or "spec.profile: got" in text
            assert "; next: " in text


@pytest.mark.parametrize("overlay", KINDS)
def test_an_overlay_as_it_is_shipped_is_told(check: Check, overlay: str) -> None:
    document = sample_document()
    del document["spec"]["slotsPerWorker"]
    code, text = check(document, overlay, is_edited=False)
    assert code == 2
    assert f'trainerImage (of the settings): got "{PLACEHOLDER}"; allowed: an image in a registry of yours' in text
    assert "Blocked with ImageNotNamed" in text
    assert check(document, overlay)[0] == 0


def test_a_job_s_own_placeholder_is_told_without_settings_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    volume = put("output", "volume", value={"persistentVolumeClaim": {"claimName": "bert"}})
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(sample_document(both(volume, put("image", value=PLACEHOLDER)))))
    assert main(["check", str(file), "--cluster"]) == 2
    assert "spec.image: got" in capsys.readouterr().err
    file.write_text(json.dumps(sample_document(volume)))
    assert main(["check", str(file), "--cluster"]) == 0


GPUS = {"accelerator": {}}
NODES = {"nodeSelector": {"pool": "gpus"}}


@pytest.mark.parametrize(
    ("overlay", "spec", "words"),
    [
        ("xeon-nfs", {"resources": GPUS}, "spec.resources.accelerator: got .*nvidia.com/gpu"),
        ("xeon-nfs", {"worker": {"resources": GPUS}}, "spec.worker.resources.accelerator: got"),
        ("single-node", {"resources": GPUS}, "spec.resources.accelerator: got"),
        ("xeon-nfs", {"resources": GPUS, "scheduling": NODES}, ""),
        ("xeon-nfs", {"precision": "tf32"}, 'spec.precision: got "tf32"'),
        ("gpu-nfs", {"precision": "tf32"}, ""),
        ("gpu-nfs", {"cpu": {"sockets": 2, "pinning": "socket"}}, "spec.cpu: got pinning, sockets, and no accelerator"),
        ("gpu-nfs", {"cpu": {"openmp": "intel"}}, "spec.cpu: got openmp"),
        ("gpu-nfs", {"cpu": {"openmp": "gnu", "allocator": "system", "pinning": "none"}}, ""),
        ("gpu-nfs", {"cpu": {"sockets": 2, "pinning": "socket"}, "resources": GPUS}, ""),
        ("azure-blob", {"slotsPerWorker": 8, "resources": GPUS}, "spec.slotsPerWorker: got 8, each with an"),
        ("azure-blob", {"slotsPerWorker": 8, "resources": GPUS, "scheduling": NODES}, ""),
        ("gpu-nfs", {}, ""),
        ("xeon-nfs", {}, ""),
    ],
)  # fmt: skip
def test_what_a_job_asks_for_and_its_profile_has_not_is_told(
    check: Check, overlay: str, spec: Document, words: str
) -> None:
    document = sample_document(lambda own: own.update({"slotsPerWorker": 2} | spec))
    code, text = check(document, overlay)
    assert code == (2 if words else 0), text
    assert re.search(words, text)


NUMA = {"sockets": None, "numaNodes": 4, "pinning": "numa"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        # SNC2's four ranks under the profile whose 27 cores are those of a socket.
        (
            {"slotsPerWorker": 4, "cpu": NUMA},
            "spec.cpu.coresPerRank: got 27 x 4 ranks: 108 cores in a pod; allowed: at most 54 cores in a pod under "
            "profile xeon-nfs, .*; next: write coresPerRank: 13, name a profile for such ranks .xeon-numa-nfs., or",
        ),
        ({"slotsPerWorker": 4, "cpu": NUMA | {"coresPerRank": 13}}, ""),
        ({"slotsPerWorker": 4, "cpu": NUMA, "profile": "xeon-numa-nfs"}, ""),
        (
            {"slotsPerWorker": 4, "cpu": {"coresPerRank": 14}, "profile": "xeon-numa-nfs"},
            "got 14 x 4 ranks: 56 cores in a pod; allowed: at most 52 cores",
        ),
        ({"slotsPerWorker": 1, "cpu": {"pinning": "core", "coresPerRank": 54}}, ""),
        (
            {"slotsPerWorker": 1, "cpu": {"pinning": "core", "coresPerRank": 55}},
            "got 55 x 1 ranks: 55 cores in a pod",
        ),
        ({"slotsPerWorker": 64, "cpu": {"pinning": "none"}}, "next: write fewer ranks, name a profile"),
        # Unpinned ranks may share what the pod asks for, and other nodes may have more.
        ({"slotsPerWorker": 4, "cpu": {"pinning": "none"}, "resources": {"cpu": 8}}, ""),
        ({"slotsPerWorker": 4, "cpu": NUMA, "scheduling": {"nodeSelector": {"cores": "many"}}}, ""),
    ],
)
def test_ranks_with_more_cores_than_the_profile_s_nodes_have_are_told(check: Check, spec: Document, words: str) -> None:
    code, text = check(sample_document(lambda own: own.update(spec)), "xeon-nfs")
    assert code == (2 if words else 0), text
    assert re.search(words, text), text


def test_cores_of_nodes_that_a_job_is_not_meant_for_are_not_counted(check: Check) -> None:
    code, text = check(sample_document(lambda own: own.update({"slotsPerWorker": 8, "resources": GPUS})), "xeon-nfs")
    assert code == 2
    assert "spec.resources.accelerator: got" in text
    assert "coresPerRank" not in text, "the profile's, which says nothing of nodes with accelerators"


def test_a_job_that_prepares_data_alone_runs_anywhere(check: Check) -> None:
    document = sample_document(put("cpu", value={"coresPerRank": 4}))
    document["spec"]["stages"] = document["spec"]["stages"][:1]
    document["spec"]["stages"][0]["prepare"]["sequenceLengths"] = [128]
    assert check(document, "gpu-nfs")[0] == 0
