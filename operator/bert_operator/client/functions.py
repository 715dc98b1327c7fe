"""A Python function as the training program of a job: its source travels in ``spec.workspace``.

What runs is the text of the function alone, in another interpreter. So whatever would not be there (names of its
module, values of functions around it, defaults that are objects) is refused here, and not hours later by a rank.
"""

from __future__ import annotations

import ast
import builtins
import copy
import dis
import inspect
import json
import re
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from bert_operator.errors import InputError, render_value
from bert_operator.names import API_VERSION, KIND, MAX_JOB_NAME

LONGEST_WORD = 4096
"""Characters of an entry of ``command`` and ``args``, as the job's schema allows."""
LARGEST_SOURCE = 64 * 1024
"""Bytes: a quarter of what a spec may have, and half of what Linux takes as one word of a command line, which
horovodrun makes of all of them."""
_STAGE = "train"

_PROGRAM = """\
import __future__, json, linecache, sys, traceback
name, given, *parts = sys.argv[1:]
text, file, given = "".join(parts), "<" + name + ">", json.loads(given)
linecache.cache[file] = len(text), None, text.splitlines(True), file
sys.excepthook = traceback.print_exception
exec(compile(text, file, "exec", __future__.annotations.compiler_flag), scope := {"__name__": "__main__"})
scope[name](**given)
"""
"""Runs the rest of its command line: the function's name, its arguments as JSON, its source in parts. Annotations are
left alone, as in a file with that import: they may name what is imported inside. Python's own hook would show no lines
of a file that is none."""

Json = dict[str, Any]


def make_function_manifest(
    function: Callable[..., object],
    arguments: Mapping[str, Any] | None = None,
    *,
    base: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Json:
    """Return the manifest of a job whose ranks all call a function, under the job's launcher.

    Its source is what travels: it imports what it needs in its body, and takes everything else as arguments. It runs
    where a program of one's own does, so exit codes, progress lines and ``BERT_RUN_CONFIG`` are those of
    docs/guides/own-program.md. What it returns is dropped; a SystemExit ends the rank with its code.

    Args:
        function: Defined by ``def``, in a file or a notebook.
        arguments: By name, values that JSON has; None: none.
        base: The manifest whose pods, ranks, volumes and output it gets, and whose data is prepared before; None: one
            rank, and nothing prepared.
        name: Of the job; None: the base's, else the function's.

    Raises:
        InputError: The function would not run from its source alone, or something is too long.
    """
    source = read_source(function)
    command = ["python", "-c", _PROGRAM]
    words = [function.__name__, _write_arguments(function, arguments or {}), *_parts(source)]
    manifest = copy.deepcopy(dict(base)) if base is not None else _plain_manifest(function.__name__)
    if manifest.get("kind") != KIND or not isinstance(manifest.get("spec"), dict):
        raise InputError(f"base: got {render_value(manifest.get('kind'))}; allowed: a manifest of kind {KIND}")
    if name is not None:
        manifest["metadata"] = {**(manifest.get("metadata") or {}), "name": name}
    # The volume of the base's own program may hold modules that the function imports.
    volume = {key: value for key, value in (manifest["spec"].get("workspace") or {}).items() if key == "volume"}
    manifest["spec"]["workspace"] = {**volume, "command": command, "args": words}
    return manifest


def read_source(function: object) -> str:
    """Return the source of a function that runs from it alone, ready to be executed. Raises InputError."""
    shown = getattr(function, "__qualname__", None) or repr(type(function).__name__)
    if not isinstance(function, types.FunctionType):
        _refuse(f"{shown}, a {type(function).__name__}", "call what it stands for in a function defined by def")
    if function.__name__ == "<lambda>":
        _refuse("a lambda", "write it as a function with def")
    if "." in function.__qualname__.rpartition("<locals>.")[2]:
        _refuse(f"{shown}, a method", "move its body into a function, and pass what it needs as arguments")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        _refuse(f"{shown}, which would only be begun by a call", "leave out async and yield, or call it in another one")
    if function.__code__.co_freevars:
        names = ", ".join(function.__code__.co_freevars)
        _refuse(f"{shown} with {names} of the function around it", "pass them as arguments")
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        _refuse(f"{shown}, whose source is nowhere", "define it in a file or a cell of a notebook, not at a prompt")
    # Not textwrap.dedent: it would change texts of several lines inside.
    source = f"if True:\n{source}" if source[:1].isspace() else source
    _check_text(shown, source, function.__name__)
    if unknown := list(dict.fromkeys(_foreign_names(function.__code__, function.__name__))):
        hint = "import modules inside the function, define helpers there, and pass values as arguments"
        _refuse(f"{shown} with {', '.join(unknown)} of its module", hint)
    if (size := len(source.encode())) > LARGEST_SOURCE:
        raise InputError(
            f"function: got {shown} of {size / 1024:.1f} KiB; allowed: at most {LARGEST_SOURCE // 1024} KiB",
            hint="keep modules in the image or in a folder of spec.workspace.volume, and import them",
        )
    return source


def _check_text(shown: str, source: str, name: str) -> None:
    """Refuse what the text of a function alone does not say, or says only in a notebook."""
    try:
        (node,) = ast.parse(source).body
    except (SyntaxError, ValueError):
        _refuse(f"{shown}, whose source is no Python", "leave out commands of notebooks (%, !)")
    node = node.body[0] if isinstance(node, ast.If) else node
    if not isinstance(node, ast.FunctionDef) or node.name != name:
        _refuse(f"{shown}, whose source is something else by now", "define it again, or start Python again")
    if node.decorator_list:
        _refuse(f"{shown} with a decorator", "leave it out, or use it inside")
    for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
        try:
            ast.literal_eval(default)
        except ValueError:
            hint = "make it None and set it in the body, or pass it as an argument"
            _refuse(f"{shown} with the default {ast.unparse(default)}", hint)


def _foreign_names(code: types.CodeType, own: str) -> Iterator[str]:
    """Yield global names that nothing defines where the function runs."""
    instructions = list(_instructions(code))
    defined = {str(word.argval) for word in instructions if word.opname in ("STORE_GLOBAL", "STORE_NAME")} | {own}
    for word in instructions:
        name = str(word.argval)
        if word.opname in ("LOAD_GLOBAL", "LOAD_NAME") and name not in defined and not _is_everywhere(name):
            yield name


def _is_everywhere(name: str) -> bool:
    return hasattr(builtins, name) or name in ("__name__", "__qualname__", "__module__")


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)


