"""A table with every kind of column, missing cells and few positives, as a hospital exports it."""

import random
from datetime import date, timedelta
from pathlib import Path

NAMES = (
    "patient", "admitted", "age", "weight", "ward", "smoker", "diagnosis", "notes", "site", "sex",
    "died",
)  # fmt: skip
WORDS = ("pain", "fever", "cough", "stable", "mild", "severe", "left", "right", "leg", "night")
OPTIONS = [
    "--date", "admitted=dmy", "--hash", "diagnosis=64", "--text", "notes=128",
    "--categories", "smoker=no,yes", "--missing-value", "NA", "--drop", "patient,site",
]  # fmt: skip
"""What the table needs."""


def records(count: int = 3000, seed: int = 0) -> list[list[str]]:
    """Rows of which some 3 % died: the older, and those who smoke."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        age, smoker = draw.randint(18, 95), draw.random() < 0.3
        day = date(2018, 1, 1) + timedelta(days=draw.randrange(1800))
        letter = draw.choice("ABCDEFGHJK")
        risk = 0.003 + (0.10 if age > 80 else 0.01) * (1.5 if smoker else 0.7)
        rows.append(
            [
                f"P{seed}{number:06d}",
                day.strftime("%d.%m.%Y"),
                str(age) if draw.random() > 0.02 else "NA",
                f"{draw.gauss(75, 12):.1f}" if draw.random() > 0.25 else "",
                draw.choice(["north", "south", "east"]) if draw.random() > 0.05 else "",
                ("yes" if smoker else "no") if draw.random() > 0.1 else "",
                f"{letter}{draw.randint(10, 99)}.{draw.randint(0, 9)}",
                " ".join(draw.choices(WORDS, k=draw.randint(4, 9))),
                "main",
                draw.choice("fm"),
                "yes" if draw.random() < risk else "no",
            ]
        )
    return rows


def clinic(path: Path, count: int = 3000, *, separator: str = ",", seed: int = 0) -> Path:
    """Writes the table."""
    lines = [separator.join(row) for row in (list(NAMES), *records(count, seed))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
