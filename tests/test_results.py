"""Results as plain values: one word for infinity, wherever a result becomes JSON."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plumbline.cli.app import show_json
from plumbline.experiments.files import append_row, write_json
from plumbline.results import Undefined, minus, to_json


@dataclass
class Result:
    epsilon: float
    values: Any


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.inf, '"inf"'),
        (-math.inf, '"-inf"'),
        (math.nan, '"nan"'),
        (np.float64("inf"), '"inf"'),
        (3.5, "3.5"),
        (7, "7"),
        (np.array([1.0, math.inf]), '[1.0, "inf"]'),
        (Undefined("no records"), '"undefined: no records"'),
        ({1: (math.inf, None)}, '{"1": ["inf", null]}'),
        (Result(math.inf, [2.0]), '{"epsilon": "inf", "values": [2.0]}'),
        (
            [Result(1.0, {"a": Undefined("no")})],
            '[{"epsilon": 1.0, "values": {"a": "undefined: no"}}]',
        ),
    ],
)
def test_what_json_has_no_number_for_is_a_word(
    value: object, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.dumps(to_json(value), allow_nan=False) == text
    show_json(value)
    assert json.loads(capsys.readouterr().out) == json.loads(text)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_files_are_json_or_not_written(tmp_path: Path, value: float) -> None:
    path = tmp_path / "file"
    for write in (write_json, append_row):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write(path, {"epsilon": value})
        assert not path.exists()


def test_a_difference_is_undefined_if_one_of_its_numbers_is() -> None:
    why, other = Undefined("why"), Undefined("other")
    assert minus(3.0, 1.0) == 2.0
    assert minus(why, 1.0) is why
    assert minus(1.0, why) is why
    assert minus(why, other) is why
