"""What has become of the shards with which a run began: gone, damaged, changed, or made anew as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bert_trainer.dataset.shards.dataset_info import refuse_half_built
from bert_trainer.dataset.shards.folder import CHANGED, GONE, KnownShard, ShardFolder, other_shards
from bert_trainer.dataset.shards.tfrecord_file import has_tfrecord_name, is_tfrecord
from bert_trainer.errors import DataUnreadable, InputError
from bert_trainer.system.atomic_files import is_storage_error
from bert_trainer.system.files import files_in

_DAMAGED = "is damaged"
_REWRITTEN = "was written anew"
_RENAMED = "has another name"
_UNKNOWN = "is on a volume in trouble"
_LOST = frozenset({GONE, _DAMAGED})


@dataclass(frozen=True, slots=True)
class Losses:
    """Lost or damaged shards."""

    folder: Path
    num_known: int
    problems: Mapping[str, str]
    """What has become of files, by name; empty where none is lost."""

    @property
    def show_when_read(self) -> bool:
        """Whether each loss shows when that shard is read, so that all others can be read."""
        return _REWRITTEN not in self.problems.values()

    def error(self) -> DataUnreadable:
        """Return the error that names the first loss."""
        return other_shards(self.folder, self.problems, self.num_known, may_skip=self.show_when_read)


def find_losses(folder: Path, known: Mapping[str, KnownShard], opened: ShardFolder | None) -> Losses:
    """Return the missing or damaged shards of the folder that a run began with.

    A folder that was made anew is another one, also where it has fewer parts. A single file that is still the very same
    shows that the folder is; a file that is there under another name is not lost.

    Args:
        folder: Where it is.
        known: Its files by name, as they were.
        opened: The same folder, where it can be opened as it is.
    """
    try:
        refuse_half_built(folder)
        problems = _find_problems(folder, known, opened, by_time=True)
    except (InputError, OSError):
        return Losses(folder, len(known), {})  # whoever opens it says what is wrong
    found = set(problems.values())
    is_same = any(shard.rows and name not in problems for name, shard in known.items())
    # Files get other names by somebody's hand, as the hint about a gap says: what is gone then was let go.
    lost = {_DAMAGED} if _RENAMED in found else _LOST
    is_lost = is_same and not found.isdisjoint(lost) and _UNKNOWN not in found
    return Losses(folder, len(known), problems if is_lost else {})


def check_left(folder: Path, known: Mapping[str, KnownShard]) -> None:
    """Check that the files with which a run began are there and whole, where the folder cannot be opened.

    Reads the header of each, so it is for finding out what is wrong.

    Raises:
        InputError: as ``refuse_half_built``.
        DataUnreadable: some are gone, damaged or have another name; names the first that are not what they were.
    """
    refuse_half_built(folder)
    problems = _find_problems(folder, known, None, by_time=False)
    if _UNKNOWN not in problems.values() and not {*_LOST, _RENAMED}.isdisjoint(problems.values()):
        raise other_shards(folder, problems, len(known))


def _find_problems(
    folder: Path, known: Mapping[str, KnownShard], opened: ShardFolder | None, *, by_time: bool
) -> dict[str, str]:
    """Return what has become of the files that are not what they were, by name.

    by_time: whether a file without checksums that was written since is another one; all of as many rows and bytes are
    alike, and copies have other times.
    """
    looks: Mapping[str, KnownShard | str]
    if opened is not None:
        looks = opened.known_by_name
    else:
        looks = {path.name: _look(path) for path in files_in(folder) if path.name in known}
    now_at = {name: _content(look) for name, look in looks.items() if isinstance(look, KnownShard)}
    known_contents = {_content(shard) for shard in known.values()}
    there = {it for name, it in now_at.items() if name not in known or it != _content(known[name])}
    problems = {}
    for name, shard in known.items():
        now = looks.get(name)
        if now is None:
            problems[name] = _RENAMED if _content(shard) in there else GONE
        elif isinstance(now, str):
            problems[name] = now
        elif now != shard:
            # Another shard of the run that has taken its name is whole.
            is_cut_off = _content(now) not in known_contents and _is_cut_off(folder / name, now, shard)
            problems[name] = _DAMAGED if is_cut_off else CHANGED
        elif by_time and shard.content is None and now.modified_ns != shard.modified_ns:
            problems[name] = _REWRITTEN
    return problems


def _look(path: Path) -> KnownShard | str:
    try:
        return KnownShard.read(path)[1]
    except InputError as error:
        return _UNKNOWN if is_storage_error(error.__cause__) else _DAMAGED
    except OSError:
        return _UNKNOWN


def _content(shard: KnownShard) -> tuple[int, int, str | int | None]:
    """Return what a file keeps under another name."""
    return shard.rows, shard.num_bytes, shard.content or shard.modified_ns


def _is_cut_off(path: Path, now: KnownShard, known: KnownShard) -> bool:
    """Tell a file of records that ends before its last one; what is left of it can be read."""
    is_shorter = now.rows < known.rows and now.num_bytes < known.num_bytes
    return is_shorter and (has_tfrecord_name(path) or is_tfrecord(path))
