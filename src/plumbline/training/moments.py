"""A private mean and variance of features, to normalise them with before training.

For ``private_moments``, every record has two vectors: the means of its channels over their
positions, and the means of their squares. Each is scaled down to a public bound, summed over all
records, and released with Gaussian noise; mean and variance of every channel follow (Tramer and
Boneh 2021, section 2.3 and appendix). Their released code takes the two bounds from exact quantiles
of the data, which nothing covers; here they are stated by who asks, without looking at the data.
``private_mean`` asks for a mean alone, but of every feature at every position.

Guarantee: that of ``full_batch_queries``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.checks import check_count, check_positive
from plumbline.gradients.summation import MOST_RECORDS, ROUNDING
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.release import GaussianQuery, Query, StepRelease
from plumbline.training.full_batch_queries import ask, name_of, release_of


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
    _check_most(len(features))
    queries = [
        Query(
            value=total,
            sensitivity=most,
            sigma=noise_multiplier,
            name=name_of(name, seeded=seed is not None),
            rounding=ROUNDING,
        )
        for total, most, name in zip(
            _sums(features, (bound, square_bound), chunk),
            (bound, square_bound),
            ("the means of the features", "the mean squares of the features"),
            strict=True,
        )
    ]
    asked = ask(f"moments {tuple(features.shape)}", queries, seed=seed, ledger=ledger)
    means, squares = (answer / (records or len(features)) for answer in asked.answers)
    variance = (squares - means.square()).clamp(min=floor)
    return Moments(means.float(), variance.float(), asked.release)


def mean_release(noise_multiplier: float, *, seeded: bool) -> StepRelease:
    """What ``private_mean`` releases, in units of its bound: known before it is asked."""
    query = GaussianQuery(
        name=name_of("the mean of the features", seeded=seeded),
        sensitivity=1.0,
        noise_multiplier=noise_multiplier,
    )
    return release_of([query])


def private_mean(
    features: Iterable[Tensor],
    *,
    records: int,
    noise_multiplier: float,
    bound: float,
    seed: int | None = None,
    ledger: Ledger | None = None,
) -> Tensor:
    """The mean of features, released with noise; what it costs is ``mean_release``.

    Args:
        features: ``[R, ...]``, some records at a time. A record with a feature that is not finite
            contributes zero.
        records: The number of records, public.
        noise_multiplier: The noise, in units of the bound.
        bound: The largest L2 norm that a record's features may have; longer ones are scaled down.
            Public: state it without looking at the data.
        seed: Makes the noise reproducible, for who knows the seed; by default it is secure.
        ledger: Where the release is charged, durably, before it is made.

    Returns:
        ``[...]``, float32.

    Raises:
        LedgerError: If the release could not be charged; nothing was released then.
    """
    for name, value in (("noise_multiplier", noise_multiplier), ("bound", bound)):
        check_positive(name, value)
    check_count("records", records)
    total, shape, seen = torch.zeros(()), torch.Size(), 0
    for rows in features:
        seen += len(rows)
        total, shape = total + _within(rows.detach().cpu().double().flatten(1), bound), rows.shape
    _check_most(seen)
    (told,) = mean_release(noise_multiplier, seeded=seed is not None).queries
    query = Query(
        value=total / bound,
        sensitivity=told.sensitivity,
        sigma=told.noise_multiplier,
        name=told.name,
        rounding=ROUNDING,
    )
    asked = ask(f"mean {records} {tuple(shape[1:])}", [query], seed=seed, ledger=ledger)
    return (asked.answers[0] * bound / records).float().view(shape[1:])


def _check_most(records: int) -> None:
    if records > MOST_RECORDS:
        raise ValueError(
            f"There are more records than the {MOST_RECORDS:,} for which the rounding of a sum is "
            "proven. Take the moments of a part of them, chosen without looking at the data."
        )


def _sums(features: Tensor, bounds: tuple[float, float], chunk: int) -> tuple[Tensor, Tensor]:
    """The two sums over the records of vectors within the bounds, ``[C]`` each, in float64."""
    totals = torch.zeros(2, features.shape[1], dtype=torch.float64)
    for rows in torch.split(features, chunk):
        x = rows.detach().cpu().double()
        x = x.flatten(2) if x.dim() > 2 else x[..., None]
        for place, vectors in enumerate((x.mean(2), x.square().mean(2))):
            totals[place] += _within(vectors, bounds[place])
    return totals[0], totals[1]


def _within(vectors: Tensor, bound: float) -> Tensor:
    """The sum of vectors ``[R, d]``, each scaled down to the bound; ``[d]``."""
    norms = vectors.norm(dim=1, keepdim=True)
    scaled = vectors * (bound / norms).clamp(max=1.0)
    return torch.where(torch.isfinite(norms), scaled, 0).sum(0)
