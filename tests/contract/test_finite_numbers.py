"""Neither infinity nor NaN is a setting: JSON knows neither, but Python's reader makes the one of 1e400 and takes both.

Inputs: the configurations that the operator is known to render, one number after the other replaced. Observed: the
refusal, by the field's name.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_trainer.config.checks import load_run_config, parse_run_config
from bert_trainer.errors import InputError

RENDERED = sorted((Path(__file__).parents[1] / "golden" / "run-config").glob("*.json"))


def places(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the place of every number that may have a fraction."""
    if isinstance(value, float):
        yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*place, key))


def replaced(document: Any, place: tuple[str | int, ...], value: float) -> Any:
    changed = copy.deepcopy(document)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_no_field_of_a_configuration_takes_one(path: Path, value: float) -> None:
    document = json.loads(path.read_text())
    found = list(places(document))
    assert len(found) >= 8
    parse_run_config(document)
    for place in found:
        with pytest.raises(InputError, match=f"{place[-1]}: got (inf|nan); Input should be a finite number"):
            parse_run_config(replaced(document, place, value))


def test_an_interval_that_never_ends_is_refused(tmp_path: Path) -> None:
    document = json.loads(RENDERED[0].read_text())
    number = next(index for index, stage in enumerate(document["stages"]) if stage["kind"] == "pretrain")
    evaluation = {"every_epochs": 12345.5, "micro_batch_size": 8}
    document["stages"][number]["evaluation"] = evaluation
    (tmp_path / "run.json").write_text(json.dumps(document).replace("12345.5", "1e400"))
    with pytest.raises(InputError, match=r"stages.*evaluation.every_epochs: got inf; Input should be a finite number"):
        load_run_config(tmp_path / "run.json")
