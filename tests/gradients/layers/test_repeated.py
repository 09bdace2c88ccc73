from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.harness import (
    PRECISIONS,
    Precision,
    assert_matches_loop,
    record_losses,
)

FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "expand": lambda token, x: token.expand(len(x), 2, 4),
    "expand with -1": lambda token, x: token.expand(len(x), -1, -1),
    "expand with a size": lambda token, x: token.expand(torch.Size((len(x), 2, 4))),
    "expand_as": lambda token, x: token.expand_as(x[:, :2]),
    "repeat": lambda token, x: token.repeat(len(x), 1, 1),
    "repeat with a tuple": lambda token, x: token.repeat((len(x), 1, 1)),
    "repeat inside": lambda token, x: token.repeat(len(x), 2, 1)[:, :2],
    "tile": lambda token, x: torch.tile(token, (len(x), 1, 1)),
    "without a leading one": lambda token, x: token[0].expand(len(x), -1, -1),
    "two new dimensions": lambda token, x: token[0, 0].expand(len(x), 2, -1),
    "repeat of a matrix": lambda token, x: token[0].repeat(len(x), 1, 1),
    "unsqueeze and expand": lambda token, x: token[0].unsqueeze(0).expand(len(x), -1, -1),
    "broadcast_to": lambda token, x: torch.broadcast_to(token, (len(x), 2, 4)),
    "repeat_interleave": lambda token, x: token.repeat_interleave(len(x), dim=0),
    "index": lambda token, x: token[torch.zeros(len(x), dtype=torch.long)],
    "stack": lambda token, x: torch.stack([token[0]] * len(x)),
    "zeros plus token": lambda token, x: torch.zeros(len(x), 2, 4, dtype=x.dtype) + token,
}


class Token(nn.Module):
    def __init__(self, form: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 2, 4))
        self.linear = nn.Linear(4, 3)
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.tanh(torch.cat([self.form(self.token, x), x], dim=1)))


@PRECISIONS
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_one_copy_per_record(
    form: Callable[[Tensor, Tensor], Tensor], precision: Precision
) -> None:
    assert_matches_loop(Token(form), torch.randn(5, 3, 4), **precision)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("records", [1, 2, 4], ids=["one", "two", "four"])
def test_as_many_records_as_the_token_has_rows_or_columns(
    form: Callable[[Tensor, Tensor], Tensor], records: int
) -> None:
    assert_matches_loop(Token(form), torch.randn(records, 3, 4))


def test_copies_before_any_record_is_seen() -> None:
    class Prompt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.randn(1, 2, 4))
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            raise NotImplementedError("the loss below calls another method")

        def answer(self, x: Tensor) -> Tensor:
            token = self.token.expand(len(x), -1, -1)
            return self.linear(torch.tanh(torch.cat([token, x], dim=1)))

    assert_matches_loop(
        Prompt(), torch.randn(5, 3, 4), losses=lambda m, x: record_losses(m.answer(x))
    )


@PRECISIONS
@pytest.mark.parametrize("records", [5, 3, 1])
def test_copies_along_the_sequence_are_no_records(records: int, precision: Precision) -> None:
    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = nn.Parameter(torch.randn(1, 4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x + self.step.expand(3, -1) + self.step.repeat(3, 1))

    assert_matches_loop(Sequence(), torch.randn(records, 3, 4), **precision)


@PRECISIONS
@pytest.mark.parametrize("length", [2, 3, 5, 8])
def test_as_many_copies_along_the_sequence_as_records(length: int, precision: Precision) -> None:
    class Sequence(nn.Module):
        """The layer in front computes in bfloat16, with which the check has to be patient."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.step = nn.Parameter(torch.randn(1, 4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.linear(x) + self.step.expand(length, -1))

    assert_matches_loop(Sequence(), torch.randn(length, length, 4), **precision)


@PRECISIONS
def test_a_made_parameter_is_copied(precision: Precision) -> None:
    class Made(Token):
        def forward(self, x: Tensor) -> Tensor:
            token = torch.tanh(self.linear.weight.sum() * self.token).expand(len(x), -1, -1)
            return self.linear(torch.cat([token, x], dim=1))

    assert_matches_loop(Made(FORMS["expand"]), torch.randn(5, 3, 4), **precision)


@PRECISIONS
def test_sequence_first_copies(precision: Precision) -> None:
    class SequenceFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.randn(1, 1, 4))
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            token = self.token.expand(-1, x.shape[1], -1)
            return self.linear(torch.cat([token, x]))

    assert_matches_loop(SequenceFirst(), torch.randn(3, 5, 4), batch_dim=1, **precision)
