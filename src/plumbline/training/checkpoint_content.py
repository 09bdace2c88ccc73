"""A checkpoint's content, sealed with a digest and checked when it is read again.

Guarantee: content that is not what was saved (a flipped bit in a weight, a count that was edited, a
field that is missing or of another type) is refused, naming the file. The digest finds accidents,
not forgery: whoever can write the file can seal another content.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from plumbline.training.checkpoint_file import CheckpointError
from plumbline.training.run_identity import feed

_DIGEST = "digest"


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with its digest."""
    return {**content, _DIGEST: _digest_of(content)}


def unsealed(content: Any, path: Path) -> dict[str, Any]:
    """Checks the digest, and returns the content without it.

    Raises:
        CheckpointError: If it is not what was sealed.
    """
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise damaged(path, "it does not hold named values")
    own = {name: value for name, value in content.items() if name != _DIGEST}
    if content.get(_DIGEST) != _digest_of(own):
        raise damaged(path, "its content is not what was saved, by its digest")
    return own


def check_fields(content: Mapping[str, Any], path: Path) -> None:
    """Refuses a checkpoint that lacks a field, or has one of another type.

    Raises:
        CheckpointError: Naming the field.
    """
    for name, fits in _FIELDS.items():
        if name not in content:
            raise damaged(path, f"it has no {name!r}")
        if not fits(content[name]):
            raise damaged(path, f"its {name!r} is a {type(content[name]).__name__} that cannot be")


@contextlib.contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Turns the error of a state that does not fit its object into one that names the file."""
    try:
        yield
    except CheckpointError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise CheckpointError(
            f"The states in the checkpoint {path} do not fit the model, the optimizer, the "
            f"schedulers and the method that were given ({type(error).__name__}: {error}). Give "
            "those of the run that was saved; if they are, the file is damaged."
        ) from error


def damaged(path: Path, why: str) -> CheckpointError:
    """The error for a damaged checkpoint."""
    return CheckpointError(
        f"The checkpoint {path} is damaged: {why}. Nothing can be resumed from it; use an earlier "
        "copy of the file. What was spent is in the ledger."
    )


def _digest_of(content: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    feed(digest, content)
    return digest.hexdigest()


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _is_position(value: Any) -> bool:
    if value is None:
        return True
    return (
        _is_mapping(value)
        and set(value) == {"count", "hash"}
        and _is_count(value["count"])
        and isinstance(value["hash"], str)
    )


def _is_random_state(value: Any) -> bool:
    return value is None or (
        _is_mapping(value)
        and isinstance(value.get("cpu"), Tensor)
        and isinstance(value.get("cuda"), list)
    )


def _is_facts(value: Any) -> bool:
    return _is_mapping(value) and all(
        one is None or isinstance(one, str | int | float) for one in value.values()
    )


def _is_plan(value: Any) -> bool:
    noise = value.get("noise_multiplier") if _is_facts(value) else None
    return isinstance(noise, int | float) and 0 <= noise < math.inf


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "token": lambda value: isinstance(value, str),
    "has_private_state": lambda value: isinstance(value, bool),
    "settings": _is_facts,
    "plan": _is_plan,
    "run": lambda value: isinstance(value, str),
    "attempt": _is_count,
    "steps_done": _is_count,
    "made": _is_count,
    "charged": _is_count,
    "ledger": _is_position,
    "model": _is_mapping,
    "optimizer": _is_mapping,
    "schedulers": lambda value: isinstance(value, list) and all(map(_is_mapping, value)),
    "method": _is_mapping,
    "average": lambda value: value is None or _is_mapping(value),
    "sampler": _is_mapping,
    "random": _is_random_state,
    "ranks": lambda value: _is_count(value) and value > 0,
    "processes": lambda value: isinstance(value, list) and all(map(_is_count, value)),
    "moved": _is_count,
    "random_of_others": lambda value: isinstance(value, list) and all(map(_is_random_state, value)),
}
