"""A recipe is read as it is written, or refused with the file's name: nothing is filled in."""

import math
from pathlib import Path
from typing import Any

import tomli_w

from plumbline.experiments import Recipe, RecipeError
from tests.experiments.small import fields
from tests.fuzzing import altered, amounts, damaged, fuzz

FULL = {
    **fields(),
    "averaging": 0.9,
    "probe": {"every": 5, "records": 8, "measure": ["bias"]},
    "tune": {"trials": 2, "seeds": [5], "objective": "loss", "clip": [0.1, 1.0]},
    "simple_row": False,
}
FULL["methods"][1] |= {
    "optimizer": {"name": "adam", "learning_rate": 0.1, "options": {"amsgrad": True}},
    "data": {"name": "digits", "options": {}},
    "model": {"name": "adult-mlp", "options": {"hidden": 8}},
    "expected_batch_size": 16,
    "epochs": 2.0,
}


def read(path: Path) -> Recipe | None:
    try:
        return Recipe.read(path)
    except RecipeError as error:
        assert str(path) in str(error)  # noqa: PT017
        return None


def kept(given: Any, found: Any, where: str = "") -> None:
    """Everything that was given is in the recipe, as it was given."""
    if isinstance(given, dict):
        assert isinstance(found, dict), where
        for key, part in given.items():
            assert key in found, f"{where}.{key} was dropped"
            kept(part, found[key], f"{where}.{key}")
    elif isinstance(given, list):
        assert len(given) == len(found), where
        for place, (part, other) in enumerate(zip(given, found, strict=True)):
            kept(part, other, f"{where}.{place}")
    elif isinstance(given, float) and math.isnan(given):
        assert math.isnan(found), where
    elif where.split(".")[1:2] == ["methods"] and where.endswith(".name"):
        assert given.replace("-", "_") == found.replace("-", "_"), where
    elif _is_number(given):  # 1 for 1.0
        assert _is_number(found), where
        assert float(given) == float(found), where
    else:
        assert given == found, f"{where} is {found!r} and was given as {given!r}"
        assert type(given) is type(found), where


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@amounts
def test_changed_fields(amount: int, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    accepted = 0

    def check(changed: dict[str, Any]) -> None:
        nonlocal accepted
        path.write_text(tomli_w.dumps(changed), encoding="utf-8")
        recipe = read(path)
        if recipe is not None:
            accepted += 1
            kept(changed, recipe.model_dump(mode="json"))

    fuzz(altered(FULL), check, amount)
    assert accepted > amount / 100  # some changes are harmless


@amounts
def test_damaged_bytes(amount: int, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"

    def check(data: bytes) -> None:
        path.write_bytes(data)
        read(path)

    fuzz(damaged([tomli_w.dumps(FULL).encode(), tomli_w.dumps(fields()).encode()]), check, amount)
