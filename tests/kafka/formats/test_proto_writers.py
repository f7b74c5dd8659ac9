"""Records as writers make them, compared with Google's own reader; damaged ones are faults of theirs, or right."""

from __future__ import annotations

import base64
import io
import json
import math
import random
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.serde import SchemaId
from google.protobuf.json_format import MessageToDict

from cojoin.engine.values.types import parse_schema, parse_type, type_to_ddl
from cojoin.errors import SchemaError
from cojoin.kafka.formats.proto_decoder import ProtoReadings, proto_columns
from cojoin.kafka.formats.registry import RegisteredSchema
from tests.kafka.formats.compiled import compiled
from tests.kafka.formats.encoded import framed
from tests.kafka.formats.proto_cases import (
    CASES,
    CHOICE,
    EMPTY,
    FREE,
    MAPS,
    NESTED,
    OPTIONAL,
    PROTO2,
    PYTHON_CASES,
    SCALARS,
    TIMES,
    TREE,
    Case,
    index,
    python_case,
)
from tests.seeds import SEED, SEED_TEXT


def given_columns(ddl: str) -> pa.StructType:
    return pa.struct([each.with_nullable(True) for each in parse_schema(ddl)])


def decoded(found: RegisteredSchema, message: str, ddl: str, values: list[bytes]) -> tuple[list[Any], list[str | None]]:
    columns = given_columns(ddl) if ddl else proto_columns(found, message, "input 'trades'")
    rows, faults = ProtoReadings(columns, None if ddl else found, message)(found)(values)
    return ([None] * len(values) if rows is None else rows.to_pylist()), faults


_AS_THEY_ARE = {
    "google.protobuf.Any": lambda own: {"type_url": own.type_url, "value": own.value},
    "google.protobuf.FieldMask": lambda own: {"paths": list(own.paths)},
}


def assert_told(row: dict[str, Any], message: Any, dtype: pa.StructType) -> None:
    """Compare a row with what MessageToDict says of its message."""
    pool = message.DESCRIPTOR.file.pool
    printed = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
    named = type(message)()
    named.CopyFrom(message)
    for field in dtype:  # what JSON has another form for, and none where it names nothing
        described = message.DESCRIPTOR.fields_by_name[field.name]
        if pa.types.is_struct(field.type) and described.message_type.full_name in _AS_THEY_ARE:
            own = getattr(message, field.name)
            assert row[field.name] == (
                _AS_THEY_ARE[own.DESCRIPTOR.full_name](own) if message.HasField(field.name) else None
            )
            named.ClearField(field.name)
    told = MessageToDict(named, descriptor_pool=pool, **printed)
    for field in dtype:
        described, value = message.DESCRIPTOR.fields_by_name[field.name], row[field.name]
        is_compared = field.name in told or described.message_type is None
        if not is_compared and named.HasField(field.name) != message.HasField(field.name):
            continue
        assert_field(value, told.get(field.name), getattr(message, field.name), described, field.type)


def assert_field(value: Any, told: Any, own: Any, field: Any, dtype: pa.DataType) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, item = (field.message_type.fields_by_name[each] for each in ("key", "value"))
        assert len(value) == len(told)
        for one, other in value:
            spelled = json.dumps(one) if isinstance(one, bool) else str(one)
            assert_value(
                other, told[spelled], own[int(one) if isinstance(one, Decimal) else one], item, dtype.item_type
            )
        assert [one for one, _ in value] == sorted(one for one, _ in value)
        assert key.name == "key"
    elif field.is_repeated:
        assert len(value) == len(told)
        for one, other, mine in zip(value, told, own, strict=True):
            assert_value(one, other, mine, field, dtype.value_type)
    else:
        assert_value(value, told, own, field, dtype)


