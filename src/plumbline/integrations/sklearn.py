"""scikit-learn estimators that train privately: ``PrivateClassifier`` and ``PrivateRegressor``.

Guarantee: nothing but the weights depends on the records, as ``statement_`` says: features and
targets are mapped by ranges that were declared, or used as they are, and never by what was seen.
The one exception are classes that were not declared, which the statement names. With a ``ledger``
every fit is charged before its result exists, so that a search cannot spend unseen: the total is in
``total_epsilon_`` and in the statement of the last fit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from plumbline import models
from plumbline.data.base import Split
from plumbline.experiments.charged_runs import ChargedRuns
from plumbline.experiments.running import RESERVE
from plumbline.experiments.together import totals
from plumbline.instruments.describing import default_delta
from plumbline.mechanism.calibration import Budget
from plumbline.mechanism.shared_ledger import SharedLedger
from plumbline.methods import Method, find
from plumbline.objectives import OPTIMIZERS, OptimizerMaker, mse
from plumbline.private_training import make_private

Build = Callable[..., nn.Module]
Ranges = tuple[float, float] | Sequence[tuple[float, float]]


class _PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators do; see ``PrivateClassifier``."""

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float | None,
        epochs: float,
        expected_batch_size: int | None,
        records: int | None,
        method: str | Method,
        model: str | Build,
        hidden: int | Sequence[int] | None,
        optimizer: str | OptimizerMaker,
        learning_rate: float,
        ranges: Ranges | None,
        ledger: str | os.PathLike[str] | None,
        random_state: Any,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.epochs = epochs
        self.expected_batch_size = expected_batch_size
        self.records = records
        self.method = method
        self.model = model
        self.hidden = hidden
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.ranges = ranges
        self.ledger = ledger
        self.random_state = random_state

    def _train(
        self,
        x: np.ndarray[Any, Any],
        target: Tensor,
        outputs: int,
        loss: Callable[..., Tensor],
        sample_weight: Any,
        *,
        stated: Sequence[str],
        not_covered: Sequence[str],
    ) -> None:
        seed = self._seed()
        if seed is not None and self.ledger is not None:
            raise ValueError(
                "random_state is given beside a ledger. Fits that share a seed share their "
                "batches, so what they cost together has no bound. Leave one of the two out."
            )
        weights = None
        if sample_weight is not None:
            weights = torch.tensor(_check_sample_weight(sample_weight, x, dtype=np.float64))
            if not bool(((weights >= 0) & (weights <= 1)).all()):
                raise ValueError(
                    "sample_weight has a value outside 0 to 1: a record would count for more than "
                    "its bound. Divide all of them by the largest that the rule can give."
                )
        split = Split(self._inputs(x), target)
        declared = () if self.ranges is None else ("the ranges of the features",)
        split.stated, split.not_covered = (*declared, *stated), tuple(not_covered)
        with ExitStack() as stack:
            if seed is not None:
                stack.enter_context(torch.random.fork_rng(devices=[]))
                torch.manual_seed(seed)
            network = self._network(x.shape[1], outputs)
            book = (
                nullcontext()
                if self.ledger is None
                else SharedLedger.open(self.ledger, reserve=RESERVE)
            )
            ledger = stack.enter_context(book)
            private = make_private(
                network,
                self._optimizer(network),
                split,
                loss=loss,
                method=find(self.method).make() if isinstance(self.method, str) else self.method,
                budget=self._budget(len(x)),
                record_weights=weights,
                seed=seed,
                deterministic=seed is not None,
                ledger=ledger,
            )
            if ledger is not None:
                title, name = type(self).__name__, private.method.name
                about = {"title": f"{title}, {name}", "method": name, "part": "run"}
                ledger.describe(private.run, about)
            end = private.fit(progress=False)
            private.close()
        if end.step < end.steps:  # Ctrl-C, after which fit stops in good order
            raise KeyboardInterrupt(f"after step {end.step:,} of {end.steps:,}")
        self.model_ = network.eval()
        self.delta_ = private.plan.delta
        self.total_: str | None = None
        self.total_epsilon_: float | None = None
        if self.ledger is not None:
            self._count(Path(self.ledger))
            private.warnings += (f"Its ledger counts all fits on these records. {self.total_}",)
        self.statement_ = private.statement()
        self.epsilon_ = private.epsilon(exact=True)

    def _count(self, ledger: Path) -> None:
        """What everything that was charged to the ledger costs together."""
        found = totals(ChargedRuns([ledger]), delta=self.delta_)
        self.total_ = found.everything_words
        self.total_epsilon_ = found.everything.epsilon if found.everything.bounded else math.inf

    def _seed(self) -> int | None:
        given = self.random_state
        if given is None or isinstance(given, int):
            return given
        return int(check_random_state(given).randint(np.iinfo(np.int32).max))

    def _budget(self, seen: int) -> Budget:
        records = seen if self.records is None else self.records
        delta, batch = self.delta, self.expected_batch_size
        return Budget(
            epsilon=self.epsilon,
            delta=default_delta(records) if delta is None else delta,
            epochs=self.epochs,
            expected_batch_size=min(records, max(256, records // 40)) if batch is None else batch,
            records=self.records,
        )

    def _network(self, features: int, outputs: int) -> nn.Module:
        sizes = {} if self.hidden is None else {"hidden": self.hidden}
        options = {"features": features, "classes": outputs, **sizes}
        if isinstance(self.model, str):
            return models.build(self.model, **options)
        return self.model(**options)

    def _optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        make = OPTIMIZERS.find(self.optimizer) if isinstance(self.optimizer, str) else None
        maker = cast(OptimizerMaker, self.optimizer if make is None else make)
        return maker(network.parameters(), lr=self.learning_rate)

    def _inputs(self, x: np.ndarray[Any, Any]) -> Tensor:
        """The features as the model sees them, ``[n, d]``: declared ranges become [-1, 1]."""
        if self.ranges is None:
            return torch.tensor(x, dtype=torch.float32)
        low, high = _bounds("ranges", self.ranges, x.shape[1])
        return torch.tensor(_mapped(x, low, high), dtype=torch.float32)

    def _outputs(self, x: Any) -> np.ndarray[Any, Any]:
        check_is_fitted(self, "model_")
        with torch.no_grad():
            found = self.model_(self._inputs(_checked(self, x, reset=False)))
        return cast("np.ndarray[Any, Any]", found.double().numpy())


class PrivateClassifier(ClassifierMixin, _PrivateEstimator):  # type: ignore[misc]
    """A classifier trained with differential privacy.

    Args:
        classes: All classes that a target can have. If None they are read from ``y``, which epsilon
            does not cover, and the statement says so.
        epsilon: What one fit may cost.
        delta: At which; by default 1/(10 n), rounded down to a power of ten.
        epochs: How often a record takes part, on average.
        expected_batch_size: The mean size of a batch; by default a fortieth of the records, and at
            least 256 where there are as many.
        records: The number of records, where it is public. If None the number in ``X`` is used, and
            the statement says that it is treated as public.
        method: A method of ``plumbline.methods``, or its name.
        model: The name of a network ("linear", "mlp"), or a function of ``features`` and
            ``classes`` (how many there are of each) that builds one.
        hidden: The sizes of the hidden layers, for networks that have such an option.
        optimizer: Its name ("sgd", "adam"), or a function of the parameters and ``lr``.
        learning_rate: Its learning rate.
        ranges: Public bounds of the features: one (low, high) for all, or one for each. Features
            are clipped to them and mapped to [-1, 1]. If None, features are used as they are.
        ledger: The file that every fit is charged to. It is made where there is none, and may be
            shared by several processes.
        random_state: None for noise that nobody can recompute. An int, or a generator, makes a fit
            repeatable, and the statement says that who knows the seed knows the noise.

    Attributes:
        classes_: The classes.
        model_: The trained network.
        epsilon_: What this fit has cost, rounded up.
        delta_: At which delta.
        statement_: The guarantee in words, with its assumptions.
        total_epsilon_: What everything charged to the ledger costs together; infinite if that has
            no bound, and None without a ledger.
        total_: The same in words.
    """

    def __init__(
        self,
        *,
        classes: Sequence[Any] | None = None,
        epsilon: float = 3.0,
        delta: float | None = None,
        epochs: float = 20.0,
        expected_batch_size: int | None = None,
        records: int | None = None,
        method: str | Method = "dpsgd",
        model: str | Build = "linear",
        hidden: int | Sequence[int] | None = None,
        optimizer: str | OptimizerMaker = "sgd",
        learning_rate: float = 0.5,
        ranges: Ranges | None = None,
        ledger: str | os.PathLike[str] | None = None,
        random_state: Any = None,
    ) -> None:
        self.classes = classes
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            epochs=epochs,
            expected_batch_size=expected_batch_size,
            records=records,
            method=method,
            model=model,
            hidden=hidden,
            optimizer=optimizer,
            learning_rate=learning_rate,
            ranges=ranges,
            ledger=ledger,
            random_state=random_state,
        )

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Trains on the records.

        Args:
            X: The features, ``[n, d]``.
            y: The classes, ``[n]``.
            sample_weight: By how much each record counts once it is clipped, ``[n]`` from 0 to 1: a
                public rule's answer to that record alone.

        Raises:
            BudgetExceeded: If the ledger has a limit and no room for the fit.
        """
        x, y = _checked(self, X, y)
        check_classification_targets(y)
        self.classes_ = np.unique(y if self.classes is None else np.asarray(self.classes))
        if not np.isin(y, self.classes_).all():
            raise ValueError(
                "y has a class that is not among the declared ones. Declare all that there can be "
                "in classes=, or leave out its records."
            )
        if len(self.classes_) < 2:
            raise ValueError("There is 1 class; a classifier needs at least 2 to tell apart.")
        read = self.classes is None
        self._train(
            x,
            torch.as_tensor(np.searchsorted(self.classes_, y)),
            len(self.classes_),
            nn.CrossEntropyLoss(reduction="none"),
            sample_weight,
            stated=[] if read else ["the classes"],
            not_covered=[_CLASSES] if read else [],
        )
        return self

    def decision_function(self, X: Any) -> np.ndarray[Any, Any]:
        """The logits, ``[n, classes]``; of two classes that of the second over the first, [n]."""
        logits = self._outputs(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:
        """Each class's probability, ``[n, classes]``."""
        found = torch.as_tensor(self._outputs(X)).softmax(1).numpy()
        return cast("np.ndarray[Any, Any]", found)

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """The likeliest class, ``[n]``."""
        places = self._outputs(X).argmax(1)
        return cast("np.ndarray[Any, Any]", self.classes_[places])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # on a few hundred records noise prevails
        return tags


class PrivateRegressor(RegressorMixin, _PrivateEstimator):  # type: ignore[misc]
    """A regression of one number, trained with differential privacy, by the squared error.

    Args:
        target_range: Public bounds (low, high) of the target, which is clipped to them and mapped
            to [-1, 1]. If None it is used as it is, and should be about that large: the gradient of
            a record is clipped, so that large targets are reached in many steps only.
        epsilon: As of ``PrivateClassifier``, and so are all others.
        delta: At which.
        epochs: How often a record takes part.
        expected_batch_size: The mean size of a batch.
        records: The number of records, where it is public.
        method: A method or its name.
        model: A network's name, or a function of ``features`` and ``classes``, which is 1.
        hidden: The sizes of the hidden layers.
        optimizer: Its name or a function.
        learning_rate: Its learning rate.
        ranges: Public bounds of the features.
        ledger: The file that every fit is charged to.
        random_state: None for noise that nobody can recompute.

    Attributes:
        model_: As of ``PrivateClassifier``, and so are ``epsilon_``, ``delta_``, ``statement_``,
            ``total_epsilon_`` and ``total_``.
    """

    def __init__(
        self,
        *,
        target_range: tuple[float, float] | None = None,
        epsilon: float = 3.0,
        delta: float | None = None,
        epochs: float = 20.0,
        expected_batch_size: int | None = None,
        records: int | None = None,
        method: str | Method = "dpsgd",
        model: str | Build = "linear",
        hidden: int | Sequence[int] | None = None,
        optimizer: str | OptimizerMaker = "sgd",
        learning_rate: float = 0.5,
        ranges: Ranges | None = None,
        ledger: str | os.PathLike[str] | None = None,
        random_state: Any = None,
    ) -> None:
        self.target_range = target_range
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            epochs=epochs,
            expected_batch_size=expected_batch_size,
            records=records,
            method=method,
            model=model,
            hidden=hidden,
            optimizer=optimizer,
            learning_rate=learning_rate,
            ranges=ranges,
            ledger=ledger,
            random_state=random_state,
        )

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Trains on the records.

        Args:
            X: The features, ``[n, d]``.
            y: The targets, ``[n]``.
            sample_weight: As of ``PrivateClassifier``.

        Raises:
            BudgetExceeded: If the ledger has a limit and no room for the fit.
        """
        x, y = _checked(self, X, y, y_numeric=True)
        stated = []
        if self.target_range is not None:
            low, high = _bounds("target_range", self.target_range, 1)
            y, stated = _mapped(y, low, high), ["the range of the target"]
        target = torch.tensor(y, dtype=torch.float32)
        self._train(x, target, 1, mse, sample_weight, stated=stated, not_covered=())
        return self

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """The targets, ``[n]``."""
        found = self._outputs(X).reshape(-1)
        if self.target_range is not None:
            low, high = _bounds("target_range", self.target_range, 1)
            found = low + (found + 1) / 2 * (high - low)
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


_CLASSES = "the classes: which there are was read from the targets as they are"


def _checked(estimator: Any, *given: Any, **settings: Any) -> Any:
    """What scikit-learn makes of X (and y), with errors that quote none of it."""
    try:
        return validate_data(estimator, *given, **settings)
    except ValueError as error:
        if "could not convert" not in str(error):
            raise
    raise ValueError(
        "X or y has a value that is not a number. Encode it first, by a rule that does not depend "
        "on the records, such as OneHotEncoder(categories=[...])."
    )


def _bounds(name: str, given: Any, columns: int) -> tuple[Any, Any]:
    """Lows and highs, one for each column."""
    try:
        both = np.broadcast_to(np.asarray(given, dtype=np.float64), (columns, 2))
    except ValueError:
        both = np.full((columns, 2), np.nan)
    low, high = both.T
    if not (np.isfinite(both).all() and (low < high).all()):
        raise ValueError(
            f"{name} is {given!r}; give (low, high) with low < high, or one such pair for each of "
            f"the {columns} columns."
        )
    return low, high


def _mapped(values: Any, low: Any, high: Any) -> Any:
    """Values clipped to [low, high] and mapped to [-1, 1]."""
    return (np.clip(values, low, high) - low) / (high - low) * 2 - 1
