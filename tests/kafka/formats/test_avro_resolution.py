"""Records of one schema read by another as fastavro resolves them, over schemas drawn and changed at random."""

from __future__ import annotations

import copy
import io
import json
import random
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from cojoin.kafka.formats.avro_decoder import AvroReadings, avro_columns
from cojoin.kafka.formats.registry import FoundSchema
from tests.kafka.formats.encoded import avro_record, framed
from tests.seeds import SEED

PLAIN = ["null", "boolean", "int", "long", "float", "double", "string", "bytes"]
WIDER = {"int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"], "string": ["bytes"]}


class Drawn:
    """Draws schemas, their later versions, and values of them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.count = rng, 0

    def kind(self, depth: int) -> Any:  # noqa: PLR0911 - one for each kind
        rng = self.rng
        how = rng.random()
        if depth == 0 or how < 0.5:
            return rng.choice(PLAIN)
        if how < 0.6:
            return {"type": "array", "items": self.kind(depth - 1)}
        if how < 0.7:
            return {"type": "map", "values": self.kind(depth - 1)}
        self.count += 1
        if how < 0.75:
            return {"type": "enum", "name": f"E{self.count}", "symbols": ["A", "B", "C"][: rng.randrange(1, 4)]}
        if how < 0.8:
            return {"type": "fixed", "name": f"F{self.count}", "size": rng.randrange(1, 4)}
        if how < 0.9:
            inner = self.kind(depth - 1)
            return ["null", inner] if not isinstance(inner, list) and inner != "null" else inner
        return self.record(depth - 1)

    def record(self, depth: int) -> Any:
        self.count += 1
        name = f"R{self.count}"
        fields = [{"name": f"f{at}", "type": self.kind(depth)} for at in range(self.rng.randrange(1, 5))]
        return {"type": "record", "name": name, "fields": fields}

    def later(self, kind: Any) -> Any:
        """Return a later version of a type."""
        rng = self.rng
        if isinstance(kind, str):
            wider = WIDER.get(kind, [])
            found = rng.choice(wider) if wider and rng.random() < 0.4 else kind
            return ["null", found] if found != "null" and rng.random() < 0.2 else found
        if isinstance(kind, list):
            members = [each if each == "null" else self.later(each) for each in kind]
            return kind if any(isinstance(each, list) for each in members) else members
        found = copy.deepcopy(kind)
        for part in ("items", "values"):
            if part in kind:
                found[part] = self.later(kind[part])
        if kind["type"] == "enum" and rng.random() < 0.5:
            found["symbols"] = [*found["symbols"][1:], "D"]
            found["default"] = "D"
        if kind["type"] == "record":
            fields = [{**each, "type": self.later(each["type"])} for each in kind["fields"] if rng.random() < 0.8]
            for each in fields:
                if rng.random() < 0.2:
                    each |= {"name": f"{each['name']}x", "aliases": [each["name"]]}
            if not fields or rng.random() < 0.5:
                new, default = rng.choice(
                    [("long", 7), (["null", "string"], None), ("string", "é"), (["double", "null"], 0.5)]
                )
                fields.append({"name": f"new{rng.randrange(1_000_000)}", "type": new, "default": default})
            rng.shuffle(fields)
            found["fields"] = fields
        return found

    def value(self, kind: Any) -> Any:  # noqa: PLR0911 - one for each kind
        rng = self.rng
        if isinstance(kind, list):
            member = rng.choice(kind)
            return self.value(member)
        plain = {
            "null": lambda: None,
            "boolean": lambda: rng.random() < 0.5,
            "int": lambda: rng.randrange(-1_000, 1_000),
            "long": lambda: rng.randrange(-(1 << 50), 1 << 50),
            "float": lambda: rng.randrange(-100, 100) / 4,
            "double": lambda: rng.randrange(-100, 100) / 4,
            "string": lambda: "".join(rng.choices("aß€", k=rng.randrange(4))),
            "bytes": lambda: rng.randbytes(rng.randrange(4)),
        }
        if isinstance(kind, str):
            return plain[kind]()
        what = kind["type"]
        if what == "array":
            return [self.value(kind["items"]) for _ in range(rng.randrange(4))]
        if what == "map":
            return {f"k{at}": self.value(kind["values"]) for at in range(rng.randrange(3))}
        if what == "enum":
            return rng.choice(kind["symbols"])
        if what == "fixed":
            return rng.randbytes(kind["size"])
        return {each["name"]: self.value(each["type"]) for each in kind["fields"]}


def by_fastavro(value: bytes, writer: Any, reader: Any) -> Any:
    schemas = (fastavro.parse_schema(copy.deepcopy(each)) for each in (writer, reader))
    return fastavro.schemaless_reader(io.BytesIO(value), *schemas)


def as_read(value: Any, dtype: pa.DataType) -> Any:
    """Return a value of fastavro's in a column's type: it leaves numbers as they were written."""
    if value is None:
        return None
    if pa.types.is_struct(dtype):
        return {field.name: as_read(value[field.name], field.type) for field in dtype}
    if pa.types.is_list(dtype):
        return [as_read(each, dtype.value_type) for each in value]
    if pa.types.is_map(dtype):
        return [(name, as_read(each, dtype.item_type)) for name, each in value.items()]
    if pa.types.is_floating(dtype):
        return pa.scalar(float(value), dtype).as_py()
    return value.encode() if pa.types.is_binary(dtype) and isinstance(value, str) else value


@pytest.mark.parametrize("count", [150, pytest.param(5_000, marks=pytest.mark.slow)])
def test_oracle_fastavro_of_random_schemas(count: int) -> None:
    drawn = Drawn(random.Random(f"{SEED} resolution"))
    compared = 0
    for _ in range(count):
        writer = drawn.record(3)
        reader = drawn.later(writer) if drawn.rng.random() < 0.8 else writer
        rows = [drawn.value(writer) for _ in range(3)]
        values = [avro_record(fastavro.parse_schema(copy.deepcopy(writer)), row) for row in rows]
        there, here = (FoundSchema("AVRO", json.dumps(each)) for each in (writer, reader))
        columns = avro_columns(here, "value", "input 't'")
        found, faults = AvroReadings(columns, here, "value")(there)([framed(7, each) for each in values])
        assert faults == [None] * 3, (writer, reader)
        assert found is not None
        expected = [as_read(by_fastavro(each, writer, reader), columns) for each in values]
        assert found.to_pylist() == expected, (writer, reader)
        compared += writer != reader
    assert compared > count / 2