def assert_value(value: Any, told: Any, own: Any, field: Any, dtype: pa.DataType) -> None:  # noqa: C901
    described = field.message_type
    if field.enum_type is not None and field.enum_type.name == "NullValue":
        assert value == "NULL_VALUE"
    elif value is None:
        assert told is None, (field.full_name, told)
    elif field.enum_type is not None:
        assert value == str(told)
    elif described is None:
        assert type(told)(value) == told or value == _number(told, field), (field.full_name, value, told)
    elif described.full_name == "google.protobuf.Timestamp":
        whole, _, parts = told.rstrip("Z").partition(".")
        assert value.replace(tzinfo=None).isoformat() == (f"{whole}.{parts:0<9}"[:26] if int(parts[:6] or 0) else whole)
    elif described.full_name == "google.protobuf.Duration":
        assert value // timedelta(microseconds=1) == math.floor(Decimal(told.rstrip("s")) * 1_000_000)
    elif described.full_name.endswith("Value") and [*described.fields_by_name] == ["value"]:
        assert_value(value, told, own, described.fields_by_name["value"], dtype)
    elif isinstance(value, str):
        assert json.loads(value) == MessageToDict(own, descriptor_pool=own.DESCRIPTOR.file.pool)
    elif isinstance(value, Decimal):
        unscaled = int.from_bytes(base64.b64decode(told["value"]), "big", signed=True)
        assert value == Decimal(unscaled).scaleb(-told["scale"])
    elif isinstance(value, date):
        assert (value.year, value.month, value.day) == (told["year"], told["month"], told["day"])
    else:
        assert_told(value, own, dtype)


def _number(told: Any, field: Any) -> Any:
    """Return a number or bytes as JSON has them."""
    if field.type == field.TYPE_BYTES:
        return base64.b64decode(told)
    if field.type == field.TYPE_FLOAT:
        return pa.scalar(float(told), pa.float32()).as_py()
    return float(told) if field.type == field.TYPE_DOUBLE else int(told)


def assert_case(case: Case, found: RegisteredSchema, value: bytes) -> None:
    rows, faults = decoded(found, case.message, case.ddl, [value])
    assert faults == [None]
    message = case.made.FromString(case.record)
    columns = given_columns(case.ddl) if case.ddl else proto_columns(found, case.message, "w")
    if not case.ddl:
        assert columns.names == [each.name for each in message.DESCRIPTOR.fields]
    if "NaN" in case.origin:
        assert math.isnan(rows[0].pop("a"))
        columns = pa.struct([each for each in columns if each.name != "a"])
    assert_told(rows[0], message, columns)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.origin)
def test_oracle_what_writers_emit(case: Case) -> None:
    assert_case(case, case.found, framed(7, case.head + case.record))


@pytest.mark.parametrize("arguments", PYTHON_CASES, ids=lambda each: each["origin"])
def test_oracle_what_the_python_client_emits(arguments: dict[str, Any]) -> None:
    assert_case(*python_case(**arguments))


def test_a_root_that_connect_wraps_is_a_row() -> None:
    """Connect writes a key that is a number by the file of wrappers itself."""
    text = """syntax = "proto3"; package google.protobuf;
        message DoubleValue { double value = 1; } message Int32Value { int32 value = 1; }"""
    rows, faults = decoded(
        RegisteredSchema("PROTOBUF", text), "google.protobuf.Int32Value", "", [framed(7, b"\2\2\x08\5")]
    )
    assert (rows, faults) == ([{"value": 5}], [None])


