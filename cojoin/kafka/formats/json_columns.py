"""The columns of a JSON schema, so far as Spark has types for what it describes.

====================================================  ========================================
JSON schema                                           Spark
====================================================  ========================================
boolean, integer, number                              boolean, bigint, double
string, enum, const                                   string
string with the format date-time, date                timestamp, date
object with properties, without                       struct; map<string, T>, T by additionalProperties
array                                                 array
a type and null, by a list of types, oneOf or anyOf   that type
====================================================  ========================================

``$ref`` follows references within the schema. What has no type of Spark's, such as a choice of several types, is
refused; the user then gives the columns as DDL. It reads only the types: whether a number is in its range is not looked
at. Values are parsed by Spark, as any other JSON.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.errors import SchemaError

if TYPE_CHECKING:
    from cojoin.kafka.formats.schema_lookup import FoundSchema

__all__ = ["json_columns", "referred"]

_PLAIN = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}
_FORMATS = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32()}


def json_columns(found: FoundSchema, what: str, advice: str = "give the columns as DDL") -> pa.StructType:
    """Return the columns of a JSON schema.

    Args:
        found: The schema.
        what: The input or output, for messages.
        advice: What to do where it has no columns.

    Raises:
        SchemaError: It does not parse, or describes what has no type of Spark's.
    """
    try:
        root = json.loads(found.text)
    except ValueError as error:
        msg = f"{what}: the JSON schema does not parse: {error}"
        raise SchemaError(msg) from error
    try:
        dtype = _type(root, root, what, ())
    except _NoTypeError as error:
        msg = f"{error}; {advice}"
        raise SchemaError(msg) from None
    if not pa.types.is_struct(dtype):
        msg = f"{what}: expected a JSON schema of an object with properties, got one of {dtype}; {advice}"
        raise SchemaError(msg)
    return dtype


class _NoTypeError(ValueError):
    """A part of a schema has no type of Spark's."""


def _type(schema: Any, root: Any, what: str, within: tuple[str, ...]) -> pa.DataType:  # noqa: C901, PLR0911 - one for each
    schema = schema if isinstance(schema, dict) else {}
    if "$ref" in schema:
        reference = str(schema["$ref"])
        if reference in within:
            msg = f"{what}: {reference} contains itself, and no column of Spark's does"
            raise _NoTypeError(msg)
        return _type(referred(reference, root, what), root, what, (*within, reference))
    for choice in ("oneOf", "anyOf"):
        if choice in schema:
            others = [each for each in schema[choice] if each != {"type": "null"}]
            if len(others) == 1:
                return _type(others[0], root, what, within)
            raise _no_type(what, f"{choice} of {len(others)} types")
    kinds = schema.get("type")
    named = [each for each in ([kinds] if isinstance(kinds, str) else kinds or []) if each != "null"]
    if not named and ("enum" in schema or "const" in schema):
        values = schema.get("enum", [schema.get("const")])
        if all(isinstance(each, (str, type(None))) for each in values):
            return pa.string()
    kind = named[0] if len(named) == 1 else "object" if not named and "properties" in schema else None
    if kind == "string":
        return _FORMATS.get(schema.get("format", ""), pa.string())
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == "array" and isinstance(schema.get("items"), dict):
        return pa.list_(_type(schema["items"], root, f"{what}: an element", within))
    if kind == "object" and schema.get("properties"):
        fields = [
            (name, _type(each, root, f"{what}: property {name!r}", within))
            for name, each in schema["properties"].items()
        ]
        return pa.struct(fields)
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return pa.map_(pa.string(), _type(schema["additionalProperties"], root, f"{what}: a value", within))
    raise _no_type(what, " or ".join(named) or "any type")


def referred(reference: str, root: Any, what: str) -> Any:
    """Return the part of a schema that a reference within it names.

    Raises:
        ValueError: It leads out of the schema, or to nothing.
    """
    found = root
    for part in reference.removeprefix("#").split("/")[1:]:
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    if not reference.startswith("#") or found is None:
        raise _no_type(what, f"the reference {reference!r}")
    return found


def _no_type(what: str, got: str) -> _NoTypeError:
    return _NoTypeError(f"{what}: expected a JSON schema with a type of Spark's, got {got}")
