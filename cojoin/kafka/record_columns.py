"""How a record becomes a row in Spark: its JSON value as columns, and columns of its key, headers and timestamp.

Spark's own ``from_json`` reads the value, so timestamps and decimals have the same forms as everywhere in Spark. A
value that is not JSON of the schema, or a key or header that does not fit its type, makes the record undecodable: its
row goes to ``rejected``, or ends the query if the user chooses that. A missing field is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.values.types import parse_schema, parse_type, schema_to_ddl, type_to_ddl
from cojoin.errors import ConfigurationError, SchemaError
from cojoin.kafka.records import DECODED, FAULT, HEADERS, KEY, MARK, NEWEST, TIME, VALUE, Record
from cojoin.spark.batch.pickling import pickling_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame

__all__ = ["RecordColumn", "check_columns", "decoded", "header", "key", "timestamp"]

_CORRUPT, _PARSED = "__cojoin_corrupt", "__cojoin_parsed"
_SHOWN = 200
_PLACE = ("topic", "partition", "offset")


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
    """Return a column of the record's own timestamp."""
    return RecordColumn("timestamp", "timestamp")


def check_columns(
    what: str, schema: str | None, columns: Mapping[str, RecordColumn], decode: Callable[[Record], Any] | None
) -> None:
    """Check the columns that a user describes.

    Args:
        what: The input, for messages.
        schema: DDL of the value's columns.
        columns: Further columns, by name.
        decode: The user's own function that decodes records.

    Raises:
        ConfigurationError: An argument is not valid.
        SchemaError: Two columns have the same name.
    """
    if schema is None and (decode is not None or not columns):
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
    named = [] if schema is None else parse_schema(schema, what=f"{what}: schema").names
    seen: set[str] = set()
    for name in [*named, *columns, *_PLACE]:
        if name.lower() in seen:
            msg = (
                f"{what}: there are two columns {name!r}: the value's fields, further columns and Kafka's own, "
                f"topic, partition and offset, need names of their own"
            )
            raise SchemaError(msg)
        seen.add(name.lower())


def decoded(
    records: DataFrame,
    schema: str | None,
    columns: Mapping[str, RecordColumn],
    *,
    fails: bool,
    in_python: bool,
    archived: bool = False,
) -> DataFrame:
    """Return records as rows: the value's columns, the further ones, then ``topic``, ``partition`` and ``offset``.

    Each row's mark, fault and newest timestamp are the last columns.

    Args:
        records: The rows that the reader returns.
        schema: DDL of the value's columns; None where there are none.
        columns: Further columns, by name.
        fails: Whether a record that can't be decoded ends the query.
        in_python: Whether the value is decoded already.
        archived: Whether some rows come decoded from an archive.
    """
    faults = [F.col(FAULT)]
    if schema is not None and not in_python:
        # Not in the user's spelling, because Spark's plans refuse a char or varchar in a parsed schema.
        spelled = f"{schema_to_ddl(parse_schema(schema, what='schema'))}, {_CORRUPT} string"
        # A time without a zone is read as UTC, whatever the session's zone.
        options = {"timeZone": "UTC", "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        records = records.withColumn(_PARSED, F.from_json(F.col(VALUE).cast("string"), spelled, options))
        wrong = F.col(VALUE).isNotNull() & (
            F.col(_PARSED).isNull()
            | F.col(f"{_PARSED}.{_CORRUPT}").isNotNull()
            # Spark's parser would replace bytes that are not UTF-8 by other characters.
            | ~F.is_valid_utf8(F.col(VALUE).cast("string"))
        )
        faults.append(F.when(wrong, _told(F.lit("the value is no JSON of the schema"), F.col(VALUE))))
    for name, column in columns.items():
        wrong = column.raw().isNotNull() & column.typed().isNull()
        faults.append(F.when(wrong, _told(F.lit(f"{column} is no {column.dtype}, for column {name!r}"), column.raw())))
    fault = F.coalesce(*faults)
    if fails:
        place = F.format_string("topic %s partition %d offset %d: ", *(F.col(name) for name in _PLACE))
        fault = F.when(fault.startswith("undecodable"), F.raise_error(F.concat(place, fault))).otherwise(fault)
    names = [] if schema is None else parse_schema(schema, what="schema").names
    structs = [DECODED] if in_python else [DECODED, _PARSED] if archived else [_PARSED]
    return records.select(
        *(F.coalesce(*(F.col(struct).getField(name) for struct in structs)).alias(name) for name in names),
        *(column.typed().alias(name) for name, column in columns.items()),
        *_PLACE,
        MARK,
        fault.alias(FAULT),
        NEWEST,
    )


def _told(what: Column, value: Column) -> Column:
    shown = F.substring(F.make_valid_utf8(value.cast("string")), 1, _SHOWN)
    return F.concat(F.lit("undecodable: "), what, F.lit(": got "), shown)