@pytest.mark.parametrize(
    ("text", "said", "ddl", "value", "expected"),
    [
        (TREE, "shop.T contains itself", "id int", "id: 5 parent { id: 6 }", {"id": 5}),
        (TREE, "shop.T contains itself", "id int, parent string", "parent { id: 6 }", {"id": 0, "parent": '{"id": 6}'}),
        (EMPTY, "protobuf.Empty has no field", "id int", "id: 5 paid { }", {"id": 5}),
        (EMPTY, "protobuf.Empty has no field", "paid string, open string", "paid { }", {"paid": "{}", "open": None}),
        (EMPTY, "protobuf.Empty has no field", "paid struct<x: int>", "paid { }", {"paid": {"x": None}}),
        (EMPTY, "protobuf.Empty has no field", "nothing int", "paid { }", {"nothing": None}),
        (EMPTY.replace("google.protobuf.Empty paid = 1; ", ""), "shop.Nothing has", "due int", "due: 0", {"due": 0}),
    ],
)  # fmt: skip
def test_the_cure_of_a_schema_without_columns_works(
    text: str, said: str, ddl: str, value: str, expected: dict[str, Any]
) -> None:
    case = Case("Java", text, value, ddl=ddl)
    with pytest.raises(SchemaError, match=f"{said}.*; give the columns as DDL.*or as a string, its JSON"):
        proto_columns(case.found, case.message, "input 'trades'")
    assert decoded(case.found, case.message, ddl, [framed(7, b"\0" + case.record)]) == ([expected], [None])


@pytest.mark.parametrize(
    ("ddl", "said", "cure", "value", "expected"),
    [
        ("parts string", "array<the message shop.T>", "parts array<string>", "parts { id: 6 }", ['{"id": 6}']),
        ("parts int", "array<the message shop.T>", "parts array<struct<id: int>>", "parts { id: 6 }", [{"id": 6}]),
        ("parts array<int>", "array<the message shop.T>", "parts array<string>", "parts { }", ["{}"]),
        ("parts struct<id: int>", "array<the message shop.T>", "parts array<string>", "parts { }", ["{}"]),
        ("parts string", "map<int,the message shop.T>", "parts map<int, string>", "parts { key: 7 }", [(7, "{}")]),
        ("parts array<string>", "map<int,the message shop.T>", "parts map<int, string>", "", []),
        ("parts bigint", "the message shop.T", "parts string", "parts { id: 6 }", '{"id": 6}'),
    ],
)
def test_messages_that_are_wanted_in_a_form_that_they_do_not_have_are_told_with_those_that_they_have(
    ddl: str, said: str, cure: str, value: str, expected: Any
) -> None:
    kind = "repeated T" if "array" in said else "map<int32, T>" if "map" in said else "T"
    text = f'syntax = "proto3"; package shop; message T {{ int32 id = 1; {kind} parts = 2; }}'
    case = Case("Java", text, value)
    wanted = ddl.partition(" ")[2].replace(" ", "")
    with pytest.raises(
        ValueError, match=f"^field 'parts' is {said} in the schema, expected {wanted}; give it as "
    ) as refused:
        decoded(case.found, case.message, ddl, [])
    assert f" {type_to_ddl(parse_type(cure.partition(' ')[2]))}," in str(refused.value) or "struct" in cure
    assert decoded(case.found, case.message, cure, [framed(7, b"\0" + case.record)]) == ([{"parts": expected}], [None])


def test_fields_named_as_methods_of_messages_are_read() -> None:
    text = (
        'syntax = "proto3"; message T { optional int32 HasField = 1; int32 Clear = 2; optional int32 DESCRIPTOR = 3; }'
    )
    rows, faults = decoded(RegisteredSchema("PROTOBUF", text), "T", "", [framed(7, b"\0\x08\0\x10\5")])
    assert (rows, faults) == ([{"HasField": 0, "Clear": 5, "DESCRIPTOR": None}], [None])


def test_an_any_of_a_type_that_is_not_known_is_a_fault_as_json_alone() -> None:
    case = Case("Java", FREE, "any { type_url: 'type.googleapis.com/shop.Away' value: '\\x08\\5' }")
    value = [framed(7, b"\0" + case.record)]
    assert decoded(case.found, "shop.T", "", value)[1] == [None]
    rows, faults = decoded(case.found, "shop.T", "any string", value)
    assert rows == [None]
    assert "field 'any': " in str(faults[0])


