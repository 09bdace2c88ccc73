"""``suggest_fixes``: a new model without BatchNorm, that passes the check and trains."""

import copy

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.gradients import capture
from plumbline.gradients.errors import RecordsMixError
from plumbline.training.fixes import Fix, fixes, suggest_fixes
from tests.training.small import budget, private, run, weights


class Residual(nn.Module):
    """Images, with one norm used twice and one under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6))
        self.branches = nn.ModuleDict({"left": nn.Conv2d(6, 6, 1), "norm": self.stem[1]})
        self.instance = nn.InstanceNorm2d(6, affine=True, track_running_stats=True)
        self.flat_norm = nn.BatchNorm1d(6, affine=False)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = x + self.branches["norm"](self.branches["left"](x))
        return self.head(self.flat_norm(self.instance(x).mean((2, 3))))


def images() -> tuple[Tensor, Tensor]:
    x = torch.randn(40, 1, 5, 5, generator=torch.Generator().manual_seed(4))
    return x, (x.mean((1, 2, 3)) > 0).long()


def test_the_fixed_model_passes_the_check_and_trains() -> None:
    model = Residual()
    x, y = images()

    def loss(of: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(of(batch[0]), batch[1], reduction="none")

    with pytest.raises(RecordsMixError):
        capture(model, loss, (x, y))
    fixed = suggest_fixes(model, tell=None)
    assert capture(fixed, loss, (x, y)).records == len(y)
    before = weights(fixed)
    run(private(fixed, (x, y), plan=budget(steps=2)))
    assert torch.isfinite(weights(fixed)).all()
    assert not torch.equal(weights(fixed), before)


def test_the_given_model_is_not_touched() -> None:
    model = Residual()
    state = copy.deepcopy(model.state_dict())
    fixed = suggest_fixes(model, tell=None)
    with torch.no_grad():
        for p in fixed.parameters():
            p.add_(1)
    assert isinstance(model.stem[1], nn.BatchNorm2d)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    own = {id(p) for p in model.parameters()}
    assert not own & {id(p) for p in fixed.parameters()}


def test_what_is_replaced_and_what_stays() -> None:
    fixed = suggest_fixes(Residual(), tell=None)
    assert isinstance(fixed, Residual)
    assert isinstance(fixed.stem[1], nn.GroupNorm)
    assert fixed.branches["norm"] is fixed.stem[1]  # one norm before, one after
    assert isinstance(fixed.instance, nn.InstanceNorm2d)
    assert not fixed.instance.track_running_stats
    assert not list(fixed.buffers())
    assert type(fixed.stem[0]) is nn.Conv2d
    assert suggest_fixes(nn.Linear(2, 2), tell=None).weight.shape == (2, 2)


def test_the_weights_are_carried_over() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, eps=1e-3)).double()
    norm = model[1]
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    norm.bias.requires_grad_(False)
    norm.eval()
    fixed = suggest_fixes(model, tell=None)[1]  # type: ignore[index]
    assert torch.equal(fixed.weight, norm.weight)
    assert torch.equal(fixed.bias, norm.bias)
    assert fixed.weight.dtype == torch.float64
    assert fixed.weight.requires_grad
    assert not fixed.bias.requires_grad
    assert fixed.eps == 1e-3
    assert not fixed.training
    assert model[0].training


@pytest.mark.parametrize(
    ("norm", "groups"),
    [
        (nn.BatchNorm2d(64), 32),
        (nn.BatchNorm2d(48), 24),
        (nn.BatchNorm2d(20), 20),
        (nn.BatchNorm2d(37), 1),
        (nn.BatchNorm3d(6), 6),
        (nn.SyncBatchNorm(96), 32),
        (nn.BatchNorm1d(64), 32),
        # Flat input: a group needs two channels, or it would be normalised to zero.
        (nn.BatchNorm1d(32), 16),
        (nn.BatchNorm1d(9), 3),
        (nn.BatchNorm1d(7), 1),
    ],
)
def test_the_number_of_groups(norm: nn.Module, groups: int) -> None:
    fixed = suggest_fixes(norm, tell=None)
    assert isinstance(fixed, nn.GroupNorm)
    assert fixed.num_groups == groups


def test_flat_features_survive() -> None:
    fixed = suggest_fixes(nn.BatchNorm1d(16), tell=None)
    assert float(fixed(torch.randn(5, 16)).detach().abs().mean()) > 0.1


def test_what_may_do_more_than_normalise_is_left() -> None:
    class WithActivation(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(super().forward(x))

    for module in (WithActivation(4), nn.BatchNorm1d(1), nn.InstanceNorm1d(3), nn.LayerNorm(3)):
        assert type(suggest_fixes(module, tell=None)) is type(module)
        assert fixes(module) == []


def test_it_says_what_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    found = fixes(model)
    assert found == [
        Fix(
            "1",
            f"BatchNorm2d({model[1].extra_repr()})",
            f"GroupNorm({nn.GroupNorm(4, 4).extra_repr()})",
        )
    ]
    pl.suggest_fixes(model)
    assert capsys.readouterr().out == f"{found[0]}\n"
    assert str(found[0]).startswith("'1': BatchNorm2d(4")
    assert "-> GroupNorm(4, 4" in str(found[0])
    assert str(fixes(model[1])[0]).startswith("the model itself: ")
    pl.suggest_fixes(model, tell=None)
    assert capsys.readouterr().out == ""
