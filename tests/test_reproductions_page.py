"""The page of verdicts is what the kept results say, to the letter."""

import re
from xml.etree import ElementTree

import pytest

from benchmarks.claim_pictures import COLOURS, swept
from benchmarks.reproductions import (
    IMAGES,
    KEPT,
    LEARNED,
    MEASURED,
    METHODS,
    PAGE,
    kept,
    learned,
    not_made,
    pages,
)
from plumbline.experiments.paper_verdicts import PaperVerdict
from plumbline.experiments.papers import names


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    return {str(path): text for path, text in pages().items()}


def test_pages_are_written_from_kept_results(written: dict[str, str]) -> None:
    """Every number and verdict on them: run `python -m benchmarks.reproductions`."""
    assert str(PAGE) in written
    for path, text in written.items():
        with open(path, encoding="utf-8") as file:
            assert file.read() == text, f"{path}: run `python -m benchmarks.reproductions`"


def test_every_kept_result_is_of_a_recipe_and_on_the_page(written: dict[str, str]) -> None:
    found = kept()
    assert {one.name for one in found} <= set(names())
    assert {path.stem for path in KEPT.iterdir()} >= {f"{one.name}-{one.size}" for one in found}
    others = not_made(found)
    assert {one.name for one in [*found, *others]} == set(names())
    for one in found:
        assert f"## {one.plan.title}\n" in written[str(PAGE)]
        assert one.commits
    for one in [*found, *others]:
        for says in one.claims:
            assert says in written[str(PAGE)]


def test_what_we_learned_types_no_result(written: dict[str, str]) -> None:
    """Its numbers come from results; what is typed are settings, sizes and counts."""
    text = LEARNED.read_text(encoding="utf-8")
    assert learned(kept()) in written[str(PAGE)]
    typed = re.sub(r"\{[^}]+\}", "", text)
    assert not re.findall(r"\d+\.\d{2,}", typed)  # the papers print fewer digits


def test_pages_of_methods_end_with_what_was_measured() -> None:
    for name in ("bam", "dp_sat", "dpsgd", "global_adapt", "dpsgd_f", "pre_clip_noise"):
        text = (METHODS / f"{name}.md").read_text(encoding="utf-8")
        assert text.count(f"\n{MEASURED}\n") == 1
        assert "\n## " not in text.split(f"\n{MEASURED}\n")[1]


def test_pages_of_methods_have_the_claims_that_compare_their_rows() -> None:
    """Also where the rows are the best of a sweep, or of several epsilons."""
    for name, says in (
        ("bam", "BAM is more accurate than DP-SAT"),
        ("dp_sat", "BAM is more accurate than DP-SAT"),
        ("dp_sat", "DP-SAT is more accurate than DP-SGD at epsilon 3"),
        ("inner_outer", "Inner momentum raises the accuracy"),
        ("pre_clip_noise", "Mixture: flat clipping ends farther from the optimum"),
    ):
        assert says in (METHODS / f"{name}.md").read_text(encoding="utf-8").split(MEASURED)[1]


def test_the_picture_of_verdicts_counts_every_claim(written: dict[str, str]) -> None:
    picture = ElementTree.fromstring(written[str(IMAGES / "claims-by-verdict.svg")])
    shown = [int(one.text) for one in picture.iter() if one.text and one.text.isdigit()]
    found = kept()
    assert sum(shown) == sum(len(one.claims) for one in [*found, *not_made(found)])


def test_verdicts_of_claims_have_a_colour_each() -> None:
    of_values = {PaperVerdict.NOT}  # a claim is contradicted instead
    assert set(COLOURS) == set(PaperVerdict) - of_values
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_the_picture_of_differences_names_the_claims_it_draws(written: dict[str, str]) -> None:
    picture = ElementTree.fromstring(written[str(IMAGES / "claims-by-difference.svg")])
    drawn = sum(one.tag.endswith("circle") for one in picture.iter())
    claims = {says for one in kept() for says in one.claims}
    named = [
        one.text for one in picture.iter() if one.text and one.text.split(": ", 1)[-1] in claims
    ]
    assert 0 < drawn == len(named)


def test_every_sweep_that_is_kept_is_drawn_with_all_of_its_rows(written: dict[str, str]) -> None:
    shown = {one.name: swept(one) for one in kept() if swept(one)}
    assert "000-table-1" in shown
    for name, lines in shown.items():
        assert f"](images/sweep-{name}.svg)" in written[str(PAGE)]
        picture = ElementTree.fromstring(written[str(IMAGES / f"sweep-{name}.svg")])
        assert {one.text for one in picture.iter() if one.text} >= set(lines)
        drawn = sum(one.tag.endswith("circle") for one in picture.iter())
        assert drawn == sum(map(len, lines.values())) > len(lines)
