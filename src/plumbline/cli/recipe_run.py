"""One run of a recipe, with some of its settings changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plumbline.cli.app import note, same_command
from plumbline.cli.interrupts import stopping
from plumbline.cli.names import method_named, method_of, recipe_at, settings_of
from plumbline.cli.progress import watching
from plumbline.cli.run_summary import show_run

if TYPE_CHECKING:
    from plumbline.experiments import Recipe, RunResult
    from plumbline.experiments.recipe import MethodPart
    from plumbline.experiments.run_spec import RunSpec


def run_of_recipe(
    name: str,
    *,
    method: str | None,
    settings: Sequence[str],
    seed: int | None,
    budget: Mapping[str, Any],
    optimizer: str | None,
    learning_rate: float | None,
    out: Path,
    json_: bool,
) -> None:
    """Makes the run and shows it."""
    from plumbline.cli.torchrun import launched
    from plumbline.experiments.run_spec import RunSpec

    changes = {field: value for field, value in budget.items() if value is not None}
    recipe = _with_budget(recipe_at(name), changes)
    part = _changed(recipe, method, settings, changes, optimizer, learning_rate)
    spec = RunSpec(recipe, part, recipe.seeds[0] if seed is None else seed)
    with launched():
        result = make(spec, out / recipe.name)
        show_run(
            {
                "method": result.method,
                "seed": result.seed,
                "epsilon": result.epsilon,
                "steps": result.steps,
                "seconds": result.seconds,
                "report": result.report.to_json(),
                "statement": result.statement,
                "folder": str(out / recipe.name / result.folder),
            },
            json_,
        )


def make(spec: RunSpec, folder: Path) -> RunResult:
    """Makes a run below ``folder``, shown on standard error; Ctrl-C ends it in words."""
    from plumbline.experiments.pool import Workers

    def stopped() -> str:
        return (
            f"stopped. What is saved is in {folder / spec.folder}; the run goes on from its last "
            f"checkpoint with the same command: {same_command()}"
        )

    with stopping(stopped), watching("runs") as watch, Workers(1) as workers:
        return workers.run([spec], folder, watch)[0]


def _with_budget(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    """The recipe with another budget; epsilon takes the place of a noise multiplier."""
    from plumbline.experiments import Recipe

    if not changes:
        return recipe
    replaced = {"epsilon": "noise_multiplier", "epochs": "steps"}
    fields = recipe.model_dump(mode="json")
    fields["budget"] |= {replaced[name]: None for name in changes if name in replaced}
    fields["budget"] |= changes
    return Recipe.of(fields)


def _changed(
    recipe: Recipe,
    method: str | None,
    settings: Sequence[str],
    budget: Collection[str],
    optimizer: str | None,
    learning_rate: float | None,
) -> MethodPart:
    """A row of the recipe, or one for a method that it does not have."""
    from plumbline.experiments.recipe import MethodPart

    titles = {title.lower() for part in recipe.methods for title in (part.title, part.name)}
    if method is not None and method.lower().replace("-", "_") not in {
        title.replace("-", "_") for title in titles
    }:
        part = MethodPart(name=method_named(method))
    else:
        part = method_of(recipe, method)
    fields = part.model_dump(mode="json")
    fields["settings"] |= settings_of(part.name, settings)
    # What is asked for is the recipe's now, and a row's own would take its place again.
    fields |= dict.fromkeys(set(budget) & {"epochs", "expected_batch_size"})
    used = part.optimizer or recipe.optimizer
    if optimizer is not None and optimizer != used.name:
        if used.options:
            note(f"The recipe's options of {used.name} are not {optimizer}'s: they are left out.")
        fields["optimizer"] = {"name": optimizer, "learning_rate": used.learning_rate}
    if learning_rate is not None:
        fields["learning_rate"] = learning_rate
    return MethodPart.model_validate(fields)
