"""Clipping Bias Reduction's network for IMDb, section 5.1 item 2, and its normalised gates.

The gates' pre-activations, from the word and from the hidden state, are standardised over their
coordinates, each by a flag. The time steps are an explicit loop over ordinary layers, because
``nn.GRU`` allows nothing between its matrix product and its gates.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from plumbline.models.registry import model
from plumbline.models.standardisation import standardise


@model("imdb-gru")
def imdb_gru(
    *,
    features: int = 100,
    hidden: int = 64,
    classes: int = 2,
    normalised: bool = True,
    normalise_input: bool | None = None,
    normalise_hidden: bool | None = None,
) -> nn.Module:
    """A GRU whose last hidden state goes to a linear layer: 32,002 trainable parameters.

    Args:
        features: The length of a word vector: records are ``[T, features]``, as those of "imdb"
            with ``vectors``.
        hidden: The length of the hidden state.
        classes: The number of logits, ``[B, classes]``.
        normalised: The paper's enhancement: both of the following, unless they are given.
        normalise_input: Standardise the ``[3 hidden]`` pre-activations from the word.
        normalise_hidden: Standardise those from the hidden state.
    """
    return GRU(
        features,
        hidden,
        classes,
        normalise_input=normalised if normalise_input is None else normalise_input,
        normalise_hidden=normalised if normalise_hidden is None else normalise_hidden,
    )


class GRU(nn.Module):
    """The equations of ``nn.GRU``, with two places for standardisation."""

    def __init__(
        self,
        features: int,
        hidden: int,
        classes: int,
        *,
        normalise_input: bool,
        normalise_hidden: bool,
    ) -> None:
        super().__init__()
        self.from_input = nn.Linear(features, 3 * hidden)
        self.from_hidden = nn.Linear(hidden, 3 * hidden)
        self.head = nn.Linear(hidden, classes)
        self.normalise_input = normalise_input
        self.normalise_hidden = normalise_hidden

    def forward(self, words: Tensor) -> Tensor:
        """Word vectors ``[B, T, features]`` to logits ``[B, classes]``."""
        given = self.from_input(words)  # all steps at once: they do not depend on each other
        if self.normalise_input:
            given = standardise(given)
        state = given.new_zeros(len(given), self.from_hidden.in_features)
        for step in given.unbind(1):
            state = self._step(step, state)
        logits: Tensor = self.head(state)
        return logits

    def _step(self, given: Tensor, state: Tensor) -> Tensor:
        """The next hidden state ``[B, hidden]``, from a word's part of the gates and the last."""
        kept = self.from_hidden(state)
        if self.normalise_hidden:
            kept = standardise(kept)
        reset_given, update_given, new_given = given.chunk(3, 1)
        reset_kept, update_kept, new_kept = kept.chunk(3, 1)
        reset = torch.sigmoid(reset_given + reset_kept)
        update = torch.sigmoid(update_given + update_kept)
        new = torch.tanh(new_given + reset * new_kept)
        return (1 - update) * new + update * state
