"""Results as plain values."""

import json

from plumbline.fairness import Gap, Undefined, to_json
from plumbline.fairness.results import defined


def test_an_undefined_number_says_why() -> None:
    assert str(Undefined("nobody is there")) == "undefined: nobody is there"
    assert to_json(Undefined("nobody is there")) == "undefined: nobody is there"
    assert defined({"a": 0.5, "b": Undefined("x"), "c": 0.0}) == {"a": 0.5, "c": 0.0}


def test_plain_values_are_json() -> None:
    gap = Gap(Undefined("why"), None, None, ("a", "b"))
    value = to_json({1: gap, "list": [gap, (1, 2.5)], "none": None})
    expected = {"value": "undefined: why", "highest": None, "lowest": None, "left_out": ["a", "b"]}
    assert value == {"1": expected, "list": [expected, [1, 2.5]], "none": None}
    assert json.loads(json.dumps(value, allow_nan=False)) == value
