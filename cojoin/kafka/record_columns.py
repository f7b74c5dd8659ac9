"""How a record becomes a row in Spark: its value and key as columns, and columns of its key, headers and timestamp.

Values in Avro or Protobuf come decoded (``formats``), and Debezium's envelopes become rows here. Spark's own
``from_json`` reads JSON, so timestamps and decimals have the same forms as everywhere in Spark. A value that is not
JSON of the schema, or a key or header that does not fit its type, makes the record undecodable: its row goes to
``rejected``, or ends the query if the user chooses that. A missing field is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.row_changes import DELETED
from cojoin.engine.time.control_rows import REPEATED
from cojoin.engine.values.types import parse_schema, parse_type, schema_to_ddl, type_to_ddl
from cojoin.errors import ConfigurationError, SchemaError
from cojoin.kafka.formats.debezium_envelope import CHANGED_AT, Placeholder, change_row, change_sides, payload_of
from cojoin.kafka.formats.debezium_json import needs_schema
from cojoin.kafka.records import DECODED, DECODED_KEY, FAULT, HEADERS, KEY, MARK, NEWEST, TIME, TOMBSTONE, VALUE, Record
from cojoin.spark.batch.packing import READY_COLUMNS
from cojoin.spark.batch.pickling import pickling_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from cojoin.kafka.formats.record_formats import ResolvedFormat

__all__ = ["PLACE", "RecordColumn", "check_columns", "check_names", "decoded", "header", "key", "timestamp"]

_CORRUPT, _PARSED, _PARSED_KEY = "__cojoin_corrupt", "__cojoin_parsed", "__cojoin_parsed_key"
_CHANGE = "__cojoin_change"
_SHOWN = 200
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = rf"{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW}"
_WITHOUT_SCHEMA = " (decimals in base64 are read by the event's schema: set schemas.enable=true in its converter)"
# Possessive, since Java's matcher would go one call deeper with each blank.
_BLANKS = r"(?:\s|\\(?:u[0-9a-fA-F]{4}|[a-z]))*+"
_PARTS_OF_TIMES: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (lambda dtype: dtype == pa.timestamp("us", "UTC"), r'(?:T\d|\d{1,2}:)[^"]*"(?!\s*:)'),
    (pa.types.is_date, r'[+-]?\d{1,3}\s*"(?!\s*:)'),
)
"""Texts that Spark takes for whole times: a time of the day is one of today, and a number is of days since 1970."""

PLACE = ("topic", "partition", "offset")
"""The columns that say where a record is."""


@dataclass(frozen=True)
class RecordColumn:
    """A column that is not in a record's value; ``key``, ``header`` and ``timestamp`` make one.

    Attributes:
        part: The part of the record that the column holds.
        dtype: The column's type, as DDL.
        name: The header's name; empty for the other parts.
    """

    part: Literal["key", "header", "timestamp"]
    dtype: str
    name: str = ""

    def __post_init__(self) -> None:
        found = parse_type(self.dtype, what=str(self))
        if pa.types.is_nested(found):
            msg = f"{self}: expected a plain type, got {self.dtype!r}"
            raise SchemaError(msg)

    def __str__(self) -> str:
        return f"header {self.name!r}" if self.part == "header" else f"the record's {self.part}"

    @property
    def source(self) -> str:
        """The name under which this part of the record is sent to Spark."""
        return {"key": KEY, "header": HEADERS, "timestamp": TIME}[self.part]

    def raw(self) -> Column:
        """Return the column as the record has it."""
        if self.part != "header":
            return F.col(self.source)
        named = F.filter(HEADERS, lambda each: each["key"] == F.lit(self.name))
        return F.try_element_at(named, F.lit(-1))["value"]

    def typed(self) -> Column:
        """Return the column in its type; null where a value does not fit."""
        if self.part == "timestamp" or parse_type(self.dtype) == pa.binary():
            return self.raw()
        # Bytes that are not UTF-8 become null, because no worker could read them as text.
        text = F.try_validate_utf8(self.raw().cast("string"))
        spelled = type_to_ddl(parse_type(self.dtype))
        return text if spelled == "string" else text.try_cast(spelled)


def key(dtype: str = "string") -> RecordColumn:
    """Return a column of the record's key: its text, its text converted to another type, or its bytes as ``binary``.

    A key that does not fit the type makes the record undecodable.

    Args:
        dtype: DDL of a type that is not nested, such as ``"long"``.
    """
    return RecordColumn("key", dtype)


def header(name: str, dtype: str = "string") -> RecordColumn:
    """Return a column of the record's last header with a name; null where there is none.

    A header that does not fit the type makes the record undecodable.

    Args:
        name: The header's name.
        dtype: DDL of a type that is not nested, such as ``"long"``.
    """
    return RecordColumn("header", dtype, name)


def timestamp() -> RecordColumn:
    """Return a column of the record's own timestamp; null where it has none, which Kafka writes as -1.

    A timestamp that Spark's type can't hold, such as one in nanoseconds, makes the record undecodable.
    """
    return RecordColumn("timestamp", "timestamp")


def check_columns(
    what: str,
    schema: str | None,
    columns: Mapping[str, RecordColumn],
    decode: Callable[[Record], Any] | None,
    *,
    has_format: bool = False,
) -> None:
    """Check the columns that a user describes.

    Args:
        what: The input, for messages.
        schema: DDL of the value's columns.
        columns: Further columns, by name.
        decode: The user's own function that decodes records.
        has_format: Whether the value or key has a format with columns of its own.

    Raises:
        ConfigurationError: An argument is not valid.
        SchemaError: Two columns have the same name.
    """
    if schema is None and (decode is not None or not (columns or has_format)):
        msg = f"{what}: expected schema=, such as 'customer_id long, event_time timestamp': what a value holds"
        raise ConfigurationError(msg)
    if decode is not None:
        if not callable(decode):
            msg = f"{what}: decode: expected a function of a Record, got {decode!r}"
            raise ConfigurationError(msg)
        reason = pickling_error(decode)
        if reason is not None:
            msg = f"{what}: decode can't be sent to the workers: {reason}"
            raise ConfigurationError(msg)
    for name, column in columns.items():
        if not isinstance(column, RecordColumn):
            msg = f"{what}: column {name!r}: expected cojoin.kafka.key(), header() or timestamp(), got {column!r}"
            raise ConfigurationError(msg)
    check_names(what, [] if schema is None else parse_schema(schema, what=f"{what}: schema").names, columns)


def check_names(what: str, *parts: Iterable[str]) -> None:
    """Check that columns of a record's parts have names of their own.

    Args:
        what: The input, for messages.
        parts: The names of each part's columns.

    Raises:
        SchemaError: Two columns have the same name.
    """
    seen: set[str] = set()
    for name in [*(name for part in parts for name in part), *PLACE]:
        if name.lower() in seen:
            msg = (
                f"{what}: there are two columns {name!r}: the value's fields, the key's, further columns and Kafka's "
                f"own, topic, partition and offset, need names of their own"
            )
            raise SchemaError(msg)
        seen.add(name.lower())


def decoded(
    records: DataFrame,
    schema: str | None,
    columns: Mapping[str, RecordColumn],
    *,
    fails_for: str | None,
    in_python: bool,
    archived: bool = False,
    value: ResolvedFormat | None = None,
    key: ResolvedFormat | None = None,
    moves_by: Sequence[str] = (),
) -> DataFrame:
    """Return records as rows: the value's columns, the key's, the further ones, then ``topic, partition, offset``.

    A record is one row, but a change event that moves a row to another key is two. Each row's mark, fault and newest
    timestamp are the last columns, besides those of packed rows where there are any.

    Args:
        records: The rows that the reader returns.
        schema: DDL of the value's columns; None where there are none.
        columns: Further columns, by name.
        fails_for: The input, for the message, if a record that can't be decoded ends the query; None otherwise.
        in_python: Whether the value is decoded already.
        archived: Whether some rows come decoded from an archive.
        value: The value's format, if it is not plain JSON of the schema.
        key: The key's format, if the key has columns of its own.
        moves_by: The key columns of change events.
    """
    faults = [F.col(FAULT)]
    names = [] if schema is None else parse_schema(schema, what="schema").names
    structs = [DECODED] if in_python else [DECODED, _PARSED] if archived else [_PARSED]
    if schema is not None and not in_python:
        dtype = pa.struct(list(parse_schema(schema, what="schema")))
        if value is not None and value.row is not None:
            dtype = payload_of(value.columns)
        records = records.withColumn(_PARSED, _parsed(VALUE, dtype))
        explained = value is not None and value.row is not None and needs_schema(value.row)
        faults.append(_misparsed(VALUE, _PARSED, f"value{_WITHOUT_SCHEMA if explained else ''}", dtype))
    change = None
    if value is not None and value.row is not None:
        placeholder = value.placeholder or Placeholder()
        records = records.withColumns(change_sides(F.col(structs[0]), may_be_wrapped=not in_python))
        change = change_row(F.col(structs[0]), value.row, moves_by, placeholder, may_be_wrapped=not in_python)
        event = F.col(VALUE).cast("string") if not in_python else F.to_json(F.struct(*map(F.col, PLACE)))
        faults.append(F.when(change.problem.isNotNull(), _told(change.problem, event)))
        faults.append(F.when(change.missing.isNotNull(), F.concat(F.lit("unavailable_value: "), change.missing)))
    keyed: list[Column] = []
    if key is not None:
        struct = DECODED_KEY
        if not key.in_python:
            struct, source = _PARSED_KEY, DECODED_KEY if key.decoder is not None else KEY
            records = records.withColumn(_PARSED_KEY, _parsed(source, key.columns))
            faults.append(_misparsed(source, _PARSED_KEY, "key", key.columns))
        keyed = [F.col(struct).getField(field.name).alias(field.name) for field in key.columns]
    for name, column in columns.items():
        wrong = column.raw().isNotNull() & column.typed().isNull()
        faults.append(F.when(wrong, _told(F.lit(f"{column} is no {column.dtype}, for column {name!r}"), column.raw())))
    fault = F.coalesce(*faults)
    if fails_for is not None:
        at = (F.col(name) for name in PLACE)
        place = F.format_string("%s: topic %s partition %d offset %d: ", F.lit(fails_for), *at)
        fault = F.when(fault.startswith("undecodable"), F.raise_error(F.concat(place, fault))).otherwise(fault)
    if change is None:
        own = [F.coalesce(*(F.col(struct).getField(name) for struct in structs)).alias(name) for name in names]
    else:
        records = records.withColumn(_CHANGE, F.explode(change.rows(is_good=fault.isNull())))
        own = [F.col(_CHANGE).getField("row").getField(name).alias(name) for name in names]
        own += [F.col(_CHANGE).getField("deleted").alias(DELETED), change.changed_at.alias(CHANGED_AT)]
        # Debezium writes a tombstone after each delete, which it repeats for compaction.
        fault = F.when(fault == F.lit(TOMBSTONE), F.lit(REPEATED)).otherwise(fault)
        fault = F.coalesce(fault, F.col(_CHANGE).getField("note"))
    return records.select(
        *own,
        *keyed,
        *(column.typed().alias(name) for name, column in columns.items()),
        *PLACE,
        MARK,
        fault.alias(FAULT),
        NEWEST,
        *(each for each in READY_COLUMNS if each in records.columns),
    )


def _parsed(source: str, dtype: pa.StructType) -> Column:
    """Return JSON as a struct, with a field for JSON that is none of the type."""
    # Not in the user's spelling, because Spark's plans refuse a char or varchar in a parsed schema.
    spelled = f"{schema_to_ddl(pa.schema(list(dtype)))}, {_CORRUPT} string"
    # A time without a zone is read as UTC, whatever the session's zone.
    options = {"timeZone": "UTC", "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    return F.from_json(F.col(source).cast("string"), spelled, options)


def _misparsed(source: str, parsed: str, part: str, dtype: pa.StructType) -> Column:
    text = F.col(source).cast("string")
    wrong = F.col(source).isNotNull() & (
        F.col(parsed).isNull()
        | F.col(f"{parsed}.{_CORRUPT}").isNotNull()
        # Spark's parser would replace bytes that are not UTF-8, and halves of surrogate pairs, by other characters.
        | ~F.is_valid_utf8(text)
        | _has_half(F.make_valid_utf8(text))
    )
    for is_leaf, pattern in _PARTS_OF_TIMES:
        leaves = _leaves(dtype, is_leaf)
        if leaves is not None:  # few texts begin so, and only those are parsed again
            again = F.from_json(text, schema_to_ddl(pa.schema(list(leaves))))
            may_be = text.rlike(f'"\\s*+(?:{pattern}|\\\\)')
            wrong |= may_be & F.to_json(again).rlike(f'[:\\[,]"{_BLANKS}{pattern}')
    return F.when(wrong, _told(F.lit(f"the {part} is no JSON of the schema"), F.col(source)))


def _leaves(dtype: pa.DataType, is_leaf: Callable[[pa.DataType], bool]) -> pa.DataType | None:
    """Return a type with those leaves alone, as texts; None where it has none."""
    types = pa.types
    if is_leaf(dtype):
        return pa.string()
    if types.is_list(dtype):
        inner = _leaves(dtype.value_type, is_leaf)
        return None if inner is None else pa.list_(inner)
    if types.is_map(dtype):
        inner = _leaves(dtype.item_type, is_leaf)
        return None if inner is None else pa.map_(pa.string(), inner)
    if types.is_struct(dtype):
        fields = [(each.name, inner) for each in dtype if (inner := _leaves(each.type, is_leaf)) is not None]
        return pa.struct(fields) if fields else None
    return None


def _has_half(text: Column) -> Column:
    """Return whether JSON spells one half of a surrogate pair without the other."""
    # A backslash that is itself escaped begins no escape.
    spelled = F.replace(text, F.lit("\\\\"), F.lit("  "))
    return text.contains("\\u") & spelled.rlike(_HALF)


def _told(what: Column, value: Column) -> Column:
    shown = F.substring(F.make_valid_utf8(value.cast("string")), 1, _SHOWN)
    return F.concat(F.lit("undecodable: "), what, F.lit(": got "), shown)
