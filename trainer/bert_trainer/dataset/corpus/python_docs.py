"""English prose that comes with every Python: the language reference's topics and all docstrings.

One document for each topic of ``pydoc_data`` and one for each module of the standard library, its members' docstrings
included. Modules written in Python are *parsed*, never imported, so that none of their code runs (some open a
browser, print a poem or start a window when imported); compiled modules have nothing to parse and are imported, save
those made for tests. The text belongs to the Python Software Foundation and is read in place; nothing is copied into
this project. The corpus depends on the Python version.

Code, doctests, signatures, grammar, tables, headings and markup are cut away; a block that looks doubtful is dropped,
because a corpus of prose tolerates missing text better than code. reStructuredText is not parsed.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.machinery
import inspect
import platform
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from bert_trainer.dataset.corpus.document import Document

CLEANING_VERSION = 1
"""Raised whenever the same Python would yield other text: it is part of the corpus's fingerprint."""

_SKIPPED = frozenset({"dist-packages", "pydoc_data", "site-packages", "test", "tests"})
"""Folders skipped: not the standard library's own, or (the tests) not installed everywhere."""
_SKIPPED_COMPILED = ("_test", "_xx", "xx", "_ctypes_test", "_tkinter")
"""Prefixes of compiled modules skipped: made for tests, or of little text and large."""
_MEMBER_DEPTH = 3
"""How deep members of a compiled module are followed: module, class, method."""
_PARAGRAPH_KEY_BYTES = 16
"""Of a paragraph's SHA-256; 128 bits are enough never to meet a collision."""

_MIN_SENTENCE_WORDS = 3
_MIN_PARAGRAPH = 20
"""Characters."""
_MIN_WORDS_WITHOUT_END = 5
"""A paragraph that does not end as a sentence does is prose only if it has so many words."""
_MIN_LETTERS_SHARE = 0.7
"""Letters and spaces among all characters; below it a block is taken for code or data."""

_BLANK_LINES = re.compile(r"\n\s*\n")
_UNDERLINE = re.compile(r"^\s*([=\-~*^#\"'`+.:_])\1{2,}\s*$")
_CODE_LINE = re.compile(
    r"^\s*(>>>|\.\.\. |\$ |%|#!|@\w|def \w|class \w+.*:\s*$|import \w|from \S+ import |return\b.*\(|"
    r"\w[\w.\[\]]*\s*(=|\+=|->)\s*\S|(if|for|while|with|elif|try|else|except)\b.*:\s*$)"
)
_TABLE_LINE = re.compile(r"^\s*(\+[-=+]+\+?|\|.*\||(=+|-+)(\s+(=+|-+))+)\s*$")
_SIGNATURE = re.compile(r"^\s*[\w.]+\s*\([^\n]*?\)\s*(->\s*[^\n]*?)?\s*(?:--+\s*|:\s+|$)", re.MULTILINE)
_DIRECTIVE = re.compile(r"^\s*\.\. [\w:-]+::.*$|^\s*:\w+:\s*$", re.MULTILINE)
_FIELD = re.compile(r"^\s*:(param|type|arg|return|returns|rtype|raise|raises|keyword)\b[^:\n]*:\s*", re.MULTILINE)
_ROLE = re.compile(r":[\w+.:-]+:`[~!]?([^`<]*?)(?:\s*<[^>`]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^>`]*>`_{0,2}")
_QUOTED = re.compile(r"`{1,2}([^`\n]+)`{1,2}_{0,2}")
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}([\w][^*\n]*?)\*{1,2}(?![\w*])")
_FOOTNOTE = re.compile(r"\s*\[\d+\]_?")
_BULLET = re.compile(r"^\s*(?:[-*\u2022]|\d+[.)]|\(\d+\)|[a-z]\))\s+")
_SPACES = re.compile(r"\s+")

# A full stop ends a sentence when white space and something that can begin one follow.
_SENTENCE_END = re.compile(r"(?<=[.!?])([\"')\]\u2019\u201d]*)\s+(?=[\"'(\[\u2018\u201c]*[A-Z])")
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|Mr|Mrs|Ms|Dr|St|No|Fig|Sec|al|resp|approx|incl|eg|ie|ca|pp?|[A-Z]))\.[\"')\]]*$"
)


def python_docs_fingerprint() -> str:
    """Name what the corpus depends on: this Python and the rules that clean its text."""
    return f"python-docs/{CLEANING_VERSION} {platform.python_implementation()} {sys.version.split()[0]}"


def read_python_docs() -> Iterator[Document]:
    """Yield one document per topic and module, in a fixed order, each paragraph only where it is first.

    Inherited and copied docstrings are thereby counted once. Memory: one document and 16 bytes (plus the
    set's overhead) for every paragraph seen.
    """
    seen: set[bytes] = set()
    for name, texts in _texts():
        sentences: list[str] = []
        for text in texts:
            for paragraph in split_paragraphs(text):
                key = hashlib.sha256(paragraph.casefold().encode()).digest()[:_PARAGRAPH_KEY_BYTES]
                if key not in seen:
                    seen.add(key)
                    sentences += split_sentences(paragraph)
        if sentences:
            yield Document(name=f"python-docs:{name}", sentences=tuple(sentences))


