"""Which images are below a registry, folder or repository: by whole parts of a name, and never by half of one."""

from __future__ import annotations

import pytest

from bert_operator.render.images import is_below
from image_prefixes import BELOW, NOT_BELOW


@pytest.mark.parametrize(("prefix", "image"), BELOW)
def test_what_is_below_a_prefix(prefix: str, image: str) -> None:
    assert is_below(image, prefix)


@pytest.mark.parametrize(("prefix", "image"), NOT_BELOW)
def test_what_only_looks_as_if_it_were(prefix: str, image: str) -> None:
    assert not is_below(image, prefix)