def _write_arguments(function: Callable[..., object], arguments: Mapping[str, Any]) -> str:
    given = dict(arguments)
    try:
        inspect.signature(function).bind(**given)
    except TypeError as error:
        signature = f"{function.__name__}{inspect.signature(function)}"
        raise InputError(f"arguments: got {render_value(given)} ({error}); allowed: those of {signature}") from error
    try:
        text = json.dumps(given, ensure_ascii=False, allow_nan=False)
        is_same = json.loads(text) == given
    except (TypeError, ValueError, RecursionError):
        is_same = False
    if not is_same:
        wrong = next((name for name, value in given.items() if not _is_json(value)), "one")
        raise InputError(
            f"arguments.{wrong}: got {given.get(wrong)!r}; allowed: what JSON gives back as it was: text, finite "
            "numbers, true, false, None, lists, and dictionaries whose keys are text",
            hint="pass a list for a tuple and a text for a path, and make the rest inside the function",
        )
    if len(text) > LONGEST_WORD:
        raise InputError(
            f"arguments: got {len(text)} characters of JSON; allowed: at most {LONGEST_WORD}",
            hint="write long values to a file on a volume, and pass its path",
        )
    return text


def _is_json(value: object) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def _parts(source: str) -> Iterator[str]:
    """Yield the source in words that a job may have: whole lines, as far as these are short enough."""
    half = LONGEST_WORD // 2
    part = ""
    for line in source.splitlines(keepends=True):
        for piece in (line[begin : begin + half] for begin in range(0, len(line), half)):
            if part and len(part) + len(piece) > LONGEST_WORD:
                yield part
                part = ""
            part += piece
    if part:
        yield part


def _plain_manifest(function_name: str) -> Json:
    name = re.sub(r"[^a-z0-9]+", "-", function_name.lower()).strip("-")[:MAX_JOB_NAME].rstrip("-") or _STAGE
    # A job needs a model, data and a stage, with a sequence for each rank at least. The function makes nothing of them.
    pretrain = {"sequenceLength": 128, "globalBatchSize": 65536, "learningRate": 0.001, "length": {"steps": 1}}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {
            "model": {"preset": "tiny"},
            "dataset": {"path": "data"},
            "stages": [{"name": _STAGE, "pretrain": pretrain}],
            "output": {"path": f"runs/{name}", "ifExists": "Resume"},
        },
    }


def _refuse(got: str, hint: str) -> NoReturn:
    allowed = "a function that needs nothing but its own source and its arguments"
    raise InputError(f"function: got {got}; allowed: {allowed}", hint=hint)
