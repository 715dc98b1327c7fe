"""Texts that reach the operator: manifests, settings, host files, and what pods print and leave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bert_operator.api.parsing.documents import read_job_document
from bert_operator.api.parsing.validation import parse_job
from bert_operator.cluster.log_reader import LatestRecords, read_latest_records
from bert_operator.cluster.observation import _first_failed_worker
from bert_operator.cluster.pod_ends import parse_termination_message
from bert_operator.cluster.settings import load_settings
from bert_operator.local.hosts import parse_hostfile
from bert_operator.state.observed import read_outcome
from fuzz_reader import Chance, Reader
from hostile_records import OURS, draw_endings, draw_lines
from mutations import each_changed, mutate_json
from sample_job import sample_document

_ROOT = Path(__file__).parents[2]


def _manifests(_: Path) -> Iterator[bytes]:
    # JSON is YAML, which lets mutations change one value of a document.
    yield json.dumps(sample_document()).encode()
    for path in sorted((_ROOT / "examples").glob("*/job.yaml")):
        yield path.read_bytes()
    yield b"a: &x [1, 2]\nb: *x\nc: !!str 1\nd: 0o17\ne: |\n  text\nf: {g: ~}\n---\n- 1e3\n"
    kind = b"kind: BertPretrainJob\n"
    yield b"kind: List\nitems:\n- 1\n- kind: BertPretrainJob\n- kind: Secret\n"
    yield kind + b"---\n" + kind
    yield b"kind: Secret\n---\nkind: ConfigMap\n"
    yield b"\xef\xbb\xbf" + kind + b"a: &x [1, {b: 2}]\nc: *x\nd: 0xff\ne: 1.5\nf: 'text'\n"
    yield "kind: BertPretrainJob\na: ü\n".encode("latin-1")
    yield kind + b"x: " + b"[" * 60 + b"]" * 60
    yield kind + b"x: " + b"[" * 210 + b"]" * 210
    yield kind + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 18)).replace(
        b"*a0", b"1"
    )
    ambiguous = (
        "yes",
        "12:30:00",
        "-1:30.5",
        "017",
        "-08",
        "1_000",
        "0b11",
        "0xFFFFFFFFFFFFFFFFF",
        "1e400",
        "=",
        "._1",
    )
    refused = (
        ".inf",
        ".NaN",
        "1e999",
        "*none",
        "&x [*x]",
        "!own 1",
        "{<<: {a: 1}}",
        "{1: 2}",
        "{a: 1, a: 2}",
        "[",
        "\t- a",
    )
    yield from (kind + f"x: {text}\n".encode() for text in (*ambiguous, *refused))


_SETTINGS = {
    "profiles": {"a": {"model": {"preset": "tiny"}, "pods": {}}},
    "defaultProfile": "a",
    "profileNamespaces": {"a": ["team"]},
    "jobEgress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 443, "protocol": "TCP"}]}],
}


def _mutate_text_or_json(data: bytes, chance: Chance) -> bytes:
    return mutate_json(data, chance) if data[:1] == b"{" else chance.bytes(data)


def _settings(_: Path) -> Iterator[bytes]:
    yield b"profiles:\n  gpu:\n    slotsPerWorker: 2\ndefaultProfile: gpu\n"
    yield b'{"profiles": {"a": {"model": {"preset": "tiny"}, "pods": {}}}, "defaultProfile": "a"}'
    for path in sorted((_ROOT / "deploy").rglob("*settings*.yaml")):
        yield path.read_bytes()
    config_map = {"kind": "ConfigMap", "data": {"settings.yaml": json.dumps(_SETTINGS)}}
    yield json.dumps(config_map).encode()
    yield from each_changed(config_map, {"data": None, "data/settings.yaml": 3})
    changes = {"profiles/a": {"modle": 1}, "defaultProfile": "b", "profileNamespaces/b": ["x"], "resyncSeconds": "soon"}
    yield from each_changed(_SETTINGS, {**changes, "a\nb": 1, "jobEgress/0/ports/0/port": -1, "profiles": None})
    yield b"a: &x {b: 1}\nc: *x\nd: &y 1\ne: *y\n"
    yield from (b"a: &x [*x]\n", b"- 1\n", b"a: [\n", b"a: \xff\n", b"a: " + b"[" * 300 + b"]" * 300)
    yield b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 24)).replace(b"*a0", b"1")


def _read_log(path: Path) -> object:
    text = path.read_bytes().decode(errors="replace")
    before: Any = LatestRecords()
    return read_latest_records(text, "uid-1", 2, before, frozenset({"phase1"}))


def _log(_: Path) -> Iterator[bytes]:
    lines = list(draw_lines(60, 1))
    yield from (line.encode(errors="replace") for line in lines)
    yield "\n".join(line[:200] for line in lines).encode(errors="replace")
    for words in (
        "event=progress stage=phase1 step=1 steps=9 loss=6.1 remaining_s=5",
        "event=checkpoint stage=phase1 step=1 path=a",
        'event=hung stage=phase1 step=1 message="no \\u0041"',
        "event=alive every_s=30",
        "event=result stage=phase1 mlm_accuracy=0.5 nsp_accuracy=0.5 loss=1.5",
        "event=evaluated stage=phase1 task=cola matthews=0.5",
    ):
        yield f"bert-trainer/1 {words} {OURS}".encode()


def _read_ending(path: Path) -> object:
    """Read what a failed pod left, as ``observation._failed`` does."""
    record, text = parse_termination_message(path.read_bytes().decode(errors="replace")[:4096])
    child: Any = SimpleNamespace(name="demo-a1")
    return [read_outcome(code, record) for code in (1, 137, -9)], _first_failed_worker(record, child), text


def _endings(_: Path) -> Iterator[bytes]:
    yield from (text.encode(errors="replace") for text in draw_endings(60, 1))
    yield b"\nTraceback (most recent call last):\n  x\nKeyError: 1\n\n"
    for code in (0, 2, 3, 4, 75):
        worker = {"host": "demo-a1-worker-1", "rank": 1}
        yield json.dumps({"exitCode": code, "reason": "A", "message": "b", "firstFailure": worker}).encode()


READERS = (
    Reader(
        name="manifests",
        read=lambda path: parse_job(read_job_document(path)),
        seeds=_manifests,
        modules=("bert_operator.api.parsing.documents", "bert_operator.api.parsing.plain_scalars"),
        leaves_out=("parse_documents", "_spellings"),
        file_name="job.yaml",
        mutate=_mutate_text_or_json,
        names_file=False,
    ),
    Reader(
        name="settings",
        read=load_settings,
        seeds=_settings,
        modules=("bert_operator.cluster.settings",),
        leaves_out=("seen_from", "list_proxies"),
        file_name="settings.yaml",
        mutate=_mutate_text_or_json,
        names_file=False,
    ),
    Reader(
        name="host-files",
        read=lambda path: parse_hostfile(path.read_bytes().decode(errors="replace"), source=str(path)),
        seeds=lambda _: iter(
            [
                b"a slots=2\nb  # c\n\n10.0.0.1 max_slots=3\n::1\n",
                b"worker-0.demo\n",
                b"# none\n",
                b"a\n-b\n",
                b"a" * 300,
            ]
        ),
        modules=("bert_operator.local.hosts",),
        leaves_out=("render_hostfile",),
        max_bytes=1024,
    ),
    Reader(
        name="progress-records",
        read=_read_log,
        seeds=_log,
        modules=("bert_job.progress", "bert_operator.state.results"),
        leaves_out=("describe_results", "_with_stage", "_is_of_task", "_on_one_line", "_bounds"),
        names_file=False,
    ),
    Reader(
        name="termination-records",
        read=_read_ending,
        seeds=_endings,
        modules=("bert_operator.cluster.observation", "bert_operator.cluster.pod_ends", "bert_operator.state.observed"),
        only=("parse_termination_message", "_first_failed_worker", "read_termination_record", "read_outcome"),
        mutate=mutate_json,
        names_file=False,
        max_bytes=4096,
    ),
)
