import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from plumbline.gradients import LossError, RecordsMixError, capture
from tests.gradients.harness import PRECISIONS, Precision, assert_matches_loop, record_losses

TOKENS = [[1, 1, 0, 2], [5, 3, 3, 1], [0, 0, 0, 0], [2, 4, 5, 3], [4, 4, 4, 1]]

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
    """Bags of different lengths: each record's first tokens, all in one row, and their offsets."""

    def forward(self, tokens: Tensor, lengths: Tensor, weights: Tensor | None = None) -> Tensor:
        counted = torch.arange(tokens.shape[1]) < lengths[:, None]
        ends = lengths.cumsum(0)
        offsets = ends - lengths
        if self.bag.include_last_offset:
            offsets = torch.cat([offsets, ends[-1:]])
        own = None if weights is None else weights[counted]
        return self.end(torch.tanh(self.bag(tokens[counted], offsets, own)))


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


@PRECISIONS
@MODES
@ENDS
@pytest.mark.parametrize("padding", [None, 4])
def test_bags_of_different_lengths(
    mode: str, last: bool, padding: int | None, precision: Precision
) -> None:
    inputs = torch.tensor(TOKENS), torch.tensor([2, 0, 4, 1, 3])
    assert_matches_loop(Ragged(mode, padding=padding, last=last), inputs, **precision)


@PRECISIONS
@ENDS
def test_weights_per_token_of_different_bags(last: bool, precision: Precision) -> None:
    inputs = torch.tensor(TOKENS), torch.tensor([2, 0, 4, 1, 3]), torch.rand(5, 4)
    assert_matches_loop(Ragged("sum", last=last), inputs, **precision)


@MODES
@ENDS
def test_offsets_given_from_outside(mode: str, last: bool) -> None:
    model = nn.EmbeddingBag(6, 3, mode=mode, include_last_offset=last).double()
    tokens = torch.tensor([0, 1, 5, 5, 2, 2, 3, 0, 4])
    starts = torch.tensor([0, 2, 2, 7, 9]) if last else torch.tensor([0, 2, 2, 7])

    found = capture(model, lambda: record_losses(model(tokens, starts)), records=4)
    rows = found.materialise()["weight"]

    assert rows.shape == (4, 6, 3)
    for record, chosen in enumerate([tokens[:2], tokens[:0], tokens[2:7], tokens[7:]]):
        ends = torch.tensor([0, len(chosen)]) if last else torch.tensor([0])
        loss = record_losses(model(chosen, ends))
        (expected,) = torch.autograd.grad(loss.sum(), model.weight)
        torch.testing.assert_close(rows[record], expected, rtol=1e-10, atol=1e-12)


@st.composite
def bags(draw: st.DrawFn) -> tuple[int, int, list[int], int | None]:
    """The table's size, the longest bag, each bag's length, and the token that counts for none."""
    table, longest = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    lengths = draw(st.lists(st.integers(0, longest), min_size=1, max_size=5))
    padding = draw(st.none() | st.integers(-table, table - 1))
    return table, longest, lengths, padding


@given(
    drawn=bags(),
    width=st.integers(1, 4),
    mode=st.sampled_from(["sum", "mean", "max"]),
    last=st.booleans(),
)
def test_any_shape(
    drawn: tuple[int, int, list[int], int | None], width: int, mode: str, last: bool
) -> None:
    table, longest, lengths, padding = drawn
    torch.manual_seed(0)
    model = Ragged(mode, padding=padding, last=last, size=(table, width))
    tokens = torch.randint(0, table, (len(lengths), longest))
    assert_matches_loop(model, (tokens, torch.tensor(lengths)))


def test_the_number_of_bags_is_asked_for_when_no_input_shows_it() -> None:
    model = nn.EmbeddingBag(6, 3, include_last_offset=True)
    tokens, starts = torch.arange(5), torch.tensor([0, 2, 2, 5])
    with pytest.raises(LossError, match=r"3 losses for a batch of 5 .*records=3"):
        capture(model, lambda: record_losses(model(tokens, starts)))


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_options_that_mix_records_are_refused(option: dict[str, object]) -> None:
    model = nn.EmbeddingBag(6, 4, mode="sum", **option)  # type: ignore[arg-type]
    tokens = torch.tensor(TOKENS)
    with pytest.raises(RecordsMixError, match=next(iter(option))):
        capture(model, lambda: record_losses(model(tokens)))
