"""A fine-tuning run of transformers' Trainer in a process of its own; its last line is a JSON object of seconds.

    python benchmarks/finetuning/peer.py SETTINGS.json

The model is BertForSequenceClassification with random weights. Rows are tokenized before the clock starts.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class EpochClock(TrainerCallback):
    """Sums up the seconds inside epochs: loading, steps, callbacks, and neither evaluations nor checkpoints."""

    def __init__(self) -> None:
        self.steps_s: list[float] = []
        self._at_s = 0.0

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock."""
        self._at_s = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Take the time of a step and of loading its batch."""
        now_s = time.perf_counter()
        self.steps_s.append(now_s - self._at_s)
        self._at_s = now_s


def read_rows(path: Path, tokenizer: BertTokenizerFast, length: int, *, is_padded: bool) -> list[dict[str, Any]]:
    """Tokenize a table of pairs."""
    with path.open() as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    found = tokenizer(
        [row["text"] for row in rows],
        [row["pair"] for row in rows],
        truncation=True,
        max_length=length,
        padding="max_length" if is_padded else False,
    )
    return [
        {**{name: values[number] for name, values in found.items()}, "label": int(row["label"])}
        for number, row in enumerate(rows)
    ]


def main() -> int:
    """Train and print the times."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(settings["threads"])
    tokenizer = BertTokenizerFast(vocab_file=settings["vocabulary"], vocab=settings["vocabulary"])
    train, held_out = (
        read_rows(Path(settings[name]), tokenizer, settings["length"], is_padded=settings["is_padded"])
        for name in ("train", "validation")
    )
    model = BertForSequenceClassification(BertConfig(vocab_size=settings["vocabulary_size"], **settings["model"]))
    clock = EpochClock()
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=settings["output"],
            use_cpu=True,
            bf16=settings["precision"] == "bf16",
            per_device_train_batch_size=settings["batch"],
            per_device_eval_batch_size=settings["batch"],
            num_train_epochs=settings["epochs"],
            learning_rate=settings["learning_rate"],
            warmup_steps=0,
            weight_decay=0.01,
            eval_strategy="epoch",
            # What our stage does as well: it keeps the best weights.
            save_strategy="epoch",
            save_total_limit=1,
            load_best_model_at_end=True,
            logging_steps=1,
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            seed=settings["seed"],
        ),
        train_dataset=train,
        eval_dataset=held_out,
        data_collator=DataCollatorWithPadding(tokenizer),
        callbacks=[clock],
    )
    began_at_s = time.perf_counter()
    trainer.train()
    whole_s = time.perf_counter() - began_at_s
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    tokens = sum(sum(row["attention_mask"]) for row in train)
    found = {"whole_s": whole_s, "steps_s": clock.steps_s, "tokens": tokens, "first_loss": losses[0]}
    print("\n" + json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
