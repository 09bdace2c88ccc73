"""What a run leaves behind: terminal tables, `engine.json`, `engine.md` and the README's table."""

from __future__ import annotations

import json
from pathlib import Path

from rich.table import Table

from benchmarks.contestants import BASELINE, ENTRIES
from benchmarks.machine import sentence
from benchmarks.models import WORKLOADS
from benchmarks.results import TARGETS, Outcome, Run

QUIET = 0.1  # cores taken by others, above which a run is called rough


def terminal_table(model: str, outcomes: dict[str, Outcome]) -> Table:
    """One network's results, for the terminal."""
    workload = WORKLOADS[model]
    table = Table(title=f"{workload.title}, B={workload.batch_size}", title_justify="left")
    for heading in ("step", "ms", "time ratio", "quartiles", "MiB", "memory ratio", "deviation"):
        table.add_column(heading, justify="left" if heading == "step" else "right")
    for name, outcome in outcomes.items():
        spread = outcome.ratio
        table.add_row(
            ENTRIES[name].title,
            f"{outcome.seconds * 1e3:.1f}" if outcome.seconds else "",
            f"{spread.median:.2f}" if spread else "failed",
            f"{spread.low:.2f} - {spread.high:.2f}" if spread else "",
            f"{outcome.memory_mib:.1f}" if outcome.memory_mib is not None else "",
            f"{outcome.memory_ratio:.2f}" if outcome.memory_ratio is not None else "",
            f"{outcome.deviation:.0e}" if outcome.deviation is not None else "",
        )
    return table


def markdown(run: Run) -> str:
    """The whole report: times, memory, targets, failures, the machine."""
    models = list(run.outcomes)
    names = [n for n in ENTRIES if any(n in run.outcomes[m] for m in models)]
    head = [f"{WORKLOADS[m].title} (B={WORKLOADS[m].batch_size})" for m in models]
    time_rows = [
        [ENTRIES[n].title, *(_time_cell(n, run.outcomes[m].get(n)) for m in models)] for n in names
    ]
    memory_rows = [
        [ENTRIES[n].title, *(_memory_cell(n, run.outcomes[m].get(n)) for m in models)]
        for n in names
    ]
    target_rows = [
        [f"{target}, at most", *(_target_cell(run, target, m) for m in models)]
        for target in TARGETS
    ]
    parts = [
        "Time of one training step as a ratio to the non-private step of the same run: median "
        "(quartiles) over rounds.",
        _table(["step", *head], time_rows),
        "Peak extra memory of one step, as a ratio to the non-private step's.",
        _table(["step", *head], memory_rows),
        "Targets beside what was measured.",
        _table(["target", *head], target_rows),
        *_failures(run),
        f"Machine: {sentence(run.machine)}.",
    ]
    if run.company > QUIET:
        parts.append(
            f"**Not a quiet machine**: other processes took up to {run.company:.1f} cores during "
            "the race, so these ratios are rough."
        )
    return "\n\n".join(parts) + "\n"


def write(run: Run, folder: Path, stem: str) -> tuple[Path, Path]:
    """Write the JSON and the Markdown file; returns where."""
    folder.mkdir(parents=True, exist_ok=True)
    data, page = folder / f"{stem}.json", folder / f"{stem}.md"
    data.write_text(json.dumps(run.as_json(), indent=2) + "\n")
    page.write_text(f"# Private steps, side by side\n\n{markdown(run)}")
    return data, page


def replace_between(page: Path, name: str, text: str) -> bool:
    """Replaces what stands between a page's markers of this name, if it has them."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        return False
    page.write_text(f"{before}{begin}\n{text}{end}{after}")
    return True


def _time_cell(name: str, outcome: Outcome | None) -> str:
    if outcome is None:
        return ""
    if name == BASELINE and outcome.seconds:
        return f"1 ({outcome.seconds * 1e3:.1f} ms)"
    if outcome.ratio is None:
        return "failed"
    spread = outcome.ratio
    return f"{spread.median:.2f} ({spread.low:.2f} - {spread.high:.2f})"


def _memory_cell(name: str, outcome: Outcome | None) -> str:
    if outcome is None:
        return ""
    if outcome.memory_mib is None:
        return "not measured"
    if name == BASELINE:
        return f"1 ({outcome.memory_mib:.1f} MiB)"
    if outcome.memory_ratio is None:
        return f"{outcome.memory_mib:.1f} MiB"
    return f"{outcome.memory_ratio:.2f}"


def _target_cell(run: Run, target: str, model: str) -> str:
    bound = TARGETS[target][model]
    measured = run.measured(target, model)
    if measured is None:
        return f"{bound:g}: not measured"
    return f"{bound:g}: **{measured:.2f}**" + ("" if measured <= bound else ", missed")


def _failures(run: Run) -> list[str]:
    lines = []
    for model, outcomes in run.outcomes.items():
        for name, outcome in outcomes.items():
            where = f"{ENTRIES[name].title} on {WORKLOADS[model].title}"
            if outcome.failure:
                lines.append(f"- {where}: {outcome.failure}")
            if outcome.memory_failure:
                lines.append(f"- {where}, memory: {outcome.memory_failure}")
    return ["What failed, and why:", "\n".join(lines)] if lines else []


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
