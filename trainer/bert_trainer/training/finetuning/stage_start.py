"""What a finetune stage began with, where a later attempt could not tell: ``finetune/<stage>/begun.json``.

The frozen configuration names the task's files, not what is in them; and the number of ranks may change there.
"""

from __future__ import annotations

from bert_job.run_stages import FinetuneStage
from bert_trainer.config.json_files import read_json_file
from bert_trainer.errors import InputError
from bert_trainer.parallel.world import World
from bert_trainer.training.finetuning.best import stage_folder
from bert_trainer.training.run_writer import RunWriter

_BEGUN_FILE = "begun.json"
_START_OVER = "start over (output.ifExists: New)"


def check_stage_unchanged(
    stage: FinetuneStage, data_sha256: str | None, world: World, writer: RunWriter, *, has_begun: bool
) -> int:
    """Compare the stage's inputs with those it began with, or record them at its start. Collective.

    Args:
        stage: Of the run.
        data_sha256: Of the task (``TaskTexts``); on rank 0.
        world: The ranks.
        writer: Of the run.
        has_begun: Whether a checkpoint, best weights or an evaluation of the stage is there; rank 0's word counts.

    Returns:
        The number of ranks that the stage began with.

    Raises:
        InputError: it goes on with other files, or every rank trains its own model and their number is another.
    """

    def check() -> int:
        path = stage_folder(writer.folder.path, stage) / _BEGUN_FILE
        if not has_begun:
            writer.folder.write_json(path, {"data_sha256": data_sha256, "ranks": world.size})
            return world.size
        if not path.exists():
            raise InputError(
                f"{path}: is missing, but the stage has begun", hint=f"restore it from a copy, or {_START_OVER}"
            )
        begun = read_json_file(path)
        if begun.get("data_sha256") != data_sha256:
            raise InputError(
                f"{stage.name}: the task's files have changed since the stage began, or the vocabulary that they are "
                "read with",
                hint=f"restore them, or {_START_OVER}",
            )
        before = begun.get("ranks")
        if type(before) is not int or before < 1:
            raise InputError(f"{path}: ranks: got {before!r}; allowed: a number from 1", hint=_START_OVER)
        return before

    before, now = writer.on_rank_0(check), world.size
    if before != now and not stage.synchronize_gradients:
        raise InputError(
            f"{stage.name}: got {now} rank(s); allowed: {before}, as many as trained a model each when the stage began",
            hint=f"start {before} rank(s) again, or {_START_OVER}",
        )
    return before
