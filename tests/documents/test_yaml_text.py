"""YAML that leaves the program is read by kubectl, by readers of YAML 1.1 and 1.2, and by our own, as it was meant."""

from __future__ import annotations

import ast
import json
import math
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from bert_operator.__main__ import main
from bert_operator.api.crd import render_crd
from bert_operator.api.parsing.documents import parse_documents
from bert_operator.yaml_text import render_yaml

ROOT = Path(__file__).parents[2]
Reader = Callable[[str], Any]

TEXTS = (
    # Words and numbers of one version or the other.
    "on", "On", "OFF", "yes", "No", "y", "n", "Y", "N", "true", "False", "null", "Null", "~", "", "none", "nil",
    "1", "-1", "+1", "017", "0o17", "0x1F", "0b11", "1_000", "1e3", "1E3", "6e-3", "1.", ".5", "-.5", "1.5e3",
    "1e400",
    ".inf", "-.Inf", ".NaN", "inf", "nan", "12:30", "12:30:45", "190:20:30.15", "2026-01-01", "2026-01-01T00:00:00Z",
    "2026-01-01 00:00:00", "2001-1-1 1:1:1 +1", "=", "<<", "<", "0", "-0", "0.0", "00", "08", "1,000",
    "18446744073709551616",
    # Signs that begin something.
    "-", "- a", "--", "---", "--- a", "...", "?", "? a", ":", ": a", "a: b", "a:", ":a", "a:b", "#", "# a",
    "a # b", "a #b",
    "a#b", "&a", "*a", "!a", "!!str a", "%a", "@a", "`a", "|", "|-", ">", ">-", "[a", "]", "{a", "}", ",",
    "a, b", "'a", '"a',
    "a'b", 'a"b', "a\\b", "\\", "{{ a }}", "${A}", "$(A)",
    # White space.
    " ", " a", "a ", "  a  b  ", "\t", "\ta", "a\t", "a\tb", "\n", "\n\n", "a\n", "a\nb", "a\nb\n", "a\n\nb",
    "a\n\n", "\na",
    " a\nb", "a\n b", "a \nb ", "a\n \nb", "a\n\tb", "\ta\nb", "a\r\nb", "a\rb", "\r", "a: b\nc: d\n",
    "- a\n- b\n", "# a\n",
    "---\na\n", "...\n", "a\n...\n", "%YAML 1.1\n", " \n", "a\n   ", "   \na",
    # Other signs.
    "\x00", "\x07", "\x1b[0m", "\x7f", "\x85", "a\x85b", "\xa0", "\xad", "\u2028", "a\u2028b", "\u2029",
    "\ufeff", "\ufeffa", "a\ufeff",
    "\ufffd", "\ufffe", "\u200b", "\u202e", "é", "é: ü", "日本", "😀", "a 😀 b\nc", "\U000e0001", "\ue000",
    "\U0010ffff", "e\u0301",
    # Length.
    "x" * 5000, "word " * 60 + "end", "word  " * 50 + "end", "a\n" * 40, "x " + "y" * 300, "# " * 200 + "a",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 0.0, -0.0, 0.1, 1e-5, 1e-05, 1.5e-7, 1e16, 1e22, 1.7e308,
    5e-324, 3.0, 1e100, True, False, None,
)  # fmt: skip


