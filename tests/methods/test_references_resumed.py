"""What methods carry from step to step survives a checkpoint: resumed runs are the same runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import plumbline as pl
from plumbline.gradients.kernels import KERNELS
from plumbline.training.checkpoint_file import PRIVATE_MARK, CheckpointError
from tests.methods.literal import (
    CLIP,
    LOSS,
    RATE,
    SEED,
    Recording,
    Run,
    flat,
    images,
    network,
    prepare,
    train,
)
from tests.methods.test_references_clipping import GROUPS, GlobalAdapt, with_groups
from tests.methods.test_references_evaluation import FEW, full_batches

BREAK = 3  # steps before the checkpoint; the third is the one with an empty batch

named = pl.methods
STATEFUL: dict[str, tuple[pl.methods.Method, dict[str, Any]]] = {
    "adaptive": (named.adaptive(6.0, count_noise=2.0), {}),
    "global_adapt": (named.global_adapt(CLIP, **GlobalAdapt.settings), {}),
    "dpsgd_f": (named.dpsgd_f(CLIP, GROUPS, 0.5), with_groups()),
    "dp_sat": (named.dp_sat(CLIP, 0.4), {}),
    "dp_sat_momentum": (named.dp_sat_momentum(CLIP, 0.4), {}),
    "inner_outer": (named.inner_outer(CLIP, inner=0.3), {}),
    "dp_gd_momentum": (named.dp_gd_momentum(0.3), full_batches()),
}


def saved(name: str, path: Path) -> Run:
    """Leaves a checkpoint after ``BREAK`` steps; returns the run as it goes when nothing stops."""
    method, settings = STATEFUL[name]
    whole = train(method, **settings)
    first = prepare(method, deterministic=True, **settings)
    for batch in first:
        first.step(batch)
        if first.steps_done == BREAK:
            break
    first.save(path)
    first.close()
    KERNELS.forget()
    return whole


def resumed(name: str, path: Path) -> pl.Private:
    """The run from there on, in new objects."""
    method, settings = STATEFUL[name]
    model = network()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # so that only what was stored can bring it back
    return pl.make_private(
        model,
        Recording(model.parameters(), lr=RATE),
        settings.get("data", images()),
        loss=LOSS,
        method=method,
        budget=prepare(method, **settings).plan.budget,
        seed=SEED,
        deterministic=True,
        sensitive_features=settings.get("sensitive_features"),
        checkpoint=path,
    )


@pytest.fixture(autouse=True)
def _unpinned() -> Iterator[None]:
    yield
    KERNELS.forget()


@pytest.mark.parametrize("name", STATEFUL)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(name: str, tmp_path: Path) -> None:
    whole = saved(name, tmp_path / "run.pt")
    # State of single records has a file of its own, and only then is there one.
    files = {"run.pt", "run.pt.PRIVATE"} if name == "dp_gd_momentum" else {"run.pt"}
    assert {file.name for file in tmp_path.iterdir()} == files
    private = resumed(name, tmp_path / "run.pt")
    for batch in private:
        private.step(batch)
    private.close()
    assert isinstance(private.optimizer, Recording)
    for found, expected in zip(private.optimizer.given, whole.updates[BREAK:], strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(flat(private.model.parameters()), whole.weights[-1])
    assert _lists(private.method.state_dict()) == _lists(whole.private.method.state_dict())


# The bounds of DPSGD-F are asked for anew before they are used.
@pytest.mark.parametrize("name", [name for name in STATEFUL if name != "dpsgd_f"])
def test_without_its_state_it_would_be_another_run(name: str, tmp_path: Path) -> None:
    """Else the test above would show nothing."""
    whole = saved(name, tmp_path / "run.pt")
    private = resumed(name, tmp_path / "run.pt")
    fresh = STATEFUL[name][0]
    private.method.load_state_dict(fresh.state_dict())
    private.method.load_private_state_dict(fresh.private_state_dict())
    for batch in private:
        private.step(batch)
    private.close()
    assert not torch.equal(flat(private.model.parameters()), whole.weights[-1])


def test_momenta_of_records_are_in_a_file_marked_private(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    saved("dp_gd_momentum", path)
    partner = Path(f"{path}.PRIVATE")
    assert partner.read_bytes().startswith(PRIVATE_MARK)
    assert partner.stat().st_mode & 0o077 == 0
    size = sum(p.numel() for p in network().parameters())
    assert partner.stat().st_size > FEW * size * 8  # all of the momenta, in float64
    stored = torch.load(path, weights_only=True)["method"]
    assert stored == {"evaluation": [{}], "clipping": {}}
    partner.unlink()
    with pytest.raises(CheckpointError, match=r"needs the state of single records.*is missing"):
        resumed("dp_gd_momentum", path)


def _lists(state: Any) -> Any:
    """A state with lists for tensors, to be compared exactly."""
    if isinstance(state, torch.Tensor):
        return state.tolist()
    if isinstance(state, dict):
        return {name: _lists(value) for name, value in state.items()}
    if isinstance(state, list):
        return [_lists(value) for value in state]
    return state
