"""The ResNets of paper 003: both networks by hand, and what each flag changes."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plumbline.models import build
from plumbline.models.resnet_cifar import ResNet
from tests.gradients.harness import assert_matches_loop

FLAGS: dict[str, tuple[Any, Any]] = {  # as in the enhanced and the original network
    "norm_after_activation": (True, False),
    "elu": (True, False),
    "weight_standardisation": (True, False),
    "feature_standardisation": (True, False),
    "pool": (2, 1),
    "affine": (False, True),
}
EACH_FLAG = pytest.mark.parametrize("flag", FLAGS)
EITHER = pytest.mark.parametrize("enhanced", [True, False], ids=["enhanced", "original"])


def network(name: str = "resnet-20", **options: Any) -> ResNet:
    torch.manual_seed(0)
    model = build(name, **options)
    assert isinstance(model, ResNet)
    return model


def images(records: int = 2, size: int = 8) -> Tensor:
    return torch.randn(records, 3, size, size, generator=torch.Generator().manual_seed(1))


def shortcut(x: Tensor, channels: int) -> Tensor:
    if x.shape[1] == channels:
        return x
    small = x[:, :, ::2, ::2]
    zeros = torch.zeros_like(small[:, : small.shape[1] // 2])
    return torch.cat([zeros, small, zeros], 1)


def enhanced_by_hand(weights: list[Tensor], x: Tensor) -> Tensor:
    """Stem conv-ELU-GN; blocks conv-ELU-GN-conv-GN-(+)-ELU-GN; 2 x 2 pool, standardise, linear."""

    def convolved(x: Tensor, stride: int = 1) -> Tensor:
        w = weights.pop(0)
        mean, std = w.mean((1, 2, 3), keepdim=True), w.std((1, 2, 3), keepdim=True)
        w = (w - mean) / (std + 1e-6) / w[0].numel() ** 0.5
        return F.conv2d(x, w, stride=stride, padding=1)

    def normed(x: Tensor) -> Tensor:
        return F.group_norm(x, 4)

    x = normed(F.elu(convolved(x)))
    while len(weights) > 2:
        channels = weights[0].shape[0]
        h = normed(F.elu(convolved(x, 1 if channels == x.shape[1] else 2)))
        x = normed(F.elu(normed(convolved(h)) + shortcut(x, channels)))
    half = x.shape[2] // 2
    features = F.avg_pool2d(x, half).flatten(1)
    features = features - features.mean(1, keepdim=True)
    features = features / (features.std(1, keepdim=True) + 1e-6)
    return F.linear(features, *weights)


def original_by_hand(weights: list[Tensor], x: Tensor) -> Tensor:
    """Stem conv-GN-ReLU; blocks conv-GN-ReLU-conv-GN-(+)-ReLU; global average pool, linear."""

    def normed(x: Tensor, stride: int = 1) -> Tensor:
        weight, scale, shift = (weights.pop(0) for _ in range(3))
        return F.group_norm(F.conv2d(x, weight, stride=stride, padding=1), 4, scale, shift)

    x = normed(x).relu()
    while len(weights) > 2:
        channels = weights[0].shape[0]
        h = normed(x, 1 if channels == x.shape[1] else 2).relu()
        x = (normed(h) + shortcut(x, channels)).relu()
    return F.linear(x.mean((2, 3)), *weights)


@EITHER
@pytest.mark.parametrize("name", ["resnet-20", "resnet-32"])
def test_the_network_by_hand(name: str, enhanced: bool) -> None:
    model, x = network(name, enhanced=enhanced).double(), images().double()
    for parameter in model.parameters():
        if parameter.dim() == 1:  # the scales and shifts, so that they are not ones and zeros
            nn.init.normal_(parameter)
    weights = [parameter.detach() for parameter in model.parameters()]
    by_hand = enhanced_by_hand if enhanced else original_by_hand
    torch.testing.assert_close(model(x), by_hand(weights, x))


@EITHER
def test_flags_make_up_both_networks(enhanced: bool) -> None:
    settings = {flag: values[0 if enhanced else 1] for flag, values in FLAGS.items()}
    other = network(enhanced=not enhanced, **settings)
    torch.testing.assert_close(other(images()), network(enhanced=enhanced)(images()))


@EITHER
@EACH_FLAG
def test_each_flag_by_itself_makes_a_difference(flag: str, enhanced: bool) -> None:
    base = network(enhanced=enhanced)
    changed = network(enhanced=enhanced, **{flag: FLAGS[flag][1 if enhanced else 0]})
    if flag == "affine":  # scales of one and shifts of zero change nothing yet
        assert count(changed) != count(base)
    else:
        assert not torch.allclose(changed(images()), base(images()))


@EITHER
@EACH_FLAG
def test_each_flag_is_what_it_says(flag: str, enhanced: bool) -> None:
    for value in FLAGS[flag]:
        model = network(enhanced=enhanced, **{flag: value})
        assert SAYS[flag](model) == value


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def of(model: nn.Module, kind: type[nn.Module]) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, kind)]


def norms_after(model: ResNet) -> bool:
    kinds = ["norm" if isinstance(layer, nn.GroupNorm) else "other" for layer in model.stem]
    residual = [isinstance(layer, nn.GroupNorm) for layer in model.blocks[0].residual]  # type: ignore[union-attr]
    assert residual == [False, kinds[1] == "norm", kinds[2] == "norm", False, True]
    after = kinds[2] == "norm"
    assert len(of(model, nn.GroupNorm)) == 1 + 9 * (3 if after else 2)
    return after


def elu(model: ResNet) -> bool:
    assert bool(of(model, nn.ELU)) != bool(of(model, nn.ReLU))
    return bool(of(model, nn.ELU))


def standardised_weights(model: ResNet) -> bool:
    sums = [layer.weight.sum((1, 2, 3)).abs().max() for layer in of(model, nn.Conv2d)]
    norms = [layer.weight.flatten(1).norm(dim=1) for layer in of(model, nn.Conv2d)]
    # Of n weights with unbiased deviation 1 the norm is sqrt((n - 1) / n); n is 27 at least.
    alike = all(((norm > 0.97) & (norm < 1)).all() for norm in norms)
    return alike and bool(max(sums) < 1e-5)


def standardised_features(model: ResNet) -> bool:
    seen: list[Tensor] = []
    handle = model.head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(images())
    handle.remove()
    deviations = seen[0].std(1)
    return bool(torch.allclose(deviations, torch.ones(2), atol=1e-3))


SAYS: dict[str, Any] = {
    "norm_after_activation": norms_after,
    "elu": elu,
    "weight_standardisation": standardised_weights,
    "feature_standardisation": standardised_features,
    "pool": lambda model: {64: 1, 256: 2}[model.head.in_features],
    "affine": lambda model: all(norm.affine for norm in of(model, nn.GroupNorm)),
}


def test_batch_norm() -> None:
    model = network("resnet-20-bn")
    norms = of(model, nn.BatchNorm2d)
    assert len(norms) == 19
    assert not of(model, nn.GroupNorm)
    assert not list(model.buffers())  # nothing is carried from one batch to another
    assert of(network("resnet-20-bn", enhanced=True), nn.ELU)
    alone, together = model(images(2)[:1]), model(images(2))[:1]
    assert not torch.allclose(alone, together)


@pytest.mark.slow
@EITHER
@EACH_FLAG
def test_gradients_with_each_flag_match_the_loop(
    flag: str, enhanced: bool, device: torch.device
) -> None:
    model = network(enhanced=enhanced, **{flag: FLAGS[flag][1 if enhanced else 0]}).to(device)
    assert_matches_loop(model, images().to(device))
