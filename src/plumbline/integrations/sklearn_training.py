"""What the scikit-learn estimators share: from checked arrays to a private fit and its total."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
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
from plumbline.objectives import OPTIMIZERS, OptimizerMaker
from plumbline.private_training import make_private
from plumbline.training.setup import require_own_weights

Build = Callable[..., nn.Module]
Ranges = tuple[float, float] | Sequence[tuple[float, float]]


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators do; see ``PrivateClassifier``.

    A dataclass has the ``__init__`` that scikit-learn asks for: every setting by name, kept as it
    is.
    """

    epsilon: float = 3.0
    delta: float | None = None
    epochs: float = 20.0
    expected_batch_size: int | None = None
    records: int | None = None
    method: str | Method = "dpsgd"
    model: str | Build = "linear"
    hidden: int | Sequence[int] | None = None
    optimizer: str | OptimizerMaker = "sgd"
    learning_rate: float = 0.5
    ranges: Ranges | None = None
    ledger: str | os.PathLike[str] | None = None
    random_state: Any = None

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
                "random_state is given beside a ledger (BaggingClassifier and AdaBoostClassifier "
                "give one to each of their estimators). Fits that share a seed share their "
                "batches, so what they cost together has no bound. Leave one of the two out."
            )
        weights = None
        if sample_weight is not None:
            weights = torch.tensor(_check_sample_weight(sample_weight, x, dtype=np.float64))
            require_own_weights("sample_weight", weights)
        split = Split(self._inputs(x), target)
        declared = () if self.ranges is None else ("the ranges of the features",)
        split.stated, split.not_covered = (*declared, *stated), tuple(not_covered)
        with ExitStack() as stack:
            if seed is not None:
                stack.enter_context(torch.random.fork_rng(devices=[]))
                torch.manual_seed(seed)
            network = self._network(x.shape[1], outputs)
            ledger = None
            if self.ledger is not None:
                ledger = stack.enter_context(SharedLedger.open(self.ledger, reserve=RESERVE))
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
            private.warnings += (f"The ledger counts every fit on these records. {self.total_}",)
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
        # A copy: given the same network twice, a fit would go on with what others have spent.
        return copy.deepcopy(self.model(**options))

    def _optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        given = self.optimizer
        make: OptimizerMaker = OPTIMIZERS.find(given) if isinstance(given, str) else given
        return make(network.parameters(), lr=self.learning_rate)

    def _inputs(self, x: np.ndarray[Any, Any]) -> Tensor:
        """The features as the model sees them, ``[n, d]``: declared ranges become [-1, 1]."""
        if self.ranges is None:
            return torch.tensor(x, dtype=torch.float32)
        low, high = bounds("ranges", self.ranges, x.shape[1])
        return torch.tensor(mapped(x, low, high), dtype=torch.float32)

    def _outputs(self, x: Any) -> np.ndarray[Any, Any]:
        check_is_fitted(self, "model_")
        with torch.no_grad():
            found = self.model_(self._inputs(checked(self, x, reset=False)))
        return cast("np.ndarray[Any, Any]", found.double().numpy())


def checked(estimator: Any, *given: Any, **settings: Any) -> Any:
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


def bounds(name: str, given: Any, columns: int) -> tuple[Any, Any]:
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


def mapped(values: Any, low: Any, high: Any) -> Any:
    """Values clipped to [low, high] and mapped to [-1, 1]."""
    return (np.clip(values, low, high) - low) / (high - low) * 2 - 1
