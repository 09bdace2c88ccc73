"""The WRN-16-4: a unit by hand."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plumbline.models import build
from plumbline.models.wide_resnet import Unit


def test_units() -> None:
    units = [module for module in build("wrn-16-4") if isinstance(module, Unit)]
    skips = [isinstance(unit.skip, nn.Sequential) for unit in units]
    assert skips == [True, False, True, False, True, False]


def test_a_unit_by_hand() -> None:
    unit = Unit(16, 32, stride=2).double()
    for parameter in unit.parameters():
        nn.init.normal_(parameter)
    named = dict(unit.named_parameters())

    def convolved(x: Tensor, at: str, norm: int, stride: int) -> Tensor:
        x = F.group_norm(F.relu(x), 16, named[f"{at}.{norm}.weight"], named[f"{at}.{norm}.bias"])
        place = f"{at}.{norm + 1}"
        free = named[f"{place}.parametrizations.weight.original"]
        gain = named[f"{place}.parametrizations.weight.0.gain"]
        centred = free - free.mean((1, 2, 3), keepdim=True)
        # The variance times the fan-in is the sum of squares.
        scale = gain / centred.square().sum((1, 2, 3)).sqrt()
        weight = centred * scale[:, None, None, None]
        return F.conv2d(x, weight, named[f"{place}.bias"], stride, padding=free.shape[-1] // 2)

    x = torch.randn(2, 16, 6, 6, dtype=torch.float64)
    residual = convolved(convolved(x, "residual", 1, 2), "residual", 4, 1)
    torch.testing.assert_close(unit(x), residual + convolved(x, "skip", 1, 2))
