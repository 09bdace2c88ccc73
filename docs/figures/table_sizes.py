"""How much AUC a private model loses, by the size of the table and epsilon: the table in the guide.

`python docs/figures/table_sizes.py` trains runs of DP-SGD on the practice table of
`examples/patients.py` in several sizes, judges them on 5,000 other patients, keeps what it measured
in `table_sizes.json` beside it, and fills the table of `docs/guides/table.md`. About half an hour
on two cores; `--draw` only fills the table again.
"""

from __future__ import annotations

import argparse
import json
import runpy
import tempfile
from pathlib import Path
from statistics import mean

import plumbline as pl

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
PAGE = HERE.parent / "guides" / "table.md"
BEGIN = "<!-- sizes:begin (made by python docs/figures/table_sizes.py) -->"
END = "<!-- sizes:end -->"
SIZES, EPSILONS, SEEDS = (500, 2000, 8000, 32_000), (0.5, 1.0, 3.0, 8.0), (0, 1)
FREE = "without privacy"

Results = dict[str, dict[str, list[float]]]
"""The AUC of each seed, by the number of rows and by epsilon."""


def main() -> None:
    """Measures, unless told not to, and fills the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--draw", action="store_true", help="only fill the table again")
    kept = HERE / "table_sizes.json"
    if not parser.parse_args().draw:
        kept.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    shown = table(json.loads(kept.read_text(encoding="utf-8")))
    PAGE.write_text(f"{before}{BEGIN}\n\n{shown}\n\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")


def measured() -> Results:
    """Trains all runs."""
    write = runpy.run_path(str(EXAMPLES / "patients.py"))["write"]
    schema = (EXAMPLES / "patients.schema.toml").read_text(encoding="utf-8")
    found: Results = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write(folder / "others.csv", 5000, seed=1)
        for size in SIZES:
            write(folder / f"{size}.csv", size, seed=2)
            own = folder / f"{size}.toml"
            own.write_text(schema.replace("records = 8000", f"records = {size}"), encoding="utf-8")
            runs = {FREE: {"method": "nonprivate"}}
            runs |= {f"{e:g}": {"method": "dpsgd", "epsilon": e} for e in EPSILONS}
            found[str(size)] = {
                name: [
                    pl.train(
                        data=str(folder / f"{size}.csv"),
                        test=str(folder / "others.csv"),
                        target="readmitted",
                        schema=own,
                        drop=["patient", "cost"],
                        seed=seed,
                        folder=folder / "runs",
                        **given,
                    ).result.report.overall["auc"]
                    for seed in SEEDS
                ]
                for name, given in runs.items()
            }
            print(size, found[str(size)], flush=True)
    return found


def table(found: Results) -> str:
    """The AUC without privacy, and what is lost of it at each epsilon."""
    heads = ["rows", FREE, *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)]
    lines = [heads, ["---:"] * len(heads)]
    for size, own in found.items():
        free = mean(own[FREE])
        lost = [free - mean(own[f"{epsilon:g}"]) for epsilon in EPSILONS]
        cells = [f"{max(0.0, one):.3f} less" for one in lost]
        lines.append([f"{int(size):,}", f"{free:.3f}", *cells])
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{rows}\n\nAUC, where 0.5 is guessing; means over {len(SEEDS)} seeds."


if __name__ == "__main__":
    main()
