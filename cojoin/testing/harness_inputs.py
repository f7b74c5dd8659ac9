"""The inputs of a harness: their declaration, their rows as the map side would send them, and checks of arguments.

If the declared columns lack the event-time column, it is added and filled from the elements' timestamps. Input numbers,
times, keys and partitions are checked before anything runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import pyarrow as pa

from cojoin.embedded.frames import specify
from cojoin.engine.input import Advice, Input, Kind, check_names, check_pair
from cojoin.engine.input_spec import LatePolicy, NullKeyPolicy, reject_reasons, watermark_marks
from cojoin.engine.local import local_run
from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.time.time_axis import ClockChange, TimeUnit, is_moment
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.arguments import milliseconds
from cojoin.engine.values.encoding import encode_input
from cojoin.engine.values.keys import checked_key
from cojoin.engine.values.rows import Row, decode_column
from cojoin.engine.values.types import as_schema
from cojoin.errors import ConfigurationError, FunctionError, SchemaError, did_you_mean
from cojoin.testing.events import NOT_GIVEN, HarnessError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.time.operator_watermark import InputWatermark
    from cojoin.engine.values.arguments import Duration
    from cojoin.testing.events import Element


_TIME = pa.timestamp("us", "UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_NAMES = ("left", "right")


@dataclass(frozen=True)
class HarnessInput:
    """One of the two inputs of a harness: like ``cojoin.Input``, with columns in place of a source.

    Attributes:
        columns: The columns of the input, as DDL, a ``StructType`` or an Arrow schema.
        key: The key column or columns; ``()`` for a join by time alone.
        event_time: The event-time column; it is added if ``columns`` lacks it. None is an input without event time.
        name: The input's name in messages and in the result's columns; ``"left"`` or ``"right"`` if not given.
        partition: The columns that identify a row's source partition. A partition may also be named per element.
        sequence: The columns that order the rows of one partition at the source.
        watermark: The watermark strategy, applied at the end of each call. By default the watermark does not follow
            the rows: the test advances it with ``process_watermark``.
        max_ahead: The most by which a row's event time may be ahead of processing time, such as ``"1 day"``; None is
            no limit.
        late: The treatment of late rows, ``"reject"`` or ``"apply"``; None is the default of the operation.
        null_key: The treatment of rows with a null in their key, as in ``cojoin.Input``.
        time_zone: As in ``cojoin.Input``; rows then have their time among their columns, as it comes.
        time_unit: As ``time_zone``.
        clock_change: As in ``cojoin.Input``.
        known_at: As in ``cojoin.Input``; one of the columns.
        delay: As in ``cojoin.Input``.

    Raises:
        ConfigurationError: A column does not exist or has the wrong type; raised when the harness is made.

    >>> HarnessInput("customer_id string, amount double", key="customer_id").event_time
    'event_time'
    """

    columns: Any
    key: str | Sequence[str]
    event_time: str | None = "event_time"
    name: str = ""
    partition: str | Sequence[str] = ()
    sequence: str | Sequence[str] = ()
    watermark: WatermarkStrategy = field(default_factory=WatermarkStrategy.no_watermarks)
    max_ahead: Duration | None = None
    late: LatePolicy | None = None
    null_key: NullKeyPolicy = "reject"
    time_zone: str | None = None
    time_unit: TimeUnit | None = None
    clock_change: ClockChange = "before"
    known_at: str | None = None
    delay: Duration | None = None


class _Declared(Advice):
    """Advice for columns that are declared and not computed."""

    def time(self, column: str, kind: Kind, role: str) -> str | None:
        """Return no code."""
        del column, kind, role
        return None

    def cast(self, column: str, ddl: str) -> str:
        """Return how a column is declared with another type."""
        return f"declare {column!r} as {ddl}"


def bind_inputs(*declared: HarnessInput) -> tuple[BoundInput, BoundInput]:
    """Return both inputs of a harness, resolved, and checked as those of a query are."""
    inputs = [_as_input(each, number) for number, each in enumerate(declared, start=1)]
    left, right = (specify(each, each.name, each.source, _Declared()) for each in inputs)
    check_pair(left, right, (_Declared(), _Declared()))
    limits = (None if each.max_ahead is None else milliseconds(each.max_ahead, "max_ahead") for each in inputs)
    left, right = (replace(spec, max_ahead_ms=limit) for spec, limit in zip((left, right), limits, strict=True))
    return BoundInput(left, 1), BoundInput(right, 2)


def _as_input(declared: HarnessInput, number: int) -> Input:
    """Return the declaration of an input without rows, with the event-time column if the columns lack it."""
    if not isinstance(declared, HarnessInput):
        msg = f"input{number}: expected a HarnessInput, got {declared!r}"
        raise SchemaError(msg)
    settings = {each.name: getattr(declared, each.name) for each in fields(declared) if each.name != "columns"}
    settings["name"] = declared.name or _NAMES[number - 1]
    label = f"input {settings['name']!r}"
    columns = as_schema(declared.columns, f"{label}: columns")
    schema = pa.schema([each.with_type(_TIME) if is_moment(each.type) else each for each in columns])
    is_added = isinstance(declared.event_time, str) and declared.time_zone is None and declared.time_unit is None
    if is_added and declared.event_time not in schema.names:
        schema = schema.append(pa.field(declared.event_time, _TIME))
    check_names(schema.names, label)
    return Input(schema.empty_table(), **settings)


class BoundInput:
    """An input of a harness, 1 (left) or 2 (right)."""

    def __init__(self, spec: InputSpec, number: Literal[1, 2]) -> None:
        self.spec, self.number = spec, number
        self.label = f"input {spec.name!r}"

    def table(self, elements: Sequence[Element]) -> pa.Table:
        """Return elements as rows of the input; a timestamp must not be missing, superfluous or invalid."""
        spec = self.spec
        parted = [self._parted(element) for element in elements]
        is_added = spec.event_time is not None and spec.axis is None
        position = spec.schema.names.index(str(spec.event_time)) if is_added else None
        others = spec.schema if position is None else spec.schema.remove(position)
        table = encode_input([row for row, _ in parted], others, self.label)
        if position is None:
            return table
        micros = [self._micros(time) for _, time in parted]
        return table.add_column(position, spec.schema.field(position), pa.array(micros, pa.int64()).cast(_TIME))

    def _parted(self, element: Element) -> tuple[Any, Any]:
        """Split an element into its values without the event time, and its event time or None."""
        value, names = element.value, self.spec.schema.names
        if isinstance(value, Row):
            value = value.as_dict()
        if self.spec.axis is not None:
            if element.timestamp is not NOT_GIVEN:
                msg = (
                    f"{self.label}: a timestamp was given for the row {element.value!r}, whose time is one of its "
                    f"columns (time_zone=, time_unit=); leave it out"
                )
                raise SchemaError(msg)
            return value, None
        carried: tuple[Any, ...] = ()
        if self.spec.event_time is not None:
            position = names.index(self.spec.event_time)
            if isinstance(value, dict) and self.spec.event_time in value:
                value = dict(value)
                carried = (value.pop(self.spec.event_time),)
            elif isinstance(value, (tuple, list)) and len(value) == len(names):
                carried = (value[position],)
                value = (*value[:position], *value[position + 1 :])
        if element.timestamp is NOT_GIVEN and self.spec.event_time is not None and not carried:
            msg = (
                f"{self.label}: no timestamp was given for the row {element.value!r}; give it, or None to see what "
                f"becomes of a row without time"
            )
            raise SchemaError(msg)
        if element.timestamp is NOT_GIVEN or element.timestamp is None:
            return value, carried[0] if carried else None
        if carried or self.spec.event_time is None:
            reason = "has its event time among its columns" if carried else "is of an input without event time"
            msg = f"{self.label}: a timestamp was given for a row that {reason}: {element.value!r}; leave it out"
            raise SchemaError(msg)
        return value, element.timestamp

    def _micros(self, time: Any) -> int | None:
        if time is None:
            return None
        if isinstance(time, datetime) and time.tzinfo is not None:
            return (time - _EPOCH) // _MICROSECOND
        if isinstance(time, int) and not isinstance(time, bool) and -(1 << 63) <= time * 1_000 < 1 << 63:
            return time * 1_000
        msg = (
            f"{self.label}: event time: expected epoch milliseconds whose microseconds have 64 bits, or a datetime "
            f"with a zone, got {time!r}"
        )
        raise SchemaError(msg)

    def control(
        self, elements: Sequence[Element], table: pa.Table, known: Sequence[str], processing_time: int
    ) -> Control:
        """Return the control row that a map task would send after elements, which are also rows of the table.

        ``known`` are the source partitions that are not finished; the processing time is in epoch milliseconds.
        """
        spec = self.spec
        largest: dict[str, int] = {}
        marks: dict[str, int] = {}
        if elements:
            # As on the map side, a row with a null key still advances the watermark, and a row without time may too.
            moves = reject_reasons(table, spec, processing_time) <= 1
            millis = spec.timestamps(table)
            made = watermark_marks(table, spec, millis, processing_time)
            names = self._partitions(elements, table, known)
            for name, is_sound, timestamp, mark in zip(names, moves, millis.tolist(), made.tolist(), strict=True):
                if is_sound:
                    largest[name] = max(largest.get(name, NONE), timestamp)
                    marks[name] = max(marks.get(name, NONE), mark)
        return Control(self.number, largest, len(elements), processing_time, marks)

    def _partitions(self, elements: Sequence[Element], table: pa.Table, known: Sequence[str]) -> list[str]:
        default = known[0] if known else ONE_PARTITION
        if not self.spec.partition:
            return [partition_name(element.partition) or default for element in elements]
        columns = zip(*(decode_column(table.column(name)) for name in self.spec.partition), strict=True)
        return [
            partition_name(element.partition) or partition_name(values)
            for element, values in zip(elements, columns, strict=True)
        ]


Partition: TypeAlias = str | tuple[Any, ...] | None
"""A source partition: its name, or a tuple of its columns' values. None means what the method documents."""


