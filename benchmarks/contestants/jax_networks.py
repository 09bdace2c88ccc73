"""The benchmark's networks as jax functions of one record, with torch's weights and names.

`vmap` adds the batch dimension, as a jax user would write it. Weights keep torch's layout, so
that they can be compared without translation; XLA is free to choose its own inside the step.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from benchmarks.models import GROUPS, HEADS

Parameters = dict[str, Array]


def mlp(p: Parameters, x: Array) -> Array:
    """96-256-256-2 with tanh."""
    x = jnp.tanh(_linear(p, "0", x))
    x = jnp.tanh(_linear(p, "2", x))
    return _linear(p, "4", x)


def cnn(p: Parameters, x: Array) -> Array:
    """Two convolutions with tanh and 2x2 max-pools."""
    for layer in ("0", "3"):
        x = _conv(x, p[f"{layer}.weight"], 1, "VALID") + p[f"{layer}.bias"][:, None, None]
        x = _max_pool(jnp.tanh(x))
    return _linear(p, "7", x.reshape(-1))


def resnet(p: Parameters, x: Array) -> Array:
    """Group-norm ResNet-20 with option-A shortcuts."""
    x = jax.nn.relu(_group_norm(p, "norm", _conv(x, p["conv.weight"], 1, "SAME")))
    for block in range(9):
        stride = 2 if block in (3, 6) else 1
        name = f"blocks.{block}"
        # Explicit padding: "SAME" with stride 2 pads on the other side than torch does.
        out = _conv(x, p[f"{name}.conv1.weight"], stride, [(1, 1), (1, 1)])
        out = jax.nn.relu(_group_norm(p, f"{name}.norm1", out))
        out = _conv(out, p[f"{name}.conv2.weight"], 1, "SAME")
        out = _group_norm(p, f"{name}.norm2", out)
        half = (out.shape[0] - x.shape[0]) // 2
        x = jnp.pad(x[:, ::stride, ::stride], ((half, half), (0, 0), (0, 0)))
        x = jax.nn.relu(out + x)
    return _linear(p, "head", x.mean((1, 2)))


def transformer(p: Parameters, tokens: Array) -> Array:
    """Two post-norm encoder layers over a word embedding, mean-pooled."""
    x = p["embedding.weight"][tokens]
    for layer in range(2):
        name = f"layers.{layer}"
        x = _layer_norm(p, f"{name}.norm1", x + _attention(p, f"{name}.self_attn", x))
        hidden = jax.nn.relu(_linear(p, f"{name}.linear1", x))
        x = _layer_norm(p, f"{name}.norm2", x + _linear(p, f"{name}.linear2", hidden))
    return _linear(p, "head", x.mean(0))


NETWORKS: dict[str, Callable[[Parameters, Array], Array]] = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet": resnet,
    "transformer": transformer,
}


def _linear(p: Parameters, name: str, x: Array) -> Array:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def _conv(x: Array, weight: Array, stride: int, padding: str | list[tuple[int, int]]) -> Array:
    out = lax.conv_general_dilated(
        x[None], weight, (stride, stride), padding, dimension_numbers=("NCHW", "OIHW", "NCHW")
    )
    return out[0]


def _max_pool(x: Array) -> Array:
    channels, height, width = (x.shape[0], x.shape[1] // 2, x.shape[2] // 2)
    x = x[:, : 2 * height, : 2 * width].reshape(channels, height, 2, width, 2)
    return x.max((2, 4))


def _group_norm(p: Parameters, name: str, x: Array) -> Array:
    grouped = x.reshape(GROUPS, -1)
    grouped = _standardise(grouped).reshape(x.shape)
    return grouped * p[f"{name}.weight"][:, None, None] + p[f"{name}.bias"][:, None, None]


def _layer_norm(p: Parameters, name: str, x: Array) -> Array:
    return _standardise(x) * p[f"{name}.weight"] + p[f"{name}.bias"]


def _standardise(x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def _attention(p: Parameters, name: str, x: Array) -> Array:
    length, width = x.shape
    qkv = x @ p[f"{name}.in_proj_weight"].T + p[f"{name}.in_proj_bias"]
    q, k, v = qkv.reshape(length, 3, HEADS, width // HEADS).transpose(1, 2, 0, 3)
    scores = jax.nn.softmax(q @ k.mT * (width // HEADS) ** -0.5)
    out = (scores @ v).transpose(1, 0, 2).reshape(length, width)
    return _linear(p, f"{name}.out_proj", out)
