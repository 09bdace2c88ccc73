"""A damaged checkpoint is refused with its name; one that is taken is the one that was saved."""

import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from plumbline.training.checkpoint_content import sealed
from plumbline.training.checkpoint_file import CheckpointError
from tests.fuzzing import FEW, MANY, VALUES, altered, damaged, fuzz
from tests.training.runs import Run, weights

SETTINGS = {"seed": 3, "deterministic": True}
# Of two tests, so that together they try as many as others do: resuming takes a while.
HALF = pytest.mark.parametrize(
    "amount", [FEW // 4, pytest.param(MANY // 2, marks=pytest.mark.slow)]
)


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("checkpoint") / "checkpoint.pt"
    run = Run("sgd", SETTINGS)
    private = run.train(run.make(), 2)
    private.save(path)
    return path.read_bytes()


@pytest.fixture(autouse=True)
def _same_start() -> None:
    torch.manual_seed(1)


def resumed(path: Path) -> tuple[torch.Tensor, int] | None:
    """The weights and steps that a run goes on from; None if it does not."""
    run = Run("sgd", SETTINGS)
    try:
        private = run.resume(path)
    except CheckpointError as error:
        assert str(path) in str(error)  # noqa: PT017
        return None
    private.close()
    return weights(run.model), private.steps_done


@HALF
def test_damaged_bytes(amount: int, valid: bytes, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(valid)
    whole = resumed(path)
    assert whole is not None

    def check(data: bytes) -> None:
        path.write_bytes(data)
        found = resumed(path)
        if found is not None:  # the damage was to what nobody reads
            assert torch.equal(found[0], whole[0])
            assert found[1] == whole[1]

    fuzz(damaged([valid]), check, amount)


@HALF
def test_changed_fields(amount: int, valid: bytes, tmp_path: Path) -> None:
    """Even content that is sealed, or so old that it has no digest, is not guessed at."""
    path = tmp_path / "checkpoint.pt"
    content = torch.load(io.BytesIO(valid), weights_only=True)
    del content["digest"]
    plain = {name: dict(part) if isinstance(part, dict) else part for name, part in content.items()}

    def check(given: tuple[Any, bool]) -> None:
        changed, seal = given
        torch.save(sealed(changed) if seal else changed, path)
        resumed(path)

    values = (*VALUES, None, torch.zeros(3))
    fuzz(st.tuples(altered(plain, values), st.booleans()), check, amount)


def test_a_flipped_bit_in_a_weight_is_found(valid: bytes, tmp_path: Path) -> None:
    content = torch.load(io.BytesIO(valid), weights_only=True)
    content["model"]["0.weight"][0, 0] += 1e-6
    path = tmp_path / "checkpoint.pt"
    torch.save(content, path)
    with pytest.raises(CheckpointError, match="not what was saved, by its digest"):
        Run("sgd", SETTINGS).resume(path)
    assert os.listdir(tmp_path) == ["checkpoint.pt"]
