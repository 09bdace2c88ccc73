"""Every named method has a literal reference, in float32 too, and with records that are not finite.

The references themselves are in ``test_references_*.py``, by family.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

import plumbline as pl
from tests.methods.literal import Case, images, network, train
from tests.methods.test_references_baselines import CASES as BASELINES
from tests.methods.test_references_clipping import CASES as CLIPPINGS
from tests.methods.test_references_evaluation import CASES as EVALUATIONS
from tests.methods.test_references_random import CASES as RANDOM

CASES = [*CLIPPINGS, *EVALUATIONS, *BASELINES, *RANDOM]

OTHERWISE = {
    "adaptive": "a norm that is not finite counts as one of zero, within the bound",
    "dpsgd_f": "the same: it counts as a record of its group below C",
    "averaged": "a bucket with such a record contributes zero as a whole",
    "group_batchnorm": "the same",
    "dp_gd_momentum": "a momentum that was not finite once stays so",
    "fairlens": "a batch with such a record contributes zero as a whole",
}
"""What rule A4 of methods.md does not describe exactly; none of it weakens a guarantee."""


def test_every_named_method_has_a_reference() -> None:
    assert {case.method.name for case in CASES} == set(pl.methods.METHODS)


def test_every_variant_is_told_apart() -> None:
    assert len({str(case) for case in CASES}) == len(CASES)


def relative(found: Tensor, expected: Tensor) -> float:
    size = float(expected.norm())
    return float((found.double() - expected).norm()) / size if size else float(found.norm())


@pytest.mark.parametrize(
    "case",
    # The noise before clipping is drawn in the gradient's own precision.
    [case for case in CASES if case.method.name != "pre_clip_noise"],
    ids=str,
)
def test_in_float32_it_is_the_same_to_1e_5(case: Case) -> None:
    """Of the whole released gradient; the single entries are compared in float64 elsewhere."""
    settings = case.settings()
    double = train(case.method, max_physical_batch=4, **settings)
    settings = case.settings()
    model = settings.pop("model", None) or network()
    x, y = settings.pop("data", None) or images()
    single = train(case.method, model.float(), (x.float(), y), max_physical_batch=4, **settings)
    assert single.batches == double.batches
    for found, expected in zip(single.updates, double.updates, strict=True):
        assert found.dtype == torch.float32
        assert relative(found, expected) < 1e-5
    assert relative(single.weights[-1], double.weights[-1]) < 1e-5


@cache
def wild() -> tuple[list[int], tuple[Tensor, Tensor]]:
    """A record of each batch, and the data with these not finite.

    Which records a batch has depends on the seed and the rate only, not on the method.
    """
    batches = train(pl.methods.nonprivate()).batches
    bad = sorted({batch[len(batch) // 2] for batch in batches if batch})
    x, y = images()
    for place, record in enumerate(bad):
        x[record, :, 2] = float("inf") if place % 2 else float("nan")
    return bad, (x, y)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.method.name not in OTHERWISE], ids=str
)
def test_a_record_that_is_not_finite_contributes_nothing(case: Case) -> None:
    """methods.md, A4: the reference does not have the record in its batches at all."""
    bad, data = wild()
    run = train(case.method, data=data, **case.settings())
    assert all(set(batch) & set(bad) for batch in run.batches if batch)
    run.batches = [[record for record in batch if record not in bad] for batch in run.batches]
    case.reference(run).check()


@pytest.mark.parametrize("name", OTHERWISE)
def test_even_then_what_is_released_is_finite(name: str) -> None:
    case = next(case for case in CASES if case.method.name == name)
    settings = case.settings()
    x, y = settings.pop("data", None) or images()
    x[3] = float("nan")
    run = train(case.method, data=(x, y), **settings)
    assert any(3 in batch for batch in run.batches)
    assert all(torch.isfinite(update).all() for update in run.updates)
