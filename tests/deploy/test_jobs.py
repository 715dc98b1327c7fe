"""deploy/kustomize/jobs: an edited mlops.env arrives in the fields of the job and in the environment of its ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.cluster.settings import Settings
from bert_operator.cluster.settings_rules import cluster_problems
from examples import read_example
from manifests import (
    KUSTOMIZE,
    PLATFORM_FIELDS,
    ROOT,
    Json,
    Refused,
    copy_tree,
    edit_environment,
    kustomize,
    parse,
    switch_on,
    take_out,
)

EDITED = {
    "REGISTRY": "registry.example.com:5000/team/bert",
    "ROOT": "/mnt/share",
    "DATASET_DIR": "/mnt/share/hdf5",
    "MODEL_DIR": "/mnt/share/models/base",
    "WORKSPACE": "/mnt/share/code",
    "OUTPUT_DIR": "/mnt/share/results",
    "NFS_SERVER": "10.1.2.3",
    "NFS_PATH": "/exports/nlp",
    "USER_ID": "1234",
    "GROUP_ID": "2345",
    "FS_ID": "3456",
}

# As the older of Intel's trees has it, whose users have a copy.
OLDER = """REGISTRY=docker.io
DATASET_DIR=/tf_dataset
WORKSPACE=/workspace
MODEL_DIR=bert_larg_fp32_training
OUTPUT_DIR=/tmp/output
"""
PAGES = ROOT / "docs/guides"


def build(tmp_path: Path, variant: str, *components: str, **environment: str) -> list[Json]:
    jobs = copy_tree(tmp_path, "jobs")
    edit_environment(jobs, **(environment or EDITED))
    switch_on(jobs / variant, *components)
    return parse(kustomize(jobs / variant))


def job_of(documents: list[Json]) -> BertPretrainJob:
    (document,) = (item for item in documents if item["kind"] == "BertPretrainJob")
    return parse_job(document)


def test_the_file_has_exactly_the_keys_that_people_know() -> None:
    text = (KUSTOMIZE / "jobs/base/mlops.env").read_text()
    assert set(re.findall(r"^(\w+)=", text, flags=re.MULTILINE)) == set(EDITED)


@pytest.mark.parametrize(("variant", "ranks"), [("single-node", (1, 2)), ("multi-node", (2, 1))])
def test_keys_become_fields(variant: str, ranks: tuple[int, int], tmp_path: Path) -> None:
    spec = job_of(build(tmp_path, variant)).spec
    assert (spec.workers, spec.slots_per_worker) == ranks
    assert spec.image == "registry.example.com:5000/team/bert/trainer:0.2.0"
    assert spec.dataset.path == "/mnt/share/hdf5"
    assert spec.output.path == f"/mnt/share/results/bert-{variant}"
    volume = spec.output.volume
    assert volume is not None
    assert volume.nfs is not None
    assert (volume.nfs.server, volume.nfs.path, volume.mount_path) == ("10.1.2.3", "/exports/nlp", "/mnt/share")
    user = spec.security_context
    assert (user.run_as_user, user.run_as_group, user.fs_group) == (1234, 2345, 3456)


@pytest.mark.parametrize("variant", ["single-node", "multi-node"])
def test_every_rank_gets_all_keys_as_variables(variant: str, tmp_path: Path) -> None:
    documents = build(tmp_path, variant)
    (config_map,) = (item for item in documents if item["kind"] == "ConfigMap")
    assert config_map["data"] == EDITED
    assert [source.config_map for source in job_of(documents).spec.env_from] == [config_map["metadata"]["name"]]


def test_the_cluster_takes_the_job_as_it_is_and_refuses_results_on_no_mount(tmp_path: Path) -> None:
    assert list(cluster_problems(job_of(build(tmp_path / "right", "multi-node")), Settings())) == []
    wrong = job_of(build(tmp_path / "wrong", "multi-node", OUTPUT_DIR="/somewhere/else"))
    (problem,) = cluster_problems(wrong, Settings())
    assert problem.path == "spec.output.path"
    assert problem.allowed == "a folder on a writable mount: /mnt/bert"
    wrong = job_of(build(tmp_path / "data", "multi-node", DATASET_DIR="/tf_dataset"))
    (problem,) = cluster_problems(wrong, Settings())
    assert (problem.path, problem.got) == ("spec.dataset.path", '"/tf_dataset"')


def test_with_a_claim_no_share_is_named(tmp_path: Path) -> None:
    volume = job_of(build(tmp_path, "multi-node", "claim")).spec.output.volume
    assert volume is not None
    assert volume.persistent_volume_claim is not None
    assert (volume.nfs, volume.mount_path) == (None, "/mnt/share")


def test_with_a_profile_nothing_of_the_cluster_is_left_in_the_job(tmp_path: Path) -> None:
    jobs = copy_tree(tmp_path, "jobs")
    switch_on(jobs / "multi-node", "profile")
    take_out(jobs / "multi-node", "pods.yaml")
    (document,) = (item for item in parse(kustomize(jobs / "multi-node")) if item["kind"] == "BertPretrainJob")
    assert PLATFORM_FIELDS & set(document["spec"]) == {"envFrom", "dataset", "output"}
    assert document["spec"]["output"] == {"ifExists": "Resume", "path": "/mnt/bert/output/bert-multi-node"}
    assert document["spec"]["dataset"] == {"path": "/mnt/bert/data"}


def test_ready_data_is_read_with_the_vocabulary_of_the_model_folder(tmp_path: Path) -> None:
    spec = job_of(build(tmp_path, "multi-node", "ready-data")).spec
    assert spec.stages[0].prepare is None
    assert (spec.dataset.path, spec.dataset.vocabulary_file) == ("/mnt/share/hdf5", "/mnt/share/models/base/vocab.txt")


def test_a_model_and_a_program_of_one_s_own_come_from_their_folders(tmp_path: Path) -> None:
    spec = job_of(build(tmp_path, "multi-node", "own-model", "own-program")).spec
    assert spec.initial_checkpoint is not None
    assert spec.initial_checkpoint.path == "/mnt/share/models/base"
    assert spec.workspace is not None
    assert spec.workspace.volume.nfs is not None
    assert spec.workspace.volume.nfs.server == "10.1.2.3"
    assert spec.workspace.volume.mount_path == "/mnt/share/code"


@pytest.mark.parametrize("variant", ["single-node", "multi-node"])
def test_an_older_file_is_refused_as_the_pages_say_and_taken_with_the_lines_that_they_add(
    variant: str, tmp_path: Path
) -> None:
    page = (PAGES / "kubernetes.md").read_text().partition("### From an older mlops.env\n")[2]
    message, lines = re.findall(r"^```(?:text|ini)\n(.*?)\n```$", page, flags=re.MULTILINE | re.DOTALL)[:2]
    jobs = copy_tree(tmp_path, "jobs")
    file = jobs / "base/mlops.env"
    file.write_text(OLDER)
    with pytest.raises(Refused, match=re.escape(message)):
        kustomize(jobs / variant)
    assert message in (PAGES / "coming-from/intel-tensorflow.md").read_text().replace("\n", " ")

    before, added = (dict(re.findall(r"^(\w+)=(.*)$", text, flags=re.MULTILINE)) for text in (OLDER, lines))
    assert len(added.keys() - before.keys()) == 6
    file.write_text("".join(f"{key}={value}\n" for key, value in (before | added).items()))
    job = job_of(parse(kustomize(jobs / variant)))
    assert list(cluster_problems(job, Settings())) == []
    assert (job.spec.dataset.path, job.spec.output.path) == ("/mnt/bert/data", f"/mnt/bert/output/bert-{variant}")


@pytest.mark.parametrize("variant", ["single-node", "multi-node"])
def test_mrpc_is_trained_by_the_example_s_numbers_from_the_folders_of_the_file(variant: str, tmp_path: Path) -> None:
    job = job_of(build(tmp_path, variant, "mrpc"))
    spec, example = job.spec, parse_job(read_example(f"14-intel-mrpc/fp32-{variant}")).spec
    assert list(cluster_problems(job, Settings())) == []
    assert (spec.ranks, spec.precision, [stage.name for stage in spec.stages]) == (2, "fp32", ["mrpc", "export"])
    assert spec.initial_checkpoint is not None
    assert (spec.initial_checkpoint.path, spec.initial_checkpoint.format) == ("/mnt/share/models/base", "tensorflow")
    assert spec.model.config_file == "/mnt/share/models/base/bert_config.json"
    assert spec.dataset.vocabulary_file == "/mnt/share/models/base/vocab.txt"
    (own, *_), (published, *_) = spec.stages, example.stages
    assert own.finetune is not None
    assert published.finetune is not None
    data = published.finetune.data.model_copy(update={"folder": "/mnt/share/hdf5/MRPC"})
    assert own.finetune == published.finetune.model_copy(update={"data": data})


def test_another_value_is_another_config_map_so_a_running_job_keeps_its_own(tmp_path: Path) -> None:
    found = {
        item["metadata"]["name"]
        for server in ("one", "two")
        for item in build(tmp_path / server, "multi-node", NFS_SERVER=server)
        if item["kind"] == "ConfigMap"
    }
    assert len(found) == 2
