"""Whatever is wrong with a record, no error and no traceback repeats what is in it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.data import as_splits, table
from plumbline.data.table_columns import Categorical, Numeric
from plumbline.data.table_encoding import TableEncoding
from plumbline.data.table_look import look_at
from plumbline.fairness import Outcomes, evaluate
from plumbline.record_errors import RecordError, looked_up
from plumbline.training.step_losses import BadRecords

WORD, NUMBER = "SECRET-7731", 987654321
SECRETS = (WORD, str(NUMBER), "9.87654321e+08", "SECRET")
ROWS = 40


def said(call: Callable[[], Any]) -> str:
    """What an error says, with all that a traceback shows; and that it has no secret."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the words are looked at below
        call()
    shown = "".join(traceback.format_exception(caught.value))
    # The lines of this test and of the code are shown too, and name the secrets' variables only.
    assert [secret for secret in SECRETS if secret in shown] == []
    return str(caught.value)


def csv_with(tmp_path: Path, row: int, cells: str, header: str = "age,city,sex,label") -> Path:
    lines = [f"{20 + k},{'Oslo' if k % 2 else 'Rome'},{'fm'[k % 2]},{'no' if k % 3 else 'yes'}"
             for k in range(ROWS)]  # fmt: skip
    lines[row - 1] = cells
    path = tmp_path / "people.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


DECLARED: dict[str, Any] = {
    "categories": {"city": ["Oslo", "Rome"], "sex": ["f", "m"], "label": ["no", "yes"]},
    "ranges": {"age": (0, 120)},
    "missing": "error",
}
TAKEN = {"from_data": True, "missing": "error"}
LACKS = "has no value, or none of its kind, in row 7"


@pytest.mark.parametrize(
    ("cells", "options", "place"),
    [
        (f"{WORD},Oslo,f,no", DECLARED, f"'age' {LACKS}"),
        (f"{NUMBER}e999,Oslo,f,no", DECLARED, f"'age' {LACKS}"),
        (f"20,Oslo,{WORD},no", {**DECLARED, "sensitive": "sex"}, "'sex' has a value in row 7"),
        (f"20,Oslo,f,{WORD}", DECLARED, "'label' has a value in row 7"),
        (f"20,Oslo,f,no,{WORD}", DECLARED, "Row 7 of"),
        (f"{WORD},,f,no", DECLARED, LACKS),
        (f"{WORD},,f,no", TAKEN, f"'city' {LACKS}"),
        (f"{WORD},Oslo,f,no", TAKEN, "holds numbers, but not in 1 of its cells"),
        (f"{WORD},Oslo,f,no", {**TAKEN, "ranges": {"age": (0, 120)}}, f"'age' {LACKS}"),
        pytest.param(f"20,{WORD * 20_000},f,no", TAKEN, "cannot be read to its end", id="huge"),
    ],
)
def test_a_bad_cell_of_a_table(
    tmp_path: Path, cells: str, options: dict[str, Any], place: str
) -> None:
    path = csv_with(tmp_path, 7, cells)
    words = said(lambda: table(path, target="label", **options))
    assert place in words


