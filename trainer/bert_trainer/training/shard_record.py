"""``shards.json`` in the output folder: the shards that each stage of a run began with.

A run that resumes compares its data with it, and can go on without a file that is no longer there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_trainer.dataset.shards.dataset_info import read_json_object
from bert_trainer.dataset.shards.folder import KnownShard, ShardFolder
from bert_trainer.errors import InputError
from bert_trainer.output.run_folder import RunFolder

SHARDS_FILE = "shards.json"
_HINT = "delete it: the run goes on with the shards as they are"


@dataclass(frozen=True, slots=True)
class StageShards:
    """Shards that one stage began with."""

    folder: Path
    """Relative to the dataset, or to the stage's shards."""
    files: Mapping[str, KnownShard]
    """By name, in the order of the run."""
    documents: bool = False
    """Whether their rows are pieces of documents."""

    @classmethod
    def of(cls, base: Path, folder: ShardFolder) -> StageShards:
        """Describe what a stage begins with. base: that the folder is below."""
        return cls(folder.paths[0].parent.relative_to(base), folder.known_by_name, folder.documents)


def read_record(output_folder: Path) -> dict[str, StageShards]:
    """Return what stages began with, by name; nothing where no run has begun.

    Raises:
        InputError: the file cannot be read.
    """
    path = output_folder / SHARDS_FILE
    document = read_json_object(path, hint=_HINT)
    if document is None:
        return {}
    try:
        return {name: _parse(entry) for name, entry in document["stages"].items()}
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: not a record of shards ({type(error).__name__}: {error})", hint=_HINT) from error


def _parse(entry: dict[str, Any]) -> StageShards:
    files = {
        str(name): KnownShard(
            rows=int(file["rows"]),
            num_bytes=int(file["bytes"]),
            content=file["content"],
            modified_ns=file.get("modified_ns"),  # 0.2.0 did not write it
        )
        for name, file in entry["files"].items()
    }
    return StageShards(Path(entry["folder"]), files, bool(entry.get("documents")))


def write_record(run: RunFolder, stages: Mapping[str, StageShards]) -> None:
    """Record what stages begin with, by name."""
    document = {
        name: {
            "folder": str(stage.folder),
            "documents": stage.documents,
            "files": {
                name: {"rows": it.rows, "bytes": it.num_bytes, "content": it.content, "modified_ns": it.modified_ns}
                for name, it in stage.files.items()
            },
        }
        for name, stage in stages.items()
    }
    run.write_json(run.path / SHARDS_FILE, {"format": 1, "stages": document})
