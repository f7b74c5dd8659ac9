"""The wire format of values and keys whose schema is in a registry: a zero byte, an id of four bytes, then the record.

Newer serializers may write a schema's GUID into a header of the record instead: a byte of one, then 16 bytes. What
follows there, or after the id, is the same. Apicurio's own forms, ids of eight bytes and headers of other names, number
schemas differently from the API of Confluent's, so they are refused.

Protobuf has, after the id, the place of the message's type in its file: how many numbers follow, and the numbers, as
zigzag varints; a zero alone is the first type. Apicurio's own serializer writes, unless it is set otherwise, the type's
name instead, as a message of one field that is preceded by its length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HEADER = 5
_DEEPEST = 32
"""The depth to which protoc accepts types within types."""

_SHOWN = 24
_GUID = 17
_LARGEST = (1 << 31) - 1

SchemaName: TypeAlias = "int | UUID"
"""The name of a schema in a registry: its id or its GUID."""

SchemaHead: TypeAlias = "bytes | str"
"""The head that names a record's schema; a text is the name of a header that only Apicurio's serializers read."""

_FOUR_BYTES = (
    "have them write ids of 4 bytes before the {part}: headers.enabled=false, and the id handler Legacy4ByteIdHandler "
    "(version 2) or Default4ByteIdHandler (version 3)"
)


def schema_head(headers: Iterable[tuple[str, bytes | None]], part: str) -> SchemaHead | None:
    r"""Return the head by which the last such header of a record names the schema of its value or key, if one does.

    >>> schema_head([("__key_schema_id", b"\1"), ("trace", b"7")], "value")
    """
    head: SchemaHead | None = None
    for name, value in headers:
        if name == f"__{part}_schema_id":
            head = value
        elif name in (f"apicurio.{part}.globalId", f"apicurio.{part}.contentId") and not isinstance(head, bytes):
            head = name
    return head


def by_schema(
    values: list[bytes | None],
    faults: list[str | None],
    part: str,
    heads: Sequence[SchemaHead | None] | None = None,
) -> dict[SchemaName, list[int]]:
    r"""Return the places of values by their schemas; a value that names none becomes a fault, None is in no list.

    Where a header names the schema, five bytes, and what follows the GUID, are set before a value, so that all have the
    same form. ``heads`` are the heads of the records' headers; None where no record has one.

    >>> faults = [None, None]
    >>> by_schema([b"\0\0\0\0\7abc", b"{}"], faults, "value"), faults[1]
    ({7: [0]}, "undecodable: the value has no schema id: expected a zero byte and an id of four bytes, got b'{}'")
    """
    by_name: dict[SchemaName, list[int]] = {}
    named = set() if heads is None else _take_heads(values, heads, faults, part, by_name)
    prefixes: dict[bytes, list[int]] = {}
    for at, value in enumerate(values):
        if value is not None and at not in named:
            prefixes.setdefault(value[:HEADER], []).append(at)
    for head, places in prefixes.items():
        number = int.from_bytes(head[1:], "big")
        if len(head) == HEADER and not head[0] and 0 < number <= _LARGEST:
            by_name.setdefault(number, []).extend(places)
            continue
        if len(head) == HEADER and not head[0]:
            own = f"it may be one of 8 bytes of Apicurio's serializers: {_FOUR_BYTES.format(part=part)}"
            why = own if not number else "no registry has such an id"
            for at in places:
                faults[at] = undecodable(f"the {part}'s schema id is {number}, expected 1 to {_LARGEST}; {why}")
            continue
        for at in places:
            got = (values[at] or b"")[:_SHOWN]
            msg = f"the {part} has no schema id: expected a zero byte and an id of four bytes, got {got!r}"
            faults[at] = undecodable(msg)
    return by_name


def _take_heads(
    values: list[bytes | None],
    heads: Sequence[SchemaHead | None],
    faults: list[str | None],
    part: str,
    by_name: dict[SchemaName, list[int]],
) -> set[int]:
    """Add values whose header names their schema, or make them faults, and return the places of both."""
    named: set[int] = set()
    for at, (value, head) in enumerate(zip(values, heads, strict=True)):
        if value is None or head is None:
            continue
        if isinstance(head, bytes) and len(head) >= HEADER and not head[0]:
            # An id in the header, which deserializers take as well, has the form of one before the value.
            values[at] = head + value
            continue
        named.add(at)
        if isinstance(head, str):
            own = f"the header {head!r} names the {part}'s schema, as only Apicurio's serializers do"
            faults[at] = undecodable(f"{own}; {_FOUR_BYTES.format(part=part)}")
        elif len(head) >= _GUID and head[0] == 1:
            values[at] = bytes(HEADER) + head[_GUID:] + value
            by_name.setdefault(UUID(bytes=head[1:_GUID]), []).append(at)
        else:
            expected = f"the header '__{part}_schema_id': expected a byte of 1 and a GUID of 16 bytes"
            faults[at] = undecodable(f"{expected}, got {head[:_SHOWN]!r}")
    return named


def message_place(value: bytes) -> tuple[tuple[int, ...], int]:
    r"""Return the place of a Protobuf record's message type in its file, and where the record begins.

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
    r"""Return the bytes that precede a record; ``place`` is that of a Protobuf record's message type in its file.

    >>> head_of(7), head_of(7, (0,)), head_of(7, (1, 0))
    (b'\x00\x00\x00\x00\x07', b'\x00\x00\x00\x00\x07\x00', b'\x00\x00\x00\x00\x07\x04\x02\x00')
    """
    head = b"\0" + number.to_bytes(HEADER - 1, "big")
    if place is None:
        return head
    return head + (b"\0" if tuple(place) == (0,) else b"".join(map(_zigzag, [len(place), *place])))


def _zigzag(number: int) -> bytes:
    """Return a number that is not negative as a zigzag varint."""
    left, content = number << 1, bytearray()
    while left >= 0x80:
        content.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*content, left])


def _varint(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(value) or shift > 63:
            msg = "it is cut off within the place of its message's type"
            raise ValueError(msg)
        byte = value[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at


def undecodable(label: str) -> str:
    """Return the fault of a record that can't be decoded."""
    return f"undecodable: {label}".encode(errors="backslashreplace").decode()
