"""docs/reference/client.md from the signatures and docstrings of ``bert_operator.client``.

Knows docstrings in the form of this repository (a text, then ``Args:`` and ``Raises:``) and nothing of jobs.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass

from bert_operator import client
from markdown_table import render_rows
from model_page import MARK, clean

INTRODUCTION = """
`bert_operator.client` does from Python what [kubectl bert](../guides/kubectl-plugin.md#from-python) does, for notebooks
and scripts. It needs kubectl, whose contexts and credentials it takes, and imports the standard library alone. All
names below are imported from `bert_operator.client`. This prints the jobs of a namespace, and changes nothing:
""".strip()

EXAMPLE = """
from bert_operator.client import ApiRefused, Client

try:
    for job in Client(namespace="default").jobs():
        print(job.name, job.phase, job.message)
except ApiRefused as error:
    print(error)
""".strip()

ERRORS = """
All are `bert_operator.errors.OperatorError`. So are `InputError`, an argument, a job or a program that cannot be used,
and its kind `DocumentError`, a manifest that cannot be read; both are imported from `bert_operator.errors`. The text of
an error is one sentence and, where there is a next step, a second line that begins with `hint:`.
""".strip()

_SECTION = re.compile(r"^(Args|Raises):$", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+): ", re.MULTILINE)


def render_client_page() -> str:
    """Every public name with signature, arguments, result and errors."""
    found = {name: getattr(client, name) for name in client.__all__}
    errors = {name: value for name, value in found.items() if inspect.isclass(value) and issubclass(value, Exception)}
    # The client first; what it takes and gives afterwards.
    names = sorted(found.keys() - errors.keys(), key=lambda name: (name != "Client", name))
    parts = ["# Python client", MARK, INTRODUCTION, f"```python\n{EXAMPLE}\n```"]
    for name in names:
        parts += [f"## {name}", *(_render_class(found[name]) if inspect.isclass(found[name]) else _render(found[name]))]
    parts += ["## Errors", ERRORS]
    for name, error in errors.items():
        base = error.__bases__[0].__name__
        parts += [f"### {name}", f"A kind of `{base}`. {_text(_docstring(error))}"]
    return "\n\n".join(parts) + "\n"


def _render_class(found: type) -> Iterator[str]:
    yield _text(_docstring(found))
    if is_dataclass(found):
        yield render_rows(("Field", "Type", "Meaning"), _fields(found))
        return
    yield from _render(found.__init__, found.__name__)  # type: ignore[misc]  # of the class itself, not of an instance
    members = [(name, value) for name, value in vars(found).items() if not name.startswith("_")]
    properties = [
        (f"`{name}`", f"`{value.fget.__annotations__['return']}`", _text(_docstring(value)))
        for name, value in members
        if isinstance(value, property)
    ]
    if values := [*_fields(found), *properties]:
        yield render_rows(("Property", "Type", "Meaning"), values)
    for name, value in members:
        if inspect.isfunction(value):
            yield f"### {found.__name__}.{name}"
            yield from _render(value)


def _render(function: object, name: str | None = None) -> Iterator[str]:
    """Yield the parts of a function; name: what it is called by, where that is not its own name."""
    assert inspect.isfunction(function)
    text, sections = _split(_docstring(function))
    yield f"```text\n{name or function.__name__}{_signature(function)}\n```"
    yield _text(text)
    if "Args" in sections:
        yield render_rows(("Argument", "Meaning"), [(f"`{key}`", meaning) for key, meaning in sections["Args"]])
    if "Raises" in sections:
        yield render_rows(("Error", "When"), [(f"`{key}`", meaning) for key, meaning in sections["Raises"]])


def _signature(function: object) -> str:
    """Return a signature as it stands in the source: defaults that are functions have no other readable form."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body  # type: ignore[arg-type]
    assert isinstance(node, ast.FunctionDef)
    given = node.args
    given.args = [argument for argument in given.args if argument.arg != "self"]
    # ast.unparse writes defaults of annotated arguments without blanks.
    written = re.sub(r"(?<=[\w\])])=(?=[\w'\"({\[])", " = ", ast.unparse(given))
    is_maker = node.name == "__init__"
    return f"({written})" if is_maker or node.returns is None else f"({written}) -> {ast.unparse(node.returns)}"


def _fields(found: type) -> list[tuple[str, str, str]]:
    """Return name, type and meaning of each field; the meaning is the text below it."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(found))).body
    assert isinstance(node, ast.ClassDef)
    rows = []
    for number, item in enumerate(node.body):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            match node.body[number + 1 : number + 2]:
                case [ast.Expr(value=ast.Constant(value=str(text)))]:
                    meaning = _text(text)
                case _:
                    meaning = "-"
            rows.append((f"`{item.target.id}`", f"`{ast.unparse(item.annotation)}`", meaning))
    return rows


def _split(docstring: str) -> tuple[str, dict[str, list[tuple[str, str]]]]:
    """Return the text before the sections, and the entries of each section."""
    text, *rest = _SECTION.split(docstring)
    sections = {}
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        _, *entries = _ENTRY.split(textwrap.dedent(body.strip("\n")))
        sections[title] = [(key, _text(words)) for key, words in zip(entries[::2], entries[1::2], strict=True)]
    return text, sections


def _docstring(found: object) -> str:
    text = inspect.getdoc(found)
    assert text, f"{found}: got no docstring; allowed: one, the reference is made of it"
    return text


def _text(text: str) -> str:
    """Return paragraphs as Markdown, each on one line."""
    return "\n\n".join(clean(part) for part in text.strip().split("\n\n"))
