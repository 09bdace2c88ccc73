"""What a run states: the guarantee for the steps that are charged, with what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plumbline.mechanism.statement import Statement
from plumbline.training.distributed import shared_by

if TYPE_CHECKING:
    from plumbline.training.private import Private

RECORDED = (
    "Captures were recorded and run without the model's own code. The guarantee holds if nothing "
    "that the model's code reads changed during the run, but for its weights."
)


def statement_of(private: Private, steps: int) -> Statement:
    """The statement of a run of which so many steps are charged."""
    setup, plan, programs = private.setup, private.plan, private.programs
    return Statement.for_run(
        plan,
        steps_done=steps,
        noise_source=private.noise_source + shared_by(private.processes, seeded=private.seeded),
        seeded=private.seeded,
        isolation=private.isolation,
        company=private.method.company,
        recorded=programs is not None and programs.used and programs.proven,
        audited="" if private.audited is None else private.audited.verdict,
        unit="record" if setup.user_ids is None else "user",
        bands=len(private.bands),
        public_constants={
            "expected batch size": plan.expected_batch_size,
            "method": private.method.name,
        },
        given=setup.not_covered,
        stated=setup.stated,
        records_noisy=setup.records_noisy,
        not_covered=private.not_covered,
        warnings=(
            *private.warnings,
            *_of_loss(private.lost, plan.steps),
            *_of_moved(private.moved),
        ),
    )


def _of_loss(lost: int, steps: int) -> list[str]:
    if not lost:
        return []
    return [
        f"{lost} of the {steps} planned steps were charged and their results lost, when the run "
        "was interrupted. They count as spent, and so many updates fewer were made."
    ]


def _of_moved(steps: int) -> list[str]:
    if not steps:
        return []
    return [
        f"After {steps} of the steps, something beside the run has changed the weights or buffers: "
        "an optimizer of its own, say, a projection, or an average that was put in their place. "
        "The guarantee holds if that looked at no private record."
    ]
