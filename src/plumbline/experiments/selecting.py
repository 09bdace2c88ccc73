"""Private selection: settings chosen at random, scored privately, and the choice paid for.

``tune`` looks at every trial, and epsilon covers only each of them. Here epsilon covers the whole
choice (``plumbline.mechanism.selection``): a random number of independent random candidates, each
trained with noise and scored with noise on records held out (``private_score``), and only the
winner shown. What the losers did is deleted as soon as they have lost. The number of
candidates is a secret too, so there is no progress bar.

Guarantee: for one training record more or less, of which the others keep their places
(``loading``). Each candidate's ledger is compared with what was accounted for it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from plumbline.data import Splits
from plumbline.experiments.charging import Named, about, keep_account, shared_ledgers
from plumbline.experiments.files import (
    ENCODING,
    LEDGER,
    MODEL,
    RECIPE,
    RESULT,
    STATEMENT,
    make_folder,
    write_json,
    write_text,
)
from plumbline.experiments.loading import load_data, measure_splits, outcomes_of
from plumbline.experiments.private_score import SENSITIVITY, PrivateScore, check_scored
from plumbline.experiments.recipe import MethodPart, Recipe, RecipeError
from plumbline.experiments.run_result import RunResult, result_facts, write_model
from plumbline.experiments.run_spec import RunSpec
from plumbline.experiments.running import run
from plumbline.experiments.tuning import candidate, space_of
from plumbline.mechanism.accountant import Releases
from plumbline.mechanism.calibration import Plan
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.noise import add_noise, rounding_sensitivity
from plumbline.mechanism.random_source import RandomSource, SecureSource, SeededSource
from plumbline.mechanism.release import FullBatch, GaussianQuery, StepRelease
from plumbline.mechanism.rounding import rounded_up
from plumbline.mechanism.selection import RandomCount
from plumbline.mechanism.shared_ledger import SharedLedger
from plumbline.mechanism.statement import GIVEN

_SCORE_ERROR = 0.005  # the standard deviation of a score, as a share of the records held out
_SCORE_NOISE = 10.0  # and in records, where their number is private
_NO_SIZES = {"expected_batch_size": None, "epochs": None}


@dataclass(frozen=True)
class Selected:
    """The winner.

    Attributes:
        row: Its settings.
        score: What it was chosen by: the metric on the records held out, with noise, which can
            bring a share above 1; of a loss, its negative.
        result: What came of it, with the epsilon and the statement of the whole selection.
    """

    row: MethodPart
    score: float
    result: RunResult


def select(
    recipe: Recipe,
    title: str,
    folder: str | os.PathLike[str],
    *,
    epsilon: float,
    mean: float = 10.0,
    seed: int | None = None,
    ledger: Named = None,
) -> Selected:
    """Trains a random number of random candidates of a row, and shows the best.

    Args:
        recipe: Data, network, optimizer and steps; of its budget delta and, unless the row has its
            own, the number of steps and the batch size.
        title: Which of its rows.
        folder: The folder of the experiment, in which the winner has a run's folder.
        epsilon: What the whole selection may cost, at the recipe's delta.
        mean: How many candidates there are on average.
        seed: Makes everything reproducible, for whoever knows the seed; by default it is secure.
        ledger: Where the selection is charged as a whole, before its first candidate; by default
            the table's ledger. Nobody learns from it how many candidates there were.

    Raises:
        RecipeError: If the row cannot be selected privately.
        BudgetError: If no noise meets epsilon.
    """
    row, count, threshold = _selectable_row(recipe, title), RandomCount(mean), recipe.threshold
    assert threshold != "auto"
    spec = RunSpec(recipe, row, recipe.seeds[0], held_out=recipe.tune.validation)
    splits = load_data(spec)
    # For the sampling and the steps, which do not depend on the noise.
    budget = _at_noise(recipe, row, 1.0).budget
    public, records = splits.train.public_records, splits.train.known_records
    held = len(splits.test) if public is None else round(public * _odds(spec.held_out))
    plan = budget.budget().resolve(records, accountant=budget.accountant)
    expected = max(1, round(spec.held_out * (records + held)))
    # What was asked of a table once, before all candidates.
    once = [] if spec.schema is None else [(spec.schema, 1)]

    method = spec.build_method(len(splits.groups))
    scored = PrivateScore(recipe.tune.objective, len(splits.classes))
    # What is accounted must be known before the data are looked at, with noise or without.
    blur = _SCORE_NOISE if splits.train.records_noisy else max(1.0, _SCORE_ERROR * expected)

    def trained_at(noise: float) -> list[tuple[StepRelease, int]]:
        step = method.release(noise, plan.release.sampling)
        asked = [(one, 1) for one in spec.before if one != spec.schema]
        return [*asked, (step, plan.steps)]

    def releases_at(noise: float) -> Releases:
        return [*trained_at(noise), (_score_release(blur), 1)]

    noise = count.calibrate(releases_at, epsilon=epsilon, delta=plan.delta, once=once)
    spent = count.epsilon(releases_at(noise), delta=plan.delta, once=once)
    cost = _Cost(count, plan, noise, spent, once)
    source: RandomSource = SecureSource() if seed is None else SeededSource(seed, "selection")
    noisy = _at_noise(recipe, row, noise)
    space, best = space_of(row, recipe.tune), None
    selection = _name(seed)
    shared = shared_ledgers(spec.data, ledger)
    before = [] if spec.data.found is None else [spec.data.found.run]
    for path in shared:
        with SharedLedger.open(path) as book:
            book.charge(count.of(releases_at(noise)).to_dict(), run=selection, step=0, most=1)
            book.describe(selection, about(spec, "selection", Path(folder), before))
    with tempfile.TemporaryDirectory(prefix="plumbline-selection-") as secret:
        for number in range(count.draw(source.stream("candidates"))):
            places = source.stream("settings", number).uint64(len(space)) / 2.0**64
            chosen = candidate(row, space, dict(zip(space, places.tolist(), strict=True)))
            own = _seed(source, number)
            sized = chosen.model_copy(update=_NO_SIZES)  # which the recipe has
            tried = RunSpec(noisy, sized, spec.seed, spec.held_out, noise_seed=own)
            home = Path(secret) / str(number)  # of its own: equal settings may be drawn again
            result = run(tried, home, shared=False)
            _require_released([*once, *trained_at(noise)], home / tried.folder / LEDGER)
            model = spec.build_model(splits)
            model.load_state_dict(torch.load(home / tried.folder / MODEL, weights_only=True))
            sums = scored.sums(outcomes_of(model, splits.test, threshold))
            score = scored.value(_noisy(sums, blur, source, number), expected)
            if best is None or score > best[0]:
                best = (score, chosen, home / tried.folder / MODEL, result.seconds)
                for other in Path(secret).iterdir():
                    if other != home:
                        shutil.rmtree(other)
            else:
                shutil.rmtree(home)
        assert best is not None  # there is at least one candidate
        model = spec.build_model(splits)
        model.load_state_dict(torch.load(best[2], weights_only=True))
    chosen = best[1].model_copy(update={"origin": "selected"})
    noise_of = "secure" if seed is None else "seeded"
    winner = RunSpec(recipe.model_copy(update={"noise": noise_of}), chosen, spec.seed)
    tested = load_data(winner)
    kept = Path(folder) / winner.folder
    make_folder(kept)
    result = RunResult(
        **result_facts(winner, tested),
        epsilon=spent,
        delta=plan.delta,
        noise_multiplier=noise,
        steps=plan.steps,
        seconds=best[3],  # that of all candidates would tell how many there were
        report=measure_splits(model, tested, threshold),
        statement=_statement(
            cost, chosen, splits, scored, sizes=(records, held), seeded=seed is not None
        ),
        threshold=threshold,
    )
    if splits.encoding is not None:
        write_json(kept / ENCODING, splits.encoding.to_json())
    if shared:
        keep_account(kept, selection, shared)
    write_json(kept / RECIPE, {**winner.facts, "name": recipe.name})
    write_model(model, kept / MODEL)
    write_text(kept / STATEMENT, result.statement + "\n")
    write_json(kept / RESULT, result.to_json())
    return Selected(chosen, best[0], result)


def _selectable_row(recipe: Recipe, title: str) -> MethodPart:
    """The row, if a selection among its settings can be accounted for."""
    rows = {row.title: row for row in recipe.methods}
    if title not in rows:
        raise RecipeError(f"There is no row {title!r} in the recipe; there are {', '.join(rows)}.")
    row = rows[title]
    method = row.build()
    if not method.private:
        raise RecipeError(
            f"{title} has no guarantee that a selection could keep: {method.unbounded_reason}."
        )
    check_selectable(recipe)
    if recipe.budget.relation != "add_remove":
        raise RecipeError("Private selection is accounted for add_remove only.")
    if row.parts > 1:
        raise RecipeError(
            f"Private selection is accounted for independent noise only, and {row.title} has "
            f"noise that is correlated over {row.parts} steps. Leave its noise out."
        )
    return row


def check_selectable(recipe: Recipe) -> None:
    """Refuses what cannot be selected privately, before anything is charged.

    Raises:
        RecipeError: For a number as the target, for a metric that one record can move too far, and
            for a threshold that is to be chosen.
    """
    if recipe.data.numeric_target:
        raise RecipeError(
            "A private selection scores predictions of classes, and the target is a number: leave "
            "--private-selection out, and tune with --trials."
        )
    check_scored(recipe.tune.objective)
    if recipe.threshold == "auto":
        raise RecipeError(
            "A threshold that is chosen is not covered by epsilon, and a private selection is to "
            "be: give a number (--threshold 0.3), or leave it out."
        )


def _at_noise(recipe: Recipe, row: MethodPart, noise: float) -> Recipe:
    """The recipe at a noise and with a row's own sizes: nothing is left to be calibrated."""
    changes = {"epsilon": None, "noise_multiplier": noise, **row.own_sizes}
    budget = recipe.budget.model_copy(update=changes)
    return recipe.model_copy(update={"budget": budget, "probe": None, "log_every": 10**9})


