"""The outcomes of one trained model on the test records: the input of every fairness number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_T = TypeVar("_T", bound=np.generic)
_SLACK = 1e-5  # a float32 softmax may round to slightly above one


class Outcomes:
    """One run's outcomes on n test records, in the same order in all arrays.

    Attributes:
        labels: The true classes, ``[n]`` int64.
        predictions: The predicted classes, ``[n]`` int64.
        losses: Each record's loss, ``[n]`` float64, or None. They may be infinite or NaN, if the
            model diverged.
        scores: The predicted probability of the *predicted* class, ``[n]`` float64, or None.
    """

    def __init__(
        self,
        labels: ArrayLike | Tensor,
        predictions: ArrayLike | Tensor,
        losses: ArrayLike | Tensor | None = None,
        scores: ArrayLike | Tensor | None = None,
    ) -> None:
        self.labels = _classes("labels", labels)
        self.predictions = _classes("predictions", predictions)
        self.losses = None if losses is None else as_numbers("losses", losses)
        self.scores = None if scores is None else _probabilities(as_numbers("scores", scores))
        check_lengths(vars(self))

    @classmethod
    def from_logits(
        cls,
        logits: Tensor,
        labels: Tensor,
        losses: ArrayLike | Tensor | None = None,
        *,
        threshold: float | None = None,
    ) -> Outcomes:
        """The outcomes of a classifier.

        Args:
            logits: ``[n, C]``; the softmax of a row gives the classes' probabilities.
            labels: ``[n]``, from 0 to C - 1.
            losses: ``[n]``; by default the cross-entropy.
            threshold: Of two classes, the probability from which on the second one is predicted;
                by default the more probable one is.
        """
        if logits.ndim != 2 or logits.shape[1] < 2 or labels.shape != logits.shape[:1]:
            raise ValueError(
                f"logits have shape {tuple(logits.shape)} and labels {tuple(labels.shape)}; they "
                "must be [n, C] with C of at least 2, and [n]. For a single output z per record, "
                "give torch.stack([torch.zeros_like(z), z], 1)."
            )
        rows, classes = logits.detach().double().cpu(), labels.detach().long().cpu()
        outside = ((classes < 0) | (classes >= rows.shape[1])).nonzero()[:, 0]
        if len(outside):
            raise ValueError(
                f"The label of record {int(outside[0])} is out of range; with {rows.shape[1]} "
                f"logits it must be from 0 to {rows.shape[1] - 1}."
            )
        if losses is None:
            losses = torch.nn.functional.cross_entropy(rows, classes, reduction="none")
        chances = rows.softmax(1)
        predictions = predicted(chances, threshold)
        return cls(classes, predictions, losses, chances.gather(1, predictions[:, None])[:, 0])

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Which records were predicted correctly, ``[n]``."""
        return np.equal(self.labels, self.predictions)

    def take(self, rows: Integers) -> Outcomes:
        """The outcomes of records ``rows`` (``[R]``)."""
        return Outcomes(
            self.labels[rows],
            self.predictions[rows],
            None if self.losses is None else self.losses[rows],
            None if self.scores is None else self.scores[rows],
        )


def predicted(chances: Tensor, threshold: float | None = None) -> Tensor:
    """The class of each record, ``[n]``, by the classes' probabilities, ``[n, C]``.

    The more probable one; or, with a threshold, the second of two from that probability on.
    """
    if threshold is None:
        return chances.max(1).indices
    if chances.shape[1] != 2:
        raise ValueError(
            f"A threshold is given, and there are {chances.shape[1]} classes; it decides between "
            "two."
        )
    return (chances[:, 1] >= threshold).long()


def check_lengths(parts: Mapping[str, Any]) -> None:
    """Refuses arrays of different lengths, and empty ones; None has no length."""
    lengths = {name: len(values) for name, values in parts.items() if values is not None}
    if len(set(lengths.values())) != 1:
        raise ValueError(
            f"The outcomes have different lengths: {lengths}. Each must have one value per "
            "test record, in the same order."
        )
    if 0 in lengths.values():
        raise ValueError("The outcomes have no records; give those of at least one record.")


def as_array(values: Any) -> NDArray[Any]:
    """Values as a numpy array; tensors may be on any device, with or without gradient."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.double() if values.is_floating_point() else values).numpy()
    return np.asarray(values)


def _classes(name: str, values: ArrayLike | Tensor) -> Integers:
    array = _flat(name, as_array(values))
    whole = array.dtype.kind in "bui" or (array.dtype.kind == "f" and _all_whole(array))
    if not whole:
        raise ValueError(
            f"{name} are of type {array.dtype} and not whole numbers; give the number of each "
            "record's class. For logits, use Outcomes.from_logits."
        )
    return array.astype(np.int64)


def as_numbers(name: str, values: ArrayLike | Tensor) -> Floats:
    """One number per record, as float64."""
    array = _flat(name, as_array(values))
    if array.dtype.kind not in "buif":
        raise ValueError(f"{name} are of type {array.dtype}; give one number per test record.")
    return array.astype(np.float64)


def _probabilities(scores: Floats) -> Floats:
    outside = (scores < -_SLACK) | (scores > 1 + _SLACK)  # not NaN, which a model may well return
    if outside.any():
        raise ValueError(
            f"The score of record {int(outside.argmax())} is not between 0 and 1; each must be the "
            "predicted probability of the predicted class. For logits, use Outcomes.from_logits."
        )
    return np.clip(scores, 0.0, 1.0)


def _flat(name: str, array: NDArray[_T]) -> NDArray[_T]:
    if array.ndim != 1:
        raise ValueError(
            f"{name} have shape {array.shape}; give one value per test record, [n]. For logits, "
            "use Outcomes.from_logits."
        )
    return array


def _all_whole(array: NDArray[Any]) -> bool:
    return bool(np.isfinite(array).all() and (array == np.floor(array)).all())
