"""Private fine-tuning of a small vision transformer with LoRA; no download.

The transformer is built from a config and pretrained, without privacy, on the digits 0 to 4, which
stand for public data. Then low-rank updates of its attention and a new classifier are trained with
differential privacy on the digits 5 to 9, which stand for the records to protect. With your own
model the first part is ``fine_tuning.load("google/vit-base-patch16-224-in21k", ...)``. Needs the
extra ``transformers``. Takes about half a minute.

    python examples/transformer_lora.py [--steps 60] [--pretraining 300] [--epsilon 8]
"""

import argparse

import torch
import transformers
from torch import nn

import plumbline as pl
from plumbline import data
from plumbline.models.fine_tuning import fine_tune


def main() -> None:
    """Pretrains in the open, fine-tunes in private."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pretraining", type=int, default=300)
    parser.add_argument("--epsilon", type=float, default=8.0)
    options = parser.parse_args()

    digits = data.load("digits")
    low = torch.nonzero(digits.train.y < 5).flatten()
    x_public, y_public = digits.train.fetch(low)
    high = torch.nonzero(digits.train.y >= 5).flatten()
    x, y = digits.train.fetch(high)
    x_test, y_test = digits.test.fetch(torch.nonzero(digits.test.y >= 5).flatten())

    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        num_labels=5,
    )
    network = transformers.ViTForImageClassification(config)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    for _ in range(options.pretraining):
        rows = torch.randint(len(y_public), (64,))
        optimizer.zero_grad()
        logits = network(x_public[rows]).logits
        nn.functional.cross_entropy(logits, y_public[rows]).backward()
        optimizer.step()

    network.classifier = nn.Linear(config.hidden_size, 5)  # for the digits 5 to 9
    model = fine_tune(network, tune="lora", lora_rank=4)
    trainable = [p for p in model.parameters() if p.requires_grad]
    total = sum(p.numel() for p in model.parameters())
    print(f"trained: {sum(p.numel() for p in trainable):,} of {total:,} parameters")

    private = pl.make_private(
        model,
        torch.optim.AdamW(trainable, lr=1e-2),
        (x, y - 5),
        loss=nn.CrossEntropyLoss(reduction="none"),
        method=pl.methods.dpsgd(clip=1.0),
        budget=pl.Budget(
            epsilon=options.epsilon, delta=1e-4, steps=options.steps, expected_batch_size=240
        ),
    )
    private.fit(progress=False)
    with torch.no_grad():
        right = (model.eval()(x_test).argmax(1) == y_test - 5).float().mean()
    print(f"digits 5 to 9: test accuracy {right:.1%} at epsilon {private.epsilon():.2f}")
    print("What the transformer was pretrained on (here the digits 0 to 4) is not protected.")


if __name__ == "__main__":
    main()