def _require_released(accounted: Releases, path: Path) -> None:
    """Refuses a candidate whose ledger says that it released something else."""
    entries = Ledger.read(path).entries()
    charged = [(StepRelease.from_dict(release), times) for release, times in entries]
    if _costs(charged) != _costs(accounted):
        raise RuntimeError(
            f"A candidate released {dict(_costs(charged))}, and {dict(_costs(accounted))} was "
            "accounted (times, by sampling rate and noise multiplier). Nothing is shown; please "
            "report this."
        )


def _costs(releases: Releases) -> Counter[tuple[float, float]]:
    """How often there was which sampling rate and noise: all that a cost depends on."""
    times: Counter[tuple[float, float]] = Counter()
    for release, count in releases:
        times[release.sampling.rate, release.noise_multiplier] += count
    return times


def _score_release(noise: float) -> StepRelease:
    query = GaussianQuery(name="score", sensitivity=SENSITIVITY, noise_multiplier=noise)
    return StepRelease(sampling=FullBatch(), queries=(query,))


def _noisy(sums: Tensor, blur: float, source: RandomSource, number: int) -> Tensor:
    """What a candidate is scored by, with noise; a record moves one of the sums."""
    std = blur * (SENSITIVITY + rounding_sensitivity(blur, 1))
    return add_noise({"": sums}, std, source.once("score", number))[""]


