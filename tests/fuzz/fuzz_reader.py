"""What is fuzzed: a function of the project that reads what somebody else wrote, and what it may answer.

An input is one file's bytes. ``trial.judge`` says what a reader may do with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from bert_operator.errors import OperatorError
from bert_trainer.errors import TrainerError

Mutate = Callable[[bytes, "Chance"], bytes]
"""Returns a changed input."""


class NoInput(Exception):
    """What was to become a file makes none: nothing was shown."""


class Chance:
    """Where mutations take their decisions from: libFuzzer's seed, so that a run can be repeated."""

    def __init__(self, seed: int, mutate_bytes: Callable[[bytes], bytes]) -> None:
        """mutate_bytes: libFuzzer's own mutation."""
        import random

        self.draw = random.Random(seed)
        self.bytes = mutate_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One reader and the files that it is shown."""

    name: str
    """As in ``make fuzz FUZZ_ARGS="--only shards"`` and as the folder of its corpus."""
    read: Callable[[Path], object]
    """Reads the input, which lies at the path that it is given; the results are dropped."""
    seeds: Callable[[Path], Iterator[bytes]]
    """Yields sound inputs. The path is an empty folder for the writers."""
    modules: tuple[str, ...]
    """Whose lines count; of functions alone, since what lies outside of them runs on import."""
    leaves_out: tuple[str, ...] = ()
    """Functions in these modules that no input enters: what writes, and what other callers use. An input that
    enters one is a finding."""
    only: tuple[str, ...] = ()
    """The functions that count, where reading is a small part of the modules; empty: all but those above."""
    file_name: str = "input"
    """Under which the input lies: some readers go by it."""
    mutate: Mutate | None = None
    """Changes an input by what it is made of; None: by its bytes alone."""
    names_file: bool = True
    """Whether a refusal has to name the file: text that came from no file has no name."""
    advises: bool = True
    """Whether a refusal has to say what to do: people do not write the files that the operator renders."""
    max_bytes: int = 1 << 14
    refusals: tuple[type[BaseException], ...] = (TrainerError, OperatorError)
    """What it may raise."""

    def lines(self) -> dict[str, set[int]]:
        """Return the lines that count, by file."""
        import importlib

        found: dict[str, set[int]] = {}
        for name in self.modules:
            module = importlib.import_module(name)
            path = inspect.getsourcefile(module)
            assert path is not None
            code = compile(Path(path).read_text(), path, "exec", dont_inherit=True)
            found[path] = set(_lines_of_functions(code, self.leaves_out, self.only))
        return found


_RUN_ON_IMPORT = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")


def _lines_of_functions(
    code: CodeType, leaves_out: tuple[str, ...], only: tuple[str, ...], inside: bool = False
) -> Iterator[int]:
    for constant in code.co_consts:
        if not isinstance(constant, CodeType) or constant.co_name in leaves_out:
            continue
        if not inside and constant.co_name in _RUN_ON_IMPORT:
            continue
        if not constant.co_flags & inspect.CO_OPTIMIZED:  # a class
            yield from _lines_of_functions(constant, leaves_out, only)
        elif inside or not only or constant.co_name in only:
            # The first line is that of the definition, which runs on import.
            yield from (line for _, _, line in constant.co_lines() if line and line != constant.co_firstlineno)
            yield from _lines_of_functions(constant, leaves_out, only, True)
