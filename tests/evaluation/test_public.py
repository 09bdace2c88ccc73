"""BatchClipping: private prediction against torch's own BatchNorm, and what is refused."""

from __future__ import annotations

import copy
import json
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.clipping import Flat, GroupBatchNorm
from plumbline.evaluation import BatchClipping, predict
from plumbline.record_random import Draws
from tests.methods.literal import CLIP, LOSS, Case, Reference, clipped, close, flat, images, network
from tests.methods.literal import train as trained
from tests.methods.test_references_random import PUBLIC, normed
from tests.methods.test_references_users import RECORDS_OF, USER_OF


def literal_votes(model: nn.Module, inputs: Tensor, companions: int, votes: int) -> list[list[int]]:
    """Paper 003, App. E: for each input, every vote with other public features beside it."""
    found = []
    for number, x in enumerate(inputs):
        cast = []
        for vote in range(votes):
            draws = Draws(torch.tensor([number]), f"companions 4 {vote}")
            chosen = draws.integers(len(PUBLIC), companions)[0]
            again = copy.deepcopy(model).train()  # its running statistics do not matter
            output = again(torch.cat([x[None], PUBLIC[chosen]]))
            cast.append(int(output[0].argmax()))
        found.append(cast)
    return found


@pytest.mark.parametrize("training", [True, False], ids=["train mode", "eval mode"])
def test_prediction_is_the_majority_over_draws(training: bool) -> None:
    run = trained(pl.methods.batch_clipping(PUBLIC), **normed())
    model = run.private.model.train(training)
    before = copy.deepcopy(model.state_dict())
    inputs = 0.1 * images(60)[0]  # faint, so that the companions matter
    found = predict(model, inputs, PUBLIC, companions=2, votes=5, seed=4)
    votes = literal_votes(model, inputs, 2, 5)
    majority = [Counter(cast).most_common(1)[0][0] for cast in votes]
    assert found.tolist() == majority
    # No vote by itself would do, and neither would one class.
    assert all(list(single) != majority for single in zip(*votes, strict=True))
    assert len(set(majority)) == 2
    assert model.training is training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert "forward" not in vars(model[1])
    assert all(p.grad is None for p in model.parameters())


def test_the_statement_says_what_goes_through_the_model_beside_a_record() -> None:
    """And that nothing about public inputs is protected. Buckets mix records, and it says so."""
    run = trained(pl.methods.batch_clipping(PUBLIC), **normed())
    told = json.loads(run.private.statement("json"))
    assert any(f"the {len(PUBLIC)} public inputs that accompany" in x for x in told["not_covered"])
    assert "the public inputs drawn for it" in told["assumptions"]["by_construction"][0]
    assert told["given"] == []
    buckets = pl.methods.compose(clipping=GroupBatchNorm(1.0, 4))
    assert (buckets.company, buckets.not_covered) == ("bucket", ())
    assert (pl.methods.dpsgd(clip=1.0).company, pl.methods.dpsgd(clip=1.0).not_covered) == (
        "none",
        (),
    )


def test_of_classes_with_as_many_votes_the_first_wins() -> None:
    model = normed()["model"]
    inputs = images(60)[0]
    votes = literal_votes(model, inputs, 3, 2)
    tied = [place for place, cast in enumerate(votes) if len(set(cast)) == 2]
    assert tied
    found = predict(model, inputs, PUBLIC, companions=3, votes=2, seed=4)
    assert all(int(found[place]) == min(votes[place]) for place in tied)


def test_a_prediction_does_not_depend_on_the_other_inputs() -> None:
    """A record's companions are drawn for its place; what stands beside it is not in its norm."""
    model = normed()["model"]
    inputs = images(20)[0]
    changed = inputs.clone()
    changed[1:] = 100 * changed[1:]
    found = [predict(model, x, PUBLIC, seed=4) for x in (inputs, changed)]
    assert int(found[0][0]) == int(found[1][0])


def test_prediction_of_nothing_and_bad_settings() -> None:
    model = normed()["model"]
    assert predict(model, images(20)[0][:0], PUBLIC).shape == (0,)
    with pytest.raises(ValueError, match="votes is 0"):
        predict(model, images(2)[0], PUBLIC, votes=0)
    with pytest.raises(ValueError, match=r"public inputs have shape \(1, 5, 6\) each"):
        predict(model, images(2)[0], PUBLIC[:, :, :5])


class OfUsers(Reference):
    """A user's records each with companions of their own, added up before clipping."""

    def update(self, step: int, batch: list[int]) -> Tensor:
        total = self.zero()
        for user in self.run.units[step]:
            pooled = self.zero()
            for record in RECORDS_OF[user]:
                chosen = self.draws("companions", step, record).integers(len(PUBLIC), 2)[0]
                rows = torch.cat([self.x[record : record + 1], PUBLIC[chosen]])
                model = self.model().train()
                loss = LOSS(model(rows)[:1], self.y[record : record + 1]).sum()
                pooled += flat(torch.autograd.grad(loss, list(model.parameters())))
            total += clipped(pooled)
        return self.released(total, CLIP, step)


@pytest.mark.parametrize("most", [None, 3], ids=["whole", "chunks"])
def test_with_users(most: int | None) -> None:
    def settings() -> dict[str, Any]:
        return {**normed(), "user_ids": USER_OF, "expected": 4, "seed": 151}

    Case(pl.methods.batch_clipping(PUBLIC, 2, CLIP), OfUsers, "", settings).check(most)


def test_public_inputs_of_another_shape_are_refused() -> None:
    method = pl.methods.batch_clipping(PUBLIC[:, :, :, :4])
    with pytest.raises(ValueError, match=r"\(1, 6, 4\) each, the records' inputs \(1, 6, 6\)"):
        trained(method, **normed())


@pytest.mark.parametrize("public", [PUBLIC[:0], [1, 2]], ids=["none", "not a tensor"])
def test_public_inputs_are_needed(public: Any) -> None:
    with pytest.raises(ValueError, match="public must be a tensor with at least one"):
        BatchClipping(public)


def test_companions_are_counted() -> None:
    with pytest.raises(ValueError, match="companions is 0; it must be a whole number"):
        BatchClipping(PUBLIC, 0)


def test_public_inputs_of_another_precision_are_taken() -> None:
    """Public features are often stored in float32, or as bytes."""
    runs = [
        trained(
            pl.methods.compose(
                evaluation=BatchClipping(public), clipping=Flat(CLIP), noisy=False, name="one"
            ),
            **normed(),
        )
        for public in (PUBLIC.round(), PUBLIC.round().to(torch.int8))
    ]
    assert runs[0].updates[0].shape == runs[1].updates[0].shape
    assert all(torch.isfinite(update).all() for update in runs[1].updates)


def test_a_model_without_batch_norm_is_left_alone() -> None:
    """Then the companions are beside the point, and it is DP-SGD."""
    rule = BatchClipping(PUBLIC)
    found = trained(
        pl.methods.compose(evaluation=rule, clipping=Flat(CLIP), noisy=False), network()
    )
    close(found.updates, trained(pl.methods.clipped_only(CLIP)).updates)
