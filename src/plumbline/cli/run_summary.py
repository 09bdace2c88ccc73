"""A finished run as people see it: metrics by group, the guarantee in short, what comes next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plumbline.cli.app import console, note, show, show_json, show_statement, table
from plumbline.formats import tiny

if TYPE_CHECKING:
    from plumbline.experiments import Recipe
    from plumbline.fairness import GroupReport
    from plumbline.instruments import Trained


def settle(
    recipe: Recipe,
    root: Path,
    description: Mapping[str, Any],
    *,
    seed: int | None = None,
    ledger: Path | None = None,
    limit: float | None = None,
    to_release: bool = False,
    ask: bool = True,
) -> Recipe:
    """The recipe with the schema of its table; says what was chosen, found, filled and left out.

    And where its runs are charged; a limit on what is released is kept there.
    """
    from plumbline.experiments.charging import apply_limit
    from plumbline.experiments.compatibility import check_fits
    from plumbline.experiments.loading import load_part
    from plumbline.experiments.run_spec import RunSpec
    from plumbline.experiments.settling import settled
    from plumbline.experiments.table_ledgers import ledgers_of
    from plumbline.training.distributed import Ranks

    apply_limit(recipe, ledger, limit, to_release=to_release)
    found = settled(recipe, root, seed=seed, ledger=ledger, ask=ask)
    own = recipe.seeds[0] if seed is None else seed
    for row in found.recipe.methods:  # an error is one line, before anything else is said
        check_fits(RunSpec(found.recipe, row, own))
    if "data" in description and "delta" not in description:
        private = recipe.budget.sampling_rate is not None
        why = "as the number of rows is private" if private else "at most 1/(10 n) for n records"
        note(f"Delta is {tiny(recipe.budget.delta)}, {why}; --delta changes it.")
    for sentence in found.words:
        note(sentence)
    if found.recipe.data.name == "table":
        use = load_part(found.recipe.data, own).use
        for sentence in () if use is None else use.sentences:
            note(sentence)
    if ledger is None and Ranks.here().first:
        charged = ledgers_of(found.recipe.data)
        for sentence in charged.words:
            note(sentence)
        for path in charged.paths:
            note(f"Runs on this table are charged to {path}.")
    return found.recipe


def show_run(found: Trained, json_: bool, page: Path | None = None) -> None:
    """A finished run: metrics by group, the guarantee in short, and where to go on."""
    from plumbline.experiments.deciding import threshold_words
    from plumbline.experiments.table_remarks import positive_words
    from plumbline.experiments.together import totals_beside
    from plumbline.fairness import NOT_COVERED, remarks

    result = found.result
    spent = totals_beside(found.folder, found.spec.recipe.budget, single=True)
    if json_:
        # As it is now; the result has what it was when the run ended.
        budget = {"budget": spent.to_json()} if spent.shared else {}
        show_json({**result.to_json(), "folder": str(found.folder), **budget})
        return
    report = result.report
    shown = fitting(report)
    console.print(by_group(report, shown))
    positive = positive_words(found.spec.recipe.data, result.classes)
    said = [*([positive] if positive else []), *others(report, shown), f"({NOT_COVERED})"]
    for sentence in said:
        show(sentence)
    console.print()
    if result.threshold is not None:
        chosen = found.spec.chosen_on > 0
        show(threshold_words(result.threshold, result.classes, chosen=chosen))
    for sentence in remarks(report):
        show(sentence)
    _show_guarantee(found)
    if spent.shared:
        console.print()
        for sentence in spent.sentences:
            show(sentence)
    _show_next(found, page)


def fitting(report: GroupReport) -> list[str]:
    """The metrics that a table by group has room for, the most important first."""
    from plumbline.fairness.evaluating import IN_ORDER, short_title

    room = console.width - max(map(len, (*report.by_group, "group"))) - len("records") - 4
    kept = []
    for name in IN_ORDER:
        width = max(len(short_title(name)), 6) + 2
        if isinstance(report.overall.get(name), float) and width <= room:
            kept.append(name)
            room -= width
    return kept


def by_group(report: GroupReport, names: Sequence[str]) -> Any:
    """These metrics of a report, a line for each group and one for all."""
    from plumbline.fairness.evaluating import short_title, written

    shown = table("group", "records", *(short_title(name) for name in names))
    lines, sizes = dict(report.by_group), dict(report.sizes)
    if list(lines) != ["all"]:
        lines["all"], sizes["all"] = report.overall, sum(sizes.values())
    for group, values in lines.items():
        cells = [written(name, values[name]) for name in names]
        shown.add_row(group, f"{sizes[group]:,}", *cells)
    return shown


def others(report: GroupReport, shown: Sequence[str]) -> list[str]:
    """The metrics of all test records that the table had no room for, in a line."""
    from plumbline.fairness.evaluating import BY_NAME, IN_ORDER, written
    from plumbline.fairness.metrics import SELECTION_RATE

    hidden = {*shown, SELECTION_RATE}
    left = [
        f"{BY_NAME[name].title} {written(name, value)}"
        for name in IN_ORDER
        if name not in hidden and isinstance(value := report.overall.get(name), float)
    ]
    return [f"Of all test records also: {', '.join(left)}."] if left else []


def _show_guarantee(found: Trained) -> None:
    """The statement's first paragraph and its warnings, and what epsilon means in a sentence."""
    from plumbline.experiments.files import STATEMENT
    from plumbline.mechanism.statement import how_often_right

    first, *rest = found.result.statement.strip().split("\n\n")
    warnings = [block for block in rest if block.startswith("Please note")]
    console.print()
    show_statement("\n\n".join([first, *warnings]))
    if math.isfinite(found.epsilon):
        often = how_often_right(found.epsilon, found.result.delta)
        show(
            f"Whoever sees the model is right about whether one record is in the data {often}, "
            "where half is guessing."
        )
    show(f"What this rests on and what it does not cover: {found.folder / STATEMENT}")


def _show_next(found: Trained, page: Path | None) -> None:
    """The files to look at, and the commands to go on with."""
    folder = shlex.quote(str(found.folder))
    lines = [("the page", f"plumbline report {folder}" if page is None else str(page))]
    if found.encoding is not None:
        lines.append(("new rows", f"plumbline predict {folder} --data NEW.csv"))
    lines.append(("check it", f"plumbline verify {folder}"))
    lines.append(("ship it", f"plumbline export {folder}"))
    console.print()
    for what, line in lines:
        console.print(f"{f'{what}:':<10} {line}", highlight=False, soft_wrap=True)
