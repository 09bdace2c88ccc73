"""``plumbline audit``: bounds beside claims, and an exit code that says whether one is refuted."""

from pathlib import Path

import pytest

from plumbline.cli import audit
from plumbline.experiments import Recipe, attacking, compare
from tests.auditing.planted import half_the_noise
from tests.cli.calling import Called, small_recipe

STEP = ["audit", "step", "dpsgd", "--repetitions", "5000", "--seed", "0"]


def test_a_step_is_consistent_with_its_claim(call: Called) -> None:
    assert call(*STEP) == 0
    assert "dpsgd: one step, noise multiplier 1, sampling rate 1, delta 1e-5" in call.out
    assert "Gaussian DP" in call.out
    assert "Consistent with the claim: epsilon is at least 3." in call.out


def test_a_refuted_claim_is_an_exit_code(call: Called) -> None:
    with half_the_noise():
        assert call(*STEP) == 1
        assert "The claim is refuted: epsilon is at least" in call.out
        assert call(*STEP, "--json") == 1
    assert call.json["refuted"]
    assert call.json["claimed"] == pytest.approx(4.377, abs=0.01)
    assert call.json["findings"][0]["bound"]["epsilon"] > 8


def test_bands_are_audited(call: Called) -> None:
    bands = ["audit", "bands", "3", "--repetitions", "5000", "--seed", "0"]
    assert call(*bands) == 0
    assert "3 bands: 9 steps, noise multiplier 2, rate 1 within a part, delta 1e-5" in call.out
    assert "Consistent with the claim: over 9 steps epsilon is at least 3." in call.out
    with half_the_noise():
        assert call(*bands, "--json") == 1
    assert call.json["refuted"]


def test_settings_of_the_method_are_audited(call: Called) -> None:
    assert call(
        "audit", "step", "global-adapt", "--set", "count_noise=0.5", "--noise-multiplier", "0.5",
        "--sampling-rate", "0.01", "--repetitions", "5000", "--json",
    ) == 0  # fmt: skip
    assert call.json["claimed"] == pytest.approx(7.47, abs=0.01)


def test_a_baseline_has_nothing_to_audit(call: Called) -> None:
    assert call("audit", "step", "fairlens") == 0
    assert "There is nothing to audit" in call.out


def test_a_recipe_is_audited_by_one_run(call: Called, tmp_path: Path) -> None:
    path = small_recipe(tmp_path)
    assert call("audit", "run", path, "--canaries", "100", "--json") == 0
    assert call.json["method"] == "DPSGD"
    assert call.json["found"]["canaries"] == 100
    assert call.json["found"]["bound"]["epsilon"] < call.json["claimed"]
    assert call("audit", "run", path, "--canaries", "100", "--method", "non-private") == 0
    assert "No epsilon is claimed." in call.out
    assert "not covered by epsilon" in call.out


def test_finished_runs_are_attacked(call: Called, tmp_path: Path) -> None:
    recipe = Recipe.read(small_recipe(tmp_path, steps=2)).model_copy(update={"seeds": (0,)})
    compare(recipe, tmp_path / "runs", workers=1)
    assert call("audit", "membership", "runs", "--replicates", "5") == 0
    assert "non-private" in call.out
    assert "female" in call.out
    assert call("audit", "membership", "runs", "--replicates", "5", "--json") == 0
    assert [len(runs) for runs in call.json["runs"].values()] == [1, 1]
    one = next(path for path in (tmp_path / "runs").iterdir() if path.name.startswith("DPSGD"))
    assert call("audit", "membership", one, "--replicates", "5") == 0


def test_the_claim_beside_an_attack_is_never_below_what_was_spent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attacking, "averaged", lambda _: [["all", *"012345"]])
    audit._show_membership({"DPSGD": (3.0049, []), "free": (float("inf"), [])})
    shown = " ".join(capsys.readouterr().out.split())
    assert "DPSGD 3.01 all" in shown
    assert "free inf all" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["step", "dpgd"], "no method 'dpgd'. Did you mean 'dpsgd'?"),
        (["step", "dpsgd", "--set", "clp=1"], "Did you mean 'clip'?"),
        (["step", "dpsgd", "--sampling-rate", "2"], "sampling_rate is 2"),
        (["step", "dpsgd", "--confidence", "1"], "--confidence"),
        (["run", "nosuch.toml"], "There is no recipe file nosuch.toml"),
        (["run", "demo", "--canaries", "20000"], "20000 canaries are asked for"),
        (["membership", "nosuch"], "has no recipe.json"),
    ],
)
def test_wrong_use_is_told_in_words(call: Called, arguments: list[str], message: str) -> None:
    assert call("audit", *arguments) == 2
    assert message in call.err
    assert not call.out


@pytest.mark.parametrize("name", ["step", "run", "membership"])
def test_every_command_has_examples_and_json(call: Called, name: str) -> None:
    assert call("audit", name, "--help") == 0
    assert f"plumbline audit {name}" in call.out.split("Examples")[1]
    assert "--json" in call.out
