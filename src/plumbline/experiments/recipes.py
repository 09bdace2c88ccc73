"""The recipes that come with the repository, by name."""

from __future__ import annotations

from pathlib import Path

from plumbline.experiments.recipe import RecipeError, require_known


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
    require_known("recipe", name, names())
    return folder() / f"{name}.toml"


def names() -> list[str]:
    """The recipes there are, those in folders with the folder's name."""
    root = folder()
    paths = [path for path in root.rglob("*.toml") if not path.name.endswith(".published.toml")]
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in paths)
