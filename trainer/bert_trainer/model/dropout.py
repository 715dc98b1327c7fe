"""Dropout whose random bits are a function of what is dropped, not of a stream.

The bits of an element depend on (seed, step, sample number, site, place in the sample) alone: the same for
any number of ranks, micro-batches and padding, and again after a resume, with no generator state to save.
The generator is a counter hashed by a 32-bit finaliser (two multiply and xor-shift rounds with the constants
of the ``lowbias32`` mixer, C. Wellons, "Prospecting for Hash Functions", 2018), in integer tensor operations
that give the same bits on every device.

Letters: N tokens of a micro-batch, B rows, H heads, T padded length, D features.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_trainer.system.random_bits import mix64

EMBEDDINGS_SITE = 0
"""Number of the first place where features are dropped, behind the embeddings; those of layers follow it."""

# Of ``lowbias32``.
_FIRST_MULTIPLIER = 0x7FEB352D
_SECOND_MULTIPLIER = 0x846CA68B - (1 << 32)  # the same 32 bits as a signed integer
# About 2**32 and 2**64 divided by the golden ratio: odd, so that multiples of consecutive numbers are all different.
_GOLDEN_RATIO = 0x9E3779B1 - (1 << 32)
_GOLDEN_RATIO_64 = 0x9E3779B97F4A7C15
_SITES_AT_ONCE = 64


def _shift_right(bits: Tensor, count: int) -> Tensor:
    # torch shifts signed integers arithmetically; the mask makes it a logical shift.
    return (bits >> count) & ((1 << (32 - count)) - 1)


def mix(bits: Tensor) -> Tensor:
    """Hash int32 values of any shape to int32 values; a bijection on 32 bits."""
    # The C++ kernels have the same function (``native/arithmetic.h``): a change here is one there. int32 because torch
    # has no arithmetic for uint32; products wrap around as they should.
    bits = (bits ^ _shift_right(bits, 16)) * _FIRST_MULTIPLIER
    bits = (bits ^ _shift_right(bits, 15)) * _SECOND_MULTIPLIER
    return bits ^ _shift_right(bits, 16)


def row_keys(seed: int, step: int, sample_numbers_B: NDArray[np.int64]) -> Tensor:
    """Derive one key per row: int32 (B,), from the run's seed, the step and the rows' sample numbers."""
    keys = _row_states(seed, step, sample_numbers_B)
    return torch.from_numpy((keys >> np.uint64(32)).astype(np.uint32).view(np.int32))


def generator_seed(seed: int, step: int, first_sample: int) -> int:
    """Derive the 63 bits that generators of a device start from, from the same numbers; the key's and 31 more."""
    (state,) = _row_states(seed, step, np.array([first_sample]))
    return int(state) >> 1


def _row_states(seed: int, step: int, sample_numbers_B: NDArray[np.int64]) -> NDArray[np.uint64]:
    # Scalars of NumPy warn when they wrap around, arrays do not.
    with np.errstate(over="ignore"):
        state = np.uint64(seed) * np.uint64(_GOLDEN_RATIO_64) + np.uint64(step)
        return mix64(sample_numbers_B.astype(np.uint64) + mix64(np.atleast_1d(state)))


