"""Damaged Avro is a fault of its record, or what fastavro reads of it: never another value, nor the end of a task.

fastavro takes an index from the bytes as Python does, where a negative one counts from the end, so that what it reads
is compared only where the decoder reads anything.
"""

from __future__ import annotations

import io
import json
import random
import tracemalloc
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from cojoin.kafka.formats.avro_decoder import AvroReadings, avro_columns
from cojoin.kafka.formats.registry import RegisteredSchema
from tests.kafka.formats.encoded import avro_record, framed
from tests.seeds import SEED

if TYPE_CHECKING:
    from collections.abc import Iterator

INNER = {
    "type": "record",
    "name": "In",
    "fields": [{"name": "x", "type": ["null", "long"]}, {"name": "s", "type": "string"}],
}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
KINDS: list[Any] = [
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "string",
    "bytes",
    {"type": "fixed", "name": "F", "size": 3},
    ENUM,
    ["null", "string"],
    ["null", "E"],
    ["null", "In"],
    {"type": "array", "items": "long"},
    {"type": "array", "items": ["null", "string"]},
    {"type": "map", "values": "double"},
    {"type": "array", "items": {"type": "array", "items": "boolean"}},
    {"type": "array", "items": "null"},
]
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "T",
    "fields": [
        {"name": "e", "type": ENUM},
        {"name": "r", "type": INNER},
        *({"name": f"f{at}", "type": "E" if kind is ENUM else kind} for at, kind in enumerate(KINDS)),
    ],
}
PARSED = fastavro.parse_schema(json.loads(json.dumps(SCHEMA)))
FOUND = RegisteredSchema("AVRO", json.dumps(SCHEMA))
ODD = [b"\1", b"\3", b"\xff", b"\x80", b"\xff" * 9 + b"\1", b"\xfe" + b"\xff" * 8 + b"\1", b"\x80" * 9, b"\0", b"\2"]


def a_row(rng: random.Random) -> dict[str, Any]:
    def text() -> str:
        return "".join(rng.choices("aäß€😀", k=rng.randrange(6)))

    def inner() -> dict[str, Any]:
        return {"x": rng.choice([None, rng.getrandbits(63) - (1 << 62)]), "s": text()}

    makes: list[Any] = [
        lambda: rng.random() < 0.5,
        lambda: rng.getrandbits(32) - (1 << 31),
        lambda: rng.getrandbits(64) - (1 << 63),
        lambda: float(rng.randrange(100)),
        rng.random,
        text,
        lambda: rng.randbytes(rng.randrange(8)),
        lambda: rng.randbytes(3),
        lambda: rng.choice("ABC"),
        lambda: rng.choice([None, text()]),
        lambda: rng.choice([None, "B"]),
        lambda: rng.choice([None, inner()]),
        lambda: [rng.getrandbits(20) for _ in range(rng.randrange(5))],
        lambda: [rng.choice([None, text()]) for _ in range(rng.randrange(4))],
        lambda: {text(): rng.random() for _ in range(rng.randrange(4))},
        lambda: [[rng.random() < 0.5] * rng.randrange(3) for _ in range(rng.randrange(3))],
        lambda: [None] * rng.randrange(3),
    ]
    row = {f"f{at}": make() for at, make in enumerate(makes)}
    return row | {"e": rng.choice("ABC"), "r": inner()}


def spoilt(rng: random.Random, value: bytes) -> bytes:
    """Damage some bytes of a record: changed, left out, put in, or numbers that no writer writes."""
    found = bytearray(value)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(len(found) + 1)
        how = rng.randrange(6)
        if how == 0:
            found[at : at + 1] = rng.randbytes(1)
        elif how == 1:
            del found[at : at + rng.randrange(1, 5)]
        elif how == 2:
            found[at:at] = rng.randbytes(rng.randrange(1, 4))
        elif how == 3:
            found[at : at + 1] = rng.choice(ODD)
        elif how == 4 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        else:
            del found[at:]
    return bytes(found)


def plain(value: Any) -> Any:
    """Return a value as fastavro has it; NaN as a text, because it is not equal to itself."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return repr(value) if isinstance(value, float) else value


def by_fastavro(value: bytes) -> Any:
    stream = io.BytesIO(value)
    row = fastavro.schemaless_reader(stream, PARSED, None)
    assert stream.tell() == len(value)
    return row


def cases(count: int) -> Iterator[list[tuple[bytes, bytes]]]:
    rng, batch = random.Random(f"{SEED} avro"), 500
    for begin in range(0, count, batch):
        whole = [avro_record(PARSED, a_row(rng)) for _ in range(min(batch, count - begin))]
        yield [(each, spoilt(rng, each)) for each in whole]


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_oracle_fastavro_of_damaged_records(count: int) -> None:
    columns = avro_columns(FOUND, "value", "input 'trades'")
    reading = AvroReadings(columns, FOUND, "value")(FOUND)
    read = damaged = 0
    for batch in cases(count):
        values = [each for pair in batch for each in pair]
        tracemalloc.start()
        rows, faults = reading([framed(7, each) for each in values])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 64 << 20
        assert rows is not None
        for at, (value, row, fault) in enumerate(
            zip(values, rows.to_pylist(maps_as_pydicts="lossy"), faults, strict=True)
        ):
            is_whole = at % 2 == 0 or value == values[at - 1]
            assert (row is None) == (fault is not None)
            assert row is not None or not is_whole, fault
            if row is not None:
                assert plain(row) == plain(by_fastavro(value)), value
                read += not is_whole
            damaged += not is_whole
    # Some damage is another record, such as a number of other digits.
    assert 0 < read < damaged * 0.6
    assert damaged > count * 0.8
