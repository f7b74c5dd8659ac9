"""``Input``: the declaration of an input, and the check of the columns that it names against those of its rows.

A column that is missing or of an unsuitable type is refused with the code that mends it, in the library that holds the
rows (``Advice``). Tests run all of that code with its own library.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import pyarrow as pa

from cojoin.engine.display import Display, display_of
from cojoin.engine.input_spec import InputSpec, LatePolicy, NullKeyPolicy, check_late, check_null_key
from cojoin.engine.plan import describe_source, describe_watermark
from cojoin.engine.row_changes import DELETED, DELTA_FEED, VALID_AT, RowChanges
from cojoin.engine.state.segments import HASH, MATCHED
from cojoin.engine.time.known_time import KnownTime, SnapshotKnown
from cojoin.engine.time.time_axis import ClockChange, TimeAxis, TimeUnit, is_local, is_moment, is_whole
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.values.arguments import Duration, check_word, microseconds, milliseconds
from cojoin.engine.values.keys import KEYABLE, is_keyable
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import ConfigurationError, SchemaError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from cojoin.engine.row_changes import ChangeFeed


@dataclass(frozen=True, repr=False)
class Input:
    """One of the two inputs of ``connect``: its rows, and the columns with its key and its event time.

    Attributes:
        source: Where the rows are. A DataFrame of Spark's, streaming or static, or a source such as
            ``cojoin.sources.delta("/lake/trades")``, which ``connect`` opens with the active session. Or rows in
            memory, which are joined in this process without Spark: a pandas DataFrame, a pyarrow Table or reader, or
            anything with ``__arrow_c_stream__``, such as a Polars DataFrame or a DuckDB relation. Of a pandas index the
            levels that have names become columns. In pandas' own types NaN is a missing value and becomes null; in
            Arrow's types NaN stays NaN, also in pandas: ``.astype(pandas.ArrowDtype(pyarrow.float64()))``.
        key: The key column or columns. The keys of both inputs must have the same types in the same order; their names
            may differ. ``()``, for both inputs, joins rows by time alone: all rows have one key, which is empty. On
            Spark one key group then has all rows, so one task joins them, whatever the number of cores.
        event_time: The event-time column, a ``timestamp`` (a time with a zone); or, for Spark's DataFrames, an
            expression that makes one, such as ``F.timestamp_millis("ts")``, whose column is named by its alias, else
            ``event_time``. None is an input without event time: its rows are never late and never wait. Only
            ``process`` with ``order="arrival"`` accepts it, and on the right of as-of and temporal joins a static side,
            ``cojoin.sources.delta(..., static=True)``, whose rows then are known from the beginning of time. With
            ``cojoin.sources.delta(..., changes=True)`` it is a column of the table, or ``"_commit_timestamp"``: the
            time of the commit that wrote the row, and for the rows that the table has at the start the beginning of
            time, which is 1900-01-01. Leave it out with ``valid_from``.
        name: The input's name in messages, progress and the result's columns; ``"left"`` or ``"right"`` if not given.
        partition: The columns that identify a row's source partition, such as ``["topic", "partition"]``. Each
            partition has its own watermark. Without these columns the input is one partition. A Kafka source sets
            them itself.
        sequence: The columns that order the rows of one partition at the source, such as ``"offset"``; they break ties
            of event time. A Kafka source sets them itself.
        watermark: The watermark strategy; by default rows are expected in the order of event time.
        max_ahead: How far a row's event time may be after processing time, such as ``"1 day"`` or a ``timedelta``. A
            row further ahead is rejected and does not advance the watermark; nor do timestamps of Kafka records that
            are further ahead. None means no limit. It has no effect on static inputs.
        late: How rows at or below the operator's watermark are treated: ``"reject"`` or ``"apply"``. None is the
            operation's default. As-of and temporal joins reject late left rows and apply late versions; an interval
            join rejects late rows of both inputs; functions apply late rows in arrival order and reject them in
            event-time order.
        null_key: What happens to a row if any column of its key is null; such a key equals no other, as in SQL.
            ``"reject"`` sends it to the rejected rows. ``"unmatched"``, for a side whose rows the join keeps without a
            match (``how`` left, right or full), emits it as a row without a match once the watermark has reached its
            own time; a late one is late. The setting may change between runs, and then holds for the rows to come.
        valid_from: For rows with a span of validity, as in an SCD2 table, instead of ``event_time``: the ``timestamp``
            column with its begin. Each row is a version from then on.
        valid_to: The ``timestamp`` column with the end of a row's validity, itself excluded. Null, and a time from the
            year 9999 on, mean no end. Where the next row of the key begins later, or there is none, the key has no
            version in between. A row that ends where it begins was never valid. The rows of a key must not overlap.
        time_zone: The zone of event times, or of a span's times, that have none, such as ``"Europe/Berlin"``: of a
            ``timestamp_ntz``, pandas' naive times, or a ``date``, which means its midnight. The column stays as it is.
        time_unit: The unit of times that are whole numbers, counted from 1970 in UTC: ``"s"``, ``"ms"`` or ``"us"``.
            The column stays as it is. A number out of range has no moment, and its row is rejected (``no_moment``).
        clock_change: With ``time_zone``, what happens to a time that a clock change repeats or leaves out. It has the
            offset from ``"before"`` the change, as in Spark, so a repeated time is the first of the two; or that from
            ``"after"`` it; or its row is rejected: ``"reject"``. Of the first two the progress has the number.
        known_at: Of the right input of a temporal join, or of an as-of join that looks backward: the ``timestamp``
            column with the moment at which a row was known, such as the one at which it was loaded. A row then matches
            from its *effective time* on, the later of its event time and its known time. Of the rows that are effective
            at a left row's time, the one with the greatest event time matches; of equal event times the one known last.
            ``tolerance``, ``retention`` and ``allow_exact_matches`` compare event times; watermark, lateness and
            ``max_ahead`` follow the effective times, so a correction that is loaded late is on time. A row with a null
            there is rejected. Of rows with a span of validity the end is known with the row: where the newest row that
            is known has ended, nothing matches. A delete of a table (``changes=True``) is known at its commit, and an
            update that moves the event time back is rejected (``moved_back``); with Debezium where its event has the
            row before the update, and ``event_time`` is the name of a column. ``time_zone`` and ``time_unit`` also hold
            for this column, unless it is a ``timestamp``.
        delay: In place of ``known_at``: how long after its event time a row is known, such as ``"15 minutes"`` or a
            ``timedelta``.
        snapshot_known: With ``cojoin.sources.delta(..., changes=True)`` and ``known_at="_commit_timestamp"``, or with
            ``cojoin.kafka.debezium`` and ``known_at="_source_timestamp"``: when the rows were known that the table has
            at the start. ``"at_event_time"``, since it is unknown when they were written; or ``"at_snapshot"``, so that
            no earlier left row matches them. Rows of an incremental snapshot of Debezium's are known when it read them;
            choose ``"at_snapshot"`` for a connector that takes other snapshots again.

    Raises:
        ConfigurationError: An attribute is invalid. Whether the columns exist and have the right types is checked by
            ``connect``.

    Example:
        >>> trades = Input(trades_df, key="customer_id", event_time="event_time", name="trades")  # doctest: +SKIP

        In pandas' own types NaN becomes null, and in Arrow's types it stays:

        >>> import pandas as pd
        >>> import pyarrow as pa
        >>> from cojoin import connect
        >>> times = pd.to_datetime(["2026-01-15 09:00"] * 2, utc=True)
        >>> trades = pd.DataFrame({"id": [7, 8], "time": times, "price": [1.5, float("nan")]})
        >>> exact = pa.table({"id": [7, 8], "time": times, "size": [float("nan"), 2.5]})
        >>> pair = connect(Input(trades, "id", "time", "trades"), Input(exact, "id", "time", "sizes"))
        >>> pair.asof_join().to_arrow().select(["price", "size"]).to_pylist()
        [{'price': 1.5, 'size': nan}, {'price': None, 'size': 2.5}]

        Rows with a span of validity have their own end:

        >>> day = lambda *days: pd.to_datetime([each and f"2026-01-{each}" for each in days], utc=True)
        >>> tiers = pd.DataFrame({"id": [7, 7], "tier": ["silver", "gold"], "begin": day("01", "14"),
        ...                       "end": day("10", None)})
        >>> trades = pd.DataFrame({"id": [7] * 3, "time": day("05", "12", "15")})
        >>> valid = Input(tiers, "id", valid_from="begin", valid_to="end", name="tiers")
        >>> connect(Input(trades, "id", "time", "trades"), valid).temporal_join().to_arrow()["tier"].to_pylist()
        ['silver', None, 'gold']
    """

    source: Any
    key: str | Sequence[str]
    event_time: Any = ...
    name: str = ""
    partition: str | Sequence[str] = ()
    sequence: str | Sequence[str] = ()
    watermark: WatermarkStrategy = field(default_factory=WatermarkStrategy)
    max_ahead: Duration | None = "1 day"
    late: LatePolicy | None = None
    valid_from: str | None = None
    valid_to: str | None = None
    null_key: NullKeyPolicy = "reject"
    time_zone: str | None = None
    time_unit: TimeUnit | None = None
    clock_change: ClockChange = "before"
    known_at: str | None = None
    delay: Duration | None = None
    snapshot_known: SnapshotKnown = "at_event_time"

    def __new__(cls, *_: Any, **arguments: Any) -> Self:
        """Refuse an argument that other libraries have, and name the one for it."""
        for name in arguments:
            if name not in cls.__dataclass_fields__:
                near = did_you_mean(name, cls.__dataclass_fields__)
                own = f"; write {_OF_OTHERS[name]}=" if name in _OF_OTHERS else near
                msg = f"Input: it has no argument {name!r}{own}"
                raise ConfigurationError(msg)
        return super().__new__(cls)

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
        check_null_key(self.null_key, self._label)
        check_word(f"{self._label}: snapshot_known", self.snapshot_known, get_args(SnapshotKnown))
        self._check_times()
        self._check_known()

    def _check_known(self) -> None:
        """Check that rows have one known time at most, and an event time with it."""
        if self.snapshot_known != "at_event_time" and self.known_at is None:
            msg = f"{self._label}: snapshot_known: expected known_at= with it, the time of the changes' commits"
            raise ConfigurationError(msg)
        if self.known_at is None and self.delay is None:
            return
        argument = "delay" if self.known_at is None else "known_at"
        if self.known_at is not None and self.delay is not None:
            msg = (
                f"{self._label}: expected known_at=, a column with the moment at which a row was known, or delay=, the "
                f"time from its event time to that moment, got both"
            )
            raise ConfigurationError(msg)
        if self.delay is not None:
            if microseconds(self.delay, f"{self._label}: delay") > _LONGEST_DELAY_US:
                msg = f"{self._label}: delay: expected at most 100 years, got {self.delay!r}"
                raise ConfigurationError(msg)
        elif not isinstance(self.known_at, str) or not self.known_at:
            msg = f"{self._label}: known_at: expected the name of a timestamp column, got {_shown(self.known_at)}"
            raise ConfigurationError(msg)
        if self.valid_from is not None:
            if self.delay is not None:
                msg = f"{self._label}: delay: expected none with valid_from= and valid_to=; name a column as known_at="
                raise ConfigurationError(msg)
            return
        if self.event_time is None:
            msg = (
                f"{self._label}: {argument}: expected none with event_time=None: its rows are known from the beginning"
            )
            raise ConfigurationError(msg)

    def _check_times(self) -> None:
        """Check that rows have an event time or a span of validity, and not both, and that an axis is one."""
        axis = self._axis
        spans = (self.valid_from, self.valid_to)
        if spans == (None, None):
            if self.event_time is ...:
                msg = (
                    f"{self._label}: expected event_time=, the column with the rows' times, or valid_from= and "
                    f"valid_to= for rows with a span of validity; event_time=None is for rows without time"
                )
                raise ConfigurationError(msg)
            if self.event_time is None and axis is not None:
                msg = f"{self._label}: time_zone, time_unit: expected none with event_time=None: its rows have no times"
                raise ConfigurationError(msg)
            return
        if self.clock_change == "reject":
            msg = (
                f"{self._label}: clock_change: expected 'before' or 'after' with valid_from= and valid_to=, got "
                f"'reject': a row has two times, and its end may not get lost"
            )
            raise ConfigurationError(msg)
        if self.event_time is not ... and self.event_time is not None:
            msg = (
                f"{self._label}: expected event_time= or valid_from= and valid_to=, got both: rows with a span of "
                f"validity take effect at its begin and its end; leave event_time= out"
            )
            raise ConfigurationError(msg)
        for name, column in zip(("valid_from", "valid_to"), spans, strict=True):
            if not isinstance(column, str) or not column:
                msg = f"{self._label}: {name}: expected the name of a timestamp column, got {column!r}"
                raise ConfigurationError(msg)
        object.__setattr__(self, "event_time", None)

    def __repr__(self) -> str:
        return display_of(lambda: Display(self._line()), "Input").text()

    def _repr_html_(self) -> str:
        return display_of(lambda: Display(self._head, [("", ""), *self._settings()]), "Input").html()

    @property
    def _head(self) -> str:
        return f"Input {self.name!r}" if self.name else "Input"

    def _line(self) -> str:
        (_, rows), *others = self._settings()
        return f"{self._head}: {'; '.join([rows, *(f'{name} {value}' for name, value in others)])}"

    def _settings(self) -> list[tuple[str, str]]:
        def columns(named: Any) -> str:
            return named if isinstance(named, str) else ", ".join(map(str, named))

        settings = [
            ("rows", describe_source(self.source)),
            ("key", columns(self.key) or "none"),
            self._times(),
            ("watermark", describe_watermark(self.watermark)),
        ]
        settings += [("partition", columns(self.partition))] if self.partition else []
        settings += [("sequence", columns(self.sequence))] if self.sequence else []
        settings += [("max_ahead", str(self.max_ahead))] if self.max_ahead != "1 day" else []
        settings += [("late", self.late)] if self.late else []
        return [*settings, ("null_key", self.null_key)] if self.null_key != "reject" else settings

    def _times(self) -> tuple[str, str]:
        axis = f" in {self.time_zone or self.time_unit}" if self._axis else ""
        if self.valid_from is not None:
            known = f", known at {self.known_at}" if self.known_at else ""
            return "valid", f"from {self.valid_from} to {self.valid_to}{axis}{known}"
        known = f", known at {self.known_at}" if self.known_at else f", known after {self.delay}" if self.delay else ""
        return "event time", "none" if self.event_time is None else f"{self.event_time}{axis}{known}"

    @property
    def _axis(self) -> TimeAxis | None:
        """The meaning of times that are not timestamps; None where they are."""
        return TimeAxis.of(self.time_zone, self.time_unit, self.clock_change, self._label)

    @property
    def _label(self) -> str:
        return f"input {self.name!r}" if self.name else "input"


class TimeMeaning(NamedTuple):
    """The meaning of both inputs' times where it is named once, as for two frames."""

    time_zone: str | None = None
    time_unit: TimeUnit | None = None
    clock_change: ClockChange = "before"

    def named(
        self,
        inputs: tuple[Input, Input],
        types: tuple[pa.DataType | None, pa.DataType | None],
        known: pa.DataType | None = None,
    ) -> tuple[Input, Input]:
        """Return both inputs with the meaning of their times.

        Where neither input's times have a zone, and none is named, they are compared as they are.

        Args:
            inputs: The left and the right input.
            types: The types of their event times; None if unknown.
            known: The type of the right's known times; None if unknown, or if it has none.

        Raises:
            ConfigurationError: A zone or unit is named that is for neither input's times, an argument is invalid, or
                known times have a zone and event times have none.
        """
        TimeAxis.of(*self, "join")
        local = [dtype is not None and (is_local(dtype) or pa.types.is_null(dtype)) for dtype in types]
        takes, meant, kind = local, self._asdict(), is_local
        if self.time_unit is not None:
            takes, kind = [dtype is not None and is_whole(dtype) for dtype in types], is_whole
        elif self.time_zone is None:
            if not all(local) or not any(dtype is not None and is_local(dtype) for dtype in types):
                return inputs
            if known is not None and is_moment(known):
                msg = (
                    f"known_at: column {inputs[1].known_at!r} of the right has a zone, and the times of both frames "
                    f"have none, so it is open which is earlier; write time_zone= with the zone of the times"
                )
                raise ConfigurationError(msg)
            meant["time_zone"] = "UTC"
        takes = [takes[0], takes[1] or (known is not None and kind(known))]
        if not any(takes) and None not in types:
            named = "time_unit" if self.time_zone is None else "time_zone"
            meaning = "whole numbers" if self.time_zone is None else "times without a zone, or dates"
            msg = f"{named}: neither frame's times are {meaning}, but {types[0]} and {types[1]}; leave {named}= out"
            raise ConfigurationError(msg)
        one, two = (replace(side, **meant) if is_taken else side for side, is_taken in zip(inputs, takes, strict=True))
        return one, two


