"""The key groups of a local run: the assignment of keys to them, and their states as one snapshot of bytes.

A restore into another number of key groups merges the states and splits them by key again (``rescaling``). A harness
and a stepper restore each other's snapshots.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from cojoin.engine.rescaling import assemble, cut, merged_header
from cojoin.engine.values import codec
from cojoin.engine.values.rows import decode_rows
from cojoin.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from cojoin.engine.operator import Operator
    from cojoin.engine.plan import Plan

__all__ = [
    "SavedStates",
    "decode_states",
    "encode_states",
    "groups_of",
    "restore_parts",
    "restore_states",
    "restored_operators",
]


class SavedStates(NamedTuple):
    """A snapshot of a harness or of a stepper."""

    states: list[bytes]
    """The state of each key group."""

    processing_time: int
    """The clock, in epoch milliseconds; 0 if it is unknown."""

    batch_id: int
    """The last micro-batch's number, as a stepper counts them; -1 before the first one, and in a harness."""


def groups_of(keys: pa.Table, count: int) -> NDArray[np.int64]:
    """Return the key group of each row of key columns: a hash of the key that is the same in every run."""
    if count == 1:
        return np.zeros(keys.num_rows, dtype=np.int64)
    numbers = [zlib.crc32(repr(tuple(key)).encode()) % count for key in decode_rows(keys, str)]
    return np.array(numbers, dtype=np.int64)


def encode_states(states: Sequence[bytes], processing_time: int, batch_id: int = -1) -> bytes:
    """Return the states of all key groups as one snapshot; the arguments are the parts of ``SavedStates``."""
    table = pa.table({"state": pa.array(states, pa.binary())})
    header = {"harness": 1, "processing_time": processing_time, "batch_id": batch_id}
    return codec.encode(header, {"states": table})


def decode_states(data: bytes) -> SavedStates:
    """Return the parts of a snapshot.

    Raises:
        CodecError: The bytes are not a snapshot of a harness or of a stepper.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        msg = f"restore: expected the bytes that a harness's snapshot() or a stepper's gave, got {data!r}"
        raise CodecError(msg)
    header, tables = codec.decode(data)
    if "harness" not in header:
        msg = "restore: expected what snapshot() of a harness or stepper gave, got the state of a single operator"
        raise CodecError(msg)
    states = tables["states"].column(0).to_pylist()
    return SavedStates(states, header["processing_time"], header.get("batch_id", -1))


def restored_operators(plan: Plan, snapshot: bytes) -> list[Operator]:
    """Return new operators, one for each key group of a snapshot, restored from it."""
    states = decode_states(snapshot).states
    operators = [plan.create_operator() for _ in states]
    restore_states(operators, states)
    return operators


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
    restore_parts(operators, merged_header(headers), assemble(tables))


def restore_parts(
    operators: Sequence[Operator],
    header: Mapping[str, Any],
    tables: Mapping[str, pa.Table],
    *,
    keeps_counts: bool = True,
) -> None:
    """Restore new operators from a whole state.

    Args:
        operators: The operators of all key groups.
        header: The header of all key groups together (``rescaling.merged_header``).
        tables: The tables of all keys; a missing one is empty.
        keeps_counts: Whether the counters of rows done and rejected go on.

    Raises:
        CheckpointError: The state is of another operation, or its columns can't become the inputs'.
    """
    count = len(operators)
    pieces = cut(tables, operators[0].inputs, lambda keys: groups_of(keys, count), count)
    for group, (operator, piece) in enumerate(zip(operators, pieces, strict=True)):
        operator.load_parts(header, piece, keeps_counts=keeps_counts and group == 0)
