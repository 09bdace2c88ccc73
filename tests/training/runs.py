"""A tiny private run, built the same way every time, for tests of checkpoints and accounting."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import plumbline
from plumbline import Budget, Ledger, Private

RECORDS = 96
STEPS = 12
BUDGET = Budget(noise_multiplier=1.0, delta=1e-3, steps=STEPS, expected_batch_size=16)


def records(count: int = RECORDS) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 6, generator=torch.Generator().manual_seed(5))
    return inputs, (inputs.sum(1) > 0).long()


@dataclass
class Run:
    """What a user has in hand before ``make_private``."""

    kind: str = "sgd"
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        layers: list[nn.Module] = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)]
        if self.kind == "dropout":
            layers.insert(2, nn.Dropout(0.3))
        self.model = nn.Sequential(*layers)
        self.optimizer: torch.optim.Optimizer
        if self.kind.startswith("adam"):
            self.optimizer = torch.optim.Adam(self.model.parameters(), 0.05)
        else:
            self.optimizer = torch.optim.SGD(self.model.parameters(), 0.3, momentum=0.9)
        self.schedulers: list[Any] = []
        if self.kind == "adam and schedulers":
            cosine = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
            steps = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [3, 6])
            self.schedulers = [cosine, steps]

    @property
    def arguments(self) -> dict[str, Any]:
        return {
            "loss": nn.CrossEntropyLoss(reduction="none"),
            "method": plumbline.methods.dpsgd(clip=1.0),
            "budget": BUDGET,
            "schedulers": self.schedulers,
            **{name: value for name, value in self.settings.items() if name != "dataset"},
        }

    def make(self, **more: Any) -> Private:
        dataset = self.settings.get("dataset", records())
        given = {**self.arguments, **more}
        return plumbline.make_private(self.model, self.optimizer, dataset, **given)

    def resume(self, path: Path) -> Private:
        assert path.exists()
        return self.make(checkpoint=path)

    def train(self, private: Private, steps: int = STEPS) -> Private:
        """Up to ``steps`` steps more."""
        for batch in private:
            if not steps:
                break
            private.step(batch)
            steps -= 1
        private.close()
        return private


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def charged(path: Path) -> int:
    return sum(count for _, count in Ledger.read(path).entries())
