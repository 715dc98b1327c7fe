"""Makes the loss of chosen steps something else, and the gradients with it: not a number, or a multiple.

For tests of training health, in three places. In the test's own process: ``spoil(monkeypatch, "phase1:12=nan")``. In
ranks that it starts: ``environment_of`` and ``write_hook``. In pods: put this file, called ``sitecustomize.py``, into a
folder that the pods see, and name the folder in ``PYTHONPATH`` and the steps in ``BERT_TEST_LOSS``; it needs nothing
else, and nothing in the image.

The steps are a comma-separated list of ``<stage>:<step>=<factor>``: the step is counted from 1 in the stage, the factor
is anything that float() reads. All ranks do the same.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

VARIABLE = "BERT_TEST_LOSS"
LEARNER = "bert_trainer.training.learner"


def parse(text: str) -> dict[tuple[str, int], float]:
    """Return the factor of every step that is to be spoilt, by stage and step."""
    found = {}
    for entry in filter(None, text.split(",")):
        place, factor = entry.split("=")
        stage, step = place.split(":")
        found[stage, int(step)] = float(factor)
    return found


def spoiling(take_step: Any, factors: dict[tuple[str, int], float]) -> Any:
    """Return ``take_step`` with another loss in some steps."""

    def take(learner: Any, batches: Any, loss_of: Any, *arguments: Any, **named: Any) -> Any:
        objective = sys._getframe(1).f_locals["objective"]
        factor = factors.get((objective.stage.name, objective.step + 1))
        spoilt = loss_of if factor is None else lambda batch: loss_of(batch) * factor
        return take_step(learner, batches, spoilt, *arguments, **named)

    return take


def spoil(monkeypatch: Any, text: str) -> None:
    """Spoil steps of runs in this process."""
    from bert_trainer.training import learner, loop

    monkeypatch.setattr(loop, "take_step", spoiling(learner.take_step, parse(text)))


def write_hook(folder: Path) -> Path:
    """Write what Python imports at its start if the folder is in PYTHONPATH, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(__file__, folder / "sitecustomize.py")
    return folder


def environment_of(folder: Path, text: str, *, path: str) -> dict[str, str]:
    """Return the variables for ranks. path: what PYTHONPATH has besides."""
    return {VARIABLE: text, "PYTHONPATH": f"{write_hook(folder)}{os.pathsep}{path}"}


class _Hook(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the learner's module as always, and then replaces its ``take_step``; others import it from there."""

    def __init__(self, text: str) -> None:
        self._factors = parse(text)
        self._loader: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != LEARNER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        module.take_step = spoiling(module.take_step, self._factors)


if __name__ == "sitecustomize" and os.environ.get(VARIABLE):
    sys.meta_path.insert(0, _Hook(os.environ[VARIABLE]))
