"""The page: every section, nothing fetched, and no name that is taken for markup."""

import base64
import hashlib
import json
import math
import re
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from plotly import graph_objects

from plumbline.experiments import Recipe
from plumbline.experiments.recipe import FoundPart
from plumbline.report import figure_names, figures, read, write
from plumbline.report.curve_figures import Line, over_steps
from plumbline.report.estimates import error_bars
from plumbline.report.measured import Curve
from plumbline.report.next_steps import next_steps
from plumbline.report.page import VERDICT, page, script_json
from plumbline.report.reading import shown_metric
from plumbline.report.section import Figure, Grid, Html, Section, Tabs
from plumbline.report.sections import SECTIONS, above_the_fold, epsilons, spending
from plumbline.report.tiles import tiles_of
from tests.report.made import ACCURACY, METHODS, comparison

NASTY = "<script>alert(1)</script>"
TOKEN = re.compile(r"^@(text|muted|surface|raised|line|grid|c[1-7])(/\d+)?$")
DOCS = Path(__file__).parents[2] / "docs"


def sections(folder: Path) -> dict[str, Section]:
    study = read(folder)
    return {one.name: one for make in SECTIONS if (one := make(study)) is not None}


def figures_of(parts: Any) -> list[Figure]:
    found: list[Figure] = []
    for part in parts:
        if isinstance(part, Figure):
            found.append(part)
        if isinstance(part, Tabs):
            found += [one for own in part.panels.values() for one in figures_of(own)]
    return found


