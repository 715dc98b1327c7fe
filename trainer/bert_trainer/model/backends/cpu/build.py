"""Compiles the kernels with the local C++ compiler, without torch: ``python -m bert_trainer.model.backends.cpu.build``.

One library for every kind of processor that makes a difference; ``library`` picks one when it is loaded.
"""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import shlex
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE / "native"
LIBRARIES = HERE / "lib"

FLAVOURS: dict[str, tuple[str, frozenset[str]]] = {
    "avx512bf16": (
        "-march=x86-64-v4 -mavx512bf16 -mprefer-vector-width=512",
        frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_bf16"}),
    ),
    "avx512": (
        "-march=x86-64-v4 -mprefer-vector-width=512",
        frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ),
    "avx2": ("-march=x86-64-v3", frozenset({"avx2", "fma", "bmi2", "f16c", "movbe"})),
}
"""Name to the compiler's options and what /proc/cpuinfo must say, best first."""

_OPTIONS = (
    "-std=c++20 -O3 -fopenmp -fPIC -shared -fvisibility=hidden -fno-math-errno -fno-trapping-math"
    " -fno-strict-aliasing -Wno-psabi"  # operands are floats, or pairs of bf16, in units of 32 bits
)


def sources() -> list[Path]:
    """Return the files that are compiled, in order."""
    return sorted(SOURCES.glob("*.cpp"))


def library_path(flavour: str) -> Path:
    """Return where the library of a flavour lies, built or not."""
    # Of all files, headers too, and of the options: a library never outlives the sources that it was built from.
    content = hashlib.sha256(f"{_OPTIONS} {flavours()[flavour][0]}".encode())
    for file in sorted(SOURCES.iterdir()):
        content.update(file.read_bytes())
    return LIBRARIES / f"kernels-{content.hexdigest()[:12]}-{flavour}.so"


def flavours() -> dict[str, tuple[str, frozenset[str]]]:
    """Return the flavours that this machine's compiler can make."""
    return FLAVOURS if platform.machine() in ("x86_64", "AMD64") else {"generic": ("", frozenset())}


def build() -> list[Path]:
    """Build what is not there yet and delete what belongs to other sources; returns the libraries.

    Raises:
        subprocess.CalledProcessError: the compiler has refused; it has said why.
        FileNotFoundError: there is no compiler.
    """
    LIBRARIES.mkdir(exist_ok=True)
    wanted = {library_path(name): options for name, (options, _) in flavours().items()}
    for path, options in wanted.items():
        if path.exists():
            continue
        # Renamed when it is complete: other processes may build the same library, or load it, at the same time.
        partial = path.with_suffix(f".{secrets.token_hex(8)}.partial")
        command = [*shlex.split(os.environ.get("CXX", "g++")), *_OPTIONS.split(), *options.split()]
        try:
            _compile([*command, "-o", str(partial), *map(str, sources())])
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    for stale in set(LIBRARIES.glob("*.so")) - set(wanted):
        stale.unlink(missing_ok=True)
    return list(wanted)


def _compile(command: list[str]) -> None:
    # A group of its own: the compiler's own processes would outlive it.
    with subprocess.Popen(command, start_new_session=True) as compiler:
        try:
            status = compiler.wait()
        except BaseException:
            os.killpg(compiler.pid, signal.SIGTERM)
            raise
    if status:
        raise subprocess.CalledProcessError(status, command)


if __name__ == "__main__":
    # tools/setup.sh compiles beside its downloads, and ends what it has started when it is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        build()
    except (subprocess.CalledProcessError, OSError) as problem:
        sys.stderr.write(f"kernels: not built, the trainer will run without them: {problem}\n")
        sys.exit(1)
