"""Avro's bytes as values, strictly: bytes that are not Avro are damage, and never a value.

A reader takes a record's bytes and a place in them, and returns the value and the place after it. Each number from the
bytes is checked before it is used: a length, a count or an index that is negative or too large is damage, and so are
integers of more bits than their type has, and booleans other than 0 and 1. Memory stays bounded by the record's bytes:
of values that take none, such as nulls and records of them, its arrays have 1,000 and one for each byte at most.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - as classes are named
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "PLAIN_READERS",
    "DamageError",
    "EmptyValues",
    "Reader",
    "array_reader",
    "constant_array_reader",
    "damage",
    "enum_reader",
    "fixed_reader",
    "map_reader",
    "read_long",
    "union_reader",
]

Reader: TypeAlias = "Callable[[bytes, int], tuple[Any, int]]"
"""Reads the value at a place of a record's bytes, and returns it with the place after it."""

_INT = 1 << 31
_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")
_MOST_EMPTY = 1_000
"""The most values without bytes that the arrays of a record may have, besides one for each of its bytes."""


class DamageError(ValueError):
    """Bytes that are not what their schema says."""


def damage(error: BaseException) -> str:
    """Return in words what a reader has raised."""
    if isinstance(error, (IndexError, StructError)):
        return "the record's bytes end within it"
    if isinstance(error, UnicodeDecodeError):
        return "a text is not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return str(error) if isinstance(error, DamageError) else f"{type(error).__name__}: {error}"


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Return a long, or another type's length, count or index."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    # Most have few bytes, and these take half of the time that they take in the loop.
    found, byte = byte & 0x7F, data[at + 1]
    if byte < 0x80:
        found |= byte << 7
        return (found >> 1) ^ -(found & 1), at + 2
    found |= (byte & 0x7F) << 7
    shift, at = 14, at + 2
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            msg = "a whole number has more than 64 bits"
            raise DamageError(msg)
    if shift == 63 and byte > 1:
        msg = "a whole number has more than 64 bits"
        raise DamageError(msg)
    return (found >> 1) ^ -(found & 1), at


def _read_int(data: bytes, at: int) -> tuple[int, int]:
    found, at = read_long(data, at)
    if not -_INT <= found < _INT:
        msg = f"an int has more than 32 bits: {found}"
        raise DamageError(msg)
    return found, at


def _read_null(data: bytes, at: int) -> tuple[None, int]:
    del data
    return None, at


def _read_boolean(data: bytes, at: int) -> tuple[bool, int]:
    byte = data[at]
    if byte > 1:
        msg = f"a boolean is {byte}, expected 0 or 1"
        raise DamageError(msg)
    return bool(byte), at + 1


def _read_float(data: bytes, at: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(data, at)[0], at + 4


def _read_double(data: bytes, at: int) -> tuple[float, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + 8


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_long(data, at)
    end = at + size
    if not at <= end <= len(data):
        msg = f"a length is {size}, of {len(data) - at} bytes that are left"
        raise DamageError(msg)
    return data[at:end], end


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    found, at = _read_bytes(data, at)
    return found.decode(), at


PLAIN_READERS: dict[str, Reader] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": _read_int,
    "long": read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_string,
}
"""The readers of the types without parts."""


def fixed_reader(size: int) -> Reader:
    """Return the reader of values of a fixed number of bytes."""

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        if end > len(data):
            raise IndexError
        return data[at:end], end

    return read


def enum_reader(symbols: Sequence[str], values: Sequence[str | None]) -> Reader:
    """Return the reader of an enum.

    Args:
        symbols: The writer's symbols.
        values: What each of them is to the reader; None where it has none.
    """

    def read(data: bytes, at: int) -> tuple[str, int]:
        index, at = read_long(data, at)
        if not 0 <= index < len(values):
            msg = f"the index of an enum's symbol is {index}, of {len(values)} symbols"
            raise DamageError(msg)
        value = values[index]
        if value is None:
            msg = f"the symbol {symbols[index]!r} is not one of the reader's schema, which has no default for it"
            raise DamageError(msg)
        return value, at

    return read


def union_reader(choices: Sequence[Reader]) -> Reader:
    """Return the reader of a union, by the readers of its members."""
    count = len(choices)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        index, at = read_long(data, at)
        if not 0 <= index < count:
            msg = f"the index of a union's member is {index}, of {count} members"
            raise DamageError(msg)
        return choices[index](data, at)

    return read


def array_reader(item: Reader) -> Reader:
    """Return the reader of an array, each of whose items takes a byte or more, by the reader of its items."""

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            count, at = _block(data, at)
            if not count:
                return found, at
            for _ in range(count):
                value, at = item(data, at)
                found.append(value)

    return read


def constant_array_reader(item: Reader, empty: EmptyValues) -> Reader:
    """Return the reader of an array whose items take no bytes, so that all are one value.

    Args:
        item: The reader of its items.
        empty: Counts them.
    """
    value, _ = item(b"", 0)
    size = _leaves(value)

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        total = 0
        while True:
            count, at = _block(data, at)
            if not count:
                return [value] * total, at
            total += count
            empty.add(count * size, data, at)

    return read


def _leaves(value: Any) -> int:
    """Return of how many values without parts a value consists; one for an empty one."""
    if isinstance(value, dict):
        value = value.values()
    return max(1, sum(map(_leaves, value))) if not isinstance(value, (str, bytes)) and hasattr(value, "__iter__") else 1


class EmptyValues:
    """Counts a record's values without bytes: in arrays of arrays few bytes may stand for any number of them."""

    def __init__(self) -> None:
        self._data, self._at, self._count = b"", 0, 0

    def add(self, count: int, data: bytes, at: int) -> None:
        """Count the values of a block that begins at a place.

        Raises:
            DamageError: They are too many for the record's bytes.
        """
        # Places within a record only grow.
        if data is not self._data or at <= self._at:
            self._data, self._count = data, 0
        self._at, self._count = at, self._count + count
        if self._count > _MOST_EMPTY + len(data):
            msg = f"its arrays have {self._count} values that take no bytes, in a record of {len(data)} bytes"
            raise DamageError(msg)


def map_reader(item: Reader) -> Reader:
    """Return the reader of a map, whose value is a list of its keys and values; of a key's values the last counts."""

    def read(data: bytes, at: int) -> tuple[list[tuple[str, Any]], int]:
        found: dict[str, Any] = {}
        while True:
            count, at = _block(data, at)
            if not count:
                return list(found.items()), at
            for _ in range(count):
                key, at = _read_string(data, at)
                found[key], at = item(data, at)

    return read


def _block(data: bytes, at: int) -> tuple[int, int]:
    """Return how many items the next block of an array or a map has."""
    count, at = read_long(data, at)
    if count >= 0:
        return count, at
    # The size in bytes follows, for those who pass over the block.
    size, at = read_long(data, at)
    if not 0 <= size <= len(data) - at:
        msg = f"the size of a block is {size}, of {len(data) - at} bytes that are left"
        raise DamageError(msg)
    return -count, at
