"""Numbers as text, and a dash for what is not there."""

import html
import math
import re

import pytest

from plumbline import formats
from plumbline.results import Undefined


def test_numbers() -> None:
    assert formats.number(0.12345) == "0.123"
    assert formats.number(0.12345, 0.0456, 2) == "0.12 ± 0.05"
    assert formats.points(0.7812) == "78.1"
    assert formats.points(0.7812, 0.0104) == "78.1 ± 1.0"
    assert formats.percent(0.7812, Undefined("one seed")) == "78.1%"
    assert formats.percent(0.25, digits=0) == "25%"
    assert formats.percent(0.25, 0.01) == "25.0 ± 1.0%"
    assert formats.degrees(38.66) == "39°"
    assert formats.short(12345.6) == "1.23e+04"
    assert formats.short(7) == "7"
    assert [formats.seconds(value) for value in (3.2, 120, 7200)] == ["3 s", "2 min", "2.0 h"]
    assert [formats.tiny(value) for value in (1e-4, 2e-10, 0.5)] == ["1e-4", "2e-10", "0.5"]
    assert formats.angle(0.5) == pytest.approx(60)
    assert formats.angle(-1.0000001) == 180


@pytest.mark.parametrize("value", [None, Undefined("why"), "undefined: why", True, math.nan])
def test_what_is_not_there_is_a_dash(value: object) -> None:
    assert formats.finite(value) is None
    assert formats.angle(value) is None
    for shown in (formats.number, formats.points, formats.percent, formats.short, formats.seconds):
        assert shown(value) == formats.MISSING
    assert formats.degrees(value) == formats.MISSING


def test_a_table_in_markdown() -> None:
    rows = [[formats.cell("a|b\nc"), "1"], ["d", "2"]]
    shown = "| name | n |\n| --- | --- |\n| a\\|b c | 1 |\n| d | 2 |"
    assert formats.markdown(["name", "n"], rows) == shown


def test_markdown_shows_a_name_as_it_is() -> None:
    name = "a_b | <img src=x> [c](d) `e` *f* _g_ &lt; ~~h~~ \\|"
    said = formats.cell(f"{name}\n# \x1b[31m\u202e")
    markdown_it = pytest.importorskip("markdown_it")
    page = markdown_it.MarkdownIt("gfm-like", {"linkify": False}).render(
        formats.markdown(["name"], [[said]])
    )
    (inside,) = re.findall("<td>(.*)</td>", page)
    assert html.unescape(inside) == rf"{name} # \x1b[31m\u202e"


def test_a_block_of_code_holds_any_text() -> None:
    text = "a\n```\n# b\n````\nc"
    markdown_it = pytest.importorskip("markdown_it")
    page = markdown_it.MarkdownIt().render(formats.fenced(text, "text"))
    assert page == f'<pre><code class="language-text">{text}\n</code></pre>\n'


def test_control_characters_are_shown() -> None:
    assert formats.shown("a\x1b]0;b\x07\x9b31m\r\tc\nd é") == r"a\x1b]0;b\x07\x9b31m\r" + "\tc\nd é"
