"""Dates as days: which cells are dates in which order, and what a model sees of a day."""

from datetime import date

import numpy as np
import pytest

from plumbline.data.table_dates import TURNS, days_of, iso, turns

DAY = float((date(2021, 4, 3) - date(1970, 1, 1)).days)


@pytest.mark.parametrize(
    ("order", "cells"),
    [
        ("ymd", ["2021-04-03", "2021/4/3", "2021.04.03", "20210403", "2021-04-03T23:59:01Z"]),
        ("dmy", ["03.04.2021", "3/4/2021", "03-04-2021 12:00", "3 April 2021", "03-Apr-2021"]),
        ("mdy", ["04/03/2021", "4-3-2021", "03APR2021", "3 apr. 2021"]),
    ],
)
def test_the_same_day_in_three_orders(order: str, cells: list[str]) -> None:
    assert days_of(cells, order).tolist() == [DAY] * len(cells)  # type: ignore[arg-type]
    assert iso(DAY) == "2021-04-03"


@pytest.mark.parametrize(
    "cell",
    ["", "2021-02-29", "31.06.2021", "3.4.21", "2021-04", "0000-01-01", "03/04-2021", "3 ju 2021",
     "3 xyz 2021", "yesterday", "20211301", "1e5", "2021-04-03x"],
)  # fmt: skip
def test_no_date(cell: str) -> None:
    for order in ("ymd", "dmy", "mdy"):
        assert np.isnan(days_of([cell], order)).all()  # type: ignore[arg-type]


def test_one_order_does_not_read_another() -> None:
    assert np.isnan(days_of(["03.04.2021"], "ymd")).all()
    assert np.isnan(days_of(["2021-04-03", "20210403"], "dmy")).all()
    assert days_of(["03.04.2021"], "dmy") != days_of(["03.04.2021"], "mdy")
    assert np.isnan(days_of(["25.04.2021"], "mdy")).all()


def test_turns_are_those_of_the_calendar() -> None:
    cells = ["1969-12-29", "1970-01-01", "2021-04-03", "2024-02-29"]
    found = turns(days_of(cells))
    assert found.shape == (4, len(TURNS))
    for row, cell in zip(found, cells, strict=True):
        day = date.fromisoformat(cell)
        month, week = 2 * np.pi * (day.month - 1) / 12, 2 * np.pi * day.weekday() / 7
        expected = [np.sin(month), np.cos(month), np.sin(week), np.cos(week)]
        np.testing.assert_allclose(row, expected, atol=1e-12)
