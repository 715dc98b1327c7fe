"""Who may write into an output folder. Inputs: run configurations; observed: files and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bert_job.run_config import RunConfig
from bert_trainer.errors import FencedError, InputError
from bert_trainer.output.run_folder import RunFolder, release_unused_claim
from tiny_finetune import finetune_stage
from tiny_run import pretrain_stage, run_config


def config(folder: Path, *, uid: str = "uid-1", name: str = "tiny", **changes: Any) -> RunConfig:
    job = {"name": name, "namespace": "default", "uid": uid}
    return run_config(folder, Path("data"), job=job, **changes)


def test_a_claim_records_job_uid_attempt_and_launcher(tmp_path: Path) -> None:
    RunFolder.claim(config(tmp_path / "out"), attempt=2)
    owner = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (owner["job"], owner["uid"], owner["attempt"]) == ("default/tiny", "uid-1", 2)
    assert owner["launcher"]


def owner_of(folder: Path) -> dict[str, Any]:
    owner: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return owner


def test_every_claim_of_one_attempt_is_a_further_run_of_it_and_a_new_attempt_counts_from_1(tmp_path: Path) -> None:
    claims = [("uid-1", 1), ("uid-1", 1), ("uid-1", 1), ("uid-1", 2), ("uid-1", 2), ("uid-2", 2)]
    found = []
    for uid, attempt in claims:
        folder = RunFolder.claim(config(tmp_path, uid=uid, if_exists="Resume"), attempt=attempt)
        assert owner_of(tmp_path)["attempt_run"] == folder.attempt_run
        found.append(folder.attempt_run)
    assert found == [1, 2, 3, 1, 2, 1]


def test_a_run_that_its_queue_has_suspended_loses_the_folder_to_the_next_one(tmp_path: Path) -> None:
    first = RunFolder.claim(config(tmp_path), attempt=1)
    RunFolder.claim(config(tmp_path), attempt=1)
    with pytest.raises(FencedError, match=r"claimed by attempt 1, run 2, of .*; run 1 of the attempt stops") as error:
        first.check_fence()
    assert error.value.exit_code == 4, "a machine that was cut off is nobody's mistake"


def test_the_worst_of_a_late_claim_is_that_the_attempt_is_lost_and_the_next_one_has_the_folder(tmp_path: Path) -> None:
    newest = RunFolder.claim(config(tmp_path), attempt=1)
    late = RunFolder.claim(config(tmp_path), attempt=1)  # by pods that were suspended before they had claimed
    with pytest.raises(FencedError):
        newest.check_fence()
    next_one = RunFolder.claim(config(tmp_path), attempt=2)
    with pytest.raises(FencedError, match="claimed by attempt 2 of"):
        late.check_fence()
    with pytest.raises(FencedError, match="attempt 2 has claimed it; this is attempt 1"):
        RunFolder.claim(config(tmp_path), attempt=1)
    next_one.check_fence()


def test_another_job_is_refused_by_name(tmp_path: Path) -> None:
    RunFolder.claim(config(tmp_path), attempt=1)
    for if_exists in ("Fail", "Resume", "New"):
        with pytest.raises(InputError, match="belongs to the job default/tiny, not to default/other") as error:
            RunFolder.claim(config(tmp_path, uid="uid-2", name="other", if_exists=if_exists), attempt=1)
        assert "choose another output folder" in str(error.value)


def test_an_earlier_run_is_refused_by_default(tmp_path: Path) -> None:
    RunFolder.claim(config(tmp_path), attempt=1)
    with pytest.raises(InputError, match="already holds a run of default/tiny") as error:
        RunFolder.claim(config(tmp_path, uid="uid-2"), attempt=1)
    assert "Resume" in str(error.value)


@pytest.mark.parametrize("if_exists", ["Fail", "Resume", "New"])
@pytest.mark.parametrize("name", ["finetune", "export"])
def test_results_of_no_run_are_not_overwritten(tmp_path: Path, name: str, if_exists: str) -> None:
    stages = [pretrain_stage(), {"kind": "export", "name": "out", "format": "huggingface"}]
    if name == "finetune":
        stages = [finetune_stage(tmp_path), stages[1]]
    (tmp_path / name / "huggingface").mkdir(parents=True)
    with pytest.raises(InputError) as refused:
        RunFolder.claim(config(tmp_path, stages=stages, if_exists=if_exists), attempt=1)
    assert str(refused.value).startswith(
        f"{tmp_path}: got a folder that holds {name}/ and no run; allowed: an empty folder, or that of a run"
    )
    assert [path.name for path in tmp_path.iterdir()] == [name], "nothing was written"
    (tmp_path / name / "huggingface").rmdir()
    RunFolder.claim(config(tmp_path, stages=stages, if_exists=if_exists), attempt=1)


def test_a_folder_is_in_nobodys_way_that_no_stage_writes_into(tmp_path: Path) -> None:
    for name in ("finetune", "export", "mine"):
        (tmp_path / name / "mine").mkdir(parents=True)
    RunFolder.claim(config(tmp_path), attempt=1)


def test_a_run_whose_claim_was_deleted_keeps_its_results(tmp_path: Path) -> None:
    wanted = config(tmp_path, stages=[pretrain_stage(), {"kind": "export", "name": "out", "format": "huggingface"}])
    RunFolder.claim(wanted, attempt=1)
    (tmp_path / "export" / "huggingface").mkdir(parents=True)
    (tmp_path / "run.json").unlink()
    RunFolder.claim(wanted, attempt=1).check_fence()


def test_resume_takes_the_folder_over_and_fences_the_one_before(tmp_path: Path) -> None:
    before = RunFolder.claim(config(tmp_path), attempt=1)
    before.check_fence()
    RunFolder.claim(config(tmp_path, uid="uid-2", if_exists="Resume"), attempt=1).check_fence()
    with pytest.raises(FencedError, match="claimed by attempt 1 of default/tiny") as error:
        before.check_fence()
    assert error.value.exit_code == 2, "tried again, it would take the folder back"


def test_a_later_attempt_of_the_same_run_needs_no_permission(tmp_path: Path) -> None:
    before = RunFolder.claim(config(tmp_path), attempt=1)
    RunFolder.claim(config(tmp_path), attempt=2)
    with pytest.raises(FencedError) as error:
        before.check_fence()
    assert error.value.exit_code == 4, "neither the program nor its input is at fault"
    with pytest.raises(FencedError, match="attempt 2 has claimed it; this is attempt 1"):
        RunFolder.claim(config(tmp_path), attempt=1)


def test_new_keeps_the_earlier_run_and_starts_in_an_empty_folder(tmp_path: Path) -> None:
    for uid in ("uid-1", "uid-2", "uid-3"):
        RunFolder.claim(config(tmp_path, uid=uid, if_exists="New"), attempt=1)
        (tmp_path / "metrics.jsonl").write_text(uid)
    archived = sorted(path.relative_to(tmp_path) for path in (tmp_path / "previous").glob("*/metrics.jsonl"))
    assert archived == [Path("previous/001/metrics.jsonl"), Path("previous/002/metrics.jsonl")]
    assert (tmp_path / "previous/001/metrics.jsonl").read_text() == "uid-1"
    assert (tmp_path / "previous/001/run.json").exists()


def test_a_move_that_was_interrupted_goes_on_into_the_same_archive(tmp_path: Path) -> None:
    RunFolder.claim(config(tmp_path), attempt=1)
    (tmp_path / "previous" / "001").mkdir(parents=True)
    (tmp_path / "previous" / "001" / "metrics.jsonl").write_text("moved before the kill")
    RunFolder.claim(config(tmp_path, uid="uid-2", if_exists="New"), attempt=1)
    archived = sorted(path.relative_to(tmp_path / "previous") for path in (tmp_path / "previous").glob("*/*"))
    assert archived == [Path("001/metrics.jsonl"), Path("001/run-config.json"), Path("001/run.json")]


def test_a_folder_may_move_with_the_dataset_in_it(tmp_path: Path) -> None:
    RunFolder.claim(run_config(tmp_path / "here", tmp_path / "here/data"), attempt=1)
    (tmp_path / "here").rename(tmp_path / "there")
    RunFolder.claim(run_config(tmp_path / "there", tmp_path / "there/data"), attempt=2)
    with pytest.raises(InputError, match=r"dataset\.folder: was \"data\", is "):
        RunFolder.claim(run_config(tmp_path / "there", tmp_path / "elsewhere"), attempt=3)


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    RunFolder.claim(config(tmp_path), attempt=1)
    changed = config(tmp_path, uid="uid-2", if_exists="Resume", seed=8, stages=[pretrain_stage(global_batch_size=32)])
    with pytest.raises(InputError, match="made with other settings") as error:
        RunFolder.claim(changed, attempt=1)
    assert "seed: was 7, is 8" in str(error.value)
    assert "stages.0.global_batch_size: was 16, is 32" in str(error.value)


def test_settings_that_have_come_since_count_as_what_the_run_was_made_with(tmp_path: Path) -> None:
    first = config(tmp_path)
    RunFolder.claim(first, attempt=1)
    (file,) = [path for path in tmp_path.glob("*.json") if "stages" in json.loads(path.read_text())]
    frozen = json.loads(file.read_text())
    del frozen["device"]
    file.write_text(json.dumps(frozen))
    RunFolder.claim(first, attempt=2)
    assert json.loads(file.read_text())["device"] == "cpu"


def test_who_runs_it_and_where_may_change(tmp_path: Path) -> None:
    RunFolder.claim(config(tmp_path), attempt=1)
    changed = {"world": {"ranks": 4, "hosts": 2}, "checkpoint": {"keep": 9}, "logging": {"every_steps": 5}}
    RunFolder.claim(config(tmp_path, uid="uid-2", if_exists="Resume", **changed), attempt=1)


def test_a_run_may_go_on_with_more_unknown_tokens(tmp_path: Path) -> None:
    stages = [{"kind": "prepare", "text": "a.txt", "max_unknown_share": share, "lengths": []} for share in (0.1, 1.0)]
    RunFolder.claim(config(tmp_path, stages=stages[:1]), attempt=1)
    RunFolder.claim(config(tmp_path, uid="uid-2", if_exists="Resume", stages=stages[1:]), attempt=1)


def test_a_dataset_may_get_more_lengths(tmp_path: Path) -> None:
    def stages(*lengths: int) -> list[dict[str, Any]]:
        added = [{"sequence_length": length, "max_predictions_per_sequence": 20} for length in lengths]
        return [{"kind": "prepare", "text": "builtin:python-docs", "lengths": added}]

    RunFolder.claim(config(tmp_path, stages=stages(128)), attempt=1)
    claimed = RunFolder.claim(config(tmp_path, uid="uid-2", if_exists="Resume", stages=stages(128, 512)), attempt=1)
    assert json.loads((tmp_path / "run-config.json").read_text())["stages"][0]["lengths"][1]["sequence_length"] == 512
    RunFolder.claim(claimed.config.model_copy(update={"if_exists": "Resume"}), attempt=2)
    other = config(tmp_path, uid="uid-3", if_exists="Resume", stages=[{**stages(128)[0], "dupe_factor": 10}])
    with pytest.raises(InputError, match=r"stages\.0\.dupe_factor: was 5, is 10"):
        RunFolder.claim(other, attempt=1)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="the output folder cannot be written"):
        RunFolder.claim(config(tmp_path / "file" / "out"), attempt=1)


DAMAGE = [b"{", b"", b"[1]", b"null", b'"text"', b"\xff\xfe", b"[" * 100_000]


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: repr(damage[:6]))
@pytest.mark.parametrize("name", ["run.json", "run-config.json"])
def test_a_damaged_file_is_named_with_a_remedy_that_works(tmp_path: Path, name: str, damage: bytes) -> None:
    RunFolder.claim(config(tmp_path), attempt=1)
    (tmp_path / name).write_bytes(damage)
    with pytest.raises(
        InputError, match=rf"{name}: (cannot be read|does not name)[\s\S]*hint: .*delete the file"
    ) as error:
        RunFolder.claim(config(tmp_path, uid="uid-2", if_exists="Resume"), attempt=1)
    assert "restore" not in str(error.value)
    (tmp_path / name).unlink()
    RunFolder.claim(config(tmp_path, uid="uid-2", if_exists="Resume"), attempt=1).check_fence()


@pytest.mark.parametrize(
    "damage",
    [
        {"stages": {}},
        {"stages": [1]},
        {"dataset": []},
        {"dataset": {"folder": 5}},
        {"contract_version": 0},
        {"seed": {"x": []}},
    ],
    ids=str,
)
def test_a_frozen_configuration_of_another_shape_is_other_settings(tmp_path: Path, damage: dict[str, Any]) -> None:
    RunFolder.claim(config(tmp_path), attempt=1)
    frozen = json.loads((tmp_path / "run-config.json").read_text())
    (tmp_path / "run-config.json").write_text(json.dumps({**frozen, **damage}))
    with pytest.raises(InputError, match=f"made with other settings[\\s\\S]*{next(iter(damage))}"):
        RunFolder.claim(config(tmp_path), attempt=2)


@pytest.mark.parametrize(
    "record",
    ['{"job": "default/tiny"}', '{"job": "default/tiny", "uid": 1, "attempt": "x", "launcher": null}'],
)
def test_an_owner_record_that_names_no_owner_is_named(tmp_path: Path, record: str) -> None:
    before = RunFolder.claim(config(tmp_path), attempt=1)
    (tmp_path / "run.json").write_text(record)
    with pytest.raises(InputError, match=r"run\.json: does not name the folder's owner"):
        RunFolder.claim(config(tmp_path), attempt=2)
    with pytest.raises(InputError, match=r"run\.json: does not name the folder's owner"):
        before.check_fence()


def entries(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_run_that_was_refused_before_it_saved_anything_leaves_the_folder_to_the_corrected_one(tmp_path: Path) -> None:
    wrong = config(tmp_path, if_exists="Fail")
    RunFolder.claim(wrong, attempt=1)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/vocab.txt").touch()
    # Of weights that the corrected run may not start from.
    (tmp_path / "tokenizer_config.json").write_text('{"strip_accents": false}')
    (tmp_path / "finetune/start").mkdir(parents=True)
    (tmp_path / "finetune/start/start.json").touch()
    release_unused_claim(wrong, attempt=1)
    assert entries(tmp_path) == ["data/vocab.txt"]
    assert not (tmp_path / "finetune").exists()
    # Other settings, under another uid: neither an earlier run nor its settings are in the way.
    RunFolder.claim(config(tmp_path, uid="uid-2", if_exists="Fail", seed=7), attempt=1)
    assert owner_of(tmp_path)["uid"] == "uid-2"


@pytest.mark.parametrize(
    ("saved", "uid", "attempt"),
    [
        pytest.param("checkpoints/phase1-00000004/manifest.json", "uid-1", 1, id="a checkpoint"),
        pytest.param("finetune/mrpc/results.json", "uid-1", 1, id="results"),
        pytest.param("metrics.jsonl", "uid-2", 1, id="another run's folder"),
        pytest.param("metrics.jsonl", "uid-1", 2, id="another attempt's"),
    ],
)
def test_a_folder_with_results_or_of_somebody_else_stays_claimed(
    tmp_path: Path, saved: str, uid: str, attempt: int
) -> None:
    RunFolder.claim(config(tmp_path), attempt=1)
    (tmp_path / saved).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / saved).touch()
    before = entries(tmp_path)
    release_unused_claim(config(tmp_path, uid=uid), attempt=attempt)
    assert entries(tmp_path) == before


def test_without_a_claim_there_is_nothing_to_give_up(tmp_path: Path) -> None:
    release_unused_claim(config(tmp_path / "nowhere"), attempt=1)
    assert not (tmp_path / "nowhere").exists()
