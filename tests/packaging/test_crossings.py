"""tools/crossings.py follows a value through a package; here one of four modules, made for the purpose."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = Path(__file__).parents[2] / "tools/crossings_probe"
MODULES = {
    "first.py": "from bert_trainer import holder, other, taker\n\n\ndef main(text):\n"
    "    rate = taker.read(text)\n    other.count(3)\n    holder.carry({'deep': {'rate': rate}})\n    taker.end()\n"
    "    other.late(rate)\n",
    "taker.py": "def read(text):\n    return float(text)\n\n\ndef end():\n    pass\n",
    "holder.py": "def carry(document):\n    return len(document)\n",
    "other.py": "def count(number):\n    return number\n\n\ndef late(rate):\n    return rate\n",
}


@pytest.mark.parametrize(
    ("until", "ends"),
    [("bert_trainer.taker.end", ["ends bert_trainer.taker"]), ("", ["passes bert_trainer.other"])],
)
def test_what_holds_a_value_and_what_leads_to_it_are_told_apart(tmp_path: Path, until: str, ends: list[str]) -> None:
    package = tmp_path / "bert_trainer"
    package.mkdir()
    for name, text in {"__init__.py": "", **MODULES}.items():
        (package / name).write_text(text)
    output = tmp_path / "seen.txt"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (PROBE, tmp_path))),
        "CROSSINGS_OUTPUT": str(output),
        "CROSSINGS_WORD": "0.00612345",
        "CROSSINGS_NUMBER": "0.00612345",
        "CROSSINGS_UNTIL": until,
    }
    subprocess.run(
        [sys.executable, "-c", "from bert_trainer.first import main; main('0.00612345')"], env=environment, check=True
    )
    seen = output.read_text().splitlines()
    assert {"handles bert_trainer.first", "handles bert_trainer.taker", "passes bert_trainer.holder"} <= set(seen)
    assert "handles bert_trainer.holder" not in seen, "the section in which it stands is another one's"
    assert [line for line in seen if line.startswith("ends") or line == "passes bert_trainer.other"] == ends
