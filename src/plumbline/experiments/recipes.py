"""The recipes that come with the repository, by name."""

from __future__ import annotations

import difflib
from pathlib import Path

from plumbline.experiments.recipe import RecipeError


def folder() -> Path:
    """Where they are: within the package when it is installed, beside ``src`` in a checkout."""
    installed = Path(__file__).parents[1] / "recipes"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "recipes"


def find(name: str) -> Path:
    """A recipe's file: a path as it is given, or the name of one that comes with the repository.

    Raises:
        RecipeError: With the nearest name.
    """
    given = Path(name)
    if given.is_file():
        return given
    if given.suffix == ".toml":
        raise RecipeError(f"There is no recipe file {name}.")
    if name not in names():
        near = difflib.get_close_matches(name, names(), 1)
        what = "is a folder without a run" if given.is_dir() else "is no folder, file or recipe"
        hint = f"Give a run's folder, a recipe's file, or the name of one in {folder()}, as 'demo'."
        hint = f"Did you mean '{near[0]}'?" if near else hint
        raise RecipeError(f"'{name}' {what}. {hint}")
    return folder() / f"{name}.toml"


def names() -> list[str]:
    """The recipes there are, those in folders with the folder's name."""
    root = folder()
    paths = [path for path in root.rglob("*.toml") if not path.name.endswith(".published.toml")]
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in paths)
