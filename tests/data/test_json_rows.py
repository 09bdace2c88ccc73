"""Rows as JSON lines: one answer for each line, however the lines arrive."""

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from plumbline.data.json_rows import answers, entry


class Pipe:
    """Bytes that arrive in given pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    def read1(self, most: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def summed(rows: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [{"sum": a + b} for a, b in zip(rows["a"], rows["b"], strict=True)]


LINES = [
    ('{"a": 1, "b": 2}', {"sum": 3}),
    ('{"b": 5, "a": 1, "note": [1]}', {"sum": 6}),
    ("", {"error": "The line is empty."}),
    ("  ", {"error": "The line is empty."}),
    ("secret", {"error": "The line is not JSON."}),
    ('{"a": 1,', {"error": "The line is not JSON."}),
    ("[" * 100_000, {"error": "The line is not JSON."}),
    ('{"a": ' + "1" * 5000 + "}", {"error": "The line is not JSON."}),
    ("[1, 2]", {"error": 'The line is no JSON object, such as {"a": ...}.'}),
    ("null", {"error": 'The line is no JSON object, such as {"a": ...}.'}),
    ('{"a": 1}', {"error": "There is no 'b'; a missing value is null."}),
    ('{"a": {"secret": 1}, "b": 2}', {"error": "'a' is no text, number, true, false or null."}),
]


@given(
    which=st.lists(st.integers(0, len(LINES) - 1), max_size=8),
    cuts=st.lists(st.integers(0, 400), max_size=6),
    end=st.booleans(),
)
def test_one_answer_for_every_line(which: list[int], cuts: list[int], end: bool) -> None:
    text = "\n".join(LINES[k][0] for k in which).encode() + (b"\n" if end and which else b"")
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    found = [one for piece in answers(Pipe(pieces), ["a", "b"], summed) for one in piece]
    expected = [LINES[k][1] for k in which]
    if which and not end and not LINES[which[-1]][0]:
        expected.pop()  # what ends without a line's end and without a character is no line
    assert found == [{"row": row, **said} for row, said in enumerate(expected, 1)]


def test_an_answer_comes_before_the_next_line() -> None:
    given = answers(Pipe([b'{"a": 1, "b": 2}\n{"a"', b': 3, "b": 4}\n']), ["a", "b"], summed)
    assert next(given) == [{"row": 1, "sum": 3}]
    assert next(given) == [{"row": 2, "sum": 7}]
    assert list(given) == []


def test_what_is_said() -> None:
    chances = {"probability_no": 0.75, "probability_yes": 0.25}
    assert entry("no", [0.75, 0.25], ("no", "yes")) == {"prediction": "no", **chances}
    assert entry("1234.5", 1234.5000001, ()) == {"prediction": 1234.5}
