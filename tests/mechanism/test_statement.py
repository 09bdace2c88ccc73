"""The statement: what a data-protection officer reads, and the same as JSON."""

import dataclasses
import json
import math
import re
from typing import Any

import pytest

from plumbline.mechanism.calibration import Budget, Plan, gradient_only
from plumbline.mechanism.release import (
    CyclicSampling,
    FullBatch,
    GaussianQuery,
    PoissonSampling,
    StepRelease,
)
from plumbline.mechanism.statement import NOT_COVERED, Statement

SOURCE = "Noise comes from the operating system's entropy."

FACTS: dict[str, Any] = {
    "epsilon": 2.71401,
    "delta": 1e-5,
    "other_epsilon": 3.1,
    "budget_epsilon": 3.0,
    "sampling": PoissonSampling(rate=0.02),
    "queries": (
        GaussianQuery(name="gradient", sensitivity=1.0, noise_multiplier=1.2345),
        GaussianQuery(name="counts above the bound", sensitivity=1.0, noise_multiplier=10.0),
    ),
    "noise_source": SOURCE,
    "steps_done": 900,
    "steps_planned": 1000,
    "public_constants": {"sampling rate": 0.02, "clip bound": 0.5},
    "records": 50_000,
    "records_public": False,
}


def statement(**changes: Any) -> Statement:
    return Statement(**{**FACTS, **changes})


def prose(**changes: Any) -> str:
    """The text on one line, so that line breaks do not matter."""
    return " ".join(statement(**changes).text().split())


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Budget(epsilon=3, delta=1e-5, steps=100, expected_batch_size=100).resolve(20_000)


def test_the_first_sentence_is_the_guarantee() -> None:
    assert prose().startswith(
        "This training run protects every single record in its data: it is differentially private "
        "with epsilon = 2.72 and delta = 0.00001 (about one in 100,000)."
    )


@pytest.mark.parametrize(
    "fact",
    [
        "one record being added to or removed from the data",
        "at most 15.2 times as likely",
        "at most 93.82% of the time",
        "It takes 1,000 steps, of which 900 are done",
        "every record is drawn with probability 0.02, independently",
        "standard deviation 1.23 times the bound",
        "counts above the bound, with noise of standard deviation 10 times the bound",
        SOURCE,
        "By privacy loss distributions (PLD)",
        "budget of the whole run is epsilon = 3",
        "Rényi differential privacy (RDP), another valid method, gives 3.10",
        "The number of records, 50,000, was taken from the data itself and is treated as public",
        "sampling rate 0.02; clip bound 0.5",
    ],
)
def test_the_text_has_every_fact(fact: str) -> None:
    assert fact in prose()


def test_what_is_covered_and_what_is_not_are_listed() -> None:
    text = prose(not_covered=(*NOT_COVERED, "public images that were mixed in"))
    covered, rest = text.split("What is covered:")[1].split("What is not covered:")
    assert "the model's weights after every step" in covered
    for word in ("tuning", "preprocessing", "training loss", "diagnostics", "public images"):
        assert word in rest


def test_users_and_replacement_are_named() -> None:
    text = prose(unit="user", relation="replace_one")
    assert "every single user in its data, with all of that user's records:" in text
    assert "one user in the data being exchanged for another" in text
    assert "which of two known users is in the data" in text
    assert "record is drawn" not in text


def test_a_public_number_of_records_is_said_to_be_stated() -> None:
    assert "50,000, was stated to be public knowledge" in prose(records_public=True)


def test_an_infinite_epsilon_says_why_in_the_first_sentence() -> None:
    text = prose(epsilon=math.inf, other_epsilon=math.inf, no_guarantee_reason="records mix.")
    first = re.split(r"(?<=\.) ", text)[0]
    assert first == (
        "This training run gives no differential privacy guarantee (its epsilon is infinite), "
        "because records mix."
    )
    for claim in ("protects", "What this means", "What is covered", "known bound", "computed"):
        assert claim not in text


def test_an_infinite_epsilon_and_its_reason_belong_together() -> None:
    with pytest.raises(ValueError, match="needs a reason"):
        statement(epsilon=math.inf)
    with pytest.raises(ValueError, match="needs a reason"):
        statement(no_guarantee_reason="records mix")


