"""JSON documents that other programs have written, read with bounded memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bert_trainer.errors import InputError

MAX_BYTES = 4 << 20
"""Of a file; the index of a model in a hundred parts has 100 kB. As objects of Python a document takes up to
thirty times as many."""


def read_json_file(path: Path, *, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Read a JSON object of at most ``max_bytes``.

    Raises:
        InputError: it cannot be read, is too large, or is something else.
    """
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: got a folder, a pipe or a device; allowed: a JSON file", hint="name a file")
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise InputError(f"{path}: got more than {max_bytes >> 20} MiB; allowed: a JSON document of settings")
        document = json.loads(content)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror})",
            hint="name a file on disk that rank 0's machine sees and may read; nothing is downloaded",
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON document ({error})", hint="copy it again") from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: got a {type(document).__name__}; allowed: a JSON object")
    return document
