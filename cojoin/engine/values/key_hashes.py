"""Keys as 64-bit hashes that are the same in every process and every version.

Equal keys have equal hashes. Unequal keys rarely collide, and callers must be correct when they do: they find rows by
hash and then compare keys. It costs some 10 ns a row for numbers, dates, times, booleans and decimals, which are mixed
as integers; of strings and binaries each distinct value is hashed once (SipHash, 200 to 400 ns).
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
_WORD_BITS, _WORD_BYTES, _CHUNK = 64, 8, 4_096
_KEY = b"0123456789123456"
"""SipHash's key; segments have hashes by it, so it never changes. (pandas' ``hash_array`` has the same.)"""

_SEEDS = tuple(
    int.from_bytes(_KEY[half : half + 8], "little") ^ int.from_bytes(word, "big")
    for half, word in ((0, b"somepseu"), (8, b"dorandom"), (0, b"lygenera"), (8, b"tedbytes"))
)


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
