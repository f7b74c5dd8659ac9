"""The counters of one input, by which the law of conservation is checked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.engine.time.control_rows import Control

__all__ = ["RARE_COUNTERS", "InputCounts"]

RARE_COUNTERS = ("tombstones", "unchanged", "unavailable", "late_commits")
"""The counters that a state has only where they are not zero."""


@dataclass
class InputCounts:
    """The counters of one input since the query's first batch."""

    rows_in: int = 0
    done: int = 0
    late_applied: int = 0
    tombstones: int = 0
    unchanged: int = 0
    unavailable: int = 0
    late_commits: int = 0
    late_commit: tuple[int, int] | None = None
    """The newest version that has broken its table's promise, and its time in epoch milliseconds; None if none has."""
    rejected: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        """Return the counters as JSON values."""
        return {
            "rows_in": self.rows_in,
            "done": self.done,
            "late_applied": self.late_applied,
            "rejected": dict(self.rejected),
            # A state without them is as one of 0.5.0.
            **{name: getattr(self, name) for name in RARE_COUNTERS if getattr(self, name)},
            **({} if self.late_commit is None else {"late_commit": list(self.late_commit)}),
        }

    def add_received(self, control: Control) -> None:
        """Count what a map task sent: its rows, its faults, and its tombstones, which are done."""
        self.rows_in += control.rows + len(control.faults) + control.tombstones
        self.done += control.tombstones
        self.tombstones += control.tombstones
        self.unavailable += control.unavailable

    def add_late_commits(self, commits: Sequence[tuple[int, int]]) -> None:
        """Count rows that have broken their table's promise.

        Args:
            commits: The version of each row's commit, and its time in epoch milliseconds.
        """
        self.late_commits += len(commits)
        self.late_commit = max([*commits, *([self.late_commit] if self.late_commit else [])], default=None)

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the counters that ``as_dict`` returned."""
        self.rows_in, self.done, self.late_applied = saved["rows_in"], saved["done"], saved["late_applied"]
        self.rejected = Counter(saved["rejected"])
        for name in RARE_COUNTERS:
            setattr(self, name, saved.get(name, 0))
        self.late_commit = tuple(saved["late_commit"]) if "late_commit" in saved else None
