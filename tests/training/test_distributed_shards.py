"""Sharded parameters (FSDP2): the same release as whole ones, in shards; or refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import plumbline as pl
from plumbline.clipping import GlobalAdapt
from plumbline.evaluation import Bam
from plumbline.methods import compose
from plumbline.training.distributed import RankFailed
from plumbline.training.distributed_shards import is_shard
from tests.training import small
from tests.training.ranks import in_ranks, values, warm

TOKENS, WORDS, WIDTH = 5, 11, 8


class Transformer(nn.Module):
    """One encoder layer over an embedding; 11 and 2 rows do not divide among ranks evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(tokens)).mean(1))


def linear() -> nn.Module:
    return small.network()


def transformer() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return Transformer()


def words() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(WORDS, (small.RECORDS, TOKENS), generator=draw)
    return tokens, tokens.sum(1) % 2


MODELS: dict[str, Any] = {"linear": (linear, small.data), "transformer": (transformer, words)}


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """With an epsilon that keeps it from making steps of gradients that are zero but for rounding.

    Attention has such: a key's bias moves no output.
    """
    return torch.optim.Adam(model.parameters(), 0.05, eps=0.1)


def sharded(model: nn.Module, count: int, **options: Any) -> nn.Module:
    mesh = init_device_mesh("cpu", (count,))
    for child in list(model.children())[:-1]:  # the last one's weights are the model's own
        if any(True for _ in child.parameters()):
            fully_shard(child, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def method() -> Any:
    clipping = GlobalAdapt(0.5, initial=2.0)
    return compose(evaluation=(Bam(0.02),), clipping=clipping, name="x", noisy=False)


def run(kind: str, count: int, **settings: Any) -> pl.Private:
    """A run of a model that is sharded among ``count`` ranks; 0 for whole."""
    make, data = MODELS[kind]
    model = make() if count == 0 else sharded(make(), count)
    return small.private(
        model,
        data(),
        **{"method": method(), "optimizer": adam(model), "averaging": 0.9, **settings},
    )


def whole(model: nn.Module) -> Tensor:
    found = [p.full_tensor() if is_shard(p) else p for p in model.state_dict().values()]
    return torch.cat([p.detach().flatten() for p in found])


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


@pytest.mark.parametrize("kind", MODELS)
def test_shards_are_trained_as_whole_parameters_are(kind: str, tmp_path: Path) -> None:
    def train(rank: int) -> tuple[Tensor, Tensor, int]:
        private = run(kind, 2)
        x, _ = MODELS[kind][1]()
        for batch in private:
            private.step(batch)
            private.model(x[:3])  # between steps the model is FSDP's, and runs by itself
        with private.averaged() as model, torch.no_grad():
            averaged = model(x[:3])
        kept = sum(p.to_local().numel() for p in private.model.parameters())
        state = private.optimizer.state[next(private.model.parameters())]
        assert is_shard(state["exp_avg"])
        assert private.released is not None
        assert all(is_shard(value) for value in private.released.values())
        return whole(private.model), averaged, kept

    alone = run(kind, 0)
    small.run(alone)
    with alone.averaged() as model, torch.no_grad():
        expected = model(MODELS[kind][1]()[0][:3])
    found = values(in_ranks(2, train, tmp_path))
    for weight, averaged, _ in found:
        assert torch.allclose(weight, whole(alone.model), rtol=1e-4, atol=1e-5)
        assert torch.equal(weight, found[0][0])
        assert torch.allclose(averaged, expected, rtol=1e-4, atol=1e-5)
    assert sum(kept for _, _, kept in found) == len(whole(alone.model))


def test_the_noise_of_shards_has_the_right_variance(tmp_path: Path) -> None:
    """The second layer's gradient drowns in noise: what is released of it is the noise."""

    def train(rank: int) -> Tensor:
        model = sharded(nn.Sequential(nn.Linear(6, 801), nn.Linear(801, 2)), 2)
        private = small.private(
            model, method=pl.methods.dpsgd(clip=1e-4), plan=small.budget(steps=1), seed=None
        )
        small.run(private)
        assert private.released is not None
        released = [value.full_tensor().flatten() for value in private.released.values()]  # type: ignore[attr-defined]
        return torch.cat(released)

    first, second = values(in_ranks(2, train, tmp_path))
    assert torch.equal(first, second)
    standard = first * 10 / 1e-4  # divided by L, noise multiplier 1
    many = len(standard)
    # The clipped sum, of norm at most 20 clips, adds 400 to a sum of squares of about 7,000.
    assert float(standard.square().sum()) / many == pytest.approx(
        1, abs=5 * math.sqrt(2 / many) + 0.06
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [(2, 2), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((2, 0), (0, 2), (3, 2)))],
)
def test_a_checkpoint_is_whole(before: int, after: int, tmp_path: Path) -> None:
    """Shards are saved whole: a run goes on sharded or not, and ends as if nothing had been."""
    checkpoint = tmp_path / "checkpoint"

    def begin(rank: int) -> Tensor:
        private = run("transformer", before)
        small.run(private, steps=2)
        private.model(words()[0][:3])  # which leaves whole weights in a sharded model
        private.save(checkpoint)
        return whole(private.model)

    def go_on(rank: int) -> tuple[Tensor, Tensor]:
        make, data = MODELS["transformer"]
        model = make() if after == 0 else sharded(make(), after)
        resumed = pl.make_private(
            model,
            adam(model),
            data(),
            loss=small.LOSS,
            method=method(),
            budget=small.budget(),
            seed=7,
            deterministic=True,
            averaging=0.9,
            checkpoint=checkpoint,
        )
        start = whole(resumed.model)
        small.run(resumed)
        return start, whole(resumed.model)

    left, *_ = values(in_ranks(max(1, before), begin, tmp_path))
    found = values(in_ranks(max(1, after), go_on, tmp_path))
    for start, end in found:
        assert torch.equal(start, left)
        assert torch.equal(end, found[0][1])
        assert not torch.equal(end, left)
    if before == after:  # else a run goes on with other batches
        alone = run("transformer", 0)
        small.run(alone)
        assert torch.allclose(found[0][1], whole(alone.model), rtol=1e-4, atol=1e-5)


