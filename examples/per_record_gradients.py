"""What clipping does to two groups, seen from every record's own gradient. Takes a few seconds.

The data are synthetic and said to be: two groups whose label depends on different features, one
group four times as large. A network learns first without privacy, then with it; on the way the
script looks at each record's gradient, which no step of either run ever builds.
"""

import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.gradients import Perturbation, capture, explain

RECORDS, FEATURES, CLIP = 6_000, 20, 0.5
NAMES = ("majority", "minority")


def two_groups(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Features, labels and group of each record."""
    group = (torch.rand(RECORDS, generator=generator) < 0.2).long()
    x = torch.randn(RECORDS, FEATURES, generator=generator)
    score = torch.where(group == 0, x[:, 0] + x[:, 1], x[:, 2] - x[:, 0])
    y = (score + 0.2 * torch.randn(RECORDS, generator=generator) > 0).long()
    x[:, -1] = group
    return x, y, group


def network() -> nn.Module:
    """An MLP with the same weights on every call."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
    )


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """One loss per row; a capture calls it with one record, so that records cannot mix."""
    x, y = batch
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def accuracy(model: nn.Module, x: Tensor, y: Tensor, group: Tensor) -> str:
    """Accuracy by group, as text."""
    right = model(x).argmax(1) == y
    parts = (f"{name} {right[group == k].float().mean():.1%}" for k, name in enumerate(NAMES))
    return ", ".join(parts)


def main() -> None:
    """Trains twice and looks at the gradients in between."""
    x, y, group = two_groups(torch.Generator().manual_seed(1))
    loss = nn.CrossEntropyLoss(reduction="none")

    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        loss(model(x), y).mean().backward()
        optimizer.step()
    print(f"Without privacy:  {accuracy(model, x, y, group)}")

    # Every record's gradient: one forward and one backward pass, nothing of size batch x weights.
    gradients = capture(model, losses, (x, y))
    norms = gradients.norms()
    factors = (CLIP / norms).clamp(max=1)
    print(f"\nEvery record's gradient at these weights, clipped at {CLIP}:")
    for k, name in enumerate(NAMES):
        mine = group == k
        total = gradients.sum(mine.float())
        clipped = gradients.sum(factors * mine)
        before = torch.cat([value.flatten() for value in total.values()])
        after = torch.cat([value.flatten() for value in clipped.values()])
        cosine = torch.cosine_similarity(before, after, dim=0)
        print(
            f"  {name}: median norm {norms[mine].median():.3f}, "
            f"{(norms[mine] > CLIP).float().mean():.0%} of the records clipped, the group's summed "
            f"gradient keeps {after.norm() / before.norm():.0%} of its length and turns to a "
            f"cosine of {cosine:.2f}"
        )

    # Each record at its own weights, theta + 0.02 g_i / |g_i|, in one more pass (BAM's ascent).
    ascent = capture(model, losses, (x, y), at=Perturbation(gradients, 0.02 / norms))
    rise = (ascent.losses - gradients.losses).mean()
    print(f"  moving each record 0.02 along its own gradient raises its loss by {rise:.4f}")
    print()
    explain(model, x)

    model = network()
    private = pl.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        (x, y),
        loss=loss,
        method=pl.methods.dpsgd(clip=CLIP),
        budget=pl.Budget(epsilon=3, delta=1e-5, epochs=20, expected_batch_size=300),
    )
    for batch in private:
        private.step(batch)
    print(f"\nWith epsilon {private.epsilon():.2f}: {accuracy(model, x, y, group)}")
    print(f"\n{private.statement()}")
    print("Accuracies and gradients above read the exact data: they are not covered by epsilon.")


if __name__ == "__main__":
    main()
