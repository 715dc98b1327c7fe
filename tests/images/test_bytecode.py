"""The bytecode in the trainer's image: what is compiled, and that equal sources give equal bytes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

IMAGE = Path(__file__).parents[2] / "images/trainer"


def compile_packages(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(IMAGE / "compile_bytecode.py"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_bytecode_is_written_once_without_times_and_without_what_no_rank_imports(tmp_path: Path) -> None:
    for name in ("torch/nn.py", "numpy/tests/test_a.py", "sympy/core.py", "pip/main.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("a = 1\n")
    (tmp_path / "torch/newer.py").write_text("this is no Python of today\n")
    done = compile_packages(tmp_path)
    assert "newer.py: SyntaxError" in done.stderr
    (made,) = tmp_path.rglob("*.pyc")
    assert made.parent.parent == tmp_path / "torch"
    # PEP 552: bit 0 for a hash in place of a time, bit 1 for one that is checked.
    assert int.from_bytes(made.read_bytes()[4:8], "little") == 0b01
    first = made.read_bytes()
    made.write_bytes(b"of a layer below")
    compile_packages(tmp_path)
    assert made.read_bytes() == b"of a layer below"
    made.unlink()
    (tmp_path / "torch/nn.py").touch()
    compile_packages(tmp_path)
    assert made.read_bytes() == first


def test_every_layer_of_packages_is_compiled_in_the_step_that_installs_it() -> None:
    final = re.split(r"^FROM ", (IMAGE / "Dockerfile").read_text(), flags=re.MULTILINE)
    steps = [
        step
        for stage in final
        if re.search(r" AS (libraries|trainer)$", stage, re.MULTILINE)
        for step in re.findall(r"^RUN (?:.*\\\n)*.*$", stage, re.MULTILINE)
        if "install-torch.sh" in step or "pip install" in step
    ]
    assert len(steps) == 4
    # The MPI's packages hold next to no Python; Horovod's step compiles them.
    assert ["compile_bytecode.py /opt/bert/lib" in step for step in steps] == [True, True, False, True]
