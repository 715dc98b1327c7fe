"""The output folder: its owner, the frozen configuration, and the fence around every commit.

``run.json`` names the job, its uid, the attempt, which run of that attempt it is, and the launcher that claimed the
folder last. Before anything is committed or deleted, its writer checks that it still owns the folder: an attempt that
was declared lost and comes back cannot harm its successor, and two jobs cannot share a folder.

A queue may suspend the pods of an attempt and start them again later: each start is a run of the attempt, counted here
from 1, since the folder is the one place that sees all of them in their order.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_job.foreign_text import printable
from bert_job.run_config import ModelConfig, ModelFile, RunConfig
from bert_job.upgrades import upgrade
from bert_trainer.config.checks import parse_run_config, resolve_model
from bert_trainer.errors import EXIT_BAD_INPUT, FencedError, InputError, StorageFailed, TrainerError
from bert_trainer.system.atomic_files import (
    disk_errors,
    is_outage,
    refuse_others_links,
    remove_partial_files,
    storage_errors,
    write_atomically,
    write_json_atomically,
)

logger = logging.getLogger(__name__)

_RUN_FILE = "run.json"
CONFIG_FILE = "run-config.json"
"""The frozen run configuration."""
_ARCHIVE = "previous"
_REMEDIES = {
    _RUN_FILE: "if no other run is using this folder, delete the file: the run then resumes from its latest "
    "checkpoint; otherwise choose another output folder",
    CONFIG_FILE: "delete the file: it is written again with the current settings, unchecked, so they must be those "
    "that the run began with; otherwise choose another output folder",
}
_TOKENIZER_FILE = "tokenizer_config.json"
"""How the run splits text (``training.run_data``)."""
_START = "finetune/start"
"""The weights that fine-tuning starts from, kept for attempts that resume."""
_RESULT_FOLDERS = frozenset({"finetune", "export"})
"""Which stages of these kinds fill, replacing what is there."""
AUTOTUNE_FOLDER = "autotune"
"""Measurements of the hardware: ``ifExists: New`` keeps them."""
_FOLDERS = (
    *("checkpoints/refused", "logs", "export", _START, "profile", "tensorboard"),
    *(AUTOTUNE_FOLDER, _ARCHIVE),
)
"""In the output folder: what runs write in, beside the folders of their stages."""

# What may change between attempts: who runs it and where, not what is learnt. The number of ranks may, since sample
# order and dropout don't depend on it.
_MUTABLE = (
    "job",
    "output_folder",
    "if_exists",
    "world",
    "model.config_file",  # where the sizes came from; they themselves are compared
    "device",
    "collectives",
    "activation_checkpointing",
    "engine",
    "dataset.on_unreadable_shard",
    "gpu_memory_limit_gib",
    "optimizer.partitioning",
    "reduction",
    "checkpoint",
    "logging",
    "profile_steps",
    "health",  # a run that was stopped may go on with another policy
)


class TakenOverError(FencedError):
    """Another run of the same job owns the output folder.

    Exit code 2, so that it is not retried: a retry would claim the folder back, and the two would take turns.
    """

    exit_code = EXIT_BAD_INPUT


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A claimed output folder."""

    path: Path
    claim_record: str
    """The exact text of ``run.json`` while the folder is ours."""
    config: RunConfig
    """The configuration that the run continues with."""
    attempt_run: int = 1
    """Which run of its attempt: more than 1 where a queue has suspended the attempt's pods and started them again."""
    changed: tuple[str, ...] = ()
    """Settings that changed since the last claim and only affect the rounding of sums, as ``name before -> now``."""

    @classmethod
    def claim(cls, config: RunConfig, *, attempt: int) -> RunFolder:
        """Claim the folder for one process (rank 0 of a run, or a data build) of one attempt.

        An earlier run of the same job is resumed, archived under ``previous/`` or refused, as ``config.if_exists``
        says; an earlier attempt with our own uid is always resumed, and so is an earlier run of our own attempt.

        Raises:
            InputError: the folder belongs to another job, or to an earlier run that must not be touched, or
                was made with other settings, or holds results of no run.
            FencedError: a later attempt has claimed it.
            StorageFailed: its volume is in trouble; with exit code 4 where an attempt with our uid has written there,
                so that the place and its rights cannot be wrong.
        """
        path = Path(config.output_folder)
        with storage_errors(lambda: _was_claimed(path, config)):
            return cls._claim(path, config, attempt)

    @classmethod
    def _claim(cls, path: Path, config: RunConfig, attempt: int) -> RunFolder:
        _make_folder(path)
        refuse_others_links(path, _list_written(path, config))
        owner = _read_owner(path / _RUN_FILE)
        job = f"{config.job.namespace}/{config.job.name}"
        if owner is not None:
            _check_owner(path, owner, job, config, attempt)
            if owner["uid"] != config.job.uid and config.if_exists == "New":
                _archive(path)
        elif not (path / CONFIG_FILE).exists():
            _refuse_foreign_results(path, config)
        config, changed = _freeze(path / CONFIG_FILE, config)
        # Unique even where host names and process ids repeat, as in containers of one image.
        launcher = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        run = _count_run(owner, config.job.uid, attempt)
        record = {
            "job": job,
            "uid": config.job.uid,
            "attempt": attempt,
            "attempt_run": run,
            "launcher": launcher,
        }
        text = json.dumps(record, indent=2) + "\n"
        # Last: from here on every earlier claimant fails its fence. Two that claim at the same moment both get here;
        # the later rename wins, and the other one stops at its first commit.
        write_atomically(path / _RUN_FILE, text.encode())
        return cls(path, text, config, run, changed)

    def check_fence(self) -> None:
        """Check that the folder is still ours; call it right before every commit and deletion.

        Raises:
            FencedError: another attempt has claimed it since.
            TakenOverError: another run has.
        """
        path = self.path / _RUN_FILE
        try:
            current = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            if not self.path.is_dir():
                raise StorageFailed(
                    f"{self.path}: the output folder is gone", hint="check that its volume is mounted on this node"
                ) from error
            raise FencedError(f"{path}: can no longer be read ({error})") from error
        if current == self.claim_record:
            return
        owner = _read_owner(path)
        if owner is None:
            raise FencedError(f"{path}: was deleted, so the folder is no longer this attempt's")
        which = f"attempt {owner['attempt']}"
        if (run := owner.get("attempt_run", 1)) > 1:
            which += f", run {run},"
        claimed = f"{self.path}: claimed by {which} of {owner['job']} ({owner['launcher']})"
        if owner["uid"] != json.loads(self.claim_record)["uid"]:
            raise TakenOverError(
                f"{claimed}, another run; this one stops without touching it",
                hint="let that run continue, or stop it first; two runs cannot share an output folder",
            )
        own = json.loads(self.claim_record)
        what = f"run {self.attempt_run} of the attempt" if owner["attempt"] == own["attempt"] else "this attempt"
        raise FencedError(f"{claimed}; {what} stops without touching it")

    def write_json(self, path: Path, document: dict[str, Any]) -> None:
        """Write one of the run's records, and its folder, unless a later attempt has claimed the run since.

        Raises:
            FencedError, TakenOverError: as ``check_fence``.
            TrainerError, InputError: as ``atomic_files.disk_errors``.
        """
        self.check_fence()
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(path, document)

    def remove_leftovers(self) -> None:
        """Delete what an attempt that was killed while it wrote a record or results left of them."""
        self.check_fence()
        for folder in (self.path, *self.path.glob("finetune/*/")):
            remove_partial_files(folder)


