"""Which memory allocator and which OpenMP runtime ranks load: one of each, found in the image.

The job chooses by ``BERT_ALLOCATOR`` and ``BERT_OPENMP`` (spec.cpu.allocator, spec.cpu.openmp). They are loaded
before everything else, since a process can have only one of either.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bert_trainer.errors import InputError

LIBRARIES = {
    ("BERT_ALLOCATOR", "jemalloc"): "libjemalloc.so.2",
    ("BERT_ALLOCATOR", "tcmalloc"): "libtcmalloc_minimal.so.4",
    ("BERT_OPENMP", "intel"): "libiomp5.so",
}
ALLOWED = {"BERT_ALLOCATOR": ("system", "jemalloc", "tcmalloc"), "BERT_OPENMP": ("gnu", "intel")}
FOLDERS = tuple(
    Path(folder)
    for folder in (
        f"{sys.prefix}/lib",
        *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),  # Debian
        *("/usr/lib64", "/usr/lib"),
    )
)


def choose_preload(environment: Mapping[str, str], folders: Sequence[Path] = FOLDERS) -> dict[str, str]:
    """Return ``LD_PRELOAD`` for the ranks; empty where the system's own libraries are wanted.

    Raises:
        InputError: a choice is unknown, or the image does not hold what was chosen.
    """
    found = []
    for variable, allowed in ALLOWED.items():
        choice = environment.get(variable) or allowed[0]
        if choice not in allowed:
            raise InputError(f"{variable}: got {choice!r}; allowed: {', '.join(allowed)}")
        library = LIBRARIES.get((variable, choice))
        if library is None:
            continue
        path = next((folder / library for folder in folders if (folder / library).exists()), None)
        if path is None:
            raise InputError(
                f"{variable}: {choice}: the image has no {library}",
                hint=f"install it into the image, or leave {'spec.cpu.' + variable[5:].lower()} out",
            )
        found.append(str(path))
    if not found:
        return {}
    given = environment.get("LD_PRELOAD")
    return {"LD_PRELOAD": ":".join([*found, *([given] if given else [])])}
