"""What fine-tuning learns: ``make bench-finetune``.

    python benchmarks/finetuning/run.py [--quick] [--seeds 5] [--split 0]

Docstrings of installed packages are classified by package, from pretrained weights and from random ones, with the same
seeds and settings, beside a linear model of scikit-learn's on word counts and the majority class; a rule is planted in
a table; questions are asked about generated contexts. Everything is a finetune stage of ``bert-train``, two processes
at a time. Accuracies are those of each seed's best epoch on the held-out rows, so a little better than on rows that
nothing was chosen by; both starts have that in common. The model is pretrained once (``pretrained.py``).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from docstrings import PACKAGES, Row, Table, installed_versions, read_table
from generated import write_planted_rule, write_questions
from pretrained import STEPS, pretrained_model
from trainer_runs import (
    ROOT,
    TINY,
    Document,
    Trainer,
    describe_machine,
    finetune_stage,
    load,
    num_cores,
    result_of,
    run_document,
    table,
)

SEEDS = 5


def write_docstrings(folder: Path, rows: Table) -> Document:
    """Write both sides as JSON Lines and return the data of a stage."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, side in (("train", rows.training), ("validation", rows.held_out)):
        lines = [json.dumps({"text": row.text, "label": row.package}) for row in side]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    files = {name: str(folder / f"{name}.jsonl") for name in ("train", "validation")}
    return {**files, "columns": {"text": "text", "label": "label"}}


def bag_of_words(rows: Table) -> float:
    """Return the accuracy of logistic regression on weighted word counts."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    def split(side: tuple[Row, ...]) -> tuple[list[str], list[str]]:
        return [row.text for row in side], [row.package for row in side]

    model = make_pipeline(
        TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)), LogisticRegression(C=10, max_iter=1000)
    )
    return float(model.fit(*split(rows.training)).score(*split(rows.held_out)))


def docstring_stage(data: Document, start: str, seeds: int, epochs: int) -> Document:
    """Return a stage that classifies docstrings; ``start`` is its name as well."""
    return finetune_stage(
        start,
        data,
        start_from=start,
        sequence_length=64,
        global_batch_size=32,
        learning_rate=1e-3,
        epochs=epochs,
        seeds=list(range(1, seeds + 1)),
    )


def generated_stages(folder: Path, *, is_quick: bool) -> list[Document]:
    """Write both generated data sets and return their stages."""
    write_planted_rule(folder / "planted", *((200, 100) if is_quick else (4000, 1000)))
    write_questions(folder / "questions", *((100, 50) if is_quick else (2000, 300)))
    squad = {"folder": str(folder / "questions")}
    epochs = 1 if is_quick else 6
    settings = {"global_batch_size": 32, "learning_rate": 1e-3, "epochs": epochs}
    return [
        finetune_stage("planted", table(folder / "planted"), sequence_length=32, **settings),
        # One window holds a question and its context.
        finetune_stage(
            "questions", squad, task="squad", sequence_length=96, doc_stride=32, max_query_length=16, **settings
        ),
    ]


def main() -> int:
    """Print every figure and the joint line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a rehearsal: few rows, seeds and steps")
    parser.add_argument("--seeds", type=int, help=f"runs from each start (default {SEEDS})")
    parser.add_argument("--split", type=int, default=0, help="which modules are held out; the setting was chosen on 0")
    arguments = parser.parse_args()
    began_at_s = time.monotonic()
    seeds = arguments.seeds or (2 if arguments.quick else SEEDS)
    print(describe_machine(), flush=True)
    versions = installed_versions(ROOT / "requirements.lock")
    print("docstrings of " + ", ".join(f"{name} {number}" for name, number in versions.items()), flush=True)
    rows = read_table(split=arguments.split)
    modules = [len({row.module for row in side}) for side in (rows.training, rows.held_out)]
    print(
        f"{len(rows.training)} rows of {modules[0]} modules to train on, {len(rows.held_out)} of {modules[1]} others "
        f"held out, {len(PACKAGES)} classes",
        flush=True,
    )
    model = pretrained_model(20 if arguments.quick else STEPS)
    with tempfile.TemporaryDirectory(prefix="bench-finetune-") as name:
        folder = Path(name)
        data = write_docstrings(folder / "docstrings", rows)
        epochs = 1 if arguments.quick else 3
        # About the same work on both sides.
        pretrained, random = (docstring_stage(data, start, seeds, epochs) for start in ("pretrained", "random"))
        planted, questions = generated_stages(folder, is_quick=arguments.quick)
        records = _train_beside(folder, model, [[pretrained, planted], [random, questions]])
    found = {name: result_of(records, name) for name in ("pretrained", "random", "planted", "questions")}
    for result in found.values():
        print(result["message"])
    print(f"{(time.monotonic() - began_at_s) / 60:.1f} minutes, load {load():.1f}")
    # Of two samples of equal size, the larger spread.
    widest = max(found["pretrained"]["std"], found["random"]["std"])
    print(
        f"bench-finetune: pretrained={found['pretrained']['mean']:.3f} random={found['random']['mean']:.3f} "
        f"majority={found['random']['majority_accuracy']:.3f} spread={widest:.3f} "
        f"planted={found['planted']['accuracy']:.3f} squad_em={found['questions']['exact_match']:.3f} "
        f"bag_of_words={bag_of_words(rows):.3f}"
    )
    return 0


def _train_beside(folder: Path, model: Path, sides: list[list[Document]]) -> list[Document]:
    """Train the stages of each side one after the other, the sides at the same time; return all records."""
    threads = max(1, num_cores() // len(sides))
    trainers: list[Trainer] = []
    try:
        for number, stages in enumerate(sides):
            document = run_document(
                folder / f"run-{number}",
                model / "data/vocab.txt",
                stages,
                model=TINY,
                initial_checkpoint={"path": str(model), "format": "bert-trainer", "load": "weights"},
                logging={"every_steps": 20, "tensorboard": False},
            )
            trainers.append(Trainer(document, threads))
        return [record for trainer in trainers for record in trainer.wait()]
    finally:
        for trainer in trainers:
            trainer.stop()


if __name__ == "__main__":
    sys.exit(main())