def release_unused_claim(config: RunConfig, *, attempt: int) -> None:
    """Release the claim of a run that was refused for its input before it had saved anything.

    Its records would refuse the corrected run in turn: as one that holds the folder, or as made with other settings.
    What a data build has finished stays, and the next one keeps what fits. Does nothing where the folder is not ours.
    """
    path = Path(config.output_folder)
    with contextlib.suppress(OSError, TrainerError):
        owner = _read_owner(path / _RUN_FILE)
        is_ours = owner is not None and (owner["uid"], owner["attempt"]) == (config.job.uid, attempt)
        saved = (entry for name in ("checkpoints", *_RESULT_FOLDERS) for entry in (path / name).glob("*"))
        if is_ours and all(entry == path / _START for entry in saved):
            # The corrected run may start from other weights, whose text is split otherwise.
            if (path / _START).is_dir():
                shutil.rmtree(path / _START)
                (path / _START).parent.rmdir()
            # The other way round an end in between would leave settings without an owner, which refuse others for good.
            for name in (_TOKENIZER_FILE, CONFIG_FILE, _RUN_FILE):
                (path / name).unlink(missing_ok=True)


def _list_written(path: Path, config: RunConfig) -> list[Path]:
    """Return the folders that a run writes in; other names in its output folder are other people's business."""
    names = [*_FOLDERS, *(f"finetune/{stage.name}/predictions" for stage in config.stages if stage.kind == "finetune")]
    return [*(path / name for name in names), *path.glob("profile/*-steps-*")]


