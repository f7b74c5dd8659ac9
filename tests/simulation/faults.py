"""What may go wrong at each operation of a simulated disk.

- ``crash before``, ``crash after``: the process ends, without or with the operation's effect;
- ``torn``: it ends in the middle of a write, of which a temporary file is left;
- ``fails``: an error, without effect;
- ``answer lost``: an error, although the operation took effect;
- ``stale``: a listing lacks the newest changes;
- ``power``: every process ends, and the newest changes are undone, as where they were not flushed to the disk;
- ``pause``: the process stands still for minutes;
- ``rival``: another driver starts now, on another machine.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FAULTS", "INJECTED", "MUTATING", "OPERATIONS", "Fault", "can_strike", "why_not"]

INJECTED = "simulated fault"
"""What the message of each injected error has."""

OPERATIONS = (
    "exists",
    "read",
    "list",
    "write",
    "replace",
    "delete",
    "delete directory",
    "make directory",
    "size",
    "plan batch",
    "commit batch",
    "read state",
    "write state",
    "read segment",
    "write segment",
    "write rows",
    "delta look",
    "delta commit",
)
_ATOMIC = ("delete", "delete directory", "make directory")
_WRITES = (
    "write",
    "replace",
    "plan batch",
    "commit batch",
    "write state",
    "write segment",
    "write rows",
    "delta commit",
)
MUTATING = frozenset((*_ATOMIC, *_WRITES))
FAULTS = ("crash before", "crash after", "torn", "fails", "answer lost", "stale", "power", "pause", "rival")


def can_strike(operation: str, fault: str) -> bool:
    """Return whether a fault makes sense at an operation."""
    return why_not(operation, fault) == ""


def why_not(operation: str, fault: str) -> str:
    """Return why a fault makes no sense at an operation; empty where it does."""
    if fault == "stale" and operation != "list":
        return "only a listing may lack the newest changes: all stores read what was written, and Delta needs them to"
    if fault in ("answer lost", "crash after") and operation not in MUTATING:
        return f"it changes nothing, so this equals {'fails' if fault == 'answer lost' else 'crash before'}"
    if fault == "torn" and operation in MUTATING and operation not in _WRITES:
        return "it writes no content"
    if fault == "torn" and operation not in _WRITES:
        return "it changes nothing, so there is nothing to tear"
    return ""


@dataclass(frozen=True)
class Fault:
    """A fault that strikes at the n-th operation of a kind, counted from the moment at which it is armed.

    Attributes:
        kind: One of ``FAULTS``.
        operation: One of ``OPERATIONS``; None strikes at the first at which the fault makes sense.
        after: How many such operations go well before.
        size: How much: seconds of a pause, changes that are undone or not seen.
        task: The name of the task in which alone it strikes; None where it may be any.
        wakes: After how many operations of a driver that has taken over a pause ends, if that is sooner; 0 where only
            the time ends it.
    """

    kind: str
    operation: str | None
    after: int
    size: int
    task: str | None = None
    wakes: int = 0

    def __str__(self) -> str:
        where = "" if self.task is None else f" of a task {self.task!r}"
        wakes = f", which wakes after {self.wakes} operations of others" if self.wakes else ""
        number = f"number {self.after + 1}{where}{wakes}"
        return f"{self.kind} (size {self.size}) at {self.operation or 'any operation'} {number}"
