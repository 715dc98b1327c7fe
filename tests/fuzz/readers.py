"""Every reader, in the order in which they are fuzzed; a family in each module."""

from __future__ import annotations

import checkpoint_readers
import corpus_readers
import moment_readers
import operator_readers
import setting_readers
import shard_readers
import task_readers
import tfrecord_readers

READERS = (
    *operator_readers.READERS,
    *setting_readers.READERS,
    *task_readers.READERS,
    *corpus_readers.READERS,
    *shard_readers.READERS,
    *tfrecord_readers.READERS,
    *checkpoint_readers.READERS,
    *moment_readers.READERS,
)
