"""The examples run, in their shortest form, and print what they say they show."""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def printed(
    name: str,
    *options: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """What an example prints with these options."""
    script = EXAMPLES / name
    monkeypatch.setattr(sys, "argv", [str(script), *options])
    runpy.run_path(str(script), run_name="__main__")
    return capsys.readouterr().out


def test_own_loop(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed("own_loop.py", "--steps", "6", monkeypatch=monkeypatch, capsys=capsys)
    spent = [float(value) for value in re.findall(r"epsilon ([\d.]+), test", out)]
    assert 0 < spent[0] < spent[1] <= 1.0
    assert "6 steps charged" in out
    assert "differentially private with epsilon = 1.00" in " ".join(out.split())
    assert "z-score" not in out  # public ranges: nothing of the preprocessing is uncovered


def test_data_loader(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed("data_loader.py", "--epochs", "1", monkeypatch=monkeypatch, capsys=capsys)
    assert "batch size of 128 is the expected one" in out
    assert out.count("epoch 0: epsilon ") == out.count(" (not covered by epsilon)") == 2
    assert "the same weights: True" in out


def test_tabular_fairness(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--steps", "3", "--seeds", "1"]
    out = printed("tabular_fairness.py", *options, monkeypatch=monkeypatch, capsys=capsys)
    for title in ("non-private", "DP-SGD", "Global-Adapt"):
        assert re.search(rf"^{title}\n  \w+ +accuracy [\d.]+%  loss [\d.]+\n  \w+ ", out, re.M)
    assert len(re.findall(r"privacy cost of .*: \w+ [+-][\d.]+, \w+ [+-][\d.]+; gap", out)) == 2
    assert "not covered by epsilon" in out


def test_image_cnn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed("image_cnn.py", "--steps", "2", monkeypatch=monkeypatch, capsys=capsys)
    plain, combined = out.splitlines()
    assert plain.startswith("DP-SGD: test accuracy")
    assert combined.startswith("BAM on 4 views: test accuracy")
    spent = [float(value) for value in re.findall(r"epsilon ([\d.]+)", out)]
    assert all(3.9 < value <= 4.0 for value in spent)


def test_transformer_lora(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    options = ["--steps", "2", "--pretraining", "2"]
    out = printed("transformer_lora.py", *options, monkeypatch=monkeypatch, capsys=capsys)
    trained, total = (
        int(value.replace(",", "")) for value in re.findall(r"([\d,]+)(?= of| parameters)", out)
    )
    assert 0 < trained < total / 10
    assert "at epsilon 8.0" in out or "at epsilon 7.9" in out


# What older versions of peft say of a model without a name, which one from a config has not.
@pytest.mark.filterwarnings("ignore:Could not find a config file in  - ")
def test_hf_trainer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("transformers", "peft", "accelerate"):
        pytest.importorskip(name)
    out = printed("hf_trainer.py", "--steps", "4", monkeypatch=monkeypatch, capsys=capsys)
    spent = [float(value) for value in re.findall(r"'epsilon': '([\d.]+)'", out)]
    assert spent == sorted(spent)
    assert "'eval_loss'" in out
    assert re.search(r"^4 steps, epsilon (7\.9\d|8\.00)$", out, re.M)


# What Lightning says of small examples, and of a function of torch's that it calls.
@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec")
def test_lightning_module(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lightning")
    out = printed("lightning_module.py", "--epochs", "1", monkeypatch=monkeypatch, capsys=capsys)
    assert re.search(r"^10 steps, test accuracy [\d.]+%$", out, re.M)
    assert "differentially private with epsilon = 4.00" in " ".join(out.split())


def test_accelerate_loop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("accelerate")
    out = printed("accelerate_loop.py", "--steps", "4", monkeypatch=monkeypatch, capsys=capsys)
    assert "the ledger: 4 steps charged" in out
    assert re.search(r"^1 processes: epsilon 1\.00, test accuracy [\d.]+%$", out, re.M)


def test_per_record_gradients(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed("per_record_gradients.py", monkeypatch=monkeypatch, capsys=capsys)
    assert "majority" in out
    assert "With epsilon" in out


@pytest.mark.slow
def test_scattering(
    data_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    pytest.importorskip("kymatio")
    options = ["--data", "mnist", "--epochs", "1", "--cache", str(tmp_path), "--seed", "0"]
    out = printed("scattering.py", *options, monkeypatch=monkeypatch, capsys=capsys)
    assert "test accuracy" in out


def test_sklearn_search(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--epochs", "0.1"]
    out = printed("sklearn_search.py", *options, monkeypatch=monkeypatch, capsys=capsys)
    alone, together = (float(one) for one in re.findall(r"epsilon (\d+\.\d+)", out))
    assert 0.99 < alone <= 1.0 < together
    assert "5 runs. Together that costs a record" in out


def test_logging_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed("logging_run.py", "--steps", "4", monkeypatch=monkeypatch, capsys=capsys)
    assert re.findall(r"^(\d),covered/epsilon,", out, re.M) == list("1234")
    assert re.findall(r"^(\d),not covered/test accuracy,", out, re.M) == list("1234")
    assert out.count("Server failed (ConnectionError: the server is gone)") == 1
    assert "4 of 4 steps made" in out


def test_autocast(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed("autocast.py", "--steps", "3", monkeypatch=monkeypatch, capsys=capsys)
    assert re.search(r"test accuracy [\d.]+% \(not covered by epsilon\) at epsilon [23]\.", out)
    assert "a compiled model is refused: The model is compiled by torch.compile" in out
    assert "autocast around a step is refused: torch.autocast is on" in out
    assert "charged for it: 0 steps" in out


def test_patients(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    out = printed("patients.py", "--new", "20", monkeypatch=monkeypatch, capsys=capsys)
    rows = (tmp_path / "new-patients.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 21
    assert "readmitted" not in rows[0]
    assert out == ""


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_is_run_and_says_what_it_shows(script: Path) -> None:
    assert f'printed("{script.name}"' in Path(__file__).read_text(encoding="utf-8")
    assert len(script.read_text(encoding="utf-8").split('"""')[1]) > 200
