"""Reads values of Spark's state store together with the rows that are in segments.

A value has the newest rows of a key group, and names the segments that have the others. Inspection and savepoints need
all rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.engine.state.segmented_table import whole_tables
from cojoin.engine.values import codec

if TYPE_CHECKING:
    import pyarrow as pa

    from cojoin.engine.state.segments import SegmentStore

__all__ = ["read_value"]


def read_value(content: bytes, segments: SegmentStore) -> tuple[dict[str, Any], dict[str, pa.Table]]:
    """Return a state value's header, and its tables with all their rows.

    Args:
        content: The value.
        segments: The store of the checkpoint's segments.

    Raises:
        CodecError: The value, or a segment that it names, is damaged.
        CheckpointError: A segment that it names does not exist.
    """
    header, tables = codec.decode(content)
    # Who wrote the value is no part of the state.
    header.pop("written", None)
    return header, whole_tables(header.pop("segments", {}), tables, segments)
