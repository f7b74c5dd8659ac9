"""``read_rejected``: a query's rejected rows in the columns of their input, each with an id that stays the same.

The table of rejected rows holds each row as JSON, since the inputs' columns differ. The JSON is converted back by the
columns' types. A row's id is a digest of its values in the table, with a number for equal rows of a batch. So it
depends neither on the files nor on the time of reading.

It costs a read of the table, a shuffle of the input's rows by their digests, and Python for each row.
"""

from __future__ import annotations

import json
import re
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.checkpoint import open_files
from cojoin.checkpoints.identity import read_query
from cojoin.checkpoints.inspect.query_state import as_snapshot, stored_inputs
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.output_tables import read_rows
from cojoin.engine.input_spec import STAMPED_SCHEMA
from cojoin.engine.operator import REJECTED
from cojoin.engine.values.encoding import encode_entries
from cojoin.engine.values.rows import free_name, hashable
from cojoin.errors import CheckpointError, ConfigurationError, did_you_mean
from cojoin.session.arrow_types import spark_schema
from cojoin.session.sealed import for_workers
from cojoin.session.sessions import empty_frame, finds_session
from cojoin.session.spark_errors import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.checkpoint import Snapshot
    from cojoin.engine.input_spec import InputSpec
    from cojoin.storage.locations import Location

_Convert: TypeAlias = "Callable[[Any], Any]"

_TIME = pa.timestamp("us", "UTC")
_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_FAULTS = frozenset({"undecodable", "unavailable_value", "tombstone", "gone"})
"""The reasons of records that gave no row: their JSON has the columns of the source's order, and ``error``."""

_SPAN = re.compile(r"(?:(-?\d+) days?, )?(\d+):(\d\d):(\d\d)(?:\.(\d{6}))?")
"""The form of a duration in the JSON of a row."""