class Markup(HTMLParser):
    """The elements of a page, its text, and what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.json = ""
        self._in_figures = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.append(tag)
        self._in_figures = named.get("id") == "figures"
        if named.get("id"):
            self.ids.append(str(named["id"]))
        if tag == "a":
            self.links.append(str(named.get("href")))
        elif named.get("src") or named.get("href"):
            self.fetched.append(str(named.get("src") or named.get("href")))

    def handle_data(self, data: str) -> None:
        if self._in_figures:
            self.json += data
            self._in_figures = False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return comparison(tmp_path_factory.mktemp("page") / "c", tuning=True, epsilons=[3.0, 1.0])


@pytest.fixture(scope="module")
def markup(folder: Path) -> Markup:
    return Markup(page(read(folder)))


def test_a_full_comparison_has_every_section(folder: Path) -> None:
    names = [make.__module__.rpartition(".")[2] for make in SECTIONS]
    assert list(sections(folder)) == [name for name in names if name not in ("learned", "sweep")]


def test_a_single_run_leads_with_what_was_learned(folder: Path) -> None:
    run = next(path for path in folder.iterdir() if path.name.startswith("dpsgd-seed0"))
    text, study = page(read(run)), read(run)
    found = sections(run)
    assert next(iter(found)) == "learned"
    assert "results" not in found
    delta = '<span class="whole">1e-5),</span>'  # no line ends in it
    assert f"At epsilon 3.40 (delta {delta} dpsgd is right for 78.0% of the test records" in text
    order = [text.index(one) for one in ('class="tiles"', 'id="learned-groups"', 'class="next"')]
    assert order == sorted(order)
    (listed,) = re.findall(r'<ol class="next">.*?</ol>', text, flags=re.S)
    assert listed.count("<li>") == len(next_steps(study))
    assert f"plumbline compare {run} --epsilon 1,3,8" in re.sub("<[^>]*>", "", listed)
    assert {"learned-groups", "reliability-0"} <= set(figure_names(study))


def test_not_covered_is_said_once_and_marked_where_it_applies(folder: Path) -> None:
    text = re.sub(
        r"<script.*?</script>|<div class=.statement.*?</section>",
        "",
        page(read(folder)),
        flags=re.S,
    )
    assert len(re.findall("Not covered by ε", text)) == 1
    assert text.count('class="dagger"') > 5


def test_what_was_not_measured_has_no_section(tmp_path: Path) -> None:
    rows = METHODS[1:2]
    found = sections(comparison(tmp_path / "c", methods=rows, readings=False, groups=("all",)))
    assert list(found) == [
        "results", "reliability", "statement", "spending", "curves", "settings",
    ]  # fmt: skip


def test_what_epsilon_does_not_cover_is_marked(folder: Path) -> None:
    covered = {name for name, section in sections(folder).items() if section.not_covered is None}
    assert covered == {"statement", "spending", "settings"}
    found = sections(folder)
    assert "raw gradients" in str(found["norms"].not_covered)
    assert "test records" in str(found["results"].not_covered)
    assert found["sensitivity"].not_covered == "trials are not charged"


def test_every_figure_has_a_sentence_a_table_and_a_name_of_its_own(folder: Path) -> None:
    figures = [one for section in sections(folder).values() for one in figures_of(section.parts)]
    assert len({one.name for one in figures}) == len(figures) > 30
    for one in figures:
        assert one.sentence.endswith(".")
        assert one.data.rows, one.name
        assert {len(row) for row in one.data.rows} == {len(one.data.head)}, one.name
        assert any(len(trace.get("x", [])) for trace in one.traces), one.name


def test_plotly_accepts_every_figure(folder: Path) -> None:
    def resolved(value: Any, key: str = "") -> Any:
        """With a colour in place of every token, as the page does."""
        if isinstance(value, str) and key.endswith("color"):
            assert TOKEN.match(value), value
            return "#123456"
        if key == "colorscale":
            assert all(TOKEN.match(tint) for _, tint in value)
            return [[at, "#123456"] for at, _ in value]
        if isinstance(value, dict):
            return {name: resolved(part, name) for name, part in value.items()}
        return [resolved(part, key) for part in value] if isinstance(value, list) else value

    for section in sections(folder).values():
        for one in figures_of(section.parts):
            drawn = {"data": list(one.traces), "layout": dict(one.layout)}
            graph_objects.Figure(resolved(drawn))


def test_what_has_no_section_of_its_own_is_shown_all_the_same(folder: Path) -> None:
    found = sections(folder)["others"]
    figures = figures_of(found.parts)
    assert {one.data.head[-1] for one in figures} == {"clipped", "<loudest>"}
    (table,) = [part for part in found.parts if isinstance(part, Grid)]
    assert table.rows == [["of / it", "3", "3", "3"]]
    assert "&lt;loudest&gt;" in "".join(p.markup for p in found.parts if isinstance(p, Html))


def test_the_bias_is_shown_by_norm_relative_norm_and_angle(folder: Path) -> None:
    shown = {one.name: one for one in figures_of(sections(folder)["bending"].parts)}
    assert shown["bending-bias"].data.head[2:] == ["norm", "relative", "angle (°)"]
    row = next(row for row in shown["bending-bias"].data.rows if row[0] == "dpsgd")
    assert row == ["dpsgd", "5", "1.55", "0.776", "38.7"]
    assert {"bias", "relative", "angle"} <= set(shown["bending-vectors-full"].data.head)


def test_the_page_is_one_file_that_fetches_nothing(folder: Path, markup: Markup) -> None:
    path = write(folder)
    assert path == folder / "report.html"
    assert path.stat().st_size < 8_000_000
    assert all(one.startswith("data:") for one in markup.fetched)
    assert markup.tags.count("link") == 1
    assert "default-src 'none'" in path.read_text(encoding="utf-8")[:2000]


def test_the_policy_allows_the_scripts_of_the_page_by_their_hashes_and_no_others(
    folder: Path,
) -> None:
    text = write(folder).read_bytes().decode()
    (rule,) = re.findall(r"script-src ([^;]*);", text)
    inline = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert "\r" not in text  # which a browser would take out before it hashes
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in inline]
    assert len(digests) == 3
    assert rule.split() == [f"'sha256-{digest}'" for digest in digests]


def test_every_link_of_the_page_leads_somewhere_in_it(markup: Markup) -> None:
    assert len(set(markup.ids)) == len(markup.ids)
    assert {link.removeprefix("#") for link in markup.links} <= set(markup.ids)


def test_the_page_can_be_written_elsewhere(folder: Path, tmp_path: Path) -> None:
    assert write(folder, tmp_path / "a" / "b.html") == tmp_path / "a" / "b.html"


def test_a_single_run_has_a_page(folder: Path) -> None:
    runs = [path for path in folder.iterdir() if path.name.startswith("adapt")]
    assert len(runs) == 4  # two seeds, two epsilons
    for run in runs:
        assert "One run" in write(run).read_text(encoding="utf-8")


def test_names_are_escaped_in_markup_and_in_figures(tmp_path: Path) -> None:
    rows = [*METHODS[:2], METHODS[2] | {"label": NASTY}]
    groups = (NASTY, '"><img src=x onerror=alert(1)>')
    made = comparison(
        tmp_path / "c", methods=rows, groups=groups, accuracy={**ACCURACY, NASTY: 0.83}
    )
    text = page(read(made))
    harmless = Markup(text)
    plain = Markup(page(read(comparison(tmp_path / "d"))))
    assert sorted(harmless.tags) == sorted(plain.tags)
    assert NASTY not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    stored = json.loads(harmless.json)
    names = {trace.get("name") for one in stored.values() for trace in one["data"]}
    # Plotly reads markup in its texts: there the name is escaped once more.
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in names
    assert NASTY not in names


def test_no_character_of_the_figures_can_end_their_element() -> None:
    text = script_json({"name": "</script><!--&"})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"name": "</script><!--&"}


def test_a_name_is_never_taken_for_a_colour(tmp_path: Path) -> None:
    rows = [METHODS[0], METHODS[1] | {"label": "@text"}]
    stored = json.loads(
        Markup(page(read(comparison(tmp_path / "c", methods=rows, baseline=None)))).json
    )
    names = {trace.get("name") for one in stored.values() for trace in one["data"]}
    assert "@text" in names  # the page replaces colours only


def test_undefined_numbers_do_not_break_a_page(tmp_path: Path) -> None:
    made = comparison(tmp_path / "c")
    for path in made.glob("dpsgd*/diagnostics.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows[1:]:
            row["bias"] |= {"magnitude": "undefined: zero", "relative_direction": "undefined: zero"}
            row["symmetry"]["plane"] = "undefined: nothing"
            row["norms"]["histogram"] = {"edges": [], "counts": {}}
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for path in made.glob("dpsgd*/result.json"):
        stored = json.loads(path.read_text())
        stored["report"]["by_group"]["male"]["accuracy"] = "undefined: the group has no records"
        path.write_text(json.dumps(stored))
    assert "undefined" not in Markup(page(read(made))).json


def test_the_recipe_on_the_page_is_the_recipe(folder: Path) -> None:
    import html

    text = page(read(folder))
    found = re.search(r"<pre><code>(name = .*?)</code></pre>", text, re.DOTALL)
    assert found is not None
    assert Recipe.of(tomllib.loads(html.unescape(found[1]))) == read(folder).recipe


def test_the_paper_beside_the_tuned_settings_shares_a_colour(tmp_path: Path) -> None:
    from plumbline.report import figures

    rows = [
        {"name": "dpsgd", "origin": "paper"},
        {"name": "dpsgd", "origin": "tuned", "learning_rate": 0.9},
        {"name": "bam"},
    ]
    study = read(comparison(tmp_path / "c", methods=rows, baseline=None))
    paper, tuned, other = study.titles
    assert figures.colour(study, paper) == figures.colour(study, tuned)
    assert figures.colour(study, other) != figures.colour(study, tuned)
    assert [figures.dash(study, one) for one in study.titles] == ["dash", "solid", "solid"]


def test_every_note_is_in_the_documentation(folder: Path) -> None:
    headings = re.findall(r"^## (.*)$", (DOCS / "report.md").read_text(encoding="utf-8"), re.M)
    run = next(path for path in folder.iterdir() if path.name.startswith("dpsgd-seed0"))
    learned = sections(run)["learned"]
    noted = [VERDICT, learned, *sections(folder).values()]
    headings.remove("What was swept")  # test_sweep.py has a comparison with a sweep
    assert [one.title for one in noted] == headings
    for one in noted:
        assert one.note.endswith(".")
        assert (DOCS.parent / one.more).is_file(), one.more


def test_runs_of_very_different_lengths_share_an_axis() -> None:
    short, long = (
        Curve([step, 2 * step], [0.1, 0.2], [0.1, 0.2], [0.1, 0.2]) for step in (90, 900)
    )
    lines = {"short": Line(short, "@c1"), "long": Line(long, "@c2")}
    drawn = over_steps("x", "X", "X.", lines, {}, what="x")
    assert [trace["x"] for trace in drawn.traces] == [[50.0, 100.0], [50.0, 100.0]]
    assert drawn.layout["xaxis"]["title"]["text"] == "share of the run (%)"
    alike = over_steps("x", "X", "X.", {"short": Line(short, "@c1")}, {}, what="x")
    assert alike.traces[0]["x"] == [90, 180]


def test_more_than_seven_groups_are_told_apart() -> None:
    places = range(20)
    assert len({(figures.group_colour(k), figures.group_symbol(k)) for k in places}) == 20
    assert len({(figures.group_colour(k), figures.group_dash(k)) for k in places}) == 20
    keys = figures.group_keys([str(place) for place in places])
    assert len({(key.colour, key.mark) for key in keys}) == 20


def test_of_many_groups_those_are_drawn_that_the_reader_asks_for(tmp_path: Path) -> None:
    groups = tuple(f"ward {k}" for k in range(9))
    folder = comparison(tmp_path / "c", groups=groups)
    run = next(path for path in folder.iterdir() if path.name.startswith("dpsgd-seed0"))
    result = run / "result.json"
    stored = json.loads(result.read_text())
    bins = stored["report"]["reliability"]
    stored["report"]["reliability_by_group"] = dict.fromkeys(groups, bins)
    result.write_text(json.dumps(stored))
    _, (first, second) = above_the_fold(read(run))
    assert [key.shown for key in second.keys] == [True] + 9 * [False]
    assert first.height > 340
    pressed = re.findall(r'aria-pressed="(true|false)" data-key="ward', page(read(run)))
    assert pressed[:9] == 9 * ["false"]


def test_tiles_that_epsilon_does_not_cover_are_marked(folder: Path) -> None:
    run = next(path for path in folder.iterdir() if path.name.startswith("dpsgd-seed0"))
    for place in (folder, run):
        marked = {one.name: not one.covered for one in tiles_of(read(place))}
        assert marked.pop("privacy") is False
        assert all(marked.values())
        text = page(read(place))
        assert text.count('class="dagger"', 0, text.index("</dl>")) == 1 + len(marked)


def test_a_comparison_begins_with_a_figure(folder: Path, tmp_path: Path) -> None:
    name, (first,) = above_the_fold(read(folder))
    assert (name, first.name) == ("epsilons", "headline")
    one = comparison(tmp_path / "c")
    name, (first,) = above_the_fold(read(one))
    assert (name, first.name) == ("results", "headline")
    text = page(read(one))
    assert text.index('id="headline"') < text.index('id="not-covered"')


def test_utility_against_epsilon_has_bars_and_the_lines_of_no_privacy_and_of_the_baseline(
    tmp_path: Path,
) -> None:
    folder = comparison(tmp_path / "c", epsilons=[3.0, 1.0])
    for path in folder.glob("*/result.json"):
        stored = json.loads(path.read_text())
        for values in (stored["report"]["overall"], *stored["report"]["by_group"].values()):
            values["baseline accuracy"] = 0.7
        path.write_text(json.dumps(stored))
    study = read(folder)
    drawn = {trace["name"]: trace for trace in epsilons.figure(study, "accuracy").traces}
    assert list(drawn) == [*study.titles, "baseline"]
    assert drawn["baseline"]["y"] == [70.0, 70.0]
    assert drawn["nonprivate"]["line"]["dash"] == "dot"
    assert len(set(drawn["nonprivate"]["y"])) == 1
    for title in study.private:
        bars = drawn[title]["error_y"]
        assert bars["visible"]
        assert len(bars["array"]) == len(drawn[title]["x"]) == len(study.epsilons)
        assert all(
            y + more <= 100 for y, more in zip(drawn[title]["y"], bars["array"], strict=True)
        )
        assert all(y >= less for y, less in zip(drawn[title]["y"], bars["arrayminus"], strict=True))
    starts = {drawn[title]["x"][0] for title in study.private}
    assert len(starts) == len(study.private)  # side by side, so that no bar hides another


def test_bars_end_where_no_value_can_be() -> None:
    shown = shown_metric("accuracy")
    bars = error_bars([79.0, 50.0], [245.0, 3.0], (shown.least, shown.most))
    assert (bars["array"], bars["arrayminus"]) == ([21.0, 3.0], [79.0, 3.0])
    assert shown_metric("loss").most == math.inf
    assert shown_metric("r2").least == -math.inf


def test_what_was_asked_before_the_first_step_is_not_drawn_as_free(folder: Path) -> None:
    study = read(folder)
    plain = spending.section(study)
    assert plain is not None
    assert figures_of(plain.parts)[0].traces[0]["x"][0] == 0
    found = FoundPart(
        run="schema-0",
        release={
            "sampling": {"kind": "full_batch"},
            "queries": [{"name": "rows", "sensitivity": 1.0, "noise_multiplier": 9.0}],
            "delta": 1e-7,
        },
        columns=(),
        records=True,
    )
    data = study.recipe.data.model_copy(update={"found": found})
    asked = replace(study, recipe=study.recipe.model_copy(update={"data": data}))
    drawn = spending.section(asked)
    assert drawn is not None
    assert figures_of(drawn.parts)[0].traces[0]["x"][0] > 0
