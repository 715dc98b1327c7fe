"""A function as a job: what its manifest runs, and which functions are refused.

Inputs: functions of this file. Observed: the manifest as the operator reads it, and what its command prints where it is
run as kubelet would.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_operator.api.parsing.validation import parse_job
from bert_operator.client import make_function_manifest
from bert_operator.client.functions import LARGEST_SOURCE, LONGEST_WORD
from bert_operator.errors import InputError
from patience import PATIENCE_S
from sample_job import sample_document

OF_THIS_MODULE = 3


def greet(name: str, times: int = 2, *, ends: tuple[str, ...] = ("!",)) -> json.JSONEncoder | None:
    import os

    class Greeter:
        def say(self) -> None:
            print(f"Grüße, {name}{ends[0]}\n" * times, os.environ["HOME"], "$(HOME) $$", OWN)

    global OWN
    OWN = "own"
    text = """
  of
    its own width
"""
    print(text.splitlines())
    Greeter().say()
    return None


def run(manifest: dict[str, Any], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run what a pod of the job would."""
    workspace = parse_job(manifest).spec.workspace
    assert workspace is not None
    environment = {**os.environ, "HOME": "/home/bert", **variables}
    # What a pod is rendered with reaches its program as it stands (tests/rendering/test_properties.py).
    program, *rest = (*workspace.command, *workspace.args)
    assert program == "python"
    return subprocess.run([sys.executable, *rest], env=environment, capture_output=True, text=True, timeout=PATIENCE_S)


def test_a_function_runs_from_its_source_and_its_arguments() -> None:
    # Its annotations are never looked up: json is not imported there.
    found = run(make_function_manifest(greet, {"name": "$(HOME) $$x", "times": 1}))
    own = "['', '  of', '    its own width']\nGrüße, $(HOME) $$x!\n /home/bert $(HOME) $$ own\n"
    assert (found.returncode, found.stdout, found.stderr) == (0, own, "")


@pytest.mark.parametrize("name", ["name", "given", "text", "parts"])
def test_a_function_may_be_called_anything(name: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"def {name}(given):\n    print(given)\n")
    scope: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    assert run(make_function_manifest(scope[name], {"given": "$x"})).stdout == "$x\n"


def test_a_function_ends_its_rank_as_a_program_does() -> None:
    def stop(code: int) -> None:
        raise SystemExit(code)

    def fail() -> None:
        raise ValueError("its own words")  # the line that a traceback shows

    assert run(make_function_manifest(stop, {"code": 3})).returncode == 3
    failed = run(make_function_manifest(fail))
    assert failed.returncode == 1
    assert 'File "<fail>", line 3, in fail' in failed.stderr
    assert "# the line that a traceback shows" in failed.stderr


def test_a_long_function_is_cut_into_words_that_a_job_takes(tmp_path: Any) -> None:
    lines = [f"    total += {number}  # {'$' * 50}" for number in range(300)]
    long = f"    text = {'$$x' * 3000!r}"
    source = "\n".join(["def sum_up():", "    total = 0", *lines, long, "    print(total, text.count('$'))", ""])
    found = run(make_function_manifest(defined(source, tmp_path)))
    assert (found.stdout, found.stderr) == (f"{sum(range(300))} 6000\n", "")


def test_the_longest_function_fits_into_a_job(tmp_path: Any) -> None:
    head = "def long():\n"
    line = f"    {'$' * 95}\n".replace("$", "#", 1)
    count = (LARGEST_SOURCE - len(head) - len("    return 0\n")) // len(line)
    manifest = make_function_manifest(defined(f"{head}{line * count}    return 0\n", tmp_path))
    assert run(manifest).returncode == 0
    with pytest.raises(InputError, match=r"^function: got long of 64\.\d KiB; allowed: at most 64 KiB\nhint: keep"):
        make_function_manifest(defined(f"{head}{line * (count + 1)}    return 0\n", tmp_path))


def defined(source: str, folder: Any) -> Callable[..., object]:
    """Return the function in a source, as an imported file would define it."""
    file = folder / "defined.py"
    file.write_text(source)
    names: dict[str, Any] = {}
    exec(compile(source, str(file), "exec"), names)
    (found,) = (value for name, value in names.items() if name != "__builtins__")
    assert callable(found)
    return found  # type: ignore[no-any-return]


def test_a_function_takes_the_place_of_the_base_and_its_program() -> None:
    def change(spec: dict[str, Any]) -> None:
        volume = {"persistentVolumeClaim": {"claimName": "code"}}
        spec["workspace"] = {"volume": volume, "command": ["x"], "args": ["y"]}

    base = sample_document(change)
    manifest = make_function_manifest(greet, {"name": "x"}, base=base, name="other")
    assert base == sample_document(change)
    assert manifest["metadata"] == {"name": "other"}
    assert manifest["spec"]["stages"] == base["spec"]["stages"]
    workspace = manifest["spec"]["workspace"]
    assert workspace["volume"] == base["spec"]["workspace"]["volume"]
    assert workspace["args"][:2] == ["greet", '{"name": "x"}']
    assert "".join(workspace["args"][2:]).startswith("def greet(")