@dataclass(frozen=True, slots=True)
class DropoutKeys:
    """The part of the random bits that one micro-batch fixes."""

    rows_B: Tensor
    """int32, from ``row_keys``."""
    token_row_N: Tensor
    """int64: the row of every token."""
    token_position_N: Tensor
    """int64: the place of every token in its row."""
    generator_seed: int = 0
    """63 bits, for operators that draw from a generator of the device's own; fixed by the same numbers, as far as the
    micro-batch's first sample goes."""
    _keys: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Those of rows and of tokens, int32 (S, B) and (S, N), by the block of S sites."""

    def site_seed(self, site: int) -> int:
        """Return ``generator_seed`` for one site, 63 bits: what a GPU's attention is seeded with."""
        return (self.generator_seed + site * _GOLDEN_RATIO_64) & (2**63 - 1)

    def row_keys(self, site: int) -> Tensor:
        """Return one key per row at a site: int32 (B,).

        site: a number that differs for every place in the model where dropout is applied, from 0 on.
        """
        return self._keys_of(site)[0]

    def token_keys(self, site: int) -> Tensor:
        """Return one key per token at a site: int32 (N,)."""
        return self._keys_of(site)[1]

    def _keys_of(self, site: int) -> tuple[Tensor, Tensor]:
        # Of many sites at once: the keys of one are 27 small operations, half of a layer's time in a tiny model.
        block, place = divmod(site, _SITES_AT_ONCE)
        if block not in self._keys:
            first = block * _SITES_AT_ONCE
            sites_S = torch.arange(first, first + _SITES_AT_ONCE, device=self.rows_B.device, dtype=torch.int32)
            rows_SB = _site_row_keys(self.rows_B, sites_S[:, None])
            self._keys[block] = rows_SB, _token_keys(rows_SB, self.token_row_N, self.token_position_N)
        rows_SB, tokens_SN = self._keys[block]
        return rows_SB[place], tokens_SN[place]

    def of_tokens(self, places_K: Tensor) -> DropoutKeys:
        """Return the keys of the tokens at some places, in their order; int64 (K,)."""
        rows, positions = self.token_row_N.index_select(0, places_K), self.token_position_N.index_select(0, places_K)
        return replace(self, token_row_N=rows, token_position_N=positions)

    def hidden(self, x_ND: Tensor, probability: float, site: int) -> Tensor:
        """Zero features with the given probability and scale the others by 1 / (1 - probability)."""
        places_D = spread_places(x_ND.shape[-1], x_ND.device)
        return drop_features(x_ND, self.token_keys(site), places_D, probability)

    def kept_features(self, size: int, probability: float, site: int) -> Tensor:
        """Return which features ``hidden`` keeps: bool (N, size)."""
        return _kept(self.token_keys(site), spread_places(size, self.rows_B.device), probability)

    def attention(self, weights_BHTT: Tensor, probability: float, site: int) -> Tensor:
        """Drop attention weights; places count from each row's start, so padding changes nothing."""
        _, heads, length, _ = weights_BHTT.shape
        keys_BHT = self._attention_keys(heads, length, site)
        places_T = spread_places(weights_BHTT.shape[-1], weights_BHTT.device)
        return drop_features(weights_BHTT, keys_BHT, places_T, probability)

    def kept_weights(self, heads: int, length: int, probability: float, site: int) -> Tensor:
        """Return which attention weights ``attention`` keeps: bool (B, H, T, T)."""
        keys_BHT = self._attention_keys(heads, length, site)
        return _kept(keys_BHT, spread_places(length, self.rows_B.device), probability)

    def _attention_keys(self, heads: int, length: int, site: int) -> Tensor:
        """Return one key for each head and token: int32 (B, H, T)."""
        device = self.rows_B.device
        heads_H = torch.arange(heads, device=device, dtype=torch.int32)
        keys_BH = mix(self.row_keys(site)[:, None] + heads_H * _GOLDEN_RATIO)
        places_T = torch.arange(length, device=device, dtype=torch.int32)
        return mix(keys_BH[:, :, None] + places_T * _GOLDEN_RATIO)


def site_token_keys(rows_B: Tensor, token_row_N: Tensor, token_position_N: Tensor, sites: Tensor) -> Tensor:
    """Return one key per token at a site: int32 (N,). sites: int32, its number, a scalar or once per row."""
    return _token_keys(_site_row_keys(rows_B, sites), token_row_N, token_position_N)


def _token_keys(row_keys: Tensor, token_row_N: Tensor, token_position_N: Tensor) -> Tensor:
    """Return the keys of tokens, int32 (..., N), from those of rows, (..., B)."""
    return mix(row_keys[..., token_row_N] + token_position_N.to(torch.int32) * _GOLDEN_RATIO)


def _site_row_keys(rows_B: Tensor, sites: Tensor) -> Tensor:
    return mix(rows_B ^ mix(sites))


def spread_places(count: int, device: torch.device) -> Tensor:
    """Return what tells the elements along one dimension from another: int32 (count,)."""
    return torch.arange(count, device=device, dtype=torch.int32) * _GOLDEN_RATIO


def drop_features(x: Tensor, keys: Tensor, places_D: Tensor, probability: float) -> Tensor:
    """Zero elements with the given probability and scale the others by 1 / (1 - probability).

    x: (..., D); keys: int32 (...), one for each vector along the last dimension; places_D: from ``spread_places``.
    """
    # Scaled by a number, not by a tensor of x's type: in bf16 that would be 1.109 instead of 1.111.
    return torch.where(_kept(keys, places_D, probability), x * (1.0 / (1.0 - probability)), 0.0)


def _kept(keys: Tensor, places_D: Tensor, probability: float) -> Tensor:
    """Return which elements stay: bool (..., D). keys: int32 (...)."""
    # One hash per element, of a key that is a hash itself: neighbouring keys and places share no pattern.
    bits = mix(keys.unsqueeze(-1) + places_D)
    # Signed bits are uniform in [-2**31, 2**31); those below the threshold are dropped.
    return bits >= round(probability * 2**32) - 2**31
