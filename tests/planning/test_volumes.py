"""A message about a path names the volume that holds it, as the manifest calls it."""

from __future__ import annotations

from typing import Any

import pytest

from bert_operator.state.volumes import describe_volume
from job_changes import both, put
from sample_job import sample_job

CLAIM: dict[str, Any] = {"persistentVolumeClaim": {"claimName": "results"}}


@pytest.mark.parametrize(
    ("output", "message", "named"),
    [
        (CLAIM, "/mnt/output/run/checkpoints: full", "claim results"),
        (CLAIM, "/mnt/outputs: full", ""),
        ({**CLAIM, "mountPath": "/results"}, "/results: cannot be written", "claim results"),
        ({"nfs": {"server": "files", "path": "/export"}}, "/mnt/output: full", "NFS files:/export"),
        (CLAIM, "/mnt/dataset/seq_len_128: gone", "claim texts"),
        (CLAIM, "somewhere else", ""),
    ],
)
def test_the_volume_is_that_of_the_path(output: dict[str, Any], message: str, named: str) -> None:
    dataset = {"persistentVolumeClaim": {"claimName": "texts"}}
    job = sample_job(both(put("output", "volume", value=output), put("dataset", "volume", value=dataset)))
    assert describe_volume(job.spec, message) == named
