"""Where pydantic is missing, the report's own reader gives the trainer the same configuration.

In a process of its own, from which pydantic is hidden: here the trainer's sections are pydantic's already.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_report import document_reader
from gpu_report.document_reader import BaseModel, ConfigDict, ValidationError
from hidden_packages import hide_packages
from tiny_run import pretrain_stage, run_config, run_document

ROOT = Path(__file__).parents[2]
PRINT = """
import json, sys
from gpu_report import stand_ins
assert "pydantic" in stand_ins.install()
from bert_trainer.config.checks import parse_run_config
from bert_trainer.errors import InputError
for line in sys.stdin:
    try:
        found = parse_run_config(json.loads(line)).model_dump(mode="json")
    except InputError as error:
        found = error.message.splitlines()[1]
    print(json.dumps(found))
"""


def read(folder: Path, *documents: dict[str, Any]) -> list[Any]:
    """Return what a process without pydantic makes of some documents."""
    lines = "".join(json.dumps(document) + "\n" for document in documents)
    roots = [hide_packages(folder, "pydantic"), str(ROOT / "tools"), str(ROOT / "trainer")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
    process = subprocess.run(
        [sys.executable, "-c", PRINT], input=lines, env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines()]


def test_it_reads_what_pydantic_reads_and_names_what_does_not_fit(tmp_path: Path) -> None:
    stages = [
        pretrain_stage(micro_batch_size="auto", evaluation={
            "every_steps": 2, "max_samples": None, "micro_batch_size": 4, "max_predictions_per_sequence": 5,
            "shards": None, "data_range": None,
        }),
        {"kind": "export", "name": "export", "format": "onnx"},
    ]  # fmt: skip
    changes = {"stages": stages, "profile_steps": {"first": 2, "last": 3}}
    document = run_document(tmp_path / "run", tmp_path / "data", **changes)
    wrong = {**document, "precision": "fp8"}
    unknown = {**document, "optimizer": {**document["optimizer"], "momentum": 1}}
    expected = run_config(tmp_path / "run", tmp_path / "data", **changes).model_dump(mode="json")
    assert read(tmp_path, document, wrong, unknown) == [
        expected,
        "  precision: got 'fp8'; allowed: 'fp32', 'tf32', 'bf32', 'avx-fp32', 'bf16', 'fp16', 'fp64'",
        "  optimizer.momentum: got 1; allowed: no such field",
    ]


class Inner(BaseModel):
    size: int
    share: float = 0.5


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    inner: Inner
    sizes: tuple[int, ...] = ()
    by_name: dict[str, Inner] = {}
    text: str | None = None


def test_sections_are_compared_and_copied_by_value_and_never_change() -> None:
    one = Outer.model_validate({"inner": {"size": 3}, "sizes": [1, 2], "by_name": {"a": {"size": 1, "share": 1}}})
    assert one == Outer(inner=Inner(size=3), sizes=(1, 2), by_name={"a": Inner(size=1, share=1.0)})
    assert one.model_copy(update={"text": "x"}) == Outer(inner=one.inner, sizes=(1, 2), by_name=one.by_name, text="x")
    assert one.model_dump(mode="json")["sizes"] == [1, 2]
    assert [*Outer.model_fields] == ["inner", "sizes", "by_name", "text"]
    with pytest.raises(AttributeError, match="never change"):
        one.text = "y"


@pytest.mark.parametrize(
    ("document", "location"),
    [
        ({}, ("inner",)),
        ({"inner": {"size": True}}, ("inner", "size")),
        ({"inner": {"size": 1}, "sizes": [1, "2"]}, ("sizes", 1)),
        ({"inner": {"size": 1}, "sizes": 3}, ("sizes",)),
        ({"inner": {"size": 1}, "other": 3}, ("other",)),
        ({"inner": 1}, ("inner",)),
    ],
)
def test_what_does_not_fit_is_named_by_its_place(document: dict[str, Any], location: tuple[str | int, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(document)
    assert caught.value.errors()[0]["loc"] == location


def test_it_has_every_name_that_the_trainer_imports_from_pydantic() -> None:
    imported = [
        name.strip()
        for path in (ROOT / "trainer").rglob("*.py")
        for line in path.read_text().splitlines()
        if line.startswith("from pydantic")
        for name in line.partition(" import ")[2].split(",")
    ]
    assert "BaseModel" in imported
    assert [name for name in imported if not hasattr(document_reader, name)] == []
    assert importlib.import_module("pydantic") is not document_reader
