"""Corpora on the command line: ``--corpus wiki.xml.bz2,weight=2,language=de``, repeatable."""

from __future__ import annotations

import argparse
from typing import Any

from pydantic import ValidationError

from bert_trainer.config.run_config import CorpusConfig
from bert_trainer.dataset.corpus.languages import check_language
from bert_trainer.errors import InputError

_FIELDS = tuple(name for name in CorpusConfig.model_fields if name != "path")


def add_corpus_options(command: argparse.ArgumentParser) -> None:
    """Add the option to the command's parser."""
    command.add_argument(
        "--corpus",
        dest="corpora",
        type=parse_corpus,
        action="append",
        metavar="PATH[,FIELD=VALUE]",
        help=f"text in any format that is read, in place of --text; repeatable; fields: {', '.join(_FIELDS)}",
    )


def parse_corpus(text: str) -> CorpusConfig:
    """Read a path and, after commas, fields of ``CorpusConfig``. A path may hold commas, but no ``,field=``.

    Raises:
        argparse.ArgumentTypeError: an unknown field or a wrong value.
    """
    path, *rest = text.split(",")
    fields: dict[str, Any] = {}
    for part in rest:
        name, equals, value = part.partition("=")
        name = name.replace("-", "_")
        if equals and name in _FIELDS:
            fields[name] = value
        elif equals and name.isidentifier():
            raise argparse.ArgumentTypeError(f"got the field {name!r}; allowed: {', '.join(_FIELDS)}")
        else:
            path += f",{part}"
    try:
        if "language" in fields:
            check_language(fields["language"])
        return CorpusConfig(path=path, **fields)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    except ValidationError as error:
        problems = "; ".join(f"{item['loc'][0]}: got {item['input']!r}; {item['msg']}" for item in error.errors())
        raise argparse.ArgumentTypeError(problems) from error
