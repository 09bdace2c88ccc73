"""No method makes a tensor that is as large as the batch times a layer's parameters."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import plumbline as pl
from plumbline.methods import METHODS
from plumbline.methods.registry import Entry

RECORDS, FEATURES, HIDDEN = 96, 256, 320
LAYER = HIDDEN * FEATURES
# DP-GD keeps a momentum for each record by definition; views and batch normalisation take images.
LEFT_OUT = {"dp_gd_momentum", "self_augmented", "batch_clipping", "group_batchnorm"}
NAMED = [entry for name, entry in METHODS.items() if name not in LEFT_OUT]


class Largest(TorchDispatchMode):
    """The number of entries of the largest tensor, with memory of its own, of any operation."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else (result,):
            if isinstance(one, torch.Tensor):
                # A view of few numbers may have many entries.
                stored = one.untyped_storage().nbytes() // one.element_size()
                self.entries = max(self.entries, min(one.numel(), stored))
        return result


@pytest.mark.parametrize("entry", NAMED, ids=lambda entry: entry.name)
def test_memory_does_not_grow_with_parameters_times_batch(entry: Entry) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(RECORDS, FEATURES), torch.randint(2, (RECORDS,))
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 2))
    method = entry.make(**entry.example())
    private = pl.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        (x, y),
        loss=nn.CrossEntropyLoss(reduction="none"),
        method=method,
        budget=pl.Budget(noise_multiplier=1.0, delta=1e-3, steps=2, sampling_rate=1.0),
        sensitive_features=torch.arange(RECORDS) % 2,
        seed=0,
    )
    largest = Largest()
    for batch in private:
        with largest:
            private.step(batch)
    assert largest.entries >= LAYER  # it did see the layer's gradient
    assert largest.entries < RECORDS * LAYER / 2
