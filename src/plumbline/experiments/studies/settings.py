"""A study's settings, checked where they enter."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError

from plumbline.experiments.recipe import RecipeError, SettingsPart, wrong_fields

Kind = TypeVar("Kind", bound=SettingsPart)


def checked(kind: type[Kind], settings: dict[str, Any]) -> Kind:
    """The settings as a part.

    Raises:
        RecipeError: Naming the field, and what is wrong with it.
    """
    try:
        return kind.model_validate(settings)
    except ValidationError as error:
        raise RecipeError(wrong_fields(error, "the study's settings")) from None