_OF_OTHERS = {
    "on": "event_time",
    "time": "event_time",
    "timestamp": "event_time",
    "time_column": "event_time",
    "by": "key",
    "keys": "key",
    "key_by": "key",
    "df": "source",
    "data": "source",
    "allowed_lateness": "watermark",
    "tz": "time_zone",
    "unit": "time_unit",
    "loaded_at": "known_at",
    "created_timestamp": "known_at",
    "created_timestamp_column": "known_at",
    "settling_delay": "delay",
    "source_delay": "delay",
}
"""The arguments for which others' may be meant."""

_LONGEST_DELAY_US = 100 * 366 * 86_400_000_000

_LONGEST = 100
"""The number of characters of a wrong name that a message shows."""


@dataclass(frozen=True)
class InputColumns:
    """The columns of an input's rows, of which a declaration names some.

    Attributes:
        label: The input, for messages, such as ``"input 'trades'"``.
        fields: The columns by name; timestamps with a zone are ``timestamp[us, UTC]``.
        types: The names of the columns' types in messages.
        advice: The code that mends columns of other types.
        default_partition: The columns that identify a source partition if the declaration names none.
        default_sequence: The columns that order the rows of a source partition if the declaration names none.
        feed: The change feed of which the rows are (``row_changes``); None where they are of none.
        takes_axis: Whether the declaration may have ``time_zone`` or ``time_unit``.
    """

    label: str
    fields: Mapping[str, pa.Field]
    types: Mapping[str, str]
    advice: Advice
    default_partition: tuple[str, ...] = ()
    default_sequence: tuple[str, ...] = ()
    feed: ChangeFeed | None = None
    takes_axis: bool = True

    def spec(self, declared: Input, name: str, event_time: Any, max_ahead_ms: int | None) -> InputSpec:
        """Return the input's specification; ``max_ahead_ms`` None is any distance from processing time."""
        partition = self._names(declared.partition, "partition") or self.default_partition
        sequence = self._names(declared.sequence, "sequence") or self.default_sequence
        axis = declared._axis  # noqa: SLF001 - its own module
        known = self._known(declared, axis)
        if known is not None and known.axis is not None and self._is_moment(event_time):
            axis = None  # It is that of the known times alone.
        time = self._time(event_time, "event time", axis)
        # With known times the end of a span is a column of its row, and not a row.
        has_ends = known is not None and known.valid_to is not None
        changes = None if has_ends else self._changes(declared, time, axis, known)
        time = self._time(declared.valid_from, "valid from", axis) if has_ends else time
        spec = InputSpec(
            name=name,
            schema=pa.schema([*self.fields.values(), *(changes.added if changes else ())]),
            key=self._key(declared.key),
            event_time=time if changes is None else changes.event_time,
            partition=tuple(self._find(column, "partition") for column in partition),
            sequence=tuple(self._find(column, "sequence") for column in sequence),
            watermark=declared.watermark,
            max_ahead_ms=max_ahead_ms,
            late=declared.late,
            null_key=declared.null_key,
            changes=changes,
            axis=axis if changes is None else None,
            known=known,
        )
        for column in spec.partition:
            if pa.types.is_nested(self.fields[column].type):
                msg = (
                    f"{self.label}: partition column {column!r} has the type {self.types[column]}; name its parts as "
                    f"columns"
                )
                raise SchemaError(msg)
        return spec

    def _names(self, declared: Any, role: str) -> tuple[Any, ...]:
        if isinstance(declared, str):
            return (declared,)
        if isinstance(declared, (list, tuple)):
            return tuple(declared)
        msg = f"{self.label}: {role}: expected a column's name, or a list of names, got {_shown(declared)}"
        raise SchemaError(msg)

    def _find(self, column: Any, role: str) -> str:
        if not isinstance(column, str):
            msg = f"{self.label}: {role}: expected a column's name, got {_shown(column)}"
            raise SchemaError(msg)
        if column in self.fields:
            return column
        for name in self.fields:
            if name.lower() == column.lower():
                return name
        near, advised = did_you_mean(column, self.fields), self.advice.about_missing(column, role)
        cure = near if advised is None or near.endswith("?") else f"; {advised}"
        msg = f"{self.label} has no {role} column {column!r}{cure}"
        raise SchemaError(msg)

    def _key(self, declared: Any) -> tuple[str, ...]:
        if declared is None:
            msg = f"{self.label}: key: expected the key column or columns, got None; key=() joins rows by time alone"
            raise SchemaError(msg)
        key = tuple(self._find(column, "key") for column in self._names(declared, "key"))
        if len(set(key)) < len(key):
            msg = f"{self.label}: key: expected different columns, got {declared!r}; name each once"
            raise SchemaError(msg)
        for name in key:
            if not is_keyable(self.fields[name].type):
                advised = self.advice.about_key(name, self.types[name])
                cure = f"; {advised}" if advised else ""
                msg = (
                    f"{self.label}: key column {name!r} has the type {self.types[name]}, which can't be a key; "
                    f"valid are {KEYABLE}{cure}"
                )
                raise SchemaError(msg)
        return key

    def _changes(
        self, declared: Input, event_time: str | None, axis: TimeAxis | None, known: KnownTime | None
    ) -> RowChanges | None:
        """Return the reading of the rows as versions and deletes; None if they are neither."""
        if declared.valid_from is None:
            if self.feed is not None and axis is not None:
                msg = (
                    f"{self.label}: time_zone, time_unit: expected none, since its rows are changes, whose deletes "
                    f"take effect at timestamps; make the column a timestamp where the rows are written"
                )
                raise ConfigurationError(msg)
            return None if self.feed is None else RowChanges(event_time, self.feed, known=known)
        if self.feed is not None and self.feed.commit is None:
            # Ends of validity are known by the commit of their own row.
            msg = (
                f"{self.label}: valid_from: its rows are change events without commits, as Debezium's, of which each "
                f"ends the one before; name event_time= instead"
            )
            raise ConfigurationError(msg)
        valid_from, valid_to = self._span(declared, axis)
        changes = RowChanges(VALID_AT, self.feed, valid_from, valid_to, axis)
        for added in changes.added:
            taken = next((name for name in self.fields if name.lower() == added.name), None)
            if taken is not None:
                whether = "whether it is a delete" if added.name == DELETED else "when it takes effect"
                msg = f"{self.label}: column {taken!r}: rows with validity get one of this name, {whether}; rename it"
                raise SchemaError(msg)
        return changes

    def _is_moment(self, name: Any) -> bool:
        """Return whether a column of the rows has timestamps; False if there is none of this name."""
        own = {field.lower(): field for field in self.fields}.get(name.lower()) if isinstance(name, str) else None
        return own is not None and is_moment(self.fields[own].type)

    def _span(self, declared: Input, axis: TimeAxis | None) -> tuple[str | None, str | None]:
        """Return the columns with the begins and ends of rows with validity; None twice if they have none."""
        valid_from, valid_to = (
            self._time(getattr(declared, role), role.replace("_", " "), axis) for role in ("valid_from", "valid_to")
        )
        if valid_from is not None and valid_from == valid_to:
            msg = f"{self.label}: valid_from and valid_to are one column, {valid_from!r}; expected a begin and an end"
            raise SchemaError(msg)
        return valid_from, valid_to

    def _known(self, declared: Input, axis: TimeAxis | None) -> KnownTime | None:
        """Return the time from which the rows are known; None where that is their event time."""
        if declared.known_at is None and declared.delay is None:
            return None
        feed = self.feed
        if feed is not None and (declared.valid_from is not None or declared.event_time == feed.committed_at):
            argument = "delay" if declared.known_at is None else "known_at"
            why = "they have a span of validity" if declared.valid_from else "their event time is that of their commits"
            msg = (
                f"{self.label}: {argument}: expected none, since its rows are changes of a table and {why}; name a "
                f"column of the table as event_time="
            )
            raise ConfigurationError(msg)
        committed_at = DELTA_FEED.committed_at if feed is None else feed.committed_at
        if declared.snapshot_known != "at_event_time" and (feed is None or declared.known_at != committed_at):
            msg = (
                f"{self.label}: snapshot_known: expected rows that are changes of a table, known at their commits "
                f"(known_at={committed_at!r}), got known_at={declared.known_at!r}; leave it out"
            )
            raise ConfigurationError(msg)
        of_feed: dict[str, Any] = {"committed_at": None if feed is None else feed.committed_at}
        if declared.delay is not None:
            return KnownTime(delay_us=microseconds(declared.delay, f"{self.label}: delay"), **of_feed)
        of_feed |= {"snapshot_known": declared.snapshot_known}
        name = self._find(declared.known_at, "known_at=")
        dtype = self.fields[name].type
        if not is_moment(dtype):
            if axis is not None and not axis.takes(dtype):
                cure = self.advice.about_time(name, self.types[name], "known_at=")
                expected = f"expected a timestamp, or {axis.expected}"
                msg = f"{self.label}: known_at= column {name!r}: {expected}, got {self.types[name]}; {cure}"
                raise SchemaError(msg)
            self._time(name, "known_at=", axis)
        valid_to = self._span(declared, axis)[1]
        return KnownTime.of_column(name, dtype, axis, valid_to=valid_to, **of_feed)

    def _time(self, declared: Any, role: str, axis: TimeAxis | None) -> str | None:
        if declared is None:
            return None
        name = self._find(declared, role)
        dtype, spelled = self.fields[name].type, self.types[name]
        is_timestamp = is_moment(dtype)
        if is_timestamp if axis is None else axis.takes(dtype):
            return name
        expected, cure = "a timestamp", self.advice.about_time(name, spelled, role)
        argument = "time_unit='ms'" if is_whole(dtype) else None
        argument = "time_zone='UTC' or their own zone" if is_local(dtype) else argument
        if axis is not None:
            expected = axis.expected
            leave = "leave time_zone= out" if axis.zone else "leave time_unit= out"
            cure = leave if is_timestamp else cure if argument is None else f"write {argument}"
        elif argument is not None and self.takes_axis:
            code = self.advice.time(name, kind_of(spelled), role)
            cure = f"write {argument}{'' if code is None else f', or make it a timestamp: {code}'}"
        msg = f"{self.label}: {role} column {name!r}: expected {expected}, got {spelled}; {cure}"
        raise SchemaError(msg)


