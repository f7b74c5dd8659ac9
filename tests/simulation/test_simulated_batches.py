"""Batches of several drivers to one table keep their laws in every history, and each broken step of it is noticed."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from tests.seeds import SEED
from tests.simulation.mutants import DELTA_MUTANTS, Mutant
from tests.simulation.simulated_batches import KINDS, BatchPlan, BatchWorld, run, simulated_tables

_FIRST = 1_000_000 * (SEED % 1_000)
_MOST = 10_000
"""Within how many histories a broken step must be noticed; most are within a hundred."""


def first_broken(seeds: range) -> BatchWorld | None:
    """Return the first history that breaks a law."""
    with simulated_tables():
        return next((world for seed in seeds if (world := run(BatchPlan.of(seed))).broken), None)


def keeps_the_laws(seeds: range) -> None:
    broken = first_broken(seeds)
    assert broken is None, f"seed {broken.plan.seed}\n{broken}"


def test_hundreds_of_histories_keep_the_laws() -> None:
    keeps_the_laws(range(_FIRST, _FIRST + 500))


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.more) for part in range(1, 6))])
def test_many_histories_keep_the_laws(part: int) -> None:
    keeps_the_laws(range(_FIRST + 1_000 + 3_000 * part, _FIRST + 1_000 + 3_000 * (part + 1)))


def test_the_histories_meet_what_they_are_for() -> None:
    struck, kinds, errors = Counter[str](), Counter[str](), Counter[str]()
    signs = {
        *(
            "fenced off",
            "was made and is that of another writer",
            "commit removes are gone",
            "CHECK constraint",
        ),
        *("found no such file", "the table lacks", "simulated fault"),
    }
    checkpoints = 0
    with simulated_tables():
        for seed in range(_FIRST, _FIRST + 400):
            world = run(BatchPlan.of(seed))
            kinds[world.plan.kind] += 1
            struck.update(kind for _, kind in world.disk.struck.elements())
            errors.update(each for each in signs for _, error in world.errors if each in str(error))
            checkpoints += any("checkpoint" in path for path in world.disk.files)
    assert set(kinds) == set(KINDS)
    assert {"pause", "answer lost", "crash after", "crash before", "fails", "torn"} <= set(struck)
    assert set(errors) == signs
    assert checkpoints


def test_a_seed_decides_all() -> None:
    with simulated_tables():
        for seed in range(_FIRST, _FIRST + 10):
            one, two = run(BatchPlan.of(seed)), run(BatchPlan.of(seed))
            assert one.disk.history == two.disk.history


@pytest.mark.parametrize("mutant", DELTA_MUTANTS, ids=lambda mutant: mutant.name)
def test_each_broken_step_is_noticed(mutant: Mutant) -> None:
    with mutant():
        world = first_broken(range(_FIRST, _FIRST + _MOST))
    assert world is not None
    sys.stdout.write(f"{mutant.name}: noticed by history {world.plan.seed - _FIRST + 1}: {world.broken[0]}\n")
