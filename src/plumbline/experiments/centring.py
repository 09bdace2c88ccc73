"""Features less their mean, which is released privately before the first step.

Much of the length of normalised scattering features is what all images have in common. It makes
every record's gradient longer, so that clipping leaves less of the rest, and tells no class from
another. The mean costs next to nothing: it is one question with much noise, beside hundreds.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from plumbline.data import Split
from plumbline.experiments.run_spec import RunSpec
from plumbline.mechanism.ledger import Ledger
from plumbline.models.scattering_heads import Centre
from plumbline.training.distributed import Ranks
from plumbline.training.moments import private_mean
from plumbline.without_trace import evaluating


def centre(spec: RunSpec, model: nn.Module, part: Split, ledger: Ledger | None) -> None:
    """Asks for the mean that the model subtracts, if the run asks for one.

    What it costs is ``RunSpec.before``. The first rank asks, and tells the others.

    Args:
        spec: The run.
        model: Its ``Centre`` is given the mean of what reaches it.
        part: The training records.
        ledger: Where the question is charged.
    """
    if spec.model.centre is None:
        return
    ranks, module = Ranks.here(), centre_of(model)
    if ranks.first:
        module.mean.copy_(
            private_mean(
                _reaching(module, model, part),
                records=part.known_records,
                noise_multiplier=spec.model.centre,
                bound=module.bound,
                seed=spec.random_seed,
                ledger=ledger,
            )
        )
    ranks.take_from_first("the mean", [module.mean])


def centre_of(model: nn.Module) -> Centre:
    """The part of a model that subtracts a mean; networks with the option "centred" have one."""
    return next(part for part in model.modules() if isinstance(part, Centre))


def _reaching(module: nn.Module, model: nn.Module, part: Split) -> Iterator[Tensor]:
    seen: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        with evaluating(model), torch.no_grad():
            for x, _ in part.pieces():
                model(x)
                yield seen.pop()
    finally:
        hook.remove()