def check_names(names: Sequence[str], label: str) -> None:
    """Check that no two columns are one to Spark and Delta, and that none has a name of the state's own tables."""
    seen: dict[str, str] = {}
    for name in names:
        equal = seen.get(name.lower())
        if equal is not None:
            apart = f"two columns {equal!r}" if equal == name else f"columns {equal!r} and {name!r}"
            why = "" if equal == name else ", which differ only in case: to Spark and Delta they are one"
            msg = f"{label} has {apart}{why}; rename or drop one"
            raise SchemaError(msg)
        seen[name.lower()] = name
        if name in (HASH, MATCHED):
            msg = f"{label}: column {name!r}: the state's own tables have one of this name; rename it"
            raise SchemaError(msg)


def check_pair(left: InputSpec, right: InputSpec, advice: tuple[Advice, Advice]) -> None:
    """Check that two inputs have different names, and keys of the same types; advice says how to cast them."""
    if left.name == right.name:
        msg = f"both inputs are named {left.name!r}; give each its own name="
        raise ConfigurationError(msg)
    if len(left.key) != len(right.key):
        counted = " and ".join(
            f"input {spec.name!r} has {len(spec.key)}{f' ({joined})' if (joined := ', '.join(spec.key)) else ''}"
            for spec in (left, right)
        )
        msg = f"key: expected as many columns of both inputs, in the same order; {counted}"
        raise SchemaError(msg)
    for first, second in zip(left.key, right.key, strict=True):
        types = left.schema.field(first).type, right.schema.field(second).type
        if types[0] != types[1]:
            spelled = [type_to_ddl(dtype) for dtype in types]
            msg = (
                f"the key types differ: {first!r} of input {left.name!r} is {spelled[0]}, "
                f"{second!r} of input {right.name!r} is {spelled[1]}; "
                f"{about_pair(((advice[0], first, spelled[0]), (advice[1], second, spelled[1])))}"
            )
            raise SchemaError(msg)


