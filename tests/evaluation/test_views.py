"""Random views: drawn for the record and the step, the same in every pass, wherever inputs are."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.clipping import Flat, PerGroup
from plumbline.evaluation import Bam, DpSam, Views
from plumbline.gradients.errors import RecordsMixError
from plumbline.record_random import Draws
from tests.methods.literal import CLIP, RECORDS, close, images, network, prepare, train


class Logged:
    """An augmentation that keeps the rows it made, where no watch looks."""

    row_by_row = True

    def __init__(self) -> None:
        self.hidden = threading.local()
        self.hidden.made = []

    @property
    def made(self) -> list[Tensor]:
        made: list[Tensor] = self.hidden.made
        return made

    def __call__(self, rows: Tensor, draws: Draws) -> Tensor:
        made = rows * (0.5 + draws.uniform()).to(rows)[:, None, None, None]
        if torch.is_grad_enabled():  # the tests for isolation need no gradients
            self.made.append(made)
        return made

    def __deepcopy__(self, memo: Any) -> Logged:
        return self  # a method is copied when a run is made; the log is to be the same


class OwnGenerator:
    """An augmentation that draws from a generator that it made, or remembers the last record."""

    def __init__(self, remembers: bool) -> None:
        self.rng, self.last, self.remembers = np.random.default_rng(0), 0.0, remembers

    def __call__(self, rows: Tensor, draws: Draws) -> Tensor:
        if self.remembers:
            self.last = rows.mean().item()
            return rows + self.last
        return rows + self.rng.normal()


@pytest.mark.parametrize(
    ("remembers", "message"),
    [
        (
            False,
            "'rng' of the object OwnGenerator beside the model.*Draw from the global functions",
        ),
        (True, "'last' of the object OwnGenerator"),
    ],
)
def test_an_augmentation_that_goes_on_from_record_to_record_is_refused(
    remembers: bool, message: str
) -> None:
    with pytest.raises(RecordsMixError, match=message):
        train(viewed(Views(OwnGenerator(remembers), 2)))


def unchanged(rows: Tensor, draws: Draws) -> Tensor:
    return rows


def doubled(rows: Tensor, draws: Draws) -> Tensor:
    return 2 * rows


def viewed(*rules: Any, clipping: Any = None) -> pl.methods.Method:
    return pl.methods.compose(evaluation=rules, clipping=clipping or Flat(CLIP), noisy=False)


@pytest.mark.parametrize(
    "rules", [(), (DpSam(),), (Bam(),)], ids=["counted first", "asked first", "own weights"]
)
def test_all_passes_of_a_step_see_the_same_views(rules: tuple[Any, ...]) -> None:
    log = Logged()
    clipping = PerGroup(CLIP, (0, 1)) if not rules else Flat(CLIP)
    settings: dict[str, Any] = {"sensitive_features": [r % 2 for r in range(RECORDS)]}
    run = train(viewed(Views(log, 2), *rules, clipping=clipping), max_physical_batch=3, **settings)
    chunks = [-(-len(batch) // 3) for batch in run.batches]
    times = 1 if rules and isinstance(rules[0], Bam) else 2  # BAM makes its views once for both
    assert len(log.made) == times * sum(chunks)
    made = iter(log.made)
    steps = [[[next(made) for _ in range(count)] for _ in range(times)] for count in chunks]
    for passes in steps:
        for one in passes[1:]:
            assert all(torch.equal(a, b) for a, b in zip(one, passes[0], strict=True))
    # The two views of a record differ, and so do those of the same record in another step.
    assert not torch.equal(log.made[0][0], log.made[0][1])
    first, later = run.batches[1], run.batches[3]
    record = min(set(first) & set(later))
    shown = [torch.cat(steps[step][0])[2 * run.batches[step].index(record)] for step in (1, 3)]
    assert not torch.equal(*shown)


def test_views_that_change_nothing_are_the_record_itself() -> None:
    found, plain = train(viewed(Views(unchanged, 4))), train(viewed())
    close(found.updates, plain.updates)


def test_a_records_views_do_not_depend_on_its_batch() -> None:
    """Else one record more would change the views, and the clipped gradients, of all others."""
    log = Logged()
    method = viewed(Views(log, 2))
    shown: list[Tensor] = []
    for kept in (range(RECORDS), range(RECORDS - 1)):
        private = prepare(method, expected=RECORDS - 1, steps=1)
        for batch in private:
            some = torch.tensor([r for r in batch.indices.tolist() if r in kept])
            batch.indices = batch.unit_ids = some
            private.step(batch)
        private.close()
        shown.append(log.made[-1])
    assert len(shown[0]) - len(shown[1]) in (0, 2)
    assert torch.equal(shown[0][: len(shown[1])], shown[1])


class Named(nn.Module):
    """A model whose inputs have names."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, pixels: Tensor, scale: Tensor) -> Tensor:
        return self.inner(pixels) * scale[:, None]


