"""tools/structure.py measures a tree's imports and lines; here a trainer of seven files, made for the purpose."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = "".join(f"value_{number} = {number}\n" for number in range(6))
FILES = {
    "__init__.py": '"""A package."""\n',
    "__main__.py": "from bert_trainer.loop import run\n",
    "loop.py": "import bert_trainer.model\n\n\ndef run():\n    from .data import shards\n",
    "model.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from bert_trainer.loop import run\n",
    "data/__init__.py": "",
    "data/shards.py": f'"""Shards.\n\nOf rows.\n"""\n# A reason.\nfrom . import rows\n\n{BLOCK}',
    "data/rows.py": f"from bert_trainer.data.shards import value_1\n{BLOCK}import bert_trainer.loop\nadded = 1\n",
}
CONTRACT = '[[tool.importlinter.contracts]]\nname = "top"\ntype = "layers"\ncontainers = ["bert_trainer"]\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "trainer/bert_trainer" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "pyproject.toml").write_text(f'{CONTRACT}layers = ["__main__", "loop", "data"]\n')
    return tmp_path


def measure(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, ROOT / "tools/structure.py", *words], capture_output=True, text=True)


def test_it_finds_what_the_tree_was_made_of(checkout: Path) -> None:
    document = json.loads(measure(checkout, "--json").stdout)
    (package,) = document["packages"]
    assert package == {
        "package": "bert_trainer",
        "modules": 7,
        "imports": 6,
        "deferred_imports": 1,
        "typing_imports": 1,
        "entries": ["__main__", "data", "loop", "model"],
        "levels": [["model"], ["data", "loop"], ["__main__"]],
        # Both sides of each cycle; the import for type checkers closes none.
        "upward_imports": [
            "bert_trainer.data.rows -> bert_trainer.data.shards",
            "bert_trainer.data.rows -> bert_trainer.loop",
            "bert_trainer.data.shards -> bert_trainer.data.rows",
            "bert_trainer.loop -> bert_trainer.data.shards (deferred)",
        ],
        "cycles": {"bert_trainer": [["data", "loop"]], "bert_trainer.data": [["rows", "shards"]]},
        "typing_cycles": {"bert_trainer": [["data", "loop", "model"]], "bert_trainer.data": [["rows", "shards"]]},
        "covered": {"bert_trainer": [3, 4], "bert_trainer.data": [0, 2]},
        "uncovered": ["bert_trainer.model", "bert_trainer.data.rows", "bert_trainer.data.shards"],
        "small_files": {"__main__.py": 1, "data/rows.py": 9, "data/shards.py": 13, "loop.py": 5, "model.py": 4},
        "longest_file": ["data/shards.py", 13],
        "lines": 28,
        "comment_lines": 1,
        "docstring_lines": 4,
    }
    assert document["duplicates"] == [
        {
            "lines": 6,
            "first": "trainer/bert_trainer/data/rows.py:2-7",
            "second": "trainer/bert_trainer/data/shards.py:8-13",
        }
    ]


def test_check_fails_on_a_cycle_and_on_nothing_else(checkout: Path) -> None:
    assert measure(checkout).returncode == 0
    assert measure(checkout, "--check").returncode == 1
    rows = checkout / "trainer/bert_trainer/data/rows.py"
    rows.write_text(BLOCK)
    assert measure(checkout, "--check").returncode == 0


def test_an_import_against_a_contract_goes_up_without_a_cycle(checkout: Path) -> None:
    (checkout / "trainer/bert_trainer/data/rows.py").write_text("")
    (checkout / "pyproject.toml").write_text(f'{CONTRACT}layers = ["__main__", "data | model", "loop"]\n')
    (package,) = json.loads(measure(checkout, "--json").stdout)["packages"]
    assert package["upward_imports"] == [
        "bert_trainer.loop -> bert_trainer.data.shards (deferred)",
        "bert_trainer.loop -> bert_trainer.model",
    ]
    assert package["cycles"] == {}


def test_every_figure_says_what_it_counts(checkout: Path) -> None:
    lines = measure(checkout).stdout.splitlines()
    assert "  levels: 3 (entries on the longest path of imports, a cycle counted as one)" in lines
    assert "    bert_trainer.data: rows, shards" in lines
    assert "    bert_trainer.data (0 of 2): rows, shards" in lines
    assert "duplicated blocks: 1 (pairs of places that share 6 or more identical lines on end)" in lines


def test_another_folder_is_refused_by_name(tmp_path: Path) -> None:
    answer = measure(tmp_path)
    assert answer.returncode == 2
    assert f"{tmp_path}: holds neither trainer/bert_trainer nor operator/bert_operator" in answer.stderr
