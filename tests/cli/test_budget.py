"""``plumbline budget``: noise that meets the epsilon, for every method."""

import pytest

from plumbline.cli.app import console
from plumbline.instruments.describing import default_delta
from plumbline.mechanism.accountant import epsilon
from plumbline.mechanism.release import GaussianQuery, PoissonSampling, StepRelease
from plumbline.methods import METHODS
from tests.cli.calling import Called

OPTIONS = ["--records", "5000", "--batch", "250", "--epochs", "2", "--epsilon", "2"]


def spent(noise: float, steps: int, *more: float) -> float:
    queries = [
        GaussianQuery(name=str(place), sensitivity=1.0, noise_multiplier=sigma)
        for place, sigma in enumerate((noise, *more))
    ]
    release = StepRelease(sampling=PoissonSampling(rate=0.05), queries=tuple(queries))
    return epsilon([(release, steps)], delta=1e-5)


def test_the_noise_meets_the_epsilon(call: Called) -> None:
    assert call("budget", *OPTIONS, "--delta", "1e-5", "--json") == 0
    found = call.json
    assert found["budget"]["steps"] == 40
    noise = {row["method"]: row for row in found["methods"]}
    assert 1.98 < spent(noise["dpsgd"]["pld"], 40) <= 2
    assert 1.98 < spent(noise["adaptive"]["pld"], 40, 10.0) <= 2
    assert noise["dp_sam"]["pld"] == pytest.approx(noise["dpsgd"]["pld"] * 2**0.5, rel=5e-3)
    assert all(row["rdp"] > row["pld"] for row in noise.values())
    assert noise["adaptive"]["asks"] == "gradient, norms within the bound (10)"
    guaranteed = {
        name
        for name, entry in METHODS.items()
        if entry.make(**entry.example()).unbounded_reason is None
    }
    assert set(noise) == guaranteed
    assert found["meaning"] == "at most 88.08% of the time"
    assert set(found["outlook"]) == {"parameters", "ratio", "category", "group"}
    bands = found["bands"]["compared"]
    assert [one["bands"] for one in bands] == [1, 4, 16]  # 64 parts would be sampled above 1
    assert bands[0]["noise_multiplier"] == noise["dpsgd"]["pld"]
    assert bands[0]["error"] == 1
    least = min(bands, key=lambda one: one["error"])
    assert found["bands"]["suggested"] == least["bands"]
    curve = found["curve"]
    assert len(curve) == 40
    assert curve[-1]["epoch"] == 2
    assert curve[19]["epsilon"] == pytest.approx(spent(noise["dpsgd"]["pld"], 20))


def test_the_table_and_the_chart_fit_a_narrow_terminal(
    call: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "width", 80)
    assert call("budget", *OPTIONS) == 0
    assert "epsilon 2 at delta 1e-5: 40 steps" in call.out
    assert "…" not in call.out
    assert "█" in call.out
    assert "2 epochs" in call.out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--delta", "1"], "delta is 1.0; it must be strictly between 0 and 1"),
        (["--delta", "0.001"], "it must be below 1/5000"),
        (["--epsilon", "0"], "epsilon is 0.0; it must be positive and finite"),
        (["--batch", "6000"], "more than the 5000 records"),
        (["--records", "0"], "--records is 0"),
        (["--epochs", "-1"], "epochs is -1.0"),
    ],
)
def test_a_budget_that_makes_no_sense(call: Called, change: list[str], message: str) -> None:
    assert call("budget", *OPTIONS, *change) == 2
    assert message in call.err


@pytest.mark.parametrize(
    ("records", "delta"), [(1, 0.1), (10, 0.01), (11, 1e-3), (26_049, 1e-6), (100_000, 1e-6)]
)
def test_the_default_delta_is_a_tenth_of_one_over_n_or_less(records: int, delta: float) -> None:
    assert default_delta(records) == delta
    assert delta <= 1 / (10 * records) < 10 * delta


def test_a_table_of_a_few_rows_has_an_outlook(call: Called) -> None:
    assert call("budget", "--records", "30", "--epsilon", "1", "--columns", "4", "--json") == 0
    assert call.json["budget"]["batch"] == 30
