# ruff: noqa: E501 - the files of .proto and their values have a form of their own
"""What serializers of Protobuf emit: schemas as they register them, and records as they frame them.

Each case names its origin. Those of Confluent's Python client are made by running it, in ``python_case``; the others
follow the writers' released sources, whose places stand here:

* Java: Confluent's ``KafkaProtobufSerializer``, with ``ProtobufSchema`` (known files, canonical texts) and
  ``MessageIndexes`` (a zero for the first type, else zigzag varints), schema-registry 7 and 8.
* Go: ``schemaregistry/serde/protobuf`` of confluent-kafka-go v2, which registers compiled files.
* Connect: ``ProtobufConverter``, with ``ProtobufData`` (logical types, wrappers for nullables, roots that are no
  structs), schema-registry 7 and 8.
* Apicurio: ``ProtobufKafkaSerializer`` 2 and 3, which writes the type's name (a ``Ref``) unless ``send-indexes`` is set.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import text_format

from cojoin.kafka.formats.registry import RegisteredSchema
from tests.kafka.formats.compiled import compiled, files_of

if TYPE_CHECKING:
    from collections.abc import Mapping

KNOWN = """syntax = "proto3"; package shop;
import "google/type/date.proto"; import "google/type/timeofday.proto"; import "google/type/money.proto";
import "google/type/latlng.proto"; import "google/type/dayofweek.proto"; import "google/type/datetime.proto";
message T { google.type.Date day = 1; google.type.TimeOfDay time = 2; google.type.Money price = 3;
  google.type.LatLng place = 4; google.type.DayOfWeek weekday = 5; google.type.DateTime at = 6; }
"""
KNOWN_VALUE = """day { year: 2026 month: 2 day: 28 } time { hours: 23 nanos: 5 } price { currency_code: "EUR" units: -7 }
  place { latitude: 48.1 longitude: -11.5 } weekday: FRIDAY at { year: 2026 utc_offset { seconds: 3600 } }"""
META = """syntax = "proto3"; package shop;
import "confluent/meta.proto"; import "confluent/type/decimal.proto";
option (confluent.file_meta) = { doc: "a file", params: [ { key: "owner", value: "shop" } ] };
message T { option (confluent.message_meta) = { doc: "a message", tags: [ "PII" ] };
  confluent.type.Decimal price = 1 [(confluent.field_meta) = { params: [
    { value: "2", key: "scale" }, { value: "12", key: "precision" } ] }];
  int32 small = 2 [(confluent.field_meta) = { params: [ { value: "int8", key: "connect.type" } ] }]; }
"""
META_VALUE = 'price { value: "\\xfd\\x2d" precision: 3 scale: 2 } small: -3'
SCALARS = """syntax = "proto3"; package shop;
message T { double a = 1; float b = 2; int32 c = 3; int64 d = 4; uint32 e = 5; uint64 f = 6; sint32 g = 7; sint64 h = 8;
  fixed32 i = 9; fixed64 j = 10; sfixed32 k = 11; sfixed64 l = 12; bool m = 13; string n = 14; bytes o = 15; }
"""
SCALARS_VALUE = r"""a: 1.5 b: 0.1 c: -2147483648 d: -9223372036854775808 e: 4294967295 f: 18446744073709551615 g: -1
  h: 9007199254740993 i: 4294967295 j: 18446744073709551615 k: -2147483648 l: 9223372036854775807 m: true n: "süß"
  o: "\xff\x00\x80" """
NESTED = """syntax = "proto3"; package shop;
message A { message B { int32 b = 1; } message C { message D { string d = 1; } D inner = 1; } int32 a = 1; }
message T { A.B b = 1; A.C c = 2; repeated A.C many = 3; }
"""
PROTO2 = """syntax = "proto2"; package shop;
message T { required int32 id = 1; optional string tier = 2 [default = "basic"]; optional group Extra = 3 {
    optional int32 points = 1 [default = 7]; } repeated int32 many = 4; repeated int32 packed = 5 [packed = true];
  enum E { LOW = 1; HIGH = 2; } optional E level = 6 [default = HIGH]; repeated E levels = 7;
  extensions 100 to 200; }
