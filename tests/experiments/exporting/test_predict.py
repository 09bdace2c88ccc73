"""predict.py in a process of its own, without Plumbline: it says what Plumbline says."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import plumbline as pl
from plumbline.experiments import files
from plumbline.experiments.exporting import Export, export, predict
from tests.experiments.exporting.runs import CASES, HEADER, lacking, patients, run_script, trained

NETWORK = '''
from torch import nn

class Wide(nn.Module):
    """A class of its own, which no list of layers describes."""

    def __init__(self, features, classes):
        super().__init__()
        self.first, self.last = nn.Linear(features, 6), nn.Linear(6, classes)

    def forward(self, x):
        return self.last(self.first(x).tanh()) + self.last.bias

def plain(features, classes):
    return nn.Sequential(nn.Linear(features, 6), nn.ReLU(), nn.Linear(6, classes))
'''


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """Rows with unseen categories, numbers out of range, missing cells and what is of no kind."""
    path = patients(tmp_path / "new.csv", 40, seed=1)
    with path.open("a", encoding="utf-8") as file:
        file.write(",,,,,,,,,\n")
        file.write("old,9,maybe,?,,30.02.2021,,,,\n")
        file.write('-1e9,1.0,TRUE,E1,"a, b",03.04.2021,"mild, PAIN",,,\n')
    return path


def table(text: bytes | str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text if isinstance(text, str) else text.decode())))


@pytest.mark.parametrize(
    "case", ["two classes", "a number", pytest.param("three classes", marks=pytest.mark.slow)]
)
def test_a_csv_file(
    case: str, runs: dict[str, Path], exports: dict[str, Export], new: Path
) -> None:
    done = run_script(exports[case].folder, new)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    rows, given = table(done.stdout), table(new.read_text(encoding="utf-8"))
    assert len(rows) == len(given) == 43  # a row for every row
    model = pl.load(runs[case])
    predicted = model.predict(new)
    assert [row["prediction"] for row in rows] == [
        text if model.classes else str(float(text)) for text in model.decide(predicted)
    ]
    for row, before, values in zip(rows, given, predicted.tolist(), strict=True):
        assert {name: row[name] for name in before} == before
        for name, value in zip(model.classes, values if model.classes else [], strict=True):
            assert float(row[f"probability_{name}"]) == round(value, 6)


@pytest.mark.parametrize("case", CASES)
def test_plumbline_gives_the_same_bits_for_the_run_and_its_export(
    case: str, runs: dict[str, Path], exports: dict[str, Export], new: Path
) -> None:
    expected = pl.load(runs[case]).predict(new)
    loaded = pl.load(exports[case].folder)
    assert torch.equal(loaded.predict(new), expected)
    frame = pd.read_csv(new, dtype={"code": str})
    assert torch.equal(loaded.predict(frame), expected)
    assert torch.equal(predict.Model(exports[case].folder).predict(frame), expected)
    assert loaded.predict(frame.head(0)).shape == expected[:0].shape


def test_json_lines_are_answered_one_by_one(exports: dict[str, Export], new: Path) -> None:
    folder = exports["two classes"].folder
    frame = pd.read_csv(new, dtype={"code": str})
    rows = [
        {name: None if pd.isna(cell) else cell for name, cell in row.items()}
        for row in frame.to_dict("records")
    ]
    model = pl.load(folder)
    expected = model.decide(model.predict(frame))
    process = subprocess.Popen(
        [sys.executable, folder / "predict.py", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=lacking(folder.parent),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        for number, (row, prediction) in enumerate(zip(rows, expected, strict=True), 1):
            process.stdin.write(json.dumps(row).encode() + b"\n")
            process.stdin.flush()
            said = json.loads(process.stdout.readline())  # before the next line is there
            assert (said["row"], said["prediction"]) == (number, prediction)
        process.stdin.write(b"what?\n{}\n" + json.dumps(rows[0]).encode())
        process.stdin.close()
        bad, none, last = map(json.loads, process.stdout)
    assert process.wait() == 0
    assert bad == {"row": 44, "error": "The line is not JSON."}
    assert none["error"].startswith("There is no 'age', 'ward'")
    assert last["prediction"] == expected[0]


def test_a_data_frame_in_a_process_without_plumbline(
    runs: dict[str, Path], exports: dict[str, Export], new: Path, tmp_path: Path
) -> None:
    folder = exports["three classes"].folder
    script = tmp_path / "use.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(folder)!r})\n"
        "import json, pandas as pd, predict\n"
        f"frame = pd.read_csv({str(new)!r}, dtype={{'code': str}})\n"
        "model = predict.Model()\n"
        "print(json.dumps(model.decide(model.predict(frame))))\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        env=lacking(tmp_path, block=("plumbline", "scipy", "pydantic")),
        capture_output=True,
        check=True,
    )
    model = pl.load(runs["three classes"])
    assert json.loads(done.stdout) == model.decide(model.predict(new))


@pytest.mark.parametrize("kind", ["Wide", "plain"])
def test_a_network_of_somebodys_own(
    kind: str, tmp_path: Path, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clinic_nets.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = {**CASES["two classes"], "model": f"clinic_nets:{kind}"}
    run = trained(tmp_path, **options)
    found = export(run, tmp_path / "model", program=False)
    model = pl.load(found.folder)
    expected = pl.load(run).predict(new)
    assert torch.equal(model.predict(new), expected)
    alone = run_script(found.folder, new)
    if kind == "plain":  # its layers are torch's, and the package is not needed
        assert alone.returncode == 0, alone.stderr.decode()
        assert len(table(alone.stdout)) == 43
        assert not any("package" in note for note in found.notes)
        return
    assert alone.returncode == 1
    assert b"'clinic_nets:Wide', which is not in this folder and cannot be imported" in alone.stderr
    assert b"put it on PYTHONPATH" in alone.stderr
    assert b"Traceback" not in alone.stderr
    assert any("It needs the package of its network, clinic_nets:Wide" in n for n in found.notes)
    assert "`clinic_nets:Wide`, which is not in here" in (found.folder / "README.md").read_text()
    there = run_script(found.folder, new, path=str(tmp_path))
    assert there.returncode == 0, there.stderr.decode()
    assert [row["prediction"] for row in table(there.stdout)] == model.decide(expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("age,ward\n1,2\n", "There is no column 'smoker'"),
        (f"{HEADER}\n1,2\n", "rows of more or fewer cells"),
        (f"prediction,{HEADER}\n", "has a column 'prediction' already"),
        (None, "No such file"),
    ],
)
def test_files_that_cannot_be_used(
    exports: dict[str, Export], tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "new.csv"
    if content is not None:
        path.write_text(content)
    model = predict.Model(exports["two classes"].folder)
    with pytest.raises((OSError, ValueError), match=message):
        list(predict._scored(model, path))


def test_the_command_says_what_is_wrong(
    exports: dict[str, Export], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_script(exports["two classes"].folder, tmp_path / "none.csv")
    assert done.returncode == 1
    assert done.stderr.startswith(b"predict.py: [Errno 2] No such file")
    monkeypatch.setattr(sys, "argv", ["predict.py"])
    with pytest.raises(SystemExit, match=r"python predict\.py new\.csv"):
        predict.main()


@pytest.mark.parametrize("name", ["model.pt", "model.json", "encoding.json"])
def test_a_file_that_was_changed_is_not_used(
    name: str, exports: dict[str, Export], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for one in ("model.pt", "model.json", "encoding.json", "manifest.json"):
        data = (exports["two classes"].folder / one).read_bytes()
        (copy / one).write_bytes(data + (b" " if one == name else b""))
    with pytest.raises(ValueError, match=rf"{name} is not the file that was exported"):
        predict.Model(copy)


def test_its_names_are_those_of_a_run() -> None:
    assert (predict.SETTINGS, predict.ENCODING) == (files.EXPORTED, files.ENCODING)
    assert predict.WEIGHTS == files.MODEL


@pytest.mark.parametrize(
    "network",
    [{"layer": "RNN", "options": {}}, {"layers": {"0": {"layer": "Module", "options": {}}}}],
)
def test_only_listed_layers_are_built(network: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="There is no layer called"):
        predict.build(network)
