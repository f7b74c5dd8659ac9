"""The encoding of rows as Kafka records: the columns of key, value, headers and timestamp, and their forms.

Spark's own ``to_json`` writes JSON, in the JVM. Timestamps are in UTC with microseconds where they have some
(``2026-01-05T09:30:00.000125Z``), ``timestamp_ntz`` the same without the zone, dates ``2026-01-05``, binary as base64,
decimals as numbers, NaN and infinities as the texts ``"NaN"`` and ``"Infinity"``, maps as objects whose keys are texts.
Fields that are null are left out, and those of an object in an object, too; elements of lists stay as ``null``.
``cojoin.kafka.source`` reads all of it back. A column that is written as it is becomes UTF-8 or its bytes; a null value
is a tombstone. A number, boolean, date or decimal as a key is its text, as ``cojoin.kafka.key("long")`` reads it.
Values with a schema of a registry are written on the workers (``serializers``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType

from cojoin.engine.values.rows import back_quoted
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import ConfigurationError, did_you_mean
from cojoin.kafka.formats.record_formats import RegistryFormat
from cojoin.kafka.sink.serializers import RegistryValues, find_schema
from cojoin.session.sealed import for_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import Column, DataFrame

KEY, VALUE, HEADERS, TIMESTAMP = "key", "value", "headers", "timestamp"
"""The columns of encoded rows: two of bytes, a list of bytes in the order of the headers, and epoch milliseconds."""

JSON = "json"
"""The value that holds all columns."""

Columns: TypeAlias = "str | tuple[str, ...]"
"""One column as it is, or several columns as a JSON object."""

_JSON_OPTIONS = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]XXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]",
}
_PLAIN_TYPE, _TEXTS_OR_BYTES, _TIMES = "texts, bytes, numbers, booleans or dates", "texts or bytes", "timestamps"
_BYTES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
_WITH_A_TEXT = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_date, pa.types.is_decimal, pa.types.is_floating)
_TYPES: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    _PLAIN_TYPE: (*_BYTES, *_WITH_A_TEXT),
    _TEXTS_OR_BYTES: _BYTES,
    _TIMES: (lambda dtype: pa.types.is_timestamp(dtype) and dtype.tz is not None,),
}


@dataclass(frozen=True)
class RecordEncoding:
    """The columns of a row that make the parts of a record.

    The value is ``JSON`` for all columns, several as JSON, a column of texts or bytes, or a format of a schema
    registry; that is ``RegistryValues`` once its schema is known. ``headers`` has each header's name, and the column of
    its value. Without a timestamp's column a record has the time at which it is sent.
    """

    key: Columns | None = None
    value: Columns | RegistryFormat | RegistryValues = JSON
    headers: tuple[tuple[str, str], ...] = ()
    timestamp: str | None = None

    def check(self, schema: pa.Schema, topic: str, label: str) -> None:
        """Check that the columns exist, and that each has a type that can be written where it is to go."""
        if isinstance(self.key, str):
            hint = f"key=[{self.key!r}] writes it as JSON"
            _check_type(schema, self.key, f"{label}: key", _PLAIN_TYPE, hint)
        for column in () if self.key is None or isinstance(self.key, str) else self.key:
            _field(schema, column, f"{label}: key")
        if isinstance(self.value, RegistryFormat):
            find_schema(self.value, schema, topic, label)
        elif isinstance(self.value, tuple):
            for column in self.value:
                _field(schema, column, f"{label}: value")
        elif isinstance(self.value, str) and self.value != JSON:
            hint = f"value=[{self.value!r}] writes it as JSON, and value={JSON!r} all columns"
            _check_type(schema, self.value, f"{label}: value", _TEXTS_OR_BYTES, hint)
        for name, column in self.headers:
            _check_type(schema, column, f"{label}: header {name!r}", _PLAIN_TYPE, "give another column")
        if self.timestamp is not None:
            _check_type(schema, self.timestamp, f"{label}: timestamp", _TIMES, "give a column of type timestamp")

    def resolved(self, schema: pa.Schema, topic: str, label: str) -> RecordEncoding:
        """Return the encoding of an output; a schema that its registry does not have is registered."""
        if not isinstance(self.value, RegistryFormat):
            return self
        return replace(self, value=RegistryValues.of(self.value, schema, topic, label))

    def encode(self, frame: DataFrame) -> DataFrame:
        """Return rows as records: ``KEY``, ``VALUE``, and where they are asked for ``HEADERS`` and ``TIMESTAMP``."""
        fields = {field.name.lower(): field for field in frame.schema.fields}

        def named(column: str) -> Column:
            return F.col(back_quoted(fields[column.lower()].name))

        def part(columns: Columns) -> Column:
            if not isinstance(columns, str):
                return F.to_json(F.struct(*map(named, columns)), _JSON_OPTIONS).cast("binary")
            is_binary = fields[columns.lower()].dataType == BinaryType()
            return named(columns) if is_binary else named(columns).cast("string").cast("binary")

        columns = [(F.lit(None).cast("binary") if self.key is None else part(self.key)).alias(KEY)]
        if self.headers:
            columns.append(F.array(*(part(column) for _, column in self.headers)).alias(HEADERS))
        if self.timestamp is not None:
            columns.append(F.unix_millis(named(self.timestamp)).alias(TIMESTAMP))
        if isinstance(self.value, RegistryValues):
            names = self.value.schema.columns.names
            # Renamed by position: mapInArrow fails on names with a dot or a backtick.
            value_columns = [named(column).alias(f"c{at}") for at, column in enumerate(names)]
            if self.value.from_json:
                value_columns = [F.to_json(F.struct(*map(named, names)), _JSON_OPTIONS).alias("c0")]
            ddl = f"{KEY} binary, {VALUE} binary"
            ddl += (f", {HEADERS} array<binary>" if self.headers else "") + (
                f", {TIMESTAMP} long" if self.timestamp else ""
            )
            return frame.select(*columns, *value_columns).mapInArrow(
                for_workers(_by_schema(self.value, len(columns))), ddl
            )
        assert not isinstance(self.value, RegistryFormat), "its schema is found when the output is opened"
        value = part(tuple(frame.columns) if self.value == JSON else self.value)
        return frame.select(columns[0], value.alias(VALUE), *columns[1:])


def _by_schema(values: RegistryValues, others: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that puts the values of rows after their keys; the first columns are those of the record."""

    def encoded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            written = pa.array(values.encode(pa.Table.from_batches([batch]).select(range(others, batch.num_columns))))
            columns = [batch.column(0), written.cast(pa.binary()), *batch.columns[1:others]]
            yield pa.RecordBatch.from_arrays(columns, [KEY, VALUE, *batch.schema.names[1:others]])

    return encoded


def _field(schema: pa.Schema, column: str, label: str) -> pa.Field:
    for field in schema:
        if field.name.lower() == column.lower():
            return field
    msg = f"{label}: the output has no column {column!r}{did_you_mean(column, schema.names)}"
    raise ConfigurationError(msg)


def _check_type(schema: pa.Schema, column: str, label: str, wanted: str, hint: str) -> None:
    field = _field(schema, column, label)
    if not any(is_kind(field.type) for is_kind in _TYPES[wanted]):
        msg = f"{label}: expected a column of {wanted}, got {column!r}, which is {type_to_ddl(field.type)}; {hint}"
        raise ConfigurationError(msg)
