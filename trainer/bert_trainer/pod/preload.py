"""Which memory allocator and which OpenMP runtime ranks load: one of each, found in the image, named in the log.

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


def describe_preload(environment: Mapping[str, str], preload: Mapping[str, str]) -> str:
    """Return a sentence for the log: what ranks compute with."""
    words = [f"allocator {environment.get('BERT_ALLOCATOR') or 'system'}"]
    words.append(f"OpenMP {environment.get('BERT_OPENMP') or 'gnu'}")
    words += [f"{name}={environment[name]}" for name in ("OMP_NUM_THREADS", "DNNL_MAX_CPU_ISA") if name in environment]
    words += [f"{name}={value}" for name, value in preload.items()]
    return f"bert-pod: ranks here compute with {', '.join(words)}"