def _shown(value: Any) -> str:
    """Return a wrong value of a column's name in one line."""
    name, text = getattr(value, "name", None), repr(value)
    kind = f"a {type(value).__name__}"
    if isinstance(name, str):
        return f"{kind}; write its name, {name!r}"
    one = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else None
    if isinstance(one, str):
        return f"{text}; write {one!r}"
    return text if len(text) <= _LONGEST and "\n" not in text else kind


Kind: TypeAlias = Literal[
    "timestamp_ntz", "bigint", "int", "floating", "decimal", "string", "date", "interval", "other"
]
"""The kinds of types between which advice differs; ``int`` includes narrower integers."""

_WORDS: Mapping[Kind, str] = {
    "timestamp_ntz": "it has no time zone; name the one that is meant",
    "bigint": "turn epoch numbers into one, with their unit",
    "int": "turn epoch seconds into one",
    "floating": "turn epoch seconds into one",
    "decimal": "turn epoch seconds into one",
    "string": "turn texts into one",
    "date": "a date has no time of day; name the moment that is meant, such as midnight in UTC",
    "interval": "a duration is not a moment; add it to one",
}

_KEYS: Mapping[Kind, str] = {
    "floating": "floats have two zeros and NaN; cast them if they are whole numbers",
    "interval": "make it a number or a text",
}

