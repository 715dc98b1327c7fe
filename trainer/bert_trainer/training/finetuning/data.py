"""A task's examples as rows of tokens, and a rank's micro-batches of a step.

Rank 0 reads the files and splits texts into tokens; the rows go to all ranks, texts stay. The order of the rows is a
function of seed and epoch alone, and which rows of a step a rank computes follows from their lengths, so any number of
ranks sees the same rows in the same steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from bert_job.run_stages import FinetuneStage, PrepareStage, Stage
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.tokens.wordpiece import MAX_UNKNOWN, Vocabulary, check_unknown, describe_unknown
from bert_trainer.errors import InputError
from bert_trainer.model.batch import Batch, make_batch
from bert_trainer.parallel.row_balancing import balance_rows
from bert_trainer.tasks.catalog import Task
from bert_trainer.tasks.examples import Split, TaskExamples, TextExample
from bert_trainer.tasks.reading import read_examples
from bert_trainer.tasks.rows import TaskRows, make_rows
from bert_trainer.tasks.token_rows import unknown_share
from bert_trainer.training.data_loader import ReadAhead, SampleOrder
from bert_trainer.training.finetuning.run_plan import RunPlan
from bert_trainer.training.finetuning.task_learner import TaskLearner
from bert_trainer.training.run_writer import RunWriter

Staged = Callable[[Batch], Batch]


@dataclass(frozen=True, slots=True)
class TextSplit:
    """Examples with their rows. On rank 0 alone."""

    split: Split
    rows: TaskRows


@dataclass(frozen=True, slots=True)
class TaskTexts:
    """What is needed to judge outputs. On rank 0 alone."""

    examples: TaskExamples
    validations: tuple[TextSplit, ...]
    tests: tuple[TextSplit, ...]
    lower_case: bool
    sha256: str
    """Of the classes, the rows to train on with their targets, and the examples to validate with."""


@dataclass(frozen=True, slots=True)
class StageRows:
    """What a finetune stage computes with, on every rank."""

    task: Task
    train: RaggedSamples
    targets: NDArray[np.generic]
    """Of the rows to train on: int64 (R,), float32 (R,), or int64 (R, 2)."""
    validations: tuple[RaggedSamples, ...]
    tests: tuple[RaggedSamples, ...]
    num_examples: tuple[int, ...]
    """To train on, then of every validation split."""


def check_data(stages: Sequence[Stage], writer: RunWriter, *, resumed_at: int | None) -> None:
    """Read the files of all finetune stages that are left, so that a mistake is found before the first step.

    resumed_at: the stage that the run goes on in; None where it begins.

    Raises:
        InputError: a file or a setting that depends on it is wrong. Collective.
    """
    # The stage that comes first reads its own files before it does anything else.
    first = resumed_at if resumed_at is not None else sum(isinstance(stage, PrepareStage) for stage in stages)

    def check() -> None:
        for number, stage in enumerate(stages):
            if isinstance(stage, FinetuneStage) and number > first:
                read_examples(stage.task, stage.data)

    if any(isinstance(stage, FinetuneStage) for stage in stages[first + 1 :]):
        writer.on_rank_0(check)


def open_data(
    index: int, stage: FinetuneStage, vocabulary: Vocabulary, lower_case_of_run: Callable[[], bool], writer: RunWriter
) -> tuple[StageRows, TaskTexts | None]:
    """Read a task and make its rows. Collective.

    Args:
        index: Of the stage.
        stage: Names the task and its files.
        vocabulary: Of the run.
        lower_case_of_run: Asked on rank 0, where the stage does not say how its texts are split.
        writer: Of the run.

    Returns:
        The rows, and on rank 0 the texts.

    Raises:
        InputError: a file is wrong.
    """
    texts: list[TaskTexts] = []

    def read() -> StageRows:
        examples = read_examples(stage.task, stage.data)
        lower_case = lower_case_of_run() if stage.lower_case is None else stage.lower_case

        def rows_of(split: Split) -> TaskRows:
            return make_rows(split, examples.task, stage, vocabulary, lower_case=lower_case)

        train = rows_of(examples.train)
        if not len(train.samples):
            raise InputError(f"stages.{index}.data: the split {examples.train.name!r} gives no row to train on")
        unknown = unknown_share(train.samples, vocabulary)
        check_unknown(
            f"stages.{index}.data: the split {examples.train.name!r}, with the model's vocabulary",
            len(train.samples.tokens),
            unknown,
            stage.max_unknown_share,
            "set maxUnknownShare: 1 in the finetune stage, or --max-unknown-share 1 by hand",
        )
        validations, tests = (
            tuple(TextSplit(split, rows_of(split)) for split in splits)
            for splits in (examples.validations, examples.tests)
        )
        texts.append(TaskTexts(examples, validations, tests, lower_case, _sha256_of(examples, train)))
        _report_data(writer, stage, examples, RunPlan.of(stage, len(train.samples)), train.num_lost_answers, unknown)
        return StageRows(
            task=examples.task,
            train=train.samples,
            targets=train.targets,
            validations=tuple(part.rows.samples for part in validations),
            tests=tuple(part.rows.samples for part in tests),
            num_examples=tuple(len(split.examples) for split in (examples.train, *examples.validations)),
        )

    rows = writer.on_rank_0(read)
    return rows, texts[0] if texts else None


def _sha256_of(examples: TaskExamples, train: TaskRows) -> str:
    """Return what changes when another model would be learnt or judged: not with the test sets, nor with notes."""
    found = hashlib.sha256(repr(examples.task.labels).encode())
    samples = train.samples
    for array in (samples.token_counts, samples.first_segment_counts, samples.tokens, train.targets):
        found.update(f"{array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    for split in examples.validations:
        for example in split.examples:
            found.update(repr(example).encode(errors="surrogatepass"))
    return found.hexdigest()


def _report_data(
    writer: RunWriter,
    stage: FinetuneStage,
    examples: TaskExamples,
    plan: RunPlan,
    num_lost_answers: int,
    unknown: float,
) -> None:
    counts = [f"{len(examples.train.examples):,} examples to train on ({plan.num_rows:,} rows)"]
    counts += [f"{len(it.examples):,} in {it.name}" for it in (*examples.validations, *examples.tests)]
    writer.event("task_read", stage=stage.name, message=", ".join(counts))
    notes = [*examples.notes]
    if unknown > MAX_UNKNOWN:
        notes.append(describe_unknown(unknown))
    if num_lost_answers:
        notes.append(f"of {num_lost_answers:,} examples to train on no row holds the whole answer")
    for split in examples.validations:
        labels = {example.label for example in split.examples if isinstance(example, TextExample)}
        if len(labels) == 1:
            notes.append(f"all examples of {split.name} have one label: no metric of it tells a model from a constant")
    warmup = stage.warmup.steps or 0
    if warmup >= plan.steps_per_run:
        # Not refused: Azure ML's recipe warms up for 500 steps, and its largest batches make runs of 100.
        notes.append(f"the warm-up of {warmup} steps is no shorter than a run, of {plan.steps_per_run} steps")
    for note in notes:
        writer.event("task_note", stage=stage.name, message=note)


def make_task_batch(
    samples: RaggedSamples, numbers: NDArray[np.int64], targets: NDArray[np.generic], staged: Staged
) -> Batch:
    """Lay rows end to end with their targets, as the backend wants them."""
    values = torch.from_numpy(np.ascontiguousarray(targets))
    return staged(replace(make_batch(samples, numbers), targets=values))


class StepReader(ReadAhead):
    """Lays out the rows of a run's steps, which are in memory."""

    def __init__(self, data: StageRows, plan: RunPlan, learner: TaskLearner, run_seed: int, first_step: int) -> None:
        """Prepare to read. first_step: of the run."""
        super().__init__(first_step, plan.steps_per_run)
        stage = learner.stage
        self._data, self._plan, self._world = data, plan, learner.world
        self._micro_batch_size = stage.micro_batch_size
        self._order = SampleOrder((len(data.train),), run_seed)
        self._staged = partial(
            learner.model.backend.stage_batch,
            sequence_length=stage.sequence_length,
            micro_batch_size=stage.micro_batch_size,
        )

    def numbers_of(self, step: int) -> NDArray[np.int64]:
        """Return the numbers of all rows of a step, in their order; over all ranks that train one model."""
        return self._order.sample_numbers(*self._plan.rows_of(step))

    def read_step(self, step: int) -> tuple[list[Batch], int]:
        """Return this rank's micro-batches, and the busiest rank's tokens; none where ranks outnumber a step's rows."""
        numbers, data, size = self.numbers_of(step), self._data, self._micro_batch_size
        loads = np.zeros(self._world.size, np.int64)
        own = numbers[balance_rows(data.train.token_counts[numbers], 0, loads) == self._world.rank]
        parts = (own[at : at + size] for at in range(0, len(own), size))
        batches = [make_task_batch(data.train.take(part), part, data.targets[part], self._staged) for part in parts]
        return batches, int(loads.max())
