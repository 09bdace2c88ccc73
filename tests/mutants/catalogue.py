"""All bugs that are planted, by subject."""

from tests.mutants import (
    accounting,
    correlated,
    crashes,
    exporting,
    isolation,
    movement,
    noise,
    sharing,
    spending,
    tables,
    trainers,
)
from tests.mutants.base import Mutant

SUBJECTS: dict[str, tuple[Mutant, ...]] = {
    "Who takes part, and what one record can move": movement.MUTANTS,
    "Records kept apart": isolation.MUTANTS,
    "What a table reveals before training": tables.MUTANTS,
    "Noise": noise.MUTANTS,
    "Noise correlated between steps": correlated.MUTANTS,
    "What epsilon is": accounting.MUTANTS,
    "What is charged, and stated": spending.MUTANTS,
    "What all runs on a table cost together": sharing.MUTANTS,
    "Crashes, resuming and refunds": crashes.MUTANTS,
    "What leaves with a model": exporting.MUTANTS,
    "Trainers of other libraries": trainers.MUTANTS,
}

MUTANTS: tuple[Mutant, ...] = tuple(one for own in SUBJECTS.values() for one in own)
