"""What a step of private training asks, and what it therefore releases.

A method asks a `Query`; the mechanism answers it with noise and keeps the `GaussianQuery`, which is
the query without its value. All queries about one batch, together with the way the batch was
sampled, are a `StepRelease`: the frozen value that the ledger stores and the accountant interprets.

Guarantee: Gaussian queries about the *same* batch are one Gaussian mechanism with noise multiplier
`(sum_j sigma_j^-2)^(-1/2)`, however many there are and even if a later query depends on an earlier
answer; sampling amplifies that one mechanism once. (Dividing each query by its own noise makes them
one vector of unit noise whose sensitivity is the root of the summed `sigma_j^-2`.)
"""

import dataclasses
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

import torch


@dataclass(frozen=True, kw_only=True, eq=False)
class Query:
    """A query that a method asks about the records of one batch.

    Attributes:
        value: the exact, private answer: a tensor, or tensors by name that are one vector.
        sensitivity: how far, in L2 norm over all of `value`, one record added or removed can
            move it. Public.
        sigma: noise multiplier, the noise's standard deviation divided by `sensitivity`.
        name: what was asked, for the ledger and the statement.
        rounding: how much further, relative, `value` can move because it was computed with
            rounding. The noise covers it: its scale is that of the whole `movement`.
        answer_type: in which type the answer will be used; `value`'s own unless given.
    """

    value: torch.Tensor | Mapping[str, torch.Tensor]
    sensitivity: float
    sigma: float
    name: str = "gradient"
    rounding: float = 0.0
    answer_type: torch.dtype | None = None

    def __post_init__(self) -> None:
        _ = self.asked  # checks the numbers

    @property
    def movement(self) -> float:
        """How far one record can move `value`, rounding included."""
        return self.sensitivity * (1 + self.rounding)

    @property
    def named(self) -> dict[str, torch.Tensor]:
        """The value by name; a single tensor is called "value"."""
        return {"value": self.value} if isinstance(self.value, torch.Tensor) else dict(self.value)

    @cached_property
    def asked(self) -> "GaussianQuery":
        """The query without its value: all that may be recorded."""
        return GaussianQuery(
            name=self.name, sensitivity=self.sensitivity, noise_multiplier=self.sigma
        )


Result = TypeVar("Result")
Program = Generator[Query, dict[str, torch.Tensor], Result]
"""Asks questions by yielding them, receives the noisy answers, returns what it makes of them."""


def answered(
    program: Program[Result], answer: Callable[[Query], dict[str, torch.Tensor]]
) -> Result:
    """What a program returns when each of its questions is answered in turn."""
    try:
        query = next(program)
        while True:
            query = program.send(answer(query))
    except StopIteration as end:
        result: Result = end.value
        return result


@dataclass(frozen=True, kw_only=True)
class GaussianQuery:
    """A query that was answered with Gaussian noise of `noise_multiplier * sensitivity`."""

    name: str
    sensitivity: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        # Without noise no bound is needed.
        bounded = math.isfinite(self.sensitivity) or self.noise_multiplier == 0
        if not (bounded and self.sensitivity > 0):
            raise ValueError(
                f"query {self.name!r}: sensitivity {self.sensitivity} is not a positive finite "
                "number; clip what is asked so that one record can move it by a known amount"
            )
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise ValueError(
                f"query {self.name!r}: noise multiplier {self.noise_multiplier} is not a "
                "non-negative finite number; 0 means no noise and no guarantee"
            )


@dataclass(frozen=True, kw_only=True)
class PoissonSampling:
    """Every record enters the batch independently of the others, with probability `rate`."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"sampling rate {self.rate} is not in (0, 1]")


@dataclass(frozen=True, kw_only=True)
class FullBatch:
    """Every record enters every batch: sampling at rate 1, without amplification."""

    @property
    def rate(self) -> float:
        """The probability that a record takes part: 1."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class CyclicSampling:
    """Every record is in one of `parts` parts, and steps sample the parts in turn.

    A record takes part in at most one of `parts` steps in a row.

    Attributes:
        rate: the probability with which a record enters a batch of its part, independently.
        parts: how many parts there are; at least 2.
        cycle: names the draw of the parts and the order of the steps, in a ledger the run's id.
            Only steps of one cycle are counted together: two of different cycles may both be of a
            record's own part.
    """

    rate: float
    parts: int
    cycle: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"sampling rate {self.rate} is not in (0, 1]")
        if type(self.parts) is not int or self.parts < 2:
            raise ValueError(f"parts is {self.parts!r}; it must be a whole number of at least 2")


