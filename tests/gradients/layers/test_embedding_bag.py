import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from plumbline.gradients import RecordsMixError, UnsupportedModelError, capture
from tests.gradients.harness import (
    PRECISIONS,
    Precision,
    assert_matches_loop,
    loop,
    output_losses,
    record_losses,
)

TOKENS = [[1, 1, 0, 2], [5, 3, 3, 1], [0, 0, 0, 0], [2, 4, 5, 3], [4, 4, 4, 1]]
LENGTHS = [[2, 0, 2], [1, 1, 2], [0, 4, 0], [1, 3, 0], [4, 0, 0]]

MODES = pytest.mark.parametrize("mode", ["sum", "mean", "max"])
ENDS = pytest.mark.parametrize("last", [False, True], ids=["starts", "starts and end"])


class Bags(nn.Module):
    """Bags of one length, and a layer behind that autocast runs in bfloat16."""

    def __init__(
        self,
        mode: str,
        *,
        padding: int | None = None,
        last: bool = False,
        size: tuple[int, int] = (6, 3),
    ) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(*size, mode=mode, padding_idx=padding, include_last_offset=last)
        self.end = nn.Linear(size[1], 2)

    def forward(self, tokens: Tensor, weights: Tensor | None = None) -> Tensor:
        return self.end(torch.tanh(self.bag(tokens, per_sample_weights=weights)))


class Ragged(Bags):
    """Several bags of a record, of different lengths: its tokens in one row, and their offsets."""

    def forward(self, tokens: Tensor, lengths: Tensor, weights: Tensor | None = None) -> Tensor:
        ends = lengths[0].cumsum(0)
        offsets = ends - lengths[0]
        if self.bag.include_last_offset:
            offsets = torch.cat([offsets, ends[-1:]])
        own = None if weights is None else weights[0]
        return self.end(torch.tanh(self.bag(tokens[0], offsets, own)))[None]


@PRECISIONS
@MODES
@pytest.mark.parametrize("padding", [None, 0])
def test_bags_of_one_length(mode: str, padding: int | None, precision: Precision) -> None:
    assert_matches_loop(Bags(mode, padding=padding), torch.tensor(TOKENS), **precision)


def test_nothing_but_a_bag() -> None:
    assert_matches_loop(nn.EmbeddingBag(6, 3), torch.tensor(TOKENS))


@PRECISIONS
@pytest.mark.parametrize("padding", [None, 2])
def test_weights_per_token(padding: int | None, precision: Precision) -> None:
    inputs = torch.tensor(TOKENS), torch.rand(5, 4)
    assert_matches_loop(Bags("sum", padding=padding), inputs, **precision)


@pytest.mark.covering
@PRECISIONS
@MODES
@ENDS
@pytest.mark.parametrize("padding", [None, 4])
def test_bags_of_different_lengths(
    mode: str, last: bool, padding: int | None, precision: Precision
) -> None:
    inputs = torch.tensor(TOKENS), torch.tensor(LENGTHS)
    assert_matches_loop(Ragged(mode, padding=padding, last=last), inputs, **precision)


@PRECISIONS
@ENDS
def test_weights_per_token_of_different_bags(last: bool, precision: Precision) -> None:
    inputs = torch.tensor(TOKENS), torch.tensor(LENGTHS), torch.rand(5, 4)
    assert_matches_loop(Ragged("sum", last=last), inputs, **precision)


@MODES
@ENDS
def test_offsets_given_from_outside(mode: str, last: bool) -> None:
    starts = torch.tensor([0, 1, 1, 4]) if last else torch.tensor([0, 1, 1])

    def losses(model: nn.Module, tokens: Tensor) -> Tensor:
        return record_losses(model(tokens[0], starts)[None])

    model = nn.EmbeddingBag(6, 3, mode=mode, include_last_offset=last)
    assert_matches_loop(model, torch.tensor(TOKENS), losses=losses)


@st.composite
def bags(draw: st.DrawFn) -> tuple[int, int, list[list[int]], int | None]:
    """The table's size, the number of tokens, each record's bags, and the token for padding."""
    table, tokens, several = (draw(st.integers(1, most)) for most in (6, 5, 4))
    cuts = st.lists(st.integers(0, tokens), min_size=several - 1, max_size=several - 1)
    lengths = []
    for _ in range(draw(st.integers(1, 4))):
        ends = [*sorted(draw(cuts)), tokens]
        lengths.append([end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)])
    padding = draw(st.none() | st.integers(-table, table - 1))
    return table, tokens, lengths, padding


@given(
    drawn=bags(),
    width=st.integers(1, 4),
    mode=st.sampled_from(["sum", "mean", "max"]),
    last=st.booleans(),
)
def test_any_shape(
    drawn: tuple[int, int, list[list[int]], int | None], width: int, mode: str, last: bool
) -> None:
    table, length, lengths, padding = drawn
    torch.manual_seed(0)
    model = Ragged(mode, padding=padding, last=last, size=(table, width))
    tokens = torch.randint(0, table, (len(lengths), length))
    assert_matches_loop(model, (tokens, torch.tensor(lengths)))


def test_as_many_tokens_as_the_record_says_are_refused_with_what_to_do() -> None:
    model = nn.EmbeddingBag(6, 3)

    def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        tokens, length = batch
        chosen = tokens[torch.arange(4) < length[:, None]]
        return record_losses(model(chosen, torch.tensor([0])))

    batch = torch.tensor(TOKENS), torch.tensor([2, 0, 4, 1, 3])
    message = r'test_embedding_bag.py:\d+ \(chosen = .*isolation="loop"'
    with pytest.raises(UnsupportedModelError, match=message):
        capture(model, losses, batch)
    found = capture(model, losses, batch, isolation="loop")
    truth = loop(model, batch, losses)
    torch.testing.assert_close(found.materialise()["weight"], truth["weight"])


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_options_that_mix_records_are_refused(option: dict[str, object], frozen: bool) -> None:
    bag = nn.EmbeddingBag(6, 4, mode="sum", **option)  # type: ignore[arg-type]
    model = nn.Sequential(bag.requires_grad_(not frozen), nn.Linear(4, 2))
    tokens = torch.tensor(TOKENS)
    with pytest.raises(RecordsMixError, match=next(iter(option))):
        capture(model, output_losses, tokens)
