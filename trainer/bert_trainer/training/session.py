"""One attempt on one rank, as it is set up before the first step.

``Session.open`` goes by what is cheap to check: device and precision, folder, vocabulary, shards, model, checkpoint.
Whatever is wrong with a job is found before the first step. Stages, their objectives and the training loop are given
the session; what they are made of gets what it needs of it.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from bert_job.health import HealthSpec
from bert_job.run_config import RunConfig
from bert_job.run_stages import PretrainStage
from bert_trainer.checkpoints.checkpoint import Checkpoint, Environment
from bert_trainer.dataset.sampling.dynamic_masking import WORD_MASKS_VERSION
from bert_trainer.model.bert import Bert
from bert_trainer.output.run_folder import RunFolder
from bert_trainer.parallel.world import World, gather_texts, on_rank_0
from bert_trainer.training.device import Compute
from bert_trainer.training.learner import Learner
from bert_trainer.training.micro_batch_size import configured_micro_batch_sizes
from bert_trainer.training.profiling import Profiler, StepTimes, open_profiler, print_table, render_step_times
from bert_trainer.training.resume import resume
from bert_trainer.training.run_data import RunData, open_data
from bert_trainer.training.run_writer import RunWriter


@dataclass(frozen=True, slots=True)
class Session:
    """Everything that an attempt works with."""

    config: RunConfig
    """What the run began with, where this attempt was given something else."""
    world: World
    compute: Compute
    data: RunData
    learner: Learner[Bert]
    """Of pretraining."""
    writer: RunWriter
    resumed_from: Checkpoint | None
    """The checkpoint that the run goes on from; None where it begins."""
    profiler: Profiler
    hosts: tuple[str, ...]
    """Machine or pod of every rank."""
    micro_batch_sizes: dict[int, int]
    """By index of the stage; ``auto`` ones are missing until ``choose_micro_batch_sizes`` has measured them."""

    @classmethod
    def open(cls, config: RunConfig, world: World, *, attempt: int) -> Session:
        """Set everything up; weights come from the latest valid checkpoint, or are initialized. Collective.

        Raises:
            TrainerError: whatever is wrong with settings, folder, vocabulary or shards.
        """
        # First: it raises the processor's settings and the GPU's memory limit, which later allocations obey.
        compute = Compute.open(config, world)
        folder = on_rank_0(world, lambda: RunFolder.claim(config, attempt=attempt))
        config = folder.config
        data = open_data(folder, world)
        model = Bert(config.sizes, len(data.vocabulary.tokens))
        model.activation_checkpointing = config.activation_checkpointing
        # On the CPU, in fp32, before the model moves: the same seed gives the same weights on every device.
        model.initialize(config.seed)
        learner = Learner.of(model, compute, world, config.optimizer, config.reduction)
        writer = RunWriter(world, folder, _environment(config, world, compute), attempt=attempt)
        resumed_from = resume(config.stages, config.initial_checkpoint, data.vocabulary, learner, world, writer)
        return cls(
            config=config,
            world=world,
            compute=compute,
            data=data,
            learner=learner,
            writer=writer,
            resumed_from=resumed_from,
            profiler=_open_profiler(config, world, compute, writer),
            hosts=tuple(gather_texts(world, socket.gethostname())),
            micro_batch_sizes=configured_micro_batch_sizes(config.stages),
        )

    def resumed_in(self, index: int) -> Checkpoint | None:
        """Return the checkpoint that a stage goes on from; None where it begins."""
        at = self.resumed_from
        return at if at is not None and at.position.stage_index == index else None

    @property
    def first_stage(self) -> int:
        """Index of the stage that the run begins or goes on with."""
        return 0 if self.resumed_from is None else self.resumed_from.position.stage_index

    @property
    def health(self) -> HealthSpec:
        """Health policies and thresholds."""
        return self.config.health or HealthSpec()

    def close(self) -> None:
        """Close rank 0's files, after the checkpoint that is being written is in place."""
        try:
            self.profiler.close()
        finally:
            self.writer.close()


def _environment(config: RunConfig, world: World, compute: Compute) -> Environment:
    environment = Environment.current(
        world_size=world.size,
        precision=config.precision,
        device=compute.device,
        partitioning=config.optimizer.partitioning,
        compression=config.reduction.compression,
        collectives=config.collectives,
        engine=config.engine,
    )
    # What tells apart the masks of this release, where they are not those of every other.
    pretraining = (stage for stage in config.stages if isinstance(stage, PretrainStage))
    if any(stage.masking == "dynamic" and stage.whole_word_masking for stage in pretraining):
        environment.versions["masks of whole words"] = str(WORD_MASKS_VERSION)
    return environment


def _open_profiler(config: RunConfig, world: World, compute: Compute, writer: RunWriter) -> Profiler:
    def report(times: StepTimes, path: Path) -> None:
        writer.event("profiled", **times.to_record(), path=str(path))
        writer.write(lambda: print_table(render_step_times(times)))

    folder = Path(config.output_folder)
    return open_profiler(config.profile_steps, folder, rank=world.rank, device=compute.device, on_profile=report)