def by_kubectl(text: str) -> Any:
    command = ["kubectl", "patch", "--local", "--type", "merge", "-p", "{}", "-o", "json", "-f", "-"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()[:500]
    document = json.loads(done.stdout)
    return {name: value for name, value in document.items() if name not in ("apiVersion", "kind", "metadata")}["spec"]


def by_pyyaml(text: str) -> Any:
    return yaml.safe_load(text)["spec"]


def by_yaml_1_2(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)["spec"]


def by_our_own(text: str) -> Any:
    (document,) = parse_documents(text)
    return document["spec"]


READERS = {
    "kubectl": pytest.param(
        by_kubectl, marks=pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on this machine")
    ),
    "YAML 1.1": by_pyyaml,
    "YAML 1.2": by_yaml_1_2,
    "check": by_our_own,
}


def written(value: Any, **options: int) -> str:
    head = {"apiVersion": "bert-operator.dev/v1alpha1", "kind": "BertPretrainJob", "metadata": {"name": "a"}}
    return render_yaml({**head, "spec": value}, **options)


def drawn_texts(count: int) -> list[str]:
    chance = random.Random(17)
    signs = " \n\t:#-?[]{},&*!|>'\"%@`=<~._+0123456789eExoynabN\\/\x85\u2028\ufeffé😀\r\x00"
    return ["".join(chance.choice(signs) for _ in range(chance.randint(1, 12))) for _ in range(count)]


VALUES: dict[str, Any] = {
    "values": list(TEXTS),
    "values of keys": {f"k{number}": text for number, text in enumerate(TEXTS)},
    "keys": {text: number for number, text in enumerate(TEXTS)},
    "keys of sections": {text: {"a": [text]} for text in TEXTS if len(text) > 100},
    "keys of lists": {text: ["a", {"b": text}] for text in TEXTS if len(text) > 100},
    "nested": [[text, [{"a": {text[:100]: [text]}}]] for text in TEXTS],
    "numbers": [*NUMBERS, {str(number): number for number in NUMBERS}],
    "empty": [{}, [], "", {"a": {}, "b": [], "c": [[]], "d": [{}], "e": [[], {}]}],
    "drawn": {text: text for text in drawn_texts(400)},
}


@pytest.mark.parametrize("width", [0, 120])
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_what_is_written_is_read_as_it_was_meant(read: Reader, width: int) -> None:
    found = read(written(VALUES, width=width))
    for name, value in VALUES.items():
        assert found[name] == value, name
        assert kinds(found[name]) == kinds(value), name


def kinds(value: Any) -> Any:
    """Return the types in a value; a number is a number, however JSON writes it."""
    if isinstance(value, dict):
        return {key: kinds(item) for key, item in value.items()}
    if isinstance(value, list):
        return [kinds(item) for item in value]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_json_does_not_have_is_not_written(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        render_yaml({"a": value})


JOB = """\
apiVersion: bert-operator.dev/v1alpha1
kind: BertPretrainJob
metadata: {name: a, namespace: "on"}
spec:
  model: {preset: tiny}
  dataset: {path: "017"}
  env:
    - {name: "y", value: "on"}
    - {name: A, value: "6e-3"}
    - {name: B, value: "1_000"}
    - {name: C, value: "2026-01-01"}
    - {name: D, value: "12:30:45"}
  scheduling: {nodeSelector: {gpu: "yes", "n": "0x10"}}
  stages:
    - name: phase1
      pretrain: {sequenceLength: 128, globalBatchSize: 64, learningRate: 0.00001, length: {steps: 10}}
  output: {path: results, volume: {persistentVolumeClaim: {claimName: "1e3"}}}
"""
ENV = {"y": "on", "A": "6e-3", "B": "1_000", "C": "2026-01-01", "D": "12:30:45"}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_job_that_was_shown_is_the_same_job(read: Reader, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    assert main(["render", str(file), "--show", "job"]) == 0
    shown = capsys.readouterr().out
    spec = read(shown)
    assert {entry["name"]: entry["value"] for entry in spec["env"]} == ENV
    assert spec["scheduling"]["nodeSelector"] == {"gpu": "yes", "n": "0x10"}
    assert spec["dataset"]["path"] == "017"
    file.write_text(shown)
    assert main(["check", str(file)]) == 0


def test_the_objects_that_are_shown_are_read_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    assert main(["render", str(file), "--show", "objects"]) == 0
    shown = capsys.readouterr().out
    documents = [*yaml.safe_load_all(shown)]
    assert [*YAML(typ="safe", pure=True).load_all(shown)] == documents == parse_documents(shown)
    assert documents[-1]["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "yes", "n": "0x10"}


def test_the_definition_is_read_as_it_was_made() -> None:
    text = (ROOT / "deploy/kustomize/base/crd.yaml").read_text()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    assert yaml.load(text, Loader=loader) == render_crd()  # noqa: S506 - a safe one


def test_nothing_else_writes_yaml() -> None:
    """A library's writer knows one version of YAML; kubectl's reader follows neither."""
    found = []
    for root in ("operator", "tools", "benchmarks/operator"):
        for file in (ROOT / root).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    owner = ast.unparse(node.func.value)
                    if node.func.attr in ("dump", "dump_all", "safe_dump", "safe_dump_all") and owner not in (
                        "json",
                        "ast",
                    ):
                        found.append(f"{file.relative_to(ROOT)}: {ast.unparse(node.func)}")
    assert found == []


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(_VALUES)
def test_yaml_is_read_as_it_was_meant(value: object) -> None:
    assert yaml.safe_load(render_yaml(value)) == value


@pytest.mark.parametrize(
    "word", ["yes", "No", "on", "null", "~", "1e3", "0x10", "1_000", "12:30:45", "=", "<<", "2026-01-01"]
)
def test_words_that_yaml_takes_for_something_else_are_quoted(word: str) -> None:
    assert render_yaml({word: word}) == f"{json.dumps(word)}: {json.dumps(word)}\n"
