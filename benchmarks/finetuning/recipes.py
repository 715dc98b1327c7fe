"""Azure ML's fine-tuning recipe on this machine: ``make bench-recipes``.

    python benchmarks/finetuning/recipes.py [--steps 2] [--models large base distil] [--quick]

BERT from random weights on CoLA, as its notebook trains it on 2 nodes of 8 V100: micro-batches of 93 (large), 532
(base) and 512 rows twice over (distil), learning rate 3e-5, AdamW with betas 0.8 and 0.999 and decay 3e-7, warm-up
over 500 steps, 100 epochs with an evaluation after each, fp16. Here one process stands for the 16 ranks, in fp32
unless there is a GPU; micro-batches and all else are the recipe's. A few optimizer steps of one rank's rows are
measured and an evaluation of all held-out rows; the seconds of the whole recipe on this machine follow from both and
are marked as extrapolated. CoLA itself is not needed: its numbers of rows, with lengths of the same mean and random
words.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from generated import COLA_HELD_OUT_ROWS, COLA_LENGTHS, COLA_ROWS, draw_lengths, write_rows, write_word_vocabulary
from trainer_runs import (
    ADAMW,
    BASE,
    DISTIL,
    LARGE,
    TINY,
    Document,
    describe_machine,
    finetune_stage,
    load,
    run_document,
    table,
    train,
    training_rate,
)

RANKS, EPOCHS, LENGTH, ENTRIES = 16, 100, 128, 30522
OPTIMIZER = {**ADAMW, "beta1": 0.8, "weight_decay": 3e-7}


@dataclass(frozen=True, slots=True)
class Recipe:
    """What differs between the three models."""

    name: str
    model: Document
    micro_batch: int
    accumulation: int = 1

    @property
    def rank_batch(self) -> int:
        """Rows of one rank and step."""
        return self.micro_batch * self.accumulation


RECIPES = (
    Recipe("large", LARGE, 93),
    Recipe("base", BASE, 532),
    Recipe("distil", DISTIL, 512, accumulation=2),
)


def measure(recipe: Recipe, folder: Path, steps: int, precision: str) -> dict[str, float]:
    """Train some steps of one rank's rows and evaluate; return rates and seconds."""
    stage = finetune_stage(
        "cola",
        table(folder),
        start_from="random",
        sequence_length=LENGTH,
        global_batch_size=recipe.rank_batch,
        micro_batch_size=recipe.micro_batch,
        learning_rate=3e-5,
        warmup={"steps": 500},
        optimizer=OPTIMIZER,
        # A little less than so many steps of an epoch's, of which a run takes all that it begins.
        epochs=(steps - 0.01) / math.ceil(COLA_ROWS / recipe.rank_batch),
    )
    document = run_document(
        folder / recipe.name,
        folder / "vocab.txt",
        [stage],
        model=recipe.model,
        optimizer=OPTIMIZER,
        precision=precision,
        device="auto",
    )
    records = train(document)
    rate = training_rate(records, "cola")
    evaluation_s = next(it["seconds"] for it in records if (it["event"], it.get("when")) == ("evaluated", "during"))
    return {"rate": rate, "evaluation_s": evaluation_s, "whole_s": EPOCHS * (COLA_ROWS / rate + evaluation_s)}


def main() -> int:
    """Print the table and the joint line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--steps", type=int, default=2, help="optimizer steps; the first is not counted if there are more"
    )
    parser.add_argument("--models", nargs="+", choices=[recipe.name for recipe in RECIPES])
    parser.add_argument("--quick", action="store_true", help="a rehearsal: a tiny model in place of each")
    arguments = parser.parse_args()
    precision = "fp16" if torch.cuda.is_available() else "fp32"
    print(describe_machine(), flush=True)
    figures = []
    with tempfile.TemporaryDirectory(prefix="bench-recipes-") as name:
        folder = Path(name)
        write_word_vocabulary(folder / "vocab.txt", ENTRIES)
        for split, rows, seed in (("train", COLA_ROWS, 1), ("validation", COLA_HELD_OUT_ROWS, 2)):
            lengths = draw_lengths(COLA_LENGTHS, rows, seed)
            write_rows(folder / f"{split}.tsv", lengths, pairs=False, vocabulary_size=ENTRIES, seed=seed)
            print(f"{split}: {rows} rows of {statistics.mean(lengths):.1f} word pieces on average")
        print(
            f"{precision}, one process for {RANKS} ranks, {arguments.steps} step(s) measured, extrapolated to {EPOCHS} "
            "epochs\n| model | micro-batch | steps of the recipe | samples/s | evaluation, s | whole recipe, s "
            "(extrapolated) |\n| --- | --- | --- | --- | --- | --- |",
            flush=True,
        )
        for recipe in RECIPES:
            if arguments.models and recipe.name not in arguments.models:
                continue
            used = Recipe(recipe.name, TINY, recipe.micro_batch, recipe.accumulation) if arguments.quick else recipe
            found = measure(used, folder, arguments.steps, precision)
            accumulated = f" x {recipe.accumulation}" if recipe.accumulation > 1 else ""
            steps = EPOCHS * math.ceil(COLA_ROWS / (RANKS * recipe.rank_batch))
            print(
                f"| {recipe.name} | {recipe.micro_batch}{accumulated} | {steps} | {found['rate']:.3g} | "
                f"{found['evaluation_s']:.3g} | {found['whole_s']:.3g} |",
                flush=True,
            )
            figures.append(f"{recipe.name}_samples_per_s={found['rate']:.3g} {recipe.name}_s={found['whole_s']:.3g}")
    print(f"load {load():.1f}")
    print(f"bench-recipes: precision={precision} steps={arguments.steps} {' '.join(figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
