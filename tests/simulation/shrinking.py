"""Makes a failing history short: what can be left out, so that it still breaks a law, is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation.history import run
from tests.simulation.laws import broken_laws

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History
    from tests.simulation.plan import Plan

__all__ = ["checked", "shortened"]

_MOST_TRIES = 400


def checked(plan: Plan) -> History:
    """Run a history and check the laws; it needs ``seams.simulated``."""
    history, world = run(plan)
    history.broken += broken_laws(world)
    return history


def shortened(history: History) -> History:
    """Return the shortest history that was found and breaks the same kind of law."""
    law = _kind(history)
    tries = 0
    found = True
    while found and tries < _MOST_TRIES:
        found = False
        for plan in _simpler(history.plan):
            tries += 1
            other = checked(plan)
            if law in map(_law, other.broken) and len(other.lines) <= len(history.lines):
                if len(other.lines) == len(history.lines) and _size(other.plan) >= _size(history.plan):
                    continue
                history, found = other, True
                break
    return history


def _kind(history: History) -> str:
    return _law(history.broken[0])


def _law(sentence: str) -> str:
    """Return which law a sentence is about: its first words, without names and numbers."""
    return sentence.split(":", maxsplit=1)[0].rstrip("0123456789 ")[:12]


def _size(plan: Plan) -> tuple[int, int, float, int]:
    return len(plan.faults), len(plan.actions), plan.switching, sum(each.how for each in plan.actions)


def _simpler(plan: Plan) -> Iterator[Plan]:
    """Return plans with one thing less."""
    for at in range(len(plan.actions)):
        yield replace(plan, actions=(*plan.actions[:at], *plan.actions[at + 1 :]))
    for at in range(len(plan.faults)):
        yield replace(plan, faults=(*plan.faults[:at], *plan.faults[at + 1 :]))
    for switching in (0.0, 0.02):
        if switching < plan.switching:
            yield replace(plan, switching=switching)
    for at, action in enumerate(plan.actions):
        for how in (action.how // 2, action.how - 1):
            if 0 <= how < action.how:
                yield replace(plan, actions=(*plan.actions[:at], action._replace(how=how), *plan.actions[at + 1 :]))
    for at, fault in enumerate(plan.faults):
        if fault.after:
            yield replace(
                plan, faults=(*plan.faults[:at], replace(fault, after=fault.after - 1), *plan.faults[at + 1 :])
            )
