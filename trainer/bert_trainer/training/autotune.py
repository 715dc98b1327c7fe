"""``bert-train autotune``: shows what ``microBatchSize: auto`` would take, without a run."""

from __future__ import annotations

import tempfile

from bert_job.run_config import RunConfig, WorldConfig
from bert_job.run_stages import PrepareStage, PretrainStage
from bert_trainer.errors import InputError
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.micro_batch_size import Trials
from bert_trainer.training.session import Session


def show_sizes(config: RunConfig) -> list[str]:
    """Try the sizes of every pretraining stage as one rank of the run would, and return the lines to print.

    One process, whatever the run's ranks; nothing is written into the output folder.

    Raises:
        InputError: there is nothing to tune, or what ``Session.open`` raises.
    """
    if not any(isinstance(stage, PretrainStage) for stage in config.stages):
        raise InputError("stages: got no pretrain stage; allowed: at least one to tune")
    lines = []
    with tempfile.TemporaryDirectory(prefix="bert-autotune-") as folder:
        alone = config.model_copy(
            update={
                "output_folder": folder,
                "world": WorldConfig(ranks=1, hosts=1),
                "initial_checkpoint": None,
                "profile_steps": None,
                "logging": config.logging.model_copy(update={"tensorboard": False, "prometheus_port": None}),
                "stages": tuple(stage for stage in config.stages if not isinstance(stage, PrepareStage)),
            }
        )
        session = Session.open(alone, SingleRank(), attempt=1)
        trials = Trials(alone, session.learner, session.compute, config.world.ranks, config.world.hosts)
        try:
            for stage in alone.stages:
                if isinstance(stage, PretrainStage):
                    trial = trials.try_sizes(stage)
                    lines += [trials.render(stage, trial), f"microBatchSize: {trial.chosen}"]
        finally:
            session.close()
    return lines
