"""Whether an NVIDIA GPU can compute as asked.

CUDA does not refuse: without tf32 units PyTorch computes in fp32, and below compute capability 8.0 it emulates bf16
slower than fp32, both without a warning. So what a card cannot do is rejected here, by name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bert_trainer.errors import InputError, UnsupportedPrecision

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)([a-z]?)")

_NEEDED: dict[str, tuple[tuple[int, int], str]] = {
    "bf16": ((8, 0), "fp16 or fp32"),
    "tf32": ((8, 0), "fp16 or fp32"),
    "fp16": ((5, 3), "fp32"),
}
"""Compute capability from which a precision is what its name says, and what to use instead."""
_FAST: dict[str, tuple[int, int]] = {"fp16": (7, 0)}
"""Compute capability from which it is faster than fp32."""


_OLDER = (5, 0), (7, 5)
"""From and below: cards that torch 2.7.1 has code for, and wheels for CUDA 13 do not. Triton compiles from sm_70 on."""


def check_capability(precision: str, capability: tuple[int, int], name: str) -> str | None:
    """Return a warning where the precision works but gains nothing, else None.

    capability: major and minor, (7, 0) for a V100. name: of the card, for the message.

    Raises:
        UnsupportedPrecision: it would silently be another one, or be emulated.
    """
    card = f"{name} (sm_{capability[0]}{capability[1]})"
    if precision in _NEEDED:
        needed, instead = _NEEDED[precision]
        oldest = f"sm_{needed[0]}{needed[1]}"
        if capability < needed:
            raise UnsupportedPrecision(
                f"precision: got {precision!r}; allowed: {instead}, since {card} is older than {oldest}",
                hint="change spec.precision, or choose other nodes with spec.scheduling.nodeSelector",
            )
    if precision in _FAST and capability < _FAST[precision]:
        return f"precision {precision}: {card} has no tensor cores and gains nothing over fp32"
    return None


def check_build(architectures: Sequence[str], capability: tuple[int, int], name: str) -> None:
    """Check that this PyTorch holds code for a card; without it the first operation fails with a CUDA error.

    architectures: as ``torch.cuda.get_arch_list`` returns them, such as sm_80 and compute_90. Machine code runs on its
    own major version from its minor one on, PTX (``compute_``) on anything newer; a letter behind ties it to one card.

    Raises:
        InputError: it holds none.
    """
    found = [match.groups() for match in map(_ARCHITECTURE.fullmatch, architectures) if match]
    for kind, digits, exact in found:
        major, minor = int(digits[:-1]), int(digits[-1])
        newer = (major, minor) <= capability
        if (major, minor) == capability or newer and not exact and (kind == "compute" or major == capability[0]):
            return
    image = "an image whose PyTorch is built for this card"
    if _OLDER[0] <= capability < _OLDER[1]:
        image = "the image with torch 2.7, which has code for this card, and collectives 'torch'"
    raise InputError(
        f"device: got {name} (sm_{capability[0]}{capability[1]}); allowed: what this PyTorch is built for "
        f"({', '.join(architectures)})",
        hint=f"use {image} (images/README.md), or choose other nodes with spec.scheduling.nodeSelector",
    )
