"""Parameters sharded over the ranks (FSDP2, ``torch.distributed.fsdp.fully_shard``).

Each rank keeps some rows of every parameter and of the optimizer's state. For a step the weights
are gathered, every rank takes the gradients of its own records, so that norms and clipping are
local as ever, and the weighted sums are reduce-scattered: a rank receives the released gradient of
its rows only. Noise is drawn for every shard by every rank, a share by each, so that not even the
rank that keeps a shard knows the noise in it.

What is not supported is refused before the first step: placements other than rows over all ranks
(hybrid and tensor parallelism), FSDP's mixed precision and offloading, methods that look at the
released gradient as a whole, and public data beside the private.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from plumbline.mechanism.shared_noise import joined
from plumbline.training.distributed import Ranks


class Shards:
    """A model's sharded parameters; ``Shards.of`` finds them."""

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self._model = model
        self._ranks = ranks
        self._parameters: dict[str, Any] = dict(model.named_parameters())
        for name, parameter in self._parameters.items():
            _refuse_placement(name, parameter, ranks)
        for name, module in model.named_modules():
            _refuse_policy(name, module)

    @classmethod
    def of(cls, model: nn.Module, ranks: Ranks) -> Shards | None:
        """The model's shards; None for one whose parameters are whole.

        Raises:
            ValueError: For sharding that is not supported, with what to do.
        """
        if any(is_shard(parameter) for parameter in model.parameters()):
            return cls(model, ranks)
        return None

    def put_back(self) -> None:
        """Shards in their places: FSDP leaves whole weights in a model that was just evaluated."""
        from torch.distributed.fsdp import FSDPModule  # slow to import, and seldom needed

        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Whole weights in the places of the shards, and the model without FSDP's hooks.

        Both are put back at the end, whatever happens; what is done to the weights inside is lost.
        """
        changed: list[tuple[Any, Any, Any]] = []

        def put(holder: Any, key: Any, value: Any) -> None:
            changed.append((holder, key, holder[key]))
            holder[key] = value

        self._ranks.meet("gathering the weights")
        with self._ranks.connected("gathering the weights"):
            weights = {
                id(p): nn.Parameter(p.detach().full_tensor(), p.requires_grad)
                for p in self._parameters.values()
                if is_shard(p)
            }
        try:
            for module in self._model.modules():
                for key, parameter in list(module._parameters.items()):
                    if is_shard(parameter):
                        put(module._parameters, key, weights[id(parameter)])
                for hooks in (module._forward_pre_hooks, module._forward_hooks):
                    for place, hook in list(hooks.items()):
                        if _is_of_fsdp(hook):
                            put(hooks, place, _nothing)
            yield
        finally:
            for holder, key, value in reversed(changed):
                holder[key] = value

    def added_up(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sums over all ranks of tensors of the parameters' shapes, each cut like its own."""
        return {name: self._scattered(self._parameters[name], part) for name, part in parts.items()}

    def joined(self, share: Tensor, value: Mapping[str, Tensor], std: float) -> dict[str, Tensor]:
        """The answer from every rank's noisy ``share`` of a value, ``[numel]``, cut into shards."""
        found: dict[str, Tensor] = {}
        pieces = torch.split(share, [one.numel() for one in value.values()])
        for (name, own), piece in zip(value.items(), pieces, strict=True):
            total: Any = self._scattered(self._parameters[name], piece.view(own.shape))
            rows = total.to_local() if is_shard(total) else total
            like = {name: torch.empty_like(rows, dtype=own.dtype)}
            answer = joined(rows.reshape(-1), like, std, self._ranks.count)[name]
            found[name] = _shard_of(answer, total) if is_shard(total) else answer
        return found

    def _scattered(self, parameter: Any, part: Tensor) -> Tensor:
        if not is_shard(parameter):
            return self._ranks.sum(part)
        from torch.distributed.tensor import DTensor, Partial

        mesh = parameter.device_mesh
        summands = DTensor.from_local(part, mesh, [Partial()], run_check=False)
        with self._ranks.connected("adding up shards"):
            return summands.redistribute(mesh, parameter.placements)


def is_shard(value: object) -> bool:
    """Whether a tensor is one rank's part of a larger one."""
    return isinstance(value, Tensor) and hasattr(value, "device_mesh")


def whole(state: Any) -> Any:
    """A state with all its shards gathered, on the processor; to be called by every rank."""
    return tree_map(lambda leaf: leaf.full_tensor().cpu() if is_shard(leaf) else leaf, state)


def cut_model_state(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """A whole state of a model, cut as the model is."""
    own = model.state_dict()
    return {name: _cut(value, own.get(name)) for name, value in state.items()}


def cut_optimizer_state(
    state: Mapping[str, Any], optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """A whole state of an optimizer, cut as the parameters are."""
    own = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = dict(zip(numbers, own, strict=True))
    cut = {
        number: {name: _cut(value, parameters[number]) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    return {**state, "state": cut}


def _cut(value: Any, like: Any) -> Any:
    """A whole tensor cut as ``like`` is, if that is cut and of the same shape."""
    if not is_shard(like) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    moved = value.to(like.device)
    # Every rank has the whole: each takes its own rows, and nothing is sent.
    return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)


def _shard_of(rows: Tensor, like: Any) -> Tensor:
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        rows,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def _refuse_placement(name: str, parameter: Any, ranks: Ranks) -> None:
    if not is_shard(parameter):
        return
    mesh, placements = parameter.device_mesh, parameter.placements
    if parameter.to_local().device.type != mesh.device_type:
        raise ValueError(
            f"The parameter '{name}' is kept on another device than the one it is used on, by an "
            "offload policy, which is not supported. Call fully_shard without offload_policy."
        )
    if mesh.ndim == 1 and mesh.size() == ranks.count and placements[0].is_shard(0):
        return
    raise ValueError(
        f"The parameter '{name}' is sharded as {placements} over a mesh of shape "
        f"{tuple(mesh.shape)}, and there are {ranks.count} processes. Supported is fully_shard "
        "over all processes, by rows: a mesh of one dimension, no hybrid or tensor parallelism."
    )


def _refuse_policy(name: str, module: nn.Module) -> None:
    state: Any = getattr(module, "_get_fsdp_state", lambda: None)()
    policy = getattr(state, "_mp_policy", None)
    if policy is not None and (policy.param_dtype or policy.output_dtype):
        raise ValueError(
            f"The module '{name}' was sharded with a mixed-precision policy, {policy}. It would be "
            "ignored: gradients of single records are taken in the weights' own type. Call "
            "fully_shard without mp_policy."
        )


def _is_of_fsdp(hook: Any) -> bool:
    owner = getattr(hook, "__self__", None)
    return type(owner).__module__.startswith("torch.distributed.fsdp.")


def _nothing(*_: object, **__: object) -> None:
    """In the place of a hook."""
