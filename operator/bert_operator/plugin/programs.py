"""Runs ``bert-operator``, where it is installed: the verbs that need more than the standard library are its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bert_operator.errors import LaunchError

PACKAGE = "bert-pretrain-operator[operator]"


def run_operator_command(words: Sequence[str], needed_for: str, *, given: str | None = None) -> int:
    """Run ``bert-operator`` with these words, in this terminal; return its exit code.

    Args:
        words: What stands behind ``bert-operator``.
        needed_for: What cannot be done without it.
        given: Its standard input; None: this process's own.

    Raises:
        LaunchError: It is not installed.
    """
    # Beside the interpreter first: in a virtual environment that is not activated it is not in PATH.
    beside = Path(sys.executable).with_name("bert-operator")
    program = str(beside) if beside.is_file() else shutil.which("bert-operator")
    if program is None:
        raise LaunchError(
            f"{needed_for}: needs the rules of the job in Python, and bert-operator is not installed",
            hint=f"pip install '{PACKAGE}'; submit --dry-run=server has the API server judge the manifest instead",
        )
    return subprocess.run([program, *words], input=given, text=True, check=False).returncode
