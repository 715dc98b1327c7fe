"""``bert-train finetune`` makes a run configuration of a command line, or says which option is wrong.

Inputs: options, folders of weights, the launcher's variables. Observed: the run configuration, messages, exit codes.
Nothing is trained here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bert_job.run_config import RunConfig
from bert_job.run_stages import FinetuneStage
from bert_trainer.__main__ import main, parse_arguments
from bert_trainer.errors import InputError
from bert_trainer.finetune_command import check_examples, make_run_config
from described_weights import SIZES, describe_weights


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return describe_weights(tmp_path / "weights")


@pytest.fixture
def mrpc(tmp_path: Path) -> Path:
    folder = tmp_path / "glue" / "MRPC"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def tables(tmp_path: Path) -> tuple[str, ...]:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).touch()
    return ("--train", str(tmp_path / "a.csv"), "--validation", str(tmp_path / "b.csv"))


def configure(*words: str | Path, environment: dict[str, str] | None = None) -> RunConfig:
    arguments = parse_arguments(["finetune", *map(str, words), "--output", "out"])
    return make_run_config(arguments, environment or {})


def stage_of(config: RunConfig) -> FinetuneStage:
    stage = config.stages[0]
    assert isinstance(stage, FinetuneStage)
    return stage


def test_a_folder_of_glue_and_one_of_weights_are_all_that_is_needed(mrpc: Path, weights: Path) -> None:
    config = configure("--task", "mrpc", "--data", mrpc, "--model", weights)
    assert config.output_folder == str(Path.cwd() / "out")
    assert (config.sizes.num_hidden_layers, config.sizes.hidden_size, config.sizes.vocabulary_size) == (2, 8, None)
    assert config.dataset.vocabulary_path == str(weights / "vocab.txt")
    assert config.initial_checkpoint is not None
    assert (config.initial_checkpoint.path, config.initial_checkpoint.format) == (str(weights), "huggingface")
    stage = stage_of(config)
    assert (stage.name, stage.task, stage.data.folder) == ("mrpc", "mrpc", str(mrpc))
    assert (stage.epochs, stage.learning_rate, stage.run_seeds) == (3.0, 2e-5, (42,))
    assert (stage.sequence_length, stage.global_batch_size, stage.micro_batch_size) == (128, 32, 32)
    assert (stage.optimizer.name, stage.optimizer.epsilon, stage.optimizer.max_gradient_norm) == ("adamw", 1e-8, 1.0)
    assert stage.lower_case is None
    assert len(config.stages) == 1


def test_a_run_has_the_optimizer_of_its_stage(mrpc: Path, weights: Path) -> None:
    """Else a run that an earlier release has begun could not go on: it is compared with what the folder holds."""
    config = configure("--task", "mrpc", "--data", mrpc, "--model", weights, "--beta1", "0.8")
    assert config.optimizer.model_dump() == stage_of(config).optimizer.model_dump()


def test_options_end_up_in_the_stage(mrpc: Path, weights: Path) -> None:
    options = (
        "--seeds 3 --seed 7 --epochs 2.5 --batch-size 8 --micro-batch-size 4 --no-lower-case --max-gradient-norm 0"
    )
    more = "--learning-rate-scaling sqrtRanks --no-synchronize-gradients --patience 2 --metric accuracy --decay poly"
    exports = "--export huggingface --export onnx --precision bf16 --if-exists Resume"
    config = configure(
        "--task", "mrpc", "--data", mrpc, "--model", weights, *f"{options} {more} {exports}".split()
    )  # fmt: skip
    stage = stage_of(config)
    assert (stage.run_seeds, stage.epochs, stage.global_batch_size, stage.micro_batch_size) == ((7, 8, 9), 2.5, 8, 4)
    assert (stage.lower_case, stage.optimizer.max_gradient_norm) == (False, 0.0)
    assert (stage.learning_rate_scaling, stage.synchronize_gradients) == ("sqrtRanks", False)
    assert stage.early_stopping is not None
    assert (stage.early_stopping.patience, stage.metric, stage.decay) == (2, "accuracy", "poly")
    assert [other.name for other in config.stages] == ["mrpc", "export-huggingface", "export-onnx"]
    assert (config.precision, config.if_exists) == ("bf16", "Resume")


def test_the_published_recipes_can_be_written(mrpc: Path, weights: Path) -> None:
    fixed = ("--task", "mrpc", "--data", mrpc, "--model", weights)
    options = ("--warmup-steps", "500", "--after-warmup", "published", "--no-bias-correction")
    google = stage_of(configure(*fixed, *options))
    assert (google.warmup.steps, google.warmup.proportion) == (500, None)
    assert (google.after_warmup, google.optimizer.bias_correction) == ("published", False)
    plain = stage_of(configure(*fixed))
    assert (plain.warmup.steps, plain.warmup.proportion) == (None, 0.1)
    assert (plain.after_warmup, plain.optimizer.bias_correction) == ("continuous", True)
    assert stage_of(configure(*fixed, "--warmup-proportion", "0")).warmup.proportion == 0


@pytest.mark.parametrize("written", ["MRPC", "Mrpc", "mrpc"])
def test_a_task_may_be_written_as_its_folder_is(mrpc: Path, weights: Path, written: str) -> None:
    stage = stage_of(configure("--task", written, "--data", mrpc, "--model", weights))
    assert (stage.name, stage.task) == ("mrpc", "mrpc")


def test_questions_get_long_rows_and_smaller_passes(tmp_path: Path, weights: Path) -> None:
    stage = stage_of(configure("--task", "squad", "--data", tmp_path, "--model", weights))
    assert (stage.sequence_length, stage.doc_stride, stage.micro_batch_size) == (384, 128, 10)


@pytest.mark.parametrize(("task", "positions", "expected"), [("mrpc", 64, 64), ("mrpc", 200, 128), ("squad", 200, 200)])
def test_rows_are_no_longer_than_the_model_has_positions_for(
    tmp_path: Path, weights: Path, task: str, positions: int, expected: int
) -> None:
    (weights / "config.json").write_text(json.dumps({**SIZES, "max_position_embeddings": positions}))
    stage = stage_of(configure("--task", task, "--data", tmp_path, "--model", weights))
    assert stage.sequence_length == expected


def test_a_table_of_one_s_own_has_named_columns(tables: tuple[str, ...], weights: Path) -> None:
    columns = ("--text", "body", "--text-pair", "reply", "--label", "mood", "--id", "number")
    config = configure(
        "--task", "classification", *tables, *columns, "--labels", "bad", "good", "--model", weights
    )  # fmt: skip
    data = stage_of(config).data
    assert (data.train, data.validation, data.test) == (tables[1], tables[3], None)
    found = data.columns
    assert (found.text, found.text_pair, found.label, found.id) == ("body", "reply", "mood", "number")
    assert data.labels == ("bad", "good")


def launched(names: str, *values: int) -> dict[str, str]:
    return dict(zip(names.split(), map(str, values), strict=True))


@pytest.mark.parametrize(
    ("variables", "world"),
    [
        ({}, (1, 1)),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, (4, 1)),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, (4, 2)),
        ({"PMI_SIZE": "6", "MPI_LOCALNRANKS": "2"}, (6, 3)),
        (launched("HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK HOROVOD_LOCAL_SIZE", 1, 2, 1, 2), (2, 1)),
        (launched("RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE", 5, 8, 1, 4), (8, 2)),
        ({"WORLD_SIZE": "8"}, (1, 1)),
        ({"OMPI_COMM_WORLD_SIZE": "2", **launched("RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE", 0, 1, 0, 1)}, (2, 2)),
    ],
)
def test_ranks_are_those_that_the_launcher_has_started(
    mrpc: Path, weights: Path, variables: dict[str, str], world: tuple[int, int]
) -> None:
    config = configure("--task", "mrpc", "--data", mrpc, "--model", weights, environment=variables)
    assert (config.world.ranks, config.world.hosts) == world


def test_the_library_of_collectives_is_an_option(mrpc: Path, weights: Path) -> None:
    fixed = ("--task", "mrpc", "--data", mrpc, "--model", weights)
    assert configure(*fixed).collectives == "horovod"
    assert configure(*fixed, "--collectives", "torch").collectives == "torch"


def test_random_weights_need_no_file_of_weights(tmp_path: Path, mrpc: Path, weights: Path) -> None:
    (weights / "model.safetensors").unlink()
    config = configure("--task", "mrpc", "--data", mrpc, "--model", weights, "--start-from", "random")
    assert (config.initial_checkpoint, stage_of(config).start_from) == (None, "random")
    files = ("--model-config", weights / "config.json", "--vocabulary-file", weights / "vocab.txt")
    assert configure("--task", "mrpc", "--data", mrpc, "--start-from", "random", *files).sizes == config.sizes
    with pytest.raises(InputError, match=r"--model is required: a folder with config.json and vocab.txt"):
        configure("--task", "mrpc", "--data", mrpc, "--start-from", "random")


def test_rows_of_padding_are_no_entries(mrpc: Path, weights: Path) -> None:
    (weights / "config.json").write_text(json.dumps({**SIZES, "vocab_size": 16}))
    assert configure("--task", "mrpc", "--data", mrpc, "--model", weights).sizes.vocabulary_size is None
    (weights / "config.json").write_text(json.dumps({**SIZES, "vocab_size": 5}))
    with pytest.raises(InputError, match=r"vocabulary_size: got 5; allowed: 8 to 4104"):
        configure("--task", "mrpc", "--data", mrpc, "--model", weights)


@pytest.mark.parametrize(
    ("words", "complaints"),
    [
        ("--task mrpc", ["--data is required: a folder with the official files"]),
        (
            "--task mrpc --data {mrpc} --train {mrpc} --label x",
            [
                '--train: got "/',
                '--label: got "x" with task mrpc',
            ],
        ),
        (
            "--task classification --data {mrpc} --train none.csv --text body",
            [
                '--data: got "/',
                "--label is required: text and label for classification",
                "--train: got none.csv, which does not exist",
            ],
        ),
        (
            "--task regression --train {mrpc} --validation {mrpc} --text a --label b --question c --labels x y",
            [
                '--question: got "c" with task regression',
                "--labels: got 2 labels with task regress",
            ],
        ),
        (
            "--task spans --train {mrpc} --validation {mrpc} --question q --answer a",
            ["--context is required: text and label for classification and regression"],
        ),
        (
            "--task rte --data {mrpc}/nowhere",
            ["--data: got {mrpc}/nowhere, which does not exist; allowed: a path that"],
        ),
    ],
)
def test_all_that_is_wrong_with_the_data_is_said_at_once(
    mrpc: Path, weights: Path, words: str, complaints: list[str]
) -> None:
    with pytest.raises(InputError) as refused:
        configure(*words.format(mrpc=mrpc).split(), "--model", weights)
    for complaint in complaints:
        assert complaint.format(mrpc=mrpc) in str(refused.value)
    assert str(refused.value).splitlines()[0].endswith(f"{len(complaints)} problem(s)")


@pytest.mark.parametrize("option", ["model", "model-config", "vocabulary-file", "output"])
def test_a_path_that_no_file_can_have_is_named(tables: tuple[str, ...], weights: Path, option: str) -> None:
    needed = ("--task", "regression", *tables, "--text", "a", "--label", "b", "--start-from", "random")
    arguments = parse_arguments(
        ["finetune", *needed, "--model", str(weights), "--output", "o", f"--{option}", "a" * 5_000]
    )
    with pytest.raises(InputError) as refused:
        make_run_config(arguments, {})
    assert f"--{option}: got {'a' * 120}... (File name too long); allowed: a path that can be read" in str(
        refused.value
    )


def test_what_a_terminal_would_obey_in_a_path_is_escaped(tables: tuple[str, ...], tmp_path: Path) -> None:
    hostile = str(tmp_path / "\x1b[31m")
    own = ("--text", "a", "--label", "b", "--model", hostile)
    for words in (
        ("--task", "mrpc", "--data", hostile),
        ("--task", "regression", "--data", hostile, *tables, *own),
        ("--task", "regression", *tables, "--test", hostile, *own),
        ("--task", "regression", *tables, *own),
        ("--task", "regression", *tables, *own, "--format", "huggingface"),
        ("--task", "regression", *tables, *own, "--start-from", "random"),
    ):
        with pytest.raises(InputError, match=r"\\x1b\[31m") as refused:
            configure(*words)
        assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--epochs 0", "--epochs: got 0.0"),
        ("--sequence-length 0", "--sequence-length: got 0"),
        ("--sequence-length 600", "--sequence-length: got 600; allowed: at most model.maxPositionEmbeddings 512"),
        ("--batch-size 0", "--batch-size: got 0"),
        ("--learning-rate nan", "--learning-rate: got nan"),
        ("--warmup-proportion 1", "--warmup-proportion: got 1.0"),
        ("--warmup-steps -1", "--warmup-steps: got -1"),
        (
            "--warmup-steps 9 --warmup-proportion 0.2",
            "--warmup-steps: got steps and proportion; allowed: exactly one of steps, proportion",
        ),
        ("--beta1 2", "--beta1: got 2.0"),
        ("--seeds 1000000000", "--seeds: got 1000000000; Input should be less than or equal to 100"),
        ("--seeds 0", "--seeds: got 0; Input should be greater than or equal to 1"),
        ("--seed -1", "--seed: got -1"),
        ("--patience 0", "--patience: got 0"),
        ("--metric pearson", '--metric: got "pearson"; allowed: for mrpc f1 or accuracy'),
    ],
)
def test_a_value_that_no_stage_takes_is_refused_by_its_option_and_alone(
    mrpc: Path, weights: Path, words: str, complaint: str
) -> None:
    with pytest.raises(InputError) as refused:
        configure("--task", "mrpc", "--data", mrpc, "--model", weights, *words.split())
    first, *lines = str(refused.value).splitlines()
    assert first.endswith(": 1 problem(s)"), lines
    assert lines[0].startswith(f"  {complaint}")


def test_a_question_longer_than_its_row_is_refused(tmp_path: Path, weights: Path) -> None:
    with pytest.raises(InputError, match=r"--max-query-length: got 64; allowed: less than 61: --sequence-length 64 "):
        configure("--task", "squad", "--data", tmp_path, "--model", weights, "--sequence-length", "64")


def test_weights_that_are_not_there_are_named(tmp_path: Path, mrpc: Path, weights: Path) -> None:
    with pytest.raises(InputError, match=r"--model is required: weights to start from"):
        configure("--task", "mrpc", "--data", mrpc)
    with pytest.raises(InputError, match=rf"--model: got {mrpc}, where no weights were recognized"):
        configure("--task", "mrpc", "--data", mrpc, "--model", mrpc)
    with pytest.raises(InputError, match=r"got format: nvidia, but `model.safetensors` lies there: format: hugg"):
        configure("--task", "mrpc", "--data", mrpc, "--model", weights, "--format", "nvidia")
    (weights / "vocab.txt").unlink()
    with pytest.raises(InputError, match=r"got no vocabulary there"):
        configure("--task", "mrpc", "--data", mrpc, "--model", weights)


def test_the_configuration_is_shown_before_torch_has_loaded(mrpc: Path, weights: Path) -> None:
    program = "import sys; from bert_trainer.__main__ import main; code = main(sys.argv[1:]); " + (
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    options = ["--task", "mrpc", "--data", str(mrpc), "--model", str(weights), "--output", "out", "--show"]
    shown = subprocess.run(
        [sys.executable, "-c", program, "finetune", *options], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert RunConfig.model_validate_json(shown.stdout).stages[0].name == "mrpc"


def test_a_mistake_ends_the_command_with_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["finetune", "--task", "mrpc", "--output", str(tmp_path / "out")]) == 2
    assert "--data is required: a folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


TEXTS = "review,stars\n" + "fine,5\nbad,1\n" * 3


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--text reviews --label stars", "train.csv:1: no column 'reviews'; the file has 'review', 'stars'"),
        ("--text review --label stars --labels 5 4", "allowed, by labels: '5', '4'"),
    ],
)
def test_a_mistake_in_the_files_costs_no_output_folder(
    tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str], words: str, complaint: str
) -> None:
    for name in ("train.csv", "valid.csv"):
        (tmp_path / name).write_text(TEXTS)
    files = [f"--train={tmp_path}/train.csv", f"--validation={tmp_path}/valid.csv", f"--output={tmp_path}/out"]
    assert main(["finetune", "--task=classification", *files, f"--model={weights}", *words.split()]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert "data." not in said
    assert not (tmp_path / "out").exists()


def test_the_other_ranks_leave_the_files_to_rank_0(tables: tuple[str, ...], weights: Path) -> None:
    config = configure(
        "--task", "classification", *tables, "--text", "a", "--label", "b", "--model", weights
    )  # fmt: skip
    check_examples(config, {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})
    check_examples(config, launched("RANK WORLD_SIZE", 1, 2))
    with pytest.raises(InputError, match=r"a\.csv: got an empty file"):
        check_examples(config, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})


def test_help_speaks_of_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["finetune", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "Left out: as many as 4096 tokens hold (32 of 128, 10 of 384), at most --batch-size." in said
    assert "synchronizeGradients" not in said
