"""Keys as small integers, the key that a call works on, and keys as people write them.

All vectorised work on keys (sorting, joining, finding the touched ones) uses codes: equal keys of any of the given
tables get equal codes from 0 to n - 1. The codes have no meaning beyond one call. The keys of a single column are
numbered in the order in which they first come.

It costs some 12 ns a row for integers that lie close together, which are looked up in a table, and one dictionary
encoding for each other key column: some 40 ns a row for integers, and up to 200 ns for strings of many keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cojoin.engine.values.encoding import converter
from cojoin.engine.values.rows import Row
from cojoin.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

NO_KEY = -1
"""The code that means that no key is current."""


class KeyContext:
    """The code of the key that is being processed, shared by the contexts, the states and the timers of one call."""

    __slots__ = ("code",)

    def __init__(self) -> None:
        self.code = NO_KEY


KEYABLE = "boolean, tinyint, smallint, int, bigint, string, binary, date, timestamp, timestamp_ntz, decimal"
"""Spark's types that a key column may have: each value has one representation (floats have two zeros and NaN)."""

_SPARSEST = 4
"""How many numbers for each row a table of numbers may have; a sparser one costs more than hashing the rows."""


def is_keyable(dtype: pa.DataType) -> bool:
    """Return whether a column of this type can be (a part of) a key."""
    types = pa.types
    kinds = types.is_integer, types.is_string, types.is_binary, types.is_date, types.is_timestamp, types.is_decimal
    return types.is_boolean(dtype) or any(is_kind(dtype) for is_kind in kinds)


def encode_keys(tables: Sequence[pa.Table]) -> tuple[list[NDArray[np.int64]], int]:
    """Return for several tables of key columns the codes of their rows, and the number of distinct keys.

    The columns have the same types in the same order, whatever their names, and no nulls.

    >>> (left, right), count = encode_keys([pa.table({"id": ["a", "b"]}), pa.table({"customer": ["b"]})])
    >>> left.tolist(), right.tolist(), count
    ([0, 1], [1], 2)
    """
    lengths = [table.num_rows for table in tables]
    bounds = np.cumsum([0, *lengths])
    codes: NDArray[np.int64] = np.zeros(int(bounds[-1]), dtype=np.int64)
    count = 1 if bounds[-1] else 0
    for position in range(tables[0].num_columns):
        chunks = [chunk for table in tables for chunk in table.column(position).chunks]
        column_codes, column_count = _encode_column(chunks)
        if position == 0:
            codes, count = column_codes, column_count
        else:
            codes, count = _renumber(codes * column_count + column_codes)
    return [codes[start:stop] for start, stop in pairwise(bounds)], count


def _encode_column(chunks: list[pa.Array]) -> tuple[NDArray[np.int64], int]:
    """Return the codes of all chunks' values, in the order in which the values first come, and how many there are."""
    whole = pa.concat_arrays(chunks) if chunks else pa.array([], pa.int64())
    if pa.types.is_boolean(whole.type):
        whole = whole.cast(pa.int8())
    if pa.types.is_signed_integer(whole.type) and len(whole):
        values = whole.to_numpy(zero_copy_only=False)
        low, high = int(values.min()), int(values.max())
        if high - low < _SPARSEST * len(values):
            return _encode_dense(values.astype(np.int64) - low, high - low + 1)
    encoded = whole.dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(encoded.dictionary)


def _encode_dense(values: NDArray[np.int64], limit: int) -> tuple[NDArray[np.int64], int]:
    """As ``_encode_column``, for integers from 0 to below a limit."""
    missing = len(values)
    first = np.full(limit, missing, dtype=np.int64)
    # Of several rows with one value the last that is assigned stays, so the first row goes last.
    first[values[::-1]] = np.arange(missing - 1, -1, -1)
    rows = np.sort(first[first < missing])
    first[values[rows]] = np.arange(len(rows))
    return first[values], len(rows)


def _renumber(combined: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Return the ranks of numbers that are not negative, and how many distinct ones there are."""
    limit = int(combined.max()) + 1 if len(combined) else 0
    if limit <= _SPARSEST * len(combined):
        present = np.zeros(limit, dtype=bool)
        present[combined] = True
        ranks = np.cumsum(present) - 1
        return ranks[combined], int(np.count_nonzero(present))
    distinct, codes = np.unique(combined, return_inverse=True)
    return codes.astype(np.int64).reshape(-1), len(distinct)


def key_values(key: Any, names: Sequence[str]) -> tuple[Any, ...] | None:
    """Return the values of a user's key: a value, a tuple of several columns or of none, or a dict by column.

    None is a key of another shape than ``key_shape`` describes.

    >>> key_values(7, ["id"]), key_values({"day": "mon", "id": 7}, ["id", "day"]), key_values(7, ["id", "day"])
    ((7,), (7, 'mon'), None)
    """
    if isinstance(key, Mapping):
        return tuple(key[name] for name in names) if key.keys() == {*names} else None
    if len(names) == 1 and not isinstance(key, Row):
        return (key,)
    return tuple(key) if isinstance(key, (tuple, list)) and len(key) == len(names) else None


def key_shape(names: Sequence[str]) -> str:
    """Return what a user's key is expected to be, for messages."""
    return f"a value of {names[0]!r}" if len(names) == 1 else f"a tuple of {', '.join(names)}" if names else "()"


def checked_key(key: Any, schema: pa.Schema, label: str) -> tuple[Any, ...]:
    """Return the values of a user's key, of its columns' types; raise ``FunctionError`` for one that does not fit."""
    values = key_values(key, schema.names)
    if values is None:
        msg = f"{label}: expected {key_shape(schema.names)}, got {key!r}"
        raise FunctionError(msg)
    for name, value in zip(schema.names, values, strict=True):
        # A pandas Timestamp, whose conversion would drop them: no key has nanoseconds.
        if getattr(value, "nanosecond", 0):
            msg = f"{label} column {name!r}: expected whole microseconds, got {value!r}"
            raise FunctionError(msg)
    columns = zip(schema, values, strict=True)
    return tuple(converter(field.type, f"{label} column {field.name!r}")(value) for field, value in columns)


def plain_key(key: Sequence[Any]) -> Any:
    """Return the values of a key as people write it: its only value, or a tuple."""
    return key[0] if len(key) == 1 else tuple(key)