def _odds(share: float) -> float:
    return share / (1 - share)


def _name(seed: int | None) -> str:
    """What a ledger calls a selection; that of a seeded one says so, as of a seeded run."""
    own = secrets.token_hex(8)
    if seed is None:
        return f"selection-{own}"
    return f"{hashlib.sha256(f'selection, seed {seed}'.encode()).hexdigest()[:16]}-{own}"


def _seed(source: RandomSource, number: int) -> int | None:
    """A secure run has no seed; a seeded selection gives every candidate one of its own."""
    if isinstance(source, SecureSource):
        return None
    return int(source.stream("seed", number).uint64(1)[0] >> 1)


class _Cost(NamedTuple):
    """What a selection costs, and what that is computed from."""

    drawn: RandomCount
    plan: Plan
    noise: float
    epsilon: float
    once: Sequence[tuple[StepRelease, int]]


def _statement(
    cost: _Cost,
    row: MethodPart,
    splits: Splits,
    scored: PrivateScore,
    *,
    sizes: tuple[int, int],
    seeded: bool,
) -> str:
    plan = cost.plan
    looked = "".join(f" {one};" for one in splits.not_covered)
    noisy = " (on average, from a number with noise)" if splits.train.records_noisy else ""
    given = f" {GIVEN}" if splits.not_covered else ""
    asked = "".join(
        f" Before all candidates it was asked, with noise, and is counted: {query.name}."
        for release, _ in cost.once
        for query in release.queries
    )
    paragraphs = [
        f"Epsilon {rounded_up(cost.epsilon, 4)} at delta {plan.delta:g} for one record, by RDP: it "
        "covers the training of every candidate, their scores, and the choice of the "
        f"winner.{asked}{given}",
        f"A random number of candidates, {cost.drawn.mean:g} on average (geometric; the number "
        "itself is not disclosed), had their settings drawn at random, independently of the data. "
        f"Each was trained for {plan.steps} steps at sampling rate {plan.sampling_rate:.4g} with "
        f"noise multiplier {cost.noise:.4g}, and scored by its {scored.metric}, from "
        f"{scored.words} on records that it was not trained on. Only the winner is shown.",
        f"Winner: {row.title}, learning rate {row.learning_rate}, settings {row.settings}.",
        f"Taken to be public: the settings of the recipe, and the numbers of records that were "
        f"trained on, {sizes[0]:,}, and held out, {sizes[1]:,}{noisy}. Which were held "
        "out was decided for each record alone, by its place in the data.",
        f"Not covered:{looked} metrics of the test records; where the search space comes from; "
        "anything that was looked at before.",
    ]
    if seeded:
        paragraphs.append("The randomness comes from a seed: who knows the seed knows the noise.")
    return "\n\n".join(textwrap.fill(paragraph, 88) for paragraph in paragraphs)
