"""What a process says when it ends: a sentence on standard error, a small record for the executor.

The record goes to the file that ``BERT_TERMINATION_LOG`` names (``/dev/termination-log`` in a pod) as a JSON
object with ``reason``, ``exitCode``, ``stage``, ``step``, ``checkpoint`` and ``message``. The first process to
leave takes the others down, so whoever knows the cause must have said it before any other rank may know.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from bert_trainer.errors import NAMED, Stopped, TrainerError


def tell_error(program: str, error: TrainerError) -> None:
    """Say once what has ended the run; an error that has been told stays silent the second time."""
    if error.told:
        return
    error.told = True
    stage, step, checkpoint = (
        (error.stage, error.step, error.checkpoint) if isinstance(error, Stopped) else (None, None, None)
    )
    write_termination(type(error).__name__, error.exit_code, str(error), stage=stage, step=step, checkpoint=checkpoint)
    sys.stderr.write(render_error(program, error))
    sys.stderr.flush()


def render_error(program: str, error: TrainerError) -> str:
    """Return the lines that say it; the last one names the reason where that is more than a wrong input.

    A launcher in another pod has nothing else to learn it from.
    """
    reason = type(error).__name__
    return f"{program}: {error}\n" + (f"reason: {reason}\n" if reason in NAMED else "")


def write_termination(
    reason: str,
    exit_code: int,
    message: str,
    *,
    stage: str | None = None,
    step: int | None = None,
    checkpoint: str | None = None,
) -> None:
    """Leave the record where the executor looks for it, if it does."""
    target = os.environ.get("BERT_TERMINATION_LOG")
    if target is None:
        return
    record = {
        "reason": reason,
        "exitCode": exit_code,
        "stage": stage,
        "step": step,
        "checkpoint": checkpoint,
        # A container's termination message is cut at 4096 bytes; cut JSON would be no JSON.
        "message": message[:2000],
    }
    # The disk may be what has failed; then the exit code and standard error have to do.
    with contextlib.suppress(OSError):
        # Written in place, not renamed: in a pod this file is a mount.
        Path(target).write_text(json.dumps(record))
