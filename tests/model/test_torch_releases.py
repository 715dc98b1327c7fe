"""Older releases of PyTorch: what they lack is refused by name or done under the name that it has there.

With an older torch these tests run against it (``make test-older-torch``); here its lack is made.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._dynamo.config as dynamo

from bert_trainer.errors import UnsupportedPrecision
from bert_trainer.model.backends.cpu import capability
from bert_trainer.model.torch_releases import allow_bf16_products, raise_recompile_limit

LIMIT = "recompile_limit" if hasattr(dynamo, "recompile_limit") else "cache_size_limit"


@pytest.fixture
def no_switch_for_bf16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "matmul", None, raising=False)


@pytest.fixture
def limit() -> Iterator[int]:
    before = getattr(dynamo, LIMIT)
    yield before
    setattr(dynamo, LIMIT, before)


@pytest.mark.usefixtures("no_switch_for_bf16_products")
def test_a_torch_without_bf32_computes_in_fp32_and_says_that_it_has_no_bf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capability.library, "processor_flags", lambda: frozenset({"amx_bf16", "avx512f"}))
    assert allow_bf16_products(False)
    assert not allow_bf16_products(True)
    assert capability.prepare_processor("fp32") is None
    with pytest.raises(UnsupportedPrecision, match=r"got 'bf32'; allowed: bf16 or fp32, since torch ") as caught:
        capability.prepare_processor("bf32")
    assert "newer torch" in (caught.value.hint or "")


def test_the_limit_of_graphs_is_raised_and_never_lowered(limit: int) -> None:
    raise_recompile_limit(limit + 3)
    assert getattr(dynamo, LIMIT) == limit + 3
    raise_recompile_limit(1)
    assert getattr(dynamo, LIMIT) == limit + 3
