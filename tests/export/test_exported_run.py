"""What a run exports: the folders of its stages, the same numbers everywhere, a tokenizer, and a card that is true."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import socket
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from huggingface_hub import ModelCard
from numpy.typing import NDArray
from transformers import AutoTokenizer, BertForPreTraining, pipeline

from bert_job.run_stages import ExportStage
from bert_trainer.checkpoints.model_export import export_model
from bert_trainer.checkpoints.tensorflow_import import read_tensorflow_checkpoint
from bert_trainer.dataset.shards.dataset_info import DatasetInfo
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.errors import FencedError, InputError
from bert_trainer.model.batch import make_batch
from bert_trainer.model.bert import Bert
from bert_trainer.output.metrics import read_metrics
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.model_export import export_name
from bert_trainer.training.session import Session
from in_process import train
from tiny_run import (
    PREDICTIONS,
    ROOT,
    SEQUENCE_LENGTH,
    TWO_LAYERS,
    VOCABULARY_SIZE,
    make_samples,
    pretrain_stage,
    run_config,
    write_dataset,
)

EVALUATE = {"kind": "evaluate", "sequence_length": SEQUENCE_LENGTH, "max_predictions_per_sequence": PREDICTIONS}
STAGES = [
    pretrain_stage("phase1", length={"steps": 3}),
    {"kind": "export", "name": "early"},
    pretrain_stage("phase2", length={"steps": 5}, global_batch_size=24),
    EVALUATE,
    {"kind": "export", "name": "export"},
    {"kind": "export", "name": "graph", "format": "onnx"},
    {"kind": "export", "name": "names", "format": "tensorflow"},
]
TOKENIZER = ["special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("cluster-volume-7")
    job = {"name": "tiny", "namespace": "secret-team", "uid": "uid-1"}
    return train(run_config(folder / "run", write_dataset(folder / "wiki"), model=TWO_LAYERS, stages=STAGES, job=job))


@pytest.fixture(scope="module")
def exports(session: Session) -> Path:
    return Path(session.config.output_folder) / "export"


@pytest.fixture(scope="module")
def samples() -> Samples:
    """Rows of unequal length, padded to 32 tokens."""
    rng = np.random.default_rng(5)
    return make_samples(9, rng, sequence_length=SEQUENCE_LENGTH, predictions=PREDICTIONS)


def inputs_of(samples: Samples) -> dict[str, NDArray[np.int64]]:
    return {
        "input_ids": samples.input_ids.astype(np.int64),
        "attention_mask": samples.input_mask.astype(np.int64),
        "token_type_ids": samples.segment_ids.astype(np.int64),
    }


def run_onnx(folder: Path, inputs: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.float32]]:
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def our_outputs(model: Bert, samples: Samples) -> tuple[NDArray[np.float32], NDArray[np.float32], float]:
    """Return the logits of real tokens (N, V) and of pairs (B, 2), and the training loss: the sum of both means."""
    batch = make_batch(samples, np.arange(len(samples.input_ids)))
    with torch.no_grad():
        hidden_ND = model.encode(batch)
        logits_NV = model.masked_lm_logits(hidden_ND)[:, :VOCABULARY_SIZE]
        sums = model(batch)
        loss = sums.masked_lm / batch.num_masked + sums.next_sentence / batch.num_rows
        return logits_NV.numpy(), model.next_sentence_logits(hidden_ND, batch).numpy(), float(loss)


def padded_labels(samples: Samples) -> NDArray[np.int64]:
    labels = np.full(samples.input_ids.shape, -100, dtype=np.int64)
    row, number = np.nonzero(samples.masked_lm_positions)
    labels[row, samples.masked_lm_positions[row, number]] = samples.masked_lm_ids[row, number]
    return labels


def test_every_stage_has_a_folder_of_its_own(exports: Path) -> None:
    assert sorted(path.name for path in exports.iterdir()) == ["huggingface", "huggingface-early", "onnx", "tensorflow"]
    found = {path.name: sorted(file.name for file in path.iterdir()) for path in exports.iterdir()}
    huggingface = sorted(["README.md", "config.json", "model.safetensors", *TOKENIZER])
    assert found["huggingface"] == found["huggingface-early"] == huggingface
    assert found["onnx"] == sorted(["README.md", "config.json", "model.onnx", "model.onnx.data", *TOKENIZER])
    assert found["tensorflow"] == [
        "README.md", "bert_config.json", "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index", "checkpoint",
        "vocab.txt",
    ]  # fmt: skip


def test_the_report_and_the_metrics_name_every_folder(session: Session, exports: Path) -> None:
    records = [record for record in read_metrics(exports.parent) if record["event"] == "exported"]
    assert [(record["stage"], record["format"], record["path"]) for record in records] == [
        ("early", "huggingface", f"{exports}/huggingface-early"),
        ("export", "huggingface", f"{exports}/huggingface"),
        ("graph", "onnx", f"{exports}/onnx"),
        ("names", "tensorflow", f"{exports}/tensorflow"),
    ]
    report = json.loads((exports.parent / "report.json").read_text())
    assert report["exports"] == {
        "early": f"{exports}/huggingface-early", "export": f"{exports}/huggingface", "graph": f"{exports}/onnx",
        "names": f"{exports}/tensorflow",
    }  # fmt: skip


def test_the_last_stage_of_a_format_has_the_formats_name() -> None:
    def folders(*formats: Any) -> list[str]:
        stages = [ExportStage(name=f"stage{number}", format=name) for number, name in enumerate(formats)]
        return [export_name(stages, number) for number in range(len(stages))]

    assert folders("huggingface") == ["huggingface"]
    assert folders("onnx", "huggingface") == ["onnx", "huggingface"]
    assert folders("onnx", "onnx", "huggingface", "onnx") == ["onnx-stage0", "onnx-stage1", "huggingface", "onnx"]


def test_hugging_face_and_onnx_runtime_compute_the_trained_models_logits_and_loss(
    session: Session, exports: Path, samples: Samples
) -> None:
    logits_NV, pairs_B2, loss = our_outputs(session.learner.model, samples)
    inputs, labels, is_real = inputs_of(samples), padded_labels(samples), samples.input_mask.astype(bool)
    theirs = BertForPreTraining.from_pretrained(exports / "huggingface").eval()
    with torch.no_grad():
        answer = theirs(
            **{name: torch.from_numpy(array) for name, array in inputs.items()},
            labels=torch.from_numpy(labels),
            next_sentence_label=torch.from_numpy(samples.next_sentence_labels.astype(np.int64)),
        )
    np.testing.assert_allclose(answer.prediction_logits.numpy()[is_real], logits_NV, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(answer.seq_relationship_logits.numpy(), pairs_B2, rtol=1e-5, atol=1e-5)
    assert float(answer.loss) == pytest.approx(loss, abs=1e-5)

    graph = run_onnx(exports / "onnx", inputs)
    assert list(graph) == ["prediction_logits", "seq_relationship_logits", "last_hidden_state"]
    np.testing.assert_allclose(graph["prediction_logits"][is_real], logits_NV, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(graph["seq_relationship_logits"], pairs_B2, rtol=1e-5, atol=1e-5)
    cross_entropy = torch.nn.functional.cross_entropy
    masked = cross_entropy(
        torch.from_numpy(graph["prediction_logits"]).flatten(0, 1), torch.from_numpy(labels).flatten()
    )
    is_random = torch.from_numpy(samples.next_sentence_labels.astype(np.int64))
    pairs = cross_entropy(torch.from_numpy(graph["seq_relationship_logits"]), is_random)
    assert float(masked + pairs) == pytest.approx(loss, abs=1e-5)


def test_padding_changes_nothing_in_the_graph(exports: Path, samples: Samples) -> None:
    together = run_onnx(exports / "onnx", inputs_of(samples))
    for row, length in enumerate(samples.input_mask.sum(axis=1)):
        alone = run_onnx(
            exports / "onnx", {name: it[row : row + 1, :length] for name, it in inputs_of(samples).items()}
        )
        for name, array in alone.items():
            cut = together[name][row : row + 1]
            expected = cut if array.ndim == 2 else cut[:, :length]
            np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-5, err_msg=f"{name} of row {row}")


def test_fill_mask_answers_as_the_trained_model_without_a_network(
    session: Session, exports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    answers = pipeline("fill-mask", model=str(exports / "huggingface"))("w1 W2 [MASK] w4", top_k=3)
    ids = np.array([[2, 6, 7, 4, 9, 3]], dtype=np.int32)
    none = np.zeros((1, 1), dtype=np.int32)
    row = Samples(ids, np.ones_like(ids, np.int8), np.zeros_like(ids, np.int8), none, none, np.zeros(1, np.int8))
    logits_NV, _, _ = our_outputs(session.learner.model, row)
    shares_V = torch.from_numpy(logits_NV[3]).softmax(-1)
    best = shares_V.topk(3)
    words = (exports / "huggingface" / "vocab.txt").read_text().split()
    assert [answer["token_str"] for answer in answers] == [words[number] for number in best.indices]
    assert [answer["score"] for answer in answers] == pytest.approx(best.values.tolist(), abs=1e-6)


@pytest.mark.parametrize("folder", ["huggingface", "onnx"])
def test_both_folders_hold_the_tokenizer_of_the_data_set(session: Session, exports: Path, folder: str) -> None:
    assert (exports / folder / "vocab.txt").read_bytes() == Path(session.config.dataset.vocabulary_path).read_bytes()
    tokenizer = AutoTokenizer.from_pretrained(exports / folder)
    assert tokenizer("w1 w2 w3 W4")["input_ids"] == [2, 6, 7, 8, 9, 3]


def test_weights_that_go_out_and_come_back_have_the_same_bits(session: Session, exports: Path, tmp_path: Path) -> None:
    start = {"path": str(exports / "huggingface"), "format": "huggingface"}
    dataset = Path(session.config.dataset.folder)
    config = run_config(tmp_path / "run", dataset, model=TWO_LAYERS, initial_checkpoint=start)
    again = Session.open(config, SingleRank(), attempt=1)
    again.close()
    trained = dict(session.learner.model.named_parameters())
    for name, parameter in again.learner.model.named_parameters():
        assert torch.equal(parameter, trained[name]), name
    export_model("huggingface", again.learner.model, again.data.vocabulary, tmp_path / "export", lower_case=True)
    written = (tmp_path / "export" / "model.safetensors").read_bytes()
    assert written == (exports / "huggingface" / "model.safetensors").read_bytes()


def test_weights_under_tensorflows_names_come_back_with_the_same_bits(session: Session, exports: Path) -> None:
    tensors, _ = read_tensorflow_checkpoint(exports / "tensorflow", session.learner.model)
    trained = dict(session.learner.model.named_parameters())
    assert tensors.keys() == trained.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, trained[name][: len(tensor)]), name
    assert len(tensors["embeddings.tokens.weight"]) == len(tensors["mlm_bias"]) == VOCABULARY_SIZE


@pytest.mark.parametrize("model", [{"architecture": "distilbert", "objective": "mlm"}, {"layer_norm_epsilon": 1e-5}])
def test_a_model_that_tensorflows_code_cannot_express_is_refused_before_training(
    session: Session, tmp_path: Path, model: dict[str, Any]
) -> None:
    stages = [pretrain_stage(), {"kind": "export", "format": "tensorflow"}]
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    with pytest.raises(
        InputError, match=r"stages\.1\.format: got .tensorflow.; allowed: tensorflow for architecture: bert"
    ):
        run_config(tmp_path / "run", Path(session.config.dataset.folder), stages=stages, model={**sizes, **model})


def test_the_card_says_what_was_trained_and_measured(session: Session, exports: Path) -> None:
    card = (exports / "huggingface" / "README.md").read_text()
    measured = next(it for it in reversed(list(read_metrics(exports.parent))) if it["event"] == "evaluated")
    assert (
        f"| evaluate | 32 | held-out documents | 24 | {measured['mlm_accuracy']:.4f} | {measured['mlm_loss']:.4f} |"
        in card
    )
    losses = {it["stage"]: it["loss"] for it in read_metrics(exports.parent) if it["event"] == "progress"}
    assert f"| phase1 | 32 | 16 | 3 | 48 | 0.001 | {losses['phase1']:.4f} | 110 samples in 3 shards |" in card
    assert f"| phase2 | 32 | 24 | 5 | 120 | 0.001 | {losses['phase2']:.4f} | 110 samples in 3 shards |" in card
    assert "| held out for evaluate | 24 samples in 1 shard |" in card
    assert "| layers | 2 |" in card
    count = sum(tensor.numel() for tensor in session.learner.model.parameters())
    count -= 3 * 32 + 3  # rows that only pad the table
    assert f"| parameters | {count:,} |" in card
    frozen = hashlib.sha256((exports.parent / "run-config.json").read_bytes()).hexdigest()
    assert f"| run configuration, SHA-256 | {frozen} |" in card
    checkpoint = exports.parent / "checkpoints" / "phase2-00000005" / "model.safetensors"
    assert "| checkpoint | phase2-00000005 |" in card
    assert f"| checkpoint's weights, SHA-256 | {hashlib.sha256(checkpoint.read_bytes()).hexdigest()} |" in card
    assert f"| torch | {version('torch')} |" in card


def test_the_card_of_an_earlier_export_knows_nothing_of_what_came_later(exports: Path) -> None:
    card = (exports / "huggingface-early" / "README.md").read_text()
    assert "| checkpoint | phase1-00000003 |" in card
    assert "phase2" not in card
    assert "These weights have not been evaluated." in card


LAST_TENTH = {"start": 0.9, "end": 1.0}
EVALUATION = {
    "every_steps": 4,
    "max_samples": None,
    "micro_batch_size": 8,
    "max_predictions_per_sequence": PREDICTIONS,
    "shards": None,
    "data_range": LAST_TENTH,
}


def test_the_card_says_what_the_training_found_at_its_end_and_where_it_began(session: Session, tmp_path: Path) -> None:
    """The target, one right token, is met after 4 of 8 steps."""
    own = pretrain_stage(
        length={"steps": 8},
        learning_rate=3e-2,
        warmup={"steps": 1},
        decay="linear",
        data_range={"start": 0.0, "end": 0.9},
        evaluation=EVALUATION,
        target={"masked_lm_accuracy": 0.001},
    )
    later = pretrain_stage("phase2", length={"steps": 5}, evaluation={**EVALUATION, "data_range": None})
    stages = [own, {"kind": "export", "name": "early"}, later, {"kind": "export", "name": "last"}]
    start = {"path": str(Path(session.config.output_folder) / "export" / "huggingface"), "format": "huggingface"}
    dataset = Path(session.config.dataset.folder)
    train(run_config(tmp_path / "run", dataset, model=TWO_LAYERS, stages=stages, initial_checkpoint=start))
    early, last = (
        (tmp_path / "run" / "export" / name / "README.md").read_text() for name in ("huggingface-early", "huggingface")
    )
    found = [it for it in read_metrics(tmp_path / "run") if it["event"] == "evaluated" and it["stage"] == "phase1"]
    figures = f"{found[-1]['mlm_accuracy']:.4f} | {found[-1]['mlm_loss']:.4f}"
    assert [(it["step"], it["target_met"]) for it in found] == [(4, "true")]
    assert f"| phase1 | 32 | 0.9 to 1 of the training shards | 11 | {figures} |" in early
    assert "| part of training shards for phase1 | 11 samples in 3 shards |" in early
    assert "phase2" not in early
    assert "| started from | huggingface, format huggingface |" in early
    # The last evaluation of phase2 was made before its last step.
    assert "These weights have not been evaluated." in last
    assert "| held out for phase2 | 24 samples in 1 shard |" in last


def test_the_hub_reads_the_cards_figures(exports: Path) -> None:
    data = ModelCard.load(exports / "huggingface" / "README.md").data
    assert (data.library_name, data.pipeline_tag) == ("transformers", "fill-mask")
    assert data.model_name == "tiny"
    measured = next(it for it in reversed(list(read_metrics(exports.parent))) if it["event"] == "evaluated")
    assert [(result.metric_type, result.metric_value) for result in data.eval_results] == [
        ("accuracy", measured["mlm_accuracy"]), ("accuracy", measured["nsp_accuracy"]), ("loss", measured["mlm_loss"])
    ]  # fmt: skip
    assert {result.dataset_name for result in data.eval_results} == {"wiki, held out"}


def test_a_data_set_that_another_job_made_says_its_case_and_its_text(session: Session, tmp_path: Path) -> None:
    dataset = tmp_path / "data"
    shutil.copytree(session.config.dataset.folder, dataset)
    settings = {
        "generator_version": 1, "vocabulary_size": 61, "vocabulary": "trained", "lower_case": False,
        "held_out_fraction": 0.1, "near_duplicate_similarity": 0.8, "dupe_factor": 5, "masked_lm_probability": 0.15,
        "short_sequence_probability": 0.1, "seed": 1, "num_shards": None,
    }  # fmt: skip
    counts = {
        "documents_read": 1400, "duplicates_dropped": 100, "documents_training": 1170, "documents_held_out": 130,
        "tokens_training": 98765, "tokens_held_out": 4321,
    }  # fmt: skip
    files = {f"training_{number:04d}.hdf5": rows for number, rows in enumerate((40, 40, 30))}
    length = {
        "sequence_length": 32, "max_predictions": 5, "folder": "seq_len_32_max_pred_5", "training": files,
        "held_out": {"held_out_0000.hdf5": 24}, "samples_training": 110, "samples_held_out": 24,
    }  # fmt: skip
    info = DatasetInfo.model_validate(
        {"complete": True, "settings": settings, "source": "/lustre/team-x/Wörter, /lustre/team-x/books.txt",
         "fingerprint": "f", "corpus_sha256": "c0ffee", "counts": counts, "lengths": [length]}
    )  # fmt: skip
    info.write(dataset)
    stages = [pretrain_stage(length={"steps": 3}), {"kind": "export"}]
    train(run_config(tmp_path / "run", dataset, stages=stages))
    folder = tmp_path / "run" / "export" / "huggingface"
    assert AutoTokenizer.from_pretrained(folder).tokenize("w1 W2") == ["w1", "[UNK]"]
    card = (folder / "README.md").read_text()
    assert "pretrained on Wörter, books.txt. Text is cased." in card
    assert "lustre" not in card
    for row in ("text, SHA-256 | c0ffee", "documents to train on | 1,170", "near-duplicates dropped | 100"):
        assert f"| {row} |" in card


def test_a_run_that_lost_its_folder_leaves_the_earlier_export(session: Session, exports: Path, tmp_path: Path) -> None:
    target = tmp_path / "export"
    shutil.copytree(exports / "huggingface", target)
    before = (target / "model.safetensors").stat().st_mtime_ns

    def lose() -> None:
        raise FencedError("claimed by attempt 2")

    for form in ("huggingface", "onnx", "tensorflow"):
        with pytest.raises(FencedError):
            export_model(
                form, session.learner.model, session.data.vocabulary, target, lower_case=True, before_commit=lose
            )
    assert (target / "model.safetensors").stat().st_mtime_ns == before
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_no_export_names_a_machine_or_a_place(exports: Path) -> None:
    secrets = (
        b"cluster-volume-7",
        b"secret-team",
        b"uid-1",
        socket.gethostname().encode(),
        b"/tmp",
        str(ROOT).encode(),
    )
    files = [path for path in exports.rglob("*") if path.is_file()]
    assert len(files) == 28
    assert [(path, secret) for path in files for secret in secrets if secret in path.read_bytes()] == []


@pytest.mark.parametrize("folder", ["huggingface", "onnx"])
def test_the_cards_commands_work(exports: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block = re.search(r"```python\n(.*?)```", (exports / folder / "README.md").read_text(), flags=re.DOTALL)
    assert block is not None
    monkeypatch.chdir(exports / folder)
    names: dict[str, Any] = {}
    exec(block[1], names)
    if folder == "onnx":
        assert names["logits"].shape[::2] == (2, VOCABULARY_SIZE)
    else:
        assert isinstance(names["model"], BertForPreTraining)
