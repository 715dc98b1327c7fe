"""A job of this machine as an object, for programs: what ``kubectl get -o json`` prints of a job, without its spec.

Other processes read it while the job runs, so it is replaced as a whole. Its folder may be one where others may write
too, such as a shared volume: no link of theirs is written through.
"""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import Any

from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.api.schema.status import JobStatus
from bert_operator.errors import LaunchError
from bert_operator.names import OUTPUT_ANNOTATION
from bert_operator.timestamps import render_time


class StatusFile:
    """The file of one job."""

    def __init__(self, path: Path, job: BertPretrainJob, uid: str, output: Path) -> None:
        """Prepare it; nothing is written yet. uid: in the run configuration. output: the output folder."""
        self._path = path
        self._was_written = False
        self._metadata: dict[str, Any] = {
            "name": job.metadata.name,
            "namespace": job.metadata.namespace,
            "uid": uid,
            "creationTimestamp": render_time(time.time()),
            "annotations": {OUTPUT_ANNOTATION: str(output)},
        }

    def write(self, status: JobStatus) -> None:
        """Replace the file. Later failures, such as a full disk, do not end the job.

        Raises:
            LaunchError: It cannot be written for the first time.
        """
        text = json.dumps({"metadata": self._metadata, "status": status.model_dump(mode="json", by_alias=True)})
        try:
            replace_text(self._path, text)
            self._was_written = True
        except OSError as error:
            if self._was_written:
                return
            raise LaunchError(
                f"--status {self._path}: cannot be written ({error.strerror})",
                hint="name a file in a folder that this user may write",
            ) from error


def replace_text(path: Path, text: str) -> None:
    """Replace a file atomically: readers see the old or the new content. Raises OSError."""
    # A name that nobody can guess, made anew (O_EXCL): no link lies in wait under it. The mode is the umask's.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
        partial.replace(path)
    # A full disk, or an interrupt: nobody else would know the file's name.
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
