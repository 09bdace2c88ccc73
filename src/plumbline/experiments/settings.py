"""Settings that come from a file or from an option: fields that are checked where they enter.

An error names the field, what was given and what is allowed. Recipes, the files of reproductions
and the settings of studies are made of these parts.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from plumbline.registry import unknown


class RecipeError(ValueError):
    """A recipe that cannot be used, with the reason."""


class SettingsPart(BaseModel):
    """A part of a file of settings: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _no_others(cls, given: Any) -> Any:
        # Before pydantic does, which does not say what is allowed.
        for name in given if isinstance(given, dict) else ():
            require_known("field", str(name), list(cls.model_fields))
        return given

    @classmethod
    def of(cls, fields: Any, where: str = "the recipe") -> Self:
        """The part that plain values say.

        Raises:
            RecipeError: Naming ``where`` they are from, the field, and what is wrong with it.
        """
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise RecipeError(wrong_fields(error, where)) from None


class StrictPart(SettingsPart):
    """A part of a recipe: values of another type are refused too, and never converted."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        RecipeError: If it cannot be read, naming the file.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # not text, not TOML, or nested too deeply
        raise RecipeError(f"{path} is not valid TOML: {error}.") from error


def wrong_fields(error: ValidationError, where: str = "") -> str:
    """What is wrong with each field, in words.

    Args:
        error: What was found.
        where: The file; what was in none is told in one line, by our own words where there are any.
    """
    wrong = []
    for one in error.errors():
        field = ".".join(map(str, one["loc"])) or "recipe"
        words = one["msg"].removeprefix("Value error, ")
        if _short(one["input"]) and repr(one["input"]) not in words:
            words += f" (given: {one['input']!r})"
        named = where or one["type"] != "value_error"
        wrong.append(f"{field}: {words}" if named else words)
    lines = [f"{where} cannot be used:", *wrong]
    return "\n  ".join(lines) if where else "; ".join(wrong)


def require_known(kind: str, name: str, names: Sequence[str]) -> None:
    """Refuses a name that is not among those there are.

    Raises:
        RecipeError: With the nearest name.
    """
    if name not in names:
        raise RecipeError(unknown(kind, name, names))


def _finite(value: Any) -> Any:
    """Refuses what has no name in JSON, by which a run is known."""
    parts = list(value.values()) if isinstance(value, dict) else value
    if isinstance(parts, list):
        for part in parts:
            _finite(part)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    return value


Options = Annotated[dict[str, Any], AfterValidator(_finite)]
"""The options of a part, as JSON and TOML have them."""


def _short(value: Any) -> bool:
    return isinstance(value, str | int | float | bool) and len(str(value)) < 80
