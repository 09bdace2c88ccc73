"""``capture(..., together=...)``: records of several rows that share batch statistics.

The oracle takes one record after the other through a real BatchNorm in training mode: what a
bucket of records (paper 003, Fig. 8) or a record with public companions (Alg. 3) is to BatchNorm.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from plumbline.gradients import (
    CaptureError,
    EscapedParameterError,
    PerSampleGradients,
    Perturbation,
    capture,
    grouped_batch_norm,
)
from tests.gradients.harness import Gradients, _assert_operations, record_losses, record_norms

INDEX = (0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3)  # uneven groups
MIXED = (2, 0, 1, 2, 3, 1, 0, 2, 3, 1, 2)


class Residual(nn.Module):
    """A layer and its BatchNorm used twice, at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, rows: Tensor) -> Tensor:
        for _ in range(2):
            rows = rows + torch.tanh(self.norm(self.linear(rows)))
        return self.head(rows)


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, bias=False),
        nn.BatchNorm2d(3),
        nn.Tanh(),
        nn.Conv2d(3, 2, 2),
        nn.BatchNorm2d(2, momentum=None),
        nn.Flatten(),
        nn.Linear(8, 2),
    )


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))


def _plain_scale() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, affine=False), nn.Linear(6, 2))


def _sequence() -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Conv1d(3, 2, 2))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (_perceptron, (4,)),
    "no affine": (_plain_scale, (4,)),
    "convolutions": (_convolutions, (1, 5, 5)),
    "sequence": (_sequence, (2, 7)),
    "used twice": (Residual, (4,)),
}


class Case:
    """A model in training mode, its rows, and by how much each row's loss counts."""

    def __init__(self, kind: str, index: tuple[int, ...]) -> None:
        make, shape = MODELS[kind]
        self.model = make().double()
        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.affine:
                nn.init.normal_(module.weight, 1.0, 0.3)
                nn.init.normal_(module.bias)
        self.index = torch.tensor(index)
        self.rows = 1 + 2 * torch.randn(len(index), *shape).double()
        self.weights = torch.ones(len(index)).double()

    def captured(self, at: Perturbation | dict[str, Tensor] | None = None) -> PerSampleGradients:
        with grouped_batch_norm(self.model, self.index):
            return capture(self.model, self.losses, at=at, together=self.index)

    def losses(self) -> Tensor:
        return self.weights * record_losses(self.model(self.rows))

    def loop(self, offsets: Gradients | None = None) -> Gradients:
        """One record at a time, on a copy of the model (at its own weights, if moved)."""
        stacked: dict[str, list[Tensor]] = {name: [] for name, _ in self.model.named_parameters()}
        for group in range(int(self.index.max()) + 1):
            model, mine = copy.deepcopy(self.model).train(), self.index == group
            parameters = dict(model.named_parameters())
            with torch.no_grad():
                for name, offset in (offsets or {}).items():
                    parameters[name] += offset[group]
            loss = (self.weights[mine] * record_losses(model(self.rows[mine]))).sum()
            found = torch.autograd.grad(loss, list(parameters.values()))
            for name, gradient in zip(parameters, found, strict=True):
                stacked[name].append(gradient)
        return {name: torch.stack(rows) for name, rows in stacked.items()}


@pytest.fixture(params=MODELS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[INDEX, MIXED], ids=["in order", "mixed"])
def case(request: pytest.FixtureRequest, kind: str) -> Case:
    return Case(kind, request.param)


def test_it_is_the_loop_over_records(case: Case) -> None:
    """The first capture, which is checked against autograd, and later ones, which are not."""
    truth = case.loop()
    for which in ("first", "later"):
        _assert_operations(case.captured(), truth, 1e-10, f"{which} capture", whole=False)


def test_the_losses_are_the_records_sums(case: Case) -> None:
    found = case.captured()
    with grouped_batch_norm(case.model, case.index):
        rows = case.losses().detach()
    expected = torch.stack([rows[case.index == group].sum() for group in range(4)])
    torch.testing.assert_close(found.losses, expected, rtol=1e-12, atol=0)


