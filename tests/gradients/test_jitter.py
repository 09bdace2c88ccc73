"""``g_i + scale * zeta_i`` (paper 001, Eq. 11) against the same sum on dense gradients."""

import math
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from plumbline.gradients import KERNELS, PerSampleGradients, Perturbation, capture, combine, jitter
from plumbline.gradients.jitter import Jittered
from plumbline.gradients.terms import CHUNK_BYTES, Dense
from tests.gradients.devices import seeded
from tests.gradients.harness import (
    Gradients,
    _assert_operations,
    loop,
    output_losses,
    record_norms,
)

SCALE = 0.7
MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)), (4,)),
    "sequence": (lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 2)), (9, 4)),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.Conv2d(3, 2, 3)),
        (2, 7, 7),
    ),
}


def captured(kind: str, records: int = 5) -> tuple[PerSampleGradients, Gradients]:
    make, shape = MODELS[kind]
    model = make().double()
    inputs = torch.randn(records, *shape).double()
    found = capture(model, output_losses, inputs)
    return found, loop(model, inputs)


def seeds_of(records: int) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(9)
    return torch.randint(2**62, (records,), generator=generator, device="cpu")


def zeta(gradients: PerSampleGradients, seeds: Tensor) -> Gradients:
    """The noise by itself: that of gradients of zero."""
    nothing = {name: torch.zeros_like(g) for name, g in gradients.materialise().items()}
    return jitter(PerSampleGradients.of(nothing, gradients.losses), 1.0, seeds).materialise()


@pytest.mark.parametrize("scale", [SCALE, 0.0, 1e3])
@pytest.mark.parametrize("kind", MODELS)
def test_every_operation_is_that_of_the_dense_sum(kind: str, scale: float) -> None:
    found, truth = captured(kind)
    seeds = seeds_of(5)
    noise = zeta(found, seeds)
    expected = {name: rows + scale * noise[name] for name, rows in truth.items()}
    noisy = jitter(found, scale, seeds)
    for what in ("at first", "again"):  # norms may keep something that is used afterwards
        _assert_operations(noisy, expected, 1e-10, what, whole=False)
    assert torch.equal(noisy.losses, found.losses)
    # What it was made of is as before.
    _assert_operations(found, truth, 1e-10, "the gradients themselves", whole=False)


def test_selected_records_take_their_noise_along() -> None:
    found, truth = captured("sequence")
    noisy, noise = jitter(found, SCALE, seeds_of(5)), zeta(found, seeds_of(5))
    index = torch.tensor([4, 0, 4])
    expected = {name: (rows + SCALE * noise[name])[index] for name, rows in truth.items()}
    _assert_operations(noisy.select(index), expected, 1e-10, "selected", whole=False)
    noisy.norms()
    _assert_operations(noisy.select(index), expected, 1e-10, "after norms", whole=False)


def test_it_can_be_combined_and_pooled() -> None:
    found, truth = captured("mlp")
    noisy, noise = jitter(found, SCALE, seeds_of(5)), zeta(found, seeds_of(5))
    dense = {name: rows + SCALE * noise[name] for name, rows in truth.items()}
    half = combine([noisy, found], [0.5, -2.0])
    expected = {name: 0.5 * dense[name] - 2 * truth[name] for name in truth}
    _assert_operations(half, expected, 1e-10, "combined", whole=False)
    index = torch.tensor([0, 1, 0, 1, 1])
    expected = {
        name: torch.stack([rows[index == 0].sum(0), rows[index == 1].sum(0)])
        for name, rows in dense.items()
    }
    _assert_operations(noisy.pool(index), expected, 1e-10, "pooled", whole=False)


def test_a_records_noise_depends_on_its_seed_and_on_nothing_else() -> None:
    """Neither on its place in the batch nor on the others: the sensitivity rests on this."""
    found, _ = captured("convolutions", 6)
    seeds = seeds_of(6)
    alone = [zeta(found.select(torch.tensor([i])), seeds[i : i + 1]) for i in range(6)]
    whole, turned = zeta(found, seeds), zeta(found, seeds.flip(0))
    for name, rows in whole.items():
        assert torch.equal(rows, torch.cat([one[name] for one in alone])), name
        assert torch.equal(rows, turned[name].flip(0)), name
    # Records of equal seeds have equal noise, those of unequal ones do not.
    same = zeta(found, seeds[[0, 0, 1, 2, 3, 4]])
    for name, rows in same.items():
        assert torch.equal(rows[0], rows[1]), name
        assert not torch.equal(rows[1], rows[2]), name


