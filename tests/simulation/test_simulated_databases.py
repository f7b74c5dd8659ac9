"""Batches of several drivers to one table of a database keep their laws, and each broken step of it is noticed."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from tests.seeds import SEED
from tests.simulation.mutants import SQL_MUTANTS, Mutant
from tests.simulation.simulated_databases import DatabasePlan, DatabaseWorld, run, without_pauses

_FIRST = 1_000_000 * (SEED % 1_000)
_MOST = 3_000
"""Within how many histories a broken step must be noticed."""


def first_broken(seeds: range) -> DatabaseWorld | None:
    """Return the first history that breaks a law."""
    with without_pauses():
        return next((world for seed in seeds if (world := run(DatabasePlan.of(seed))).broken), None)


def keeps_the_laws(seeds: range) -> None:
    broken = first_broken(seeds)
    assert broken is None, f"seed {broken.plan.seed}\n{broken}"


def test_histories_keep_the_laws() -> None:
    keeps_the_laws(range(_FIRST, _FIRST + 60))


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.more) for part in range(1, 10))])
def test_many_histories_keep_the_laws(part: int) -> None:
    keeps_the_laws(range(_FIRST + 1_000 + 500 * part, _FIRST + 1_000 + 500 * (part + 1)))


def test_the_histories_meet_what_they_are_for() -> None:
    struck, errors = Counter[str](), Counter[str]()
    with without_pauses():
        for seed in range(_FIRST, _FIRST + 60):
            world = run(DatabasePlan.of(seed))
            struck.update(kind for _, kind in world.disk.struck.elements())
            errors.update("fenced off" for _, error in world.errors if "fenced off" in str(error))
    assert {"pause", "fails", "crash before"} <= set(struck)
    assert errors


@pytest.mark.parametrize("mutant", SQL_MUTANTS, ids=lambda mutant: mutant.name)
def test_each_broken_step_is_noticed(mutant: Mutant) -> None:
    with mutant():
        world = first_broken(range(_FIRST, _FIRST + _MOST))
    assert world is not None
    sys.stdout.write(f"{mutant.name}: noticed by history {world.plan.seed - _FIRST + 1}: {world.broken[0]}\n")
