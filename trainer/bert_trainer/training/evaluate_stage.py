"""Evaluate stages: accuracy on samples that were not trained on, reported against a unigram baseline."""

from __future__ import annotations

from bert_job.run_stages import EvaluateStage
from bert_trainer.dataset.shards import ShardFolder
from bert_trainer.output.filled_masks import write_filled_masks
from bert_trainer.output.metrics import find_evaluations, read_metrics
from bert_trainer.training.evaluation import evaluate, unigram_baseline
from bert_trainer.training.filled_masks import fill_masks
from bert_trainer.training.run_data import RunData
from bert_trainer.training.session import Session
from bert_trainer.training.verdict import describe_verdict


def evaluate_and_report(session: Session, index: int, stage: EvaluateStage, *, when: str) -> None:
    """Measure the pretrained model and report it. Collective.

    An attempt that goes on after a crash does not repeat what an earlier one has reported.

    Args:
        session: Of the attempt.
        index: Of the stage.
        stage: What is reported.
        when: ``before`` or ``after`` training.
    """
    config, data, compute, writer = session.config, session.data, session.compute, session.writer
    if writer.on_rank_0(lambda: any(find_evaluations(read_metrics(writer.folder.path), stage.name, when))):
        return
    measured, model = data.evaluation[index], session.learner.model
    with compute.autocast():
        accuracy = evaluate(model, measured, session.world, compute.device)

    def report() -> None:
        if when == "after":
            # Before the record, behind which nothing is evaluated again.
            writer.folder.check_fence()
            masks = fill_masks(model, measured, data.vocabulary, compute, seed=config.seed)
            write_filled_masks(writer.folder.path, masks)
        # Counting the baseline reads shards.
        counted = _baseline_folder(data, index, stage.sequence_length)
        skips = config.dataset.on_unreadable_shard == "Skip"
        baseline = unigram_baseline(counted, measured, skip_unreadable=skips)
        verdict = None
        if when == "after":
            verdict = describe_verdict(accuracy, baseline, config, steps=data.steps_before(index))
        writer.evaluated(
            stage=stage.name,
            when=when,
            mlm_accuracy=accuracy.masked_lm,
            nsp_accuracy=accuracy.next_sentence,
            nsp_baseline=accuracy.next_sentence_baseline,
            mlm_loss=accuracy.masked_lm_loss,
            unigram_baseline=baseline,
            samples=accuracy.samples,
            masked_tokens=accuracy.masked_tokens,
            verdict=verdict,
        )

    writer.write(report)


def _baseline_folder(data: RunData, index: int, sequence_length: int) -> ShardFolder:
    """Return what the baseline counts: the training set of this length, else of the first phase.

    A job that only evaluates has none and counts the set itself.
    """
    trained = list(data.training.values())
    same_length = [other for other in trained if other.sequence_length == sequence_length]
    return next((other.folder for other in (*same_length, *trained)), data.evaluation[index].folder)
