"""What tests of compiled functions share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.utils import counters

from bert_trainer.model.backends.gpu.compilation import why_not_compiled


@pytest.fixture
def compiled_anew() -> Iterator[None]:
    """Forget what was compiled, and whether that works, before a test and after it."""
    why_not_compiled.cache_clear()
    torch._dynamo.reset()
    counters.clear()
    yield
    why_not_compiled.cache_clear()
    torch._dynamo.reset()
