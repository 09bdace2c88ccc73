"""Methods from parts: what combines, what is refused and why; the table; the parts' state."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from plumbline import methods
from plumbline.auditing.neighbours import CONTENTS, TOKENS, WIDTH, Neighbourhood
from plumbline.auditing.tracing import NeighbourWorld, NoisyAnswers, traced_step
from plumbline.clipping import (
    Automatic,
    Averaged,
    Clipping,
    Flat,
    GlobalAdapt,
    GroupBatchNorm,
    PerGroup,
    Unclipped,
)
from plumbline.evaluation import (
    EVALUATIONS,
    Bam,
    BamExact,
    BatchClipping,
    DpSam,
    DpSat,
    DpSatMomentum,
    Evaluation,
    GradientNormPenalty,
    InnerMomentum,
    OuterMomentum,
    Plain,
    PreClipNoise,
    RecordMomentum,
    Views,
)
from plumbline.gradients import KERNELS
from plumbline.methods import METHODS, Method, compose
from plumbline.record_random import Draws

PUBLIC = torch.ones(2, TOKENS, WIDTH)


def blurred(rows: Tensor, draws: Draws) -> Tensor:
    return rows + 0.1 * draws.uniform(*rows.shape[1:])


RULES: dict[type[Evaluation], Evaluation] = {
    Views: Views(blurred, 2),
    BatchClipping: BatchClipping(PUBLIC, 2),
}


def rule(kind: type[Evaluation]) -> Evaluation:
    return copy.deepcopy(RULES[kind]) if kind in RULES else kind()


QUESTIONS = {
    "records": "what the model sees of a record",
    "weights": "at which weights a record's gradient is taken",
    "gradient": "what is done to a record's gradient before it is clipped",
    "update": "what becomes of the released gradient",
}


@pytest.mark.parametrize("other", EVALUATIONS.values(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("one", EVALUATIONS.values(), ids=lambda kind: kind.__name__)
def test_two_answers_to_one_question_exclude_each_other(
    one: type[Evaluation], other: type[Evaluation]
) -> None:
    rules = [rule(one), rule(other)]
    if one.slot != other.slot:
        assert compose(evaluation=rules, clipping=Flat(1.0)).unbounded_reason is None
        return
    message = f"{one.__name__} and {other.__name__} both say {QUESTIONS[one.slot]}, and exclude"
    with pytest.raises(ValueError, match=message):
        compose(evaluation=rules, clipping=Flat(1.0))


@pytest.mark.parametrize("clipping", [Averaged(), GroupBatchNorm()], ids=repr)
def test_a_momentum_of_every_record_has_no_place_in_buckets(clipping: Clipping) -> None:
    message = (
        f"RecordMomentum keeps a momentum for every record, but {type(clipping).__name__} pool"
    )
    with pytest.raises(ValueError, match=message):
        compose(evaluation=RecordMomentum(), clipping=clipping)


def test_batch_norm_is_taken_over_one_set_of_rows() -> None:
    with pytest.raises(
        ValueError, match="BatchClipping and GroupBatchNorm both say which rows BatchNorm takes"
    ):
        compose(evaluation=BatchClipping(PUBLIC), clipping=GroupBatchNorm())
    assert compose(evaluation=BatchClipping(PUBLIC), clipping=Averaged()).together


def test_no_noise_covers_what_is_not_bounded() -> None:
    with pytest.raises(ValueError, match=r"Unclipped does not bound.*or noisy=False"):
        compose(clipping=Unclipped())
    assert compose(clipping=Unclipped(), noisy=False).unbounded_reason


@pytest.mark.parametrize("wrong", [1, Bam, Flat(1.0), [Bam(), {"radius": 1}], None], ids=repr)
def test_only_rules_are_rules(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"is not a rule of evaluation.*such as Bam"):
        compose(evaluation=wrong, clipping=Flat(1.0))


@pytest.mark.parametrize("wrong", [1.0, Flat, Bam(), None, {"clip": 1.0}], ids=repr)
def test_only_clippings_are_clippings(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"is not a clipping.*such as Flat"):
        compose(clipping=wrong)


RECORDS = CONTENTS - 1


def world(method: Method) -> NeighbourWorld:
    """Ordinary records, of which what parts make must be as it is however they are combined."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(CONTENTS, TOKENS, WIDTH, generator=draw)
    y, groups = (torch.randint(2, (CONTENTS,), generator=draw) for _ in range(2))
    torch.manual_seed(0)
    whole = (True,) * RECORDS + (False,)
    records = Neighbourhood(x, y, groups, ["ordinary"] * CONTENTS, [whole])
    return NeighbourWorld(method, records, _rate(method))


