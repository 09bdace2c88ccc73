from typing import Any

import pytest
import torch

from plumbline.training.state_packing import packed, unpacked

STATE: dict[str, Any] = {
    "none": None,
    "flag": True,
    "number": 0.1,
    "infinite": float("inf"),
    "words": 'a "word", 日本',
    "list": [1, [2.5, {"deep": torch.arange(3)}]],
    "whole": torch.randn(3, 4),
    "double": torch.randn(2, dtype=torch.float64),
    "narrow": torch.randn(5).bfloat16(),
    "scalar": torch.tensor(7),
    "empty": torch.zeros(0, 3),
    "across": torch.randn(3, 4).T,
    "flags": torch.tensor([True, False]),
}


def test_a_state_comes_back_to_the_bit() -> None:
    found = unpacked(b"".join(bytes(piece) for piece in packed(STATE)))
    assert list(found) == list(STATE)
    for name, value in STATE.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value)
        elif name != "list":
            assert found[name] == value
    assert found["list"][:1] == [1]
    assert torch.equal(found["list"][1][1]["deep"], torch.arange(3))


def test_tensors_can_be_written_to() -> None:
    found = unpacked(b"".join(bytes(piece) for piece in packed({"a": torch.ones(2)})))
    found["a"] += 1
    assert found["a"].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("foreign", [object(), {1: 2}, {"deep": [set()]}, 1j])
def test_what_is_not_plain_is_refused(foreign: Any) -> None:
    with pytest.raises(TypeError, match="among the state"):
        packed({"state": foreign})


def test_too_few_bytes_are_refused() -> None:
    whole = b"".join(bytes(piece) for piece in packed({"a": torch.ones(4)}))
    with pytest.raises(ValueError, match="too short"):
        unpacked(whole[:-1])