extend T { optional string more = 100; }
"""
CHOICE = """syntax = "proto3"; package shop; import "google/protobuf/empty.proto";
message T { oneof choice { int32 number = 1; string text = 2; Inner inner = 3; } int32 id = 4; }
message Inner { int32 x = 1; }
"""
EMPTY = """syntax = "proto3"; package shop; import "google/protobuf/empty.proto";
message T { oneof state { google.protobuf.Empty paid = 1; Nothing open = 2; int32 due = 3; } int32 id = 4; }
message Nothing { }
"""
TREE = """syntax = "proto3"; package shop;
message T { int32 id = 1; T parent = 2; repeated T children = 3; map<string, T> named = 4; google.protobuf.Any any = 5; }
import "google/protobuf/any.proto";
"""
TREE_VALUE = """id: 1 parent { id: 2 parent { id: 3 parent { id: 4 } } } children { id: 5 children { id: 6 } }
  named { key: "b" value { id: 7 } } any { [type.googleapis.com/shop.T] { id: 8 } }"""
WRAPPED = """syntax = "proto3"; package shop; import "google/protobuf/wrappers.proto";
message T { google.protobuf.DoubleValue a = 1; google.protobuf.FloatValue b = 2; google.protobuf.Int64Value c = 3;
  google.protobuf.UInt64Value d = 4; google.protobuf.Int32Value e = 5; google.protobuf.UInt32Value f = 6;
  google.protobuf.BoolValue g = 7; google.protobuf.StringValue h = 8; google.protobuf.BytesValue i = 9;
  repeated google.protobuf.Int64Value many = 10; map<string, google.protobuf.StringValue> named = 11; }
"""
FREE = """syntax = "proto3"; package shop; import "google/protobuf/struct.proto"; import "google/protobuf/any.proto";
import "google/protobuf/field_mask.proto"; import "google/protobuf/wrappers.proto";
message T { google.protobuf.Struct struct = 1; google.protobuf.Value value = 2; google.protobuf.ListValue items = 3;
  google.protobuf.Any any = 4; google.protobuf.FieldMask mask = 5; google.protobuf.NullValue nothing = 6; }
"""
FREE_VALUE = """struct { fields { key: "k" value { list_value { values { number_value: 1.5 } values { null_value: 0 } } } } }
  value { string_value: "ä" } items { values { bool_value: true } } mask { paths: "a_b" paths: "c.d" }
  any { type_url: "type.googleapis.com/google.protobuf.Int32Value" value: "\\x08\\x05" }"""
TIMES = """syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
message T { google.protobuf.Timestamp at = 1; google.protobuf.Duration took = 2;
  repeated google.protobuf.Timestamp all = 3; }
"""
MAPS = """syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";
message T { map<int32, string> a = 1; map<bool, int64> b = 2; map<uint64, double> c = 3; map<sint64, E> d = 4;
  map<string, Inner> e = 5; map<string, google.protobuf.Timestamp> f = 6; map<fixed32, bytes> g = 7; }
enum E { NONE = 0; SOME = 5; } message Inner { map<string, int32> deeper = 1; }
"""
MAPS_VALUE = """a { key: -1 value: "x" } a { key: 7 } b { key: true value: -9 } b { key: false value: 1 } c {
  key: 18446744073709551615 value: inf } d { key: -5 value: SOME } d { key: 1 value: 9 } e { key: "k" value { deeper {
  key: "z" value: 1 } deeper { key: "a" value: 2 } } } f { key: "t" value { seconds: 5 } } g { key: 4294967295 value: "z" }"""
OPTIONAL = """syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";
message T { optional int32 a = 1; optional string b = 2; optional bool c = 3; optional E d = 4; int32 e = 5; string f = 6;
  optional google.protobuf.Timestamp g = 7; repeated string h = 8; }
