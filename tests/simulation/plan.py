"""The plan of a history: what the operator does and what goes wrong, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from tests.simulation.faults import FAULTS, OPERATIONS, Fault, can_strike

__all__ = ["PAIRS", "Action", "Plan"]

PAIRS = [(operation, fault) for operation in OPERATIONS for fault in FAULTS if can_strike(operation, fault)]

_KINDS = ("local", "object", "object", "other")
"""The kinds of stores, as often as they are drawn."""

_SHAPES = ("any", "hand-over", "savepoint", "segments", "cleaning")
"""What a history leads to: nothing certain, a holder or a savepoint that stands still while another driver works, rows
that wait in segments, snapshots that are removed."""

_OF_CLEANING = ("size", "delete directory", "delete")
_OF_SEGMENTS = ("read segment", "write segment", "read state", "write state")
_BEFORE_A_WRITE = ("delta commit", "delta look", "write rows", "write", "replace", "read", "list", "delete")
_OF_RESTORATIONS = (
    "replace",
    "replace",
    "replace",
    "delete directory",
    "write",
    "list",
    "read",
    "write rows",
    "exists",
)
_TWO_THAT_MEET = 0.2
"""How many histories have two restorations, or a savepoint and a query, that do the same at one time."""

_OF_SAVEPOINTS = ("list", "read", "replace", "write rows", "delta look", "delta commit", "read state", "exists")

_WEIGHTS = {
    "rows": 3,
    "left rows": 2,
    "drive": 3,
    "live": 2,
    "wait": 2,
    "await": 5,
    "savepoint": 5,
    "own savepoint": 3,
    "stop": 1,
    "pause": 1,
    "restore": 4,
    "kill": 1,
    "drain": 2,
}
"""What the operator does, by how often."""


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
        has_conditional_writes: Whether the store has compare-and-swap.
        loses_power: Whether it is a local file system, whose newest changes a power failure undoes.
        switching: How often another task runs at an operation.
        retained: How many snapshots are kept.
        cadence: After how many batches a snapshot is due.
        actions: What the operator does.
        faults: What goes wrong.
        spark_writes: Whether Spark's own writer writes the output and the state table, as where it encrypts its files.
            It also does where the store has no compare-and-swap, as on HDFS.
    """

    seed: int
    has_conditional_writes: bool = True
    loses_power: bool = False
    switching: float = 0.1
    retained: int = 1
    cadence: int = 2
    actions: tuple[Action, ...] = ()
    faults: tuple[Fault, ...] = ()
    spark_writes: bool = False

    @classmethod
    def of(cls, seed: int) -> Plan:
        """Return the plan of a seed."""
        # Drawn apart, here and below, so that the other draws stay as they were.
        apart = random.Random(f"beside {seed}")
        if apart.random() < _TWO_THAT_MEET:
            return cls._of_two_that_meet(seed, apart)
        draw = random.Random(f"plan {seed}")
        kind = draw.choice(_KINDS)
        shape = draw.choices(_SHAPES, (12, 2, 2, 2, 2))[0]
        actions = _actions(draw, shape)
        # No other kind meets a loss of power, so a local file system meets it more often.
        pairs = _pairs(kind)
        pairs += [pair for pair in PAIRS if kind == "local" and pair[1] == "power"] * 3
        if shape == "segments":
            pairs = [pair for pair in pairs if pair[0] in _OF_SEGMENTS]
        elif shape == "cleaning":
            pairs = [pair for pair in pairs if pair[0] in _OF_CLEANING]
        faults = [_fault(draw, *draw.choice(pairs)) for _ in range(draw.randint(2, 4))]
        if shape == "hand-over":
            faults = [_pause(draw, draw.choice(_BEFORE_A_WRITE)), *faults[1:]]
        elif shape == "savepoint":
            faults = [_pause(draw, draw.choice(_OF_SAVEPOINTS), "savepoint"), *faults[1:]]
        return cls(
            seed,
            kind != "other",
            kind == "local",
            draw.choice((0.0, 0.02, 0.05, 0.15)),
            1 if shape in ("cleaning", "savepoint") else draw.randint(1, 2),
            1 if shape == "cleaning" else draw.choice((1, 2, 3)),
            tuple(actions),
            tuple(faults),
            kind != "local" and random.Random(f"writer {seed}").random() < 0.5,
        )

    @classmethod
    def _of_two_that_meet(cls, seed: int, draw: random.Random) -> Plan:
        """Return a plan in which a restoration or a savepoint stands still while another driver restores or cleans.

        The other plans draw that as well, and meet it once in thousands of histories.
        """
        kind, host = draw.choice(_KINDS), draw.randint(0, 1)
        if draw.random() < 0.5:
            task, operations, after = "restore", _OF_RESTORATIONS, draw.choice((0, 1, 2, 3, 4, 5, 8, 12))
            begin = [
                Action("rows", draw.randint(1, 12)),
                Action("drive", host),
                Action("await", 12 * draw.randint(0, 1)),
            ]
            saved = [Action("savepoint", host)] * draw.randint(0, 1)
            other = draw.choice((host, 1 - host, 1 - host))
            # The first query may go on meanwhile, and remove what is being restored.
            goes_on = [Action("rows", 12), Action("drive", other), Action("await", 12)] * draw.randint(0, 1)
            twice = Action("restore", host), Action("wait", draw.randint(0, 6)), *goes_on, Action("restore", other)
            actions = [*begin, *saved, *twice, Action("await", 40)]
        else:
            task, operations, after = "savepoint", (*_OF_SAVEPOINTS, "write", "read state"), draw.choice((0, 0, 1, 2))
            begin = [Action("left rows", 12), Action("rows", draw.randint(3, 12)), Action("drive", host)]
            between = Action("await", 12), Action(draw.choice(("rows", "left rows")), 12), Action("savepoint", host)
            again = Action("drive", 1 - host), Action("await", 12)
            actions = [*begin, *between, *again, Action("rows", 12), *again]
        size, wakes = draw.randint(40, 300), draw.choice((0, draw.randint(1, 150), draw.randint(100, 400)))
        faults = [Fault("pause", draw.choice(operations), after, size, task, wakes)]
        pairs = _pairs(kind)
        faults += [_fault(draw, *draw.choice(pairs)) for _ in range(draw.randint(1, 2))]
        return cls(
            seed,
            kind != "other",
            kind == "local",
            draw.choice((0.0, 0.02, 0.05)),
            1,
            draw.choice((1, 2, 3, 3)),
            tuple(actions),
            tuple(faults),
            kind != "local" and draw.random() < 0.5,
        )


