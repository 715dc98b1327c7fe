"""What the arguments of several verbs share: corpora, lengths, files of shards, numbers from the environment."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bert_job.preparation import CorpusSpec
from bert_job.run_stages import Corpus
from bert_job.section import MAX_UNKNOWN_SHARE
from bert_trainer.dataset.build.resume import Length
from bert_trainer.dataset.corpus.languages import check_language
from bert_trainer.dataset.quality.inspection import find_shards
from bert_trainer.dataset.workers.pool import usable_cores
from bert_trainer.errors import InputError

LENGTH_VARIABLE = "SEQ_LEN"
SHARDS_VARIABLE = "SHARD_NUM"
"""MLPerf's scripts take the sequence length and the number of shards from these environment variables; so do its recipe
and ``bert-data chop``, where no option sets them."""

_CORPUS_FIELDS = tuple(name for name in CorpusSpec.model_fields if name != "path")
_BYTES_PER_PROCESS = 16_000_000
"""Of shards: with less for each of them, processes take longer to start than to work."""


def add_corpora(command: argparse.ArgumentParser) -> None:
    """Add ``--corpus wiki.xml.bz2,weight=2,language=de``, repeatable."""
    command.add_argument(
        "--corpus",
        dest="corpora",
        type=parse_corpus,
        action="append",
        metavar="PATH[,FIELD=VALUE]",
        help=f"text in any format that is read, in place of --text; repeatable; fields: {', '.join(_CORPUS_FIELDS)}",
    )


def parse_corpus(text: str) -> Corpus:
    """Read a path and, after commas, fields of ``CorpusSpec``. A path may hold commas, but no ``,field=``.

    Raises:
        argparse.ArgumentTypeError: an unknown field or a wrong value.
    """
    path, *rest = text.split(",")
    fields: dict[str, Any] = {}
    for part in rest:
        name, equals, value = part.partition("=")
        name = name.replace("-", "_")
        if equals and name in _CORPUS_FIELDS:
            # Text, also for weight: pydantic makes a number of it, or says that it is none.
            fields[name] = value
        elif equals and name.isidentifier():
            raise argparse.ArgumentTypeError(f"got the field {name!r}; allowed: {', '.join(_CORPUS_FIELDS)}")
        else:
            path += f",{part}"  # a comma of the path
    # argparse turns ArgumentTypeError alone into a usage error with exit code 2; others would end in a traceback.
    try:
        if "language" in fields:
            check_language(fields["language"])
        return Corpus.model_validate_strings({"path": path, **fields}, strict=False, by_name=True)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    except ValidationError as error:
        problems = "; ".join(f"{item['loc'][0]}: got {item['input']!r}; {item['msg']}" for item in error.errors())
        raise argparse.ArgumentTypeError(problems) from error


def parse_length(text: str) -> Length:
    """Read tokens and predictions, as ``128:20``.

    Raises:
        argparse.ArgumentTypeError: anything else.
    """
    tokens, _, predictions = text.partition(":")
    if not (tokens.isdecimal() and predictions.isdecimal()):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: tokens and predictions, as 128:20")
    return int(tokens), int(predictions)


def read_number(environment: Mapping[str, str], name: str) -> int | None:
    """Return the value of a variable of the published scripts; None where it is not set.

    Raises:
        InputError: it is no number from 1 on.
    """
    text = environment.get(name, "").strip()
    if not text:
        return None
    # isdecimal alone takes the digits of any script.
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise InputError(
            f"{name}: got {text!r} in the environment; allowed: a whole number from 1 on",
            hint="unset the variable, or give the option that it stands for",
        )
    return int(text)


def add_shards(command: argparse.ArgumentParser) -> None:
    """Add what verbs need that read shards: paths, a vocabulary, processes."""
    command.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="shards, folders of shards, or datasets")
    command.add_argument("--vocabulary", type=Path, help="default: that of the dataset, if there is one")
    command.add_argument("--processes", type=int, metavar="N", help="default: one per core, fewer for little data")


def add_max_unknown_share(command: argparse.ArgumentParser) -> None:
    """Add ``--max-unknown-share 0.2``."""
    command.add_argument(
        "--max-unknown-share",
        type=parse_share,
        default=MAX_UNKNOWN_SHARE,
        metavar="SHARE",
        help="refuse text of whose tokens more than this share are [UNK], up to 1 (default: %(default)s)",
    )


def parse_share(text: str) -> float:
    """Read a share, above 0 and at most 1.

    Raises:
        argparse.ArgumentTypeError: anything else.
    """
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a share above 0, at most 1")
    return share


def shard_files(arguments: argparse.Namespace) -> list[Path]:
    """Return the files of all paths, each once.

    Raises:
        InputError: a path does not exist or holds no shards.
    """
    # Paths may overlap, as a dataset and a folder in it do: a file that came twice would count twice.
    return list(dict.fromkeys(file for path in arguments.paths for file in find_shards(path)))


def num_bytes(files: Sequence[Path]) -> int:
    """Return the size of all files together."""
    return sum(file.stat().st_size for file in files)


def num_processes(arguments: argparse.Namespace, files: Sequence[Path]) -> int:
    """Return the processes to read these shards with: as given, else as many as are worth starting."""
    # A file is read by one process.
    useful = min(len(files), num_bytes(files) // _BYTES_PER_PROCESS)
    return int(arguments.processes or max(1, min(usable_cores(), useful)))