def test_a_column_of_too_many_values(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    rows = [f"{k}-{WORD},{'no' if k % 3 else 'yes'}" for k in range(300)]
    path.write_text("\n".join(["name,label", *rows]) + "\n")
    for target in ("label", "name"):
        words = said(lambda target=target: table(path, target=target, from_data=True))
        assert "different values; at most" in words


def test_a_file_without_a_header_or_with_another_separator(tmp_path: Path) -> None:
    bare = csv_with(tmp_path, 7, "20,Oslo,f,no", header=f"{NUMBER},{WORD},f,no")
    assert "as if it were a record" in said(lambda: table(bare, target="label"))
    twice = csv_with(tmp_path, 7, "20,Oslo,f,no", header=f"{WORD},{WORD},f,no")
    assert "columns 1, 2 of" in said(lambda: table(twice, target="label"))
    other = tmp_path / "semicolons.csv"
    other.write_text(f"{WORD};{NUMBER}\n1;2\n")
    assert "as if it were a record" in said(lambda: table(other, target="label"))
    assert "as if it were a record" in said(lambda: look_at(other, target="label"))
    assert look_at(other).in_the_way().count("\n") == 1  # no name, which may be a record's cell
    latin = tmp_path / "latin.csv"
    latin.write_bytes(f"a,b\n1,{WORD}\xe9\n".encode("latin1"))
    assert "not UTF-8 (line 2)" in said(lambda: table(latin, target="a"))


def test_a_frame_and_a_damaged_parquet_file(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": [1, WORD] * 20, "label": ["no", "no", "yes", "yes"] * 10})
    ends = {"age": (0, 120)}
    declared: dict[str, Any] = {"ranges": ends, "categories": {"label": ["no", "yes"]}}
    declared["missing"] = "error"
    assert "row 2 of the DataFrame" in said(lambda: table(frame, target="label", **declared))
    file = tmp_path / "people.parquet"
    file.write_bytes(b"PAR1" + WORD.encode() * 20 + b"PAR1")
    assert "cannot be read to its end" in said(lambda: table(file, target="label"))


def test_a_new_row_that_a_model_cannot_take(tmp_path: Path) -> None:
    columns = Numeric("age", 0, 120, 60), Categorical("city", ("Oslo", "Rome"))
    encoding = TableEncoding(target="label", classes=("no", "yes"), columns=columns)
    path = tmp_path / "new.csv"
    for cells in (f"{WORD},Oslo", f"{WORD},{WORD}"):
        path.write_text(f"age,city\n{cells}\n")
        assert "'age' has no value, or none of its kind, in row 1" in said(
            lambda: encoding.read(path, missing="error")
        )
    path.write_text(f"{NUMBER},{WORD}\n1,2\n")
    assert "as if it were a record" in said(lambda: encoding.read(path))


X = torch.linspace(-1, 1, ROWS * 5).reshape(ROWS, 5)


def labels(bad: float = NUMBER) -> Tensor:
    y = torch.arange(ROWS) % 2
    y[3] = int(bad)
    return y


def test_data_of_ones_own() -> None:
    assert "y of record 3 is out" in said(lambda: as_splits((X, labels()), classes="ab"))
    assert "y of record 3 is out" in said(lambda: as_splits((X, labels(-NUMBER))))
    groups = {"sensitive_features": labels(), "groups": "ab"}
    assert "record 3 is out" in said(lambda: as_splits((X, labels(1)), **groups))
    records: list[Any] = [(X[k], k % 2) for k in range(ROWS)]
    records[5] = (X[5], WORD)
    assert "y of record 5 is of type str" in said(lambda: as_splits(records))
    records[5] = (X[5], float(NUMBER) + 0.5)
    said(lambda: as_splits(records))


def trained(
    data: Any, *, loss: Any = None, isolation: str = "vmap", collate: Any = None, **given: Any
) -> None:
    model = nn.Linear(5, 2)
    private = pl.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data,
        loss=nn.CrossEntropyLoss(reduction="none") if loss is None else loss,
        method=given.pop("method", pl.methods.dpsgd(clip=1.0)),
        budget=pl.Budget(noise_multiplier=1, delta=1e-5, steps=3, expected_batch_size=ROWS),
        isolation=isolation,
        collate=collate,
        **given,
    )
    for batch in private:
        private.step(batch)


@pytest.mark.parametrize("isolation", ["vmap", "loop"])
@pytest.mark.parametrize("loss", [None, lambda output, y: -output.gather(1, y[:, None])[:, 0]])
def test_a_label_out_of_range(isolation: str, loss: Any) -> None:
    words = said(lambda: trained((X, labels()), loss=loss, isolation=isolation))
    assert words.startswith("Record 3 of the data set has a class")
    records = [(X[k], int(labels()[k])) for k in range(ROWS)]
    assert "Record 3" in said(lambda: trained(records, isolation=isolation))


def test_only_what_is_looked_up_is_explained_so() -> None:
    def wrong() -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x5 and 6x2)")

    with pytest.raises(RuntimeError, match="1x5 and 6x2"):
        looked_up(wrong, [0], lambda _: None)

    def out() -> None:
        raise IndexError(f"index {NUMBER} is out of bounds for dimension 0 with size 3")

    assert said(lambda: looked_up(out, [8], lambda _: None)).startswith("A record of")


class Careless:
    """Reads what a file may hold, and takes it for a number."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return X[number], int(WORD if number == 4 else number % 2)


def test_a_data_set_or_a_collate_function_that_fails() -> None:
    words = said(lambda: trained(Careless()))
    assert words.startswith("Record 4 of the data set cannot be read: the line test_record_errors")
    assert "fails with ValueError" in words
    assert "dataset[4]" in words
    assert "Record 4" in said(lambda: as_splits(Careless()))

    def collate(rows: list[Any]) -> Any:
        return torch.tensor([float(word) for word in rows])

    texts = [WORD if k == 6 else str(k) for k in range(ROWS)]
    assert "Record 6" in said(lambda: trained(texts, collate=collate))


@pytest.mark.parametrize("ids", [[float(NUMBER) + 0.5], [[NUMBER]], [None], [{"name": WORD}]])
def test_user_ids(ids: list[Any]) -> None:
    assert "user_ids" in said(lambda: trained((X, labels(1)), user_ids=ids * ROWS))


def test_groups() -> None:
    words = np.array(["f", WORD] * (ROWS // 2))
    assert "has words" in said(lambda: trained((X, labels(1)), sensitive_features=list(words)))
    said(lambda: trained((X, labels(1)), sensitive_features=words))
    method = pl.methods.dpsgd_f(clip=1.0, groups=(0, 1))
    given = {"sensitive_features": labels(), "method": method}
    assert "declared groups [0, 1]" in said(lambda: trained((X, labels(1)), **given))


def test_groups_and_outcomes_of_an_evaluation() -> None:
    outcomes = Outcomes([0, 1, 0], [0, 1, 1])
    features: list[Any]
    names: dict[Any, str] = {0: "a", 1: "b", "f": "c", "m": "d"}
    for features in ([0, 1, NUMBER], [0, 1, NUMBER + 0.5], ["f", "m", WORD]):
        words = said(lambda f=features: evaluate(outcomes, sensitive_features=f, names=names))
        assert "of record 2" in words
    assert "record 1" in said(lambda: Outcomes([0, 1], [0, 1], scores=[0.5, float(NUMBER)]))
    wrong = torch.tensor([0, 0, NUMBER])
    assert "record 2" in said(lambda: Outcomes.from_logits(torch.zeros(3, 2), wrong))


def test_values_that_are_not_finite_are_no_error() -> None:
    spoilt = X.clone()
    spoilt[3:] = torch.inf
    spoilt[:, 0] = NUMBER
    with pytest.warns(BadRecords, match="not finite") as told:
        trained((spoilt, labels(1)))
    assert not any(secret in str(one.message) for one in told for secret in SECRETS)


def test_a_record_error_is_a_value_error() -> None:
    assert issubclass(RecordError, ValueError)
