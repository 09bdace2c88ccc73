"""Names given on the command line: methods, recipes, settings; the nearest for one unknown."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plumbline.cli.app import WrongUse

if TYPE_CHECKING:
    from plumbline.experiments import Recipe
    from plumbline.experiments.recipe import MethodPart


def method_named(name: str) -> str:
    """The method's name in the registry; ``global-adapt`` is ``global_adapt``."""
    from plumbline.experiments.recipe import known
    from plumbline.methods import METHODS

    return known("method", name.replace("-", "_"), list(METHODS))


def methods_starting(incomplete: str) -> list[str]:
    """For the shell's completion."""
    from plumbline.methods import METHODS

    return [name for name in METHODS if name.startswith(incomplete.replace("-", "_"))]


def recipe_at(given: str) -> Recipe:
    """A recipe by its path, or by the name of one that is shipped."""
    from plumbline.experiments import Recipe
    from plumbline.experiments.recipes import find

    return Recipe.read(find(given))


def method_of(recipe: Recipe, name: str | None) -> MethodPart:
    """One of a recipe's rows, by title or by the method's name; the first private one if None."""
    from plumbline.experiments.recipe import known

    if name is None:
        private = [part for part in recipe.methods if part.build().unbounded_reason is None]
        return (private or list(recipe.methods))[0]
    by_name = {part.name: part for part in reversed(recipe.methods)}
    by_name |= {part.title: part for part in recipe.methods}
    known_as = {key.replace("-", "_").lower(): key for key in by_name}
    key = name.replace("-", "_").lower()
    if key not in known_as:
        known(f"method of the recipe '{recipe.name}' called", name, list(by_name))
    return by_name[known_as[key]]


def settings_of(method: str, given: Sequence[str]) -> dict[str, Any]:
    """``key=value`` texts as a method's settings; values are TOML, and bare words text."""
    from plumbline.experiments.recipe import known_setting

    settings: dict[str, Any] = {}
    for one in given:
        key, equals, text = one.partition("=")
        if not equals:
            raise WrongUse(f"--set {one}: give a setting and its value, as in --set clip=0.5.")
        settings[known_setting(method, key.strip().replace("-", "_"))] = _value(text)
    return settings


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()