@pytest.mark.parametrize(
    ("text", "value", "said"),
    [
        (TIMES, "at { seconds: 253402300800 }", "field 'at': a Timestamp of 253402300800 seconds"),
        (TIMES, "at { seconds: -62135596801 }", "not within the years 1 to 9999"),
        (TIMES, "at { nanos: -1 }", "not within the years"),
        (TIMES, "at { nanos: 1000000000 }", "not within the years"),
        (TIMES, "at { seconds: 9223372036854775807 }", "not within the years"),
        (TIMES, "all { } all { seconds: -9223372036854775808 }", "field 'all': "),
        (TIMES, "took { seconds: 315576000001 }", "field 'took': a Duration of 315576000001 seconds"),
        (TIMES, "took { seconds: 1 nanos: -1 }", "of one sign"),
        (TIMES, "took { nanos: 1000000000 }", "a Duration"),
        (FREE, "value { number_value: inf }", "field 'value': "),
        (FREE, "struct { fields { key: 'k' value { number_value: nan } } }", "field 'struct': "),
    ],
)
def test_values_that_json_does_not_have_are_faults_of_their_records(text: str, value: str, said: str) -> None:
    cases = [Case("Java", text, each) for each in ("", value, "")]
    with pytest.raises(Exception):  # noqa: B017 - the oracle refuses it, too
        MessageToDict(cases[1].made.FromString(cases[1].record))
    rows, faults = decoded(cases[0].found, "shop.T", "", [framed(7, b"\0" + each.record) for each in cases])
    assert [each is None for each in rows] == [False, True, False]
    assert [each is None for each in faults] == [True, False, True]
    assert said in str(faults[1])


@pytest.mark.parametrize(
    ("ddl", "value", "said"),
    [
        ("price decimal(3, 1)", 'price { value: "\\x04\\xd2" scale: 2 }', "has more than 1 digits after the point"),
        ("price decimal(3, 2)", 'price { value: "\\x04\\xd2" scale: 2 }', "field 'price'"),
        ("price decimal(38, 2)", f'price {{ value: "{"a" * 40}" scale: 2 }}', "more digits than a column of 38"),
        ("price decimal(38, 2)", 'price { value: "a" scale: -2147483648 }', "more digits than a column of 38"),
        ("day date", "day { year: 2026 month: 2 day: 30 }", "field 'day'"),
        ("day date", "day { year: 2026 month: 2 }", "field 'day'"),
        ("day date", "day { }", "field 'day'"),
    ],
)
def test_logical_types_that_do_not_fit_the_users_columns_are_faults(ddl: str, value: str, said: str) -> None:
    text = """syntax = "proto3"; package shop; import "google/type/date.proto"; import "confluent/type/decimal.proto";
        message T { google.type.Date day = 1; confluent.type.Decimal price = 2; }"""
    case = Case("Connect", text, value, ddl=ddl)
    rows, faults = decoded(case.found, "shop.T", ddl, [framed(7, b"\0" + case.record)])
    if "decimal(3, 2)" in ddl and faults == [None]:
        ((only,),) = ([*each.values()] for each in rows)
        pytest.fail(f"it does not fit, got {only}")
    assert rows == [None]
    assert said in str(faults[0])


@pytest.mark.parametrize(
    "head",
    [
        b"", b"\1", b"\2", b"\1\0", b"\2\1", b"\2\3", b"\4\2", b"\4\2\1", b"\4\2\2", b"\x80", b"\3",
        b"\2" + b"\xff" * 9 + b"\1", b"\2" + b"\x80" * 20 + b"\1", b"\xfe\xff\xff\xff\x0f" + b"\0" * 100,
        b"\xc8\1" + b"\2" * 100, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1", b"\3\n\1", b"\3\n\1X", b"\3\n\2T",
        b"\2\n\0", b"\2\x7f",
    ],
)  # fmt: skip
def test_damaged_places_of_a_type_are_faults(head: bytes) -> None:
    """Negative, huge, cut off or of another type; the message itself is right."""
    case = Case("Java", NESTED.replace("message A", "message First { } message A"), "c { }", index(2))
    rows, faults = decoded(case.found, "shop.T", "", [framed(7, head + case.record), framed(7, index(2) + case.record)])
    assert [each is None for each in rows] == [True, False]
    assert faults[0] is not None
    assert len(faults[0]) < 300


