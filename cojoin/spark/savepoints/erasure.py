"""What an erasure has removed from a state, and what remains elsewhere, as people see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.checkpoints.checkpoint import Checkpoint
from cojoin.engine.display import Display, display_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Erasure", "Remainder"]


@dataclass(frozen=True)
class Remainder:
    """A place that has, or may have, rows of an erased key.

    Attributes:
        place: The place: a table, a directory, or a source.
        what: What the place is, such as ``"output"`` or ``"the old checkpoint"``.
        rows: How many rows of the key it has; None where that is not known.
        statements: What removes them, in this order; empty where cojoin knows nothing that does.
        note: What else there is to know; empty where there is nothing.
    """

    place: str
    what: str
    rows: int | None
    statements: Sequence[str] = ()
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**vars(self), "statements": list(self.statements)}


@dataclass(frozen=True, repr=False)
class Erasure:
    """The result of ``cojoin.erase``.

    Attributes:
        path: The old checkpoint.
        into: The new checkpoint, with which a query begins: ``restore_from=cojoin.Checkpoint(into)``.
        batch_id: The batch after which the state is.
        keys: The keys, each by the column names of the left input.
        removed: How many rows were removed from each part of the state; parts without any are left out.
        remains: Where rows of the keys remain, or may remain.
    """

    path: str
    into: str
    batch_id: int
    keys: Sequence[Mapping[str, Any]]
    removed: Mapping[str, int]
    remains: Sequence[Remainder]

    @property
    def checkpoint(self) -> Checkpoint:
        """The new checkpoint, for ``start(restore_from=...)``."""
        return Checkpoint(self.into, self.batch_id)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**vars(self), "keys": list(map(dict, self.keys)), "removed": dict(self.removed)} | {
            "remains": [each.as_dict() for each in self.remains]
        }

    def __str__(self) -> str:
        return display_of(self._display, "Erasure").text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return display_of(self._display, "Erasure").html()

    def _display(self) -> Display:
        keys = "1 key" if len(self.keys) == 1 else f"{len(self.keys):,} keys"
        total = sum(self.removed.values())
        done = f"{total:,} row{'' if total == 1 else 's'} removed" if total else "the state had nothing of it"
        head = f"Erased {keys} from the state of {self.path} after batch {self.batch_id}, into {self.into}: {done}"
        table = [("part of the state", "rows removed"), *((name, f"{rows:,}") for name, rows in self.removed.items())]
        first = "Begin the query with the new checkpoint first: outputs that someone has changed since are refused."
        notes = [first, "What remains elsewhere, and what removes it:"]
        for each in self.remains:
            rows = "rows not counted" if each.rows is None else f"{each.rows:,} row{'' if each.rows == 1 else 's'}"
            notes.append(f"- {each.what}, {each.place}: {rows}{f'. {each.note}' if each.note else ''}")
            notes += [f"    {statement}" for statement in each.statements]
        return Display(head, table if self.removed else [], notes)