def _pairs(kind: str) -> list[tuple[str, str]]:
    """Return the faults that make sense on a kind of store: only a local file system loses changes with the power."""
    return [pair for pair in PAIRS if kind == "local" or pair[1] != "power"]


def _actions(draw: random.Random, shape: str) -> list[Action]:
    """Return what the operator does: in a history of a certain shape what leads there, and then anything."""
    others = [
        Action(draw.choices([*_WEIGHTS], _WEIGHTS.values())[0], draw.randint(0, 12)) for _ in range(draw.randint(2, 6))
    ]
    host = draw.randint(0, 1)
    many = [Action("rows", 12), Action("drive", host)]
    if shape == "hand-over":
        begin = [Action("rows", draw.randint(6, 12)), Action(draw.choice(("drive", "live")), host)]
        return [*begin, Action("wait", draw.randint(0, 6)), Action("drive", 1 - host), Action("await", 12), *others[:3]]
    if shape == "savepoint":
        begin = [*many, Action("await", 12), Action("rows", 12)]
        return [*begin, Action("savepoint", host), Action("drive", 1 - host), Action("await", 12), *others[:3]]
    if shape == "segments":
        return [Action("left rows", 12), *many, Action("await", 12), Action("left rows", 12), *others]
    if shape == "cleaning":
        # What is seldom done needs many batches with snapshots, so that some are removed.
        begin = [*many, Action("await", 12), Action("rows", 12)]
        return [*begin, *others, Action("drive", draw.randint(0, 1)), Action("await", 12)]
    return [Action("rows", draw.randint(1, 12)), Action("drive", host), *others]


def _fault(draw: random.Random, operation: str, kind: str) -> Fault:
    size = draw.randint(40, 300) if kind == "pause" else draw.randint(1, 6)
    few = operation in (*_OF_CLEANING, *_OF_SEGMENTS)
    after = draw.choice((0, 1) if few else (0, 0, 1, 1, 2, 3, 5, 8, 13, 21))
    wakes = draw.choice((0, draw.randint(1, 150))) if kind == "pause" else 0
    return Fault(kind, operation, after, size, wakes=wakes)


def _pause(draw: random.Random, operation: str, task: str | None = None) -> Fault:
    """Return a pause that ends while another driver works."""
    after = draw.randint(0, 2 if task is not None else 12)
    return Fault("pause", operation, after, draw.randint(60, 300), task, draw.randint(1, draw.choice((150, 150, 600))))