Sampling = PoissonSampling | FullBatch | CyclicSampling
Composition = Literal["joint", "basic"]


@dataclass(frozen=True, kw_only=True)
class StepRelease:
    """Everything that one step revealed about its batch.

    Attributes:
        sampling: how the batch was drawn, according to the sampler.
        queries: the queries about it, in order.
        unbounded_reason: for a method without a guarantee, why the noise does not cover what it
            released; epsilon is then infinite whatever the noise.
        composition: "joint", one mechanism of all queries, which is exact; or "basic", which adds
            up the epsilons and deltas that each query would have alone, and charges that where it
            is more, to compare with papers that charged the sum.
        delta: what the release adds to delta, for one record added or removed: more than 0 where
            with a small probability it shows something that the noise does not cover, such as the
            name of a category that a single record has.
    """

    sampling: Sampling
    queries: tuple[GaussianQuery, ...]
    unbounded_reason: str | None = None
    composition: Composition = "joint"
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.delta < 1:
            raise ValueError(f"a release's delta is {self.delta}; it must be at least 0, below 1")
        # A step that seems to release nothing would be free: that must be a bug.
        if not self.queries and self.unbounded_reason is None:
            raise ValueError(
                "a step release needs at least one query; a step without a guarantee gives "
                "`unbounded_reason` instead"
            )

    def participations(self, steps: int) -> int:
        """In how many of `steps` steps in a row a record can take part at most."""
        parts = self.sampling.parts if isinstance(self.sampling, CyclicSampling) else 1
        return -(-steps // parts)

    def of_run(self, run: str) -> "StepRelease":
        """The release as a ledger has it: the steps of a cycle are those of one run."""
        if not isinstance(self.sampling, CyclicSampling):
            return self
        return dataclasses.replace(self, sampling=dataclasses.replace(self.sampling, cycle=run))

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the one Gaussian mechanism equivalent to the queries.

        It is 0 if any query had no noise, or if the step has no guarantee.
        """
        sigmas = [query.noise_multiplier for query in self.queries]
        if self.unbounded_reason is not None or min(sigmas) == 0:
            return 0.0
        if len(sigmas) == 1:
            return sigmas[0]
        return 1 / math.hypot(*(1 / sigma for sigma in sigmas))

    @property
    def no_guarantee_reason(self) -> str | None:
        """Why epsilon is infinite; None if it is finite."""
        if self.unbounded_reason is not None:
            return self.unbounded_reason
        silent = [query.name for query in self.queries if query.noise_multiplier == 0]
        return f"no noise was added to what was asked ({', '.join(silent)})" if silent else None

    def to_dict(self) -> dict[str, Any]:
        """The release as JSON-able values; floats survive JSON exactly."""
        more: dict[str, Any] = {}
        if self.composition != "joint":
            more["composition"] = self.composition
        if self.delta:
            more["delta"] = self.delta
        sampling: dict[str, Any] = {"kind": "full_batch"}
        if isinstance(self.sampling, PoissonSampling):
            sampling = {"kind": "poisson", "rate": self.sampling.rate}
        elif isinstance(self.sampling, CyclicSampling):
            sampling = {"kind": "cyclic", **dataclasses.asdict(self.sampling)}
        return {
            "sampling": sampling,
            "queries": [dataclasses.asdict(query) for query in self.queries],
            "unbounded_reason": self.unbounded_reason,
            **more,
        }

    def alone(self, place: int) -> "StepRelease":
        """The release of a single query."""
        return dataclasses.replace(self, queries=(self.queries[place],), composition="joint")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "StepRelease":
        """The inverse of `to_dict`.

        Raises:
            ValueError: if `data` is not exactly what `to_dict` writes: a field that is missing,
                unknown or of another type must not be guessed when budgets depend on it.
        """
        basic = isinstance(data, Mapping) and data.get("composition") == "basic"
        failing = isinstance(data, Mapping) and "delta" in data
        keys = {"sampling", "queries", "unbounded_reason"} | ({"composition"} if basic else set())
        keys |= {"delta"} if failing else set()
        _expect_keys(data, keys, "a step release")
        reason = data["unbounded_reason"]
        if not (reason is None or isinstance(reason, str)):
            raise ValueError(f"unbounded_reason is {reason!r}, not a string or null")
        if not isinstance(data["queries"], list | tuple):
            raise ValueError(f"queries is {data['queries']!r}, not a list")
        return cls(
            sampling=_sampling_from_dict(data["sampling"]),
            queries=tuple(_query_from_dict(query) for query in data["queries"]),
            unbounded_reason=reason,
            composition="basic" if basic else "joint",
            delta=_number(data["delta"], "delta") if failing else 0.0,
        )


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The best of a random number of candidates, of which only that one is shown.

    Attributes:
        mean: how many there are on average; their number is geometric, and at least one.
        releases: what each candidate and its score release, as (release, number of equal steps);
            none of them adds to delta.
    """

    mean: float
    releases: tuple[tuple[StepRelease, int], ...]

    def __post_init__(self) -> None:
        if not 1 < self.mean < math.inf:
            raise ValueError(f"mean is {self.mean}; it must be above 1 and finite.")

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values; ValueError if a release of a candidate adds to delta."""
        self._check()
        releases = [[release.to_dict(), count] for release, count in self.releases]
        return {"selection": self.mean, "of": releases}

    def _check(self) -> None:
        if any(release.delta or count < 1 for release, count in self.releases):
            raise ValueError(
                "a candidate's release adds to delta or is not counted, and what a selection of "
                "such candidates costs is not accounted"
            )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Selection":
        """The inverse of `to_dict`; ValueError if `data` is not exactly what it writes."""
        _expect_keys(data, {"selection", "of"}, "a selection")
        match data["of"]:
            case [*pairs] if all(
                isinstance(pair, list | tuple) and len(pair) == 2 and type(pair[1]) is int
                for pair in pairs
            ):
                found = tuple((StepRelease.from_dict(release), count) for release, count in pairs)
                chosen = cls(mean=_number(data["selection"], "mean"), releases=found)
                chosen._check()
                return chosen
        raise ValueError(f"of is {data['of']!r}, not pairs of a release and a number")


Release = StepRelease | Selection
"""What a ledger charges."""


def release_from_dict(data: Mapping[str, Any]) -> Release:
    """The release that a ledger's line has.

    Raises:
        ValueError: if it is none, as of `StepRelease.from_dict`.
    """
    if isinstance(data, Mapping) and "selection" in data:
        return Selection.from_dict(data)
    return StepRelease.from_dict(data)


def _sampling_from_dict(data: Any) -> Sampling:
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if kind == "poisson":
        _expect_keys(data, {"kind", "rate"}, "Poisson sampling")
        return PoissonSampling(rate=_number(data["rate"], "rate"))
    if kind == "full_batch":
        _expect_keys(data, {"kind"}, "full-batch sampling")
        return FullBatch()
    if kind == "cyclic":
        _expect_keys(data, {"kind", "rate", "parts", "cycle"}, "cyclic sampling")
        if not isinstance(data["cycle"], str):
            raise ValueError(f"the cycle of cyclic sampling is {data['cycle']!r}, not a string")
        rate = _number(data["rate"], "rate")
        return CyclicSampling(rate=rate, parts=data["parts"], cycle=data["cycle"])
    raise ValueError(f"sampling is {data!r}; its kind must be 'poisson', 'cyclic' or 'full_batch'")


def _query_from_dict(data: Any) -> GaussianQuery:
    _expect_keys(data, {"name", "sensitivity", "noise_multiplier"}, "a query")
    if not isinstance(data["name"], str):
        raise ValueError(f"a query's name is {data['name']!r}, not a string")
    return GaussianQuery(
        name=data["name"],
        sensitivity=_number(data["sensitivity"], "sensitivity"),
        noise_multiplier=_number(data["noise_multiplier"], "noise_multiplier"),
    )


def _expect_keys(data: Any, keys: set[str], what: str) -> None:
    if not isinstance(data, Mapping) or set(data) != keys:
        raise ValueError(f"{what} must have exactly the fields {sorted(keys)}; got {data!r}")


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{what} is {value!r}, not a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{what} is {value}, more than any number that is computed with") from None
