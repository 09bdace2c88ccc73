"""`python -m benchmarks`: check, race, weigh, write down."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import machine

machine.pin()

from benchmarks import guard, memory, report  # noqa: E402  (after the cores are chosen)
from benchmarks.contestants import BASELINE, ENTRIES, Contestant, Settings  # noqa: E402
from benchmarks.models import WORKLOADS, Workload  # noqa: E402
from benchmarks.results import Outcome, Run, fill_memory_ratios  # noqa: E402
from benchmarks.timing import Pace, Race, Spread  # noqa: E402

HERE = Path(__file__).resolve().parent
console = Console(width=120)


def main(arguments: Sequence[str] | None = None) -> None:
    """Time private training steps against the non-private one, in ratios."""
    options = _options(arguments)
    if options.memory_again:
        _weigh_again(options.out)
        return
    chosen: list[str] = options.models
    names = [BASELINE, *(name for name in options.contestants if name != BASELINE)]
    quick, weigh = options.quick, options.memory
    pace = Pace(3, 0.1, 0.3, 10.0) if quick else Pace(options.rounds)
    run = Run(machine.describe(), dataclasses.asdict(pace))
    console.print(machine.sentence(run.machine), highlight=False)
    for model in chosen:
        start = time.monotonic()
        outcomes = {name: Outcome() for name in names}
        run.outcomes[model] = outcomes
        cores = run.neighbours[model] = _race(WORKLOADS[model], outcomes, pace)
        if weigh:
            _weigh(model, outcomes)
        console.print(report.terminal_table(model, outcomes))
        console.print(f"took {time.monotonic() - start:.0f} s")
        if cores and cores > report.QUIET:
            console.print(f"[yellow]others took {cores:.1f} cores: these ratios are rough")
    # A partial or hasty run must not replace the numbers the README stands on.
    complete = not quick and weigh and len(chosen) == len(WORKLOADS) and len(names) == len(ENTRIES)
    _write(run, options.out, complete)


def _weigh_again(folder: Path) -> None:
    """Memory of what was timed before: it does not take a quiet machine."""
    run = Run.of_json(json.loads((folder / "engine.json").read_text()))
    for model, outcomes in run.outcomes.items():
        _weigh(model, outcomes)
    _write(run, folder, complete=True)


def _write(run: Run, folder: Path, complete: bool) -> None:
    for path in report.write(run, folder, "engine" if complete else "engine-partial"):
        console.print(f"wrote {path}", soft_wrap=True)
    page = HERE.parent / "docs" / "performance.md"
    if complete and report.replace_between(page, "engine", report.markdown(run)):
        console.print("updated docs/performance.md")


def _race(workload: Workload, outcomes: dict[str, Outcome], pace: Pace) -> float | None:
    """Fill in deviation and times; whoever fails keeps the reason and does not start.

    Returns how many cores other processes took meanwhile, where the system tells.
    """
    ready: dict[str, Contestant] = {}
    with console.status(f"{workload.title}: the one-record-at-a-time loop") as status:
        oracle = guard.oracle(workload, Settings())
        for name, outcome in outcomes.items():
            status.update(f"{workload.title}: checking {ENTRIES[name].title}")
            try:
                outcome.deviation = oracle.deviation(ENTRIES[name], workload)
                ready[name] = ENTRIES[name].build(workload, Settings())
            except Exception as error:  # a contestant that cannot run is a result
                outcome.failure = f"{type(error).__name__}: {error}".splitlines()[0]
                console.print(f"[red]{workload.title}, {name}: {outcome.failure}", highlight=False)
        if BASELINE not in ready:
            return None  # nothing to race against, and the reason is in the report
        status.update(f"{workload.title}: warming up")
        steps = {name: contestant.step for name, contestant in ready.items()}
        race = Race(steps.pop(BASELINE), steps, pace)
        neighbours = machine.Neighbours()
        for number in range(pace.rounds):
            status.update(f"{workload.title}: round {number + 1} of {pace.rounds}")
            race.round(number)
        cores = neighbours.cores()
    outcomes[BASELINE].seconds = statistics.median(race.baseline_seconds)
    outcomes[BASELINE].ratio = Spread(1.0, 1.0, 1.0)
    for name, times in race.times.items():
        outcomes[name].seconds = statistics.median(times.seconds)
        outcomes[name].ratios = times.ratios
        outcomes[name].ratio = Spread.of(times.ratios)
    return cores


def _weigh(model: str, outcomes: dict[str, Outcome]) -> None:
    """Fill in peak extra memory, one fresh process per contestant."""
    with console.status("") as status:
        for name, outcome in outcomes.items():
            if outcome.failure:
                continue
            status.update(f"{WORKLOADS[model].title}: memory of {ENTRIES[name].title}")
            try:
                outcome.memory_mib = memory.measure(model, name)
            except Exception as error:
                outcome.memory_failure = f"{type(error).__name__}: {error}".splitlines()[0]
    fill_memory_ratios(outcomes)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    for flag, known in (("--models", WORKLOADS), ("--contestants", ENTRIES)):
        listed = ",".join(known)
        parser.add_argument(
            flag, type=_some_of(known), default=listed, help=f"separated by commas, of {listed}"
        )
    parser.add_argument("--rounds", type=int, default=Pace.rounds, help="rounds of the race")
    parser.add_argument("--quick", action="store_true", help="three short rounds, to try it")
    parser.add_argument(
        "--memory", action=argparse.BooleanOptionalAction, default=True, help="measure memory"
    )
    parser.add_argument(
        "--memory-again", action="store_true", help="measure the memory of the last run anew"
    )
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder for results")
    return parser.parse_args(arguments)


def _some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown) or 'nothing'} given; known are {', '.join(known)}"
            )
        return names

    return parse


if __name__ == "__main__":
    main()
