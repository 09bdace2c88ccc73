"""Features less their mean, which is released privately before the first step.

Half of the length of normalised scattering features is what all images have in common. It makes
every record's gradient longer, so that clipping leaves less of the rest, and tells no class from
another. The mean costs next to nothing: it is one question with much noise, beside hundreds.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from plumbline.data import Part
from plumbline.experiments.recipe import RecipeError
from plumbline.experiments.specs import RunSpec
from plumbline.mechanism.ledger import Ledger
from plumbline.models.scattering_heads import Centre
from plumbline.training.looking import evaluating
from plumbline.training.moments import private_mean

_AT_ONCE = 4096


def centre(spec: RunSpec, model: nn.Module, part: Part, ledger: Ledger | None) -> None:
    """Asks for the mean that the model subtracts; ``RunSpec.before`` is what it costs.

    Args:
        spec: The run.
        model: Has a ``Centre``, which is given the mean of what reaches it.
        part: The training records.
        ledger: Where the question is charged.
    """
    assert spec.model.centre is not None
    module = centre_of(model)
    module.mean.copy_(
        private_mean(
            _reaching(module, model, part),
            records=len(part),
            noise_multiplier=spec.model.centre,
            bound=module.bound,
            seed=spec.random_seed,
            ledger=ledger,
        )
    )


def centre_of(model: nn.Module) -> Centre:
    """The part of a model that subtracts a mean.

    Raises:
        RecipeError: If it has none.
    """
    found = [part for part in model.modules() if isinstance(part, Centre)]
    if not found:
        raise RecipeError("The model has no part that subtracts a mean; leave out model.centre.")
    return found[0]


def _reaching(module: nn.Module, model: nn.Module, part: Part) -> Iterator[Tensor]:
    seen: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        with evaluating(model), torch.no_grad():
            for index in torch.split(torch.arange(len(part)), _AT_ONCE):
                model(part.fetch(index)[0])
                yield seen.pop()
    finally:
        hook.remove()