def test_without_a_base_a_job_is_one_rank_of_the_functions_name() -> None:
    def Train_My_Model__() -> None:  # noqa: N802
        pass

    job = parse_job(make_function_manifest(Train_My_Model__))
    assert (job.metadata.name, job.spec.ranks, job.spec.output.path) == ("train-my-model", 1, "runs/train-my-model")


def test_a_base_is_a_job() -> None:
    with pytest.raises(InputError, match='^base: got "Pod"; allowed: a manifest of kind BertPretrainJob'):
        make_function_manifest(greet, {"name": "x"}, base={"kind": "Pod", "spec": {}})


class Trainer:
    def train(self) -> None:
        pass


def make_closure() -> Callable[[], int]:
    steps = 5

    def train() -> int:
        return steps

    return train


def uses_a_module() -> str:
    return json.dumps([OF_THIS_MODULE for _ in range(3)])


def has_a_default(of: Any = OF_THIS_MODULE) -> None:
    pass


def has_a_keyword_default(*, of: Any = OF_THIS_MODULE) -> None:
    pass


@functools.cache
def is_wrapped() -> None:
    pass


def decorate(function: Callable[[], None]) -> Callable[[], None]:
    return function


@decorate
def is_decorated() -> None:
    pass


async def waits() -> None:
    pass


def yields() -> Any:
    yield 1


NOWHERE: dict[str, Any] = {}
exec("def nowhere(): pass", NOWHERE)

REFUSED = {
    "lambda": (lambda: None, "a lambda", "with def"),
    "method": (Trainer().train, "Trainer.train, a method", "defined by def"),
    "function of a class": (Trainer.train, "Trainer.train, a method", "into a function"),
    "class": (Trainer, "Trainer, a type", "defined by def"),
    "builtin": (print, "print, a builtin_function_or_method", "defined by def"),
    "partial": (functools.partial(greet, "x"), "'partial', a partial", "defined by def"),
    "text": ("train.py", "'str', a str", "defined by def"),
    "cached": (is_wrapped, "is_wrapped, a _lru_cache_wrapper", "defined by def"),
    "closure": (make_closure(), "make_closure.<locals>.train with steps of", "as arguments"),
    "names of its module": (uses_a_module, "uses_a_module with json, OF_THIS_MODULE of its module", "inside"),
    "default": (has_a_default, "has_a_default with the default OF_THIS_MODULE", "make it None"),
    "keyword": (has_a_keyword_default, "has_a_keyword_default with the default OF_THIS_MODULE", "make it None"),
    "decorator": (is_decorated, "is_decorated with a decorator", "use it inside"),
    "coroutine": (waits, "waits, which would only be begun", "leave out async"),
    "generator": (yields, "yields, which would only be begun", "yield"),
    "of a prompt": (NOWHERE["nowhere"], "nowhere, whose source is nowhere", "a cell of a notebook"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_function_that_needs_more_than_its_source_is_refused(case: str) -> None:
    function, got, hint = REFUSED[case]
    with pytest.raises(InputError) as refused:
        make_function_manifest(function)  # type: ignore[arg-type]
    sentence, _, shown = str(refused.value).partition("\nhint: ")
    assert sentence.startswith(f"function: got {got}")
    assert sentence.endswith("; allowed: a function that needs nothing but its own source and its arguments")
    assert hint in shown


def test_commands_of_a_notebook_are_refused(tmp_path: Any) -> None:
    source = "def train():\n    pass\n"
    train = defined(source, tmp_path)
    (tmp_path / "defined.py").write_text("def train():\n    !ls\n")
    with pytest.raises(InputError, match="train, whose source is no Python"):
        make_function_manifest(train)
    (tmp_path / "defined.py").write_text("def other():\n    pass\n")
    with pytest.raises(InputError, match="train, whose source is something else by now"):
        make_function_manifest(train)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, r"^arguments: got \{\} \(missing a required argument: 'name'\); allowed: those of greet\(name"),
        ({"name": "x", "speed": 1}, "got an unexpected keyword argument 'speed'"),
        ({"name": ("x",)}, r"^arguments.name: got \('x',\); allowed: what JSON gives back as it was"),
        ({"name": {1: "x"}}, r"^arguments.name: got \{1: 'x'\}"),
        ({"name": "x", "times": float("nan")}, r"^arguments.times: got nan"),
        ({"name": "x", "times": object}, r"^arguments.times: got <class 'object'>"),
        (
            {"name": "$" * LONGEST_WORD},
            rf"^arguments: got {LONGEST_WORD + 12} characters of JSON; allowed: at most 4096",
        ),
    ],
)
def test_arguments_are_those_of_the_function_and_of_json(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        make_function_manifest(greet, arguments)
