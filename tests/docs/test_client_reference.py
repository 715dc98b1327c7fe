"""docs/reference/client.md has every public name of ``bert_operator.client``, and its example runs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from bert_operator import client
from bert_operator.plugin.errors import ApiRefused

PAGE = (Path(__file__).parents[2] / "docs/reference/client.md").read_text()
HEADINGS = set(re.findall(r"^##+ (.+)$", PAGE, re.MULTILINE))


def members(found: type) -> list[str]:
    return [name for name in (*vars(found), *getattr(found, "__dataclass_fields__", ())) if not name.startswith("_")]


@pytest.mark.parametrize("name", client.__all__)
def test_every_public_name_is_there_with_its_members(name: str) -> None:
    assert name in HEADINGS
    found = getattr(client, name)
    if not inspect.isclass(found) or issubclass(found, Exception):
        return
    section = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    missing = [word for word in members(found) if f"| `{word}` |" not in section and f"{name}.{word}" not in HEADINGS]
    assert missing == []


def test_every_argument_of_the_client_stands_in_its_section() -> None:
    found = client.Client
    for name, method in inspect.getmembers(found, inspect.isfunction):
        heading = f"\n## {found.__name__}\n" if name == "__init__" else f"\n### {found.__name__}.{name}\n"
        if name.startswith("_") and name != "__init__":
            continue
        section = PAGE.partition(heading)[2].partition("\n##")[0]
        for argument in inspect.signature(method).parameters:
            assert argument == "self" or re.search(rf"\b{argument}\b", section), f"{name}: {argument}"


@pytest.mark.parametrize("is_refused", [False, True], ids=["jobs", "refused"])
def test_the_example_runs(
    is_refused: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def jobs(self: client.Client) -> list[client.Job]:
        if is_refused:
            raise ApiRefused("jobs may not be listed")
        return [client.Job({"metadata": {"name": "corpus"}, "status": {"phase": "Running", "message": "Step 7."}})]

    monkeypatch.setattr(client.Client, "jobs", jobs)
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(example, "client.md", "exec"), {})
    assert capsys.readouterr().out == ("jobs may not be listed\n" if is_refused else "corpus Running Step 7.\n")
