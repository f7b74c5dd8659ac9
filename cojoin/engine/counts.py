"""The counters of one input, by which the law of conservation is checked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.engine.time.control_rows import Control

__all__ = ["InputCounts"]


@dataclass
class InputCounts:
    """The counters of one input since the query's first batch."""

    rows_in: int = 0
    done: int = 0
    late_applied: int = 0
    tombstones: int = 0
    unchanged: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        """Return the counters as JSON values."""
        return {
            "rows_in": self.rows_in,
            "done": self.done,
            "late_applied": self.late_applied,
            "rejected": dict(self.rejected),
            # A state without them is as one of 0.5.0.
            **({"tombstones": self.tombstones} if self.tombstones else {}),
            **({"unchanged": self.unchanged} if self.unchanged else {}),
        }

    def add_received(self, control: Control) -> None:
        """Count what a map task sent: its rows, its faults, and its tombstones, which are done."""
        self.rows_in += control.rows + len(control.faults) + control.tombstones
        self.done += control.tombstones
        self.tombstones += control.tombstones

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the counters that ``as_dict`` returned."""
        self.rows_in, self.done, self.late_applied = saved["rows_in"], saved["done"], saved["late_applied"]
        self.rejected = Counter(saved["rejected"])
        self.tombstones, self.unchanged = saved.get("tombstones", 0), saved.get("unchanged", 0)
