"""The tables of the replaced recipes name fields that exist, or say why there is none."""

from __future__ import annotations

import re
import types
import typing
from pathlib import Path

import pytest

from bert_job.section import Section
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob

FOLDER = Path(__file__).parents[2] / "docs" / "guides" / "coming-from"
RECIPES = {page.stem: page.read_text() for page in sorted(FOLDER.glob("*.md")) if page.stem != "README"}
FIELD = re.compile(r"`((?:spec|metadata)\.[^`\s]*)`")
# What people look for first; they stand in the project's promises.
NAMES = [
    "MPI_NUM_PROCESSES",
    "NNODES",
    "HOSTFILE",
    "NPROCESS",
    "PROCESS_PER_NODE",
    "GBS",
    "REGISTRY",
    "DATASET_DIR",
    "WORKSPACE",
    "MODEL_DIR",
    "OUTPUT_DIR",
    "ROOT",
    "DNNL_MAX_CPU_ISA",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MALLOC_CONF",
    "LD_PRELOAD",
    "PRECISION",
    "BATCH_SIZE",
    "TRAINING_PHASE",
    "gpu_memory_limit_gb",
    "deepspeed_zero_stage",
    "train_batch_size",
    "--phase1_end_step",
    "--max_samples_termination",
    "--target_mlm_accuracy",
    "--init_tf_checkpoint",
    "zero_optimization.stage",
    "nebula.persistent_time_interval",
    "distribution.process_count_per_instance",
    "--per_device_eval_batch_size",
    "--task",
    "task-name",
    "train-option=SQuAD",
    "train-option=Classifier",
    "predict-file",
    "doc-stride",
    "mpi_workers_sync_gradients",
]
# Of the three files of DeepSpeed's settings together.
DEEPSPEED_KEYS = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "fp16.enabled",
    "zero_optimization.stage",
    "flops_profiler.enabled",
    "flops_profiler.profile_step",
    "flops_profiler.module_depth",
    "flops_profiler.top_modules",
    "flops_profiler.detailed",
    "flops_profiler.output_file",
    "tensorboard.enabled",
    "tensorboard.output_path",
    "tensorboard.job_name",
    "nebula.enabled",
    "nebula.persistent_storage_path",
    "nebula.persistent_time_interval",
    "nebula.num_of_version_in_retention",
    "nebula.enable_nebula_load",
}
AZURE_JOB_KEYS = {
    "command",
    "code",
    "experiment_name",
    "environment",
    "environment_variables",
    "compute",
    "distribution.type",
    "distribution.process_count_per_instance",
    "resources.instance_count",
    "resources.shm_size",
    "outputs.output.type",
    "outputs.output.mode",
    "outputs.output.path",
    "services.my_jupyterlab",
    "services.my_tensorboard",
    "services.my_vscode",
    "services.*.job_service_type",
    "services.*.nodes",
    "services.my_tensorboard.properties.logDir",
}


def rows(text: str | None = None) -> list[list[str]]:
    """Return every row of every table of a text, by default of all recipes, as cells."""
    lines = [line for line in (text or "\n".join(RECIPES.values())).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] not in ("there", "---") and not row[0].startswith("---")]


def names_of(row: list[str]) -> list[str]:
    """Return the names in a row's first cell."""
    return row[0].removeprefix("`").removesuffix("`").split("`, `")


def tables_under(heading: str) -> list[list[str]]:
    """Return the rows of the tables below a heading of Azure's page."""
    return rows(RECIPES["azure-ml"].split(f"\n## {heading}\n")[1].split("\n## ")[0])


def sections_of(annotation: object) -> list[type[Section]]:
    """Return the sections that a field may hold: itself, in a union, in a tuple."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return [annotation] if issubclass(annotation, Section) else []
    return [found for part in typing.get_args(annotation) for found in sections_of(part)]


def exists(path: str) -> bool:
    section: type[Section] | None = BertPretrainJob
    names = path.split(".")
    for number, name in enumerate(names, start=1):
        if section is None:
            return False
        wanted = name.removesuffix("[]")
        field = next((field for key, field in section.model_fields.items() if wanted in (field.alias, key)), None)
        if field is None:
            return False
        # A list is written as one where something of its entries is named.
        is_list = "tuple" in str(field.annotation)
        if name.endswith("[]") and not is_list or is_list and name == wanted and number < len(names):
            return False
        section = next(iter(sections_of(field.annotation)), None)
    return True


def test_every_field_that_is_named_exists() -> None:
    named = {path for row in rows() for cell in row for path in FIELD.findall(cell)}
    assert len(named) > 50
    assert {path for path in named if not exists(path)} == set()


@pytest.mark.parametrize("path", ["spec.gbs", "spec.stages.pretrain", "spec.workers.count", "spec.env.name", "kind.x"])
def test_a_path_that_does_not_exist_is_noticed(path: str) -> None:
    assert not exists(path)


def test_every_row_has_an_answer_and_a_reason_where_there_is_no_field() -> None:
    for there, here, remarks in rows():
        assert there.startswith("`"), there
        assert FIELD.fullmatch(here) or here == "not needed", (there, here)
        assert FIELD.fullmatch(here) or remarks, f"{there}: why is it not needed?"


@pytest.mark.parametrize(("heading", "keys"), [("ds_config.json", DEEPSPEED_KEYS), ("Job file", AZURE_JOB_KEYS)])
def test_every_key_of_azure_s_files_has_a_row(heading: str, keys: set[str]) -> None:
    found = {name for row in tables_under(heading) for name in names_of(row)}
    assert keys - found == set()


@pytest.mark.parametrize("recipe", RECIPES)
def test_nothing_stands_twice_in_one_recipe(recipe: str) -> None:
    names = [
        name
        for line in RECIPES[recipe].splitlines()
        if line.startswith("| `")
        for name in line.split(" | ")[0].split("`, `")
    ]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("name", NAMES)
def test_the_names_that_everybody_knows_are_there(name: str) -> None:
    assert any(f"`{name}`" in row[0] or f"`{name}" in row[0] for row in rows())
