"""Values of Spark's state store as people read them: with the rows that lie in segments.

A value holds the newest rows of a key group and names the segments that have the others; whoever looks at a state, or
saves it, must see the whole.
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
        segments: Where the checkpoint's segments lie.

    Raises:
        CodecError: It is not what was written, or a segment is not.
        CheckpointError: A segment that it names is not there.
    """
    header, tables = codec.decode(content)
    return header, whole_tables(header.pop("segments", {}), tables, segments)