def test_the_noise_is_standard_gaussian_and_independent() -> None:
    records, size = 400, 50
    values = {name: torch.zeros(records, size).double() for name in ("one", "other")}
    gradients = PerSampleGradients.of(values, torch.zeros(records).double())
    noise = jitter(gradients, 3.0, seeds_of(records)).materialise()
    one, other = noise["one"] / 3, noise["other"] / 3
    count = records * size
    for rows in (one, other):
        # Five deviations of the mean, the variance and the fourth moment of that many.
        assert abs(float(rows.mean())) < 5 / math.sqrt(count)
        assert abs(float(rows.square().mean()) - 1) < 5 * math.sqrt(2 / count)
        assert abs(float(rows.pow(4).mean()) - 3) < 5 * math.sqrt(96 / count)
        # Neither coordinates of a record nor records go together.
        for between in (rows.T @ rows / records, rows @ rows.T / size):
            deviation = 1 / math.sqrt(records if len(between) == size else size)
            off = between - torch.diag(between.diagonal())
            assert float(off.abs().max()) < 6 * deviation
    # Parameters of the same shape have noise of their own.
    assert abs(float((one * other).mean())) < 5 / math.sqrt(count)


def test_in_a_perturbed_capture_each_record_is_moved_by_its_noisy_gradient() -> None:
    make, shape = MODELS["mlp"]
    model = make().double()
    inputs = torch.randn(5, *shape).double()

    noisy = jitter(capture(model, output_losses, inputs), SCALE, seeds_of(5))
    found = capture(model, output_losses, inputs, at=Perturbation(noisy, 0.1))
    scale = torch.full((5,), 0.1, dtype=torch.float64)
    moved = loop(model, inputs, offsets=noisy.materialise(), scale=scale)
    _assert_operations(found, moved, 1e-10, "perturbed", whole=False)


def large(records: int = 64, width: int = 256) -> PerSampleGradients:
    """A linear layer's gradients: outer products of two vectors, 128 times as large when dense."""
    model = nn.Linear(width, width)
    inputs = torch.randn(records, width)
    return capture(model, lambda net, x: net(x).square().mean(1), inputs)


def test_nothing_of_batch_times_parameters_is_ever_held() -> None:
    noisy = jitter(large(), SCALE, seeds_of(64))
    made = []
    usual = Jittered._noise

    def noted(term: Jittered, start: int, stop: int) -> Tensor:
        rows = usual(term, start, stop)
        made.append(rows.nbytes)
        return rows

    with mock.patch.object(Jittered, "_noise", noted):
        first, total = noisy.norms(), noisy.sum()
        again, total_again = noisy.norms(), noisy.sum()
    assert max(made) <= CHUNK_BYTES
    weight = noisy.term("weight")
    assert isinstance(weight, Jittered)
    assert weight.nbytes < weight.dense_nbytes / 50
    assert torch.equal(first, again)
    for name, value in total.items():
        assert torch.equal(value, total_again[name]), name


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "streamed"])
@pytest.mark.parametrize("kind", MODELS)
def test_whatever_kernel_takes_the_norms_the_sum_is_of_the_same_noise(
    kind: str, keep: bool
) -> None:
    found, truth = captured(kind)
    noise = zeta(found, seeds_of(5))
    noisy = jitter(found, SCALE, seeds_of(5))

    def run(key, candidates, *rest, **named):  # type: ignore[no-untyped-def]
        names = [name for name in candidates if (name == "keep") == keep]
        return candidates[names[0] if names else next(iter(candidates))]()

    with mock.patch.object(KERNELS, "run", run):
        norms = noisy.norms()
    held = [name for name in noisy.names if isinstance(noisy.term(name), Dense)]
    assert bool(held) == keep
    expected = {name: rows + SCALE * noise[name] for name, rows in truth.items()}
    torch.testing.assert_close(norms, record_norms(expected), rtol=1e-10, atol=0)
    for name, value in noisy.sum(1 / norms).items():
        wanted = torch.einsum("b,b...->...", 1 / norms, expected[name])
        torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("size", [1, 30, 3000])
@pytest.mark.parametrize("remainder", [0.0, 1e-7, 1e-4])
def test_norms_are_not_understated_where_gradient_and_noise_cancel(
    size: int, remainder: float
) -> None:
    """In float32, and at the worst for normalising: the share in the sum has norm one at most."""
    seeds = seeds_of(8)
    nothing = PerSampleGradients.of({"w": torch.zeros(8, size)}, torch.zeros(8))
    noise = jitter(nothing, 5.0, seeds).materialise()["w"]
    values = -noise * (1 + remainder * torch.randn(8, size, generator=seeded(1)))
    for record in range(8):
        own = PerSampleGradients.of({"w": values[record : record + 1]}, torch.zeros(1))
        noisy = jitter(own, 5.0, seeds[record : record + 1])
        norm = noisy.norms()
        assert float(norm) > 0
        for weight in (torch.ones(1), 1 / norm):
            share = noisy.sum(weight)["w"].double().norm() / weight.double()
            assert float(share) <= float(norm) * (1 + 2e-6)


def test_no_records() -> None:
    model = nn.Linear(3, 2)
    found = capture(model, lambda net, x: net(x).sum(1), torch.zeros(0, 3))
    noisy = jitter(found, SCALE, torch.zeros(0, dtype=torch.int64))
    assert noisy.norms().shape == (0,)
    assert float(noisy.sum()["weight"].abs().sum()) == 0
