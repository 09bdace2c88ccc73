"""Somebody's own data: a table of patients with mixed columns, and the same as tensors."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from torch import Tensor, nn


def patients(path: Path, count: int = 400) -> Path:
    """Numbers, categories, codes and a sensitive column; who is readmitted follows from some."""
    draw = random.Random(0)
    lines = ["age,ward,sex,code,stay,readmitted"]
    for _ in range(count):
        age, stay = draw.randint(18, 90), round(draw.expovariate(0.2), 1)
        ward, sex = draw.choice(["east", "west", "north"]), draw.choice("fm")
        again = age + 4 * stay + 10 * (ward == "east") + draw.gauss(0, 10) > 80
        lines.append(f"{age},{ward},{sex},{draw.randint(1, 3)},{stay},{'yes' if again else 'no'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def tensors(count: int = 300) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, classes and groups."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 6, generator=generator)
    groups = torch.randint(2, (count,), generator=generator)
    return x, (x[:, 0] + 0.5 * groups > 0).long(), groups


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
