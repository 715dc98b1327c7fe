"""What the ranks do about a shard that one of them cannot use: they end the attempt, or all go on without it.

Every rank reads whole shards, a step or two ahead of the others. Whoever cannot tells the others before the step that
needs the shard; so all leave it out from the same place on, and a resumed run does so from the place in its checkpoint.
"""

from __future__ import annotations

import logging
from enum import IntEnum

from bert_trainer.errors import DataUnreadable, InputError, StorageFailed, TrainerError
from bert_trainer.output.termination import report_error
from bert_trainer.parallel.world import PeerFailed, World, gather_numbers
from bert_trainer.system.atomic_files import is_storage_error, storage_errors
from bert_trainer.training.data_loader import StageReader
from bert_trainer.training.run_writer import RunWriter
from bert_trainer.training.stage_progress import StageProgress

logger = logging.getLogger(__name__)


class _Trouble(IntEnum):
    """What is wrong on a rank; the highest of all ranks counts."""

    NONE = 0
    SHARD = 1
    """Damaged, changed or missing: a matter of this file."""
    VOLUME = 2
    """The folder is gone, or reading fails: all files may be whole, and none is left out for that."""


def resolve_unreadable(
    error: TrainerError | None,
    reader: StageReader,
    progress: StageProgress,
    world: World,
    writer: RunWriter,
    *,
    skips: bool,
) -> None:
    """Leave out the shard that a rank cannot use, or end the attempt; collective.

    Args:
        error: This rank's; None where another one has it.
        reader: Goes on with the step that could not be read.
        progress: Learns what is left out.
        world: The ranks.
        writer: Told of it.
        skips: Whether a shard may be left out.

    Raises:
        DataUnreadable: a shard cannot be used, and is not to be left out, or is the last.
        StorageFailed: the folder is gone, or its volume is in trouble.
        PeerFailed: another rank has reported that.
    """
    trouble, shard = _Trouble.NONE, reader.failed_shard or 0
    if error is not None:
        is_volume = isinstance(error, StorageFailed) or is_storage_error(error.__cause__)
        trouble = _Trouble.VOLUME if is_volume else _Trouble.SHARD
        if trouble is _Trouble.SHARD and skips:
            logger.warning("%s", error.message)
        else:
            # What the volume is to blame for is named so; and before the others know: the first rank that leaves makes
            # mpirun end all of them.
            error = _as_storage_failure(error)
            report_error("bert-train", error)
    exit_code = 0 if error is None else error.exit_code
    found = gather_numbers(world, [trouble, shard, exit_code])
    rank = max(range(world.size), key=lambda rank: (found[rank][0], -rank))
    shard, exit_code = int(found[rank][1]), int(found[rank][2])
    path = progress.data.folder.paths[shard]
    if found[rank][0] == _Trouble.SHARD and skips:
        _leave_out(progress, shard)
        reader.restart(progress.data.order, progress.step)
        writer.left_out(progress.stage.name, progress.step, path, message=f"rank {rank} cannot use it")
        return
    if error is not None and trouble == found[rank][0]:
        raise error
    if world.rank == 0:
        kind = StorageFailed if found[rank][0] == _Trouble.VOLUME else DataUnreadable
        raise _exiting(kind(f"{path}: rank {rank} cannot read it; its own message says why"), exit_code)
    raise PeerFailed(exit_code)


def _leave_out(progress: StageProgress, shard: int) -> None:
    """Go on without a shard, unless it is the last.

    Raises:
        DataUnreadable: it is; names the first that could not be used.
    """
    paths, gone = progress.data.folder.paths, [it.shard for it in progress.data.order.left_out]
    try:
        progress.leave_out(shard)
    except InputError as error:
        first = paths[gone[0] if gone else shard]
        raise DataUnreadable(
            f"{first}: was the first shard that could not be used; {paths[shard]} is the last, and no other is left",
            hint="restore the dataset; the log says of each shard why it was left out",
        ) from error


def _as_storage_failure(error: TrainerError) -> TrainerError:
    try:
        # Whatever the step: the run has opened these files before.
        with storage_errors(lambda: True):
            raise error
    except TrainerError as named:
        return named


def _exiting(error: TrainerError, exit_code: int) -> TrainerError:
    error.exit_code = exit_code
    return error
