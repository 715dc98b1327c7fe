"""What a run was given, as one hash: two runs of the same hash were asked for the same thing.

Settings that decide what is learnt, vocabulary, text, shards, and the release that trained. Not part of it: ranks,
machines, paths, how often a run was interrupted. The environment decides the rounding of sums and is listed beside it
(``docs/concepts/ranks.md``). All of it is read from files of the run, none of it is read again from the text.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bert_job.run_config import RunConfig
from bert_trainer.output.run_folder import list_learnt_settings

_DISTRIBUTION = "bert-pretrain-operator"
_SHARDS_FILE = "shards.json"
# Where something lies does not matter: the hashes of vocabulary, text and shards say what lies there.
_PLACES = re.compile(
    r"dataset\.(folder|vocabulary_file)|stages\.\d+\.(text|shards|corpora\.\d+\.(path|checksums)|evaluation\.shards)"
)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Hashes of a run's inputs, hexadecimal SHA-256."""

    parts: dict[str, str]
    """By what they are of; a release by its version."""
    missing: tuple[str, ...]
    """What a run of this kind has and no file tells, so that the hash does not cover it."""

    @property
    def sha256(self) -> str:
        """Hash of all parts."""
        return _hash(self.parts)


def find_inputs(config: RunConfig, folder: Path, dataset: dict[str, Any]) -> Inputs:
    """Return the inputs of a run.

    Args:
        config: As it was frozen.
        folder: Its output folder.
        dataset: The content of ``dataset.json``, empty where shards were given ready.
    """
    settings = {key: value for key, value in list_learnt_settings(config).items() if not _PLACES.fullmatch(key)}
    found = {
        "settings": _hash(settings),
        "vocabulary": _hash_file(Path(config.dataset.vocabulary_path)) or dataset.get("vocabulary_sha256"),
        "text": dataset.get("corpus_sha256"),
        "shards": _hash_shards(folder / _SHARDS_FILE),
    }
    kinds = {stage.kind for stage in config.stages}
    expected = ["vocabulary"]
    expected += ["text"] if "prepare" in kinds else []
    expected += ["shards"] if "pretrain" in kinds else []
    missing = [name for name in expected if not isinstance(found[name], str)]
    missing += ["the tables of tasks"] if "finetune" in kinds else []
    missing += ["the weights that it starts from"] if config.initial_checkpoint is not None else []
    parts = {name: value for name, value in found.items() if isinstance(value, str)}
    return Inputs({**parts, "release": release()}, tuple(missing))


def release() -> str:
    """Return the version of this trainer."""
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _hash_file(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    except OSError:
        return None


def _hash_shards(path: Path) -> str | None:
    """Return the hash of what stages began with: contents where the files say theirs, else sizes."""
    try:
        stages = json.loads(path.read_text())["stages"]
        listed = {
            str(stage): {
                str(name): [file["rows"], file.get("content") or file["bytes"]] for name, file in entry["files"].items()
            }
            for stage, entry in stages.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return _hash(listed)