enum E { option allow_alias = true; ZERO = 0; ONE = 1; UNO = 1; }
"""
EDITION = """edition = "2023"; package shop;
message T { int32 a = 1; int32 b = 2 [features.field_presence = IMPLICIT]; message Q { int32 z = 1; }
  Q q = 3 [features.message_encoding = DELIMITED]; enum E { option features.enum_type = CLOSED; A = 1; } E e = 4;
  string s = 5 [default = "x"]; repeated int32 n = 6 [features.repeated_field_encoding = EXPANDED]; }
"""
SHADOWED = """syntax = "proto3"; package shop;
message Other { message T { string wrong = 1; } T t = 1; }
message T { int32 right = 1; int32 from = 2; }
"""
OUTER = (
    'syntax = "proto3"; package shop; import "shop/inner.proto"; message T { Inner inner = 1; repeated Kind k = 2; }'
)
INNER = """syntax = "proto3"; package shop; import public "shop/kind.proto"; import "google/type/date.proto";
message Inner { string x = 1; google.type.Date day = 2; }"""
KIND = 'syntax = "proto3"; package shop; enum Kind { NONE = 0; SOME = 1; }'
REFERENCES = {"shop/kind.proto": KIND, "shop/inner.proto": INNER}
APICURIO = """syntax = "proto3"; package shop; import "additionalTypes/decimal.proto"; import "metadata/metadata.proto";
message T { additionalTypes.Decimal price = 1 [(metadata.metadata_key) = "k", (metadata.metadata_value) = "v"]; }
"""
LEGACY = """syntax = "proto3"; package shop; import "confluent/types/decimal.proto"; import "confluent/type/variant.proto";
message T { confluent.type.Decimal price = 1; confluent.type.Variant free = 2; }
"""
CONNECT = """syntax = "proto3"; import "google/protobuf/timestamp.proto"; import "google/type/date.proto";
import "google/type/timeofday.proto"; import "confluent/meta.proto"; import "confluent/type/decimal.proto";
import "google/protobuf/wrappers.proto";
message ConnectDefault1 {
  int32 int8 = 1 [(confluent.field_meta) = { params: [ { key: "connect.type", value: "int8" } ] }];
  confluent.type.Decimal price = 2 [(confluent.field_meta) = { params: [ { key: "scale", value: "2" } ] }];
  google.type.Date day = 3; google.type.TimeOfDay time = 4; google.protobuf.Timestamp at = 5;
  google.protobuf.StringValue nullable = 6; optional int64 other = 7; repeated string texts = 8;
  repeated MapEntry by_number = 9; map<string, ConnectDefault2> by_name = 10; ConnectDefault2 inner = 11;
  message MapEntry { int32 key = 1; string value = 2; }
  message ConnectDefault2 { string x = 1; } }
"""
CONNECT_VALUE = """int8: -128 price { value: "\\x04\\xd2" scale: 2 } day { year: 2026 month: 1 day: 15 } time { hours: 10 }
  at { seconds: 1760000000 nanos: 5000000 } nullable { value: "" } texts: "a" texts: "" by_number { key: 1 value: "x" }
  by_name { key: "k" value { x: "y" } } inner { }"""


def index(*place: int) -> bytes:
    """Return the place of a message type as Confluent's serializers write it, whose numbers are below 64."""
    return b"\0" if place == (0,) else bytes([2 * len(place), *(2 * each for each in place)])


@dataclass(frozen=True)
class Case:
    """A record of a writer.

    Attributes:
        origin: The writer, and what is tried.
        text: The schema's file.
        value: The message, in Protobuf's text format.
        head: What stands between the schema's id and the message.
        message: The message type.
        references: Files that the registry has references to.
        is_compiled: Whether the registry has compiled files.
        ddl: The user's columns; empty for those of the schema.
    """

    origin: str
    text: str
    value: str
    head: bytes = b"\0"
    message: str = "shop.T"
    references: Mapping[str, str] = field(default_factory=dict)
    is_compiled: bool = False
    ddl: str = ""

    @property
    def made(self) -> Any:
        """The class of the message, by protoc alone."""
        return compiled(self.text, self.references, self.message)

    @property
    def record(self) -> bytes:
        """The message."""
        pool = self.made.DESCRIPTOR.file.pool
        return bytes(text_format.Parse(self.value, self.made(), descriptor_pool=pool).SerializeToString())

    @property
    def found(self) -> RegisteredSchema:
        """What the registry returns."""
        if not self.is_compiled:
            return RegisteredSchema("PROTOBUF", self.text, tuple(self.references.items()))
        files = files_of(self.text, self.references)
        texts = {name: base64.b64encode(file.SerializeToString()).decode() for name, file in files.items()}
        return RegisteredSchema("PROTOBUF", texts["it.proto"], tuple((name, texts[name]) for name in self.references))


