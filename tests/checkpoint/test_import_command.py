"""``bert-train import`` reads weights of other programs, says what it found, and writes a Hugging Face folder.

Inputs: folders and files of each format. Observed: what is printed, the exit code, the folder, and that a run starts
from it with the same weights, bit by bit.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnxruntime
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForPreTraining, BertModel, BertTokenizer

from bert_trainer.__main__ import main
from bert_trainer.checkpoints.conversion import import_weights
from bert_trainer.checkpoints.huggingface_export import huggingface_config
from bert_trainer.errors import InputError
from weight_sources import load, nvidia_tensors, small_model, write_huggingface, write_vocabulary


@pytest.fixture
def nvidia(tmp_path: Path) -> Path:
    """NVIDIA's results: a checkpoint; vocabulary and model's file beside it."""
    folder = tmp_path / "results"
    folder.mkdir()
    model = small_model(seed=1)
    torch.save({"model": nvidia_tensors(model), "optimizer": {}, "epoch": 3}, folder / "ckpt_8601.pt")
    write_vocabulary(folder)
    settings = huggingface_config(model)
    eleven = {key: settings[key] for key in settings if key not in ("architectures", "model_type", "layer_norm_eps")}
    (folder / "bert_config.json").write_text(json.dumps(eleven))
    return folder


def run(*arguments: str | Path) -> int:
    return main(["import", *map(str, arguments)])


def test_nvidia_s_checkpoint_becomes_a_folder_that_runs_start_from(
    tmp_path: Path, nvidia: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "models" / "bert"
    assert run(nvidia, "--format", "nvidia", "--output", output) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"Read {nvidia}/ckpt_8601.pt as nvidia",
        "  tensors: 46, with 1,607 parameters (float32)",
        "  model: bert, 2 layers x 8, 2 heads, feed-forward 16, 10 positions, gelu, mlm+nsp; "
        f"{nvidia}/bert_config.json",
        f"  vocabulary: 13 entries; {nvidia}/vocab.txt; 3 rows of padding left out",
        "  ignored: epoch, optimizer",
        f"Wrote {output}, for initialCheckpoint.format: huggingface",
    ]
    _, _, found, _ = load(output, "huggingface", small_model(), write_vocabulary(tmp_path))
    for name, tensor in small_model(seed=1).named_parameters():
        assert torch.equal(found[name], tensor), name
    theirs = BertForPreTraining.from_pretrained(output)
    assert torch.equal(theirs.bert.embeddings.word_embeddings.weight, found["embeddings.tokens.weight"][:13])
    assert BertTokenizer.from_pretrained(output).do_lower_case


def test_a_folder_of_hugging_face_comes_out_as_it_went_in(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path / "model", small_model(seed=1, objective="mlm"))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert run(folder, "--format", "huggingface", "--output", tmp_path / "copy") == 0
    before, after = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "copy"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    settings = [json.loads((place / "config.json").read_text()) for place in (folder, tmp_path / "copy")]
    assert settings[0] == settings[1]
    assert json.loads((tmp_path / "copy" / "tokenizer_config.json").read_text())["do_lower_case"] is False


def test_half_weights_are_widened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_huggingface(tmp_path / "model", small_model(seed=1))
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor.half() for name, tensor in tensors.items()}, folder / "model.safetensors")
    assert run(folder, "--format", "huggingface", "--output", tmp_path / "copy") == 0
    assert "(float16)" in capsys.readouterr().out
    for name, tensor in load_file(tmp_path / "copy" / "model.safetensors").items():
        assert torch.equal(tensor, tensors[name].half().float()), name


def test_files_from_elsewhere_are_named(tmp_path: Path, nvidia: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.move(nvidia / "ckpt_8601.pt", alone)
    options = ("--format", "nvidia", "--output", tmp_path / "out")
    assert run(alone / "ckpt_8601.pt", *options) == 2
    assert "got none of bert_config.json, config.json beside the weights" in capsys.readouterr().err
    options += ("--model-config", nvidia / "bert_config.json")
    assert run(alone / "ckpt_8601.pt", *options) == 2
    assert "hint: name it, as --vocabulary-file vocab.txt" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run(alone / "ckpt_8601.pt", *options, "--vocabulary-file", nvidia / "vocab.txt") == 0
    assert (tmp_path / "out" / "vocab.txt").read_text() == (nvidia / "vocab.txt").read_text()


def test_what_does_not_fit_is_refused_and_nothing_is_written(
    tmp_path: Path, nvidia: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert run(nvidia, "--format", "huggingface", "--output", output) == 2
    assert "got format: huggingface, but `ckpt_8601.pt` lies there: format: nvidia" in capsys.readouterr().err
    settings = json.loads((nvidia / "bert_config.json").read_text())
    (nvidia / "bert_config.json").write_text(json.dumps({**settings, "num_hidden_layers": 3}))
    assert run(nvidia, "--format", "nvidia", "--output", output) == 2
    assert "its tensors are not this model's: 16 missing" in capsys.readouterr().err
    assert not output.exists()
    output.mkdir()
    assert run(nvidia, "--format", "nvidia", "--output", output) == 2
    assert "exists already" in capsys.readouterr().err
    assert run(tmp_path / "nowhere", "--format", "nvidia", "--output", tmp_path / "new") == 2
    assert f"{tmp_path}/nowhere: got no weights there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_attention_heads": 3}, "num_attention_heads: got 3; allowed: a divisor of hiddenSize 8"),
        ({"vocab_size": 10**7}, "vocabulary_size: got 10000000; allowed: 13 to 4109, for the 13 entries of"),
        ({"vocab_size": 12}, "vocabulary_size: got 12; allowed: 13 to 4109"),
    ],
)
def test_a_description_of_no_model_or_another_s_is_refused(
    tmp_path: Path, nvidia: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, int], complaint: str
) -> None:
    file = nvidia / "bert_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    assert run(nvidia, "--format", "nvidia", "--output", tmp_path / "out") == 2
    message = capsys.readouterr().err
    assert f"{file}" in message
    assert complaint in message
    assert not (tmp_path / "out").exists()


def test_an_encoder_without_its_masked_lm_head_stays_one(
    tmp_path: Path, nvidia: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = {name: tensor for name, tensor in nvidia_tensors(small_model(seed=1)).items() if name.startswith("bert.")}
    torch.save({"model": tensors}, nvidia / "ckpt_9000.pt")
    fixed = (nvidia, "--format", "nvidia", "--output", tmp_path / "out")
    assert run(*fixed, "--to", "onnx") == 2
    assert "ckpt_9000.pt: got no mlm_bias, mlm_transform.weight" in capsys.readouterr().err
    assert run(*fixed) == 0
    assert "  heads: no masked-LM head, so the folder holds the encoder alone\n" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["BertModel"]
    assert not [name for name in load_file(tmp_path / "out" / "model.safetensors") if not name.startswith("bert.")]
    wanted, found = small_model(seed=1), BertModel.from_pretrained(tmp_path / "out")
    assert torch.equal(found.pooler.dense.weight, wanted.pooler.weight)  # type: ignore[union-attr]
    message, *_ = load(tmp_path / "out", "huggingface", small_model(), write_vocabulary(tmp_path))
    assert "; left as drawn: mlm_bias, " in message


def test_without_a_next_sentence_head_the_model_has_no_such_objective(
    tmp_path: Path, nvidia: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = nvidia_tensors(small_model(seed=1))
    torch.save({n: t for n, t in tensors.items() if "seq_relationship" not in n}, nvidia / "ckpt_9000.pt")
    assert run(nvidia, "--format", "nvidia", "--output", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "ckpt_9000.pt as nvidia (the newest of 2 in its folder)" in printed
    assert "gelu, mlm;" in printed
    assert "not used: pooler.bias, pooler.weight" in printed
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]


@pytest.mark.parametrize("output", ["new/..", "..", "new/../", ".", ""])
def test_an_output_that_leads_to_a_folder_that_exists_is_refused_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    source = write_huggingface(tmp_path / "source", small_model())
    home = tmp_path / "home"
    home.mkdir()
    (home / "kept.txt").write_text("kept")
    monkeypatch.chdir(home)
    with pytest.raises(InputError, match="exists already"):
        import_weights(source, "huggingface", Path(output))
    assert [path.name for path in home.iterdir()] == ["kept.txt"]


def test_an_import_leaves_alone_what_stands_beside_its_output(tmp_path: Path) -> None:
    source = write_huggingface(tmp_path / "source", small_model())
    beside = tmp_path / ".out.aside"
    beside.mkdir()
    (beside / "kept.txt").write_text("kept")
    import_weights(source, "huggingface", tmp_path / "out")
    assert (beside / "kept.txt").read_text() == "kept"
    assert {path.name for path in tmp_path.iterdir()} >= {".out.aside", "out"}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".out.") and path != beside]


def test_nvidia_s_checkpoint_becomes_a_graph(tmp_path: Path, nvidia: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "onnx"
    assert run(nvidia, "--format", "nvidia", "--to", "onnx", "--output", output) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"Wrote {output}, for ONNX Runtime and others that run its model.onnx"
    assert run(nvidia, "--format", "nvidia", "--output", tmp_path / "folder") == 0
    theirs = BertForPreTraining.from_pretrained(tmp_path / "folder").eval()
    tokens = BertTokenizer.from_pretrained(output)("w1 w2 g", "w3", return_tensors="pt")
    with torch.no_grad():
        wanted = theirs(**tokens)
    graph = onnxruntime.InferenceSession(output / "model.onnx")
    inputs = {given.name: tokens[given.name].numpy() for given in graph.get_inputs()}
    names = ["prediction_logits", "seq_relationship_logits"]
    found = [torch.from_numpy(values) for values in graph.run(names, inputs)]
    torch.testing.assert_close(found, [wanted[name] for name in names], rtol=1e-5, atol=1e-5)


def test_weights_go_to_tensorflow_and_back_bit_by_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_huggingface(tmp_path / "model", small_model(seed=1))
    assert run(folder, "--format", "huggingface", "--to", "tensorflow", "--output", tmp_path / "tf") == 0
    wanted = f"Wrote {tmp_path}/tf, for initialCheckpoint.format: tensorflow"
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == wanted
    assert printed[-2].startswith(
        "  activation: gelu, with the error function. Of `gelu` in a bert_config.json TensorFlow"
    )
    assert run(tmp_path / "tf", "--format", "tensorflow", "--output", tmp_path / "copy") == 0
    before, after = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "copy"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_what_tensorflow_cannot_express_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_huggingface(tmp_path / "model", small_model())
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "layer_norm_eps": 1e-5}))
    assert run(folder, "--format", "huggingface", "--to", "tensorflow", "--output", tmp_path / "tf") == 2
    message = capsys.readouterr().err
    assert "--to: got tensorflow; allowed: with an architecture of bert and a layer_norm_eps of 1e-12" in message
    assert f"got bert and 1e-05 in {folder}/config.json" in message
    assert not (tmp_path / "tf").exists()
    assert run(folder, "--format", "huggingface", "--to", "onnx", "--output", tmp_path / "onnx") == 0
