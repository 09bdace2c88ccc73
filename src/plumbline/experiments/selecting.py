"""Private selection: settings chosen at random, scored privately, and the choice paid for.

``tune`` looks at every trial, and epsilon covers only each of them. Here epsilon covers the whole
choice (``plumbline.mechanism.selection``): a random number of independent random candidates, each
trained with noise and scored by a noisy count of right predictions on records held out, and only
the winner shown. What the losers did is deleted as soon as they have lost. The number of
candidates is a secret too, so there is no progress bar.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from plumbline.experiments.files import MODEL, RESULT, STATEMENT, write_json, write_text
from plumbline.experiments.loading import load_data, measure
from plumbline.experiments.recipe import MethodPart, Recipe, RecipeError
from plumbline.experiments.results import RunResult, write_model
from plumbline.experiments.running import run
from plumbline.experiments.specs import RunSpec
from plumbline.experiments.tuning import candidate, score_of, space_of
from plumbline.fairness import GroupReport, plain
from plumbline.mechanism.calibration import Budget, Plan
from plumbline.mechanism.noise import add_noise, gaussian
from plumbline.mechanism.random_source import RandomSource, SecureSource, SeededSource
from plumbline.mechanism.release import FullBatch, GaussianQuery, Sampling, StepRelease
from plumbline.mechanism.rounding import rounded_up
from plumbline.mechanism.selection import RandomCount

_SCORE_ERROR = 0.005  # the standard deviation of a score, as a share of the records held out


@dataclass(frozen=True)
class Selected:
    """The winner.

    Attributes:
        row: Its settings.
        epsilon: Of the whole selection.
        delta: At which.
        score: Its noisy share of right predictions on the records held out.
        report: Its metrics on the test part.
        statement: The guarantee in words.
        folder: Where its weights, result and statement are.
    """

    row: MethodPart
    epsilon: float
    delta: float
    score: float
    report: GroupReport
    statement: str
    folder: str


def select(
    recipe: Recipe,
    title: str,
    folder: str | os.PathLike[str],
    *,
    epsilon: float,
    mean: float = 10.0,
    seed: int | None = None,
) -> Selected:
    """Trains a random number of random candidates of a row, and shows the best.

    Args:
        recipe: Data, network, optimizer and steps; of its budget delta and the number of steps.
        title: Which of its rows.
        folder: Where the winner is kept.
        epsilon: What the whole selection may cost, at the recipe's delta.
        mean: How many candidates there are on average.
        seed: Makes everything reproducible, for whoever knows the seed; by default it is secure.

    Raises:
        RecipeError: If the row cannot be selected privately.
        BudgetError: If no noise meets epsilon.
    """
    rows = {row.title: row for row in recipe.methods}
    if title not in rows:
        raise RecipeError(f"There is no row {title!r} in the recipe; there are {', '.join(rows)}.")
    row, count = rows[title], RandomCount(mean)
    if (reason := row.build().unbounded_reason) is not None:
        raise RecipeError(f"{title} has no guarantee that a selection could keep: {reason}.")
    if recipe.budget.relation != "add_remove":
        raise RecipeError("Private selection is accounted for add_remove only.")
    spec = RunSpec(recipe, row, recipe.seeds[0], held_out=recipe.tune.validation)
    splits = load_data(spec)
    scored = _score_release(len(splits.test))
    part = recipe.budget.budget()
    plan = replace(part, epsilon=epsilon, noise_multiplier=None).resolve(len(splits.train))

    def releases_at(noise: float) -> list[tuple[StepRelease, int]]:
        asked = [(one, 1) for one in spec.before]
        return [*asked, (_step(row, noise, plan), plan.steps), (scored, 1)]

    noise = count.calibrate(releases_at, epsilon=epsilon, delta=part.delta)
    spent = count.epsilon(releases_at(noise), delta=part.delta)
    source: RandomSource = SecureSource() if seed is None else SeededSource(seed, "selection")
    budget = recipe.budget.model_copy(update={"epsilon": None, "noise_multiplier": noise})
    noisy = recipe.model_copy(update={"budget": budget, "probe": None, "log_every": 10**9})
    space, best = space_of(row, recipe.tune), None
    with tempfile.TemporaryDirectory(prefix="plumbline-selection-") as secret:
        for number in range(count.draw(source.stream("candidates"))):
            places = source.stream("settings", number).uint64(len(space)) / 2.0**64
            chosen = candidate(row, space, dict(zip(space, places.tolist(), strict=True)))
            own = _seed(source, number)
            tried = RunSpec(noisy, chosen, spec.seed, spec.held_out, noise_seed=own)
            result = run(tried, secret)
            score = _score(result, scored, source, number)
            if best is None or score > best[0]:
                best = (score, tried, Path(secret) / tried.folder / MODEL)
                for other in Path(secret).iterdir():
                    if other.name != tried.folder:
                        shutil.rmtree(other)
            else:
                shutil.rmtree(Path(secret) / tried.folder)
        assert best is not None  # there is at least one candidate
        model = spec.model.build()
        model.load_state_dict(torch.load(best[2], weights_only=True))
    tested = load_data(replace(spec, held_out=0.0))
    kept = Path(folder)
    kept.mkdir(parents=True, exist_ok=True)
    selected = Selected(
        row=best[1].method,
        epsilon=spent,
        delta=part.delta,
        score=best[0],
        report=measure(model, tested.test, tested.groups),
        statement=_statement(spent, plan, noise, count, best[1].method, seed is not None),
        folder=str(kept),
    )
    write_model(model, kept / MODEL)
    write_text(kept / STATEMENT, selected.statement + "\n")
    write_json(kept / RESULT, _plain(selected))
    return selected


def _step(row: MethodPart, noise: float, plan: Plan) -> StepRelease:
    sampling: Sampling = plan.release.sampling
    return StepRelease(sampling=sampling, queries=row.build().queries(noise))


def _score_release(records: int) -> StepRelease:
    """The number of right predictions: one record moves it by one."""
    query = GaussianQuery(
        name="right predictions", sensitivity=1.0, noise_multiplier=max(1.0, _SCORE_ERROR * records)
    )
    return StepRelease(sampling=FullBatch(), queries=(query,))


def _score(result: RunResult, release: StepRelease, source: RandomSource, number: int) -> float:
    """The noisy share of right predictions."""
    records = sum(result.report.sizes.values())
    right = round(score_of(result.report, "accuracy") * records)
    value = {"right": torch.tensor([float(right)], dtype=torch.float64)}
    noise = gaussian(source.once("score", number), 1)
    noisy = add_noise(value, release.queries[0].noise_multiplier, noise)
    return float(noisy["right"]) / records


def _seed(source: RandomSource, number: int) -> int | None:
    """A secure run has no seed; a seeded selection gives every candidate one of its own."""
    if isinstance(source, SecureSource):
        return None
    return int(source.stream("seed", number).uint64(1)[0] >> 1)


def _statement(
    epsilon: float, plan: Plan, noise: float, count: RandomCount, row: MethodPart, seeded: bool
) -> str:
    budget: Budget = plan.budget
    paragraphs = [
        f"Epsilon {rounded_up(epsilon, 4)} at delta {budget.delta:g} for one record, by RDP: it "
        "covers the training of every candidate, their scores, and the choice of the winner.",
        f"A random number of candidates, {count.mean:g} on average (geometric; the number itself "
        f"is not disclosed), had their settings drawn at random, independently of the data. Each "
        f"was trained for {plan.steps} steps at sampling rate {plan.sampling_rate:.4g} with noise "
        f"multiplier {noise:.4g}, and scored by a noisy count of right predictions on records that "
        "it was not trained on. Only the winner is shown.",
        f"Winner: {row.title}, learning rate {row.learning_rate}, settings {row.settings}.",
        "Not covered: metrics of the test records; where the search space comes from; anything "
        "that was looked at before.",
    ]
    if seeded:
        paragraphs.append("The randomness comes from a seed: who knows the seed knows the noise.")
    return "\n\n".join(textwrap.fill(paragraph, 88) for paragraph in paragraphs)


def _plain(selected: Selected) -> dict[str, Any]:
    return {
        "row": selected.row.model_dump(mode="json"),
        "epsilon": selected.epsilon,
        "delta": selected.delta,
        "score": selected.score,
        "report": {
            "overall": plain(selected.report.overall),
            "by_group": plain(selected.report.by_group),
        },
        "statement": selected.statement,
    }
