"""Converts Kafka records to rows in Spark: columns of the value, of the key, of headers and of the timestamp.

Values in Avro or Protobuf come decoded (``formats``), and Debezium's envelopes become rows here. Spark's own
``from_json`` reads JSON, so timestamps and decimals have the same forms as everywhere in Spark. A value that is not
JSON of the schema, or a key or header that does not fit its type, makes the record undecodable: its row goes to
``rejected``, or ends the query if the user chooses that. A missing field is null.

The formats of values and keys are resolved at first use, which may ask a schema registry. The columns then stay the
same for this source and every source derived from it, so that the start and the end of a batch have the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.row_changes import DELETED
from cojoin.engine.time.control_rows import REPEATED
from cojoin.engine.values.types import parse_schema, parse_type, schema_to_ddl, type_to_ddl
from cojoin.errors import ConfigurationError, SchemaError
from cojoin.kafka.formats.debezium import (
    CHANGED_AT,
    ChangeReading,
    DebeziumJson,
    Placeholder,
    change_row,
    change_sides,
    payload_of,
)
from cojoin.kafka.formats.record_formats import resolve
from cojoin.kafka.records import (
    DECODED,
    DECODED_KEY,
    FAULT,
    HEADERS,
    KEY,
    MARK,
    NEWEST,
    TIME,
    TOMBSTONE,
    VALUE,
    Record,
    RecordFormat,
)
from cojoin.session.sealed import pickling_error
from cojoin.spark.batch.packing import READY_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from cojoin.kafka.archive_index import Layout
    from cojoin.kafka.formats.record_formats import ResolvedFormat, ValueFormat
    from cojoin.kafka.packed_records import Part
    from cojoin.kafka.topics import Topics


_CORRUPT, _PARSED, _PARSED_KEY = "__cojoin_corrupt", "__cojoin_parsed", "__cojoin_parsed_key"
_CHANGE, _ARRAY, _END = "__cojoin_change", "__cojoin_array", "__cojoin_end"
_SHOWN = 200
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = rf"{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW}"
# Possessive, since Java's matcher would otherwise recurse once for each blank.
_BLANKS = r"(?:\s|\\(?:u[0-9a-fA-F]{4}|[a-z]))*+"
_LONG, _TIME_OF_DAY, _DAYS = r"-?\d{12}", r'(?:T\d|\d{1,2}:)[^"]*"(?!\s*:)', r'[+-]?\d{1,3}\s*"(?!\s*:)'
_INSTANT = pa.timestamp("us", "UTC")
_OddTimes: TypeAlias = "Sequence[tuple[Callable[[pa.DataType], bool], str, str]]"
_ODD_TIMES: _OddTimes = (
    (_INSTANT.equals, rf"[:\[,]\s*+{_LONG}", rf'{_LONG}\d*+"(?!\s*:)'),
    (_INSTANT.equals, rf'"\s*+(?:{_TIME_OF_DAY}|\\)', _TIME_OF_DAY),
    (pa.types.is_date, rf'"\s*+(?:{_DAYS}|\\)', _DAYS),
)
"""Values that Spark reads as a wrong time. It reads a number as seconds, even if it is milliseconds. It reads a time of
day as that time today, and a text of digits as days since 1970. Each entry has the column types that it concerns, the
pattern of a JSON text that may have such a value, and the pattern of the value."""

_PLACE = ("topic", "partition", "offset")
"""The columns that identify a record in Kafka."""


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
        parsed = parse_type(self.dtype, label=str(self))
        if pa.types.is_nested(parsed):
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
        named = F.filter(HEADERS, lambda one: one["key"] == F.lit(self.name))
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
    label: str,
    schema: str | None,
    columns: Mapping[str, RecordColumn],
    decode: Callable[[Record], Any] | None,
    *,
    has_format: bool = False,
) -> None:
    """Check a source's schema, columns and ``decode``; with a format (``has_format``) the schema may be None."""
    if schema is None and (decode is not None or not (columns or has_format)):
        msg = f"{label}: expected schema=, the columns of a value, such as 'customer_id long, event_time timestamp'"
        raise ConfigurationError(msg)
    if decode is not None:
        if not callable(decode):
            msg = f"{label}: decode: expected a function of a Record, got {decode!r}"
            raise ConfigurationError(msg)
        reason = pickling_error(decode)
        if reason is not None:
            msg = f"{label}: decode can't be sent to the workers: {reason}"
            raise ConfigurationError(msg)
    for name, column in columns.items():
        if not isinstance(column, RecordColumn):
            msg = f"{label}: column {name!r}: expected cojoin.kafka.key(), header() or timestamp(), got {column!r}"
            raise ConfigurationError(msg)
    _check_names(label, [] if schema is None else parse_schema(schema, label=f"{label}: schema").names, columns)


