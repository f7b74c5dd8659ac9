"""The defects that the simulation has found, each as a short history: it keeps the laws, and broke one before."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.plan import Action, Plan
from tests.simulation.seams import simulated
from tests.simulation.shrinking import checked
from tests.simulation.simulated_store import Fault

_TWO_FIRST_STARTS = (Action("rows", 8), Action("drive", 0), Action("wait", 4), Action("drive", 1), Action("await", 12))
_SAVEPOINT_BESIDE = (Action("rows", 11), Action("drive", 0), Action("await", 0), Action("savepoint", 0))

FOUND = {
    # A start that stood still wrote its own id over that of the query that had begun: all rows again, or none any more.
    "the description of the query is written without compare-and-swap": Plan(
        1, switching=0.0, actions=_TWO_FIRST_STARTS, faults=(Fault("pause", "write", 0, 200),)
    ),
    # Cleaning that stood still deleted the folder in which a savepoint of the same batch had its rows by then.
    "a savepoint does not look whether the batch's former snapshot is being removed": Plan(
        1, switching=0.05, cadence=1, actions=_SAVEPOINT_BESIDE, faults=(Fault("pause", "delete directory", 0, 190),)
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_is_mended(name: str) -> None:
    mutant = next(each for each in MUTANTS if each.name == name)
    with simulated():
        history = checked(FOUND[name])
    assert not history.broken, str(history)
    with mutant(), simulated():
        assert checked(FOUND[name]).broken


def test_cleaning_looks_whether_a_listing_is_old() -> None:
    """A listing without the newest snapshot made what that one points to look unneeded."""
    mutant = next(each for each in MUTANTS if "believes a listing" in each.name)
    actions = Action("rows", 12), Action("drive", 0)
    plans = [
        Plan(seed, switching=0.0, cadence=1, actions=actions, faults=(Fault("stale", "list", number, 6),))
        for seed in (2, 3, 4)
        for number in range(14, 27)
    ]
    with simulated():
        for plan in plans:
            history = checked(plan)
            assert not history.broken, str(history)
    with mutant(), simulated():
        assert any(checked(plan).broken for plan in plans)
