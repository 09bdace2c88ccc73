"""``capture(..., rows=...)``: records of several rows that share batch statistics.

The oracle takes one record after the other through a real BatchNorm in training mode: what a record
with public companions (paper 003, Alg. 3) is to BatchNorm.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plumbline.gradients import PerSampleGradients, Perturbation, RecordsMixError, capture
from plumbline.gradients.layers.batch_norm import own_statistics
from tests.gradients.harness import Gradients, _assert_operations, record_losses, record_norms

RECORDS = 4


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

    def __init__(self, kind: str, each: int) -> None:
        make, shape = MODELS[kind]
        self.model = make().double()
        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.affine:
                nn.init.normal_(module.weight, 1.0, 0.3)
                nn.init.normal_(module.bias)
        self.each = each
        self.rows = 1 + 2 * torch.randn(RECORDS * each, *shape).double()
        self.weights = torch.ones(RECORDS * each).double()

    def captured(
        self, at: Perturbation | dict[str, Tensor] | None = None, **named: Any
    ) -> PerSampleGradients:
        batch = self.rows, self.weights
        with own_statistics(self.model):
            return capture(self.model, self.losses, batch, at, rows=self.each, **named)

    @staticmethod
    def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        rows, weights = batch
        return weights * record_losses(model(rows))

    def of(self, record: int) -> slice:
        """The record's rows."""
        return slice(record * self.each, (record + 1) * self.each)

    def loop(self, offsets: Gradients | None = None) -> Gradients:
        """One record at a time, on a copy of the model (at its own weights, if moved)."""
        stacked: dict[str, list[Tensor]] = {name: [] for name, _ in self.model.named_parameters()}
        for group in range(RECORDS):
            model, mine = copy.deepcopy(self.model).train(), self.of(group)
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


@pytest.fixture(params=[2, 5], ids=["two rows", "five rows"])
def case(request: pytest.FixtureRequest, kind: str) -> Case:
    return Case(kind, request.param)


def test_it_is_the_loop_over_records(case: Case) -> None:
    """The first capture, which is checked against autograd, and later ones, which are not."""
    truth = case.loop()
    for which in ("first", "later"):
        _assert_operations(case.captured(), truth, 1e-10, f"{which} capture", whole=False)


def test_one_record_at_a_time_is_the_same(case: Case) -> None:
    _assert_operations(case.captured(isolation="loop"), case.loop(), 1e-10, "loop", whole=False)


def test_the_losses_are_the_records_sums(case: Case) -> None:
    found = case.captured()
    model = copy.deepcopy(case.model).train()
    batch = case.rows, case.weights
    expected = [
        case.losses(model, tuple(part[case.of(record)] for part in batch)).sum()
        for record in range(RECORDS)
    ]
    torch.testing.assert_close(found.losses, torch.stack(expected).detach(), rtol=1e-12, atol=0)


def test_rows_whose_losses_do_not_count_still_count_in_the_statistics(kind: str) -> None:
    """Companions: only the first row of a record has a loss (paper 003, Alg. 3)."""
    case = Case(kind, 3)
    case.weights = torch.tensor([1, 0, 0] * RECORDS).double()
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
        at = Perturbation(found, scale)
        _assert_operations(case.captured(at), expected, 1e-10, "perturbed", whole=False)


def test_a_first_capture_may_be_perturbed(kind: str) -> None:
    case = Case(kind, 3)
    truth = case.loop()
    own = PerSampleGradients.of(truth, torch.zeros(4).double())
    found = case.captured(Perturbation(own, 0.05))
    expected = case.loop({name: 0.05 * rows for name, rows in truth.items()})
    _assert_operations(found, expected, 1e-10, "perturbed", whole=False)


def test_all_records_at_one_other_place(case: Case) -> None:
    offset = {name: 0.1 * torch.randn_like(p) for name, p in case.model.named_parameters()}
    expected = case.loop({name: value.expand(4, *value.shape) for name, value in offset.items()})
    _assert_operations(case.captured(offset), expected, 1e-10, "moved", whole=False)


def test_no_record_moves_another(kind: str) -> None:
    case = Case(kind, 3)
    case.captured()
    before = case.captured().materialise()
    case.rows[case.of(2)] = 1e3 * torch.randn_like(case.rows[case.of(2)])
    after = case.captured().materialise()
    others = torch.tensor([0, 1, 3])
    for name, rows in before.items():
        torch.testing.assert_close(rows[others], after[name][others], rtol=1e-12, atol=1e-13)


def test_a_model_is_as_before(kind: str) -> None:
    case = Case(kind, 3)
    state = {name: value.clone() for name, value in case.model.state_dict().items()}
    case.captured()
    for name, value in case.model.state_dict().items():
        assert torch.equal(value, state[name]), name


@pytest.mark.parametrize("frozen", [False, True])
def test_without_company_there_are_no_statistics(kind: str, frozen: bool) -> None:
    case = Case(kind, 1)
    for module in case.model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.requires_grad_(not frozen)
    for isolation in ("vmap", "loop"):
        with pytest.raises(RecordsMixError, match=r"in training mode.*GroupNorm"):
            capture(case.model, case.losses, (case.rows, case.weights), isolation=isolation)


def test_modules_are_put_back_after_an_error(kind: str) -> None:
    case = Case(kind, 2)
    norms = [m for m in case.model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    norms[0].eval()
    before = [(norm.training, norm.track_running_stats) for norm in norms]
    with pytest.raises(ZeroDivisionError), own_statistics(case.model):
        raise ZeroDivisionError
    assert [(norm.training, norm.track_running_stats) for norm in norms] == before
