"""The neighbour audit of a run's own records: it holds by construction, and sees code that mixes.

Each row of the table of attacks (a place in the batch, padding, random numbers, sorting, hard
examples, capacities, a gate that opens, a backward pass that mixes, buffers) is tried twice: as a
run makes it, where it is refused or moves nothing, and with a capture made here that runs the whole
batch at once, where the audit must see it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.gradients import PerSampleGradients
from plumbline.gradients.errors import CaptureError
from plumbline.training import batches
from plumbline.training.records import Records

RECORDS, WIDTH = 200, 6
CE = nn.CrossEntropyLoss(reduction="none")


class Classifier(nn.Module):
    """Tokens ``[B, T, WIDTH]``, averaged and classified, with something done to them before."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 8), nn.Linear(8, 2)

    def change(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(torch.tanh(self.change(self.first(x))).mean(1))
        return logits


class ByPlace(Classifier):
    """A positional encoding for ``[T, B, D]`` that is given ``[B, T, D]``."""

    def change(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[0], dtype=x.dtype)[:, None, None]
        return x + torch.sin(places * torch.arange(1, 9))


class Capacity(Classifier):
    """An expert takes the first few tokens of a batch that are for it."""

    def change(self, x: Tensor) -> Tensor:
        taken = (x.sum(-1) > 0).flatten().cumsum(0).view(x.shape[:2]) <= 40
        return torch.where(taken[..., None], 3 * x, x)


class _Backward(torch.autograd.Function):
    """The forward pass is harmless; the gradient is centred over the batch."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] - 3 * gradients[0].mean(0, keepdim=True)


class BackwardOnly(Classifier):
    """Mixes in the backward pass alone."""

    def change(self, x: Tensor) -> Tensor:
        changed: Tensor = _Backward.apply(x)  # type: ignore[no-untyped-call]
        return changed


class Buffer(Classifier):
    """Keeps the last batch's mean."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def change(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.seen.copy_(x.detach().mean((0, 1)))
        return x


class ThroughData(Buffer):
    """The same through ``.data``, which no version counts."""

    def change(self, x: Tensor) -> Tensor:
        self.seen.data[:] = x.detach().mean((0, 1))
        return x


def hard_examples(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The losses of the harder half of a batch count."""
    losses = CE(model(batch[0]), batch[1])
    return torch.where(losses >= losses.detach().median(), losses, 0 * losses)


ATTACKS: dict[str, tuple[Callable[[], Classifier], Any]] = {
    "a row's place": (ByPlace, CE),
    "expert capacity": (Capacity, CE),
    "only in the backward pass": (BackwardOnly, CE),
    "hard examples": (Classifier, pl.batch_loss(hard_examples)),
    "a buffer": (Buffer, CE),
    "a buffer through .data": (ThroughData, CE),
}
LOOPED = 2
"""How many are also tried one record at a time; the slow tests try all."""


def private(model: nn.Module, loss: Any = CE, data: Any = None, **settings: Any) -> pl.Private:
    if data is None:
        x = torch.randn(RECORDS, 5, WIDTH)
        data = x, (x.mean((1, 2)) > 0).long()
    return pl.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data,
        loss=loss,
        method=pl.methods.dpsgd(clip=0.05),
        budget=pl.Budget(noise_multiplier=1.0, delta=1e-3, steps=3, expected_batch_size=50),
        seed=1,
        **settings,
    )


def whole_batch(
    model: nn.Module, loss: Any, batch: Any, at: Any = None, **_settings: Any
) -> PerSampleGradients:
    """Per-record gradients from one pass over the whole batch, as no capture makes them."""
    parameters = dict(model.named_parameters())
    losses = loss(model, batch)
    rows = [
        torch.autograd.grad(one, list(parameters.values()), retain_graph=True) for one in losses
    ]
    dense = {
        name: torch.stack(own)
        for name, own in zip(parameters, zip(*rows, strict=True), strict=True)
    }
    return PerSampleGradients.of(dense, losses.detach())


@pytest.mark.parametrize(
    ("model", "loss", "isolation"),
    [
        pytest.param(
            *attack,
            isolation,
            id=f"{what}-{isolation}",
            marks=[pytest.mark.slow] if isolation == "loop" and place >= LOOPED else [],
        )
        for place, (what, attack) in enumerate(ATTACKS.items())
        for isolation in ("vmap", "loop")
    ],
)
def test_by_construction_it_is_refused_or_moves_nothing(
    model: Callable[[], Classifier], loss: Any, isolation: str
) -> None:
    run = private(model(), loss, isolation=isolation)
    try:
        audit = run.audit_neighbours(steps=1, changes=2)
        assert audit.farthest <= 1
        for batch in run:
            run.step(batch)
    except CaptureError:
        assert run.charged == 0
    else:
        assert audit.holds, audit


@pytest.mark.parametrize(("model", "loss"), ATTACKS.values(), ids=ATTACKS)
def test_the_audit_sees_what_mixes(
    model: Callable[[], Classifier], loss: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = private(model(), loss)
    monkeypatch.setattr(batches, "capture", whole_batch)
    audit = run.audit_neighbours(steps=1)
    assert not audit.holds
    assert "does not hold" in run.statement()


class Fetching(Records):
    """Fetches all records of a batch together, in a way that mixes them."""

    def __init__(self, mixed: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.x = torch.randn(RECORDS, 5, WIDTH)
        self.x[7, :, 0] = 40  # a record that stands out
        self._mixed = mixed

    def __len__(self) -> int:
        return RECORDS

    def fetch(self, index: Tensor, key: str = "") -> Any:
        return self._mixed(self.x, index), (self.x[index].mean((1, 2)) > 0).long()


FETCHED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "padded to the longest": lambda x, index: torch.cat(
        [x[index], torch.zeros(len(index), int((x[index].abs().amax() / 2).item()), WIDTH)], 1
    ),
    "augmented from a global generator": lambda x, index: (
        x[index]
        + torch.randn(len(index), 5, WIDTH, generator=torch.Generator().manual_seed(len(index)))
    ),
    "sorted": lambda x, index: x[index[x[index].sum((1, 2)).argsort()]],
}


@pytest.mark.parametrize("mixed", FETCHED.values(), ids=FETCHED)
def test_the_audit_sees_records_that_mix_when_they_are_fetched(
    mixed: Callable[[Tensor, Tensor], Tensor],
) -> None:
    users = torch.arange(RECORDS) // 2
    run = private(Classifier(), user_ids=users)
    run._fetching._records = Fetching(mixed)
    assert not run.audit_neighbours(steps=2).holds


def test_nothing_is_left_behind() -> None:
    run = private(Classifier())
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    state = torch.get_rng_state()
    audit = run.audit_neighbours()
    assert audit.holds
    assert 0.5 < audit.farthest <= 1 + 1e-6  # a bound that is met, not a loose one
    assert run.charged == 0
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())
    run.step(next(iter(run)))
    words = " ".join(run.statement().split())
    assert "moved no answer by more than is declared" in words
    assert str(audit) not in words  # a figure of raw records is not covered


def test_a_method_that_keeps_something_of_every_record_is_refused() -> None:
    model = Classifier()
    run = pl.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        (torch.randn(8, 5, WIDTH), torch.arange(8) % 2),
        loss=CE,
        method=pl.methods.dp_gd_momentum(clip=1.0),
        budget=pl.Budget(noise_multiplier=1.0, delta=1e-3, steps=2, expected_batch_size=8),
    )
    with pytest.raises(ValueError, match="keeps something of every record"):
        run.audit_neighbours()


class Pooled(Classifier):
    """Attention with dropout: a learned query, or several queries for each key."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.query = nn.Parameter(torch.randn(1, 1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)

    def change(self, x: Tensor) -> Tensor:
        if self.kind == "module":
            query = self.query[0].expand(len(x), -1, -1)
            changed: Tensor = self.attention(query, x, x, need_weights=False)[0]
            return changed
        heads = x[:, None].expand(-1, 2, -1, -1)
        query = self.query if self.kind == "query" else heads.repeat(1, 2, 1, 1)
        options = {"enable_gqa": True} if self.kind == "groups" else {}
        found = nn.functional.scaled_dot_product_attention(
            query, heads, heads, dropout_p=0.3, **options
        )
        return found.mean(1)


@pytest.mark.parametrize("kind", ["query", "module", "groups"])
def test_dropout_inside_attention_belongs_to_the_record(kind: str) -> None:
    assert private(Pooled(kind)).audit_neighbours(steps=1, changes=2).holds


class Sampled(Classifier):
    """Draws beside a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.spread = nn.Parameter(torch.ones(8))

    def change(self, x: Tensor) -> Tensor:
        return torch.normal(x, self.spread.abs())


def test_draws_beside_a_parameter_are_refused_before_anything_is_charged() -> None:
    run = private(Sampled())
    with pytest.raises(CaptureError, match=r"normal draws random numbers beside .*'spread'"):
        run.step(next(iter(run)))
    assert run.charged == 0


class InPlace(Classifier):
    """Changes its input."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = super().forward(x.neg_())
        return logits


@pytest.mark.parametrize("isolation", ["vmap", "loop"])
def test_a_model_that_changes_its_input_sees_it_unchanged_in_every_pass(isolation: str) -> None:
    model = InPlace()
    x = torch.randn(RECORDS, 5, WIDTH)
    before = x.clone()
    run = pl.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        (x, torch.arange(RECORDS) % 2),
        loss=CE,
        method=pl.methods.bam(clip=0.05, radius=0.5),
        budget=pl.Budget(noise_multiplier=1.0, delta=1e-3, steps=3, expected_batch_size=50),
        max_physical_batch=16,
        isolation=isolation,  # type: ignore[arg-type]
    )
    assert run.audit_neighbours(steps=1, records=33, changes=2).holds
    assert torch.equal(x, before)
