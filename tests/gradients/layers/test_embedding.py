import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from plumbline.gradients import RecordsMixError, capture
from tests.gradients.harness import (
    AUTOCAST,
    PRECISIONS,
    Precision,
    assert_matches_loop,
    output_losses,
)


class Tokens(nn.Module):
    """Token and position embeddings; positions are the same for every record."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(10, 4), nn.Embedding(length, 4)
        self.register_buffer("places", torch.arange(length))
        self.end = nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.end(torch.tanh(self.tokens(tokens) + self.where(tokens)))

    def where(self, tokens: Tensor) -> Tensor:
        return self.positions(torch.arange(tokens.shape[1]))


class Buffered(Tokens):
    def where(self, tokens: Tensor) -> Tensor:
        return self.positions(self.places)


class Sliced(Tokens):
    def where(self, tokens: Tensor) -> Tensor:
        return self.positions.weight[: tokens.shape[1]]


class WithLeadingOne(Tokens):
    def where(self, tokens: Tensor) -> Tensor:
        return self.positions(torch.arange(tokens.shape[1])[None])


class Expanded(Tokens):
    def where(self, tokens: Tensor) -> Tensor:
        return self.positions(torch.arange(tokens.shape[1])[None].expand_as(tokens))


@PRECISIONS
@pytest.mark.parametrize("shape", [(5, 7), (5, 1), (1, 6), (5, 3, 2), (5,)])
def test_tokens_of_any_rank(shape: tuple[int, ...], precision: Precision) -> None:
    assert_matches_loop(nn.Embedding(6, 4), torch.randint(0, 6, shape), **precision)


@given(
    records=st.integers(1, 5),
    positions=st.lists(st.integers(1, 4), max_size=2),
    table=st.integers(1, 6),
    width=st.integers(1, 5),
    padded=st.booleans(),
)
def test_any_shape(
    records: int, positions: list[int], table: int, width: int, padded: bool
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(table, width, padding_idx=0 if padded else None),
        nn.Tanh(),
        nn.Linear(width, 2),
    )
    assert_matches_loop(model, torch.randint(0, table, (records, *positions)))


@PRECISIONS
def test_repeated_tokens_are_summed_within_their_record(precision: Precision) -> None:
    tokens = torch.tensor([[1, 1, 1, 1], [2, 0, 2, 0], [0, 1, 2, 3], [3, 3, 0, 3]])
    assert_matches_loop(nn.Embedding(4, 5), tokens, **precision)


@PRECISIONS
@pytest.mark.parametrize("padding", [0, 3, -1])
def test_the_padding_row_gets_no_gradient(padding: int, precision: Precision) -> None:
    table = nn.Embedding(6, 4, padding_idx=padding)
    tokens = torch.tensor([[0, 1, 3, 5], [3, 3, 0, 5], [5, 5, 5, 5], [1, 2, 3, 4]])
    found = assert_matches_loop(table, tokens, **precision)
    assert not found.materialise()["weight"][:, padding].any()


@pytest.mark.covering
@PRECISIONS
@pytest.mark.parametrize("kind", [Tokens, Buffered, Sliced, WithLeadingOne, Expanded])
@pytest.mark.parametrize("records", [3, 1, 6], ids=["", "one record", "records equal positions"])
def test_positions_shared_by_all_records(
    kind: type[Tokens], records: int, precision: Precision
) -> None:
    assert_matches_loop(kind(6), torch.randint(0, 10, (records, 6)), **precision)


@pytest.mark.parametrize("kind", [Tokens, Buffered, Sliced, WithLeadingOne, Expanded])
def test_shared_positions_when_a_later_batch_is_as_long_as_the_sequence(
    kind: type[Tokens],
) -> None:
    model = kind(6)
    assert_matches_loop(model, torch.randint(0, 10, (4, 6)))
    assert_matches_loop(model, torch.randint(0, 10, (6, 6)))
    assert_matches_loop(model, torch.randint(0, 10, (1, 6)))


@PRECISIONS
def test_sequence_first_tokens(precision: Precision) -> None:
    tokens = torch.randint(0, 6, (7, 5))
    assert_matches_loop(nn.Embedding(6, 4), tokens, batch_dim=1, **precision)


def test_a_table_used_twice() -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(6, 4)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return torch.tanh(self.table(left)).sum(1) * self.table(right).sum(1)

    assert_matches_loop(Pairs(), (torch.randint(0, 6, (5, 4)), torch.randint(0, 6, (5, 2))))


def test_under_autocast() -> None:
    model = nn.Sequential(nn.Embedding(6, 16), nn.Linear(16, 8))
    tokens = torch.randint(0, 6, (5, 4))
    assert_matches_loop(model, tokens, **AUTOCAST)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_options_that_mix_records_are_refused(option: dict[str, object], frozen: bool) -> None:
    model = nn.Sequential(nn.Embedding(6, 4, **option), nn.Linear(4, 2))  # type: ignore[arg-type]
    model[0].requires_grad_(not frozen)
    tokens = torch.randint(0, 6, (5, 4))
    before = model[0].weight.detach().clone()
    named = "" if frozen else r" '0\.weight'"
    with pytest.raises(RecordsMixError, match=rf"embedding{named} uses {next(iter(option))}"):
        capture(model, output_losses, tokens)
    assert torch.equal(model[0].weight, before)
