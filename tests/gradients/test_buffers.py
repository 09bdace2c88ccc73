"""Memory is used again only when nobody can see it any more."""

import torch

from plumbline.gradients.buffers import Buffers

CPU = torch.device("cpu")
LARGE = (1 << 10, 1 << 10)


def test_a_block_is_used_again_when_its_last_view_is_gone() -> None:
    buffers = Buffers()
    first = buffers.take(LARGE, torch.float32, CPU)
    pointer = first.data_ptr()
    view = first[3:5]
    del first
    assert buffers.take(LARGE, torch.float32, CPU).data_ptr() != pointer, "a view is still held"
    del view
    held = [buffers.take(LARGE, torch.float32, CPU) for _ in range(2)]
    assert pointer in {block.data_ptr() for block in held}


def test_blocks_in_use_never_overlap() -> None:
    buffers = Buffers()
    blocks = [buffers.take(LARGE, torch.float32, CPU).fill_(k) for k in range(4)]
    assert [float(block.amin()) for block in blocks] == [0, 1, 2, 3]
    assert [float(block.amax()) for block in blocks] == [0, 1, 2, 3]


def test_types_do_not_share() -> None:
    buffers = Buffers()
    single = buffers.take(LARGE, torch.float32, CPU)
    pointer = single.data_ptr()
    del single
    assert buffers.take(LARGE, torch.float64, CPU).data_ptr() != pointer


def test_small_tensors_are_ordinary() -> None:
    assert Buffers().take((2, 3), torch.float64, CPU).shape == (2, 3)


def test_other_shapes_do_not_pile_up() -> None:
    buffers = Buffers()
    for size in range(1, 9):
        buffers.take((size, 1 << 18), torch.float32, CPU)
    blocks = buffers._blocks[(torch.float32, CPU)]
    assert sum(block.numel() for block in blocks) <= 4 * 8 * (1 << 18)
    buffers.release()
    assert blocks == []
