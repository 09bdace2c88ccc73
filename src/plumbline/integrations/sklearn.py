"""scikit-learn estimators that train privately: ``PrivateClassifier`` and ``PrivateRegressor``.

Guarantee: nothing but the weights depends on the records, as ``statement_`` says: features and
targets are mapped by ranges that were declared, or used as they are, and never by what was seen.
The one exception are classes that were not declared, which the statement names. With a ``ledger``
every fit is charged before its result exists, so that a search cannot spend unseen: the total is in
``total_epsilon_`` and in the statement of the last fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import nn

from plumbline.integrations.sklearn_training import PrivateEstimator, bounds, checked, mapped
from plumbline.objectives import mse

_CLASSES = "the classes: which there are was read from the targets as they are"


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
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

    classes: Sequence[Any] | None = None

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
        x, y = checked(self, X, y)
        check_classification_targets(y)
        classes = np.unique(y if self.classes is None else np.asarray(self.classes))
        if not np.isin(y, classes).all():
            raise ValueError(
                "y has a class that is not among the declared ones. Declare all that there can be "
                "in classes=, or leave out its records."
            )
        if len(classes) < 2:
            raise ValueError("There is 1 class; a classifier needs at least 2 to tell apart.")
        read = self.classes is None
        self._train(
            x,
            torch.as_tensor(np.searchsorted(classes, y)),
            len(classes),
            nn.CrossEntropyLoss(reduction="none"),
            sample_weight,
            stated=[] if read else ["the classes"],
            not_covered=[_CLASSES] if read else [],
        )
        self.classes_ = classes
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


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
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

    target_range: tuple[float, float] | None = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Trains on the records.

        Args:
            X: The features, ``[n, d]``.
            y: The targets, ``[n]``.
            sample_weight: As of ``PrivateClassifier``.

        Raises:
            BudgetExceeded: If the ledger has a limit and no room for the fit.
        """
        x, y = checked(self, X, y, y_numeric=True)
        stated = []
        if self.target_range is not None:
            low, high = bounds("target_range", self.target_range, 1)
            y, stated = mapped(y, low, high), ["the range of the target"]
        target = torch.tensor(y, dtype=torch.float32)
        self._train(x, target, 1, mse, sample_weight, stated=stated, not_covered=())
        return self

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """The targets, ``[n]``."""
        found = self._outputs(X).reshape(-1)
        if self.target_range is not None:
            low, high = bounds("target_range", self.target_range, 1)
            found = low + (found + 1) / 2 * (high - low)
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags
