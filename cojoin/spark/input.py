"""``Input``: the declaration of an input, checked against its columns before a query starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from cojoin.engine.inputs import InputSpec, LatePolicy, check_late
from cojoin.engine.key_groups import group_labels
from cojoin.engine.state.segments import HASH
from cojoin.engine.time.durations import Duration, milliseconds
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.values.keys import KEYABLE, is_keyable
from cojoin.engine.values.texts import back_quoted
from cojoin.errors import ConfigurationError, SchemaError, did_you_mean
from cojoin.spark.batch.packing import (
    GROUP_COLUMN,
    MARK_COLUMN,
    MARKER_COLUMNS,
    NEWEST_COLUMN,
    NOW_COLUMN,
    PACKED_DDL,
    Packer,
    key_group,
)
from cojoin.spark.query.failures import explain
from cojoin.spark.sources.sources import Source
from cojoin.storage.session_settings import check_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Input"]


@dataclass(frozen=True)
class Input:
    """One of the two inputs of ``connect``: its rows, and the columns with its key and its event time.

    Attributes:
        source: A DataFrame, streaming or static; or a source such as ``cojoin.sources.delta("/lake/trades")``, which
            ``connect`` opens with the active session.
        key: The key column or columns. The keys of both inputs must have the same types in the same order; their names
            may differ.
        event_time: The event-time column, a ``timestamp``; or a Spark expression that makes one, such as
            ``F.timestamp_millis("ts")``, whose column is named by its alias, else ``event_time``. None is an input
            without event time: its rows are never late and never wait. Only ``process`` with ``order="arrival"``
            accepts it.
        name: The input's name in messages, progress and the result's columns; ``"left"`` or ``"right"`` if not given.
        partition: The columns that identify a row's source partition, such as ``["topic", "partition"]``. Each
            partition has its own watermark. Without these columns the input is one partition. A Kafka source sets
            them itself.
        sequence: The columns that order the rows of one partition at the source, such as ``"offset"``; they break ties
            of event time. A Kafka source sets them itself.
        watermark: The watermark strategy; by default rows are expected in the order of event time.
        max_ahead: How far a row's event time may be after processing time, such as ``"1 day"`` or a ``timedelta``. A
            row further ahead is rejected and does not advance the watermark; nor do timestamps of Kafka records that
            are further ahead. None is no limit. It has no effect on static inputs.
        late: How rows at or below the operator's watermark are treated: ``"reject"`` or ``"apply"``. None is the
            operation's default. As-of and temporal joins reject late left rows and apply late versions; an interval
            join rejects late rows of both inputs; functions apply late rows in arrival order and reject them in
            event-time order.

    Raises:
        ConfigurationError: An attribute is invalid. Whether the columns exist and have the right types is checked by
            ``connect``.

    Example:
        >>> trades = Input(trades_df, key="customer_id", event_time="event_time", name="trades")  # doctest: +SKIP
    """

    source: DataFrame | Source
    key: str | Sequence[str]
    event_time: str | Column | None
    name: str = ""
    partition: str | Sequence[str] = ()
    sequence: str | Sequence[str] = ()
    watermark: WatermarkStrategy = field(default_factory=WatermarkStrategy)
    max_ahead: Duration | None = "1 day"
    late: LatePolicy | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            msg = f"input: name: expected a text, got {self.name!r}"
            raise ConfigurationError(msg)
        if not isinstance(self.watermark, WatermarkStrategy):
            msg = (
                f"{self._label}: watermark: expected a WatermarkStrategy, such as "
                f'WatermarkStrategy.for_bounded_out_of_orderness("5 seconds"), got {self.watermark!r}'
            )
            raise ConfigurationError(msg)
        if self.max_ahead is not None:
            milliseconds(self.max_ahead, f"{self._label}: max_ahead")
        check_late(self.late, self._label)

    @property
    def _label(self) -> str:
        return f"input {self.name!r}" if self.name else "input"


class BoundInput:
    """An input with its source opened and its columns resolved and checked.

    Args:
        declared: The user's declaration.
        default_name: The name of the input if the user gave none.
        tag: 1 (left) or 2 (right).

    Raises:
        ConfigurationError: The source can't be opened, or the declaration is invalid.
        SchemaError: A column does not exist or has the wrong type.
    """

    def __init__(self, declared: Input, default_name: str, tag: Literal[1, 2]) -> None:
        if not isinstance(declared, Input):
            msg = f"{default_name} input: expected a cojoin.Input, got {type(declared).__name__}"
            raise ConfigurationError(msg)
        self.tag = tag
        name = declared.name or default_name
        self._what = f"input {name!r}"
        defaults: Any = declared.source if isinstance(declared.source, Source) else None
        self.source: Source | None = defaults
        self.frame, event_time = self._with_event_time(_open(declared.source, self._what), declared.event_time)
        self._marker_columns = [each for each in MARKER_COLUMNS if self.source and each in self.frame.columns]
        self._fields = self._columns()
        partition = self._names(declared.partition, "partition") or (defaults.partition if defaults else ())
        sequence = self._names(declared.sequence, "sequence") or (defaults.sequence if defaults else ())
        self.spec = InputSpec(
            name=name,
            schema=pa.schema(list(self._fields.values())),
            key=self._key(declared.key),
            event_time=self._event_time(event_time),
            partition=tuple(self._find(column, "partition") for column in partition),
            sequence=tuple(self._find(column, "sequence") for column in sequence),
            watermark=declared.watermark,
            max_ahead_ms=self._max_ahead(declared.max_ahead),
            late=declared.late,
        )
        for column in self.spec.partition:
            if pa.types.is_nested(self._fields[column].type):
                spelled = self.frame.schema[column].dataType.simpleString()
                msg = f"{self._what}: partition column {column!r} has the type {spelled}; name its parts as columns"
                raise SchemaError(msg)
        for role in ("key", "partition", "sequence"):
            self._refuse_collated(getattr(self.spec, role), role)
        self.spec.watermark.generator.check(self.spec.schema, self._what)

    def _with_event_time(self, frame: DataFrame, declared: Any) -> tuple[DataFrame, Any]:
        """Return the DataFrame with the column of an event-time expression added, and that column's name."""
        if not isinstance(declared, Column):
            return frame, declared
        try:
            made = frame.select(declared).columns
        except PySparkException as error:
            msg = f"{self._what}: event time: the expression does not fit its columns: {explain(error)}"
            raise SchemaError(msg) from error
        name = made[0] if made[0].isidentifier() else "event_time"
        if name.lower() in {column.lower() for column in frame.columns}:
            msg = (
                f"{self._what}: event time: the expression's column {name!r} is there already; give it another .alias, "
                f"or name the column itself as a text"
            )
            raise SchemaError(msg)
        return frame.withColumn(name, declared), name

    @property
    def is_streaming(self) -> bool:
        """Whether the DataFrame is streaming."""
        return bool(self.frame.isStreaming)

    def _max_ahead(self, declared: Duration | None) -> int | None:
        if declared is None or not self.is_streaming:
            return None
        return milliseconds(declared, f"{self._what}: max_ahead")

    def _columns(self) -> dict[str, pa.Field]:
        fields: dict[str, pa.Field] = {}
        for column in self.frame.schema.fields:
            if column.name in self._marker_columns:
                continue
            equal = next((name for name in fields if name.lower() == column.name.lower()), None)
            if equal is not None:
                apart = f"two columns {equal!r}" if equal == column.name else f"columns {equal!r} and {column.name!r}"
                why = "" if equal == column.name else ", which differ only in case: to Spark and Delta they are one"
                msg = f"{self._what} has {apart}{why}; rename or drop one"
                raise SchemaError(msg)
            if column.name == HASH:
                msg = f"{self._what}: column {column.name!r}: the state's own tables have one of this name; rename it"
                raise SchemaError(msg)
            try:
                dtype = to_arrow_type(column.dataType, timezone="UTC")
            except (PySparkException, TypeError, ValueError) as error:
                msg = (
                    f"{self._what}: column {column.name!r} has the type {column.dataType.simpleString()}, "
                    f"which has no Arrow form; cast it to string, or drop it"
                )
                raise SchemaError(msg) from error
            fields[column.name] = pa.field(column.name, dtype)
        return fields

    @property
    def collated(self) -> dict[str, str]:
        """The columns with strings, nested or not, of a collation other than UTF8_BINARY, and the collation's name."""
        found = {column.name: _collation(column.dataType) for column in self.frame.schema.fields}
        return {name: collation for name, collation in found.items() if collation is not None}

    def _refuse_collated(self, columns: Sequence[str], role: str) -> None:
        """Raise an error for a collated key, partition or sequence column, since these are compared by their bytes."""
        for name, collation in self.collated.items():
            if name in columns:
                plain = f"F.collate({name!r}, 'UTF8_BINARY')"
                msg = (
                    f"{self._what}: {role} column {name!r} has the collation {collation}, and cojoin compares texts by "
                    f"their bytes; say which are equal: F.lower({plain}), or {plain} to tell them all apart"
                )
                raise SchemaError(msg)

    def _names(self, declared: Any, role: str) -> tuple[Any, ...]:
        if isinstance(declared, str):
            return (declared,)
        if isinstance(declared, (list, tuple)):
            return tuple(declared)
        msg = f"{self._what}: {role}: expected a column's name, or a list of names, got {declared!r}"
        raise SchemaError(msg)

    def _find(self, column: Any, role: str) -> str:
        if not isinstance(column, str):
            msg = f"{self._what}: {role}: expected a column's name, got {column!r}"
            raise SchemaError(msg)
        if column in self._fields:
            return column
        for name in self._fields:
            if name.lower() == column.lower():
                return name
        msg = f"{self._what} has no {role} column {column!r}{did_you_mean(column, self._fields)}"
        raise SchemaError(msg)

    def _key(self, declared: Any) -> tuple[str, ...]:
        key = tuple(self._find(column, "key") for column in self._names(declared, "key"))
        if not key or len(set(key)) < len(key):
            msg = f"{self._what}: key: expected one or more different columns, got {declared!r}"
            raise SchemaError(msg)
        for name in key:
            if not is_keyable(self._fields[name].type):
                spelled = self.frame.schema[name].dataType.simpleString()
                msg = (
                    f"{self._what}: key column {name!r} has the type {spelled}, which can't be a key; "
                    f"valid are {KEYABLE}"
                )
                raise SchemaError(msg)
        return key

    def _event_time(self, declared: Any) -> str | None:
        if declared is None:
            return None
        name = self._find(declared, "event time")
        dtype = self._fields[name].type
        if not pa.types.is_timestamp(dtype) or dtype.tz is None:
            spelled = self.frame.schema[name].dataType.simpleString()
            cure = {
                "timestamp_ntz": "it has no time zone; say which is meant: to_timestamp(col || ' Europe/Berlin')",
                "bigint": "turn epoch milliseconds into one with timestamp_millis(col)",
                "string": "turn it into one with to_timestamp(col)",
            }.get(spelled, "cast it to timestamp")
            msg = f"{self._what}: event time column {name!r}: expected a timestamp, got {spelled}; {cure}"
            raise SchemaError(msg)
        return name

    def packed(self, key_groups: int) -> DataFrame:
        """Return the input's rows and watermarks as ``(key_group, tag, payload)``."""
        keys = [self.frame[back_quoted(name)] for name in self.spec.key]
        group = key_group(keys, key_groups).alias(GROUP_COLUMN)
        # Columns are renamed by position: mapInArrow fails on names with a dot or a backtick.
        columns = [self.frame[back_quoted(name)].alias(f"c{at}") for at, name in enumerate(self.spec.schema.names)]
        columns += [self.frame[name] for name in self._marker_columns]
        frame = self.frame
        if self._marker_columns and self.source is not None and self.spec.partition != self.source.partition:
            # The source's marks are per source partition; if the user names other partitions, only the rows count.
            frame = frame.where(frame[MARK_COLUMN].isNull() & frame[NEWEST_COLUMN].isNull())
        if self.spec.max_ahead_ms is not None:
            # In a stream Spark replaces it by the micro-batch's logged time, so a repeated batch gets the same value.
            columns.append(F.unix_millis(F.current_timestamp()).alias(NOW_COLUMN))
        apart = None if self.source is None else self.source.max_apart_ms
        packer = Packer(self.spec, self.tag, group_labels(key_groups), apart)

        def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return packer(batches)

        return frame.select(*columns, group).mapInArrow(pack, PACKED_DDL)


def _open(source: Any, what: str) -> DataFrame:
    if isinstance(source, Source):
        try:
            return source.open()
        except (PySparkException, Py4JJavaError) as error:
            reason = explain(error)
            if "DELTA_SCHEMA_NOT_SET" in reason:
                reason = "there is no Delta table, or an empty one without columns"
            msg = f"{what}: {source.format} {source.location or ''} can't be read: {reason}"
            raise ConfigurationError(msg) from error
    if not isinstance(source, DataFrame):
        kind = f"{type(source).__module__.partition('.')[0]}.{type(source).__name__}".removeprefix("builtins.")
        hint = ""
        if isinstance(source, (str, PathLike)):
            hint = f"; did you mean cojoin.sources.delta({source!r})?"
        elif kind in ("pandas.DataFrame", "pyarrow.Table"):
            hint = "; make it one of Spark's with spark.createDataFrame(...)"
        elif kind == "polars.DataFrame":
            hint = "; make it one of Spark's with spark.createDataFrame(frame.to_arrow())"
        msg = f"{what}: expected a DataFrame of Spark's or one of cojoin.sources, got {kind}{hint}"
        raise ConfigurationError(msg)
    check_session(source.sparkSession, what)
    return source


def _collation(dtype: DataType) -> str | None:
    """Return the first collation in a type other than UTF8_BINARY; None if there is none."""
    if isinstance(dtype, StringType):
        return None if dtype.isUTF8BinaryCollation() else dtype.collation
    parts: list[DataType] = []
    if isinstance(dtype, StructType):
        parts = [each.dataType for each in dtype.fields]
    elif isinstance(dtype, ArrayType):
        parts = [dtype.elementType]
    elif isinstance(dtype, MapType):
        parts = [dtype.keyType, dtype.valueType]
    return next((found for found in map(_collation, parts) if found is not None), None)
