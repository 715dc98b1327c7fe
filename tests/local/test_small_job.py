"""A job at laptop size: what is changed, that it stays a valid job with every stage, and that it runs.

Inputs: the examples, and jobs drawn by chance. That a whole example runs is test_small_job_runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bert_job import model as presets
from bert_operator.__main__ import main
from bert_operator.api.parsing.documents import read_job_document
from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.api.small_job import SmallJobTarget, fetch_command, missing_task_files, shrink
from bert_operator.cluster.settings import Settings
from bert_operator.cluster.settings_rules import read_cluster_job
from bert_operator.errors import InvalidJob
from bert_operator.local.programs import find_precisions
from job_documents import draw_document
from sample_job import Document, sample_document

ROOT = Path(__file__).parents[2]
EXAMPLES = [
    path for path in sorted((ROOT / "examples").glob("*/*.yaml")) if "\nkind: BertPretrainJob" in path.read_text()
]
PROFILE: Document = {
    "resources": {"cpu": 88, "memory": "800Gi", "accelerator": {}, "rdma": {"resourceName": "rdma/hca"}},
    "cpu": {"pinning": "socket", "sockets": 2, "coresPerRank": 28, "ranksPerNode": "auto"},
    "env": [{"name": "OMPI_MCA_pml", "value": "ucx"}],
    "output": {"volume": {"persistentVolumeClaim": {"claimName": "bert"}}},
}


def here(*, has: Callable[[str], bool] = lambda _: False, in_cluster: bool = False) -> SmallJobTarget:
    return SmallJobTarget(has_path=has, in_cluster=in_cluster)


def small(change: Callable[[Document], Any], surroundings: SmallJobTarget | None = None) -> BertPretrainJob:
    document = sample_document(change)
    return parse_job(shrink(document, parse_job(document), surroundings or here()).document)


def assert_small(job: BertPretrainJob, before: BertPretrainJob) -> None:
    spec = job.spec
    assert spec.ranks <= 2
    if spec.model.config_file is None:
        size = presets.resolve_size(spec.model)
        assert (size.hidden_size, size.num_hidden_layers) <= (128, 2)
        assert size.architecture == presets.resolve_architecture(before.spec.model)
    assert all((stage.pretrain.length.steps or 99) <= 4 for stage in spec.stages if stage.pretrain is not None)
    assert spec.resources.accelerator is None
    assert not spec.scheduling.node_selector
    kinds = [stage.kinds for stage in spec.stages if stage.prepare is None]
    assert kinds == [stage.kinds for stage in before.spec.stages if stage.prepare is None]
    assert spec.output.path != before.spec.output.path
    assert job.metadata.name.endswith("-small")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
@pytest.mark.parametrize("in_cluster", [False, True])
def test_every_example_becomes_small(path: Path, in_cluster: bool) -> None:
    document = read_job_document(path)
    before = parse_job(document)
    for has_data in (False, True):
        found = shrink(document, before, here(has=lambda _, has_data=has_data: has_data, in_cluster=in_cluster))
        assert_small(parse_job(found.document), before)
        assert read_job_document(path) == document


def test_every_valid_drawn_job_becomes_a_valid_small_one() -> None:
    count = 0
    for number in range(160):
        document = draw_document(number)
        try:
            before = parse_job(document)
        except InvalidJob:
            continue
        # Two bits of the number choose where it is to run.
        found = shrink(document, before, here(has=lambda _, it=number: bool(it & 2), in_cluster=bool(number & 1)))
        assert_small(parse_job(found.document), before)
        count += 1
    assert count > 40


def from_elsewhere(spec: Document, **pretrain: Any) -> None:
    """Take the prepare stage away, and give every pretrain stage some fields."""
    spec["stages"] = [stage for stage in spec["stages"] if "prepare" not in stage]
    spec["dataset"] = {"path": "documents", "vocabularyFile": "tokenizer.json"}
    for stage in spec["stages"]:
        if "pretrain" in stage:
            stage["pretrain"].update(pretrain)


def test_documents_of_a_model_in_a_file_are_trained_on_without_next_sentences() -> None:
    def change(spec: Document) -> None:
        spec["model"] = {"configFile": "config.json"}
        spec["stages"][0]["prepare"]["samples"] = "documents"

    assert presets.resolve_objective(small(change).spec.model) == "mlm"


@pytest.mark.parametrize(("objective", "samples"), [("mlm", "documents"), ("mlm+nsp", None)])
def test_rows_that_attend_across_documents_are_rehearsed_where_they_can_be(objective: str, samples: str | None) -> None:
    spec = small(
        lambda spec: [spec["model"].update(objective=objective), from_elsewhere(spec, crossDocumentAttention=True)]
    ).spec
    (prepare,) = [stage.prepare for stage in spec.stages if stage.prepare is not None]
    crossing = {stage.pretrain.cross_document_attention for stage in spec.stages if stage.pretrain is not None}
    assert (prepare.samples, crossing) == (samples, {True if samples else None})


def test_a_modernbert_is_rehearsed_with_documents_and_its_kind_of_vocabulary() -> None:
    def change(spec: Document) -> None:
        spec["model"] = {"preset": "modernbert-base"}
        from_elsewhere(spec)

    (prepare,) = [stage.prepare for stage in small(change).spec.stages if stage.prepare is not None]
    assert (prepare.samples, prepare.tokenizer) == ("documents", "byte-bpe")


def test_positions_that_a_preset_brought_are_kept_where_rows_need_them() -> None:
    def change(spec: Document) -> None:
        spec["model"] = {"preset": "ettin-17m", "architecture": "bert", "objective": "mlm"}
        spec["stages"][1]["pretrain"]["sequenceLength"] = 4096

    assert presets.resolve_positions(small(change).spec.model) >= 4096


def test_the_profile_of_a_cluster_does_not_make_it_large_again() -> None:
    document = sample_document(lambda spec: [spec.pop("slotsPerWorker"), spec.update(precision="bf16")])
    settings = Settings(profiles={"gpus": PROFILE}, default_profile="gpus")
    before = read_cluster_job(document, settings)
    job = read_cluster_job(shrink(document, before, here(in_cluster=True)).document, settings).spec
    assert (job.ranks, job.precision, job.cpu.pinning, job.cpu.cores_per_rank) == (2, "fp32", "none", 1)
    assert job.worker.resources is not None
    assert (job.worker.resources.cpu, job.worker.resources.memory) == ("1000m", "3Gi")
    assert job.worker.resources.accelerator is None
    assert [(entry.name, entry.value) for entry in job.env] == [("OMPI_MCA_pml", "ob1")]
    assert job.output.volume is not None


def test_a_manifest_for_kubectl_leaves_to_the_profile_what_the_job_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = sample_document(lambda spec: spec.update(profile="gpus"))
    document["metadata"]["labels"] = {"team": "a"}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    assert main(["render", str(path), "--small", "--show", "job"]) == 0
    output, remarks = capsys.readouterr()
    shown = yaml.safe_load(output)
    assert shown["metadata"] == {"name": "demo-small", "labels": {"team": "a"}}
    assert shown["spec"]["profile"] == "gpus"
    assert shown["spec"]["output"] == {"path": "runs/demo-small", "ifExists": "New"}
    assert "small: spec.stages[1].pretrain.length:" in remarks
    assert "image" not in shown["spec"]


def test_every_change_is_one_line_with_what_was_there() -> None:
    document = sample_document(lambda spec: spec.update(precision="fp16", workers=16))
    changes = shrink(document, parse_job({**document}), here()).changes
    assert 'spec.precision: "fp16" -> "fp32" (the processors here have no more)' in changes
    assert "spec.workers: 16 -> 2" in changes
    assert 'spec.output.path: "runs/demo" -> "runs/demo-small"' in changes
    assert all("\n" not in change for change in changes)


READY: Document = {"path": "/data/shards", "vocabularyFile": "/data/vocab.txt"}


def on_ready_data(spec: Document) -> None:
    spec["stages"] = spec["stages"][1:]
    spec["dataset"] = dict(READY)


def test_data_that_is_there_is_read_as_it_is() -> None:
    job = small(on_ready_data, here(has=lambda _: True))
    assert (job.spec.dataset.path, job.spec.dataset.vocabulary_file) == ("/data/shards", "/data/vocab.txt")
    assert job.spec.stages[0].prepare is None


def test_data_that_is_missing_is_made_from_the_builtin_text_in_its_lengths() -> None:
    job = small(on_ready_data, here(has=lambda path: path == "/data/shards"))
    assert (job.spec.dataset.path, job.spec.dataset.vocabulary_file) == (None, None)
    prepare = job.spec.stages[0].prepare
    assert prepare is not None
    assert (prepare.text, prepare.vocabulary_size, prepare.masking) == ("builtin:python-docs", 2048, "static")
    assert job.spec.stages[1].pretrain is not None
    assert job.spec.stages[1].pretrain.sequence_length == 128


def test_a_recipe_s_shards_and_text_become_few_and_small() -> None:
    def change(spec: Document) -> None:
        spec["stages"][0]["prepare"] = {"corpora": [{"path": "wiki", "format": "wikipedia"}], "recipe": "mlperf"}

    prepare = small(change, here(in_cluster=True)).spec.stages[0].prepare
    assert prepare is not None
    assert (prepare.text, prepare.corpora, prepare.dupe_factor) == ("builtin:python-docs", None, 1)
    assert (prepare.num_shards, prepare.num_balanced_shards, prepare.num_processes) == (4, 4, 2)


def test_a_vocabulary_that_is_there_is_kept_for_the_builtin_text() -> None:
    job = small(on_ready_data, here(has=lambda path: path == "/data/vocab.txt"))
    assert job.spec.dataset.vocabulary_file == "/data/vocab.txt"
    assert job.spec.stages[0].prepare is not None
    assert job.spec.stages[0].prepare.vocabulary_size is None


def test_weights_of_another_size_are_only_looked_at_or_left_out() -> None:
    start = {"path": "/data/bert", "format": "huggingface"}

    def change(spec: Document) -> None:
        spec.update(initialCheckpoint=start, model={"preset": "distilbert"})

    there, missing = small(change, here(has=lambda _: True)).spec, small(change).spec
    assert there.initial_checkpoint is not None
    assert there.initial_checkpoint.load == "none"
    assert missing.initial_checkpoint is None
    assert (there.model.preset, there.model.architecture) == ("tiny", "distilbert")


@pytest.mark.parametrize(
    ("path", "task", "command"),
    [
        # As the examples read them, and as the guide of fine-tuning does.
        ("glue/CoLA", "cola", "bert-data fetch glue-cola --output ."),
        ("downloads/glue/MRPC", "mrpc", "bert-data fetch glue-mrpc --output downloads"),
        ("downloads/glue", "mrpc", "bert-data fetch glue-mrpc --output downloads"),
        ("/data/glue/RTE/", "rte", "bert-data fetch glue-rte --output /data"),
        ("/glue/RTE", "rte", "bert-data fetch glue-rte --output /"),
        ("squad", "squad", "bert-data fetch squad-v1.1 --output ."),
        ("tables/mine", "cola", "bert-data fetch glue-cola and its folder as tables/mine"),
    ],
)
def test_missing_files_of_a_task_are_fetched_to_where_the_job_reads_them(path: str, task: str, command: str) -> None:
    assert fetch_command(path, task) == command


def test_fine_tuning_without_weights_says_so_and_names_missing_files() -> None:
    document = read_job_document(ROOT / "examples/14-intel-mrpc/job.yaml")
    before = parse_job(document)
    found = shrink(document, before, here())
    finetune = parse_job(found.document).spec.stages[1].finetune
    assert finetune is not None
    assert (finetune.start_from, finetune.epochs, finetune.global_batch_size) == ("random", 0.02, 8)
    assert any("there are no weights of this size" in change for change in found.changes)
    places = list(missing_task_files(before, lambda _: False))
    folder = before.spec.stages[0].finetune.data.folder if before.spec.stages[0].finetune else None
    assert places == [("spec.stages[0].finetune.data.folder", folder, "mrpc")]


@pytest.mark.parametrize(
    ("path", "expected"),
    [("runs/demo/", "runs/demo-small"), (".", "./small"), ("../..", "../../small"), ("/", "/small")],
)
def test_results_get_a_folder_of_their_own(path: str, expected: str) -> None:
    assert small(lambda spec: spec["output"].update(path=path)).spec.output.path == expected


def test_the_longest_name_stays_a_name() -> None:
    document = sample_document()
    document["metadata"]["name"] = "a" * 38 + "-" + "b" * 6
    found = shrink(document, parse_job(document), here())
    assert parse_job(found.document).metadata.name == "a" * 38 + "-small"


def test_a_precision_that_the_processor_has_is_kept(tmp_path: Path) -> None:
    (tmp_path / "amx").write_text("processor : 0\nflags : fpu avx512f avx512_bf16 amx_bf16 amx_tile\n")
    (tmp_path / "old").write_text("processor : 0\nflags : fpu avx2\n")
    assert find_precisions(tmp_path / "amx") == {"bf16", "bf32"}
    assert find_precisions(tmp_path / "old") == find_precisions(tmp_path / "none") == frozenset()
    document = sample_document(lambda spec: spec.update(precision="bf16"))
    found = SmallJobTarget(has_path=lambda _: False, in_cluster=False, precisions=frozenset({"bf16"}))
    assert parse_job(shrink(document, parse_job(document), found).document).spec.precision == "bf16"
