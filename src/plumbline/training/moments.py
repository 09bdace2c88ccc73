"""A private mean and variance of features, to normalise them with before training.

Every record has two vectors: the means of its channels over their positions, and the means of their
squares. Each is scaled down to a public bound, summed over all records, and released with Gaussian
noise; mean and variance of every channel follow (Tramer and Boneh 2021, section 2.3 and appendix).
Their released code takes the two bounds from exact quantiles of the data, which nothing covers;
here they are stated by who asks, without looking at the data.

Guarantee: what was asked is ``Moments.release``, one full-batch Gaussian mechanism. Passed on as
``make_private(..., before=[moments.release])`` it is part of what the run accounts for and states.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.checks import check_count, check_positive
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.random_source import RandomSource, SecureSource, SeededSource
from plumbline.mechanism.release import FullBatch, Query, StepRelease
from plumbline.training.answering import Answers
from plumbline.training.settings import inputs_digest


@dataclass(frozen=True, eq=False)
class Moments:
    """A mean and variance for every channel, ``[C]`` each, and what they cost.

    Attributes:
        mean: Of each channel.
        variance: The same; at least ``floor`` of ``private_moments``.
        release: What was asked of the data, for ``make_private(before=[...])``.
    """

    mean: Tensor
    variance: Tensor
    release: StepRelease


def private_moments(
    features: Tensor,
    *,
    noise_multiplier: float,
    bound: float,
    square_bound: float,
    records: int | None = None,
    floor: float = 1e-5,
    seed: int | None = None,
    ledger: Ledger | None = None,
    chunk: int = 4096,
) -> Moments:
    """The mean and variance of each channel, released with noise.

    Args:
        features: ``[n, C, ...]``, one row per record; may be mapped from a file. A record with a
            feature that is not finite contributes zero.
        noise_multiplier: The noise of each of the two questions, in units of its bound.
        bound: The largest L2 norm that a record's ``[C]`` channel means may have; longer ones are
            scaled down. Public: state it without looking at the data. Scattering features of pixels
            in [0, 1] stay below 1, but for rounding.
        square_bound: The same for the means of squares.
        records: The number of records, if it is public knowledge; else n is used, and is public.
        floor: The least variance; less is noise.
        seed: Makes the noise reproducible, for who knows the seed; by default it is secure.
        ledger: Where the release is charged, durably, before it is made.
        chunk: How many records are in memory at once.

    Raises:
        LedgerError: If the release could not be charged; nothing was released then.
    """
    for name, value in (
        ("noise_multiplier", noise_multiplier),
        ("bound", bound),
        ("square_bound", square_bound),
        ("floor", floor),
    ):
        check_positive(name, value)
    for name, count in (("chunk", chunk), ("records", records)):
        if count is not None:
            check_count(name, count)
    if features.dim() < 2 or not features.is_floating_point():
        raise ValueError(
            f"features is a tensor of shape {tuple(features.shape)} and type {features.dtype}; "
            "give floating-point numbers with one row per record, [n, channels, ...]."
        )
    # The name reaches ledger and statement, where a seed must not go unnoticed.
    how = "" if seed is None else " (noise from a seed)"
    queries = [
        Query(value=total, sensitivity=most, sigma=noise_multiplier, name=f"{name}{how}")
        for total, most, name in zip(
            _sums(features, (bound, square_bound), chunk),
            (bound, square_bound),
            ("the means of the features", "the mean squares of the features"),
            strict=True,
        )
    ]
    release = StepRelease(sampling=FullBatch(), queries=tuple(one.asked for one in queries))
    source: RandomSource = SecureSource()
    if seed is not None:
        source = SeededSource(seed, f"moments {tuple(features.shape)} {release.to_dict()}")
    if ledger is not None:
        _charge(ledger, release, source, queries)
    answers = Answers(source, 0, 0)
    means, squares = (
        answers.answer(query, release.queries, 0, place)["value"] / (records or len(features))
        for place, query in enumerate(queries)
    )
    variance = (squares - means.square()).clamp(min=floor)
    return Moments(means.float(), variance.float(), release)


def _sums(features: Tensor, bounds: tuple[float, float], chunk: int) -> tuple[Tensor, Tensor]:
    """The two sums over the records of vectors within the bounds, ``[C]`` each, in float64."""
    totals = torch.zeros(2, features.shape[1], dtype=torch.float64)
    for rows in torch.split(features, chunk):
        x = rows.detach().cpu().double()
        x = x.flatten(2) if x.dim() > 2 else x[..., None]
        for place, vectors in enumerate((x.mean(2), x.square().mean(2))):
            norms = vectors.norm(dim=1, keepdim=True)
            scaled = vectors * (bounds[place] / norms).clamp(max=1.0)
            totals[place] += torch.where(torch.isfinite(norms), scaled, 0).sum(0)
    return totals[0], totals[1]


def _charge(
    ledger: Ledger, release: StepRelease, source: RandomSource, queries: list[Query]
) -> None:
    position = None
    if not source.secure:
        key = source.stream("digest").bytes(32)
        position = 0, inputs_digest(key, queries[0], queries[1].value)
    run = f"moments-{source.stream('run').bytes(8).hex()}"
    ledger.charge(release.to_dict(), run=run, step=0, noise_position=position)
