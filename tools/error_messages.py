"""Every text with which a program of this repository refuses something or gives up, read from the source by ``ast``.

Nothing is run or imported, so that a message in a branch that no test takes is found as well. What counts:

* a call of an exception class of this repository with a text, raised or not;
* ``ValueError`` and ``ArgumentTypeError`` with a text in modules that import pydantic or argparse, which show it to the
  user; elsewhere they are between functions, as ``RuntimeError`` and ``AssertionError`` are;
* ``sys.exit``, ``SystemExit`` and ``parser.error`` with a text;
* rules of a job and the problems that they report; findings of the doctor; what keeps a job's pods from running;
* what a shell script says before it ends (``die``).

What an f-string fills in becomes a name in braces. A function that puts a text which it is given into one of these has
the message of each of its calls.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

ROOTS = ("operator/bert_operator", "trainer/bert_trainer", "tools")
DOCTOR = "operator/bert_operator/doctor"
_STANDARD = {"Exception", "ValueError", "RuntimeError", "OSError", "LookupError", "KeyError", "TypeError"}
OF_USERS = {"ValueError", "ArgumentTypeError"}
_SHOWN_BY = {"pydantic", "argparse"}
_FINDINGS = {"error", "warning", "note"}
_DIE = re.compile(r'(?:\bdie (?=")|\becho (?="[^"]*" >&2; exit\b))"((?:[^"\\]|\\.)*)"')
_COMMAND = re.compile(r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_SHELL_FIELD = re.compile(r"\$\{?(\w+)[^}\s']*\}?")
_UNNAMED = "…"
_METHODS_OF_TEXT = {
    "lower",
    "strip",
    "lstrip",
    "rstrip",
    "split",
    "replace",
    "partition",
    "removeprefix",
    "removesuffix",
}
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.FloorDiv: operator.floordiv,
}
_DEEPEST = 3
"""Constants within constants, and choices within choices, that are followed."""


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """One text, and where it comes from."""

    folder: str
    """Of the module, below the repository."""
    text: str
    next_step: str
    """Empty: none is said."""
    kind: str
    """Name of the class; of others what they are: ``argument``, ``exit``, ``rule``, ``finding``, ``blocked``."""


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """An exception class of this repository."""

    name: str
    base: str
    meaning: str
    exit_code: int | None
    """None: that of its base, or none."""


def collect(root: Path, roots: Sequence[str] = ROOTS) -> tuple[list[Message], dict[str, dict[str, ErrorClass]]]:
    """Return the messages of all modules below some folders, each once, and the exception classes of each by name."""
    modules = {
        path: ast.parse(path.read_text(), filename=str(path))
        for folder in roots
        for path in sorted((root / folder).rglob("*.py"))
    }
    classes = {
        folder: _error_classes(tree for path, tree in modules.items() if path.is_relative_to(root / folder))
        for folder in roots
    }
    names = frozenset(name for found in classes.values() for name in found)
    everywhere = _unique_texts(modules.values())
    found: set[Message] = set()
    for path, tree in modules.items():
        folder = path.parent.relative_to(root).as_posix()
        found.update(_Reader(tree, folder, names, everywhere).messages())
    for path in (script for folder in roots for script in (root / folder).rglob("*.sh")):
        found.update(_script_messages(path.read_text(), path.parent.relative_to(root).as_posix()))
    return sorted(found), classes


def _script_messages(text: str, folder: str) -> Iterator[Message]:
    for said in _DIE.findall(_COMMAND.sub("{…}", text)):
        yield Message(folder, _in_one_line(_SHELL_FIELD.sub(r"{\1}", said)), "", "exit")


def _unique_texts(trees: Iterable[ast.Module]) -> dict[str, ast.expr]:
    """Return the constants that have one text wherever their name is given to one."""
    found: dict[str, list[ast.expr]] = {}
    for tree in trees:
        for name, value in _constants(tree).items():
            found.setdefault(name, []).append(value)
    return {name: values[0] for name, values in found.items() if len({ast.dump(value) for value in values}) == 1}


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    return {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and (_is_text(node.value) or _number(node.value) is not None)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _error_classes(trees: Iterable[ast.Module]) -> dict[str, ErrorClass]:
    found: dict[str, ErrorClass] = {}
    modules = list(trees)
    definitions = [node for tree in modules for node in tree.body if isinstance(node, ast.ClassDef)]
    numbers = {name: _number(value) for tree in modules for name, value in _constants(tree).items()}
    has_changed = True
    while has_changed:
        has_changed = False
        for node in definitions:
            bases = [base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in node.bases]
            base = next((it for it in bases if it in found or it in _STANDARD), None)
            if node.name not in found and base is not None:
                meaning = (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")
                found[node.name] = ErrorClass(node.name, base, meaning, _exit_code(node, numbers))
                has_changed = True
    return found


def _exit_code(node: ast.ClassDef, numbers: Mapping[str, int | None]) -> int | None:
    for line in node.body:
        if isinstance(line, ast.Assign) and any(getattr(it, "id", "") == "exit_code" for it in line.targets):
            value = line.value
            return numbers.get(value.id) if isinstance(value, ast.Name) else getattr(value, "value", None)
    return None


class _Reader:
    """Reads one module."""

    def __init__(
        self, tree: ast.Module, folder: str, classes: frozenset[str], constants: Mapping[str, ast.expr]
    ) -> None:
        """Take the module, and the constants of others."""
        self._tree, self._folder, self._classes = tree, folder, classes
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {it.asname or it.name for node in imports for it in node.names}
        modules = names | {str(node.module) for node in imports if isinstance(node, ast.ImportFrom)}
        self._is_shown = any(name.partition(".")[0] in _SHOWN_BY for name in modules)
        self._constants = {name: value for name, value in constants.items() if name in names} | _constants(tree)
        # By node, the innermost one around it, since those are met last.
        self._function_of: dict[ast.AST, ast.FunctionDef] = {}
        self._statement_of: dict[ast.AST, ast.stmt] = {}
        self._place_of: dict[ast.stmt, tuple[ast.AST, list[ast.stmt], int]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                self._function_of.update(dict.fromkeys(ast.walk(node), node))
            if isinstance(node, ast.stmt):
                self._statement_of.update(dict.fromkeys(ast.walk(node), node))
            for field in ("body", "orelse", "finalbody"):
                block = getattr(node, field, None)
                if isinstance(block, list):
                    self._place_of.update({line: (node, block, number) for number, line in enumerate(block)})

    def messages(self) -> Iterator[Message]:
        """Yield every message of the module."""
        given: dict[str, list[tuple[int, str, Message]]] = {}
        calls = [
            (call, name) for call in ast.walk(self._tree) if isinstance(call, ast.Call) for name in _names_of(call.func)
        ]
        for node, name in calls:
            function = self._function_of.get(node)
            for message in self._message(name, node):
                if _has_words(message.text):
                    yield message
                if function is not None:
                    for place, word in enumerate(it.arg for it in function.args.args):
                        if f"{{{word.strip('_')}}}" in message.text:
                            given.setdefault(function.name, []).append((place, word, message))
        for node, name in calls:
            for place, word, message in given.get(name, ()):
                text = self._given(node, place, word)
                if _has_words(text):
                    filled = message.text.replace(f"{{{word.strip('_')}}}", text)
                    hint = next((self.text(it.value) for it in node.keywords if it.arg == "hint"), message.next_step)
                    yield from self._message_of(filled, hint, message.kind)

    def _texts_before(self, node: ast.Name) -> list[ast.expr]:
        """Return what a name has been given on the ways to where it is used; empty if that is not text alone."""
        function, found = self._function_of.get(node), list[ast.expr]()
        line: ast.AST | None = self._statement_of.get(node)
        while line is not None and line is not function:
            if not isinstance(line, ast.stmt) or line not in self._place_of:
                return []  # a case of match, or a handler: what came before is not looked for
            line, block, number = self._place_of[line]
            for before in reversed(block[:number]):
                found += _values_given(before, node.id)
                if isinstance(before, ast.Assign) and found:
                    return found if all(map(_is_text, found)) else []
        return []

    def _given(self, node: ast.Call, place: int, word: str) -> str:
        """Return the text that a call gives for a parameter; empty if none."""
        named = next((it.value for it in node.keywords if it.arg == word), None)
        # Behind a dot the first parameter is the object.
        place -= isinstance(node.func, ast.Attribute)
        found = named or (node.args[place] if 0 <= place < len(node.args) else None)
        return self.text(found) if found is not None else ""

    def _message(self, name: str, node: ast.Call) -> Iterator[Message]:
        given = {it.arg: it.value for it in node.keywords if it.arg}
        words, hint = node.args, given.get("hint")
        first = words[0] if words else given.get("message")
        if name in self._classes or (name in OF_USERS and self._is_shown):
            yield from self._said(first, hint, name)
        elif name == "parser.error":
            yield from self._said(first, hint, "argument")
        elif name in ("sys.exit", "SystemExit"):
            yield from self._said(first, hint, "exit")
        elif name in ("Problem", "Violation", "rule", "SectionRule") and "allowed" in given:
            got = f"got {self.text(given['got'])}; " if "got" in given else ""
            after = self.text(given["next_step"]) if "next_step" in given else ""
            yield from self._message_of(f"{got}allowed: {self.text(given['allowed'])}", after, "rule")
        elif name in ("Blocker", "Finding") and "message" in given:
            yield from self._said(given["message"], None, "blocked" if name == "Blocker" else "finding")
        elif name in _FINDINGS and self._folder.startswith(DOCTOR) and len(words) == 3:
            problem, why, remedy = (self.text(word) for word in words)
            yield from self._message_of(f"{problem}: {why}", remedy, "finding")

    def _said(self, first: ast.expr | None, hint: ast.expr | None, kind: str) -> Iterator[Message]:
        if first is not None and (text := self.text(first)):
            yield from self._message_of(text, self.text(hint) if hint is not None else "", kind)

    def _message_of(self, text: str, next_step: str, kind: str) -> Iterator[Message]:
        # A next step that is made elsewhere says nothing here.
        after = next_step if _has_words(next_step) else ""
        yield Message(self._folder, _in_one_line(text), _in_one_line(after), kind)

    def text(self, node: ast.expr, depth: int = 0) -> str:
        """Return the text that an expression makes; what is not known becomes a name in braces."""
        match node:
            case ast.Constant(value=str(value)):
                return value
            case ast.Constant(value=None):
                return ""
            case ast.Constant(value=value):
                return str(value)
            case ast.JoinedStr(values=values):
                return "".join(self.text(value, depth) for value in values)
            case ast.FormattedValue(value=value):
                return self._filled_in(value, depth)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.text(left, depth) + self.text(right, depth)
            case ast.BinOp(left=ast.Constant(value=str(value)), op=ast.Mod()):
                return value
            case ast.IfExp(body=body, orelse=other) if depth < _DEEPEST:
                found = dict.fromkeys(self.text(it, depth + 1) for it in (body, other))
                return " / ".join(filter(None, found)) if "" not in found else f"[{''.join(found)}]"
            case ast.Call(func=ast.Attribute(value=value, attr="format")):
                return self.text(value, depth)
        return self._filled_in(node, depth)

    def _filled_in(self, node: ast.expr, depth: int) -> str:
        if isinstance(node, ast.Name) and depth < _DEEPEST and (found := self._texts_before(node)):
            return " / ".join(dict.fromkeys(self.text(it, depth + 1) for it in found))
        constant = self._constants.get(node.id) if isinstance(node, ast.Name) else None
        if constant is not None and _is_text(constant) and depth < _DEEPEST:
            return self.text(constant, depth + 1)
        if (number := _number(node, self._constants)) is not None:
            return f"{number}"
        if isinstance(node, ast.IfExp):
            chosen = [self.text(it, depth + 1) for it in (node.body, node.orelse)] if depth < _DEEPEST else []
            if chosen and not any("{" in it for it in chosen):
                return "/".join(chosen) if all(chosen) else f"[{''.join(chosen)}]"
        return f"{{{_short_name(node)}}}"


def _names_of(function: ast.expr) -> Iterator[str]:
    match function:
        case ast.IfExp(body=body, orelse=other):
            yield from _names_of(body)
            yield from _names_of(other)
        case ast.Name(id=name):
            yield name
        case ast.Attribute(value=ast.Name(id="parser" | "sys" as owner), attr=name):
            yield f"{owner}.{name}"
        case ast.Attribute(attr=name):
            yield name


def _short_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name.strip("_")
        case (
            ast.Subscript(slice=ast.Constant(value=str(key)))
            | ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_])
        ):
            return key
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _METHODS_OF_TEXT:
            return _short_name(value)
        case ast.Attribute(attr=name):
            return name.strip("_")
        case ast.Call(args=[first, *_]) if _short_name(first) != _UNNAMED:
            return _short_name(first)
        case ast.Call(func=function):
            return _short_name(function)
        case ast.Subscript(value=value) | ast.BinOp(left=value) | ast.Starred(value=value):
            return _short_name(value)
        case ast.GeneratorExp(elt=value) | ast.ListComp(elt=value) | ast.SetComp(elt=value):
            return _short_name(value)
    return _UNNAMED


def _is_text(node: ast.expr | None) -> bool:
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr():
            return True
        case ast.IfExp(body=body, orelse=other) | ast.BinOp(left=body, op=ast.Add(), right=other):
            return _is_text(body) or _is_text(other)
    return False


def _number(node: ast.expr, constants: Mapping[str, ast.expr] = MappingProxyType({})) -> int | None:
    """Return a whole number that is written out, as ``4 << 20``; None: it is none."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name) if name in constants:
            return _number(constants[name])
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            one, other = _number(left, constants), _number(right, constants)
            return None if one is None or other is None else _OPERATORS[type(sign)](one, other)
    return None


def _values_given(line: ast.stmt, name: str) -> list[ast.expr]:
    """Return what a statement, or those within it, assign to a name."""
    return [
        node.value
        for node in ast.walk(line)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id == name
    ]


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def _has_words(text: str) -> bool:
    """Tell whether there is more than what is filled in, as in another error's text that is passed on."""
    words = re.sub(r"\{[^}]*\}|\b(?:got|allowed|and|or)\b", "", text)
    return sum(sign.isalpha() for sign in words) >= 3
