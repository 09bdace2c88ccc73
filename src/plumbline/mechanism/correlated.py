"""Noise correlated between steps: rows of C S are released, and decoded by C^-1.

Step t has the exact sum s_t. Released is y_t = sum_k c_k s_{t-k} with independent noise on the grid
of `noise`, and the answer is s~_t = (y_t - sum_{k>=1} c_k s~_{t-k}) / c_0: post-processing, which
equals s_t plus row t of C^-1 W, W the noise of the rows.

Guarantee. A record that takes part in step t moves the b rows from t on, by c_k times its
contribution: together by no more than its contribution, since the norm of c is at most 1. Rows of
different blocks share no sum; a block begins where a step was passed over, for then later rows
would reach further than b steps. The exact sums are in memory only, and nothing here stores them.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import torch

from plumbline.mechanism.noise import as_vector, in_place_of

__all__ = ["Correlated", "mixing_sensitivity"]

_UNIT = 2.0**-53  # the relative rounding of one operation in float64
_ROW = "row"


class Correlated:
    """Mixes the sums of successive steps, and takes the mixture apart after the noise.

    Args:
        coefficients: c_0 .. c_{b-1}, of norm at most 1 and with c_0 above 0.

    Raises:
        ValueError: if they are others: noise would not cover what one record moves.
    """

    def __init__(self, coefficients: Sequence[float]) -> None:
        if not coefficients[0] > 0 or sum(Fraction(one) ** 2 for one in coefficients) > 1:
            raise ValueError(
                f"the bands are {tuple(coefficients)}; the first must be above 0, and the sum of "
                "their squares at most 1 exactly. Scale them down, or use plumbline.noise.banded"
            )
        self._first = coefficients[0]
        self._later = torch.tensor(coefficients[1:], dtype=torch.float64)
        self._last: int | None = None  # the step whose row was decoded last
        self._std = 0.0
        self._rows = 0  # of this block
        self._sums = self._decoded = torch.empty(0, 0)  # [b - 1, numel] each, in turn
        self._pending: torch.Tensor | None = None

    @property
    def bands(self) -> int:
        """Over how many steps noise is correlated, b."""
        return 1 + len(self._later)

    def follows(self, step: int) -> bool:
        """Whether earlier sums are mixed into the row of `step`; otherwise it begins a block."""
        return self._last is not None and step == self._last + 1

    def row(
        self, value: Mapping[str, torch.Tensor], std: float, step: int
    ) -> dict[str, torch.Tensor]:
        """The exact row of a step, to which noise is to be added: one vector in float64.

        Args:
            value: the exact sum of the step, or this process's part of it.
            std: the noise's standard deviation.
            step: which step.

        Raises:
            ValueError: if the noise is not that of the block's other rows, or the value is not
                finite.
        """
        exact = as_vector(value)
        if not self.follows(step):
            self._rows = 0
            self._std = std
            self._sums, self._decoded = exact.new_zeros(2, self.bands - 1, len(exact)).unbind()
        if std != self._std:
            raise ValueError(
                f"the noise of the correlated question has standard deviation {std}, and had "
                f"{self._std} in the step before: its bound has changed. Correlated noise needs a "
                "bound that stays the same along the run"
            )
        self._pending = exact
        return {_ROW: torch.add(self._mixed(self._sums), exact, alpha=self._first)}

    def decoded(
        self, noisy: Mapping[str, torch.Tensor], value: Mapping[str, torch.Tensor], step: int
    ) -> dict[str, torch.Tensor]:
        """The answer, with the names, shapes and types of `value`, from the row with its noise."""
        assert self._pending is not None  # of this very step
        answer = (noisy[_ROW] - self._mixed(self._decoded)) / self._first
        place = self._rows % (self.bands - 1)
        self._sums[place], self._decoded[place] = self._pending, answer
        self._pending, self._last = None, step
        self._rows += 1
        return in_place_of(value, answer)

    def _mixed(self, rows: torch.Tensor) -> torch.Tensor:
        """sum_{k>=1} c_k of the row k steps ago, `[numel]`; rows that are not there are zero."""
        ages = (self._rows - 1 - torch.arange(self.bands - 1)) % (self.bands - 1)
        weights = self._later[ages].to(rows.device)
        return weights @ rows


def mixing_sensitivity(movement: float, bands: int, records: int) -> float:
    """Bounds what the rounding of mixtures adds to the L2 sensitivity of a record's b rows.

    A sum over N records, each of which moves it by at most D, has a norm of at most N D. With
    r = (b + 3) u, computing a row of b terms and dividing it by the grid's step is off by at most
    r / (1 - r) times sum_k |c_k| |s_{t-k}| <= sqrt(b) N D, in whatever order terms are added;
    between two neighbours by twice that, and over b rows by sqrt(b) times as much.

    Args:
        movement: D, how far one record can move a sum.
        bands: b.
        records: N, the most records of a step.
    """
    off = (bands + 3) * _UNIT
    return 2 * bands * records * movement * off / (1 - off) if bands > 1 else 0.0
