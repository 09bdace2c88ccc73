"""The scikit-learn estimators, against scikit-learn's own checks and what they promise."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.ensemble import AdaBoostClassifier, BaggingClassifier, VotingClassifier
from sklearn.model_selection import GridSearchCV, PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import plumbline as pl
from plumbline.integrations.sklearn import PrivateClassifier, PrivateRegressor
from plumbline.mechanism.ledger import BudgetExceeded
from plumbline.mechanism.shared_ledger import SharedLedger
from plumbline.mechanism.statement import GIVEN
from plumbline.training import StepInfo

RECORDS = 600
TWO = [0, 1]


def expected_failed_checks(estimator: Any) -> dict[str, str]:
    reason = "weights above 1 are refused: a record would count for more than its bound"
    return dict.fromkeys(
        [
            "check_sample_weights_list",
            "check_sample_weights_not_overwritten",
            "check_sample_weight_equivalence_on_dense_data",
        ],
        reason,
    )


@pytest.mark.filterwarnings("ignore:At least half of the records:UserWarning")
@parametrize_with_checks(
    [PrivateClassifier(epochs=1), PrivateRegressor(epochs=1)],
    expected_failed_checks=expected_failed_checks,
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def x() -> Any:
    return np.random.default_rng(0).uniform(0, 10, size=(RECORDS, 3))


@pytest.fixture(scope="module")
def y(x: Any) -> Any:
    return (x[:, 0] > x[:, 1]).astype(int)


@pytest.fixture(scope="module")
def fitted(x: Any, y: Any) -> PrivateClassifier:
    made = PrivateClassifier(classes=TWO, ranges=(0, 10), epsilon=8, random_state=0)
    return made.fit(x, y)


def words(estimator: Any) -> str:
    return " ".join(estimator.statement_.split())


def test_it_learns_and_says_what_it_cost(fitted: PrivateClassifier, x: Any, y: Any) -> None:
    assert fitted.score(x, y) > 0.85
    assert 7.9 < fitted.epsilon_ <= 8
    assert fitted.delta_ == 1e-4
    assert "epsilon = 8.00 and delta = 0.0001" in words(fitted)
    logits = fitted.decision_function(x)
    assert logits.shape == (RECORDS,)
    np.testing.assert_allclose(fitted.predict_proba(x)[:, 1], 1 / (1 + np.exp(-logits)))
    assert fitted.total_ is fitted.total_epsilon_ is None  # there is no ledger that would know


def test_a_fit_is_the_one_that_make_private_makes(
    fitted: PrivateClassifier, x: Any, y: Any
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
    inputs = torch.as_tensor(x / 5 - 1, dtype=torch.float32)
    private = pl.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        (inputs, torch.as_tensor(y)),
        loss=nn.CrossEntropyLoss(reduction="none"),
        method=pl.methods.dpsgd(),
        budget=pl.Budget(epsilon=8, delta=1e-4, epochs=20, expected_batch_size=256),
        seed=0,
        deterministic=True,
    )
    private.fit(progress=False)
    # Inputs are computed in another order, so that they differ in their last bits.
    torch.testing.assert_close(fitted.model_.state_dict(), model.state_dict(), rtol=1e-4, atol=1e-5)


def test_seeds_are_said_and_secure_noise_is_the_default(
    fitted: PrivateClassifier, x: Any, y: Any
) -> None:
    assert "only from people who do not know its seed" in words(fitted)
    first, second = (PrivateClassifier(epochs=1).fit(x, y) for _ in range(2))
    assert "seed" not in words(first).split("Where the randomness")[0]
    assert not np.array_equal(first.decision_function(x), second.decision_function(x))
    drawn = PrivateClassifier(epochs=1, random_state=np.random.RandomState(3)).fit(x, y)
    assert "only from people who do not know its seed" in words(drawn)


def test_classes_that_were_read_are_said_to_be(fitted: PrivateClassifier, x: Any, y: Any) -> None:
    assert "the ranges of the features; the classes" in words(fitted)
    assert GIVEN not in words(fitted)
    read = PrivateClassifier(epochs=1).fit(x, np.where(y, "yes", "no"))
    assert list(read.classes_) == ["no", "yes"]
    assert GIVEN in words(read)
    assert "which there are was read from the targets as they are" in words(read)
    assert set(read.predict(x)) <= {"no", "yes"}


def test_declared_classes(x: Any, y: Any) -> None:
    more = PrivateClassifier(classes=[0, 1, 2], epochs=1).fit(x, y)
    assert more.predict_proba(x).shape == (RECORDS, 3)
    secret = np.where(np.arange(RECORDS) == 7, 90210, y)
    with pytest.raises(ValueError, match="not among the declared ones") as refused:
        PrivateClassifier(classes=TWO, epochs=1).fit(x, secret)
    assert "90210" not in str(refused.value)


def test_features_are_clipped_to_what_was_declared(fitted: PrivateClassifier, x: Any) -> None:
    beyond = x.copy()
    beyond[0] = [1e9, -1e9, 5]
    seen = fitted._inputs(beyond)
    assert seen[0].tolist() == [1, -1, 0]
    assert torch.equal(seen[1:], fitted._inputs(x)[1:])  # of the others nothing changes


@pytest.mark.parametrize("ranges", [(1, 1), (0, np.inf), [(0, 1), (0, 1)], "wide"])
def test_ranges_that_are_none_are_refused(ranges: Any, x: Any, y: Any) -> None:
    with pytest.raises(ValueError, match=r"ranges is .*low < high"):
        PrivateClassifier(ranges=ranges).fit(x, y)


def test_regression(x: Any) -> None:
    target = 1000 + 100 * x[:, 0]
    made = PrivateRegressor(
        ranges=[(0, 10)] * 3, target_range=(1000, 2000), epsilon=8, random_state=0
    )
    assert made.fit(x, target).score(x, target) > 0.8
    assert "the ranges of the features; the range of the target" in words(made)


def test_weights_count_after_clipping_and_are_said(x: Any, y: Any) -> None:
    made = PrivateClassifier(epochs=1, random_state=0)
    whole = made.fit(x, y).decision_function(x)
    weighed = made.fit(x, y, sample_weight=np.where(y, 1.0, 0.0)).decision_function(x)
    assert weighed.mean() > whole.mean()
    assert "record_weights" in words(made)
    with pytest.raises(ValueError, match="sample_weight has a value outside 0 to 1"):
        made.fit(x, y, sample_weight=np.full(RECORDS, 1.5))
    with pytest.raises(ValueError, match="depend on all the others"):
        made.fit(x, y, sample_weight=np.where(y, 2.0, 1.0) / np.where(y, 2.0, 1.0).sum())


def test_methods_networks_and_optimizers_of_ones_own(x: Any, y: Any) -> None:
    made = PrivateClassifier(
        method=pl.methods.automatic(), model="mlp", hidden=[4], optimizer="adam", epochs=1
    ).fit(x, y)
    assert isinstance(made.model_[1], nn.Tanh)
    assert made.model_[0].out_features == 4

    def own(features: int, classes: int) -> nn.Module:
        return nn.Sequential(nn.LayerNorm(features), nn.Linear(features, classes))

    assert isinstance(PrivateClassifier(model=own, epochs=1).fit(x, y).model_[0], nn.LayerNorm)
    with pytest.raises(TypeError, match="hidden"):
        PrivateClassifier(model="linear", hidden=4).fit(x, y)


def test_a_fit_begins_anew_though_it_is_given_the_same_network(x: Any, y: Any) -> None:
    pretrained = nn.Linear(x.shape[1], 2)
    before = pretrained.weight.detach().clone()
    made = PrivateClassifier(model=lambda features, classes: pretrained, epochs=1)
    first = made.fit(x, y).model_
    second = made.fit(x, y).model_
    assert first is not second
    assert torch.equal(pretrained.weight, before)


def test_in_a_pipeline_cloned_and_pickled(x: Any, y: Any) -> None:
    line = make_pipeline(PolynomialFeatures(2), PrivateClassifier(ranges=(0, 100), epochs=1))
    again = pickle.loads(pickle.dumps(clone(line).fit(x, y)))
    assert again[-1].n_features_in_ == 10
    assert again.predict(x).shape == (RECORDS,)
    assert again[-1].statement_.startswith("This training run protects every single record")


def test_a_search_says_what_it_costs(x: Any, y: Any, tmp_path: Path) -> None:
    ledger = tmp_path / "people.ledger"
    folds = np.random.default_rng(1).integers(2, size=RECORDS)  # each record's by itself
    search = GridSearchCV(
        PrivateClassifier(
            classes=TWO, epsilon=1, delta=1e-4, epochs=1, records=RECORDS, ledger=ledger
        ),
        {"method": [pl.methods.dpsgd(clip=0.5), "normalised"]},
        cv=PredefinedSplit(folds),
        error_score="raise",
    ).fit(x, y)
    book = SharedLedger.read(ledger)
    assert len(book.runs()) == 2 * 2 + 1  # and the last fit, on all records
    best = search.best_estimator_
    assert best.total_epsilon_ == pytest.approx(book.epsilon(1e-4))
    assert best.total_epsilon_ > 2 > best.epsilon_
    assert "5 runs. Together that costs a record at most epsilon" in best.total_
    assert best.total_ in words(best)


def test_estimators_that_fit_several_times_are_charged_for_each(
    x: Any, y: Any, tmp_path: Path
) -> None:
    ledger = tmp_path / "people.ledger"
    made = PrivateClassifier(classes=TWO, epsilon=1, delta=1e-4, epochs=1, ledger=ledger)
    both = VotingClassifier([("one", made), ("other", clone(made))], voting="soft").fit(x, y)
    first, second = (one.total_epsilon_ for one in both.estimators_)
    assert first < second == pytest.approx(SharedLedger.read(ledger).epsilon(1e-4))
    cross_val_predict(made, x, y, cv=PredefinedSplit(np.arange(RECORDS) % 2))
    assert len(SharedLedger.read(ledger).runs()) == 4
    made.fit(x, y).fit(x, y)  # a second fit begins anew, and costs as much
    assert len(SharedLedger.read(ledger).runs()) == 6


@pytest.mark.parametrize("kind", [BaggingClassifier, AdaBoostClassifier])
def test_ensembles_that_weigh_or_repeat_records_are_refused(
    kind: Any, x: Any, y: Any, tmp_path: Path
) -> None:
    """The one draws records several times; the weights of the other depend on all records."""
    made = PrivateClassifier(classes=TWO, epochs=1)
    with pytest.raises(ValueError, match=r"outside 0 to 1|depend on all the others"):
        kind(made, n_estimators=2).fit(x, y)
    charged = clone(made).set_params(ledger=tmp_path / "ledger")
    with pytest.raises(ValueError, match=f"{kind.__name__}.* give one to each"):
        kind(charged, n_estimators=2).fit(x, y)
    assert not (tmp_path / "ledger").exists()


def test_there_is_no_fit_that_goes_on_with_another(x: Any, y: Any) -> None:
    assert not hasattr(PrivateClassifier, "partial_fit")
    with pytest.raises(ValueError, match="Invalid parameter 'warm_start'"):
        PrivateClassifier().set_params(warm_start=True)


def test_a_limit_of_the_ledger_holds(x: Any, y: Any, tmp_path: Path) -> None:
    ledger = tmp_path / "people.ledger"
    pl.Ledger.open(ledger, limit=(1.2, 1e-4)).close()
    made = PrivateClassifier(epsilon=1, delta=1e-4, epochs=1, ledger=ledger).fit(x, y)
    charged = SharedLedger.read(ledger).entries()
    with pytest.raises(BudgetExceeded):
        clone(made).fit(x, y)
    assert SharedLedger.read(ledger).entries() == charged
    made.set_params(ledger=None).fit(x, y)  # which that ledger does not know of
    assert made.total_epsilon_ is None


def test_a_seed_beside_a_ledger_is_refused(x: Any, y: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="random_state is given beside a ledger"):
        PrivateClassifier(ledger=tmp_path / "ledger", random_state=0).fit(x, y)
    assert not (tmp_path / "ledger").exists()


def test_errors_quote_no_value(x: Any, y: Any) -> None:
    table = x.astype(object)
    table[3, 1] = "Bergen"
    with pytest.raises(ValueError, match="a value that is not a number") as refused:
        PrivateClassifier().fit(table, y)
    assert "Bergen" not in str(refused.value)
    assert refused.value.__context__ is None  # nor does a traceback


def test_a_fit_that_was_interrupted_is_not_taken_for_one(
    x: Any, y: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pl.Private, "fit", lambda *_, **__: StepInfo(1, 20, lambda: 0.1, 1e-4))
    made = PrivateClassifier()
    with pytest.raises(KeyboardInterrupt, match="after step 1 of 20"):
        made.fit(x, y)
    assert not hasattr(made, "model_")
