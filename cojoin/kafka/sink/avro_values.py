"""Rows as Avro records, by confluent-kafka's own serializer. It costs some 20 microseconds a row."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.kafka.sink.times_as_numbers import in_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cojoin.kafka.sink.value_schema import ValueSchema

__all__ = ["avro_rows", "avro_writer"]

_OTHER_UNITS = ("-millis", "-nanos")


def avro_rows(schema: ValueSchema, rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows with the columns of a schema as dictionaries of what the serializer takes."""
    types = {each["name"]: each["type"] for each in json.loads(schema.found.text)["fields"]}
    texts = [schema.found.text, *(text for _, text in schema.found.references)]
    has_objects = any(map(_has_other_units, texts))

    def of_serializer(name: str, column: pa.ChunkedArray) -> list[Any]:
        # An object for each time would cost as much as writing it, but of a number the serializer makes no other unit.
        is_plain = not pa.types.is_nested(column.type) and not _has_other_units(json.dumps(types[name]))
        return _prepared(in_numbers(column) if is_plain or not has_objects else column)

    prepared = [of_serializer(name, rows.column(at)) for at, name in enumerate(schema.columns.names)]
    names = schema.columns.names
    return [dict(zip(names, values, strict=True)) for values in zip(*prepared, strict=True)]


def avro_writer(_: ValueSchema, settings: dict[str, Any], client: Any) -> Callable[[Any, Any], bytes]:
    """Return what makes a dictionary a value."""
    from confluent_kafka.schema_registry.avro import AvroSerializer  # noqa: PLC0415 - takes half a second

    serializer: Callable[[Any, Any], bytes] = AvroSerializer(client, None, conf=settings)
    return serializer


def _has_other_units(text: str) -> bool:
    return any(each in text for each in _OTHER_UNITS)


def _prepared(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Return a column's values as fastavro takes them."""
    convert = _converter(column.type)
    values: list[Any] = column.to_pylist()
    return values if convert is None else [None if each is None else convert(each) for each in values]


def _converter(dtype: pa.DataType) -> Callable[[Any], Any] | None:
    """Return what makes a value one of fastavro's; None where all are, as a map's list of pairs is not."""
    if pa.types.is_map(dtype):
        inner = _converter(dtype.item_type)
        return lambda pairs: {key: _applied(inner, value) for key, value in pairs}
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        inner = _converter(dtype.value_type)
        return None if inner is None else lambda values: [_applied(inner, value) for value in values]
    if pa.types.is_struct(dtype):
        fields = {field.name: convert for field in dtype if (convert := _converter(field.type)) is not None}
        return None if not fields else lambda value: _with(value, fields)
    return None


def _applied(convert: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _with(value: Mapping[str, Any], fields: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    return {**value, **{name: _applied(convert, value[name]) for name, convert in fields.items()}}
