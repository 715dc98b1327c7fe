"""Write the bytecode of every package below a folder that has none yet: ``compile_bytecode.py FOLDER``.

Containers run with a file system that cannot be written: what has no bytecode is compiled again by every rank of every
pod, torch alone for 3 s of a core. Importing does not look at the sources (``unchecked-hash``), and no time is held, so
that equal sources give an equal layer. What has bytecode already lies in a layer below and is left alone.
"""

import importlib.util
import py_compile
import re
import sys
from pathlib import Path

# Half of the bytes, and nothing that a rank imports on a CPU; torch.compile on a GPU takes 3 s longer to start.
_LEFT_OUT = re.compile(r"/(tests|torch/testing/_internal|pip|setuptools|sympy|networkx|fontTools)/")


def compile_packages(folder: Path) -> None:
    """Compile the modules below ``folder``; those written for a newer Python stay as they are."""
    for source in sorted(folder.rglob("*.py")):
        if _LEFT_OUT.search(str(source)) or Path(importlib.util.cache_from_source(str(source))).exists():
            continue
        try:
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile(str(source), doraise=True, invalidation_mode=mode)
        except py_compile.PyCompileError as error:
            print(f"no bytecode: {source}: {error.exc_type_name}", file=sys.stderr)  # noqa: T201 - the build's log


if __name__ == "__main__":
    compile_packages(Path(sys.argv[1]))
