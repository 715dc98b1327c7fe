"""What the documentation tells people to type exists: make targets, verbs and options, files, fields, names in Python.

Commands are not run here, the demo takes minutes; they are checked word by word.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from bert_operator.api.parsing.documents import read_job_document
from bert_operator.api.parsing.validation import parse_job
from bert_operator.plugin.command_line import VERBS
from bert_operator.plugin.command_line import main as run_plugin

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "operator/*.md", "trainer/*.md")
    for path in ROOT.glob(pattern)
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code_blocks(*languages: str) -> list[tuple[str, str]]:
    """Return (page, text) of every fenced block in one of these languages."""
    return [
        (str(path.relative_to(ROOT)), text)
        for path in PAGES
        for language, text in FENCE.findall(path.read_text())
        if language in languages
    ]


def commands() -> list[list[str]]:
    """Return every command line of every shell block, split into words; comments are left out."""
    blocks = [text.replace("\\\n", " ") for _, text in code_blocks("sh", "shell", "bash")]
    lines = [line for text in blocks for line in text.splitlines()]
    return [words for line in lines if (words := shlex.split(line.removeprefix("$ "), comments=True))]


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def test_the_readme_begins_with_one_command() -> None:
    block = FENCE.search((ROOT / "README.md").read_text())
    assert block is not None
    assert block[2].splitlines() == ["make demo"]


def test_the_readme_says_how_to_run_the_tests() -> None:
    assert "`make test`" in (ROOT / "README.md").read_text()


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = {words[1] for words in commands() if words[0] == "make"}
    named |= {target for path in PAGES for target in re.findall(r"`make ([a-z-]+)", path.read_text())}
    assert named <= targets


@pytest.mark.parametrize("command", ["bert-operator", "bert-data", "bert-train"])
def test_every_verb_that_is_named_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    verbs = {words[1] for words in commands() if Path(words[0]).name == command and not words[1].startswith("-")}
    (entry_point,) = entry_points(group="console_scripts", name=command)
    for verb in verbs:
        # An unknown verb, or one where none belongs, makes argparse fail with status 2.
        with pytest.raises(SystemExit) as ended:
            entry_point.load()([verb, "--help"])
        assert ended.value.code == 0, f"{command} {verb}\n{capsys.readouterr().err}"


def test_every_option_that_is_typed_exists(capsys: pytest.CaptureFixture[str]) -> None:
    plugin_verbs = {entry.name for entry in VERBS}
    typed: set[tuple[str, str, str]] = set()
    for command in commands():
        program, words = Path(command[0]).name, command[1:]
        ends = [number for number, word in enumerate(words) if word in ("|", "||", "&&", ">", "--")]
        words = words[: min(ends, default=None)]
        if (program, words[:1]) == ("kubectl", ["bert"]):
            program, words = "kubectl bert", words[1:]
        elif program not in ("bert-operator", "bert-data", "bert-train"):
            continue
        verbs = [word for word in words if (word in plugin_verbs if program == "kubectl bert" else word[0] != "-")]
        assert verbs or all(word.startswith("-") for word in words), command
        if verbs:  # none: the program alone, as in `bert-operator --version`
            typed |= {(program, verbs[0], word.partition("=")[0]) for word in words if word.startswith("--")}
    assert len(typed) > 50
    said = {(program, verb): help_of(program, verb, capsys) for program, verb, _ in typed}
    unknown = [
        f"{program} {verb} {option}"
        for program, verb, option in sorted(typed)
        if not re.search(rf"{re.escape(option)}\b(?!-)", said[program, verb])
    ]
    assert unknown == []


def help_of(program: str, verb: str, capsys: pytest.CaptureFixture[str]) -> str:
    main = run_plugin
    if program != "kubectl bert":
        (entry_point,) = entry_points(group="console_scripts", name=program)
        main = entry_point.load()
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    return capsys.readouterr().out


def test_python_that_is_shown_compiles_and_imports_what_there_is() -> None:
    blocks = code_blocks("python")
    assert blocks
    for page, text in blocks:
        tree = ast.parse(text, filename=page)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("bert_operator", "bert_trainer")):
                module = importlib.import_module(node.module or "")
                assert [it.name for it in node.names if not hasattr(module, it.name)] == [], page


def test_every_file_of_the_repository_that_is_named_exists() -> None:
    # Decisions also name what must not exist or has gone.
    pages = [path for path in PAGES if path.parent.name != "adr"]
    folders = [path.name for path in ROOT.iterdir() if path.is_dir()]
    inside = re.compile(rf"(?<![\w./-])(?:{'|'.join(map(re.escape, folders))})/[\w./-]+")
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in pages
        for name in inside.findall(path.read_text())
        if not name.startswith((".venv/", "dist/", "runs/"))
        and not any((folder / name.rstrip(".")).exists() for folder in (ROOT, path.parent))
    ]
    assert missing == []


def test_every_link_inside_the_repository_leads_somewhere() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in PAGES
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", without_code(path.read_text()))
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert broken == []


def test_every_job_that_is_shown_is_valid(tmp_path: Path) -> None:

    jobs = [(page, text) for page, text in code_blocks("yaml") if re.search("^kind: BertPretrainJob", text, re.M)]
    assert jobs
    for page, text in jobs:
        file = tmp_path / f"{page.replace(os.sep, '-')}.yaml"
        file.write_text(text)
        parse_job(read_job_document(file))


def test_the_map_of_the_repository_names_what_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    block = next(body for language, body in FENCE.findall(text) if language == "text")
    folders: list[str] = []
    for line in block.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        # Names come before the description, which two or more spaces separate.
        for name in re.findall(r"^[\w./]+|(?<=\.py  )\w+\.py", line.strip()):
            folders[depth:] = [name]
            assert (ROOT / "".join(folders)).exists(), line


def test_the_first_picture_shows_no_part_as_still_to_come() -> None:
    (picture,) = re.findall(r"^!\[[^\]]*\]\((.*\.svg)\)", (ROOT / "README.md").read_text(), re.MULTILINE)
    words = " ".join(re.findall(r">([^<]+)<", (ROOT / picture).read_text()))
    assert "cluster executor" in words
    assert not re.search(r"\bor, next|comes next", words)