def test_before_the_first_step_nothing_is_claimed() -> None:
    text = prose(epsilon=0.0, steps_done=0)
    assert text.startswith(
        "No step has been taken yet, so nothing about the data has been released"
    )
    assert "What this means" not in text


def test_a_seed_limits_the_headline_and_is_warned_about() -> None:
    text = prose(seeded=True)
    assert "but only from people who do not know its seed: it is differentially private" in text
    assert "can remove the noise" in text.split("Please note:")[1]
    assert "seed" not in prose()


@pytest.mark.parametrize(
    ("epsilon", "sentence", "weak"),
    [
        (0.1, "at most 1.11 times as likely", False),
        (10.0, "at most 22,027 times as likely", False),
        (12.0, "at most 162,755 times as likely", True),
        (900.0, "at most some millions of times as likely", True),
    ],
)
def test_the_meaning_fits_the_size_of_epsilon(epsilon: float, sentence: str, weak: bool) -> None:
    text = prose(epsilon=epsilon)
    assert sentence in text
    assert ("the guarantee is weak" in text) == weak


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.001234, "0.00124"), (0.5, "0.500"), (7.9991, "8.00"), (99.91, "100.0"), (1234.2, "1,235")],
)
def test_epsilon_is_rounded_up(value: float, shown: str) -> None:
    assert f"epsilon = {shown} and" in prose(epsilon=value)


def test_full_batches_and_missing_noise_are_described() -> None:
    silent = (GaussianQuery(name="gradient", sensitivity=1.0, noise_multiplier=0.0),)
    changes = {"epsilon": math.inf, "other_epsilon": None, "no_guarantee_reason": "no noise"}
    text = prose(sampling=FullBatch(), queries=silent, **changes)
    assert "In each step every record takes part. Asked in each step: the gradient" in text
    assert "with no noise" in text
    assert "every record takes part" in prose(sampling=PoissonSampling(rate=1.0))


def test_parts_and_correlated_noise_are_described() -> None:
    text = prose(sampling=CyclicSampling(rate=0.25, parts=8), bands=8)
    assert "one of 8 parts of the records has its turn" in text
    assert "is drawn with probability 0.25, independently of all others" in text
    assert "It can take part" not in text
    assert "at most 125 of the steps, and that is what epsilon counts" in text
    assert "correlated over 8 steps" in text
    assert "after an interruption the correlation begins anew" in text
    whole = prose(sampling=CyclicSampling(rate=1.0, parts=1000), bands=8, unit="user")
    assert "every user of that part takes part. Each user drew its part by itself" in whole
    assert "at most 1 of the steps" in whole
    assert "correlated" not in prose()


def test_lines_are_wrapped_and_words_plain() -> None:
    text = statement().text()
    assert max(len(line) for line in text.splitlines()) <= 88
    assert max(len(line) for line in statement().text(width=60).splitlines()) <= 60
    assert str(statement()) == text
    for jargon in ("sigma", "σ", "DP-SGD", "mechanism", "1e-05"):
        assert jargon not in text


def listed(text: str, title: str) -> str:
    """The items under a title."""
    return text.split(f"{title}:")[1].split(":\n")[0]


@pytest.mark.parametrize(
    ("changes", "title", "words"),
    [
        ({}, "This holds by construction", "under torch.vmap"),
        ({"isolation": "loop"}, "This holds by construction", "one record after the other"),
        ({"company": "public"}, "This holds by construction", "and the public inputs drawn for it"),
        ({"company": "bucket"}, "This holds by construction", "records mix in buckets alone"),
        ({"company": "bucket"}, "This holds by construction", "there is no other bucket"),
        ({"unit": "user"}, "This holds by construction", "one user moves an answer by no more"),
        ({"audited": "Nothing moved."}, "This is tested", "own records: Nothing moved"),
        ({}, "This is trusted", "no other run, figure or copy"),
        ({}, "This is trusted", "a person has one record"),
        ({"unit": "user"}, "This is trusted", "the user ids are right"),
        ({}, "This is trusted", "nobody reads the memory"),
        ({"seeded": True}, "This is trusted", "the seed is secret, and nobody reads the memory"),
        ({}, "This is trusted", "mixup"),
        ({}, "This is trusted", "one that is removed leaves its place empty"),
        ({}, "This is trusted", "keeps nothing outside of the model"),
    ],
)
def test_what_the_guarantee_rests_on_is_listed_by_how_it_is_known(
    changes: dict[str, Any], title: str, words: str
) -> None:
    assert words in " ".join(listed(statement(**changes).text(), title).split())
    assert "no attack can pass, not a prediction, if what is trusted below holds" in prose(
        **changes
    )


