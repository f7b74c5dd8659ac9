"""The key group of a row, by Spark's hash of its key, and the label by which Spark places a key group.

A row's key group follows from Spark's ``xxhash64`` of the key: XXH64 with the seed 42; with several columns each hash
is the seed of the next one, and a null keeps it. Integers of up to 32 bits, booleans and dates are hashed as 4 bytes,
longer integers, times and decimals of up to 18 digits as 8, texts and binaries by their bytes. It costs some 20 ns a
row for numbers; of the texts of a first column each distinct value is hashed once.

Spark chooses a key group's partition by the Murmur3 hash of its label. If 32 groups had the labels 0 to 31, 12 would go
to one of two partitions and 20 to the other, and one core would wait. A group's label is instead the smallest number
whose hash, taken modulo 10,080, is the group's own number: then group g goes to partition g modulo n for every n that
divides 10,080 (1 to 10, 12, 14, 15, 16, 18, 20, 24, 28, 30, 32, ...). Labels depend only on the number of groups, so a
stored state is found again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
_STRIPE, _WORD, _HALF = 32, 8, 4
_LONG_DIGITS = 18


def is_hashed(dtype: pa.DataType) -> bool:
    """Return whether ``spark_xx_hashes`` takes keys of a type.

    >>> is_hashed(pa.string()), is_hashed(pa.decimal128(38, 2))
    (True, False)
    """
    types = pa.types
    kinds = types.is_boolean, types.is_signed_integer, types.is_date32, types.is_timestamp
    is_short = types.is_decimal128(dtype) and dtype.precision <= _LONG_DIGITS
    return _is_text(dtype) or any(is_kind(dtype) for is_kind in kinds) or is_short


def spark_xx_hashes(keys: pa.Table) -> NDArray[np.int64]:
    """Return each row's hash, as Spark's ``xxhash64`` computes it, of key columns that ``is_hashed``.

    >>> spark_xx_hashes(pa.table({"id": [7], "zone": ["a"]})).tolist()
    [2701516948731497016]
    """
    hashes = np.full(keys.num_rows, _SEED, dtype=np.uint64)
    for position, column in enumerate(keys.columns):
        values = column.combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            values = pa.concat_arrays(values.chunks)
        hashed = _of_first_texts(values) if position == 0 and _is_text(values.type) else _hashed(values, hashes)
        if values.null_count:
            hashed = np.where(pc.is_null(values).to_numpy(zero_copy_only=False), hashes, hashed)
        hashes = hashed
    return hashes.view(np.int64)


def _is_text(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_string(dtype) or pa.types.is_binary(dtype))


def _of_first_texts(values: pa.Array) -> NDArray[np.uint64]:
    """Return the hashes of texts that all have the same seed, so that each distinct one is hashed once."""
    encoded = values.dictionary_encode()
    distinct = _of_bytes(encoded.dictionary, np.full(len(encoded.dictionary), _SEED, dtype=np.uint64))
    places = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    return distinct[places] if len(distinct) else np.zeros(len(values), dtype=np.uint64)


def _hashed(values: pa.Array, seeds: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes of a column; those of nulls have no meaning."""
    types, dtype = pa.types, values.type
    if _is_text(dtype):
        return _of_bytes(values, seeds)
    if types.is_boolean(dtype):
        values, dtype = values.cast(pa.int32()), pa.int32()
    if types.is_date32(dtype) or (types.is_integer(dtype) and dtype.bit_width <= 32):
        halves = _plain(values.cast(pa.int32()), np.int32)
        return _final(_with_half(seeds + _P5 + np.uint64(_HALF), halves.view(np.uint32).astype(np.uint64)))
    if types.is_decimal(dtype):
        # The lower half of 128 bits is the whole number, if it has no more than 18 digits.
        words = np.frombuffer(values.buffers()[1], np.uint64)[2 * values.offset :: 2][: len(values)]
    else:
        words = _plain(values.cast(pa.int64()), np.int64).view(np.uint64)
    return _final(_with_word(seeds + _P5 + np.uint64(_WORD), words))


def _plain(values: pa.Array, dtype: type) -> NDArray[np.int64]:
    """Return the numbers of an array without a copy, and anything for its nulls."""
    numbers: NDArray[np.int64] = np.frombuffer(values.buffers()[1], dtype)[values.offset : values.offset + len(values)]
    return numbers


