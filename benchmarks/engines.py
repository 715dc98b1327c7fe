"""What executes a training pass: plain operations, torch.compile, this trainer's kernels, ONNX Runtime; side by side.

    python benchmarks/engines.py [--rounds 5] [--lengths 128,512] [--layers 12] [--tokens 1024] [--skip compiled]

Each engine is a process with two threads that holds BERT-base (``--layers`` fewer) in fp32 with dropout 0.1, and runs
one forward and one backward pass when its turn comes; turns are interleaved, and the order of a round is drawn. Rows
are full ones, and those of text that every machine has, as ``bert-data build`` makes them. ``eager``, ``compiled`` and
``ort`` execute the same module, on rows padded to the longest of the micro-batch, and spend the same time on dropout's
masks, which is shown apart; ``ours`` computes real tokens alone and hashes dropout's bits in its kernels. All four
run under the torch that ONNX Runtime's training needs (``tools/ort.sh``), ``main`` is ``ours`` under the trainer's own.

The optimizer's update is the same for all and not in the figures. Rates are real tokens/s; a ratio is the median over
rounds of that to ``eager`` in the same round, with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ENGINES = ("eager", "compiled", "ours", "ort", "main")
BASELINE = ENGINES[0]
PREDICTIONS = {128: 20, 512: 76}
ENTRIES = 30522
THREADS = 2


def build_text(folder: Path, lengths: list[int]) -> None:
    """Make shards of every length from text that every machine has."""
    options = ["--output", str(folder), "--shards", "1", "--text", "builtin:python-docs", "--vocabulary-size", "8192"]
    for length in lengths:
        options += ["--length", f"{length}:{PREDICTIONS[length]}"]
    done = subprocess.run(
        [sys.executable, "-m", "bert_trainer.dataset", "build", *options], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)


# What a worker does: in this file, so that the environment with ONNX Runtime needs nothing but the trainer.


def serve(engine: str, shards: Path, layers: int, tokens: int) -> None:
    """Answer each line of standard input, ``LENGTH full`` or ``LENGTH real``, with the seconds of one pass as JSON."""
    import torch

    torch.set_num_threads(THREADS)
    run = _passes(engine, layers)
    batches: dict[tuple[int, str], Any] = {}
    for line in sys.stdin:
        length, rows = int(line.split()[0]), line.split()[1]
        key = (length, rows)
        first = key not in batches
        if first:
            batches[key] = _batch(shards, length, tokens // length, rows)
            # Twice: graphs are made in the first pass, memory is found for them in the second.
            for _ in range(2):
                run(batches[key])
        masks_s, seconds = run(batches[key])
        num_tokens = batches[key].num_tokens
        print(json.dumps({"seconds": seconds, "masks": masks_s, "tokens": num_tokens}), flush=True)


def _passes(engine: str, layers: int) -> Callable[[Any], tuple[float, float]]:
    """Return what runs one pass on a micro-batch: seconds of dropout's masks, and of all."""
    import torch

    from bert_job.run_config import ModelConfig
    from bert_trainer.model.backends.ort.engine import make_graph
    from bert_trainer.model.backends.ort.keep_masks import keep_masks
    from bert_trainer.model.bert import Bert
    from bert_trainer.model.padded import PaddedPretraining, PaddedRows

    config = ModelConfig(
        architecture="bert",
        hidden_size=768,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=512,
        hidden_activation="gelu",
        hidden_dropout=0.1,
        attention_dropout=0.1,
        initializer_range=0.02,
        layer_norm_epsilon=1e-12,
        vocabulary_size=None,
        vocabulary_pad_multiple=8,
        objective="mlm+nsp",
    )
    model = Bert(config, ENTRIES)
    model.initialize(1)
    graph: Any = PaddedPretraining(model)
    if engine == "compiled":
        graph = torch.compile(graph)
    if engine == "ort":
        graph = make_graph(graph, "fp32")

    def on_padded_rows(batch: Any) -> tuple[float, Any]:
        wanted = torch.cat([batch.masked_index_M, batch.row_starts_B])
        started_at_s = time.perf_counter()
        keeps = keep_masks(model, batch.dropout_keys(1, 1), batch.longest, wanted)
        masks_s = time.perf_counter() - started_at_s
        rows = PaddedRows.of(batch, wanted).tensors
        masked_lm, _, pairs, _ = graph(*rows, batch.masked_labels_M, batch.next_sentence_B, *keeps)
        return masks_s, masked_lm + pairs

    def on_real_tokens(batch: Any) -> tuple[float, Any]:
        sums = model(batch, batch.dropout_keys(1, 1))
        return 0.0, sums.masked_lm + sums.next_sentence

    forward = on_real_tokens if engine in ("ours", "main") else on_padded_rows

    def run(batch: Any) -> tuple[float, float]:
        started_at_s = time.perf_counter()
        masks_s, loss = forward(batch)
        loss.backward()
        seconds = time.perf_counter() - started_at_s
        for parameter in model.parameters():
            parameter.grad = None
        return masks_s, seconds

    return run


