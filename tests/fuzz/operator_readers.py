"""Texts that reach the operator: manifests, settings, host files, and what pods print and leave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fuzz_reader import Chance, Reader
from mutations import mutate_json

from bert_operator.api.parsing.documents import read_job_document
from bert_operator.api.parsing.validation import parse_job
from bert_operator.cluster.log_reader import LatestRecords, read_latest_records
from bert_operator.cluster.observation import _parse_termination_message
from bert_operator.cluster.settings import load_settings
from bert_operator.local.hosts import parse_hostfile
from hostile_records import OURS, draw_endings, draw_lines
from sample_job import sample_document

_ROOT = Path(__file__).parents[2]


def _manifests(_: Path) -> Iterator[bytes]:
    # JSON is YAML, which lets mutations change one value of a document.
    yield json.dumps(sample_document()).encode()
    for path in sorted((_ROOT / "examples").glob("*/job.yaml")):
        yield path.read_bytes()
    yield b"a: &x [1, 2]\nb: *x\nc: !!str 1\nd: 0o17\ne: |\n  text\nf: {g: ~}\n---\n- 1e3\n"


def _mutate_text_or_json(data: bytes, chance: Chance) -> bytes:
    return mutate_json(data, chance) if data[:1] == b"{" else chance.bytes(data)


def _settings(_: Path) -> Iterator[bytes]:
    yield b"profiles:\n  gpu:\n    slotsPerWorker: 2\ndefaultProfile: gpu\n"
    yield b'{"profiles": {"a": {"model": {"preset": "tiny"}, "pods": {}}}, "defaultProfile": "a"}'
    for path in sorted((_ROOT / "deploy").rglob("*settings*.yaml")):
        yield path.read_bytes()


def _read_log(path: Path) -> object:
    text = path.read_bytes().decode(errors="replace")
    before: Any = LatestRecords()
    return read_latest_records(text, "uid-1", 2, before, frozenset({"phase1"}))


def _log(_: Path) -> Iterator[bytes]:
    lines = list(draw_lines(60, 1))
    yield from (line.encode(errors="replace") for line in lines)
    yield "\n".join(lines).encode(errors="replace")
    for words in (
        "event=progress stage=phase1 step=1 steps=9 loss=6.1 remaining_s=5",
        "event=checkpoint stage=phase1 step=1 path=a",
        'event=hung stage=phase1 step=1 message="no \\u0041"',
        "event=alive every_s=30",
        "event=result stage=phase1 mlm_accuracy=0.5 nsp_accuracy=0.5 loss=1.5",
        "event=evaluated stage=phase1 task=cola matthews=0.5",
    ):
        yield f"bert-trainer/1 {words} {OURS}".encode()


READERS = (
    Reader(
        name="manifests",
        read=lambda path: parse_job(read_job_document(path)),
        seeds=_manifests,
        modules=("bert_operator.api.parsing.documents", "bert_operator.api.parsing.plain_scalars"),
        leaves_out=("read_job_stream", "_split", "_items_of", "_kind_of", "count_others", "advise", "disagreement"),
        file_name="job.yaml",
        mutate=_mutate_text_or_json,
        names_file=False,
    ),
    Reader(
        name="settings",
        read=load_settings,
        seeds=_settings,
        modules=("bert_operator.cluster.settings",),
        file_name="settings.yaml",
        mutate=_mutate_text_or_json,
        names_file=False,
    ),
    Reader(
        name="host-files",
        read=lambda path: parse_hostfile(path.read_bytes().decode(errors="replace"), source=str(path)),
        seeds=lambda _: iter([b"a slots=2\nb  # c\n\n10.0.0.1 max_slots=3\n::1\n", b"worker-0.demo\n"]),
        modules=("bert_operator.local.hosts",),
        leaves_out=("render_hostfile",),
        most_bytes=1024,
    ),
    Reader(
        name="progress-records",
        read=_read_log,
        seeds=_log,
        modules=("bert_operator.state.progress", "bert_operator.state.results"),
        leaves_out=("describe_results", "_with_stage", "_render", "_is_of_task", "_on_one_line"),
        names_file=False,
    ),
    Reader(
        name="termination-records",
        read=lambda path: _parse_termination_message(path.read_bytes().decode(errors="replace")[:4096]),
        seeds=lambda _: (text.encode(errors="replace") for text in draw_endings(60, 1)),
        modules=("bert_operator.cluster.observation",),
        leaves_out=(
            *("observe_child", "_ended_at", "_waiting_since", "_has_succeeded", "_has_failed", "has_ended"),
            *("is_settling", "_has_begun", "_failed", "_ended_after", "_first_failure", "_infrastructure_cause"),
            *("_describe_cause", "_first_failed_worker"),
        ),
        mutate=mutate_json,
        names_file=False,
        most_bytes=4096,
    ),
)