def _of_bytes(values: pa.Array, seeds: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes of texts or binaries; those of one length are hashed together."""
    hashes = np.zeros(len(values), dtype=np.uint64)
    if not len(values):
        return hashes
    _, ends, data = values.buffers()
    offsets = np.frombuffer(ends, np.int32)[values.offset : values.offset + len(values) + 1]
    content = np.frombuffer(data or b"", np.uint8)
    lengths = np.diff(offsets)
    order = np.argsort(lengths, kind="stable")
    present, starts = np.unique(lengths[order], return_index=True)
    for length, rows in zip(present.tolist(), np.split(order, starts[1:]), strict=True):
        if length:
            pieces = np.lib.stride_tricks.sliding_window_view(content, length)[offsets[rows]]
        else:
            pieces = np.empty((len(rows), 0), dtype=np.uint8)
        hashes[rows] = _of_pieces(pieces, length, seeds[rows])
    return hashes


def _of_pieces(pieces: NDArray[np.uint8], length: int, seeds: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes of byte sequences of one length, which are the rows of a matrix."""
    at = length // _STRIPE * _STRIPE
    if at:
        words = _words(pieces, 0, at, np.uint64)
        lanes = [seeds + _P1 + _P2, seeds + _P2, seeds, seeds - _P1]
        for word in range(words.shape[1]):
            lane = word % 4
            lanes[lane] = _rotated(lanes[lane] + words[:, word] * _P2, 31) * _P1
        hashes = sum(
            (_rotated(lane, bits) for lane, bits in zip(lanes[1:], (7, 12, 18), strict=True)), _rotated(lanes[0], 1)
        )
        for lane in lanes:
            hashes = (hashes ^ (_rotated(lane * _P2, 31) * _P1)) * _P1 + _P4
    else:
        hashes = seeds + _P5
    hashes = hashes + np.uint64(length)
    end = at + (length - at) // _WORD * _WORD
    if end > at:
        for word in _words(pieces, at, end, np.uint64).T:
            hashes = _with_word(hashes, word)
    if length - end >= _HALF:
        hashes = _with_half(hashes, _words(pieces, end, end + _HALF, np.uint32)[:, 0].astype(np.uint64))
        end += _HALF
    for position in range(end, length):
        hashes = _rotated(hashes ^ (pieces[:, position].astype(np.uint64) * _P5), 11) * _P1
    return _final(hashes)


def _words(pieces: NDArray[np.uint8], begin: int, end: int, dtype: type) -> NDArray[np.uint64]:
    words: NDArray[np.uint64] = np.ascontiguousarray(pieces[:, begin:end]).view(np.dtype(dtype).newbyteorder("<"))
    return words


def _with_word(hashes: NDArray[np.uint64], words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    taken: NDArray[np.uint64] = _rotated(hashes ^ (_rotated(words * _P2, 31) * _P1), 27) * _P1 + _P4
    return taken


def _with_half(hashes: NDArray[np.uint64], halves: NDArray[np.uint64]) -> NDArray[np.uint64]:
    taken: NDArray[np.uint64] = _rotated(hashes ^ (halves * _P1), 23) * _P2 + _P3
    return taken


def _final(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    last: NDArray[np.uint64] = hashes ^ (hashes >> np.uint64(32))
    return last


def _rotated(values: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    turned: NDArray[np.uint64] = (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))
    return turned


_MODULUS = 10_080


@lru_cache(maxsize=16)
def group_labels(key_groups: int) -> tuple[int, ...]:
    """Return each group's label, by its number.

    >>> sorted(int(spark_hash(np.array([label]))[0]) % 2 for label in group_labels(4))
    [0, 0, 1, 1]
    """
    rounds = -(-key_groups // _MODULUS)
    count = 16 * _MODULUS * rounds
    while True:
        residues = np.mod(spark_hash(np.arange(count)), _MODULUS)
        order = np.argsort(residues, kind="stable")
        starts = np.searchsorted(residues[order], np.arange(_MODULUS + 1))
        needed = np.bincount(np.arange(key_groups) % _MODULUS, minlength=_MODULUS)
        if (np.diff(starts) >= needed).all():
            return tuple(int(order[starts[group % _MODULUS] + group // _MODULUS]) for group in range(key_groups))
        count *= 2


def spark_hash(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the hashes of integers, as Spark's ``hash`` computes them: Murmur3 of 32 bits, signed."""
    with np.errstate(over="ignore"):
        mixed = values.astype(np.uint32) * np.uint32(0xCC9E2D51)
        mixed = _rotate(mixed, 15) * np.uint32(0x1B873593)
        state = _rotate(np.uint32(_SEED) ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
        state ^= np.uint32(4)
        state ^= state >> np.uint32(16)
        state *= np.uint32(0x85EBCA6B)
        state ^= state >> np.uint32(13)
        state *= np.uint32(0xC2B2AE35)
        state ^= state >> np.uint32(16)
    hashed: NDArray[np.int64] = state.view(np.int32).astype(np.int64)
    return hashed


def _rotate(values: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    rotated: NDArray[np.uint32] = (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))
    return rotated
