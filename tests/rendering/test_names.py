"""Names of children, by which people find a job's log among those of others. Values in, values out."""

from __future__ import annotations

import pytest

from bert_operator.names import MAX_JOB_NAME
from bert_operator.render.names import child_name, prefix_of

JOBS = ("bert-pretraining", "x-training", "launcher", "launch-training", "traininging", "l" * 38 + "aunch", "training")


@pytest.mark.parametrize("job", [*JOBS, "training" * 5, "launch" * 7])
def test_only_the_pod_with_the_log_has_the_word_that_logs_are_found_by(job: str) -> None:
    child = child_name(job, "training", 12, is_mpi=True)
    assert "launch" not in child
    assert "training" not in child
    assert len(child) <= MAX_JOB_NAME + len("-a12")
    alone = child_name(job, "training", 12, is_mpi=False)
    assert "launch" not in alone
    assert alone.count("training") == 1
    assert alone.endswith("-a12-training")
    assert "training" not in child_name(job, "prepare", 1, is_mpi=False)


@pytest.mark.parametrize("job", ["bert", *JOBS, "l" * MAX_JOB_NAME])
def test_where_the_usual_name_is_taken_the_uid_makes_another_as_short(job: str) -> None:
    names = {child_name(job, "training", 12, is_mpi=True, uid=uid) for uid in ("", "1-a", "1-b")}
    assert len(names) == 3
    for name in names:
        assert len(name) <= MAX_JOB_NAME + len("-a12")
        assert "launch" not in name
        assert "training" not in name
        assert prefix_of(name) == name.removesuffix("-a12")
        assert prefix_of(f"{name}-worker-3") == prefix_of(name)


def test_jobs_of_other_names_are_called_as_they_are() -> None:
    assert child_name("bert-base", "training", 1, is_mpi=False) == "bert-base-a1-training"
    assert child_name("bert-base", "training", 2, is_mpi=True) == "bert-base-a2"


def test_no_two_jobs_share_a_child() -> None:
    names = {child_name(job, "training", 1, is_mpi=True) for job in (*JOBS, "x-train", "bert-pretrain", "trainings")}
    assert len(names) == len(JOBS) + 3
