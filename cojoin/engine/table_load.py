"""A load of a table: all rows of one version of it, which become the right side of a stream's join at once.

A key group's part of a load comes whole in one micro-batch, with a closing message that counts its rows. The input is
finished from then on, so it never holds time. A later load, a *refresh*, takes the place of all rows before it: rows
that are buffered or kept are forgotten and counted as done. Rows that were emitted never change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from cojoin.engine.inputs import InputSpec

__all__ = ["TableLoad", "refuse_refresh"]


@dataclass(frozen=True)
class TableLoad:
    """The closing message of a load, for one key group.

    Attributes:
        load: The load's name; a later load of the query has a greater number in it.
        table_id: The table's id.
        version: The table's version.
        rows: How many rows the load has for the key group.
        largest: The largest timestamp in the whole load, in epoch milliseconds; None without one.
        batch_id: The micro-batch that takes the load.
    """

    load: str
    table_id: str
    version: int
    rows: int
    largest: int | None = None
    batch_id: int = -1

    def as_dict(self, processing_time: int) -> dict[str, Any]:
        """Return what the state remembers of the load, as JSON values.

        Args:
            processing_time: The processing time of its micro-batch, in epoch milliseconds.
        """
        return {
            "load": self.load,
            "table_id": self.table_id,
            "version": self.version,
            "batch_id": self.batch_id,
            "loaded_at": processing_time,
        }


def refuse_refresh(right: InputSpec, what: str, why: str) -> None:
    """Refuse a right input that is refreshed.

    Args:
        right: The right input.
        what: The operation.
        why: Why it can't take a refresh.

    Raises:
        ConfigurationError: The input is refreshed.
    """
    if right.refreshes:
        msg = (
            f"refresh: {what} takes no refresh of input {right.name!r}: {why}; leave refresh= out and start the query "
            f"anew for a newer version, or use asof_join or temporal_join"
        )
        raise ConfigurationError(msg)
