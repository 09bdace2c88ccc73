import json
import shutil
from pathlib import Path

from plumbline.mechanism.rounding import rounded_up
from tests.cli.calling import Called, people


def test_a_run_on_a_table_of_ones_own(call: Called, tmp_path: Path) -> None:
    people(tmp_path / "people.csv")
    options = ["--epochs", "2", "--batch", "100", "--from-data", "--sensitive", "sex"]
    assert call("train", "--data", "people.csv", "--target", "income", *options) == 0
    (folder,) = Path("runs/people").iterdir()
    assert call("verify", folder, "--model-card", "card.md") == 0
    assert "Nothing is contradicted (10 confirmed, 1 could not be)" in call.out
    assert "The model card is in card.md" in call.err
    assert call("verify", folder, "--data") == 0
    assert "the model judged again gives the result's numbers" in " ".join(call.out.split())
    card = Path("card.md").read_text()
    assert "this model as private" not in card  # its noise is secure
    assert 'target = "income"' in card

    stored = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**stored, "epsilon": 0.1}))
    assert call("verify", folder, "--json") == 1
    wrong = [one["what"] for one in call.json["checks"] if one["outcome"] == "contradicted"]
    assert wrong == ["epsilon", "files"]
    assert call("verify", folder) == 1
    assert "epsilon, files are contradicted" in call.out
    # A comparison's folder is that of all its runs.
    shutil.copytree(folder, "runs/people/again")
    assert call("verify", "runs/people") == 1
    assert f" {rounded_up(stored['epsilon'], 4)} " in call.out
    assert "Global-Adapt, seed 0: epsilon contradicted" in " ".join(call.out.split())
    Path("card.md").unlink()
    assert call("verify", folder, "--model-card", "card.md") == 1
    assert "No card" in call.err
    assert not Path("card.md").exists()


def test_a_ledger_that_lies_elsewhere(call: Called, tmp_path: Path) -> None:
    people(tmp_path / "people.csv")
    options = [
        "--epochs",
        "1",
        "--batch",
        "100",
        "--from-data",
        "--method",
        "dpsgd",
        "--ledger",
        "shared",
    ]
    assert call("train", "--data", "people.csv", "--target", "income", *options) == 0
    assert call("verify", "runs/people", "--json") == 3
    assert call.json["epsilon"]["from the ledger"] is None
    # Another run on the same ledger does not disturb: the manifest knows which is whose.
    assert call("train", "--data", "people.csv", "--target", "income", *options, "--out", "b") == 0
    assert call("verify", "runs/people", "--ledger", "shared", "--json") == 0
    epsilon = call.json["epsilon"]
    assert epsilon["from the ledger"] == epsilon["stated"]


def test_a_ledger_that_is_gone(call: Called, tmp_path: Path) -> None:
    """``verify && publish`` does not go on: what cannot be confirmed is not passed over."""
    people(tmp_path / "people.csv")
    options = ["--epochs", "1", "--batch", "100", "--from-data", "--method", "dpsgd"]
    assert call("train", "--data", "people.csv", "--target", "income", *options) == 0
    (folder,) = Path("runs/people").iterdir()
    shutil.copytree(folder, "runs/people/whole")
    (folder / "ledger").unlink()
    assert call("verify", folder) == 3
    assert "Epsilon could not be confirmed." in call.out
    assert call("verify", folder, "--json") == 3
    unknown = [one["what"] for one in call.json["checks"] if one["outcome"] == "not confirmed"]
    assert unknown == ["ledger", "epsilon", "statement", "charges", "data"]
    assert call("verify", folder, "--model-card", "card.md") == 3
    assert "Epsilon could not be confirmed" in Path("card.md").read_text()
    assert call("verify", "runs/people") == 3
    assert "DP-SGD, seed 0: epsilon could not be confirmed." in call.out
    assert call("verify", "runs/people/whole") == 0
    # What is contradicted weighs more.
    (folder / "model.pt").unlink()
    assert call("verify", folder) == 1


def test_what_is_no_run(call: Called, tmp_path: Path) -> None:
    assert call("verify", tmp_path) == 2
    assert "has no recipe.json" in call.err
    assert call("verify", tmp_path / "none") == 2
