"""Hashes of 64 bits that are the same in every process and every version: of keys, and of tables.

*Keys.* Equal keys have equal hashes. Unequal keys rarely collide, and callers must be correct when they do: they find
rows by hash and then compare keys. It costs some 10 ns a row for numbers, dates, times, booleans and decimals, which
are mixed as integers; of strings and binaries each distinct value is hashed once (SipHash, 200 to 400 ns).

*Tables.* The digest of a table is the sum of its rows' hashes over all columns, nulls and nested values included. So it
does not depend on the order of the rows, and the digests of a table's parts add up to that of the whole. Different
tables have different digests with all but certainty, unless an adversary makes them. It costs some 5 ns a row for a
number and 25 ns for a text of eight bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_ODD = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_WORD_BITS, _WORD_BYTES, _CHUNK = 64, 8, 4_096
_KEY = b"0123456789123456"
"""SipHash's key; segments have hashes by it, so it never changes. (pandas' ``hash_array`` has the same.)"""

_SEEDS = tuple(
    int.from_bytes(_KEY[half : half + 8], "little") ^ int.from_bytes(word, "big")
    for half, word in ((0, b"somepseu"), (8, b"dorandom"), (0, b"lygenera"), (8, b"tedbytes"))
)


def key_hashes(keys: pa.Table) -> NDArray[np.uint64]:
    """Return each row's hash, of key columns without nulls, whose types are ``keys.KEYABLE``.

    Their names and the width of an integer do not change the hash.

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
        hashed = _of_bytes(encoded.dictionary)
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


def _of_bytes(values: pa.Array) -> NDArray[np.uint64]:
    """Return the spread SipHash-2-4 of each string's UTF-8 bytes, or of each binary."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    # As many zeros follow as the last word may lack.
    data = np.concatenate([np.frombuffer(values.buffers()[2] or b"", np.uint8), np.zeros(_WORD_BYTES, np.uint8)])
    # By length, so that those of a chunk, which stays in the processor's cache, end together.
    order = np.argsort(lengths, kind="stable")
    hashed = np.empty(len(values), np.uint64)
    for first in range(0, len(order), _CHUNK):
        at = order[first : first + _CHUNK]
        hashed[at] = _sip_hashes(data, starts[at], lengths[at])
    return _spread(hashed)


def _sip_hashes(data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the SipHash-2-4 of pieces of some bytes, word by word; the lengths ascend."""
    state = [np.full(len(starts), seed, np.uint64) for seed in _SEEDS]
    whole = lengths // _WORD_BYTES
    for number in range(int(whole[-1]) + 1):
        begin, end = np.searchsorted(whole, [number, number + 1]).tolist()
        words = _words_at(data, starts[begin:] + _WORD_BYTES * number)
        # The last word has the bytes that are left, and the length in its highest byte.
        ending = lengths[begin:end].astype(np.uint64)
        bits = (ending & np.uint64(_WORD_BYTES - 1)) << np.uint64(3)
        words[: end - begin] &= (np.uint64(1) << bits) - np.uint64(1)
        words[: end - begin] |= ending << np.uint64(56)
        parts = [each[begin:] for each in state]
        parts[3] ^= words
        _sip_rounds(parts, 2)
        parts[0] ^= words
    state[2] ^= np.uint64(0xFF)
    _sip_rounds(state, 4)
    hashed: NDArray[np.uint64] = state[0] ^ state[1] ^ state[2] ^ state[3]
    return hashed


