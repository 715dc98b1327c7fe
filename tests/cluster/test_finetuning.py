"""Jobs pretrain and fine-tune on real pods: two workers train one model, or one each; a killed rank changes nothing.

Inputs: a text and a table on the volume; a job of prepare, phase1, finetune with two seeds, and export; the same job
with a rank killed in the second epoch, beside it; a job that fine-tunes the first one's weights on ranks that do not
synchronize. Observed: the status, the records of the run, the best weights and results on the volume, the exported
files.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from job_cluster import Json, Namespace, poll
from real_jobs import PATIENCE_S, Clock, RealJob, followed, side_by_side, training_job

pytestmark = pytest.mark.timeout(600)
Say = Callable[[str], None]

ROWS, BATCH, EPOCHS, SEEDS = 960, 4, 2, 2
EPOCH_STEPS = ROWS // BATCH
"""Some seconds, so that a kill in the second epoch arrives there."""
COLOURS = ("violet", "blue", "green", "yellow", "orange", "red")
"""By their ratings, from the lowest."""

_LEFT = """
import hashlib, json, pathlib
folder = pathlib.Path('/volume/{job}')
stage = folder / 'finetune' / 'ratings'
sums = {{str(path.relative_to(stage)): hashlib.sha256(path.read_bytes()).hexdigest()
         for path in sorted(stage.rglob('*')) if path.suffix in ('.safetensors', '.csv')}}
records = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
evaluated = [record for record in records if record['event'] == 'evaluated' and record['stage'] == 'ratings']
exported = folder / 'export' / 'huggingface'
print(json.dumps({{
    'sums': sums,
    'results': json.loads((stage / 'results.json').read_text()),
    'best': json.loads((stage / 'best' / 'result.json').read_text()),
    'during': [record for record in evaluated if record['when'] == 'during'],
    'after': [record for record in evaluated if record['when'] == 'after'],
    'exported': json.loads((exported / 'config.json').read_text()) if exported.exists() else None,
}}))
"""
_STEP = """
import json, pathlib
path = pathlib.Path('/volume/{job}/metrics.jsonl')
# Without what is being written.
lines = path.read_text().split('\\n')[:-1] if path.exists() else []
steps = [record['step'] for record in map(json.loads, lines) if record.get('stage') == 'ratings' and 'step' in record]
print(max(steps, default=0))
"""


def files() -> dict[str, str]:
    """Return a text to pretrain on, and tables of sentences whose rating a word of theirs decides, to a tenth or so."""
    drawn = random.Random(5)  # noqa: S311 - a test's files, no secret
    nouns = [f"{first}{second}" for first in ("ri", "mo", "ta", "ke") for second in ("ver", "on", "ble", "ttle", "nt")]

    def sentence(colour: str) -> str:
        words = drawn.choices(nouns, k=4)
        return f"the {words[0]} of the {words[1]} has a {colour} {words[2]} near its {words[3]}"

    documents = ["\n".join(f"{sentence(drawn.choice(COLOURS)).capitalize()}." for _ in range(12)) for _ in range(200)]
    tables = {}
    for name, rows in (("train", ROWS), ("validation", 64)):
        colours = [drawn.randrange(len(COLOURS)) for _ in range(rows)]
        ratings = [(colour + drawn.random()) / len(COLOURS) for colour in colours]
        pairs = enumerate(zip(colours, ratings, strict=True))
        lines = [f"{number},{sentence(COLOURS[colour])},{rating:.3f}" for number, (colour, rating) in pairs]
        tables[f"{name}.csv"] = "\n".join(["id,text,rating", *lines]) + "\n"
    return {"text.txt": "\n\n".join(documents) + "\n", **tables}


def finetune_stage(**more: Any) -> Json:
    columns = {"text": "text", "label": "rating", "id": "id"}
    data = {"train": "task/train.csv", "validation": "task/validation.csv", "columns": columns}
    finetune = {"task": "regression", "data": data, "sequenceLength": 32, "globalBatchSize": BATCH, **more}
    return {
        "name": "ratings",
        "finetune": {"learningRate": 3e-4, "epochs": EPOCHS, "seeds": SEEDS, **finetune},
    }


def whole_job(name: str) -> Json:
    """Return a job from text to an exported model of ratings."""
    length = {"sequenceLength": 32, "globalBatchSize": 32, "learningRate": 1e-3, "length": {"steps": 40}}
    stages = [
        {"name": "prepare", "prepare": {"text": "task/text.txt", "vocabularySize": 256, "numShards": 2}},
        {"name": "phase1", "pretrain": length},
        finetune_stage(),
        {"name": "export", "export": {}},
    ]
    return training_job(name, dataset=None, stages=stages, checkpoint={"everySteps": 40, "keep": 2})


def left(job: RealJob) -> Json:
    found: Json = json.loads(job.namespace.python(_LEFT.format(job=job.name)))
    return found


def step(job: RealJob) -> int:
    """Return the newest step of the finetune stage on record."""
    return int(job.namespace.python(_STEP.format(job=job.name)))


def metrics(job: RealJob) -> dict[str, str]:
    """Return the figures of the finetune stage in the status."""
    found: dict[str, str] = job.results()["ratings"]["metrics"]
    return found


def figures(record: Json) -> Json:
    """Return what of a record does not depend on when it was made."""
    times = ("attempt", "attempt_uid", "run_s", "cpu_s", "seconds")
    return {name: value for name, value in record.items() if name not in times}


@pytest.fixture(scope="module")
def namespace(fresh: Callable[[str], Namespace], tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """A namespace whose volume holds the text and the table."""
    made, folder = fresh("finetuning"), tmp_path_factory.mktemp("task")
    made.make_claim()
    for name, content in files().items():
        (folder / name).write_text(content)
    made.put(folder, "task")
    return made


@dataclass(frozen=True, slots=True)
class End:
    """A job that has succeeded, and what there is to tell of it."""

    job: RealJob
    status: Json
    killed_at: int = 0
    worker: str = ""
    log: str = ""
    told: str = ""


def leave_alone(namespace: Namespace) -> End:
    namespace.apply(whole_job("finetuned"))
    job = RealJob(namespace, "finetuned")
    return End(job, job.wait_phase("Succeeded", timeout_s=240))


def kill_in_the_second_epoch(namespace: Namespace) -> End:
    namespace.apply(whole_job("finetuned-killed"))
    job = RealJob(namespace, "finetuned-killed")
    poll(lambda: step(job) > EPOCH_STEPS, "the second epoch", timeout_s=2 * PATIENCE_S)
    with followed(job) as log:
        clock = Clock()
        worker = job.kill_a_rank()
        killed_at = step(job)
        status = job.wait_phase("Succeeded", timeout_s=240)
        told = f"rank killed in step {killed_at}, succeeded {clock.s:.1f} s later"
        return End(job, status, killed_at, worker, log.end(), told)


@pytest.fixture(scope="module")
def end_of(namespace: Namespace) -> Iterator[Callable[[str], End]]:
    """Waits for the end of a job."""
    stories = {"undisturbed": leave_alone, "killed": kill_in_the_second_epoch}
    with side_by_side({name: functools.partial(story, namespace) for name, story in stories.items()}) as end:
        yield end


@pytest.fixture(scope="module")
def undisturbed(end_of: Callable[[str], End]) -> RealJob:
    return end_of("undisturbed").job


def test_two_workers_pretrain_fine_tune_two_seeds_and_export(undisturbed: RealJob, say: Say) -> None:
    found, result = left(undisturbed), undisturbed.results()["ratings"]
    say(result["message"])
    after = metrics(undisturbed)
    assert float(after["majority_spearman"]) == 0, "giving always the mean orders nothing"
    assert float(after["spearman"]) > 0.5, "a word of each row tells its rating"
    assert after["runs"] == str(SEEDS)
    assert {"mean", "std", "best_seed", "best_epoch"} <= set(after)
    assert [(record["seed"], record["epoch"]) for record in found["during"]] == [(42, 1), (42, 2), (43, 1), (43, 2)]
    assert [run["seed"] for run in found["results"]["runs"]] == [42, 43]
    assert found["best"]["seed"] in (42, 43)
    assert set(found["sums"]) == {"best/model.safetensors", "predictions/predictions-validation.csv"}
    assert found["exported"]["architectures"] == ["BertForSequenceClassification"]
    assert found["exported"]["problem_type"] == "regression"
    assert [*undisturbed.results()] == ["ratings"], "nothing else was evaluated"


def test_a_rank_that_is_killed_in_the_second_epoch_changes_nothing(
    undisturbed: RealJob, end_of: Callable[[str], End], say: Say
) -> None:
    killed = end_of("killed")
    job, killed_at = killed.job, killed.killed_at
    say(killed.told)
    assert EPOCH_STEPS < killed_at < 2 * EPOCH_STEPS, "the kill was to be in the second epoch"
    (failure,) = killed.status["failures"]
    assert (failure["kind"], failure["pod"]) == ("Infrastructure", killed.worker), f"{failure}\n{killed.log}"
    one, other = left(job), left(undisturbed)
    assert one["sums"] == other["sums"], "the best weights and their predictions"
    assert one["results"] == other["results"]
    assert one["best"] == other["best"]
    # Pearson's correlation is continuous in the model's numbers: another bit in the weights would show.
    assert [figures(record) for record in one["during"]] == [figures(record) for record in other["during"]]
    assert len(one["after"]) == 1
    assert metrics(job) == metrics(undisturbed)


def test_of_ranks_that_train_on_their_own_the_best_is_kept_and_named(
    undisturbed: RealJob, namespace: Namespace, say: Say
) -> None:
    spec = {
        "initialCheckpoint": {"path": "finetuned/checkpoints/phase1-00000040", "format": "bert-trainer"},
        "stages": [finetune_stage(synchronizeGradients=False, learningRateScaling="sqrtRanks", seeds=1, epochs=1)],
    }
    dataset = {"vocabularyFile": "finetuned/data/vocab.txt"}
    namespace.apply(training_job("finetuned-apart", dataset=dataset, **spec))
    job = RealJob(namespace, "finetuned-apart")
    job.wait_phase("Succeeded")
    found, result = left(job), job.results()["ratings"]
    say(result["message"])
    by_rank = {record["rank"]: record["spearman"] for record in found["during"]}
    assert set(by_rank) == {0, 1}, "every rank has evaluated a model of its own"
    assert {run["seed"] for run in found["results"]["runs"]} == {42, 43}
    best = found["best"]
    assert best["metrics"]["spearman"] == max(by_rank.values())
    assert by_rank[best["rank"]] == max(by_rank.values())
    assert f"rank {best['rank']}" in result["message"]
    assert metrics(job)["runs"] == "2"