def _batch(shards: Path, length: int, rows: int, kind: str) -> Any:
    import numpy as np

    from bert_trainer.dataset.shards import ShardFolder
    from bert_trainer.dataset.shards.ragged import RaggedSamples
    from bert_trainer.dataset.tokens.wordpiece import read_vocabulary
    from bert_trainer.model.batch import make_batch

    rng = np.random.default_rng(1)
    numbers = np.arange(rows)
    if kind == "full":
        counts = np.full(rows, PREDICTIONS[length])
        places = [1 + np.sort(rng.permutation(length - 1)[:count]) for count in counts]
        lengths, tokens = np.full(rows, length), rng.integers(1000, ENTRIES, rows * length)
        pairs, labels = rng.integers(0, 2, rows, np.int8), rng.integers(1000, ENTRIES, counts.sum())
        samples = RaggedSamples(tokens, lengths, lengths // 2, pairs, counts, np.concatenate(places), labels)
        return make_batch(samples, numbers)
    folder = ShardFolder.open(
        shards / f"seq_len_{length}_max_pred_{PREDICTIONS[length]}",
        split="training",
        sequence_length=length,
        max_predictions=PREDICTIONS[length],
        vocabulary=read_vocabulary(shards / "vocab.txt"),
        masked=True,
    )
    samples = folder.read_ragged(0, slice(0, folder.rows[0]))
    return make_batch(samples.take(np.sort(rng.permutation(len(samples))[:rows])), numbers)


class Worker:
    """An engine in a process of its own."""

    def __init__(self, engine: str, python: Path, arguments: list[str]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "trainer"), "OMP_NUM_THREADS": str(THREADS)}
        command = [str(python), __file__, "--worker", engine, *arguments]
        self.engine = engine
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, case: str) -> dict[str, float]:
        """Return what one pass took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(case + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self.engine}: its process ended with {self._process.wait()}; see above")
        return json.loads(line)  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(workers: list[Worker], case: str, rounds: int) -> dict[str, list[float]]:
    """Return each engine's rates, in real tokens/s, by round; the first answers prepare, and count as a round."""
    rates: dict[str, list[float]] = {worker.engine: [] for worker in workers}
    masks: list[float] = []
    for number in range(rounds):
        for worker in random.Random(number).sample(workers, len(workers)):
            took = worker.run(case)
            rates[worker.engine].append(took["tokens"] / took["seconds"])
            if worker.engine == "ort":
                masks.append(took["masks"] / took["seconds"])
    print(
        f"{case}: {took['tokens']:.0f} real tokens; dropout's masks take {statistics.median(masks):.0%} of ort's pass"
    )
    for engine, found in rates.items():
        shares = [rate / base for rate, base in zip(found, rates[BASELINE], strict=True)]
        print(
            f"  {engine:<9} {statistics.median(found):7.0f} real tokens/s  x {statistics.median(shares):.2f} "
            f"({min(shares):.2f} to {max(shares):.2f}) of {BASELINE}",
            flush=True,
        )
    return {engine: [r / b for r, b in zip(found, rates[BASELINE], strict=True)] for engine, found in rates.items()}


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", default="128,512")
    parser.add_argument("--layers", type=int, default=12, help="of BERT-base's 12")
    parser.add_argument("--tokens", type=int, default=1024, help="of a padded micro-batch")
    parser.add_argument("--skip", default="", help="engines to leave out, with commas")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--shards", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve(arguments.worker, arguments.shards, arguments.layers, arguments.tokens)
        return
    lengths = [int(length) for length in arguments.lengths.split(",")]
    engines = [engine for engine in ENGINES if engine not in arguments.skip.split(",")]
    named = os.environ.get("BERT_TEST_ORT") or subprocess.check_output([ROOT / "tools/ort.sh"], text=True).strip()
    other = Path(named) / "bin/python"
    shares: dict[str, list[float]] = {engine: [] for engine in engines}
    with tempfile.TemporaryDirectory(prefix="bench-engines-") as scratch:
        build_text(Path(scratch), lengths)
        given = ["--shards", scratch, "--layers", str(arguments.layers), "--tokens", str(arguments.tokens)]
        workers = [Worker(it, Path(sys.executable) if it == "main" else other, given) for it in engines]
        try:
            for length in lengths:
                for rows in ("full", "real"):
                    for engine, found in compare(workers, f"{length} {rows}", arguments.rounds).items():
                        shares[engine] += found
        finally:
            for worker in workers:
                worker.close()
    print("ratios of real tokens/s to eager's, medians over all rounds and cases; fp32, BERT-base's widths")
    print("bench-engines: " + " ".join(f"{engine}={statistics.median(found):.2f}" for engine, found in shares.items()))


if __name__ == "__main__":
    main()