def test_rows_whose_losses_do_not_count_still_count_in_the_statistics(kind: str) -> None:
    """Companions: only the first row of a record has a loss (paper 003, Alg. 3)."""
    case = Case(kind, INDEX)
    case.weights = torch.tensor([1, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0]).double()
    truth = case.loop()
    _assert_operations(case.captured(), truth, 1e-10, "companions", whole=False)
    case.rows[1] += 1.0
    moved = case.loop()
    assert any(not torch.allclose(moved[name][0], truth[name][0]) for name in truth)
    _assert_operations(case.captured(), moved, 1e-10, "other companions", whole=False)


def test_each_record_at_its_own_weights(case: Case) -> None:
    """BAM on groups: ``theta + scale_g g_g`` for all the rows of g."""
    truth = case.loop()
    scale = 0.2 / record_norms(truth)
    expected = case.loop(
        {name: scale.view(-1, *[1] * (rows.dim() - 1)) * rows for name, rows in truth.items()}
    )
    # Checked against autograd or not, the perturbed capture is the loop's.
    fresh, known = case.captured(), case.captured()
    for found in (fresh, known):
        at = Perturbation(found, scale, index=case.index)
        _assert_operations(case.captured(at), expected, 1e-10, "perturbed", whole=False)


def test_a_first_capture_may_be_perturbed(kind: str) -> None:
    case = Case(kind, MIXED)
    truth = case.loop()
    own = PerSampleGradients.of(truth, torch.zeros(4).double())
    found = case.captured(Perturbation(own, 0.05, index=case.index))
    expected = case.loop({name: 0.05 * rows for name, rows in truth.items()})
    _assert_operations(found, expected, 1e-10, "perturbed", whole=False)


def test_all_records_at_one_other_place(case: Case) -> None:
    offset = {name: 0.1 * torch.randn_like(p) for name, p in case.model.named_parameters()}
    expected = case.loop({name: value.expand(4, *value.shape) for name, value in offset.items()})
    _assert_operations(case.captured(offset), expected, 1e-10, "moved", whole=False)


def test_no_record_moves_another(kind: str) -> None:
    case = Case(kind, MIXED)
    case.captured()
    before = case.captured().materialise()
    case.rows[case.index == 2] = 1e3 * torch.randn_like(case.rows[case.index == 2])
    after = case.captured().materialise()
    others = torch.tensor([0, 1, 3])
    for name, rows in before.items():
        torch.testing.assert_close(rows[others], after[name][others], rtol=1e-12, atol=1e-13)


def test_a_model_is_as_before(kind: str) -> None:
    case = Case(kind, INDEX)
    state = {name: value.clone() for name, value in case.model.state_dict().items()}
    case.captured()
    for name, value in case.model.state_dict().items():
        assert torch.equal(value, state[name]), name


@pytest.mark.parametrize("perturbed", [False, True], ids=["plain", "perturbed"])
def test_groups_that_do_mix_are_refused(kind: str, perturbed: bool) -> None:
    """BatchNorm took other rows together than it is said: the records' losses are not theirs."""
    case = Case(kind, INDEX)
    at = None
    if perturbed:
        own = PerSampleGradients.of(case.loop(), torch.zeros(4).double())
        at = Perturbation(own, 0.05, index=torch.tensor(MIXED))
    with (
        grouped_batch_norm(case.model, case.index),
        pytest.raises(EscapedParameterError, match=r"differs from autograd's own"),
    ):
        capture(case.model, case.losses, at=at, together=torch.tensor(MIXED))


def test_rows_that_mix_are_refused_when_each_is_said_to_be_a_record(kind: str) -> None:
    case = Case(kind, INDEX)
    with grouped_batch_norm(case.model, case.index), pytest.raises(CaptureError):
        capture(case.model, case.losses)
