import pytest
import torch
from torch import Tensor, nn

from plumbline.gradients import LossError, RecordsMixError, capture
from tests.gradients.harness import assert_matches_loop, record_losses

TOKENS = torch.tensor([[1, 1, 0, 2], [5, 3, 3, 1], [0, 0, 0, 0], [2, 4, 5, 3], [4, 4, 4, 1]])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 0])
def test_bags_of_one_length(mode: str, padding: int | None) -> None:
    assert_matches_loop(nn.EmbeddingBag(6, 3, mode=mode, padding_idx=padding), TOKENS)


@pytest.mark.parametrize("padding", [None, 2])
def test_weights_per_token(padding: int | None) -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(6, 3, mode="sum", padding_idx=padding)

        def forward(self, tokens: Tensor, weights: Tensor) -> Tensor:
            return self.bag(tokens, per_sample_weights=weights)

    assert_matches_loop(Weighted(), (TOKENS, torch.rand(5, 4)))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("last", [False, True], ids=["starts", "starts and end"])
def test_bags_of_different_lengths(mode: str, last: bool) -> None:
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


def test_the_number_of_bags_is_asked_for_when_no_input_shows_it() -> None:
    model = nn.EmbeddingBag(6, 3, include_last_offset=True)
    tokens, starts = torch.arange(5), torch.tensor([0, 2, 2, 5])
    with pytest.raises(LossError, match=r"3 losses for a batch of 5 .*records=3"):
        capture(model, lambda: record_losses(model(tokens, starts)))


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_options_that_mix_records_are_refused(option: dict[str, object]) -> None:
    model = nn.EmbeddingBag(6, 4, mode="sum", **option)  # type: ignore[arg-type]
    with pytest.raises(RecordsMixError, match=next(iter(option))):
        capture(model, lambda: record_losses(model(TOKENS)))
