"""Sharded samples in HDF5, in six layouts: the one place that reads and writes the files.

docs/concepts/data-format.md describes the layouts. A reader tells them apart by the datasets that a file
holds. Files are opened for one call and closed again, never kept: HDF5 must not be used by two threads or
across a fork. Whether rows make sense is for ``shard_checks``.
"""

from bert_trainer.config.dataset_names import LayoutName
from bert_trainer.dataset.shards.file_names import check_numbers, select_split, split_of
from bert_trainer.dataset.shards.files import LAYOUTS, read_header, read_ragged, read_shard, write_shard
from bert_trainer.dataset.shards.folder import (
    SUFFIXES,
    ShardFolder,
    find_shard_folder,
    list_shards,
    shard_folder_name,
    shards_below,
)
from bert_trainer.dataset.shards.header import LONGEST_ROW, ShardHeader, Split
from bert_trainer.dataset.shards.large_files import SampleBlocks, write_shard_blocks
from bert_trainer.dataset.shards.row_blocks import read_blocks, read_ragged_blocks
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.dataset.shards.totals import Totals

__all__ = [
    "LAYOUTS",
    "LONGEST_ROW",
    "SUFFIXES",
    "LayoutName",
    "SampleBlocks",
    "Samples",
    "ShardFolder",
    "ShardHeader",
    "Split",
    "Totals",
    "check_numbers",
    "find_shard_folder",
    "list_shards",
    "read_blocks",
    "read_header",
    "read_ragged",
    "read_ragged_blocks",
    "read_shard",
    "select_split",
    "shard_folder_name",
    "shards_below",
    "split_of",
    "write_shard",
    "write_shard_blocks",
]