def test_without_a_guarantee_nothing_is_assumed() -> None:
    text = prose(epsilon=math.inf, no_guarantee_reason="records mix")
    assert "by construction" not in text
    assert "trusted" not in text


def test_json_has_every_field() -> None:
    facts = json.loads(statement().json())
    names = {item.name for item in dataclasses.fields(Statement)}
    assert set(facts) == names | {"guarantee", "assumptions"}
    assert set(facts["assumptions"]) == {"by_construction", "tested", "trusted"}
    assert facts["epsilon"] == 2.71401
    assert facts["sampling"] == {"kind": "poisson", "rate": 0.02}
    assert facts["queries"][1]["noise_multiplier"] == 10.0
    assert facts["guarantee"] is True
    assert facts["not_covered"] == list(NOT_COVERED)


def test_json_without_a_guarantee_is_still_json() -> None:
    facts = json.loads(
        statement(
            epsilon=math.inf, other_epsilon=math.inf, no_guarantee_reason="records mix"
        ).json()
    )
    assert facts["epsilon"] == facts["other_epsilon"] == "inf"
    assert facts["guarantee"] is False
    assert facts["assumptions"] is None
    assert facts["covered"] == []
    assert facts["no_guarantee_reason"] == "records mix"


def test_json_and_text_carry_the_same_warnings() -> None:
    noted = statement(epsilon=20.0, seeded=True, warnings=("Delta is large.",))
    warnings = json.loads(noted.json())["warnings"]
    assert len(warnings) == 3
    text = " ".join(noted.text().split())
    assert all(warning in text for warning in warnings)


def test_the_statement_of_a_run_follows_its_plan(plan: Plan) -> None:
    found = Statement.for_run(
        plan,
        steps_done=100,
        noise_source=SOURCE,
        public_constants={"clip bound": 1.0},
        not_covered=["public images"],
        warnings=["Look here."],
    )
    assert found.epsilon == plan.epsilon
    assert found.other_epsilon is not None
    assert found.other_epsilon > found.epsilon
    assert found.budget_epsilon == 3
    assert found.public_constants["clip bound"] == 1.0
    assert found.public_constants["steps"] == 100
    assert found.not_covered[0] == "public images"
    assert found.warnings == (*plan.warnings, "Look here.")
    assert len(plan.warnings) == 1
    assert not found.records_public


def test_the_statement_of_a_partial_run_counts_its_steps_only(plan: Plan) -> None:
    partial = Statement.for_run(plan, steps_done=10, noise_source=SOURCE)
    assert 0 < partial.epsilon < plan.epsilon
    charged = [(plan.release, 4), (gradient_only(9.0, plan.release.sampling), 6)]
    mixed = Statement.for_run(plan, steps_done=10, noise_source=SOURCE, releases=iter(charged))
    assert 0 < mixed.epsilon < partial.epsilon


def test_the_statement_of_a_run_without_a_guarantee_has_its_reason() -> None:
    def mixing(noise_multiplier: float, sampling: Any) -> StepRelease:
        release = gradient_only(noise_multiplier, sampling)
        return dataclasses.replace(release, unbounded_reason="every summand sees the whole batch")

    budget = Budget(noise_multiplier=1.0, delta=1e-6, steps=5, expected_batch_size=10)
    without = budget.resolve(1000, release_at=mixing)
    found = Statement.for_run(without, steps_done=5, noise_source=SOURCE)
    assert found.epsilon == math.inf
    assert "because every summand sees the whole batch." in " ".join(found.text().split())
    silent = dataclasses.replace(budget, noise_multiplier=0.0).resolve(1000)
    text = Statement.for_run(silent, steps_done=5, noise_source=SOURCE).text()
    assert "no noise was added" in " ".join(text.split())
    assert Statement.for_run(without, steps_done=0, noise_source=SOURCE).epsilon == 0