_INTEGERS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
"""The integer types, the narrower ones first, with their most digits."""

_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")

_MOST_DIGITS = 38


def kind_of(ddl: str) -> Kind:
    """Return the kind of a type, given by its name in Spark.

    >>> kind_of("smallint"), kind_of("decimal(10,2)"), kind_of("interval day to second"), kind_of("array<int>")
    ('int', 'decimal', 'interval', 'other')
    """
    if ddl in _INTEGERS:
        return "bigint" if ddl == "bigint" else "int"
    if ddl in ("float", "double"):
        return "floating"
    name = ddl.partition("(")[0].partition(" ")[0]
    return name if name in _WORDS else "string" if name in ("char", "varchar") else "other"  # type: ignore[return-value]


class Advice(ABC):
    """The code that mends columns, in one library."""

    @abstractmethod
    def time(self, column: str, kind: Kind, role: str) -> str | None:
        """Return code that makes a column a ``timestamp`` for a role, such as ``"key"``; None if none does."""

    @abstractmethod
    def cast(self, column: str, ddl: str) -> str:
        """Return code that casts a column to one of Spark's types."""

    def about_missing(self, column: str, role: str) -> str | None:
        """Return the cure for a column that the rows lack, in a role, such as ``"key"``; None if there is none."""
        del column, role
        return None

    def about_time(self, column: str, ddl: str, role: str) -> str:
        """Return the cure for a column that must be a ``timestamp`` and is not."""
        kind = kind_of(ddl)
        code = self.time(column, kind, role)
        if code is None:
            return "name a column with the moments, as timestamps"
        return f"{_WORDS[kind]}: {code}"

    def about_key(self, column: str, ddl: str) -> str | None:
        """Return the cure for a key column whose type can't be one; None if there is none."""
        if ddl == "void":
            return f"it has no values, and so no type; give it one: {self.cast(column, 'string')}"
        words = _KEYS.get(kind_of(ddl))
        target = "bigint" if kind_of(ddl) == "floating" else "string"
        return None if words is None else f"{words}: {self.cast(column, target)}"