_ABOUT = pa.schema(
    [
        pa.field("row_id", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("batch_id", pa.int64()),
        pa.field("processing_time", _TIME),
        pa.field("watermark", _TIME),
    ]
)
"""The columns with the row's id and the reason of its rejection, before those of the input."""


@finds_session
def read_rejected(spark: SparkSession, checkpoint: Location | Snapshot, input: str) -> DataFrame:  # noqa: A002 - its name in every method
    """Read the rejected rows of an input, in the input's columns.

    Each row has a ``row_id``, which is the same whenever it is read. Keep the ids
    of the rows that you processed again; an anti-join with them returns the other rows.

    Args:
        spark: The session; if it is left out, the active one.
        checkpoint: The query's checkpoint directory, or a ``Snapshot`` without a moment.
        input: The name of the input, such as ``"trades"``.

    Returns:
        ``row_id``, ``reason``, ``batch_id``, ``processing_time`` and ``watermark`` (before the batch), then
        the columns of the input, then ``row``, the whole row as JSON. If the input has a column of one of these names,
        that name gets an underscore in front. Batch id and processing time are null in rows from an earlier version of
        cojoin; the processing time is also null in rows from ``sinks.parquet``. For records that gave no row
        (``undecodable``, ``tombstone``, ``gone``), columns that could not be read are null, and ``row`` has the reason
        as ``error``, with an underscore in front if the input has such a column.

    Raises:
        ConfigurationError: The query has no such input, the checkpoint has ``at``, or the rejected rows go to a
            callable or a topic.
        CheckpointError: The directory is not a checkpoint, or the rejected rows can't be read.

    Example:
        ``read_rejected(spark, "/lake/_cojoin/enriched", "trades").where("reason = 'null_key'").show()``
    """
    checkpoint = as_snapshot(checkpoint, None)
    if checkpoint.at is not None:
        msg = f"read_rejected: all rejected rows are read; expected a checkpoint without at=, got at={checkpoint.at!r}"
        raise ConfigurationError(msg)
    files = open_files(spark, checkpoint.path)
    inputs = stored_inputs(read_query(files)["query"])
    spec = next((each for each in inputs if each.name == input), None)
    if spec is None:
        names = [each.name for each in inputs]
        msg = f"input: the query has no input {input!r}{did_you_mean(str(input), names)}; it has {' and '.join(names)}"
        raise ConfigurationError(msg)
    last = Manifests(files).last()
    columns = RejectedColumns.of(spec)
    location = {} if last is None else last.outputs.get(REJECTED, {})
    if location.get("batch_id") is None:
        return empty_frame(spark, columns.schema)
    rejected = _opened(spark, location).where(F.col("input") == F.lit(spec.name))
    return _with_ids(rejected).mapInArrow(for_workers(columns), spark_schema(columns.schema))


def _opened(spark: SparkSession, output: Mapping[str, Any]) -> DataFrame:
    """Return the rejected rows with the columns of ``STAMPED_SCHEMA``; columns that an older table lacks are null.

    Raises ``ConfigurationError`` where they are not in a table or a folder, ``CheckpointError`` where they can't be
    read.
    """
    kind = next((each for each in ("delta", "parquet") if each in output), None)
    if kind is None:
        name = " ".join(f"{each} {where}" for each, where in output.items() if each not in ("batch_id", "version"))
        msg = f"read_rejected: the rejected rows go to {name}, not to a table or folder; read them from that output"
        raise ConfigurationError(msg)
    location = str(output[kind])
    try:
        frame = read_rows(spark, kind, location)
        types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    except PySparkException as error:
        msg = f"read_rejected: the rejected rows in {kind} {location} can't be read: {first_line(error)}"
        raise CheckpointError(msg) from error
    columns = []
    for field in spark_schema(STAMPED_SCHEMA).fields:
        # Spark reads batch_id from a folder's name as an int. A user's own column of the same name may have any type.
        fits = types.get(field.name) in (field.dataType.simpleString(), "int")
        columns.append((F.col(field.name) if fits else F.lit(None)).cast(field.dataType).alias(field.name))
    return frame.select(*columns)


def _with_ids(rejected: DataFrame) -> DataFrame:
    """Return rejected rows with their ids; equal rows may swap theirs."""
    numbers = [F.coalesce(F.col(name).cast("string"), F.lit("")) for name in ("batch_id", "watermark")]
    numbers.append(F.coalesce(F.unix_micros("event_time").cast("string"), F.lit("")))
    texts = [F.col("reason"), F.length("input").cast("string"), F.col("input"), F.coalesce("row", F.lit(""))]
    digest = F.substring(F.sha2(F.concat_ws("/", *numbers, *texts), 256), 1, 32)
    number = F.row_number().over(Window.partitionBy("digest").orderBy("digest")).cast("string")
    return rejected.withColumn("digest", digest).select(
        F.concat_ws("-", "digest", number).alias("row_id"),
        "reason",
        "batch_id",
        "processing_time",
        F.timestamp_millis("watermark").alias("watermark"),
        "event_time",
        "row",
    )


class RejectedColumns:
    """The columns of an input's rejected rows, and their conversion from JSON.

    ``own`` are the columns of the input; ``event_time`` is None where its rows have none.
    """

    def __init__(self, schema: pa.Schema, own: pa.Schema, event_time: str | None) -> None:
        self.schema, self._own, self._event_time = schema, own, event_time
        self._error = free_name("error", own.names)
        self._readers = [_reader(field.type) for field in own]

    @classmethod
    def of(cls, spec: InputSpec) -> RejectedColumns:
        """Return the columns of an input's rejected rows."""
        own = pa.schema([field.with_nullable(True) for field in spec.source_schema])
        about = [field.with_name(free_name(field.name, own.names)) for field in _ABOUT]
        event_time = spec.event_time if spec.event_time in own.names else None
        return cls(pa.schema([*about, *own, pa.field(free_name("row", own.names), pa.string())]), own, event_time)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rejected rows, with their ids, in the columns of the input."""
        for batch in batches:
            texts = batch.column("row")
            rows = [json.loads(text) for text in texts.to_pylist()]
            for row, reason in zip(rows, batch.column("reason").to_pylist(), strict=True):
                # Up to 0.5.0, the reason was "error" even if the input has a column of that name.
                if reason in _FAULTS and self._error not in row:
                    row.pop("error", None)
            columns = []
            for field, read in zip(self._own, self._readers, strict=True):
                if field.name == self._event_time:
                    # The table has it in its own column, exact at any distance.
                    columns.append(batch.column("event_time").cast(field.type))
                else:
                    columns.append(encode_entries([read(row.get(field.name)) for row in rows], field.type))
            about = [batch.column(field.name).cast(field.type) for field in _ABOUT]
            yield pa.RecordBatch.from_arrays([*about, *columns, texts], schema=self.schema)


def _reader(dtype: pa.DataType) -> _Convert:
    """Return a function that reads a value of a type from the JSON of a rejected row.

    A value that can't be read as the type becomes null, such as a moment beyond the year 9999.
    """
    read = _plain_reader(dtype)

    def checked(value: Any) -> Any:
        try:
            return None if value is None else read(value)
        except (ValueError, TypeError, ArithmeticError, AttributeError, KeyError):
            return None

    return checked


def _plain_reader(dtype: pa.DataType) -> _Convert:
    types = pa.types
    if types.is_struct(dtype):
        parts = [(field.name, _reader(field.type)) for field in dtype]
        return lambda item_value: tuple(read(item_value.get(name)) for name, read in parts)
    if types.is_map(dtype):
        key, item = _key_reader(dtype.key_type), _reader(dtype.item_type)
        return lambda item_value: {hashable(key(name)): item(value) for name, value in item_value.items()}
    if types.is_list(dtype) or types.is_large_list(dtype):
        element = _reader(dtype.value_type)
        return lambda item_value: [element(each) for each in item_value]
    if types.is_binary(dtype):
        return bytes.fromhex
    if types.is_timestamp(dtype):
        return lambda text: _moment(text, zoned=dtype.tz is not None)
    plain: tuple[tuple[Any, _Convert], ...] = (
        (types.is_boolean, bool),
        (types.is_integer, int),
        (types.is_floating, lambda value: _FLOATS[value] if isinstance(value, str) else float(value)),
        (types.is_decimal, Decimal),
        (types.is_date, date.fromisoformat),
        (types.is_time, time.fromisoformat),
        (types.is_duration, _span),
    )
    return next((read for is_kind, read in plain if is_kind(dtype)), str)


def _key_reader(dtype: pa.DataType) -> _Convert:
    """Return a function that reads a map's key from JSON: a text is itself, another value is JSON in a text."""
    read = _reader(dtype)
    is_json = any(
        is_kind(dtype)
        for is_kind in (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_nested)
    )
    return lambda text: read(json.loads(text) if is_json and text not in _FLOATS else text)


def _moment(text: str, *, zoned: bool) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if zoned else moment.replace(tzinfo=None)


def _span(text: str) -> timedelta:
    matched = _SPAN.fullmatch(text)
    if matched is None:
        raise ValueError(text)
    days, hours, minutes, seconds, micros = (int(each or 0) for each in matched.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, microseconds=micros)
