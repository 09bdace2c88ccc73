"""Free combination: what combines, what is refused and why, and the table of all methods."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch

import plumbline as pl
from plumbline.augmentations import Shift
from plumbline.clipping import (
    Automatic,
    Averaged,
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
    Evaluation,
    InnerMomentum,
    OuterMomentum,
    PreClipNoise,
    RecordMomentum,
    Views,
)
from plumbline.methods import REGISTRY, compose

NAMES = [
    "dpsgd",
    "normalized",
    "automatic",
    "per_layer",
    "adaptive",
    "global_scaling",
    "global_adapt",
    "dpsgd_f",
    "fairlens",
    "dp_sam",
    "dp_sat",
    "dp_sat_momentum",
    "bam",
    "bam_exact",
    "inner_outer",
    "dp_gd_momentum",
    "self_augmented",
    "batch_clipping",
    "pre_clip_noise",
    "averaged",
    "group_batchnorm",
    "nonprivate",
    "nonprivate_sam",
    "gradient_norm_penalty",
    "clipped_only",
    "direction_only",
    "magnitude_only",
]
RULES: dict[type[Evaluation], Any] = {
    Views: lambda: Views(Shift(1), 2),
    BatchClipping: lambda: BatchClipping(torch.zeros(3, 1)),
}


def test_every_method_of_the_issue_is_there() -> None:
    assert set(REGISTRY) == set(NAMES)
    assert all(callable(getattr(pl.methods, name)) for name in NAMES)


@pytest.mark.parametrize(
    ("evaluation", "clipping"),
    [
        ([Bam(0.02), Views(Shift(2), 8)], GlobalAdapt(1.0)),
        ([InnerMomentum(), OuterMomentum()], Automatic(1.0)),
        (DpSat(0.05), PerGroup(1.0, (0, 1))),
        ([BamExact(), PreClipNoise()], Averaged(1.0)),
        ((), Flat(1.0)),
    ],
)
def test_rules_that_answer_different_questions_combine(evaluation: Any, clipping: Any) -> None:
    method = compose(evaluation=evaluation, clipping=clipping)
    assert method.clipping is clipping
    assert method.unbounded_reason is None


def test_the_order_in_the_list_does_not_matter() -> None:
    parts = [Views(Shift(1), 2), Bam(), PreClipNoise(), OuterMomentum()]
    made = {
        tuple(type(rule) for rule in compose(evaluation=list(order), clipping=Flat(1.0)).evaluation)
        for order in itertools.permutations(parts)
    }
    assert made == {(Views, Bam, PreClipNoise, OuterMomentum)}


def test_two_answers_to_one_question_are_refused_with_the_reason() -> None:
    rules = [RULES.get(kind, kind)() for kind in EVALUATIONS]
    for first, second in itertools.combinations(rules, 2):
        if first.slot != second.slot:
            compose(evaluation=[first, second], clipping=Flat(1.0))
            continue
        names = f"{type(first).__name__} and {type(second).__name__} both say"
        with pytest.raises(ValueError, match=f"{names} .*exclude each other"):
            compose(evaluation=[first, second], clipping=Flat(1.0))
    with pytest.raises(ValueError, match="at which weights a record's gradient is taken"):
        compose(evaluation=[Bam(), DpSam()], clipping=Flat(1.0))


@pytest.mark.parametrize(
    ("rule", "clipping", "message"),
    [
        (
            RecordMomentum(),
            Averaged(),
            "RecordMomentum keeps a momentum for every record, but Averaged",
        ),
        (RecordMomentum(), GroupBatchNorm(), "buckets that are drawn anew"),
        (RULES[BatchClipping](), GroupBatchNorm(), "which rows BatchNorm takes together"),
    ],
)
def test_what_belongs_to_a_record_has_no_place_in_a_bucket(
    rule: Evaluation, clipping: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        compose(evaluation=rule, clipping=clipping)


def test_noise_does_not_cover_what_has_no_bound() -> None:
    with pytest.raises(ValueError, match=r"Unclipped does not bound .*noisy=False"):
        compose(clipping=Unclipped())
    assert compose(clipping=Unclipped(), noisy=False).unbounded_reason is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"evaluation": ["bam"], "clipping": Flat(1.0)}, "'bam', which is not a rule"),
        ({"evaluation": Bam, "clipping": Flat(1.0)}, "not"),
        ({"clipping": 1.0}, "clipping is 1.0, which is not a clipping"),
    ],
)
def test_parts_of_the_wrong_kind(arguments: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        compose(**arguments)


def test_the_table() -> None:
    table = {row.name: row for row in pl.methods.table()}
    assert set(table) == set(NAMES)
    assert all(row.source for row in table.values())
    assert table["global_adapt"].source == "004, Alg. 2"
    assert table["global_adapt"].queries == "gradient, norms beyond the bound"
    assert table["dp_sam"].queries == "ascent gradient, gradient"
    assert table["dpsgd_f"].needs == "groups"
    assert table["batch_clipping"].needs == "public data"
    assert table["bam"].passes == 2
    assert table["self_augmented"].passes == 8
    assert table["inner_outer"].keeps == "the last iterates, the outer momentum"
    assert table["dpsgd"].guarantee == "yes"
    assert table["fairlens"].guarantee.startswith("none: FairLens puts whole-batch quantities")
    without = {name for name, row in table.items() if row.guarantee != "yes"}
    assert without == {
        *("fairlens", "group_batchnorm", "nonprivate", "nonprivate_sam", "gradient_norm_penalty"),
        *("clipped_only", "direction_only", "magnitude_only"),
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_method_goes_round_through_its_state(name: str) -> None:
    entry = REGISTRY[name]
    method = entry.make(**entry.example())
    other = entry.make(**entry.example())
    other.load_state_dict(copy.deepcopy(method.state_dict()))
    assert other.state_dict() == method.state_dict()
