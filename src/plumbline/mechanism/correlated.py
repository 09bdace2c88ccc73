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
        self._bands = torch.tensor(coefficients, dtype=torch.float64)
        self._last: int | None = None  # the step whose row was decoded last
        self._std = 0.0
        self._rows = 0  # of this block
        self._sums = self._decoded = _Latest(self._bands, torch.empty(0))

    @property
    def bands(self) -> int:
        """Over how many steps noise is correlated, b."""
        return len(self._bands)

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
            self._sums = _Latest(self._bands, exact)
            self._decoded = _Latest(self._bands[1:], exact)
        if std != self._std:
            raise ValueError(
                f"the noise of the correlated question has standard deviation {std}, and had "
                f"{self._std} in the step before: its bound has changed. Correlated noise needs a "
                "bound that stays the same along the run"
            )
        self._sums.put(self._rows, exact)
        return {_ROW: self._sums.weights(self._rows) @ self._sums.vectors}

    def decoded(
        self, noisy: Mapping[str, torch.Tensor], value: Mapping[str, torch.Tensor], step: int
    ) -> dict[str, torch.Tensor]:
        """The answer, with the names, shapes and types of `value`, from the row with its noise."""
        before = self._decoded.weights(self._rows - 1)
        answer = torch.addmv(noisy[_ROW], self._decoded.vectors.T, before, alpha=-1)
        answer.div_(self._bands[0])
        self._decoded.put(self._rows, answer)
        self._last = step
        self._rows += 1
        return in_place_of(value, answer)


class _Latest:
    """The latest vectors of a block: number n lies in place n modulo their count.

    Args:
        bands: by which they count in a mixture: the newest by the first, the one before by the
            next.
        like: a vector of their length, type and device. Those that are not there yet are zero.
    """

    def __init__(self, bands: torch.Tensor, like: torch.Tensor) -> None:
        self.vectors = like.new_zeros(len(bands), len(like))
        self._bands = bands.flip(0).repeat(2).to(like.device)

    def put(self, number: int, vector: torch.Tensor) -> None:
        """Takes the place of the oldest."""
        self.vectors[number % len(self.vectors)] = vector

    def weights(self, newest: int) -> torch.Tensor:
        """By which the vector in each place counts, if `newest` is the number of the newest."""
        start = (-1 - newest) % len(self.vectors)
        return self._bands[start : start + len(self.vectors)]


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
