"""What privacy costs women and men on Adult: plain DP-SGD beside Global-Adapt, at one epsilon.

Trains a small form of Gradient Misalignment's network without privacy, with DP-SGD and with
Global-Adapt, all from the same seeds, and prints accuracy and loss by group and the privacy cost pi
(Gradient Misalignment, Eq. 1): the accuracy that a group loses. The settings are given, not tuned:
a fair comparison tunes every method with the same effort. Takes about half a minute.

    python examples/tabular_fairness.py [--steps 300] [--seeds 2]
"""

import argparse

import torch
from torch import nn

import plumbline as pl
from plumbline import data, fairness, models

# Each with the learning rate that suits its scale: Global-Adapt shortens every gradient by C / Z.
METHODS = {
    "non-private": (pl.methods.nonprivate, {}, 0.05),
    "DP-SGD": (pl.methods.dpsgd, {"clip": 0.5}, 0.5),
    "Global-Adapt": (pl.methods.global_adapt, {"clip": 0.5, "initial": 10.0}, 1.0),
}


def main() -> None:
    """Trains every method with every seed, and compares the groups."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()

    adult = data.load("adult", seed=0)
    x, y = adult.test.fetch(torch.arange(len(adult.test)))
    loss = nn.CrossEntropyLoss(reduction="none")
    runs: dict[str, list[fairness.Outcomes]] = {title: [] for title in METHODS}
    epsilon = 0.0
    for seed in range(options.seeds):
        for title, (make, settings, rate) in METHODS.items():
            torch.manual_seed(seed)
            model = models.build("adult-mlp", hidden=64)
            private = pl.make_private(
                model,
                torch.optim.SGD(model.parameters(), lr=rate),
                adult.train,
                loss=loss,
                method=make(**settings),
                budget=pl.Budget(
                    noise_multiplier=1.0, delta=1e-6, steps=options.steps, expected_batch_size=256
                ),
                seed=seed,  # to repeat the figures; leave it out for a model that you publish
            )
            for batch in private:
                private.step(batch)
            if private.method.unbounded_reason is None:
                epsilon = max(epsilon, private.epsilon())
            with torch.no_grad():
                runs[title].append(fairness.Outcomes.from_logits(model(x), y))

    features = adult.test.sensitive_features
    assert features is not None
    names = dict(enumerate(adult.groups))
    print(f"{options.seeds} seeds, {options.steps} steps, epsilon {epsilon:.2f} at delta 1e-6\n")
    for title, outcomes in runs.items():
        reports = [
            fairness.evaluate(one, sensitive_features=features, names=names) for one in outcomes
        ]
        over = fairness.across_seeds(reports)
        print(title)
        for group, metrics in over.by_group.items():
            accuracy, own = metrics["accuracy"].mean, metrics["loss"].mean
            print(f"  {group:8} accuracy {accuracy:.1%}  loss {own:.3f}")
    print()
    for title in ("DP-SGD", "Global-Adapt"):
        cost = fairness.privacy_cost(
            runs[title], runs["non-private"], sensitive_features=features, names=names
        ).privacy_cost
        each = ", ".join(f"{group} {100 * one.mean:+.1f}" for group, one in cost.by_group.items())
        print(
            f"privacy cost of {title}, points of accuracy: {each}; gap {100 * cost.gap.value:.1f}"
        )
    print("\nAll of this is measured on test records and is not covered by epsilon.")


if __name__ == "__main__":
    main()
