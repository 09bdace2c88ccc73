"""A table's schema from the command line: declared, found privately, or taken from the rows."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plumbline.data import read_encoding, read_schema
from plumbline.data import table as load_table
from plumbline.experiments import Recipe
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.statement import GIVEN
from tests.cli.calling import Called, people

RUN = ["--data", "people.csv", "--target", "income", "--sensitive", "sex", "--epochs", "0.5"]
DECLARED = ["--categories", "sex=f,m", "--categories", "income=high,low", "--records", "2500"]
DECLARED += ["--categories", "city=Lima,Oslo,Rome", "--range", "age=0:120", "--range", "hours=0:80"]


@pytest.fixture(autouse=True)
def table(tmp_path: Path) -> Path:
    return people(tmp_path / "people.csv", 2500)


def run_in(out: str) -> Path:
    (folder,) = Path(out, "people").glob("Global-Adapt-*")
    return folder


def _trained_on(path: Path) -> int:
    """The exact number of training rows, which nobody may read anywhere."""
    options: dict[str, Any] = {"target": "income", "from_data": True, "seed": 1}
    return len(load_table(path, **options).train)


def stated(folder: Path) -> str:
    return " ".join((folder / "statement.txt").read_text().split())


def result_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def test_found_privately_is_the_default(call: Called, tmp_path: Path) -> None:
    # Seeded, since with noise the exact number of rows may come out by chance.
    assert call("train", *RUN, "--epsilon", "8", "--seed", "1") == 0
    folder = run_in("runs")
    assert "Found privately about the table: about " in call.err
    assert "city is Lima, Oslo, Rome, or another" in call.err
    assert "income is high, low (other rows take no part)" in call.err
    encoding = read_encoding(folder / "encoding.json")
    assert encoding.not_covered == ()
    assert encoding.classes == ("high", "low")
    words = stated(folder)
    assert GIVEN not in words
    assert "epsilon = 8.00" in words
    assert "which of 3 columns of the table hold numbers (noise from a seed), with noise" in words
    assert "the number of records and the numbers of records by category or range" in words
    assert "Of delta, 0.0000001 is set aside" in words
    assert "was released with noise, as one of the answers above" in words
    assert "the answers to what was asked before training" in words
    assert "2,500" not in words
    assert f"{_trained_on(tmp_path / 'people.csv'):,}" not in words
    result = result_of(folder)
    assert result["schema"] == "found privately"
    assert 7.9 < result["epsilon"] <= 8
    book = Ledger.read(folder / "ledger")
    (schema,) = (run for run in book.runs() if run.startswith("schema-"))
    assert book.epsilon(1e-6) == pytest.approx(result["epsilon"])
    (home,) = folder.parent.glob("schema-*")
    assert Ledger.read(home / "schema.ledger").runs() == {schema}
    assert call("verify", folder, "--data") == 0
    assert "and what was asked before them" in " ".join(call.out.split())
    assert call("verify", folder, "--model-card", "card.md") == 0
    assert "what it cost to find the table's ranges" in Path("card.md").read_text()
    assert call("report", folder) == 0
    page = (folder / "report.html").read_text()
    assert "which of 3 columns of the table hold numbers" in page
    assert call("predict", folder, "--data", "people.csv") == 0


def rarely(table: Path, share: int, rare: str = "high") -> None:
    """The table with one high income in so many rows, and the others low."""
    header, *lines = table.read_text().splitlines()
    common = "low" if rare == "high" else "high"
    lines = [
        line.rpartition(",")[0] + "," + (rare if k % share == 0 else common)
        for k, line in enumerate(lines)
    ]
    table.write_text("\n".join([header, *lines]) + "\n")


def test_a_rare_class_is_one_of_all_others(call: Called, table: Path) -> None:
    """3 % of the rows: less than can be found by name, and the run goes on."""
    rarely(table, 33)
    assert call("train", *RUN, "--epsilon", "8", "--seed", "1") == 0
    words = " ".join(call.err.split())
    assert "Of income, only 'low' was found: all its other values together are the class" in words
    assert "add --categories income=low,B" in words
    folder = run_in("runs")
    assert read_encoding(folder / "encoding.json").classes == ("low", "(other)")
    result = result_of(folder)
    assert result["classes"] == ["low", "(other)"]
    assert result["rows"]["left_out"] == 0  # all values are in one of the two
    assert isinstance(result["report"]["overall"]["auc"], float)
    assert call("verify", folder, "--data", "--model-card", "card.md") == 0
    assert call("report", folder) == 0
    assert "only 'low' was found" in Path("card.md").read_text()
    assert "only &#x27;low&#x27; was found" in (folder / "report.html").read_text()
    assert call("predict", folder, "--data", "people.csv", "--json") == 0
    assert list(call.json["predicted"]) == ["low", "(other)"]
    assert "probability_(other)" in Path("predictions.csv").read_text().splitlines()[0]
    # Whoever knows its name gets it.
    named = ["--categories", "income=low,high", "--out", "named"]
    assert call("train", *RUN, "--epsilon", "8", "--seed", "1", *named) == 0
    assert "was found: all" not in call.err
    assert read_encoding(run_in("named") / "encoding.json").classes == ("low", "high")


def test_a_rare_class_in_a_comparison(call: Called, table: Path) -> None:
    rarely(table, 33)
    few = ["--methods", "dpsgd", "--trials", "0", "--seeds", "1", "--workers", "1"]
    assert call("compare", *RUN, "--epsilon", "6,9", *few) == 0
    assert "Of income, only 'low' was found" in call.err
    assert "Delta is 1e-6, as the number of rows is private" in call.err
    page = Path("runs/people/report.html").read_text()
    assert "only &#x27;low&#x27; was found" in page


def test_where_no_group_is_found_all_rows_are_one(call: Called, table: Path) -> None:
    header, *lines = table.read_text().splitlines()
    cells = [line.split(",") for line in lines]
    lines = [",".join([*row[:2], f"group {k % 50}", *row[3:]]) for k, row in enumerate(cells)]
    table.write_text("\n".join([header, *lines]) + "\n")
    assert call("train", *RUN, "--epsilon", "8", "--seed", "1") == 0
    assert "No group of sex was found, so that all rows are one group." in call.err
    assert "add --categories sex=A,B" in call.err
    assert list(result_of(run_in("runs"))["report"]["by_group"]) == ["(other)"]
    assert call("predict", run_in("runs"), "--data", "people.csv") == 0


def test_rows_left_out_are_on_the_page_and_the_card(call: Called, table: Path) -> None:
    header, *lines = table.read_text().splitlines()
    lines = [line.rpartition(",")[0] + "," if k % 10 == 0 else line for k, line in enumerate(lines)]
    table.write_text("\n".join([header, *lines]) + "\n")
    assert call("train", *RUN, "--epsilon", "8", "--seed", "1") == 0
    assert "250 of 2,500 rows (10.0 %) are left out: no value of income in 250." in call.err
    folder = run_in("runs")
    rows = result_of(folder)["rows"]
    said = f"Of {rows['test_rows']:,} test rows, {rows['left_out']:,} ("
    assert 0 < rows["left_out"] < rows["test_rows"]
    assert call("report", folder) == 0
    assert call("verify", folder, "--model-card", "card.md") == 0
    for text in ((folder / "report.html").read_text(), Path("card.md").read_text()):
        assert said in text


def test_the_same_command_asks_nothing_again(call: Called) -> None:
    assert call("train", *RUN, "--epsilon", "8", "--ledger", "shared") == 0
    before = Ledger.read("shared").position
    assert call("train", *RUN, "--epsilon", "8", "--ledger", "shared") == 0
    assert "This run is finished" in call.err
    assert Ledger.read("shared").position == before
    schemas = [run for run in Ledger.read("shared").runs() if run.startswith("schema-")]
    assert len(schemas) == 1


def test_one_release_for_a_comparison_at_the_smallest_epsilon(call: Called) -> None:
    few = ["--methods", "nonprivate,dpsgd", "--trials", "1", "--seeds", "1", "--workers", "1"]
    assert call("compare", *RUN, "--epsilon", "6,9", *few) == 0
    ledgers = list(Path("runs/people").glob("*/ledger"))
    assert len(ledgers) >= 4
    charged = set()
    for path in ledgers:
        book = Ledger.read(path)
        (run,) = (one for one in book.runs() if one.startswith("schema-"))
        charged.add(json.dumps([run, book.entries(run)]))
    assert len(charged) == 1
    (home,) = Path("runs/people").glob("schema-*")
    assert 0.29 < Ledger.read(home / "schema.ledger").epsilon(1e-6) <= 0.05 * 6
    encodings = {path.read_text() for path in Path("runs/people").glob("*/encoding.json")}
    assert len(encodings) == 1
    assert call("verify", "runs/people") == 0


def test_private_selection_counts_it_once(call: Called) -> None:
    few = ["--methods", "dpsgd", "--trials", "2", "--seed", "1", "--private-selection"]
    assert call("compare", *RUN, "--epsilon", "8", *few) == 0
    (folder,) = Path("runs/people").glob("DP-SGD--selected-*")
    assert "Before all candidates it was asked, with noise" in stated(folder)
    assert result_of(folder)["epsilon"] <= 8


def test_declared_nothing_is_asked(call: Called) -> None:
    assert call("train", *RUN, *DECLARED) == 0
    folder = run_in("runs")
    words = stated(folder)
    assert GIVEN not in words
    assert "The number of records, 2,000, was stated to be public knowledge." in words
    assert "Stated without looking at the data: the categories of city, sex; the lowest" in words
    assert "Before training" not in words
    assert result_of(folder)["schema"] == "declared"
    assert not list(Path("runs/people").glob("schema-*"))
    assert call("verify", folder, "--data", "--model-card", "card.md") == 0
    assert "were declared, and are taken to be public" in Path("card.md").read_text()


def test_from_the_data_the_headline_says_so(call: Called) -> None:
    assert call("train", *RUN, "--from-data") == 0
    folder = run_in("runs")
    headline = " ".join((folder / "statement.txt").read_text().split("\n\n")[0].split())
    assert headline.endswith(GIVEN)
    assert result_of(folder)["schema"] == "from the data"
    assert call("verify", folder, "--model-card", "card.md") == 0
    card = Path("card.md").read_text()
    assert f"**{GIVEN}**" in card.split("## Privacy statement")[0]
    assert call("report", folder) == 0
    page = (folder / "report.html").read_text()
    assert "This holds for the weights given what was taken" in page


def test_a_schema_file_is_written_edited_and_used(call: Called, tmp_path: Path) -> None:
    assert call("data", "schema", "people.csv") == 0
    text = Path("people.schema.toml").read_text()
    assert "categories = [" not in text.replace('# categories = ["a", "b"]', "")
    edited = text.replace("# records = 10000", "records = 2500")
    Path("people.schema.toml").write_text(
        edited.replace("# range = [0, 100]", "range = [0, 120]", 1)
    )
    schema = read_schema("people.schema.toml")
    assert (schema.records, schema["age"].range, schema["hours"].kind) == (2500, (0, 120), "number")
    saved = ["--schema", "people.schema.toml", "--save-recipe", "same.toml"]
    assert call("compare", *RUN, *saved) == 0
    options = Recipe.read(tmp_path / "same.toml").data.options
    assert options["ranges"] == {"age": [0, 120]}
    assert options["records"] == 2500
    assert options["numeric"] == ["hours"]
    assert call("data", "schema", "people.csv") == 2
    assert "is there already" in call.err
    assert call("data", "schema", "people.csv", "--from-data", "--out", "whole.toml") == 0
    whole = read_schema("whole.toml")
    assert whole["city"].categories == ("Lima", "Oslo", "Rome")
    assert whole.records == 2500
    assert call("train", *RUN, "--schema", "whole.toml") == 0
    assert result_of(run_in("runs"))["schema"] == "declared"


def bad() -> Iterator[tuple[list[str], str]]:
    yield ["--range", "age=120:0"], "low must be below high"
    yield ["--range", "age"], "as in age=0:120"
    yield ["--range", "size=0:1"], "called 'size'"
    yield ["--range", "age=0:1", "--range", "age=0:2"], "--range is given twice for 'age'"
    yield ["--range", "age=0:1", "--categories", "age=1,2"], "a column is one or the other"
    yield ["--categories", "sex"], "as in sex=F,M"
    yield ["--categories", "sex=f,f"], "each once"
    yield ["--categories", "income=high"], "one value only"
    yield ["--records", "0"], "records is 0"
    yield ["--from-data", "--records", "5"], "give one of the two"
    yield ["--schema", "none.toml"], "Cannot read the schema none.toml"
    yield ["--schema", "odd.toml"], "no field called 'rows'"
    yield ["--schema", "odder.toml"], "no field of the number 'age' called 'categories'"
    yield ["--schema", "numbers.toml", "--categories", "age=1,2"], "is a number in the schema"
    yield ["--batch", "80"], "--records N"
    yield ["--epsilon", "0.1", "--model", "chen-mnist"], "cannot take the data"


@pytest.mark.parametrize(("options", "words"), list(bad()))
def test_bad_input_is_one_line_and_nothing_is_charged(
    call: Called, tmp_path: Path, options: list[str], words: str
) -> None:
    Path("odd.toml").write_text("rows = 3\n")
    Path("odder.toml").write_text('[columns.age]\nkind = "number"\ncategories = ["a"]\n')
    Path("numbers.toml").write_text("[columns.age]\nrange = [0, 1]\n")
    assert call("train", *RUN, *options) == 2
    assert words in call.err
    assert len(call.err.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("*ledger*"))


def test_a_target_of_words_with_a_range_is_told_with_all_that_stands_in_the_way(
    call: Called, tmp_path: Path
) -> None:
    assert call("train", *RUN, "--range", "income=0:1") == 2
    assert "income: 2,500 of its cells (100 %) are no numbers" in call.err
    assert not list(tmp_path.rglob("*ledger*"))


def test_too_small_an_epsilon_says_what_to_declare(call: Called, tmp_path: Path) -> None:
    assert call("train", *RUN, "--epsilon", "0.1") == 2
    assert "--categories income=A,B" in call.err
    assert "Nothing was charged" in call.err  # since no class can have so many rows
    assert "Oslo" not in call.err
    assert call("train", *RUN, "--epsilon", "0.8") == 2  # half of the rows are too few
    assert "Nothing was charged" in call.err
    assert not list(tmp_path.rglob("*ledger*"))
    head, *rows = (tmp_path / "people.csv").read_text().splitlines()
    city = head.split(",").index("city")
    for number, row in enumerate(rows):
        cells = row.split(",")
        cells[city] = f"Town{number % 40}"
        rows[number] = ",".join(cells)
    (tmp_path / "people.csv").write_text("\n".join([head, *rows]) + "\n")
    known = ["--categories", "income=high,low", "--drop", "age,hours,sex"]
    for _ in range(2):  # half of the rows are enough, and no town has so many
        assert call("train", *RUN, *known, "--epsilon", "1", "--seed", "0") == 2
        assert "Declare what you know: add --" in call.err
        assert "which is spent" in call.err
        assert "Town" not in call.err
    (home,) = Path("runs/people").glob("schema-*")
    book = Ledger.read(home / "schema.ledger")
    assert len(book.runs()) == 1  # asked once, and read the second time