def second(origin: str, *arguments: Any, **further: Any) -> Case:
    return Case(origin, *arguments, head=index(1), **further)


CASES = [
    Case("Java: each scalar type at its limit", SCALARS, SCALARS_VALUE),
    Case("Java: each scalar type unset", SCALARS, ""),
    Case("Java: NaN and infinities", SCALARS, "a: nan b: -inf"),
    Case("Java: negative zeros and the smallest numbers", SCALARS, "a: -0.0 b: 1e-45"),
    second("Java: the second type of a file", NESTED, "b { b: 1 } c { inner { d: 'x' } } many { } many { inner { } }"),
    Case("Java: a nested type", NESTED, "inner { d: 'x' }", index(0, 1), "shop.A.C"),
    Case("Java: a type nested twice", NESTED, "d: 'x'", index(0, 1, 0), "shop.A.C.D"),
    second("Java: a full name beside a nested one that comes first", SHADOWED, "right: 5 from: 7"),
    second("Java: the same without a package", SHADOWED.replace("package shop;", ""), "right: 5", message="T"),
    Case("Java: files of google/type without references", KNOWN, KNOWN_VALUE),
    Case("Java: dates by the user's columns", KNOWN, KNOWN_VALUE, ddl="day date"),
    Case("Java: confluent.meta and Decimal without references", META, META_VALUE),
    Case("Java: a Decimal by the user's columns", META, META_VALUE, ddl="price decimal(12, 2), small int"),
    Case("Java: the former place of Decimal, and Variant", LEGACY, "price { scale: -1 } free { value: '\\0' }"),
    Case("Java: references by texts", OUTER, "inner { x: 'a' day { year: 1 } } k: SOME", references=REFERENCES),
    Case("Java: proto2 with all set", PROTO2, "id: 1 tier: '' Extra { points: 0 } many: 1 many: 2 packed: 3 level: LOW"),
    Case("Java: proto2 with defaults and an extension", PROTO2, "id: 0 Extra { } levels: HIGH [shop.more]: 'x'"),
    Case("Java: proto3 optional set to defaults", OPTIONAL, "a: 0 b: '' c: false d: ZERO e: 0 f: '' g { } h: ''"),
    Case("Java: proto3 optional unset", OPTIONAL, ""),
    Case("Java: an enum's unknown number and an alias", OPTIONAL, "d: 99 h: 'x' h: 'y'"),
    Case("Java: an enum's alias", OPTIONAL, "d: UNO"),
    Case("Java: a oneof's number at its default", CHOICE, "number: 0 id: 1"),
    Case("Java: a oneof's message", CHOICE, "inner { } id: 1"),
    Case("Java: a oneof unset", CHOICE, "id: 1"),
    Case("Java: messages without fields by the user's columns", EMPTY, "paid { } id: 1", ddl="id int, due int"),
    Case("Java: messages without fields as their JSON", EMPTY, "open { } id: 1", ddl="id int, open string, paid string"),
    Case("Java: a tree three deep", TREE, TREE_VALUE, ddl="id int, parent struct<id: int, parent: struct<id: int>>"),
    Case("Java: trees as their JSON", TREE, TREE_VALUE, ddl="parent string, children array<string>, any string"),
    Case("Java: trees in a map", TREE, TREE_VALUE, ddl="id int, named map<string, struct<id: int>>"),
    Case("Java: wrappers at their defaults", WRAPPED, "a { } b { } c { } d { } e { } f { } g { } h { } i { } many { }"),
    Case("Java: wrappers unset, and in a map", WRAPPED, "named { key: 'k' value { value: 'v' } } d { value: 1 }"),
    Case("Java: Struct, Value, ListValue, Any and FieldMask", FREE, FREE_VALUE),
    Case("Java: a Value of null, and an Any as its JSON", FREE, FREE_VALUE, ddl="value string, any string, mask string"),
    Case("Java: the first and the last Timestamp", TIMES, "at { seconds: -62135596800 } all { seconds: 253402300799 }"),
    Case("Java: a Timestamp before 1970", TIMES, "at { seconds: -1 nanos: 999999000 } took { seconds: -1 nanos: -5000 }"),
    Case("Java: the longest Durations", TIMES, "took { seconds: 315576000000 nanos: 999999000 }"),
    Case("Java: maps with keys of each kind", MAPS, MAPS_VALUE),
    Case("Java: an edition", EDITION, "a: 0 b: 0 q { z: 5 } e: A n: 1 n: 2"),
    Case("Go: a compiled file", SCALARS, SCALARS_VALUE, is_compiled=True),
    Case("Go: compiled files by reference", OUTER, "k: NONE k: 7", references=REFERENCES, is_compiled=True),
    Case("Go: compiled files of google/type without references", KNOWN, KNOWN_VALUE, is_compiled=True),
    Case("Go: a nested type of a compiled file", NESTED, "b: -1", index(0, 0), "shop.A.B", is_compiled=True),
    Case("Connect: logical types, wrappers and nested defaults", CONNECT, CONNECT_VALUE, message="ConnectDefault1"),
    Case("Connect: logical types, by the user's columns", CONNECT, CONNECT_VALUE, message="ConnectDefault1",
         ddl="int8 int, price decimal(10, 2), day date, at timestamp, other bigint"),
    Case("Apicurio: the type's name", SCALARS, SCALARS_VALUE, b"\x03\n\x01T"),
    Case("Apicurio: the name of a nested type", NESTED, "d: 'x'", b"\x03\n\x01D", "shop.A.C.D"),
    Case("Apicurio: indexes, of the first type, too", SCALARS, SCALARS_VALUE, b"\2\0"),
    Case("Apicurio: its own Decimal and metadata", APICURIO, "price { units: -89 fraction: -5 precision: 3 scale: 1 }"),
]  # fmt: skip


