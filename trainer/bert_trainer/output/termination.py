"""How a process reports its end: a message on standard error and a termination record for the executor.

The record goes to the file that ``BERT_TERMINATION_LOG`` names (in a pod a scratch file, from which bert-pod writes
``/dev/termination-log``) as a JSON object with ``reason``, ``exitCode``, ``stage``, ``step``, ``checkpoint`` and
``message``. mpirun kills all ranks when the first one exits, so a rank that knows the cause has to report it before
any other rank can notice.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from bert_trainer.errors import NAMED, Stopped, TrainerError


def report_error(program: str, error: TrainerError) -> None:
    """Report the error that ends the run, once: a second call for the same error does nothing."""
    if error.is_reported:
        return
    error.is_reported = True
    stage, step, checkpoint = (
        (error.stage, error.step, error.checkpoint) if isinstance(error, Stopped) else (None, None, None)
    )
    write_termination(type(error).__name__, error.exit_code, str(error), stage=stage, step=step, checkpoint=checkpoint)
    sys.stderr.write(render_error(program, error))
    sys.stderr.flush()


def render_error(program: str, error: TrainerError) -> str:
    """Return the error's message; errors in ``NAMED`` end with a ``reason:`` line.

    A launcher in another pod sees nothing but these lines.
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
    """Write the termination record where the executor reads it; does nothing without an executor."""
    target = os.environ.get("BERT_TERMINATION_LOG")
    if target is None:
        return
    record = {
        "reason": reason,
        "exitCode": exit_code,
        "stage": stage,
        "step": step,
        "checkpoint": checkpoint,
        # Kubernetes truncates a termination message at 4096 bytes, and truncated JSON cannot be parsed.
        "message": message[:2000],
    }
    # The disk may be what failed; then exit code and standard error remain.
    with contextlib.suppress(OSError):
        # Written in place, not renamed: in a pod this file is a mount.
        Path(target).write_text(json.dumps(record))
