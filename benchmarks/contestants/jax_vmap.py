"""The same step in jax: `vmap(grad)` under `jit`, with clip, noise and SGD update inside.

Compiled ahead of time, so that neither the clock nor the memory counts the compiler. XLA sizes
its thread pool by the process's CPU affinity, which the harness sets to two cores before jax is
imported (`benchmarks.machine.pin`).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from torch import Tensor

from benchmarks.contestants.base import Settings
from benchmarks.contestants.jax_networks import NETWORKS, Parameters
from benchmarks.models import Workload

jax.config.update("jax_platforms", "cpu")

Update = Callable[[Parameters, Array, Array, Array], tuple[Parameters, Array]]


class JaxStep:
    """One compiled training step."""

    def __init__(self, workload: Workload, settings: Settings, size: int | None = None) -> None:
        x, y = workload.batch(size)
        self.x, self.y = (jnp.asarray(t.to(_narrow(t)).numpy()) for t in (x, y))
        self.weights = {
            name: jnp.array(p.detach().numpy()) for name, p in workload.model().named_parameters()
        }
        self.key = jax.random.key(0, impl="rbg")  # faster on CPU than jax's default generator
        update = jax.jit(update_rule(NETWORKS[workload.name], settings), donate_argnums=(0, 1))
        self.update = update.lower(self.weights, self.key, self.x, self.y).compile()

    def step(self) -> None:
        """Run the compiled update and wait for it: jax returns before the work is done."""
        self.weights, self.key = self.update(self.weights, self.key, self.x, self.y)
        jax.block_until_ready(self.weights)

    def parameters(self) -> dict[str, Tensor]:
        """Copies of the weights by name."""
        return {name: torch.from_numpy(np.array(w)) for name, w in self.weights.items()}


def update_rule(network: Callable[[Parameters, Array], Array], settings: Settings) -> Update:
    """DP-SGD for a network that maps one record to its logits."""

    def loss(weights: Parameters, x: Array, y: Array) -> Array:
        return -jax.nn.log_softmax(network(weights, x))[y]

    def update(weights: Parameters, key: Array, x: Array, y: Array) -> tuple[Parameters, Array]:
        gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(weights, x, y)
        squares = sum(jnp.sum(g.reshape(len(y), -1) ** 2, axis=1) for g in gradients.values())
        factors = jnp.minimum(1.0, settings.clip / jnp.sqrt(squares))
        key, *keys = jax.random.split(key, 1 + len(weights))
        scale = settings.noise_multiplier * settings.clip
        new = {}
        for noise_key, (name, weight) in zip(keys, weights.items(), strict=True):
            noise = scale * jax.random.normal(noise_key, weight.shape)
            released = (jnp.tensordot(factors, gradients[name], axes=1) + noise) / len(y)
            new[name] = weight - settings.learning_rate * released
        return new, key

    return update


def _narrow(tensor: Tensor) -> torch.dtype:
    return tensor.dtype if tensor.is_floating_point() else torch.int32
