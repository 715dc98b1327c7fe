"""Sentences with a hidden word: which are taken, what is hidden, and that the model's own answer is written down."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bert_trainer.dataset.shards import ShardFolder, write_shard
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.dataset.tokens.wordpiece import SPECIAL_TOKENS, Vocabulary, read_vocabulary
from bert_trainer.model.bert import Bert
from bert_trainer.output.filled_masks import FILLED_MASKS_FILE, read_filled_masks, write_filled_masks
from bert_trainer.training.device import Compute
from bert_trainer.training.evaluation import EvaluationSet
from bert_trainer.training.filled_masks import fill_masks, render_tokens
from random_rows import model_config, random_model

WORDS = [".", "the", "file", "was", "open", "##ed", "by", "a", "thread", "and", "then", "closed", "again", "!", "42"]
LENGTH = 40
COMPUTE = Compute(torch.device("cpu"), "fp32", "eager")

# The beginning and the end of a segment may be cut; between the first and the last full stop there are whole sentences.
ROW = "was closed . the file was open ##ed by a thread and 42 ! then the file"
SENTENCE = "the file was opened by a thread and 42!"


@pytest.fixture
def vocabulary(tmp_path: Path) -> Vocabulary:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *WORDS]) + "\n")
    return read_vocabulary(tmp_path / "vocab.txt")


def held_out(folder: Path, vocabulary: Vocabulary, *rows: str) -> EvaluationSet:
    """Return rows with one segment of text each and one mask, which is taken back before a sentence is shown."""
    shape = (len(rows), LENGTH)
    ids, mask, segments = np.zeros(shape, np.int32), np.zeros(shape, np.int8), np.zeros(shape, np.int8)
    positions, labels = np.zeros((len(rows), 1), np.int32), np.zeros((len(rows), 1), np.int32)
    for row, text in enumerate(rows):
        tokens = [vocabulary.tokens.index(word) for word in ["[CLS]", *text.split(), "[SEP]", "then", "[SEP]"]]
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
        segments[row, len(tokens) - 2 : len(tokens)] = 1
        positions[row], labels[row] = 5, ids[row, 5]
        ids[row, 5] = vocabulary.mask_id
    samples = Samples(ids, mask, segments, positions, labels, np.zeros(len(rows), np.int8))
    write_shard(folder / "held_out_0000.hdf5", samples, vocabulary_sha256="", generator_version=1)
    opened = ShardFolder.open(folder, split="held_out", sequence_length=LENGTH, max_predictions=1, vocabulary=None)
    return EvaluationSet.of(opened, micro_batch_size=2)


@pytest.fixture
def model(vocabulary: Vocabulary) -> Bert:
    return random_model(model_config(32), vocabulary.size, seed=1, dtype=torch.float32)


def test_a_whole_sentence_is_taken_and_one_of_its_words_hidden(
    tmp_path: Path, vocabulary: Vocabulary, model: Bert
) -> None:
    data = held_out(tmp_path, vocabulary, ROW)
    hidden = set()
    for seed in range(20):
        (mask,) = fill_masks(model, data, vocabulary, COMPUTE, seed=seed)
        assert f"{mask.before} {mask.truth} {mask.after}".replace(" !", "!").strip() == SENTENCE
        hidden.add(mask.truth)
        assert fill_masks(model, data, vocabulary, COMPUTE, seed=seed) == (mask,)
    # No part of a word, no number, no full stop.
    assert hidden <= {"the", "file", "was", "by", "a", "thread", "and"}
    assert len(hidden) > 3


def test_the_guesses_are_those_of_the_model_for_the_sentence_alone(
    tmp_path: Path, vocabulary: Vocabulary, model: Bert
) -> None:
    data = held_out(tmp_path, vocabulary, ROW, ROW, "the file was closed by a thread", ROW, ROW)
    found = fill_masks(model, data, vocabulary, COMPUTE, seed=3)
    assert len(found) == 3
    for mask in found:
        words = f"{mask.before} [MASK] {mask.after}".replace("opened", "open ##ed").replace("!", " !").split()
        tokens = torch.tensor([vocabulary.tokens.index(word) for word in ["[CLS]", *words, "[SEP]"]])
        expected = plain_probabilities(model, tokens)[words.index("[MASK]") + 1]
        shares, numbers = expected.topk(3)
        assert [token for token, _ in mask.guesses] == [vocabulary.tokens[number] for number in numbers]
        np.testing.assert_allclose([share for _, share in mask.guesses], shares, rtol=1e-4)


def plain_probabilities(model: Bert, tokens: torch.Tensor) -> torch.Tensor:
    """Return (N, V): of one row, by operations of PyTorch and the published equations."""
    tables = model.embeddings
    assert tables.segments is not None
    x = tables.norm(tables.tokens(tokens) + tables.positions(torch.arange(len(tokens))) + tables.segments.weight[0])
    for layer in model.layers:
        q, k, v = (
            projection(x).view(len(tokens), layer.num_heads, -1).transpose(0, 1)
            for projection in (layer.query, layer.key, layer.value)
        )
        weights = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)
        x = layer.attention_norm(x + layer.attention_output((weights @ v).transpose(0, 1).reshape(len(tokens), -1)))
        x = layer.ffn_norm(x + layer.ffn_out(torch.nn.functional.gelu(layer.ffn_in(x))))
    x = model.mlm_norm(torch.nn.functional.gelu(model.mlm_transform(x)))
    logits = x @ tables.tokens.weight.T + model.mlm_bias
    return logits[:, : model.vocabulary_size].detach().softmax(-1)


def test_rows_without_a_whole_sentence_are_passed_over(tmp_path: Path, vocabulary: Vocabulary, model: Bert) -> None:
    rows = ("was closed . the file !", "the file was open ##ed by a thread and then closed again")
    assert fill_masks(model, held_out(tmp_path, vocabulary, *rows), vocabulary, COMPUTE, seed=1) == ()


def test_a_sentence_with_an_unknown_word_is_passed_over(tmp_path: Path, vocabulary: Vocabulary, model: Bert) -> None:
    data = held_out(tmp_path, vocabulary, ROW.replace("thread", "[UNK]"))
    assert fill_masks(model, data, vocabulary, COMPUTE, seed=1) == ()


def test_pieces_and_punctuation_are_joined_as_people_write() -> None:
    assert render_tokens(["a", "file", "(", "open", "##ed", ")", ",", "isn", "'", "t", "it", "?"]) == (
        "a file (opened), isn't it?"
    )


def test_what_is_written_is_read_and_damage_is_nothing(tmp_path: Path, vocabulary: Vocabulary, model: Bert) -> None:
    found = fill_masks(model, held_out(tmp_path, vocabulary, ROW), vocabulary, COMPUTE, seed=1)
    write_filled_masks(tmp_path, found)
    (read,) = read_filled_masks(tmp_path)
    assert (read["before"], read["truth"]) == (found[0].before, found[0].truth)
    assert [it["token"] for it in read["guesses"]] == [token for token, _ in found[0].guesses]
    for damage in ("", "[]", '{"masks": [1]}', '{"masks": [{"before": "x"}]}'):
        (tmp_path / FILLED_MASKS_FILE).write_text(damage)
        assert read_filled_masks(tmp_path) == []