def steps(method: Method, count: int, *, start: int = 0) -> Tensor:
    """All that some steps asked and returned, flat."""
    at = world(method)
    seen: list[Tensor] = []
    with KERNELS.unmeasured():
        for number in range(start, start + count):
            noisy = NoisyAnswers(torch.Generator().manual_seed(number))
            trace = traced_step(at, method, number, torch.arange(RECORDS), noisy)
            seen += [*trace.values, *(one.flatten() for one in trace.left["update"].values())]
    return torch.cat([one.double() for one in seen])


def _rate(method: Method) -> float:
    return 1.0 if any(isinstance(one, RecordMomentum) for one in method.evaluation) else 0.1


FREE = {
    "BAM, Global-Adapt, 8 views": lambda: (
        [Bam(0.1), Views(blurred, 8)],
        GlobalAdapt(0.5, 2.0),
    ),
    "inner momentum, automatic": lambda: ([InnerMomentum(), OuterMomentum()], Automatic()),
    "DP-SAT, per group": lambda: ([PreClipNoise(0.1), DpSat()], PerGroup(0.2)),
    "exact BAM, momentum of records": lambda: ([RecordMomentum(), BamExact()], PerGroup(0.2)),
    "DP-SAM on averages": lambda: ([DpSam(), Views(blurred, 2)], Averaged(0.1, 2)),
    "penalty with companions": lambda: ([BatchClipping(PUBLIC), GradientNormPenalty()], Flat(0.1)),
}


@pytest.mark.parametrize("name", FREE)
def test_parts_combine_freely_and_in_any_order(name: str) -> None:
    rules, clipping = FREE[name]()
    one = compose(evaluation=rules, clipping=clipping)
    found = steps(one, 3)
    assert bool(torch.isfinite(found).all())
    again, clipping = FREE[name]()
    other = compose(evaluation=again[::-1], clipping=clipping)
    assert other.name == one.name
    assert other.queries(1.0) == one.queries(1.0)
    assert torch.equal(steps(other, 3), found)


def test_rules_take_their_turns_in_the_order_of_a_step() -> None:
    parts = [Views(blurred, 2), Bam(), PreClipNoise(), OuterMomentum()]
    for order in itertools.permutations(parts):
        assert compose(evaluation=list(order), clipping=Flat(1.0)).evaluation == tuple(parts)


def test_what_a_combination_asks_and_costs_is_that_of_its_parts() -> None:
    method = compose(
        evaluation=[OuterMomentum(), DpSam(), Views(blurred, 4)], clipping=PerGroup(count_ratio=3.0)
    )
    asked = [(query.name, query.noise_multiplier) for query in method.queries(2.0)]
    assert asked == [("ascent gradient", 2.0), ("group counts", 6.0), ("gradient", 2.0)]
    assert method.passes == 2 * 4
    assert method.needs_groups
    assert method.name == "Views + DpSam + OuterMomentum + PerGroup"
    quiet = compose(evaluation=DpSam(), clipping=GlobalAdapt(), noisy=False)
    assert [query.noise_multiplier for query in quiet.queries(2.0)] == [0, 0, 0]
    assert "adds no noise" in str(quiet.unbounded_reason)


def test_each_part_changes_what_is_asked() -> None:
    """A rule that is silently left out would go unnoticed otherwise."""
    plain = steps(compose(clipping=Flat(0.2)), 3)
    for kind in EVALUATIONS.values():
        if kind in (Plain, BatchClipping):
            continue
        other = steps(compose(evaluation=rule(kind), clipping=Flat(0.2)), 3)
        assert other.shape != plain.shape or not torch.equal(other, plain), kind.__name__


NAMES = {
    "dpsgd", "normalised", "automatic", "per_layer", "adaptive", "global_scaling", "global_adapt",
    "dpsgd_f", "fairlens", "dp_sam", "dp_sat", "dp_sat_momentum", "bam", "bam_exact", "inner_outer",
    "dp_gd_momentum", "self_augmented", "batch_clipping", "pre_clip_noise", "averaged",
    "group_batchnorm", "nonprivate", "nonprivate_sam", "gradient_norm_penalty", "clipped_only",
    "direction_only", "magnitude_only", "compose",
}  # fmt: skip


