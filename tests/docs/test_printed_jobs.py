"""Every pretraining job that README and docs/ print learns: with a small budget it beats its unigram baseline.

What is printed is kept: optimizer, or none, learning rate and its schedule. What costs time is small: the manual that
comes with Python as text, the tiny model, 64 sequences of 32 tokens, one rank, some steps. Jobs that are then the same
share a run. Nothing is mocked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import yaml

from bert_job.model import PRESETS
from bert_job.run_config import DatasetConfig
from bert_job.run_stages import PrepareStage
from bert_operator.api.parsing.validation import advise, parse_job
from bert_operator.render.run_config import render_run_config
from bert_trainer.config.checks import parse_run_config
from bert_trainer.dataset.build.pipeline import build_dataset
from in_process import train
from sample_job import PREPARE, sample_document
from silent import Silent

Document = dict[str, Any]

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
LENGTH, PREDICTIONS, BATCH, STEPS = 32, 8, 64, 60
FACTOR = 1.5
"""How many times the unigram baseline a job's accuracy has to be. With LAMB the same jobs stay below 1.2."""
# Fragments of two recipes at 16,384 and 1,024 sequences, whose rates tests/docs/test_learning_rates.py compares.
PUBLISHED_BATCHES = "docs/guides/learning-rates.md"


def printed_jobs() -> Iterator[tuple[str, Document]]:
    """Yield page and document of every whole job that pretrains, and of every list of stages that does."""
    for page in PAGES:
        for text in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            # YAML reads 3e-3 as text; the job's reader does not.
            plain = re.sub(r"[\d.]+e-\d+", lambda match: f"{float(match[0]):f}", text)
            found = yaml.safe_load(plain) if "pretrain:" in text else None
            name = str(page.relative_to(ROOT))
            if isinstance(found, dict) and name != PUBLISHED_BATCHES and "..." not in text:
                yield name, found if "kind" in found else _as_job(found)


def _as_job(fragment: Document) -> Document:
    """Return the sample job with the stages of a fragment, behind a stage that prepares their data."""
    document = sample_document()
    document["spec"]["stages"] = [document["spec"]["stages"][PREPARE], *fragment["stages"]]
    return document


JOBS = list(printed_jobs())


def test_jobs_are_found() -> None:
    assert {page for page, _ in JOBS} >= {
        *("README.md", "docs/tutorials/laptop.md", "docs/guides/bare-metal.md", "docs/guides/export.md")
    }


@pytest.mark.parametrize(("page", "document"), JOBS, ids=[page for page, _ in JOBS])
def test_no_printed_job_is_remarked_on(page: str, document: Document) -> None:
    assert [said for said in advise(parse_job(document)) if "learning-rates" in said] == []


def small(document: Document, data: Path) -> Document:
    """Return the spec of a printed job with a small budget, and its shards and vocabulary in a folder.

    AdamW's rate goes with 1 / hidden size, so that of a wide model is raised as it gets narrow.
    """
    spec = json.loads(json.dumps(document["spec"]))
    (stage,) = (stage["pretrain"] for stage in spec["stages"] if "pretrain" in stage)
    preset = spec["model"]["preset"]
    rate = stage["learningRate"] * PRESETS[preset].hidden_size / PRESETS["tiny"].hidden_size
    kept = {name: stage[name] for name in ("warmup", "decay") if name in stage}
    batch = min(stage["globalBatchSize"], BATCH)
    own = {"learningRate": rate, "globalBatchSize": batch, "sequenceLength": LENGTH, "length": {"steps": STEPS}}
    return {
        "model": {"preset": "tiny"},
        **({"optimizer": spec["optimizer"]} if "optimizer" in spec else {}),
        "dataset": {"path": str(data)},
        "stages": [{"name": "phase1", "pretrain": {**kept, **own}}, {"name": "evaluate", "evaluate": {}}],
        "logging": {"everySteps": STEPS, "tensorboard": False},
        "output": {"path": "out"},
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the manual that comes with Python as shards, with a vocabulary of its own."""
    folder = tmp_path_factory.mktemp("printed-jobs")
    (folder / "text").mkdir()
    for name, text in topics.items():
        (folder / "text" / f"{name.replace('/', '-')}.txt").write_text(text)
    settings = {"vocabulary_size": 1024, "num_shards": 2, "num_processes": 1, "dupe_factor": 1}
    stage = PrepareStage.model_validate({"text": str(folder / "text"), **settings})
    dataset = DatasetConfig(folder=str(folder / "data"), vocabulary_file=None)
    build_dataset(stage, dataset, [(LENGTH, PREDICTIONS)], Silent())
    return folder / "data"


@pytest.fixture(scope="module")
def held_out(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Document], Document]:
    """Return what a report says of held-out documents, by the job; each job is run once."""
    found: dict[str, Document] = {}

    def run(document: Document) -> Document:
        whole = sample_document()
        whole["spec"] = small(document, data)
        key = json.dumps(whole, sort_keys=True)
        if key not in found:
            folder = tmp_path_factory.mktemp("run")
            config = render_run_config(parse_job(whole), uid="u", ranks=1, hosts=1, output_folder=str(folder))
            train(parse_run_config(config))
            found[key] = json.loads((folder / "report.json").read_text())["heldOut"]
        return found[key]

    return run


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("page", "document"), JOBS, ids=[page for page, _ in JOBS])
def test_every_printed_job_learns(page: str, document: Document, held_out: Callable[[Document], Document]) -> None:
    figures = held_out(document)
    assert figures["maskedLmAccuracy"] > FACTOR * figures["unigramBaseline"]
    assert figures["verdict"] is None
