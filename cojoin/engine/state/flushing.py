"""What of an operator's rows at rest goes into its state value, and how it finds the others again.

The state value holds each table's newest rows, for a table with segments (``kept``) the hashes that they own, and in
its header the segments' names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cojoin.engine.state.segmented_table import OWNED
from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from cojoin.engine.state.segmented_table import KeptRows
    from cojoin.engine.state.segments import Segmenting

__all__ = ["Settled", "attach", "settle"]


class Settled(NamedTuple):
    """What a state value has to hold."""

    described: dict[str, Any]
    """By table what the header must have of it (``KeptRows.describe``); none of tables without segments."""

    tables: dict[str, pa.Table]
    """The newest rows, and the hashes that they own."""

    written: int
    """The bytes written as segments."""


def settle(kept: Mapping[str, KeptRows], segmenting: Segmenting | None) -> Settled:
    """Write rows that are too many for the state value as segments, and give what it has to hold.

    Args:
        kept: The rows, by table.
        segmenting: What may be done with segments; None keeps all rows in the state value.
    """
    written = 0 if segmenting is None else sum(rows.settle(segmenting) for rows in kept.values())
    apart = {name: rows for name, rows in kept.items() if rows.segments}
    tables = {name: rows.newest for name, rows in kept.items()}
    owned = {OWNED + name: rows.owned() for name, rows in apart.items()}
    return Settled({name: rows.describe() for name, rows in apart.items()}, {**tables, **owned}, written)


def attach(
    kept: Mapping[str, KeptRows],
    described: Mapping[str, Any],
    tables: Mapping[str, pa.Table],
    segmenting: Segmenting | None,
) -> None:
    """Let rows that were loaded from a state value find those in segments.

    Raises:
        CheckpointError: There are some, and nothing says where they lie.
    """
    for name, each in described.items():
        if segmenting is None:
            msg = (
                f"the state has rows of {name!r} in segments, such as {each['segments'][0][0]}, and nothing says where "
                f"they lie; run the query with its own checkpoint, where pyarrow can read it"
            )
            raise CheckpointError(msg)
        kept[name].attach(each, tables[OWNED + name], segmenting.store)