def test_named_inputs_are_augmented_by_name() -> None:
    x, y = images()
    scale = torch.linspace(0.5, 1.5, RECORDS, dtype=torch.float64)
    named = [{"pixels": x[i], "scale": scale[i], "labels": y[i]} for i in range(RECORDS)]
    by_name = train(viewed(Views(doubled, 3, inputs="pixels")), Named(), named)
    by_place = train(viewed(Views(doubled, 3)), Named(), (x, scale, y))
    close(by_name.updates, by_place.updates)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (2, r"inputs are said to be at 2 of a batch of type (tuple|list).*inputs="),
        (-3, r"inputs are said to be at -3 of a batch"),
        ("pixels", r"inputs are said to be at 'pixels' of a batch"),
    ],
)
def test_a_place_that_a_batch_has_not_is_refused(inputs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(viewed(Views(unchanged, 2, inputs)))


def test_a_field_that_a_batch_has_not_is_refused() -> None:
    x, y = images()
    named = [{"pixels": x[i], "scale": x[i, 0, 0, 0], "labels": y[i]} for i in range(RECORDS)]
    with pytest.raises(ValueError, match=r"no field 'image'; it has \['labels', 'pixels', 'scale'"):
        train(viewed(Views(unchanged, 2, "image")), Named(), named)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="count is 0; it must be a whole number of at least 1"):
        Views(unchanged, 0)
    with pytest.raises(TypeError, match=r"augment is 4; give a function of \(rows, draws\)"):
        Views(4)  # type: ignore[arg-type]


def centred(rows: Tensor, draws: Draws) -> Tensor:
    """Would mix records, if it were shown several."""
    return rows - rows.mean(0) + draws.uniform()[:, None, None, None].to(rows)


def shaken(rows: Tensor, draws: Draws) -> Tensor:
    """Draws from the global generator instead of from the draws."""
    return rows + torch.rand(rows.shape)


class Copies:
    """The views of records, without a model."""

    step = 0

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = torch.tensor(numbers)
        self.records = len(numbers)
        self.data = (images()[0][self.numbers], self.numbers)

    def draws(self, purpose: str) -> Draws:
        return Draws(self.numbers, purpose)


@pytest.mark.parametrize("augment", [centred, shaken])
def test_views_of_a_record_do_not_depend_on_the_others(augment: Any) -> None:
    def views(*numbers: int) -> Tensor:
        chunk: Any = Copies(list(numbers))
        seen: Tensor = Views(augment, 3).see(chunk).data[0]  # type: ignore[attr-defined]
        return seen

    state = torch.get_rng_state()
    among = views(4, 1, 2)
    assert torch.equal(among[3:6], views(1))
    assert torch.equal(among[3:6], views(2, 1)[3:])
    assert not torch.equal(among[3], among[4])
    assert torch.equal(torch.get_rng_state(), state)
