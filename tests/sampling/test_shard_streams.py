"""Every shard, split and length has its own random numbers, and every pass over a document its own masks."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from bert_trainer.dataset.sampling.shard_samples import build_shard, groups_of_shard, random_bits
from bert_trainer.dataset.shards import read_shard
from bert_trainer.dataset.tokens.block_files import write_tokens
from confidence import FIVE_SIGMA, chi_square_z, mean_z
from sampling_cases import coded_documents, masking_rule, original_rows, place, shard_task
from walks import bits_of, flat, samples_of

# Two sentences of 60 and 65 tokens fill a row: the tokens of a pair are forced, its masks are not.
# Its vocabulary holds the documents' tokens, which are above what two bytes hold.
RULE = replace(masking_rule(), vocabulary_size=100_000)
FORCED = coded_documents([[60], [65]])


def masks_by_row(shard: int, passes: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Original tokens and masked positions of every sample of one shard."""
    task = shard_task(passes=passes, short=0.0)
    samples = samples_of(FORCED, task, random_bits(12345, 128, "training", shard))
    rows = map(tuple, original_rows(samples))
    return list(zip(rows, map(tuple, samples.masked_lm_positions.tolist()), strict=True))


def test_every_pass_and_every_shard_masks_the_same_tokens_otherwise() -> None:
    shards = [masks_by_row(shard, passes=100) for shard in range(4)]
    found = [sample for shard in shards for sample in shard]
    assert len(found) == 4 * 100 * 2
    # There are some four texts (each sentence with the other one, or rarely with itself), and 10^22 ways to mask each.
    assert len({tokens for tokens, _ in found}) <= 4
    assert len({positions for _, positions in found}) == len(found)
    # Forced: the two texts are in all of the shards.
    common = set.intersection(*({tokens for tokens, _ in shard} for shard in shards))
    assert len(common) >= 2


def test_masks_of_different_shards_overlap_no_more_than_by_chance() -> None:
    rng = random.Random(0)
    shards = [masks_by_row(shard, passes=300) for shard in range(2)]
    by_text: list[dict[tuple[int, ...], list[tuple[int, ...]]]] = [{}, {}]
    for shard, texts in zip(shards, by_text, strict=True):
        for tokens, positions in shard:
            texts.setdefault(tokens, []).append(positions)
    text = max(by_text[0], key=lambda tokens: len(by_text[0][tokens]))
    first, second = by_text[0][text], by_text[1][text]
    rng.shuffle(second)
    overlaps = [len(set(a) & set(b) - {0}) for a, b in zip(first, second, strict=False)]
    assert len(overlaps) > 250
    # Of 125 places 19 are drawn twice: 19 * 19 / 125 are in both.
    assert abs(mean_z(overlaps, 19 * 19 / 125)) < FIVE_SIGMA


def test_the_same_documents_in_two_files_give_other_decisions(tmp_path: Path) -> None:
    documents = coded_documents([[7] * 60, [6] * 70, [9] * 40, [20] * 30])
    groups = np.repeat(np.arange(2, dtype=np.int32), len(documents))
    write_tokens(tmp_path / "tokens", flat([*documents, *documents]), groups, 2)
    tasks = [replace(shard_task(tmp_path, shard=shard, passes=3, num_groups=2), masking=RULE) for shard in range(2)]
    rows = [build_shard(task) for task in tasks]
    first, second = (read_shard(task.target) for task in tasks)
    assert [len(first), len(second)] == rows
    used = [{token for row in original_rows(samples) for token in row} for samples in (first, second)]
    assert used[0] == used[1] == {2, 3} | {sentence[0] for document in documents for sentence in document}
    texts = [set(map(tuple, original_rows(samples))) for samples in (first, second)]
    # The original scripts give every file the same seed: all of these would be equal. Some rows are by chance,
    # the first and the short ones: 8 % at most in 60 pairs of streams.
    assert len(texts[0] & texts[1]) < 0.25 * min(map(len, texts))
    before = tasks[0].target.read_bytes()
    assert build_shard(tasks[0]) == rows[0]
    assert tasks[0].target.read_bytes() == before


def test_streams_differ_by_seed_length_split_and_shard_and_by_nothing_else() -> None:
    keys = [(s, t, split, n) for s in (0, 1) for t in (128, 512) for split in ("training", "held_out") for n in (0, 1)]
    # Pairs of keys that would be one name if its parts ran into each other.
    keys += [(1, 12, "training", 81), (11, 2, "training", 81), (1, 128, "training", 11), (1, 128, "training", 1_1_1)]
    firsts = [int(random_bits(*key).words(1)[0]) for key in keys]
    assert len(set(firsts)) == len(keys)
    assert firsts == [int(random_bits(*key).words(1)[0]) for key in keys]


def test_streams_of_neighbouring_shards_are_independent() -> None:
    values = [int(random_bits(12345, 128, "training", shard).words(1)[0]) / 2**64 for shard in range(4000)]
    tenths = Counter(int(10 * value) for value in values)
    assert abs(chi_square_z([tenths[k] for k in range(10)], [400] * 10)) < FIVE_SIGMA
    assert abs(mean_z([(a - 0.5) * (b - 0.5) for a, b in pairwise(values)], 0.0)) < FIVE_SIGMA


def test_every_group_is_walked_over_as_often_as_asked_and_never_twice_for_one_shard() -> None:
    for num_shards, passes in [(8, 5), (5, 5), (500, 10), (3, 5), (1, 4)]:
        shards = [groups_of_shard(shard, num_shards, passes) for shard in range(num_shards)]
        assert Counter(group for groups in shards for group in groups) == dict.fromkeys(range(num_shards), passes)
        assert all(len(set(groups)) == min(num_shards, passes) for groups in shards)


def test_random_spans_come_from_the_document_s_own_group(tmp_path: Path) -> None:
    documents = coded_documents([[7] * 30] * 8)
    groups = np.array([0, 1] * 4, dtype=np.int32)
    write_tokens(tmp_path / "tokens", flat(documents), groups, 2)
    task = replace(shard_task(tmp_path, num_groups=2), groups=(0, 1, 0), masking=RULE)
    build_shard(task)
    sources = [{place(token)[0] for token in row if token > 3} for row in original_rows(read_shard(task.target))]
    assert sum(len(source) == 2 for source in sources) > 20
    assert all(len({document % 2 for document in source}) == 1 for source in sources)


def test_shuffling_loses_and_repeats_no_sample() -> None:
    # Rows are put together in blocks of 8192: this is more than one of them.
    task = shard_task(sequence_length=16, max_predictions=2, passes=4500, short=0.0)
    samples = samples_of(coded_documents([[5], [6]]), task, bits_of(1))
    assert len(samples) == 9000
    firsts = [row[1] for row in original_rows(samples)]
    assert Counter(firsts) == {10_000: 4500, 20_000: 4500}
    # In the order of their making the two would take turns.
    changes = sum(a != b for a, b in pairwise(firsts))
    assert 4000 < changes < 5000
    assert np.array_equal(samples.input_mask.sum(axis=1), [len(row) for row in original_rows(samples)])
