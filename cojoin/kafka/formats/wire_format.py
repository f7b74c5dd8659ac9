"""The wire format of values and keys whose schema is in a registry: a zero byte, an id of four bytes, then the record.

Protobuf has, after the id, the place of the message's type in its file: how many numbers follow, and the numbers, as
zigzag varints; a zero alone is the first type. Apicurio's own serializer writes, unless it is set otherwise, the type's
name instead, as a message of one field that is preceded by its length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["HEADER", "by_schema", "head_of", "message_name", "message_place", "undecodable"]

HEADER = 5
_DEEPEST = 32
"""So many types, one within the other, does protoc take."""

_SHOWN = 24


def by_schema(values: Sequence[bytes | None], faults: list[str | None], part: str) -> dict[int, list[int]]:
    r"""Return the places of values by the ids of their schemas; a value without such a header becomes a fault.

    Args:
        values: The values or keys; None is in no list.
        faults: The records' faults, to which new ones are added.
        part: ``"value"`` or ``"key"``, for messages.

    >>> faults = [None, None]
    >>> by_schema([b"\0\0\0\0\7abc", b"{}"], faults, "value"), faults[1]
    ({7: [0]}, "undecodable: the value has no schema id: expected a zero byte and an id of four bytes, got b'{}'")
    """
    heads: dict[bytes, list[int]] = {}
    for at, value in enumerate(values):
        if value is not None:
            heads.setdefault(value[:HEADER], []).append(at)
    found: dict[int, list[int]] = {}
    for head, places in heads.items():
        if len(head) == HEADER and not head[0]:
            found[int.from_bytes(head[1:], "big")] = places
            continue
        for at in places:
            got = (values[at] or b"")[:_SHOWN]
            msg = f"the {part} has no schema id: expected a zero byte and an id of four bytes, got {got!r}"
            faults[at] = undecodable(msg)
    return found


def message_place(value: bytes) -> tuple[tuple[int, ...], int]:
    r"""Return the place of a Protobuf record's message type in its file, and where the record begins.

    Raises:
        ValueError: The place is cut off.

    >>> message_place(b"\0\0\0\0\7\4\2\0abc")
    ((1, 0), 8)
    """
    count, at = _varint(value, HEADER)
    if not count:
        return (0,), at
    if not 0 < count <= _DEEPEST:
        msg = f"the place of its message's type has {count} numbers"
        raise ValueError(msg)
    numbers = []
    for _ in range(count):
        number, at = _varint(value, at)
        numbers.append(number)
    return tuple(numbers), at


def message_name(value: bytes) -> tuple[str, int] | None:
    r"""Return the name of a Protobuf record's message type, as Apicurio writes it, and where the record begins.

    None where there is none.

    >>> message_name(b"\0\0\0\0\7\7\n\5Tradeabc"), message_name(b"\0\0\0\0\7\4\2\0abc")
    (('Trade', 13), None)
    """
    head = value[HEADER : HEADER + 3]
    if len(head) < 3 or head[1] != 0x0A or head[0] != head[2] + 2 or head[0] >= 0x80:
        return None
    begin, end = HEADER + 3, HEADER + 1 + head[0]
    name = value[begin:end].decode("ascii", "replace")
    return (name, end) if len(name) == head[2] and name.isidentifier() else None


def head_of(number: int, place: Sequence[int] | None = None) -> bytes:
    r"""Return what precedes a record.

    Args:
        number: The id of its schema.
        place: Of a Protobuf record, the place of its message type in its file.

    >>> head_of(7), head_of(7, (0,)), head_of(7, (1, 0))
    (b'\x00\x00\x00\x00\x07', b'\x00\x00\x00\x00\x07\x00', b'\x00\x00\x00\x00\x07\x04\x02\x00')
    """
    head = b"\0" + number.to_bytes(HEADER - 1, "big")
    if place is None:
        return head
    return head + (b"\0" if tuple(place) == (0,) else b"".join(map(_zigzag, [len(place), *place])))


def _zigzag(number: int) -> bytes:
    """Return a number that is not negative as a zigzag varint."""
    left, found = number << 1, bytearray()
    while left >= 0x80:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def _varint(value: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        if at >= len(value) or shift > 63:
            msg = "it is cut off within the place of its message's type"
            raise ValueError(msg)
        byte = value[at]
        found |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at


def undecodable(what: str) -> str:
    """Return the fault of a record that can't be decoded."""
    return f"undecodable: {what}".encode(errors="backslashreplace").decode()
