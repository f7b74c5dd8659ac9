"""The plan of a history: what the operator does and what goes wrong, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from tests.simulation.simulated_store import FAULTS, OPERATIONS, Fault, can_strike

__all__ = ["PAIRS", "Action", "Plan"]

PAIRS = [(operation, fault) for operation in OPERATIONS for fault in FAULTS if can_strike(operation, fault)]
_RARE = ("size", "delete directory")


class Action(NamedTuple):
    """What the operator does: its name, and how much or where."""

    name: str
    how: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.how}"


@dataclass(frozen=True)
class Plan:
    """What happens in a history, apart from which task runs when.

    Attributes:
        seed: It decides which task runs when, and all other random numbers.
        swaps: Whether the store has compare-and-swap.
        loses_power: Whether it is a local file system, whose newest changes a power failure undoes.
        switching: How often another task runs at an operation.
        retained: How many snapshots are kept.
        cadence: After how many batches a snapshot is due.
        actions: What the operator does.
        faults: What goes wrong.
    """

    seed: int
    swaps: bool = True
    loses_power: bool = False
    switching: float = 0.1
    retained: int = 1
    cadence: int = 2
    actions: tuple[Action, ...] = ()
    faults: tuple[Fault, ...] = ()

    @classmethod
    def of(cls, seed: int) -> Plan:
        """Return the plan of a seed."""
        draw = random.Random(f"plan {seed}")
        kind = draw.choice(("local", "object", "object", "other"))
        actions = [Action("rows", draw.randint(1, 12)), Action("drive", draw.randint(0, 1))]
        for _ in range(draw.randint(2, 6)):
            name = draw.choices(
                (
                    "rows",
                    "drive",
                    "live",
                    "wait",
                    "await",
                    "savepoint",
                    "own savepoint",
                    "stop",
                    "pause",
                    "restore",
                    "kill",
                    "drain",
                ),
                (3, 3, 2, 2, 5, 5, 3, 1, 1, 4, 1, 2),
            )[0]
            actions.append(Action(name, draw.randint(0, 12)))
        faults = []
        # Only a local file system loses changes with the power, so it meets that more often.
        pairs = [pair for pair in PAIRS if kind == "local" or pair[1] != "power"]
        pairs += [pair for pair in PAIRS if kind == "local" and pair[1] == "power"] * 2
        for _ in range(draw.randint(2, 4)):
            operation, fault = draw.choice(pairs)
            size = draw.randint(40, 300) if fault == "pause" else draw.randint(1, 6)
            after = draw.choice((0, 1) if operation in _RARE else (0, 0, 1, 1, 2, 3, 5, 8, 13, 21))
            faults.append(Fault(fault, operation, after, size))
        is_rare = any(each.operation in _RARE for each in faults)
        if is_rare:
            # What is seldom done needs many batches with snapshots, so that some are removed.
            actions[:2] = [
                Action("rows", 12),
                Action("drive", draw.randint(0, 1)),
                Action("await", 12),
                Action("rows", 12),
            ]
            actions += [Action("drive", draw.randint(0, 1)), Action("await", 12)]
        return cls(
            seed,
            kind != "other",
            kind == "local",
            draw.choice((0.0, 0.02, 0.05, 0.15)),
            1 if is_rare else draw.randint(1, 2),
            1 if is_rare else draw.choice((1, 2, 3)),
            tuple(actions),
            tuple(faults),
        )
