from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import plumbline
from plumbline.clipping import Clipping
from plumbline.mechanism.release import Query
from plumbline.training.run_identity import (
    differences,
    facts_of,
    inputs_digest,
    noise_position,
    run_id,
)


class Own(Clipping):
    """A user's clipping, which is no data class."""

    def __init__(self, bounds: torch.Tensor) -> None:
        self.bounds = bounds
        self.function = torch.relu

    @property
    def sensitivity(self) -> float:
        return 1.0

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        return norms


@dataclass
class Parts:
    parts: list[object]


def test_the_facts_of_a_method_are_all_that_configures_it() -> None:
    assert facts_of(plumbline.methods.dpsgd(clip=0.5), "method") == {
        "method": "Method",
        "method.name": "dpsgd",
        "method.noisy": True,
        "method.composition": "joint",
        "method.evaluation": "tuple",
        "method.clipping": "Flat",
        "method.clipping.clip": 0.5,
    }


def test_facts_are_plain_values_and_the_same_in_every_process() -> None:
    facts = facts_of(Parts([np.float32(0.5), np.int64(3), Own(torch.ones(2)), None, object()]), "m")
    assert {type(value) for value in facts.values()} <= {str, int, float, type(None)}
    assert not [value for value in facts.values() if " at 0x" in str(value)]
    assert facts["m.parts.0"] == 0.5
    assert facts["m.parts.1"] == 3


@pytest.mark.parametrize("change", [lambda b: b + 1, lambda b: b.double(), lambda b: b[:1]])
def test_another_tensor_is_another_fact(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    bounds = torch.ones(2)
    one, same, other = (facts_of(Own(b), "m") for b in (bounds, bounds.clone(), change(bounds)))
    assert one == same
    (found,) = differences(other, one)
    assert found.startswith("m.bounds is 'tensor (")


def test_a_fact_that_only_one_has_is_a_difference() -> None:
    assert differences({"a": 1, "b": 2}, {"b": 2}) == ["a is 1 here and None in the checkpoint"]


def test_a_runs_id() -> None:
    facts = {"epsilon": 3, "name": "x"}
    assert run_id(1, facts) == run_id(1, {"name": "x", "epsilon": 3.0})
    assert run_id(1, facts) != run_id(2, facts)
    assert run_id(1, facts) != run_id(1, {**facts, "epsilon": 2})
    assert run_id(1, facts)[:16] == run_id(1, {})[:16] != run_id(2, {})[:16]
    assert run_id(None, facts) != run_id(None, facts)


def test_positions_of_attempts_do_not_meet() -> None:
    assert noise_position(0, 5) == 5
    assert noise_position(1, 0) > noise_position(0, 10**9)


def test_the_digest_of_inputs_knows_everything_that_decides_an_answer() -> None:
    value = {"a": torch.zeros(2, 3), "b": torch.ones(1)}

    def digest(key: bytes = b"k", *, beside: object = 0, **change: object) -> str:
        asked = {"value": value, "sensitivity": 1.0, "sigma": 1.0, **change}
        return inputs_digest(key, Query(**asked), beside)  # type: ignore[arg-type]

    same = digest()
    assert digest(value={name: tensor.clone() for name, tensor in value.items()}) == same
    others = [
        digest(b"another key"),
        digest(value={**value, "b": torch.tensor([1 + 1e-7])}),
        digest(value={"a": value["a"], "c": value["b"]}),
        digest(value={**value, "a": torch.zeros(3, 2)}),
        digest(value={**value, "a": torch.zeros(2, 3, dtype=torch.int32)}),
        digest(sensitivity=2.0),
        digest(sigma=2.0),
        digest(name="count"),
        digest(beside=[torch.ones(1)]),
    ]
    assert len({same, *others}) == 1 + len(others)
    assert digest(value={"a": torch.ones(2, dtype=torch.bfloat16)}) != same
