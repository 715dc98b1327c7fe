"""Names of shard layouts, of what samples hold and of recipes, which settings, builds and readers share.

Apart from ``section`` because of what that imports: every worker process of a build starts with this module, and
pydantic would double its start-up time.
"""

from __future__ import annotations

from typing import Literal

WrittenLayout = Literal["compact", "nvidia", "intel", "mlperf"]
"""Layouts that files are written in."""
LayoutName = Literal[WrittenLayout, "mlperf-variable", "mlperf-packed", "tfrecord"]
"""Layouts that files are read in. Modules of ``dataset.shards``: ``compact``, ``fixed`` (nvidia, intel, mlperf),
``variable`` (mlperf-variable, mlperf-packed) and ``tfrecord``."""
SamplesOf = Literal["pairs", "documents"]
"""What the rows of shards hold: [CLS] A [SEP] B [SEP] of two sentence spans, or documents, [CLS] piece [SEP] each."""
RecipeName = Literal["nvidia", "mlperf"]
"""Published ways to build a dataset (``dataset.build.recipes``)."""
