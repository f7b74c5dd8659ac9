"""Key groups of a harness: which one a key is of, their states as bytes, and states moved to another number of them.

Every row of a state carries its key, so states are cut and put together as tables. Counters can't be cut by key: after
a move the first key group has those of rows that are done or rejected, and every one those of its own buffered rows.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cojoin import codec
from cojoin.errors import CodecError
from cojoin.operator import concat
from cojoin.rows import decode_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from cojoin.inputs import InputSpec
    from cojoin.operator import Operator

__all__ = ["decode_states", "encode_states", "groups_of", "move_states", "settle_counts"]

_SIDES = {"held1": 0, "left": 0, "waiting": 0, "held2": 1, "right": 1, "versions": 1}
"""The tables of an operator's state that hold rows of an input; all others begin with the key's columns."""


def groups_of(keys: pa.Table, count: int) -> NDArray[np.int64]:
    """Give the key group of each row, given the key columns: a hash of the key that is the same in every run."""
    if count == 1:
        return np.zeros(keys.num_rows, dtype=np.int64)
    numbers = [zlib.crc32(repr(tuple(key)).encode()) % count for key in decode_rows(keys)]
    return np.array(numbers, dtype=np.int64)


def encode_states(states: Sequence[bytes], processing_time: int) -> bytes:
    """Put the states of all key groups into one."""
    table = pa.table({"state": pa.array(states, pa.binary())})
    return codec.encode({"harness": 1, "processing_time": processing_time}, {"states": table})


def decode_states(data: bytes) -> tuple[list[bytes], int]:
    """Give the states of all key groups, and the processing time.

    Raises:
        CodecError: They are no snapshot of a harness.
    """
    header, tables = codec.decode(data)
    if "harness" not in header:
        msg = "restore: expected what a harness's snapshot() gave, got the state of a single operator"
        raise CodecError(msg)
    return tables["states"].column(0).to_pylist(), header["processing_time"]


def move_states(states: Sequence[bytes], inputs: tuple[InputSpec, InputSpec], count: int) -> list[bytes]:
    """Give the states of another number of key groups."""
    decoded = [codec.decode(state) for state in states]
    header = decoded[0][0]
    whole = {
        name: concat([tables[name] for _, tables in decoded if name in tables])
        for name in dict.fromkeys(name for _, tables in decoded for name in tables)
    }
    cut = {name: _cut(name, table, inputs, count) for name, table in whole.items()}
    return [codec.encode(header, {name: pieces[group] for name, pieces in cut.items()}) for group in range(count)]


def _cut(name: str, table: pa.Table, inputs: tuple[InputSpec, InputSpec], count: int) -> list[pa.Table]:
    side = _SIDES.get(name)
    key = list(inputs[0].key) if side is None else list(inputs[side].key)
    groups = groups_of(table.select(range(len(key)) if side is None else key), count)
    return [table.filter(pa.array(groups == group)) for group in range(count)]


def settle_counts(operators: Sequence[Operator], states: Sequence[bytes]) -> None:
    """Share out the counters of key groups that were moved.

    Args:
        operators: The key groups that there are now, restored.
        states: The states of those that there were.
    """
    headers: list[dict[str, Any]] = [codec.decode(state)[0] for state in states]
    for group, operator in enumerate(operators):
        operator.rows_out = sum(header["rows_out"] for header in headers) if group == 0 else 0
        for side, (counts, report) in enumerate(zip(operator.counts, operator.report()["inputs"], strict=True)):
            saved = [header["counts"][side] for header in headers] if group == 0 else []
            counts.done = sum(each["done"] for each in saved)
            counts.late_applied = sum(each["late_applied"] for each in saved)
            counts.rejected.clear()
            for each in saved:
                counts.rejected.update(each["rejected"])
            counts.rows_in = counts.done + report["buffered"] + counts.rejected.total()
