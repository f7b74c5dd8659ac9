"""Keys as 64-bit hashes that are the same in every process and every version.

Equal keys have equal hashes. Unequal keys rarely collide, and callers must be correct when they do: they find rows by
hash and then compare keys. It costs some 10 ns a row for numbers, dates, times, booleans and decimals, which are mixed
as integers; of strings and binaries each distinct value is hashed once (SipHash, some 200 ns).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["key_hashes", "mixed"]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_WORD_BITS = 64


def key_hashes(keys: pa.Table) -> NDArray[np.uint64]:
    """Return each row's hash.

    Args:
        keys: The key columns alone, without nulls, of the types that a key may have (``keys.KEYABLE``). Their names and
            the width of an integer do not change the hash.

    >>> one, two = key_hashes(pa.table({"id": [7], "zone": ["a"]})), key_hashes(pa.table({"k": [7], "z": ["a"]}))
    >>> one.tolist() == two.tolist(), int(key_hashes(pa.table({"id": pa.array([7], pa.int32())}))[0])
    (True, 7191089600892374487)
    """
    hashes = np.zeros(keys.num_rows, dtype=np.uint64)
    for column in keys.columns:
        for word in _words(column.combine_chunks()):
            hashes = mixed(hashes ^ word)
    return hashes


def _words(column: pa.Array) -> list[NDArray[np.uint64]]:
    """Return a column as one or more 64-bit words for each row."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    types, dtype = pa.types, column.type
    if types.is_string(dtype) or types.is_binary(dtype):
        encoded = column.dictionary_encode()
        distinct = encoded.dictionary.to_numpy(zero_copy_only=False).astype(object)
        # It takes half a second to import, and only states with flushed segments hash texts here.
        import pandas as pd  # noqa: PLC0415

        hashed = pd.util.hash_array(distinct, categorize=False).astype(np.uint64)
        return [hashed[encoded.indices.to_numpy(zero_copy_only=False)] if len(hashed) else hashed]
    if types.is_decimal(dtype):
        width = dtype.bit_width // _WORD_BITS
        data = column.buffers()[1]
        words = np.frombuffer(data, np.uint64) if data is not None else np.empty(0, np.uint64)
        rows = words[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)
        return [rows[:, position] for position in range(width)]
    if types.is_boolean(dtype):
        column = column.cast(pa.uint8())
    elif types.is_date32(dtype):
        column = column.cast(pa.int32())
    elif not types.is_integer(dtype):
        column = column.cast(pa.int64())
    return [column.cast(pa.int64()).to_numpy(zero_copy_only=False).view(np.uint64)]


def mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return each word spread over all 64 bits (SplitMix64)."""
    mixed = words + _ODD
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    spread: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return spread