# Refusing before the first step


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"method": pl.methods.dp_sam()}, "released gradient as a whole"),
        ({"method": pl.methods.inner_outer()}, "released gradient as a whole"),
        ({"public": pl.PublicData(small.data(), batch_size=4)}, "beside sharded parameters"),
    ],
    ids=("DP-SAM", "outer momentum", "public data"),
)
def test_what_shards_cannot_do_is_refused(
    settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    for one in in_ranks(2, lambda rank: run("linear", 2, **settings), tmp_path):
        assert isinstance(one.error, ValueError | RankFailed), one.text
        assert reason in str(one.error)


@pytest.mark.parametrize("shown", [{"show": ("loss",)}, {"metrics": {"one": lambda model: 1.0}}])
def test_what_one_rank_cannot_compute_is_not_shown(shown: dict[str, Any], tmp_path: Path) -> None:
    for one in in_ranks(2, lambda rank: run("linear", 2).fit(progress=False, **shown), tmp_path):
        assert isinstance(one.error, ValueError), one.text
        assert "no process can run the model alone" in str(one.error)


def test_other_shardings_are_refused(tmp_path: Path) -> None:
    def hybrid(rank: int) -> None:
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicas", "shards"))
        model = fully_shard(small.network(), mesh=mesh)
        small.private(model)

    def narrow(rank: int) -> None:
        small.private(sharded(small.network(), 2, mp_policy=MixedPrecisionPolicy(torch.bfloat16)))

    for work, words in ((hybrid, "no hybrid or tensor"), (narrow, "mixed-precision policy")):
        for one in in_ranks(2, work, tmp_path):
            assert isinstance(one.error, ValueError | RankFailed), one.text
            assert words in str(one.error)
