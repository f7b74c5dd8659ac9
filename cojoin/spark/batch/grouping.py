"""Rows by key group: their groups where Spark has not told them, chunks of rows, and chunks cut into a piece a group.

The group is Spark's hash of the key, modulo the number of groups, so it is the same whoever computes it; rows with a
null key that are let out unmatched are spread by the hash of their content. A piece keeps the order of its rows.
It costs a hash of the keys, one sort of small integers and one copy of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from cojoin.engine.input_spec import has_null_key
from cojoin.engine.key_groups import spark_xx_hashes
from cojoin.engine.values.codec import write_messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["CHUNK_BYTES", "CHUNK_ROWS", "Grouping", "Piece", "chunks", "cut"]

# Larger chunks cost less; these limits bound a map task's memory.
CHUNK_ROWS, CHUNK_BYTES = 131_072, 64 << 20


class Piece(NamedTuple):
    """Some rows of a key group.

    Attributes:
        group: The key group's number.
        rows: How many rows there are.
        messages: The rows as messages (``engine.values.codec``).
    """

    group: int
    rows: int
    messages: Sequence[pa.Buffer]


@dataclass(frozen=True)
class Grouping:
    """How the rows of an input are distributed to key groups by the Python workers.

    Attributes:
        schema: The input's columns.
        key: The names of the key columns, of types that ``engine.key_groups.is_hashed`` accepts.
        key_groups: The number of key groups.
        spreading: The columns by whose hash rows with a null key are distributed, of such types too; none where these
            rows are rejected.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    key_groups: int
    spreading: tuple[str, ...] = ()

    def groups(self, rows: pa.RecordBatch | pa.Table) -> NDArray[np.int32]:
        """Return each row's key group.

        Args:
            rows: Rows with the input's columns.
        """
        keys = self._columns(rows, self.key)
        hashes = spark_xx_hashes(keys)
        if self.spreading:
            is_null = has_null_key(keys, keys.column_names)
            if is_null.any():
                hashes = np.where(is_null, spark_xx_hashes(self._columns(rows, self.spreading)), hashes)
        return np.mod(hashes, self.key_groups).astype(np.int32)

    def _columns(self, rows: pa.RecordBatch | pa.Table, names: Sequence[str]) -> pa.Table:
        places = [self.schema.get_field_index(name) for name in names]
        return pa.table([rows.column(at) for at in places], names=[str(at) for at in places])


def cut(rows: pa.Table, groups: NDArray[np.int32]) -> Iterator[Piece]:
    """Yield rows by key group, the groups in ascending order.

    Args:
        rows: The rows.
        groups: Their key groups.
    """
    order = np.argsort(groups, kind="stable")
    sorted_rows = rows.take(pa.array(order))
    present, starts = np.unique(groups[order], return_index=True)
    bounds = [*starts.tolist(), len(order)]
    for group, start, stop in zip(present.tolist(), bounds, bounds[1:], strict=False):
        yield Piece(group, stop - start, list(write_messages(sorted_rows.slice(start, stop - start))))


def chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield rows in chunks of limited rows and bytes; none exceeds twice the bytes, unless it is a single row."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        is_huge = batch.nbytes > 2 * CHUNK_BYTES
        most = max(1, batch.num_rows * CHUNK_BYTES // batch.nbytes) if is_huge else max(1, batch.num_rows)
        for begin in range(0, batch.num_rows, most):
            piece = batch.slice(begin, most)
            if waiting and size + piece.nbytes > 2 * CHUNK_BYTES:
                yield pa.Table.from_batches(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
            if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
                yield pa.Table.from_batches(waiting)
                waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)