def python_case(origin: str, text: str, value: str, **further: Any) -> tuple[Case, RegisteredSchema, bytes]:
    """Return a case with what Confluent's Python client registers for it, and the value that it makes."""
    settings = {"skip.known.types": further.pop("skips_known", True)}
    case = Case(origin, text, value, **further)
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    serializer = ProtobufSerializer(case.made, client, settings)
    made = serializer(case.made.FromString(case.record), SerializationContext("t", MessageField.VALUE))
    references: dict[str, str] = {}

    def collect(schema: Any) -> None:
        for each in schema.references or ():
            there = client.get_version(each.subject, each.version).schema
            collect(there)
            references[each.name] = there.schema_str

    registered = client.get_schema(int.from_bytes(made[1:5], "big"))
    collect(registered)
    return case, RegisteredSchema("PROTOBUF", registered.schema_str, tuple(references.items())), made


PYTHON_CASES: list[dict[str, Any]] = [
    {"origin": "each scalar type", "text": SCALARS, "value": SCALARS_VALUE},
    {"origin": "a nested type", "text": NESTED, "value": "d: 'x'", "message": "shop.A.C.D"},
    {"origin": "references", "text": OUTER, "value": "inner { x: 'a' } k: SOME", "references": REFERENCES},
    {"origin": "google/type", "text": KNOWN, "value": KNOWN_VALUE},
    {"origin": "confluent.meta and Decimal", "text": META, "value": META_VALUE},
    {"origin": "known types by reference", "text": TIMES, "value": "at { seconds: 5 }", "skips_known": False},
    {"origin": "proto2", "text": PROTO2, "value": "id: 5 Extra { points: 1 }"},
]
