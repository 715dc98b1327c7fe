"""How far counts are from what they should be, in standard deviations of a right implementation.

Every function returns a z-value that is about normal(0, 1) where the code under test is right, so that one bound
serves all: beyond ``FIVE_SIGMA`` chance alone comes once in 1.7 million comparisons. Seeds are fixed, so a test
that passed once passes always; the bound says what a change of the code could get away with. A shift of ``d`` in
a share is found with 97.7 % certainty where ``d`` is at least 7 standard deviations.

``SkewedBits`` is how tests show that their bound bites: the code under test draws from it, and must be caught.
"""

from collections.abc import Sequence
from math import cbrt, sqrt
from statistics import fmean, variance

import numpy as np
from numpy.typing import NDArray

from bert_trainer.system.random_bits import RandomBits

FIVE_SIGMA = 5.0


def share_z(hits: int, total: int, expected: float) -> float:
    """Return the z-value of ``hits`` of ``total`` independent draws that each hit with chance ``expected``."""
    return (hits - total * expected) / sqrt(total * expected * (1 - expected))


def mean_z(values: Sequence[float], expected: float) -> float:
    """Return the z-value of the mean of independent values against a known expectation."""
    return (fmean(values) - expected) / sqrt(variance(values) / len(values))


def difference_z(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Welch's z-value for the difference of the means of two sets of independent values."""
    spread = variance(first) / len(first) + variance(second) / len(second)
    difference = fmean(first) - fmean(second)
    return difference / sqrt(spread) if spread else float(difference != 0) * float("inf")


def chi_square_z(counts: Sequence[float], expected: Sequence[float], *, scale: float = 1.0) -> float:
    """Return Pearson's chi-square of counts as a z-value (Wilson and Hilferty's cube root).

    Both sum to the same total, so there is one degree of freedom less than there are cells. scale: variance of a
    count over that of a multinomial one. Large where counts differ, very negative where they are too even.
    """
    assert abs(sum(counts) - sum(expected)) < 1e-6 * sum(expected)
    assert min(expected) >= 5
    statistic = sum((count - mean) ** 2 / mean for count, mean in zip(counts, expected, strict=True)) / scale
    return _chi_square_z(statistic, len(counts) - 1)


def two_sample_chi_square_z(first: Sequence[int], second: Sequence[int]) -> float:
    """Return the chi-square of two rows of counts having one distribution, as a z-value; empty cells are left out."""
    from scipy import stats  # only here: machines of tools/gpu_report.sh may lack it

    cells = np.array([cell for cell in zip(first, second, strict=True) if sum(cell)])
    statistic = float(stats.chi2_contingency(cells, correction=False).statistic)
    return _chi_square_z(statistic, len(cells) - 1)


def smirnov_z(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sample Kolmogorov-Smirnov distance as the one-sided z-value of the same significance.

    By the asymptotic distribution, which is on the safe side where values repeat.
    """
    from scipy import stats

    significance = stats.ks_2samp(first, second, method="asymp").pvalue
    # Beyond 38 the normal distribution's tail is below the least double.
    return float(np.clip(stats.norm.isf(significance), 0.0, 38.0))


def _chi_square_z(statistic: float, degrees: int) -> float:
    return (cbrt(statistic / degrees) - (1 - 2 / (9 * degrees))) / sqrt(2 / (9 * degrees))


class SkewedBits(RandomBits):
    """Random bits that are wrong by one percentage point.

    chance: draws that should hit with this chance hit with one that is 0.01 larger. first_tenth: in one draw of a
    hundred, numbers come from the first tenth of their range. coin: so do heads. Anything else is as it should be.
    """

    def __init__(
        self, seed: int, *, chance: float | None = None, first_tenth: bool = False, coin: bool = False
    ) -> None:
        super().__init__(str(seed))
        self._chance, self._first_tenth, self._coin = chance, first_tenth, coin

    def hits(self, chance: float, count: int) -> NDArray[np.bool_]:
        """Return draws that hit slightly too often."""
        return super().hits(chance + 0.01 * (chance == self._chance), count)

    def below(self, limits: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return numbers that are slightly too small."""
        numbers = super().below(limits)
        if self._first_tenth:
            numbers = np.where(super().hits(0.01, len(limits)), super().below(np.maximum(1, limits // 10)), numbers)
        return numbers

    def coins(self, tosses: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return heads that are slightly too many."""
        heads = super().coins(tosses)
        # Of the tails, one in fifty is turned: 51 % are heads.
        return heads + super().coins((tosses - heads) // 25) if self._coin else heads
