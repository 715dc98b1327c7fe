"""Sharded samples, in six layouts of HDF5, of which four are written, and as TFRecords: nothing else opens the files.

docs/concepts/data-format.md describes the layouts. They are recognized by the name of a file and by the datasets
in it. Files are opened for one call and closed again: HDF5 is neither thread-safe nor fork-safe. ``checks`` decides
whether rows are valid.
"""

from bert_job.dataset_names import LayoutName, WrittenLayout
from bert_trainer.dataset.shards.file_names import check_numbers, select_split, split_of
from bert_trainer.dataset.shards.files import (
    LAYOUTS,
    WRITTEN_LAYOUTS,
    read_header,
    read_ragged,
    read_shard,
    write_shard,
)
from bert_trainer.dataset.shards.folder import (
    SUFFIXES,
    ShardFolder,
    is_shard,
    list_shards,
    make_shard_folder,
    shard_folder_name,
    shards_below,
    written_name,
)
from bert_trainer.dataset.shards.header import MAX_ROW_TOKENS, ShardHeader, Split
from bert_trainer.dataset.shards.large_files import SampleBlocks, write_shard_blocks
from bert_trainer.dataset.shards.row_blocks import read_blocks, read_ragged_blocks
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.dataset.shards.search import find_named_shards, find_shard_folder
from bert_trainer.dataset.shards.totals import Totals

__all__ = [
    "LAYOUTS",
    "MAX_ROW_TOKENS",
    "SUFFIXES",
    "WRITTEN_LAYOUTS",
    "LayoutName",
    "SampleBlocks",
    "Samples",
    "ShardFolder",
    "ShardHeader",
    "Split",
    "Totals",
    "WrittenLayout",
    "check_numbers",
    "find_named_shards",
    "find_shard_folder",
    "is_shard",
    "list_shards",
    "make_shard_folder",
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
    "written_name",
]