def test_records_of_another_message_type_are_not_read_as_the_readers() -> None:
    """As in a topic of several types, each with a schema of its own, where no message type is named."""
    texts = [f'syntax = "proto3"; package shop; message {each} {{ int64 id = 1; }}' for each in ("Order", "Refund")]
    order, refund = (RegisteredSchema("PROTOBUF", text) for text in texts)
    columns = proto_columns(order, None, "w")
    with pytest.raises(ValueError, match=r"no message type 'Order'; it has shop\.Refund"):
        ProtoReadings(columns, order, None)(refund)
    moved = RegisteredSchema("PROTOBUF", order.text.replace("shop", "sale"))
    rows, faults = ProtoReadings(columns, order, None)(moved)([framed(7, b"\0\x08\5")])
    assert (rows.to_pylist(), faults) == ([{"id": 5}], [None])


def test_numbers_that_the_readers_type_does_not_hold_are_faults() -> None:
    """The runtime keeps their lower bits, as Protobuf says."""
    inner = "message Inner { optional sint64 s = 1; map<int64, uint64> m = 2; Inner inner = 3; }"
    text = f"""syntax = "proto3"; package shop; {inner}
        message T {{ int64 a = 1; repeated uint64 b = 2; Inner c = 3; int64 left_out = 4; }}"""
    values = ["a: 2147483647 c { s: -2147483648 }", "a: 2147483648", "b: 1 b: 4294967296", "c { s: -2147483649 }",
              "c { m { key: 2147483648 } }", "c { m { value: 4294967296 } }", "c { inner { s: 2147483648 } }",
              "left_out: 2147483648 b: 4294967295"]  # fmt: skip
    cases = [Case("Java", text, each) for each in values]
    reader = text.replace("int64 left_out = 4; ", "").replace("64", "32").replace("Inner inner = 3;", "")
    found = RegisteredSchema("PROTOBUF", reader)
    readings = ProtoReadings(proto_columns(found, "shop.T", "w"), found, "shop.T")(cases[0].found)
    rows, faults = readings([framed(7, index(1) + each.record) for each in cases])
    assert [at for at, each in enumerate(faults) if each is None] == [0, 6, 7]  # nobody reads the inner one's inner one
    assert "field 'a' is 2147483648, and the reader's type holds -2147483648 to 2147483647" in str(faults[1])
    assert rows.to_pylist()[0]["a"] == 2147483647


@pytest.mark.parametrize(
    ("text", "references", "said"),
    [
        (
            'syntax = "proto3"; import "away/it.proto"; message T { }',
            (),
            "imports 'away/it.proto', to which the registry",
        ),
        ('syntax = "proto3"; message T { Away a = 1; }', (), 'protoc can\'t compile.*"Away" is not defined'),
        ('syntax = "proto3"; message T { }', (), "the message type T has no field"),
        ('syntax = "proto3"; enum E { A = 0; }', (), "the file has no message type; it has none"),
    ],
)
def test_files_that_can_not_be_read_are_told(text: str, references: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=f"input 'trades': the Protobuf schema .*{said}"):
        proto_columns(RegisteredSchema("PROTOBUF", text, references), None, "input 'trades'")


def test_a_text_may_refer_to_compiled_files_and_the_other_way_round() -> None:
    case = next(each for each in CASES if each.origin == "Go: compiled files by reference")
    both = case.found, RegisteredSchema("PROTOBUF", case.text, tuple(case.references.items()))
    expected = proto_columns(both[0], None, "w")
    for one, other in (both, both[::-1]):
        assert proto_columns(RegisteredSchema("PROTOBUF", one.text, other.references), None, "w") == expected