def test_the_table_has_every_method() -> None:
    rows = {row.name: row for row in methods.table()}
    assert set(rows) == set(METHODS) == NAMES
    assert all(callable(getattr(methods, name)) for name in NAMES)
    for row in rows.values():
        assert row.source
        assert row.queries.endswith("gradient") or row.name in ("adaptive", "global_adapt")
        assert row.passes >= 1
    assert rows["dpsgd_f"].needs == rows["fairlens"].needs == "groups"
    assert rows["batch_clipping"].needs == "public data"
    assert {name for name, row in rows.items() if row.needs} == {
        "dpsgd_f", "fairlens", "batch_clipping",
    }  # fmt: skip
    assert {name for name, row in rows.items() if row.keeps} == {
        "adaptive", "global_adapt", "dpsgd_f", "dp_sat", "dp_sat_momentum", "inner_outer",
        "dp_gd_momentum",
    }  # fmt: skip
    assert {name for name, row in rows.items() if row.guarantee.startswith("none: ")} == {
        "fairlens", "group_batchnorm", "nonprivate", "nonprivate_sam", "gradient_norm_penalty",
        "clipped_only", "direction_only", "magnitude_only",
    }  # fmt: skip
    assert rows["dpsgd"].guarantee == "yes"
    assert rows["global_adapt"].source == "Gradient Misalignment, Alg. 2"
    assert rows["dp_sam"].queries == "ascent gradient, gradient"
    passes = {name: row.passes for name, row in rows.items() if row.passes > 1}
    assert passes == {
        "dp_sam": 2, "bam": 2, "bam_exact": 3, "inner_outer": 3, "self_augmented": 8,
        "batch_clipping": 4, "nonprivate_sam": 2, "gradient_norm_penalty": 3, "fairlens": 6,
    }  # fmt: skip


PAPERS = (
    "Bias-Aware Minimisation", "Geometric Perspective", "Sharpness-Aware Training",
    "Clipping Bias Reduction", "Gradient Misalignment",
)  # fmt: skip


@pytest.mark.parametrize("entry", [*PAPERS, "Abadi", "Andrew", "De et"])
def test_every_paper_is_in_the_table(entry: str) -> None:
    assert any(entry in row.source for row in methods.table())


def test_the_table_prints_as_markdown() -> None:
    lines = str(methods.table()).splitlines()
    assert lines[0].startswith("| method | paper, equation | asks | passes | keeps | needs |")
    assert len(lines) == 2 + len(NAMES)
    assert all(line.count("|") == lines[0].count("|") for line in lines)


STATEFUL: dict[str, Callable[[], Method]] = {
    "adaptive": methods.adaptive,
    "Global-Adapt": lambda: methods.global_adapt(initial=2.0),
    # DPSGD-F makes its bounds anew before it scales; only what is asked still earlier meets them.
    "DP-SAM, per group": lambda: compose(evaluation=DpSam(), clipping=PerGroup(0.2)),
    "DP-SAT": methods.dp_sat,
    "DP-SAT-momentum": methods.dp_sat_momentum,
    "inner and outer momentum": methods.inner_outer,
    "momentum of records": lambda: methods.dp_gd_momentum(rate=0.3),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_the_state_goes_round(name: str) -> None:
    """A method made anew goes on where the stored one stopped, to the last bit."""
    first, other = STATEFUL[name](), STATEFUL[name]()
    steps(first, 2)
    unlike = steps(copy.deepcopy(other), 1, start=2)
    other.load_state_dict(copy.deepcopy(first.state_dict()))
    other.load_private_state_dict(copy.deepcopy(first.private_state_dict()))
    expected = steps(first, 2, start=2)
    assert torch.equal(steps(other, 2, start=2), expected)
    assert not torch.equal(unlike, expected[: len(unlike)])  # there was something to store


def test_what_is_kept_of_records_is_not_in_the_public_state() -> None:
    method = methods.dp_gd_momentum()
    steps(method, 1)
    assert method.state_dict() == methods.dp_gd_momentum().state_dict()
    momenta = method.private_state_dict()["0"]["momenta"]
    assert all(len(value) == RECORDS for value in momenta.values())


@pytest.mark.parametrize("kind", [DpSatMomentum, InnerMomentum, OuterMomentum])
def test_a_state_of_another_method_is_refused(kind: type[Evaluation]) -> None:
    with pytest.raises(ValueError, match=rf"{kind.__name__} carries .*Resume with the method"):
        compose(evaluation=kind(), clipping=Flat(1.0)).load_state_dict(
            {"evaluation": [{"other": 1}], "clipping": {}}
        )
