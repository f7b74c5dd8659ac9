"""The key groups of a harness: the assignment of keys to them, and their states as bytes.

A restore into another number of key groups merges the states and splits them by key again (``rescaling``).
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from cojoin.engine.rescaling import assemble, cut, merged_header
from cojoin.engine.values import codec
from cojoin.engine.values.rows import decode_rows
from cojoin.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from cojoin.engine.operator import Operator

__all__ = ["decode_states", "encode_states", "groups_of", "restore_states"]


def groups_of(keys: pa.Table, count: int) -> NDArray[np.int64]:
    """Return the key group of each row of key columns: a hash of the key that is the same in every run."""
    if count == 1:
        return np.zeros(keys.num_rows, dtype=np.int64)
    numbers = [zlib.crc32(repr(tuple(key)).encode()) % count for key in decode_rows(keys)]
    return np.array(numbers, dtype=np.int64)


def encode_states(states: Sequence[bytes], processing_time: int) -> bytes:
    """Return the states of all key groups, and the processing time in epoch milliseconds, as one snapshot."""
    table = pa.table({"state": pa.array(states, pa.binary())})
    return codec.encode({"harness": 1, "processing_time": processing_time}, {"states": table})


def decode_states(data: bytes) -> tuple[list[bytes], int]:
    """Return the states of all key groups, and the processing time in epoch milliseconds.

    Raises:
        CodecError: The bytes are not a snapshot of a harness.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        msg = f"restore: expected the bytes that a harness's snapshot() gave, got {data!r}"
        raise CodecError(msg)
    header, tables = codec.decode(data)
    if "harness" not in header:
        msg = "restore: expected what a harness's snapshot() gave, got the state of a single operator"
        raise CodecError(msg)
    return tables["states"].column(0).to_pylist(), header["processing_time"]


def restore_states(operators: Sequence[Operator], states: Sequence[bytes]) -> None:
    """Restore new operators from the states of the same or another number of key groups.

    Raises:
        CheckpointError: The states are of another operation, or their columns can't become the inputs'.
    """
    if len(states) == len(operators):
        for operator, state in zip(operators, states, strict=True):
            operator.restore(state)
        return
    headers, tables = zip(*map(codec.decode, states), strict=True)
    count = len(operators)
    pieces = cut(assemble(tables), operators[0].inputs, lambda keys: groups_of(keys, count), count)
    header = merged_header(headers)
    for group, (operator, piece) in enumerate(zip(operators, pieces, strict=True)):
        operator.load_parts(header, piece, keeps_counts=group == 0)
