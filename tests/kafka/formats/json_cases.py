# ruff: noqa: E501 - schemas and values stand in one line each
"""What serializers of JSON Schema emit: schemas as they register them, and values.

Each case names its origin. Values of Confluent's Python client are made by running it; the other schemas follow the
writers' released sources, whose places stand here:

* Java: Confluent's ``KafkaJsonSchemaSerializer``, whose ``JsonSchemaUtils`` makes schemas of classes (nullables by
  ``oneOf`` with a title on the null), and registers those of ``@Schema`` with references, schema-registry 7 and 8.
* Go: ``schemaregistry/serde/jsonschema`` of confluent-kafka-go v2, which reflects structs to draft 2020-12.
* Connect: ``JsonSchemaConverter``, with ``JsonSchemaData`` (hints, maps, logical types, ids), schema-registry 7 and 8.
* Python: models of pydantic, whose schemas are given to Confluent's ``JSONSerializer``.
* Apicurio: ``JsonSchemaKafkaSerializer``, whose schemas are users' files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cojoin.kafka.formats.registry import RegisteredSchema

if TYPE_CHECKING:
    from collections.abc import Mapping

_NULL = {"type": "null", "title": "Not included"}
_NEW = "https://json-schema.org/draft/2020-12/schema"
_TEXT, _INTEGER, _NUMBER = ({"type": each} for each in ("string", "integer", "number"))


@dataclass(frozen=True)
class Case:
    """A value of a writer.

    Attributes:
        origin: The writer, and what is tried.
        schema: The schema; one that has no ``type`` and no ``$ref`` is of an object with these properties.
        value: The value.
        columns: The columns, as DDL.
        references: The schemas that the registry has references to, by their names.
        refused: What is said where the schema has no columns; they are then the user's.
        expected: The row, where it is not the value itself.
    """

    origin: str
    schema: Any
    value: Any
    columns: str
    references: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""
    expected: Any = None

    @property
    def whole(self) -> Any:
        """The schema of the object."""
        if isinstance(self.schema, dict) and not self.schema.keys() & {
            "type",
            "$ref",
            "oneOf",
            "anyOf",
            "allOf",
            "$id",
        }:
            return {"type": "object", "properties": self.schema}
        return self.schema

    @property
    def found(self) -> RegisteredSchema:
        """What the registry returns."""
        references = tuple((name, json.dumps(each)) for name, each in self.references.items())
        return RegisteredSchema("JSON", json.dumps(self.whole), references)


def nullable(schema: Any, **more: Any) -> Any:
    return {"oneOf": [_NULL, schema], **more}


def connected(schema: Any, number: int, *, optional: bool = True) -> Any:
    return (
        {"oneOf": [{"type": "null"}, schema], "connect.index": number}
        if optional
        else schema | {"connect.index": number}
    )


def pydantic(properties: Any, **defs: Any) -> Any:
    return {"$defs": defs, "properties": properties, "required": [*properties][:1], "title": "Order", "type": "object"}


ADDRESS = {"type": "object", "properties": {"street": _TEXT, "zip": {"type": ["null", "string"]}}}
PRODUCT = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Product",
    "type": "object",
    "properties": {"id": _INTEGER, "price": {"$ref": "#/definitions/money"}},
    "definitions": {"money": {"type": "object", "properties": {"amount": _NUMBER, "unit": _TEXT}}},
}
PRICED = "id bigint, price struct<amount: double, unit: string>"
ONE = {"id": 1, "price": {"amount": 1.5, "unit": "EUR"}}
MONEY = {"money": {"amount": 1, "unit": "EUR"}}
DECIMAL = {"title": "org.apache.kafka.connect.data.Decimal", "connect.version": 1, "connect.type": "bytes",
           "connect.parameters": {"scale": "2"}}  # fmt: skip
STAMP = {
    "type": "integer",
    "title": "org.apache.kafka.connect.data.Timestamp",
    "connect.version": 1,
    "connect.type": "int64",
}

JAVA = [
    Case("Java: a nullable text", {"a": nullable(_TEXT)}, {"a": "x"}, "a string"),
    Case("Java: a nullable text that is null", {"a": nullable(_TEXT)}, {"a": None}, "a string"),
    Case("Java: a nullable text that is left out", {"a": nullable(_TEXT), "b": _TEXT}, {"b": ""}, "a string, b string"),
    Case("Java: nullable numbers and booleans",
         {"a": nullable(_INTEGER), "b": nullable(_NUMBER), "c": nullable({"type": "boolean"})},
         {"a": 2**53 + 1, "b": 1e-7, "c": False}, "a bigint, b double, c boolean"),
    Case("Java: a nullable list", {"a": nullable({"type": "array", "items": _TEXT})}, {"a": ["x", ""]}, "a array<string>"),
    Case("Java: a nullable reference",
         {"type": "object", "properties": {"a": nullable({"$ref": "#/definitions/A"})}, "definitions": {"A": ADDRESS}},
         {"a": {"street": "x", "zip": None}}, "a struct<street: string, zip: string>"),
    Case("Java: a map", {"a": {"type": "object", "additionalProperties": nullable(_INTEGER)}}, {"a": {"x": 1, "y": None}},
         "a map<string, bigint>"),
    Case("Java: an enum", {"a": nullable({"type": "string", "enum": ["LOW", "HIGH"]})}, {"a": "LOW"}, "a string"),
    Case("Java: a date as milliseconds", {"a": {"type": "integer", "format": "utc-millisec"}}, {"a": 1760000000000}, "a bigint"),
    Case("Java: one subtype", {"type": "object", "properties": {"a": {"oneOf": [{"$ref": "#/definitions/A"}]}},
         "definitions": {"A": ADDRESS}}, {"a": {"street": "x"}}, "a struct<street: string, zip: string>"),
    Case("Java: a date as text", {"a": {"type": "string", "format": "date-time"}}, {"a": "2026-01-15T10:00:00.123+01:00"},
         "a timestamp"),
    Case("Java: a BigDecimal", {"a": _NUMBER}, {"a": 12345.678}, "a double"),
    Case("Java: a reference to another subject", {"p": {"$ref": "product.json"}}, {"p": ONE}, f"p struct<{PRICED}>",
         {"product.json": PRODUCT}),
    Case("Java: a reference into another subject", {"m": {"$ref": "product.json#/definitions/money"}}, {"m": ONE["price"]},
         "m struct<amount: double, unit: string>", {"product.json": PRODUCT}),
    Case("Java: a reference of a reference", {"o": nullable({"$ref": "order.json"})}, {"o": {"p": [ONE]}},
         f"o struct<p: array<struct<{PRICED}>>>", {"product.json": PRODUCT, "order.json": {
             "type": "object", "properties": {"p": {"type": "array", "items": {"$ref": "product.json"}}}}}),
    Case("Java: a root that is a reference to another subject", {"oneOf": [{"$ref": "product.json"}]}, ONE, PRICED,
         {"product.json": PRODUCT}),
    Case("Java: a reference in a schema with an id", {"$id": "http://acme.com/order.json", "type": "object",
         "properties": {"p": {"$ref": "product.json"}}}, {"p": ONE}, f"p struct<{PRICED}>",
         {"product.json": PRODUCT | {"$id": "http://acme.com/product.json"}}),
    Case("Java: a reference whose id differs from its name", {"p": {"$ref": "http://acme.com/p#/definitions/money"}},
         {"p": ONE["price"]}, "p struct<amount: double, unit: string>", {"p.json": PRODUCT | {"$id": "http://acme.com/p"}}),
]  # fmt: skip
PYTHON = [
    Case("Python: a type and null", {"a": {"type": ["null", "string"]}, "b": {"type": ["number", "null"]}}, {"a": None, "b": 5},
         "a string, b double"),
    Case("Python: an Optional", pydantic({"a": {"anyOf": [_INTEGER, {"type": "null"}], "default": None, "title": "A"}}), {"a": 5},
         "a bigint"),
    Case("Python: an Optional model", pydantic({"a": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}}, A=ADDRESS),
         {"a": {"street": "süß", "zip": "1"}}, "a struct<street: string, zip: string>"),
    Case("Python: a model with a default", pydantic({"a": {"allOf": [{"$ref": "#/$defs/A"}], "default": {}}}, A=ADDRESS),
         {"a": {"street": "x"}}, "a struct<street: string, zip: string>"),
    Case("Python: enums of texts and of numbers", pydantic({"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/$defs/B"}},
         A={"enum": ["x", "y"], "title": "A", "type": "string"}, B={"enum": [1, 2], "title": "B", "type": "integer"}),
         {"a": "y", "b": 2}, "a string, b bigint"),
    Case("Python: a Literal", pydantic({"a": {"const": "trade", "title": "A", "type": "string"}, "b": {"const": 7}}),
         {"a": "trade", "b": 7}, "a string, b bigint"),
    Case("Python: a Literal of numbers", pydantic({"a": {"enum": [1, 2.5, None]}, "b": {"enum": [3, -4]}}), {"a": 1, "b": -4},
         "a double, b bigint"),
    Case("Python: a Literal of texts and numbers", pydantic({"a": {"enum": ["x", 1, True]}}), {"a": 1}, "a string",
         expected={"a": "1"}),
    Case("Python: a Literal of booleans", pydantic({"a": {"enum": [True, None]}}), {"a": True}, "a boolean"),
    Case("Python: a date and a datetime", pydantic({"a": {"format": "date", "type": "string"},
         "b": {"anyOf": [{"format": "date-time", "type": "string"}, {"type": "null"}]}}),
         {"a": "2026-02-28", "b": "2026-01-15T10:00:00.000001Z"}, "a date, b timestamp"),
    Case("Python: a datetime or a date", pydantic({"a": {"anyOf": [{"format": "date-time", "type": "string"},
         {"format": "date", "type": "string"}]}}), {"a": "2026-02-28"}, "a string"),
    Case("Python: int or float", pydantic({"a": {"anyOf": [_INTEGER, _NUMBER]}, "b": {"type": ["integer", "number", "null"]}}),
         {"a": 5, "b": 1.5}, "a double, b double"),
    Case("Python: a dict and a list of lists", pydantic({"a": {"additionalProperties": {"type": "array", "items": {
         "type": "array", "items": _NUMBER}}, "type": "object"}}), {"a": {"k": [[1], []]}}, "a map<string, array<array<double>>>"),
    Case("Python: a reference to another subject", {"p": {"$ref": "product.json"}}, {"p": ONE}, f"p struct<{PRICED}>",
         {"product.json": PRODUCT}),
]  # fmt: skip
GO = [
    Case("Go: a reflected struct", {"$schema": _NEW, "$id": "https://github.com/acme/shop/author", "$ref": "#/$defs/Author",
         "$defs": {"Author": {"properties": {"name": _TEXT, "works": {"items": _TEXT, "type": "array"}, "id": _INTEGER},
         "additionalProperties": False, "type": "object", "required": ["name"]}}},
         {"name": "x", "works": ["a"], "id": -5}, "name string, works array<string>, id bigint"),
    Case("Go: bytes and a time", {"$schema": _NEW, "type": "object", "properties": {"b": {"type": "string",
         "contentEncoding": "base64"}, "t": {"type": "string", "format": "date-time"}}},
         {"b": "AQI=", "t": "2026-01-15T10:00:00Z"}, "b string, t timestamp"),
    Case("Go: a nullable by a tag", {"$schema": _NEW, "type": "object", "properties": {"n": {"oneOf": [_INTEGER, {"type": "null"}]}}},
         {"n": None}, "n bigint"),
]  # fmt: skip
CONNECT = [
    Case("Connect: numbers", {"a": {"type": "integer", "connect.index": 0, "connect.type": "int8"},
         "b": {"type": "integer", "connect.index": 1, "connect.type": "int64"},
         "c": {"type": "number", "connect.index": 2, "connect.type": "float32"}}, {"a": -128, "b": 2**63 - 1, "c": 1.5},
         "a bigint, b bigint, c double"),
    Case("Connect: optional fields", {"a": connected(_INTEGER | {"connect.type": "int32"}, 0), "b": connected(_TEXT, 1)},
         {"a": 5, "b": None}, "a bigint, b string"),
    Case("Connect: a map by texts", {"a": {"type": "object", "connect.type": "map", "additionalProperties": connected(_TEXT, 0)}},
         {"a": {"k": "v", "n": None}}, "a map<string, string>"),
    Case("Connect: a map by numbers", {"a": {"type": "array", "connect.type": "map", "items": {"type": "object", "properties": {
         "key": {"type": "integer", "connect.index": 0}, "value": {"type": "string", "connect.index": 1}}}}},
         {"a": [{"key": 1, "value": "x"}]}, "a array<struct<key: bigint, value: string>>"),
    Case("Connect: a Decimal as text", {"a": connected(_TEXT | DECIMAL, 0)}, {"a": "BNI="}, "a string"),
    Case("Connect: a Timestamp and a Date", {"a": STAMP | {"connect.index": 0}, "b": connected(STAMP, 1)},
         {"a": 1760000000000, "b": 20000}, "a bigint, b bigint"),
    Case("Connect: a root and a struct that are optional", {"oneOf": [{"type": "null"}, {"type": "object", "title": "Order",
         "properties": {"a": {"connect.index": 0, "oneOf": [{"type": "null"}, ADDRESS]}}}]}, {"a": {"street": "x"}},
         "a struct<street: string, zip: string>"),
    Case("Connect: an enum with null", {"a": {"enum": [None, "LOW", "HIGH"], "connect.index": 0}}, {"a": "HIGH"}, "a string"),
    Case("Connect: a reference by an id", {"type": "object", "properties": {"a": {"$id": "#id1", **ADDRESS},
         "b": {"type": "array", "items": {"$ref": "#id1"}}}}, {"a": {"street": "x"}, "b": [{"street": "y"}]},
         "a struct<street: string, zip: string>, b array<struct<street: string, zip: string>>"),
]  # fmt: skip
USERS = [
    Case("Apicurio: an anchor", {"$schema": _NEW, "type": "object", "properties": {"a": {"$ref": "#money"}},
         "$defs": {"m": {"$anchor": "money", "type": "object", "properties": {"amount": _NUMBER}}}}, {"a": {"amount": 2}},
         "a struct<amount: double>"),
    Case("Apicurio: relative ids", {"$schema": _NEW, "$id": "https://acme.com/order", "type": "object", "properties": {
         "a": {"$ref": "/money"}, "b": {"$ref": "money#/$defs/unit"}}, "$defs": {"m": {"$id": "/money", "type": "object",
         "properties": {"unit": {"$ref": "#/$defs/unit"}}, "$defs": {"unit": _TEXT}}}}, {"a": {"unit": "EUR"}, "b": "USD"},
         "a struct<unit: string>, b string"),
    Case("Apicurio: allOf that extends an object", {"allOf": [{"$ref": "base.json"}, {"properties": {"b": _INTEGER}}],
         "type": "object", "properties": {"c": _TEXT}}, {"a": "x", "b": 1, "c": "y"}, "a string, b bigint, c string",
         {"base.json": {"type": "object", "properties": {"a": _TEXT}}}),
    Case("Apicurio: beside a reference", {"$schema": _NEW, "$ref": "#/$defs/A", "properties": {"b": _INTEGER},
         "$defs": {"A": ADDRESS}}, {"street": "x", "b": 1}, "street string, zip string, b bigint"),
    Case("Apicurio: properties of which one must be there", {"type": "object", "properties": {"a": _TEXT, "b": _TEXT},
         "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"b": "x"}, "a string, b string"),
    Case("Apicurio: constants with titles", {"a": {"oneOf": [{"const": "A", "title": "x"}, {"const": "B"}]}}, {"a": "B"}, "a string"),
    Case("Apicurio: a pattern of properties", {"a": {"type": "object", "patternProperties": {"^x/": _INTEGER},
         "additionalProperties": False}}, {"a": {"x/1": 1}}, "a map<string, bigint>"),
    Case("Apicurio: a whole number that is a number", {"a": {"allOf": [_NUMBER, _INTEGER]}}, {"a": 5}, "a bigint"),
    Case("Apicurio: an older draft", {"$schema": "http://json-schema.org/draft-04/schema#", "type": "object",
         "id": "http://acme.com/x", "properties": {"a": {"$ref": "#/definitions/b"}}, "definitions": {"b": _TEXT}}, {"a": "x"}, "a string"),
]  # fmt: skip
REFUSED = [
    Case("Java: several subtypes", {"a": {"oneOf": [ADDRESS, {"type": "object", "properties": {"id": _INTEGER}}]}}, {"a": {"street": "x"}}, "a struct<street: string, id: long>",
         refused="property 'a': .*oneOf of 2 types, at #/properties/a", expected={"a": {"street": "x", "id": None}}),
    Case("Java: several subtypes, as their JSON", {"a": {"oneOf": [ADDRESS, {"type": "object", "properties": {"id": _INTEGER}}]}}, {"a": ONE}, "a string",
         refused="oneOf of 2 types", expected={"a": '{"id":1,"price":{"amount":1.5,"unit":"EUR"}}'}),
    Case("Java: several types in a topic", {"oneOf": [{"$ref": "product.json"}, {"$ref": "address.json"}]}, ONE, "id long, street string",
         {"product.json": PRODUCT, "address.json": ADDRESS}, refused="oneOf of 2 types, at #", expected={"id": 1, "street": None}),
    Case("Java: a property of null", {"a": {"type": "null"}, "b": _TEXT}, {"a": None, "b": "x"}, "a string, b string",
         refused="null alone, at #/properties/a"),
    Case("Java: any object", {"a": {"type": "object"}}, {"a": {"x": [1]}}, "a string", refused="any object, at #/properties/a",
         expected={"a": '{"x":[1]}'}),
    Case("Java: a tree", {"type": "object", "properties": {"id": _INTEGER, "next": {"$ref": "#"}}}, {"id": 1, "next": {"id": 2}},
         "id long, next struct<id: long>", refused="property 'next': # contains itself.*at #/properties/next"),
    Case("Connect: a tree by an id", {"type": "object", "$id": "#id1", "properties": {"id": _INTEGER, "next": {"$ref": "#id1"}}},
         {"id": 1}, "id long", refused="property 'next': .*at #/properties/next"),
    Case("Connect: a union", {"a": {"oneOf": [_TEXT | {"connect.index": 0}, _INTEGER | {"connect.index": 1}]}}, {"a": 5}, "a string",
         refused="oneOf of 2 types, at #/properties/a", expected={"a": "5"}),
    Case("Connect: a Decimal as a number", {"a": {"type": ["number", "string"], **DECIMAL}}, {"a": 1234567.89}, "a decimal(20, 2)",
         refused="number or string, at #/properties/a"),
    Case("Python: text or number", pydantic({"a": {"anyOf": [_TEXT, _NUMBER]}}), {"a": "x"}, "a string", refused="anyOf of 2 types"),
    Case("Python: Any", pydantic({"a": {"title": "A"}, "b": _TEXT}), {"a": [1], "b": "x"}, "b string",
         refused="any type, at #/properties/a", expected={"b": "x"}),
    Case("Python: a tuple", pydantic({"a": {"type": "array", "prefixItems": [_TEXT, _INTEGER]}}), {"a": ["x", 1]}, "a array<string>",
         refused="an array of several types, at #/properties/a", expected={"a": ["x", "1"]}),
    Case("Python: a list of anything", pydantic({"a": {"type": "array", "items": {}}}), {"a": [1, "x"]}, "a array<string>",
         refused="an element: .*any type, at #/properties/a/items", expected={"a": ["1", "x"]}),
    Case("Python: a Literal that texts do not tell apart", pydantic({"a": {"enum": ["1", 1]}}), {"a": 1}, "a string",
         refused=r'the values \["1", 1\], at #/properties/a', expected={"a": "1"}),
    Case("Apicurio: a reference to nothing", {"a": {"$ref": "away.json"}, "b": _TEXT}, {"b": "x"}, "b string",
         refused="the reference 'away.json', .*at #/properties/a", expected={"b": "x"}),
    Case("Apicurio: in a schema that it refers to", {"a": {"$ref": "m.json#/definitions/x"}}, {"a": {"b~/c": "5"}}, "a struct<`b~/c`: string>",
         {"m.json": {"definitions": {"x": {"type": "object", "properties": {"b~/c": {}}}}}},
         refused="any type, at m.json#/definitions/x/properties/b~0~1c"),
    Case("Apicurio: types that contradict each other", {"a": {"allOf": [_TEXT, _INTEGER]}, "b": _TEXT}, {"b": "x"}, "b string",
         refused="several types at once, at #/properties/a", expected={"b": "x"}),
]  # fmt: skip
CASES = [*JAVA, *PYTHON, *GO, *CONNECT, *USERS]