def _texts() -> Iterator[tuple[str, Iterator[str]]]:
    """Yield the name and the texts of each document."""
    topics = importlib.import_module("pydoc_data.topics").topics
    for name in sorted(topics):
        yield f"topic/{name}", iter([topics[name]])
    root = Path(sysconfig.get_paths()["stdlib"])
    # Sorted: a folder's entries come in another order on another file system.
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root).with_suffix("")
        if not _SKIPPED.intersection(relative.parts):
            yield f"module/{'.'.join(relative.parts)}", _docstrings_of_file(path)
    for name in _compiled_module_names(root):
        module = _import_compiled(name)
        if module is not None:
            yield f"module/{name}", _docstrings_of_object(module, module.__name__, depth=0)


def _docstrings_of_file(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and functions, in the order of the source."""
    try:
        with warnings.catch_warnings():
            # Old modules hold invalid escape sequences; warnings of the standard library are none of the user's.
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    # ast.walk goes level by level; a stack, filled backwards, gives the order in which a reader meets the docstrings.
    definitions = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, definitions):
            text = ast.get_docstring(node)
            if text:
                yield text
        waiting.extend(reversed([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]))


def _compiled_module_names(root: Path) -> list[str]:
    # Compiled into the interpreter on one machine, a shared library on another: together they are the same set.
    names = set(sys.builtin_module_names)
    for folder in {root / "lib-dynload", Path(sysconfig.get_paths()["platstdlib"]) / "lib-dynload"}:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            names |= {path.name.removesuffix(suffix) for path in folder.glob(f"*{suffix}")}
    plain = {name for name in names if "." not in name and not name.startswith(_SKIPPED_COMPILED)}
    return sorted(plain - _SKIPPED)


def _import_compiled(name: str) -> ModuleType | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError:
        # Python was built without the library behind it (_gdbm, for example): the corpus does without.
        return None


def _docstrings_of_object(owner: object, module: str, depth: int) -> Iterator[str]:
    """Yield the docstrings of an object of a compiled module and of what it defines itself."""
    text = owner.__doc__
    if isinstance(text, str):
        yield inspect.cleandoc(text)
    if depth >= _MEMBER_DEPTH or not isinstance(owner, ModuleType | type):
        return
    for name, member in sorted(vars(owner).items()):
        # Instances of ordinary types would repeat their type's docstring.
        is_own_type = isinstance(member, type) and (depth > 0 or member.__module__ == module)
        if is_own_type or (_is_routine(member) and (depth == 1 or not name.startswith("__"))):
            yield from _docstrings_of_object(member, module, depth + 1)


def _is_routine(member: object) -> bool:
    return inspect.isroutine(member) or inspect.isdatadescriptor(member)


def split_paragraphs(text: str) -> list[str]:
    """Cut documentation text into cleaned paragraphs, each on one line, without code and markup."""
    text = _DIRECTIVE.sub("", text.expandtabs())
    paragraphs: list[str] = []
    literal = False  # whether the block before ended with "::", which announces code
    for block in _BLANK_LINES.split(text):
        lines = [line for line in block.split("\n") if line.strip()]
        if not lines:
            continue
        indented = lines[0].startswith((" ", "\t"))
        if literal and indented:
            continue
        literal = lines[-1].rstrip().endswith("::")
        paragraphs += _items(lines)
    return [cleaned for cleaned in map(_clean, paragraphs) if _is_prose(cleaned)]


def split_sentences(paragraph: str) -> list[str]:
    """Cut one paragraph at the ends of its sentences, then leave out pieces too short to be one."""
    sentences: list[str] = []
    start = 0
    for match in _SENTENCE_END.finditer(paragraph):
        if _ABBREVIATION.search(paragraph, start, match.end(1)):
            continue
        sentences.append(paragraph[start : match.end(1)].strip())
        start = match.end()
    sentences.append(paragraph[start:].strip())
    return [sentence for sentence in sentences if _has_words(sentence)]


def _items(lines: list[str]) -> list[str]:
    """Split a block at list bullets and headings; a block holding code or a table yields nothing."""
    if any(_TABLE_LINE.match(line) or "::=" in line for line in lines):
        return []
    items: list[list[str]] = [[]]
    for number, line in enumerate(lines):
        if _UNDERLINE.match(line):
            items[-1:] = [[], []]  # what stands above the line is a heading: it goes, and a new item begins
        elif _CODE_LINE.match(line):
            # What follows a line of code in the same block is its output or more code.
            break
        elif _BULLET.match(line) and (number == 0 or not items[-1] or line.startswith((" ", "-", "*", "\u2022"))):
            items.append([_BULLET.sub("", line)])
        else:
            items[-1].append(line)
    return ["\n".join(item) for item in items if item]


def _clean(paragraph: str) -> str:
    # Signatures end at a line break, so they go before white space is joined.
    paragraph = _SIGNATURE.sub("", paragraph)
    paragraph = _FIELD.sub("", paragraph)
    for pattern in (_ROLE, _LINK, _QUOTED, _EMPHASIS):
        paragraph = pattern.sub(r"\1", paragraph)
    paragraph = _FOOTNOTE.sub("", paragraph)
    return _SPACES.sub(" ", paragraph).strip().replace("::", ":")


def _is_prose(paragraph: str) -> bool:
    if not _has_words(paragraph) or len(paragraph) < _MIN_PARAGRAPH:
        return False
    letters = sum(character.isalpha() or character == " " for character in paragraph)
    ends = paragraph.rstrip("\"')]\u2019\u201d").endswith((".", "!", "?", ":"))
    return letters >= _MIN_LETTERS_SHARE * len(paragraph) and (ends or len(paragraph.split()) >= _MIN_WORDS_WITHOUT_END)


def _has_words(sentence: str) -> bool:
    words = [word for word in sentence.split() if word.strip(".,;:!?()\"'").isalpha()]
    return len(words) >= _MIN_SENTENCE_WORDS
