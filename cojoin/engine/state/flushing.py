"""Between an operator's tables and its state value: flush what has grown too large, and find the segments again.

The state value has each table's memtable. For a table with segments (``segmented_table``) it also has the hashes that
the memtable shadows, and its header has the names of the segments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cojoin.engine.state.segmented_table import SHADOWED
from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from cojoin.engine.state.segmented_table import SegmentedTable
    from cojoin.engine.state.segments import SegmentContext

__all__ = ["Flushed", "attach", "flush"]


class Flushed(NamedTuple):
    """What a state value must hold after a flush."""

    described: dict[str, Any]
    """For each table with segments, what the header must say of it (``SegmentedTable.describe``)."""

    tables: dict[str, pa.Table]
    """The memtables, and the hashes that they shadow."""

    written: int
    """The bytes written as segments."""


def flush(tables: Mapping[str, SegmentedTable], segmenting: SegmentContext | None) -> Flushed:
    """Write memtables that are too large for the state value as segments.

    Args:
        tables: The tables, by name.
        segmenting: How segments are written; None leaves all rows in the state value.
    """
    written = 0 if segmenting is None else sum(table.flush(segmenting) for table in tables.values())
    with_segments = {name: table for name, table in tables.items() if table.segments}
    memtables = {name: table.memtable for name, table in tables.items()}
    shadowed = {SHADOWED + name: table.shadowed() for name, table in with_segments.items()}
    described = {name: table.describe() for name, table in with_segments.items()}
    return Flushed(described, {**memtables, **shadowed}, written)


def attach(
    tables: Mapping[str, SegmentedTable],
    described: Mapping[str, Any],
    stored: Mapping[str, pa.Table],
    segmenting: SegmentContext | None,
) -> None:
    """Connect tables whose memtables were loaded from a state value with their segments.

    Args:
        tables: The tables, by name.
        described: What the state value's header says of those with segments.
        stored: The tables of the state value.
        segmenting: Where the segments are stored.

    Raises:
        CheckpointError: There are segments, and ``segmenting`` is None.
    """
    for name, each in described.items():
        if segmenting is None:
            msg = (
                f"the state has rows of {name!r} in segments, such as {each['segments'][0][0]}, and nothing says where "
                f"they lie; run the query with its own checkpoint, where pyarrow can read it"
            )
            raise CheckpointError(msg)
        tables[name].attach(each, stored[SHADOWED + name], segmenting.store)