FUZZED = [
    (SCALARS, "a: 1.5 d: -5 n: 'süß' o: '\\xff' f: 7"),
    (TIMES, "at { seconds: 1760000000 nanos: 5000 } took { seconds: -5 } all { seconds: 1 } all { seconds: 2 }"),
    (OPTIONAL, "a: 0 b: 'x' c: true d: ONE g { seconds: 5 } h: 'y' h: 'z'"),
    (MAPS, "a { key: -1 value: 'x' } b { key: true value: 1 } e { key: 'k' value { deeper { key: 'z' value: 1 } } }"),
    (FREE, "struct { fields { key: 'k' value { list_value { values { number_value: 1.5 } } } } } mask { paths: 'a' }"),
    (CHOICE, "inner { x: 5 } id: 7"),
    (PROTO2, "id: 1 tier: 'ü' Extra { points: 5 } many: 1 packed: 3 packed: 4 level: LOW [shop.more]: 'x'"),
]  # fmt: skip


def damaged(rng: random.Random, value: bytes) -> bytes:
    """Return bytes with some of them lost, doubled, changed or swapped."""
    made = bytearray(value)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        at, size = rng.randrange(len(made) + 1), rng.choice([1, 1, 2, 4, 9])
        action = rng.randrange(6)
        if action == 0:
            made[at : at + size] = rng.randbytes(size)
        elif action == 1:
            del made[at : at + size]
        elif action == 2:
            made[at:at] = made[at : at + size]
        elif action == 3 and at < len(made):
            made[at] ^= 1 << rng.randrange(8)
        elif action == 4:
            made[at:at] = rng.choice([b"\xff" * size, b"\0" * size, b"\x80" * size, b"\x7f", b"\x0b", b"\x0c"])
        else:
            del made[at:]
    return bytes(made)


def assert_damage_is_a_fault_or_right(count: int) -> None:
    rng = random.Random(SEED)
    for text, content in FUZZED:
        case = Case("Java", text, content)
        made, record = compiled(text, {}, "shop.T"), b"\0" + case.record
        values = [damaged(rng, record) for _ in range(count // len(FUZZED) + 1)]
        columns = proto_columns(case.found, "shop.T", "w")
        rows, faults = decoded(case.found, "shop.T", "", [framed(7, each) for each in values])
        right = 0
        for value, row, fault in zip(values, rows, faults, strict=True):
            if fault is not None:
                assert row is None
                continue
            right += 1
            try:
                payload = io.BytesIO(value)
                assert SchemaId._read_index_array(payload) == [0]
                message = made.FromString(payload.read())
                numbers = {name for name, each in row.items() if isinstance(each, float) and math.isnan(each)}
                assert all(math.isnan(getattr(message, each)) for each in numbers)
                assert_told(row, message, pa.struct([each for each in columns if each.name not in numbers]))
            except Exception as error:
                msg = f"{SEED_TEXT}: {value!r} became {row}"
                raise AssertionError(msg) from error
        assert 0 < right < len(values), SEED_TEXT


def test_fuzz_of_damaged_bytes() -> None:
    assert_damage_is_a_fault_or_right(700)


@pytest.mark.slow
def test_many_damaged_bytes() -> None:
    assert_damage_is_a_fault_or_right(10_000)


def test_bytes_that_repeat_themselves_end_neither_memory_nor_the_stack() -> None:
    deep = b""
    for _ in range(1_000):  # messages in each other, each by its length
        head, size = b"", len(deep)
        while True:
            head += bytes([size & 0x7F | (0x80 if size > 0x7F else 0)])
            size >>= 7
            if not size:
                break
        deep = b"\x12" + head + deep
    groups = b"\x1b" * 1_000
    many = b"\x1a\0" * 20_000
    case = Case("Java", TREE, "id: 1", ddl="id int, parent string, children array<struct<id: int>>")
    rows, faults = decoded(case.found, "shop.T", case.ddl, [framed(7, b"\0" + each) for each in (deep, groups, many)])
    assert [each is None for each in rows] == [True, True, False]
    assert [each is None for each in faults] == [False, False, True]
    assert len(rows[2]["children"]) == 20_000
