"""A step returns its batch's mean loss, marked, from the passes that it makes anyway."""

import io
import json
import math
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import plumbline as pl
from plumbline.clipping import Flat
from plumbline.evaluation import Bam, DpSam
from plumbline.gradients import capture
from plumbline.methods import compose
from plumbline.training import BadRecords, NotCovered, batches
from tests.training.small import LOSS, budget, data, private

X, Y = data()


def test_it_is_printed_with_its_mark() -> None:
    loss = NotCovered(0.69314)
    assert f"{loss}" == str(loss) == repr(loss) == "0.6931 (not covered by epsilon)"
    assert f"loss {loss:.2f}" == "loss 0.69 (not covered by epsilon)"
    assert loss == 0.69314
    assert type(loss + 1) is float
    assert json.loads(json.dumps({"loss": loss})) == {"loss": 0.69314}


def test_what_a_loop_asks_of_a_loss() -> None:
    loss = NotCovered(0.5)
    assert f"{loss.item()}" == "0.5 (not covered by epsilon)"
    assert not hasattr(loss, "grad_fn")
    with pytest.raises(AttributeError, match=r"no 'backward': the weights are updated already"):
        loss.backward()


@pytest.mark.parametrize(
    "method",
    [
        pl.methods.dpsgd(clip=0.5),
        compose(evaluation=(DpSam(0.05),), clipping=Flat(0.5), name="two questions"),
        compose(evaluation=(Bam(0.02),), clipping=Flat(0.5), name="two passes"),
        pl.methods.nonprivate(),
    ],
    ids=lambda method: method.name,
)
@pytest.mark.parametrize("most", [None, 3])
def test_it_is_the_mean_over_the_batch_before_the_step(method: Any, most: int | None) -> None:
    mine = private(method=method, max_physical_batch=most)
    for batch in mine:
        with torch.no_grad():
            expected = float(LOSS(mine.model(X[batch.indices]), Y[batch.indices]).mean())
        assert mine.step(batch) == pytest.approx(expected, rel=1e-5)


def test_no_further_pass_is_made_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[None] = []

    def counted(*arguments: Any, **settings: Any) -> Any:
        passes.append(None)
        return capture(*arguments, **settings)

    monkeypatch.setattr(batches, "capture", counted)
    monkeypatch.delattr(batches.PrivateChunk, "losses")
    console = Console(file=io.StringIO())
    mine = private()
    mine.programs = None  # which would make passes without calling the model
    mine.fit(show=("loss",), progress=console)
    assert "loss" in console.file.getvalue()  # type: ignore[attr-defined]
    assert len(passes) == 4


def test_an_empty_batch_has_none() -> None:
    mine = private(plan=budget(expected_batch_size=1, steps=30))
    losses = {len(batch): mine.step(batch) for batch in mine}
    assert math.isnan(losses[0])
    assert not math.isnan(losses[1])


def test_losses_that_are_not_finite_are_left_out() -> None:
    x = X.clone()
    x[3] = torch.nan
    mine = private(dataset=(x, Y), plan=budget(expected_batch_size=len(X)))
    batch = next(iter(mine))
    rest = torch.arange(len(X)) != 3
    with torch.no_grad():
        expected = float(LOSS(mine.model(x[rest]), Y[rest]).mean())
    assert mine.step(batch) == pytest.approx(expected, rel=1e-5)


@pl.batch_loss
def in_batch_negatives(model: nn.Module, batch: Any) -> Tensor:
    z = model(batch[0])
    return LOSS(z @ z.T, torch.arange(len(z)))


def test_a_loss_that_compares_records_finds_none_and_is_warned_of_once() -> None:
    mine = private(loss=in_batch_negatives)
    batches = iter(mine)
    with pytest.warns(BadRecords, match="finds no other"):
        mine.step(next(batches))
    mine.step(next(batches))


def test_a_loss_that_is_zero_for_some_is_none_of_that() -> None:
    @pl.batch_loss
    def some(model: nn.Module, batch: Any) -> Tensor:
        return LOSS(model(batch[0]), batch[1]) * batch[1]

    mine = private(loss=some)
    mine.step(next(iter(mine)))
