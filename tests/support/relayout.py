"""Write a shard again in another layout, for tests that look into files or break them row by row."""

from __future__ import annotations

from pathlib import Path

from any_layout import write_shard
from bert_trainer.dataset.shards import LayoutName, read_header, read_shard


def relayout(path: Path, layout: LayoutName = "nvidia") -> Path:
    header = read_header(path)
    write_shard(
        path,
        read_shard(path),
        vocabulary_sha256=header.vocabulary_sha256,
        generator_version=header.generator_version,
        layout=layout,
    )
    return path