def _check_owner(path: Path, owner: dict[str, Any], job: str, config: RunConfig, attempt: int) -> None:
    if owner["job"] != job:
        raise InputError(
            f"{path}: this output folder belongs to the job {owner['job']}, not to {job}",
            hint="choose another output folder, or run under that job's name and namespace",
        )
    if owner["uid"] == config.job.uid:
        if owner["attempt"] > attempt:
            raise FencedError(f"{path}: attempt {owner['attempt']} has claimed it; this is attempt {attempt}")
    elif config.if_exists == "Fail":
        raise InputError(
            f"{path}: already holds a run of {job}",
            hint="set output.ifExists (bert-train finetune: --if-exists) to Resume (resume from its latest "
            f"checkpoint) or New (keep it under {_ARCHIVE}/ and start over), or choose another output folder",
        )


def _count_run(owner: Mapping[str, Any] | None, uid: str, attempt: int) -> int:
    """Return which run of its attempt claims the folder: one more than the last that did."""
    if owner is None or (owner["uid"], owner["attempt"]) != (uid, attempt):
        return 1
    return int(owner.get("attempt_run", 1)) + 1


def _refuse_foreign_results(path: Path, config: RunConfig) -> None:
    """Refuse a folder of no run with what a stage would replace by its results."""
    for name in sorted({stage.kind for stage in config.stages} & _RESULT_FOLDERS):
        with disk_errors(path / name):
            # Empty, it is in nobody's way.
            is_used = (path / name).exists() and (not (path / name).is_dir() or any((path / name).iterdir()))
        if is_used:
            raise InputError(
                f"{printable(path)}: got a folder that holds {name}/ and no run; allowed: an empty folder, or that "
                "of a run",
                hint=f"choose another output folder, or move {name}/ away: the stages of this run write to it",
            )


def _archive(path: Path) -> None:
    """Move everything into ``previous/NNN``: starting over never deletes what was trained."""
    archive = path / _ARCHIVE
    with disk_errors(archive):
        archive.mkdir(exist_ok=True)
        last = max((int(old.name) for old in archive.iterdir() if old.name.isdigit()), default=0)
        # run.json moves last: an archive without it was interrupted, and is completed instead of starting another one.
        is_complete = last == 0 or (archive / f"{last:03d}" / _RUN_FILE).exists()
        target = archive / f"{last + is_complete:03d}"
        refuse_others_links(path, [target])
        target.mkdir(exist_ok=True)
        entries = [entry for entry in path.iterdir() if entry.name not in (_ARCHIVE, AUTOTUNE_FOLDER, _RUN_FILE)]
        for entry in [*entries, path / _RUN_FILE]:
            entry.rename(target / entry.name)


def _freeze(path: Path, config: RunConfig) -> tuple[RunConfig, tuple[str, ...]]:
    """Freeze the configuration, unless it differs from the frozen one in what is learnt.

    Returns:
        The configuration to continue with, and the changes that only affect the rounding of sums.

    Raises:
        InputError: the run was made with other settings.
    """
    frozen = _read_json(path)
    config = _with_sizes(config, frozen)
    wanted = config.model_dump(mode="json")
    rounding: list[str] = []
    if frozen is not None:
        refused = []
        for key, old, new in _differences(_without_place(_with_defaults(frozen)), _without_place(wanted)):
            if _only_rounds(key, config):
                rounding.append(f"{key} {old} -> {new}")
            elif not _may_change(key):
                refused.append(f"  {key}: was {old}, is {new}")
        if refused:
            raise InputError(
                f"{path}: the run in this folder was made with other settings\n" + "\n".join(refused),
                hint="restore them, or set output.ifExists (bert-train finetune: --if-exists) to New, or choose "
                "another output folder",
            )
    # Every time: what may change in it is that of the newest attempt.
    write_json_atomically(path, wanted)
    return config, tuple(rounding)


def _with_sizes(config: RunConfig, frozen: dict[str, Any] | None) -> RunConfig:
    """Read the model's file, unless the run has frozen what stood there: later changes of the file are not its own."""
    described = config.model
    if not isinstance(described, ModelFile) or frozen is None:
        return resolve_model(config)
    try:
        begun = parse_run_config(frozen).model
    except InputError:
        return resolve_model(config)
    if not isinstance(begun, ModelConfig) or begun.config_file != described.config_file:
        return resolve_model(config)
    try:
        if resolve_model(config).model != begun:
            logger.warning(
                "%s describes another model than when this run began, which keeps its own", begun.config_file
            )
    except InputError as error:
        logger.warning("model.config_file is not read again; this run keeps its model: %s", str(error).splitlines()[0])
    # These two the job says; a change is found as a difference.
    own = {
        "vocabulary_pad_multiple": described.vocabulary_pad_multiple,
        "objective": described.objective or begun.objective,
    }
    return config.model_copy(update={"model": begun.model_copy(update=own)})