def _words_at(data: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the eight bytes at each place as a little-endian word."""
    words: NDArray[np.uint64] = data[places[:, None] + np.arange(_WORD_BYTES)].view("<u8").reshape(-1)
    return words.astype(np.uint64)


def _sip_rounds(state: list[NDArray[np.uint64]], count: int) -> None:
    """Do some of SipHash's rounds, in place."""
    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 += v1
        _rotate(v1, 13)
        v1 ^= v0
        _rotate(v0, 32)
        v2 += v3
        _rotate(v3, 16)
        v3 ^= v2
        v0 += v3
        _rotate(v3, 21)
        v3 ^= v0
        v2 += v1
        _rotate(v1, 17)
        v1 ^= v2
        _rotate(v2, 32)


def _rotate(words: NDArray[np.uint64], bits: int) -> None:
    low = words >> np.uint64(_WORD_BITS - bits)
    words <<= np.uint64(bits)
    words |= low


def mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return each word spread over all 64 bits (SplitMix64)."""
    return _spread(words + _ODD)


def _spread(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    spread: NDArray[np.uint64] = words ^ (words >> np.uint64(31))
    return spread


_MASK = (1 << 64) - 1
_HALF = np.uint64(32)
_NULL, _POSITION, _STRUCT = np.uint64(0x6E756C6C), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x737472756374)
_WORD, _BLOCK_ROWS = 8, 16_384
_BYTES = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
_KEPT = np.array([(1 << (8 * count)) - 1 for count in range(_WORD + 1)], dtype=np.uint64)
"""The mask of the bits of a word that belong to a value, by the number of bytes that are left of it."""


def rows_digest(table: pa.Table) -> int:
    """Return the digest of a table's rows, from 0 to 2**64 - 1; a table without rows has 0.

    The order and types of the columns matter, their names do not.

    >>> one, two = pa.table({"id": [1, 2], "tier": ["gold", None]}), pa.table({"id": [2, 1], "tier": [None, "gold"]})
    >>> rows_digest(one) == rows_digest(two), rows_digest(one) == rows_digest(one.slice(1))
    (True, False)
    >>> rows_digest(one) == add_digests(rows_digest(one.slice(1)), rows_digest(one.slice(0, 1)))
    True
    """
    return sum(int(hashes.sum(dtype=np.uint64)) for hashes in _hashed_blocks(table, 0)) & _MASK


def row_hashes(table: pa.Table, seed: int = 0) -> NDArray[np.uint64]:
    """Return the hash of each row, from 0 to 2**64 - 1; equal rows have equal hashes.

    Columns matter as in ``rows_digest``. With another seed, different rows whose hashes were equal get different ones.

    >>> one, two, three = row_hashes(pa.table({"id": [1, 2, 1], "tier": ["gold", None, "gold"]})).tolist()
    >>> one == three, one == two
    (True, False)
    """
    return np.concatenate([np.zeros(0, dtype=np.uint64), *_hashed_blocks(table, seed)])


def _hashed_blocks(table: pa.Table, seed: int) -> Iterator[NDArray[np.uint64]]:
    # A block's hashes and words stay in the processor's cache.
    for block in table.to_batches(max_chunksize=_BLOCK_ROWS):
        hashes = mixed(np.full(block.num_rows, seed, dtype=np.uint64))
        for column in block.columns:
            _add_column(hashes, column)
        yield mixed(hashes)


def add_digests(*digests: int) -> int:
    """Return the digest of several tables' rows together.

    >>> add_digests(2**64 - 1, 3)
    2
    """
    return sum(digests) & _MASK


def _add_column(hashes: NDArray[np.uint64], array: pa.Array) -> None:
    """Mix a column's values into the hashes of the rows, in place."""
    if not array.null_count:
        _add_values(hashes, array)
        return
    null = array.is_null().to_numpy(zero_copy_only=False)
    before = hashes[null]
    _add_values(hashes, array)
    # The data under a null is arbitrary. A null is mixed in another way than a word, so that no value always equals it.
    hashes[null] = mixed(before ^ _NULL)


def _add_values(hashes: NDArray[np.uint64], array: pa.Array) -> None:
    types, dtype = pa.types, array.type
    if isinstance(dtype, pa.BaseExtensionType):
        _add_values(hashes, array.storage)
    elif types.is_null(dtype):
        pass
    elif types.is_struct(dtype):
        # Distinguishes a struct of nulls from a null.
        _add_word(hashes, _STRUCT)
        for position in range(dtype.num_fields):
            # In Arrow a field of a null struct may still hold a value; struct_field returns null there.
            _add_column(hashes, pc.struct_field(array, position))
    elif types.is_map(dtype) or types.is_list(dtype) or types.is_large_list(dtype):
        _add_lists(hashes, array)
    elif types.is_boolean(dtype):
        _add_word(hashes, array.cast(pa.uint8()).fill_null(0).to_numpy(zero_copy_only=False))
    elif any(is_kind(dtype) for is_kind in _BYTES):
        _add_bytes(hashes, array)
    else:
        for word in _fixed_words(array):
            _add_word(hashes, word)


def _fixed_words(array: pa.Array) -> list[NDArray[np.uint64]]:
    """Return a column of fixed width as one or more words for each row."""
    width, data = array.type.bit_width // 8, array.buffers()[1]
    if data is None:
        return []
    rows = np.frombuffer(data, np.uint8)[array.offset * width : (array.offset + len(array)) * width]
    if width <= _WORD:
        return [rows.view(f"<u{width}").astype(np.uint64)]
    words = rows.view("<u8").reshape(len(array), width // _WORD)
    return [words[:, position] for position in range(width // _WORD)]


def _add_bytes(hashes: NDArray[np.uint64], array: pa.Array) -> None:
    """Mix the lengths of texts or bytes into the hashes, and then eight bytes of all rows at a time, in place."""
    offsets = _offsets(array)
    starts, left = offsets[:-1], np.diff(offsets)
    _add_word(hashes, left.astype(np.uint64))
    begin, end = int(offsets[0]), int(offsets[-1])
    if begin == end:
        return
    # A word may reach beyond the last value's end.
    padded = np.zeros((end - begin) // _WORD * _WORD + 2 * _WORD, dtype=np.uint8)
    padded[: end - begin] = np.frombuffer(array.buffers()[2], np.uint8)[begin:end]
    words, starts = padded.view("<u8"), starts - begin
    if left.all():
        _add_word(hashes, _words_from(words, starts, left))
        rows = np.flatnonzero(left > _WORD)
        starts, left = starts[rows] + _WORD, left[rows] - _WORD
    else:
        rows = np.flatnonzero(left)
        starts, left = starts[rows], left[rows]
    while len(rows):
        part = hashes[rows]
        _add_word(part, _words_from(words, starts, left))
        hashes[rows] = part
        longer = left > _WORD
        rows, starts, left = rows[longer], starts[longer] + _WORD, left[longer] - _WORD


def _words_from(words: NDArray[np.uint64], starts: NDArray[np.int64], left: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the eight bytes that begin at each start; those beyond the number left are zero."""
    index, shift = starts >> 3, ((starts & 7) << 3).astype(np.uint64)
    pieces: NDArray[np.uint64] = words[index] >> shift
    # Two shifts, because a single shift by 64 bits has no effect.
    pieces |= (words[index + 1] << np.uint64(1)) << (np.uint64(63) - shift)
    pieces &= _KEPT[np.minimum(left, _WORD)]
    return pieces


def _add_lists(hashes: NDArray[np.uint64], array: pa.Array) -> None:
    """Mix lists or maps into the hashes, in place: sums of their elements' hashes, mixed with positions; lengths."""
    offsets = _offsets(array)
    lengths = np.diff(offsets)
    begin, end = int(offsets[0]), int(offsets[-1])
    elements = np.repeat(hashes, lengths)
    children = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    for child in children:
        # The children of a sliced array are not sliced, so they are cut to its range.
        _add_column(elements, child.slice(begin, end - begin))
    places = np.arange(end - begin) - np.repeat(offsets[:-1] - begin, lengths)
    sums = np.zeros(end - begin + 1, dtype=np.uint64)
    np.cumsum(mixed(elements + _POSITION * places.astype(np.uint64)), out=sums[1:])
    _add_word(hashes, sums[offsets[1:] - begin] - sums[offsets[:-1] - begin])
    _add_word(hashes, lengths.astype(np.uint64))


def _offsets(array: pa.Array) -> NDArray[np.int64]:
    """Return the begin of each value of a column of variable length in its data, and the last one's end."""
    types = pa.types
    large = types.is_large_string(array.type) or types.is_large_binary(array.type) or types.is_large_list(array.type)
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.zeros(len(array) + 1, dtype=np.int64)
    dtype = np.dtype(np.int64 if large else np.int32)
    return np.frombuffer(data, dtype, len(array) + 1, array.offset * dtype.itemsize).astype(np.int64)


def _add_word(hashes: NDArray[np.uint64], word: NDArray[np.uint64] | np.uint64) -> None:
    """Mix one word for each row into the rows' hashes, in place; the order of the words matters."""
    hashes ^= word
    hashes *= _ODD
    hashes ^= hashes >> _HALF