def about_pair(sides: tuple[tuple[Advice, str, str], tuple[Advice, str, str]]) -> str:
    """Return how two key columns become of one type without losing a value; of each: its library, name and type."""
    types = [ddl for _, _, ddl in sides]
    kinds = [kind_of(ddl) for ddl in types]
    if set(kinds) == {"timestamp_ntz", "other"} and "timestamp" in types:
        advice, column, ddl = sides[kinds.index("timestamp_ntz")]
        return advice.about_time(column, ddl, "key")
    target = _common(types)
    if target is None:
        return "cast one to the other's type"
    casts = [advice.cast(column, target) for advice, column, ddl in sides if ddl != target]
    return f"cast {'one' if len(casts) == 1 else 'both'}: {'; and '.join(casts)}"


def _common(types: list[str]) -> str | None:
    """Return the narrowest type that holds the values of both; None if there is none."""
    if set(types) <= {*_INTEGERS, "string"}:
        order = [*_INTEGERS, "string"]
        return max(types, key=order.index)
    wholes, scales = [], []
    for ddl in types:
        decimal = _DECIMAL.fullmatch(ddl)
        if decimal is None and ddl not in _INTEGERS:
            return None
        precision, scale = (_INTEGERS[ddl], 0) if decimal is None else (int(decimal[1]), int(decimal[2]))
        wholes.append(precision - scale)
        scales.append(scale)
    digits = max(wholes) + max(scales)
    return f"decimal({digits},{max(scales)})" if digits <= _MOST_DIGITS else None