def _with_defaults(frozen: dict[str, Any]) -> dict[str, Any]:
    """Add settings that are newer than the frozen document, with their defaults; unchanged where it does not parse."""
    try:
        return parse_run_config(frozen).model_dump(mode="json")
    except InputError:
        return upgrade(frozen)


def _may_change(key: str) -> bool:
    """Return whether a setting may change between attempts."""
    match key.split("."):
        case ["stages", _, "checkpoint", *_] | ["stages", _, "optimizer", "partitioning"]:
            return True
        case ["stages", _, "max_unknown_share"]:  # whether a run goes on, not what it learns
            return True
        case ["stages", _, "lengths", *_]:  # of a prepare stage: shards for other runs, whose dataset may grow
            return True
    # With the dots: another setting's name may begin in the same way.
    return any(f"{key}.".startswith(f"{mutable}.") for mutable in _MUTABLE)


def _only_rounds(key: str, config: RunConfig) -> bool:
    """Return whether a setting only affects the rounding of sums: one that ran out of memory may lower it."""
    match key.split("."):
        case ["stages", number, "micro_batch_size"]:
            return getattr(config.stages[int(number)], "loss_normalization", "global") == "global"
    return False


def list_learnt_settings(config: RunConfig) -> dict[str, Any]:
    """Return every setting that affects the trained weights by path, such as ``stages.0.global_batch_size``.

    Those that may change between attempts do not: who runs it and where, how fast, how sums are rounded.
    """
    leaves = _leaves(_without_place(config.model_dump(mode="json")))
    return {key: value for key, value in leaves.items() if not (_may_change(key) or _only_rounds(key, config))}


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {name: leaf for key in value for name, leaf in _leaves(value[key], f"{path}.{key}".strip(".")).items()}
    if isinstance(value, list) and value:
        return {name: leaf for number, it in enumerate(value) for name, leaf in _leaves(it, f"{path}.{number}").items()}
    return {path: value}


def _without_place(document: dict[str, Any]) -> dict[str, Any]:
    """Make the path of a dataset inside the output folder relative: the two may be moved together."""
    dataset, output = document.get("dataset"), document.get("output_folder")
    if not isinstance(dataset, dict) or not all(isinstance(it, str) for it in (output, dataset.get("folder"))):
        return document
    if not output or not Path(dataset["folder"]).is_relative_to(output):
        return document
    return {**document, "dataset": {**dataset, "folder": str(Path(dataset["folder"]).relative_to(output))}}


def _differences(old: Any, new: Any, path: str = "") -> list[tuple[str, str, str]]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(old.keys() | new.keys())
        return [
            difference
            for key in keys
            for difference in _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            difference
            for number, (one, other) in enumerate(zip(old, new, strict=True))
            for difference in _differences(one, other, f"{path}.{number}")
        ]
    return [] if old == new else [(path, json.dumps(old), json.dumps(new))]


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        # By trying: permissions do not show what a share allows. Under a name of its own, since two attempts may try at
        # once.
        probe = path / f".writable-{uuid.uuid4().hex[:8]}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"{path}: the output folder cannot be written ({error.strerror}) as uid {os.getuid()}",
            hint="choose a folder that this user may write, or change its owner; fsGroup does not change NFS",
        ) from error


def _was_claimed(path: Path, config: RunConfig) -> bool:
    """Return whether an attempt of this run has written in the folder."""
    try:
        owner = json.loads((path / _RUN_FILE).read_text())
    except OSError as error:
        # A read that fails for more than rights does so whatever the user has set.
        return is_outage(error)
    except (ValueError, RecursionError):
        return False
    return isinstance(owner, dict) and owner.get("uid") == config.job.uid


def _read_owner(path: Path) -> dict[str, Any] | None:
    """Return the content of ``run.json``; None where the folder has no owner."""
    owner = _read_json(path)
    wanted = {"job": str, "uid": str, "attempt": int, "attempt_run": int, "launcher": str}
    if owner is not None and not all(isinstance(owner.get(it), kind) for it, kind in wanted.items()):
        raise InputError(
            f"{path}: does not name the folder's owner; it must hold job, uid, attempt, attempt_run and launcher",
            hint=_REMEDIES[path.name],
        )
    return owner


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        if not isinstance(content, dict):
            raise ValueError(f"got {content!r:.40}; allowed: an object")  # noqa: TRY301, TRY004 - as if it were no JSON
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error})", hint="check the output volume, and that this user may read it"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read ({error})", hint=_REMEDIES[path.name]) from error
    return content


def remove_folder(path: Path) -> None:
    """Delete a folder of ours; one that is already gone is fine."""
    shutil.rmtree(path, ignore_errors=True)
