"""The linear model on hashed text: per record as in a loop, and trained from sparse batches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.data.base import Split
from plumbline.data.hashing import hashed
from plumbline.data.imdb import imdb_hashed
from plumbline.data.text import corpus
from plumbline.models import build
from tests.gradients.harness import (
    PRECISIONS,
    Precision,
    assert_matches_loop,
    assert_unmoved_by_others,
)

LOSS = nn.CrossEntropyLoss(reduction="none")
GOOD, BAD = ("lovely", "superb", "moving", "clever"), ("awful", "boring", "clumsy", "stupid")


def reviews(records: int, bins: int = 2**16) -> Split:
    """Good and bad reviews of two telling words and several that tell nothing."""
    generator = torch.Generator().manual_seed(0)
    texts = []
    for number in range(records):
        kind = (BAD, GOOD)[number % 2]
        draws = torch.randint(0, 30, (8,), generator=generator).tolist()
        told = [kind[draws[0] % 4], kind[draws[1] % 4]]
        texts.append(" ".join([*told, *(f"word{draw}" for draw in draws[: 2 + number % 6])]))
    return Split(hashed(corpus(texts), bins, bigrams=True), torch.arange(records) % 2)


class Unpacked(nn.Module):
    """The model as a function of two tensors, which is what the harness gives it."""

    def __init__(self, classes: int, bias: bool) -> None:
        super().__init__()
        self.inner = build("hashed-linear", bins=50, classes=classes, bias=bias)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_()

    def forward(self, bins: Tensor, values: Tensor) -> Tensor:
        return self.inner((bins, values))


@PRECISIONS
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_per_record_are_those_of_a_loop(
    classes: int, bias: bool, precision: Precision
) -> None:
    x, _ = reviews(5, bins=50).fetch(torch.arange(5))
    assert_matches_loop(Unpacked(classes, bias), x, **precision)


def test_it_is_the_logistic_model() -> None:
    part = reviews(6, bins=50)
    model = Unpacked(2, bias=True).inner
    (bins, values), y = part.fetch(torch.arange(6))
    dense = torch.zeros(6, 50).scatter_add_(1, bins, values)
    bias, weight = model.parameters()
    scores = (dense @ weight + bias)[:, 0]
    logistic = nn.functional.binary_cross_entropy_with_logits(scores, y.float(), reduction="none")
    torch.testing.assert_close(LOSS(model((bins, values)), y), logistic)
    assert torch.equal(model((bins, values)).argmax(1), (scores > 0).long())


@pytest.mark.parametrize(
    ("options", "count"), [({}, 65_536), ({"bias": True}, 65_537), ({"bins": 8, "classes": 3}, 24)]
)
def test_number_of_parameters(options: dict[str, int], count: int) -> None:
    model = build("hashed-linear", **options)
    assert sum(p.numel() for p in model.parameters()) == count
    part = reviews(2, bins=options.get("bins", 2**16))
    outputs = model(part.fetch(torch.arange(2))[0])
    assert outputs.shape == (2, options.get("classes", 2))
    assert (outputs == 0).all()  # before training


def test_records_do_not_mix() -> None:
    model = Unpacked(2, bias=True).inner
    batch = reviews(4, bins=50).fetch(torch.arange(4))
    assert_unmoved_by_others(model, batch, lambda net, data: LOSS(net(data[0]), data[1]))


def accuracy(model: nn.Module, part: Split) -> float:
    right = 0
    with torch.no_grad():
        for index in torch.arange(len(part)).split(2500):
            x, y = part.fetch(index)
            right += int((model(x).argmax(1) == y).sum())
    return right / len(part)


def train(model: nn.Module, part: Split, budget: pl.Budget, *, lr: float) -> pl.Private:
    # Averaged momentum: the released gradient counts with 1 - 0.9.
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, dampening=0.9)
    private = pl.make_private(
        model,
        optimizer,
        part,
        loss=LOSS,
        method=pl.methods.dpsgd(clip=0.5),
        budget=budget,
        accountant="rdp" if len(part) < 10_000 else "pld",  # which takes seconds
        seed=0,
    )
    for batch in private:
        private.step(batch)
    private.close()
    return private


def test_a_private_run_on_all_the_bins_learns() -> None:
    part = reviews(2000)
    model = build("hashed-linear")
    budget = pl.Budget(epsilon=8.0, delta=1e-4, steps=15, expected_batch_size=500)
    private = train(model, part, budget, lr=50)
    x, y = part.fetch(torch.arange(2000))
    with torch.no_grad():
        loss = float(LOSS(model(x), y).mean())
    assert loss < 0.6  # from 0.693, that of a coin
    assert accuracy(model, part) > 0.9
    assert private.epsilon() <= 8


@pytest.mark.slow
def test_imdb_at_epsilon_one_is_as_good_as_in_methods_h(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (data_folder / "imdb" / "aclImdb_v1.tar.gz").is_file():
        pytest.skip("not in the data folder: imdb/aclImdb_v1.tar.gz")
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path))
    splits = imdb_hashed(folder=data_folder, bins=8192)
    model = build("hashed-linear", bins=8192)
    budget = pl.Budget(epsilon=1.0, delta=1e-5, epochs=20, expected_batch_size=4000)
    private = train(model, splits.train, budget, lr=200)
    assert private.epsilon(exact=True) <= 1
    assert accuracy(model, splits.test) > 0.81  # part H: 82.0 %
