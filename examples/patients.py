"""Writes a table of made-up patients, to practise on: who comes back within 30 days?

It has what a hospital's export has: numbers, categories, dates, codes, an id, missing cells. Nobody
in it exists. The guide docs/guides/table.md uses it.

    python examples/patients.py             # patients.csv, 8,000 rows
    python examples/patients.py --new 200   # new-patients.csv: others, whose outcome is not known
"""

import argparse
import csv
import math
import random
from datetime import date, timedelta
from pathlib import Path

COLUMNS = (
    "patient", "admitted", "age", "sex", "ward", "diagnosis", "stay", "visits", "smoker", "weight",
    "cost", "readmitted",
)  # fmt: skip
WARDS = {
    "surgery": -0.4, "medicine": 0.3, "cardiology": 0.5, "oncology": 0.6, "maternity": -1.2,
    "neurology": 0.1, "paediatrics": -0.8, "geriatrics": 0.4, "psychiatry": 0.2,
}  # fmt: skip
"""The wards, and how much each adds to the risk."""


def patient(number: int, draw: random.Random) -> list[str]:
    """One row."""
    ward = draw.choices(list(WARDS), weights=(20, 22, 12, 9, 8, 8, 7, 9, 5))[0]
    age = draw.randint(1, 15) if ward == "paediatrics" else draw.randint(18, 95)
    sex = "f" if ward == "maternity" else draw.choice("fm")
    stay = min(60.0, draw.lognormvariate(1.3, 0.8))
    visits = min(12, int(draw.expovariate(0.9)))
    smoker = age > 15 and draw.random() < 0.25
    chapter = draw.choice("CEFIJKMNS")
    score = -4.0 + 0.022 * age + 0.05 * stay + 0.5 * visits + WARDS[ward]
    score += 0.5 * smoker + 0.5 * (chapter in "CI") + 0.25 * (sex == "m")
    back = draw.random() < 1 / (1 + math.exp(-score))
    cost = 400 + 310 * stay + 9 * age + 90 * visits + draw.gauss(0, 350)
    admitted = date(2021, 1, 1) + timedelta(days=draw.randrange(1095))
    return [
        f"P{number:06d}",
        admitted.strftime("%d.%m.%Y"),
        str(age),
        sex,
        ward,
        f"{chapter}{draw.randint(10, 99)}.{draw.randint(0, 9)}",
        f"{stay:.1f}",
        str(visits),
        ("yes" if smoker else "no") if draw.random() > 0.1 else "",
        f"{max(4.0, draw.gauss(75, 13) if age > 15 else 12 + 3 * age):.1f}"
        if draw.random() > 0.2
        else "",
        f"{max(150.0, cost):.2f}",
        "yes" if back else "no",
    ]


def write(path: Path, count: int, seed: int, columns: tuple[str, ...] = COLUMNS) -> None:
    """Writes the table of ``count`` patients."""
    draw = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for number in range(count):
            writer.writerow(dict(zip(COLUMNS, patient(number, draw), strict=True)))


def main() -> None:
    """Writes one of the two tables into this folder."""
    parser = argparse.ArgumentParser(description="Writes a table of made-up patients.")
    parser.add_argument("--rows", type=int, default=8000, help="how many patients")
    parser.add_argument("--new", type=int, help="write so many new patients instead")
    options = parser.parse_args()
    if options.new is None:
        write(Path("patients.csv"), options.rows, seed=0)
    else:
        write(Path("new-patients.csv"), options.new, seed=1, columns=COLUMNS[:-2])


if __name__ == "__main__":
    main()
