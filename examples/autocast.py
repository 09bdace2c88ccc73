"""Mixed precision and compiled models, where they work: inside the loss, and for evaluation.

Trains a small network privately with bfloat16 ``autocast`` inside the loss, so that layers compute
with 8 bits of precision while norms, clipping and noise keep theirs. Then compiles a model with the
same weights for evaluation, and shows what happens when either is put where it breaks the
guarantee: it is refused, before anything is charged. Takes a few seconds.

    python examples/autocast.py [--steps 100] [--backend eager]
"""

import argparse

import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline import data
from plumbline.gradients.errors import CaptureError


@pl.batch_loss
def narrow(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """One loss per record; the model computes in bfloat16, the loss in float32."""
    x, y = batch
    with torch.autocast(x.device.type, torch.bfloat16):
        logits = model(x)
    return nn.functional.cross_entropy(logits.float(), y, reduction="none")


def main() -> None:
    """Trains, evaluates, and shows the two refusals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--backend", default="eager", help="of torch.compile; inductor is fast")
    options = parser.parse_args()

    adult = data.load("adult", scaling="public")
    model = nn.Sequential(nn.Linear(len(adult.features), 32), nn.Tanh(), nn.Linear(32, 2))
    compiled = torch.compile(model, backend=options.backend)  # the same weights

    def run(given: nn.Module) -> pl.Private:
        return pl.make_private(
            given,
            torch.optim.SGD(given.parameters(), lr=0.5),
            adult.train,
            loss=narrow,
            method=pl.methods.dpsgd(clip=1.0),
            budget=pl.Budget(epsilon=3, delta=1e-6, steps=options.steps, expected_batch_size=512),
        )

    private = run(model)
    private.fit(progress=False)
    x, y = adult.test.fetch(torch.arange(len(adult.test)))
    with torch.no_grad():
        accuracy = float((compiled(x).argmax(1) == y).float().mean())
    print(
        f"test accuracy {accuracy:.1%} (not covered by epsilon) at epsilon {private.epsilon():.2f}"
    )

    try:
        run(compiled)
    except CaptureError as error:
        print(f"\na compiled model is refused: {error}")
    private = run(model)
    batch = next(iter(private))
    try:
        with torch.autocast("cpu", torch.bfloat16):
            private.step(batch)
    except CaptureError as error:
        print(f"\nautocast around a step is refused: {error}")
    print(f"charged for it: {private.steps_done} steps")


if __name__ == "__main__":
    main()