def input_number(number: Any) -> Literal[1, 2]:
    """Return the number of an input, checked."""
    if isinstance(number, bool) or number not in (1, 2):
        msg = f"expected input 1 or 2, got {number!r}"
        raise HarnessError(msg)
    return cast("Literal[1, 2]", number)


def epoch_millis(value: Any, argument: str, *, clock: bool = False) -> int:
    """Return a watermark or a processing time as an int, in epoch milliseconds; a clock is not negative."""
    try:
        return local_run.epoch_millis(value, argument, clock=clock)
    except ConfigurationError as error:
        raise HarnessError(str(error)) from None


def key_values(key: Any, spec: InputSpec) -> tuple[Any, ...]:
    """Return a key's values, of its columns' types; it is one value, or a tuple or row of several."""
    try:
        return checked_key(key, spec.key_schema, "key")
    except FunctionError as error:
        raise HarnessError(str(error)) from None


def partition_name(partition: Any) -> str:
    """Return a source partition's name, as the map side spells it: the JSON of its columns' values; "" for None.

    >>> partition_name(("trades", 0))
    '["trades", 0]'
    """
    if partition is None:
        return ""
    if isinstance(partition, str):
        return partition
    if isinstance(partition, (tuple, list)):
        return json.dumps(list(partition), default=str)
    msg = f"partition: expected its name, or a tuple of its columns' values such as ({partition!r},), got {partition!r}"
    raise HarnessError(msg)


def unfinished(watermark: InputWatermark) -> list[str]:
    """Return the names of an input's source partitions that are not finished."""
    return [name for name, status in watermark.statuses().items() if status != "finished"]


def refuse_finished(watermark: InputWatermark, subject: str, partition: str | None = None) -> None:
    """Raise an error if an input, which the subject names, or one of its source partitions is finished."""
    if "finished" in (watermark.status(), partition is not None and watermark.statuses().get(partition)):
        named = f", partition {partition!r}" if partition else ""
        msg = f"{subject}{named}: it is finished, which is final: no rows or watermarks follow"
        raise HarnessError(msg)


def known_partition(partition: Any, known: Mapping[str, Any], number: int) -> str:
    """Return the name of a known source partition.

    Args:
        partition: Its name, or a tuple of its columns' values.
        known: The known partitions, by name.
        number: The input's number, for the message.

    Raises:
        HarnessError: The partition is not known.
    """
    name = partition_name(partition)
    if name not in known:
        partitions = f"known are {', '.join(map(repr, known))}" if known else "it has none yet"
        msg = f"input {number} has no source partition {name!r}; {partitions}{did_you_mean(name, known)}"
        raise HarnessError(msg)
    return name
