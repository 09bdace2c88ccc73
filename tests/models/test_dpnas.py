"""DPNASNet's graphs, against the list of edges as it is written down and a block by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plumbline.models.dpnas import CIFAR, FASHION, MNIST, Edges, SearchedBlock

WRITTEN = {
    "cifar": (
        CIFAR,
        "0-1 selu; 0-2 max, 1-2 selu; 0-3 tanh, 1-3 max; 0-4 selu, 3-4 id; "
        "0-5 selu, 1-5 selu, 2-5 tanh, 3-5 max, 4-5 tanh",
    ),
    "mnist": (
        MNIST,
        "0-1 selu; 0-2 tanh, 1-2 id; 1-3 selu, 2-3 relu; 1-4 tanh, 3-4 id; "
        "0-5 max, 2-5 max, 3-5 max, 4-5 relu",
    ),
    "fashion": (
        FASHION,
        "0-1 id; 1-2 selu; 0-3 relu, 1-3 selu, 2-3 id; 2-4 tanh, 3-4 id; "
        "0-5 selu, 1-5 tanh, 2-5 max, 3-5 relu, 4-5 max",
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_edges(name: str) -> None:
    edges, written = WRITTEN[name]
    listed = [part.split() for part in written.replace(";", ",").split(",")]
    expected = {(int(nodes[0]), int(nodes[2])): operation for nodes, operation in listed}
    assert dict(edges) == expected


def _group_norm(x: Tensor) -> Tensor:
    groups = x.view(len(x), 8, -1)
    mean, variance = groups.mean(2, keepdim=True), groups.var(2, correction=0, keepdim=True)
    return ((groups - mean) / (variance + 1e-5).sqrt()).view_as(x)


@pytest.mark.parametrize("edges", [CIFAR, MNIST, FASHION], ids=["cifar", "mnist", "fashion"])
def test_a_block_by_hand(edges: Edges) -> None:
    block = SearchedBlock(edges, 6, 16).double()
    weights = dict(block.named_parameters())
    activations = {"selu": F.selu, "tanh": torch.tanh, "relu": F.relu}

    def along(start: int, end: int) -> Tensor:
        name, x = edges[start, end], nodes[start]
        if name == "id":
            return x
        if name == "max":
            return F.max_pool2d(x, 3, stride=1, padding=1)
        weight = weights.pop(f"edges.{start}-{end}.0.weight")
        assert weight.shape == (16, 1, 3, 3)
        return activations[name](_group_norm(F.conv2d(x, weight, padding=1, groups=16)))

    x = torch.randn(2, 6, 5, 5, dtype=torch.float64)
    nodes = [_group_norm(F.conv2d(x, weights.pop("enter.0.weight")))]
    for end in range(1, 6):
        nodes.append(sum(along(start, end) for start in range(end) if (start, end) in edges))  # type: ignore[arg-type]
    assert not weights
    torch.testing.assert_close(block(x), torch.cat(nodes[1:], 1))


def test_average_pooling_is_an_operation_too() -> None:
    edges = {(start, start + 1): "avg" for start in range(5)}
    assert isinstance(SearchedBlock(edges, 8, 8).edges["0-1"], nn.AvgPool2d)