def _check_names(label: str, *parts: Iterable[str]) -> None:
    """Check that the columns of all parts, and those of the record's place, have different names."""
    seen: set[str] = set()
    for name in [*(name for part in parts for name in part), *_PLACE]:
        if name.lower() in seen:
            msg = (
                f"{label}: two columns have the name {name!r}; the fields of value and key, the further columns and "
                f"Kafka's own (topic, partition and offset) need different names"
            )
            raise SchemaError(msg)
        seen.add(name.lower())


def _with_parsed(records: DataFrame, source: str, parsed: str, dtype: pa.StructType) -> DataFrame:
    """Return records with a column of JSON as a struct; it is null if the JSON is not of the type.

    Spark's parser reads the first JSON value of a text and ignores the rest, so the rest of a damaged value would be
    lost silently. So the text is parsed within an array: further text is then invalid, or a second element, or the
    field ``_END`` is missing.
    """
    # Not in the user's spelling, because Spark's plans refuse a char or varchar in a parsed schema.
    spelled = f"{_ARRAY} {type_to_ddl(pa.list_(dtype))}, {_END} boolean, {_CORRUPT} string"
    # A time without a zone is read as UTC, whatever the session's zone.
    options = {"timeZone": "UTC", "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    text = F.concat(F.lit(f'{{"{_ARRAY}":['), F.col(source).cast("string"), F.lit(f'],"{_END}":true}}'))
    records = records.withColumn(_whole(parsed), F.from_json(text, spelled, options))
    elements, end = (F.col(_whole(parsed)).getField(each) for each in (_ARRAY, _END))
    return records.withColumn(parsed, F.when((F.size(elements) == 1) & end, F.get(elements, F.lit(0))))


def _whole(parsed: str) -> str:
    return f"{parsed}_whole"


def _misparsed(source: str, parsed: str, part: str, dtype: pa.StructType, odd: _OddTimes = _ODD_TIMES) -> Column:
    text = F.col(source).cast("string")
    wrong = F.col(source).isNotNull() & (
        F.col(parsed).isNull()
        | F.col(_whole(parsed)).getField(_CORRUPT).isNotNull()
        # Spark's parser would replace bytes that are not UTF-8, and halves of surrogate pairs, by other characters.
        | ~F.is_valid_utf8(text)
        | _has_half(F.make_valid_utf8(text))
    )
    for is_leaf, begin, pattern in odd:
        leaves = _leaves(dtype, is_leaf)
        if leaves is not None:  # few texts have such a part, and only those are parsed again
            again = F.from_json(text, schema_to_ddl(pa.schema(list(leaves))))
            wrong |= text.rlike(begin) & F.to_json(again).rlike(f'[:\\[,]"{_BLANKS}{pattern}')
    return F.when(wrong, _undecodable(F.lit(f"the {part} is not JSON of the schema"), F.col(source)))


def _leaves(dtype: pa.DataType, is_leaf: Callable[[pa.DataType], bool]) -> pa.DataType | None:
    """Return a type with only the leaves for which ``is_leaf`` is true, as texts; None if it has no such leaf."""
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


def _undecodable(label: Column, value: Column) -> Column:
    shown = F.substring(F.make_valid_utf8(value.cast("string")), 1, _SHOWN)
    return F.concat(F.lit("undecodable: "), label, F.lit(": got "), shown)


@dataclass(frozen=True)
class RecordDescription:
    """The formats and columns of a source's records.

    ``declared`` is DDL of the value's columns, where the user gave them without a format. ``formats`` has the formats
    of ``"value"`` and ``"key"``; None where there is none. ``resolved`` has the formats that were resolved before, and
    receives further ones.
    """

    label: str
    topics: Topics
    declared: str | None
    columns: Mapping[str, RecordColumn] = field(default_factory=dict)
    decode: Callable[[Record], Any] | None = None
    formats: Mapping[str, ValueFormat | None] = field(default_factory=lambda: {"value": None, "key": None})
    resolved: dict[str, ResolvedFormat] = field(default_factory=dict)

    def part(self, part: Literal["value", "key"]) -> ResolvedFormat | None:
        """Return the format of values or keys with its columns (``resolve``); None where there is none."""
        chosen = self.formats[part]
        if chosen is None:
            return None
        if part not in self.resolved:
            names = self.topics.names if self.topics.pattern is None else ()
            resolved = resolve(chosen, f"{names[0]}-{part}" if len(names) == 1 else None, part, self.label)
            others = [each.row_names for name, each in self.resolved.items() if name != part]
            if self.declared is not None:
                others.append(parse_schema(self.declared).names)
            _check_names(self.label, *others, resolved.row_names, self.columns)
            self.resolved[part] = resolved
        return self.resolved[part]

    @property
    def schema(self) -> str | None:
        """DDL of the value's columns; None where there are none."""
        value = self.part("value")
        return self.declared if value is None else value.ddl

    @property
    def in_python(self) -> bool:
        """Whether the tasks decode values; otherwise Spark parses them."""
        value = self.part("value")
        return self.decode is not None if value is None else value.in_python

    @property
    def archived_schema(self) -> str | None:
        """DDL of the columns that an archive may have instead of values; None for Debezium, which has no rows yet."""
        value = self.part("value")
        return None if value is not None and value.row is not None else self.schema

    @property
    def archived_parts(self) -> tuple[str, ...]:
        """The parts of a record, besides its value, that an archive must have."""
        own = {column.source for column in self.columns.values()}
        return tuple(sorted(own | ({KEY} if self.formats["key"] is not None else set())))

    def record_format(self, *, keeps_tombstones: bool, archive: Layout | None) -> RecordFormat:
        """Return which parts of a record the tasks return."""
        value, key, schema = self.part("value"), self.part("key"), self.schema
        parts = {column.source for column in self.columns.values()}
        if key is not None and key.decoder is None:
            parts |= {KEY}
        dtype: pa.StructType | None = None
        if value is not None and value.in_python:
            dtype = value.columns
        elif schema is not None and self.in_python:
            dtype = pa.struct(list(parse_schema(schema)))
        elif schema is not None and archive is not None and archive.fields is not None:
            dtype = pa.struct([each.with_nullable(True) for each in parse_schema(schema)])
        return RecordFormat(
            (*([] if self.in_python else [VALUE]), *sorted(parts)),
            self.decode,
            dtype,
            keeps_tombstones,
            archive,
            None if value is None else value.decoder,
            None if key is None else key.decoder,
        )

    @property
    def json(self) -> dict[str, pa.Schema]:
        """The schema of each record column whose JSON Spark parses, by that column's name."""
        key, schema = self.part("key"), self.schema
        schemas = {} if schema is None or self.in_python else {VALUE: parse_schema(schema)}
        if key is not None and not key.in_python:
            schemas[KEY if key.decoder is None else DECODED_KEY] = pa.schema(list(key.columns))
        return schemas

    def parts(self, names: Iterable[str]) -> tuple[Part, ...] | None:
        """Return the part of a record from which each column of a row comes; None if a column comes from no part."""
        key, schema = self.part("key"), self.schema
        known: dict[str, Part] = dict.fromkeys(_PLACE, "place")
        known |= dict.fromkeys([] if schema is None else parse_schema(schema).names, "value")
        known |= dict.fromkeys([] if key is None else key.row_names, "key")
        known |= dict.fromkeys(self.columns, "column")
        sources = [known.get(name) for name in names]
        return None if None in sources else tuple(part for part in sources if part is not None)

    def rows(
        self, records: DataFrame, *, fails_for: str | None, archive: Layout | None, changes: ChangeReading | None = None
    ) -> DataFrame:
        """Return the tasks' records as rows: the value's columns, the key's, the further ones, then the record's place.

        A record is one row, but a change event that moves a row to another key is two. Then follow the row's mark,
        fault and newest timestamp, and at the end the columns of packed rows, if ``records`` has them.

        A record that can't be decoded ends the query if ``fails_for`` names the input. ``archive`` is the layout of an
        archive, which may have decoded values; ``changes`` is the reading of change events.
        """
        value, key, schema, columns, in_python = (
            self.part("value"),
            self.part("key"),
            self.schema,
            self.columns,
            self.in_python,
        )
        archived = archive is not None and archive.fields is not None
        faults = [F.col(FAULT)]
        names = [] if schema is None else parse_schema(schema, label="schema").names
        structs = [DECODED] if in_python else [DECODED, _PARSED] if archived else [_PARSED]
        if schema is not None and not in_python:
            dtype = pa.struct(list(parse_schema(schema, label="schema")))
            if value is not None and value.row is not None:
                dtype = payload_of(value.columns)
            records = _with_parsed(records, VALUE, _PARSED, dtype)
            decoder = None if value is None else value.decoder
            title, odd = "value", _ODD_TIMES
            if isinstance(decoder, DebeziumJson):  # it leaves no numbers in columns of times
                title, odd = f"value ({decoder.hint})", _ODD_TIMES[1:]
            faults.append(_misparsed(VALUE, _PARSED, title, dtype, odd))
        change = None
        if value is not None and value.row is not None:
            placeholder = value.placeholder or Placeholder()
            records = records.withColumns(change_sides(F.col(structs[0]), may_be_wrapped=not in_python))
            reading, event = changes or ChangeReading(), F.col(structs[0])
            change = change_row(event, value.columns, value.row, reading, placeholder, may_be_wrapped=not in_python)
            event = F.col(VALUE).cast("string") if not in_python else F.to_json(F.struct(*map(F.col, _PLACE)))
            faults.append(F.when(change.problem.isNotNull(), _undecodable(change.problem, event)))
            faults.append(F.when(change.missing.isNotNull(), F.concat(F.lit("unavailable_value: "), change.missing)))
            faults.append(F.when(change.moved_back.isNotNull(), F.concat(F.lit("moved_back: "), change.moved_back)))
        keyed: list[Column] = []
        if key is not None:
            struct = DECODED_KEY
            if not key.in_python:
                struct, source = _PARSED_KEY, DECODED_KEY if key.decoder is not None else KEY
                records = _with_parsed(records, source, _PARSED_KEY, key.columns)
                faults.append(_misparsed(source, _PARSED_KEY, "key", key.columns))
            keyed = [F.col(struct).getField(field.name).alias(field.name) for field in key.columns]
        for name, column in columns.items():
            wrong = column.raw().isNotNull() & column.typed().isNull()
            faults.append(
                F.when(
                    wrong,
                    _undecodable(F.lit(f"{column} is not of type {column.dtype}, for column {name!r}"), column.raw()),
                )
            )
        fault = F.coalesce(*faults)
        if fails_for is not None:
            at = (F.col(name) for name in _PLACE)
            place = F.format_string("%s: topic %s partition %d offset %d: ", F.lit(fails_for), *at)
            fault = F.when(fault.startswith("undecodable"), F.raise_error(F.concat(place, fault))).otherwise(fault)
        if change is None:
            own = [F.coalesce(*(F.col(struct).getField(name) for struct in structs)).alias(name) for name in names]
        else:
            records = records.withColumn(_CHANGE, F.explode(change.rows(is_good=fault.isNull())))
            own = [F.col(_CHANGE).getField("row").getField(name).alias(name) for name in names]
            own += [F.col(_CHANGE).getField("deleted").alias(DELETED), change.changed_at.alias(CHANGED_AT)]
            # Debezium's tombstone only repeats the delete before it, for compaction.
            fault = F.when(fault == F.lit(TOMBSTONE), F.lit(REPEATED)).otherwise(fault)
            fault = F.coalesce(fault, F.col(_CHANGE).getField("note"))
        return records.select(
            *own,
            *keyed,
            *(column.typed().alias(name) for name, column in columns.items()),
            *_PLACE,
            MARK,
            fault.alias(FAULT),
            NEWEST,
            *(each for each in READY_COLUMNS if each in records.columns),
        )
