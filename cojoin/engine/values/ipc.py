"""Arrow messages in binary cells, in which tables cross between the JVM and Python.

A message is one Arrow record batch without its schema, which both ends know. The messages of a table are small on
average, so code that carries many may count messages instead of bytes. A row is never split.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["binary_column", "read_message", "write_messages"]

_MESSAGE_BYTES = 128 << 10


def write_messages(table: pa.Table) -> Iterator[pa.Buffer]:
    """Yield a table's rows as messages of 128 kB on average, or of one row where rows are larger."""
    rows = max(1, table.num_rows * _MESSAGE_BYTES // max(1, table.nbytes))
    for batch in table.combine_chunks().to_batches(max_chunksize=rows):
        yield batch.serialize()


def read_message(message: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return a message's rows, without copying them."""
    return pa.ipc.read_record_batch(message, schema)


def binary_column(contents: Sequence[Any]) -> pa.Array:
    """Return buffers or bytes as a binary column, copied once; going through Python's ``bytes`` would copy twice."""
    offsets = np.cumsum([0, *(memoryview(content).nbytes for content in contents)], dtype=np.int64)
    if not offsets[-1] or offsets[-1] >= 1 << 31:
        return pa.array([bytes(memoryview(content)) for content in contents], pa.binary())
    joined = np.concatenate(
        [np.frombuffer(content, dtype=np.uint8) for content in contents if memoryview(content).nbytes]
    )
    return pa.Array.from_buffers(
        pa.binary(), len(contents), [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(joined)]
    )
