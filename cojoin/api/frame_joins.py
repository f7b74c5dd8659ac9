"""``asof_join``, ``temporal_join`` and ``interval_join`` of two frames; the result is a frame of the left's library.

Each declares two inputs and runs the join of ``connect`` over them: in this process, or on Spark for Spark DataFrames.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import pyarrow as pa

from cojoin.api.connect import connect, is_of_spark, not_an_input
from cojoin.embedded.frame_matches import join_frames
from cojoin.embedded.frames import is_frame
from cojoin.engine.input import Input, TimeMeaning, kind_of
from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.operator import OUTPUT
from cojoin.engine.time.time_axis import TimeAxis
from cojoin.engine.values.arguments import check_word
from cojoin.engine.values.rows import back_quoted
from cojoin.errors import ConfigurationError, MissingRowsWarning

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cojoin.embedded.frame_matches import Join, Unmatchable
    from cojoin.engine.joins.asof import Direction
    from cojoin.engine.joins.output_columns import Suffixes
    from cojoin.engine.time.time_axis import ClockChange, TimeUnit
    from cojoin.engine.values.arguments import Duration

How: TypeAlias = Literal["left", "inner"]
"""The treatment of left rows without a match.

- *left*: they are in the result, with nulls.
- *inner*: they are not.
"""

On: TypeAlias = str | tuple[str, str]
"""The column with the times: one name for both frames, or a pair, left and right."""

By: TypeAlias = str | tuple[str | Sequence[str], str | Sequence[str]] | list[str | tuple[str, str]]
"""The key columns: a name, a pair (a tuple: left and right), or a list of names and pairs."""


def asof_join(
    left: Any,
    right: Any,
    *,
    on: On | None = None,
    by: By | None = None,
    left_on: str | None = None,
    right_on: str | None = None,
    left_by: str | Sequence[str] | None = None,
    right_by: str | Sequence[str] | None = None,
    how: How = "left",
    direction: Direction = "backward",
    tolerance: Duration | None = None,
    allow_exact_matches: bool = True,
    suffixes: Suffixes | None = None,
    known_at: str | None = None,
    delay: Duration | None = None,
    time_zone: str | None = None,
    time_unit: TimeUnit | None = None,
    clock_change: ClockChange = "before",
) -> Any:
    """Join each row of a frame with the row of another frame that has its key and is nearest in event time.

    By default that is the newest right row that is not later than the left row. Frames need not be sorted. If several
    right rows have the same event time and key, they are sorted by their columns, nulls first, and the last one
    matches (pandas takes the last one in the frame, and looking forward the first). ``connect`` and
    ``ConnectedInputs.asof_join`` are the same join with more settings, and also run it as a stream.

    Args:
        left: A frame: a pandas or Polars DataFrame, a pyarrow Table, a DuckDB relation, anything else with
            ``__arrow_c_stream__``, or a static DataFrame of Spark's.
        right: The frame with the rows to look up. In memory it may be of another library than the left.
        on: The column with the rows' times: timestamps with a zone, times without one, dates, or whole numbers with
            ``time_unit``. ``on="event_time"`` is its name in both frames, and ``on=("traded_at", "valid_at")`` a pair
            of names, left and right.
        by: The key columns, which must be equal in a match. ``by="customer_id"`` is one column with this name in both
            frames. A tuple is a pair, left and right: ``by=("customer_id", "id")``, or with several columns
            ``by=(["customer_id", "zone"], ["id", "zone"])``. A list has several columns, each a name or a pair:
            ``by=["zone", ("customer_id", "id")]``. None joins rows by time alone; on Spark one task then joins all
            rows. A named level of a pandas index counts as a column.
        left_on: The left's column with the times, if ``on`` is None; with ``right_on``.
        right_on: The right's column with the times.
        left_by: The left's key column or columns, if ``by`` is None; with ``right_by``, which has as many.
        right_by: The right's key column or columns, in the same order.
        how: ``"left"`` returns exactly the left's rows, with nulls where they have no match. ``"inner"`` returns those
            with a match.
        direction: ``"backward"`` matches the last right row that is not later, ``"forward"`` the first that is not
            earlier, ``"nearest"`` the nearer of the two and at equal distance the earlier.
        tolerance: The largest distance in event time at which a right row matches, inclusive, such as ``"1 hour"`` or a
            ``timedelta``; None means any distance.
        allow_exact_matches: Whether a right row with the same event time matches.
        suffixes: The texts that are appended to column names that both frames have, left and right, such as
            ``("", "_customer")``. None refuses such names.
        known_at: The right's column with the moment at which a row was known, with ``direction="backward"``. A row
            matches from then on, or from its event time on if that is later. Of the rows that were known at a left
            row's time the newest in event time matches; of equal event times the one known last.
        delay: In place of ``known_at``: how long after its event time a right row was known, such as ``"15 minutes"``.
        time_zone: The zone of times that have none, and of dates, which mean midnight, such as ``"Europe/Berlin"``. If
            neither frame's times have a zone, None compares them as they are.
        time_unit: The unit of times that are whole numbers, counted from 1970 in UTC: ``"s"``, ``"ms"`` or ``"us"``.
        clock_change: With ``time_zone``, what a time means that a clock change repeats or leaves out: it has the offset
            from ``"before"`` the change or from ``"after"`` it, or with ``"reject"``, in memory, matches nothing.

    Returns:
        The joined rows in the left's order, as a frame of the left's library: pandas with the left's index, Polars, or
        Spark (without an order); for others an Arrow table. The left's columns are unchanged. The right's follow,
        without its key; they keep their types if both frames are of one library. The right's time column is renamed
        ``right_event_time`` if its name is taken. In pandas, whole numbers and booleans with missing values have
        pandas' nullable types, such as ``Int64``. In memory, the two frames' integer keys may differ in width,
        and their decimal keys in scale.

    Raises:
        ConfigurationError: An argument is invalid, columns are named in two ways at once, only one of the frames is
            on Spark, or they do not fit into memory.
        SchemaError: A column does not exist or has the wrong type, the types of the keys differ, or names collide.
        EnvironmentSetupError: A package that the frames need is missing or too old.

    Warns:
        MissingRowsWarning: Rows have no key or no event time, so they match nothing; the warning has their number.
            With ``how="left"`` such left rows are in the result, without a match. On Spark the warning follows the
            first action on the DataFrame; it counts right rows, and left rows only with ``how="inner"``.

    >>> import pandas as pd
    >>> import cojoin as cj
    >>> at = lambda *times: pd.to_datetime(["2026-01-15 " + each for each in times], utc=True)
    >>> trades = pd.DataFrame({"time": at("10:30", "09:30"), "id": [7, 7], "amount": [50, 20]}, index=["b", "a"])
    >>> customers = pd.DataFrame({"time": at("09:00", "10:00"), "id": [7, 7], "tier": ["silver", "gold"]})
    >>> cj.asof_join(trades, customers, on="time", by="id")[["amount", "tier"]]
       amount    tier
    b      50    gold
    a      20  silver
    """
    columns = _columns(left, right, (on, left_on, right_on), (by, left_by, right_by))
    join = AsofJoin(how, tolerance, allow_exact_matches, suffixes, direction)
    times = TimeMeaning(time_zone, time_unit, clock_change)
    return _joined("asof_join", left, right, columns, join, times, known_at=known_at, delay=delay)


def temporal_join(
    left: Any,
    right: Any,
    *,
    on: On | None = None,
    by: By | None = None,
    left_on: str | None = None,
    right_on: str | None = None,
    left_by: str | Sequence[str] | None = None,
    right_by: str | Sequence[str] | None = None,
    how: How = "left",
    deletes: str | None = None,
    null_payload_deletes: bool = False,
    retention: Duration | None = None,
    suffixes: Suffixes | None = None,
    known_at: str | None = None,
    delay: Duration | None = None,
    time_zone: str | None = None,
    time_unit: TimeUnit | None = None,
    clock_change: ClockChange = "before",
) -> Any:
    """Join each row of a frame with the version of its key that is valid at its event time; versions may be deleted.

    A right row is a version of its key. It is valid from its event time until the next version or tombstone of the
    key. If several versions have the same event time, they are sorted by their columns, nulls first, with tombstones
    last; the last one is valid.

    Args:
        left: As in ``asof_join``.
        right: The frame with the versions.
        on: As in ``asof_join``.
        by: As in ``asof_join``.
        left_on: As in ``asof_join``.
        right_on: As in ``asof_join``.
        left_by: As in ``asof_join``.
        right_by: As in ``asof_join``.
        how: As in ``asof_join``.
        deletes: A boolean column of the right that is true in tombstones, which delete their key. It is not in the
            result. None if the right has no such column.
        null_payload_deletes: Whether a right row is a tombstone if all its columns are null except for its key, its
            event time and ``deletes``.
        retention: The duration for which a version is valid after its event time, inclusive, such as ``"90 days"``.
            None means until the next version or tombstone.
        suffixes: As in ``asof_join``.
        known_at: As in ``asof_join``. A version or a tombstone takes effect when it was known.
        delay: As in ``asof_join``.
        time_zone: As in ``asof_join``.
        time_unit: As in ``asof_join``.
        clock_change: As in ``asof_join``.

    Returns:
        As in ``asof_join``.

    Raises:
        ConfigurationError: As in ``asof_join``.
        SchemaError: As in ``asof_join``; or ``deletes`` is not a boolean column.
        EnvironmentSetupError: As in ``asof_join``.

    Warns:
        MissingRowsWarning: As in ``asof_join``.

    >>> import pandas as pd
    >>> import cojoin as cj
    >>> at = lambda *times: pd.to_datetime(["2026-01-15 " + each for each in times], utc=True)
    >>> trades = pd.DataFrame({"time": at("09:30", "10:30"), "id": [7, 7]})
    >>> customers = pd.DataFrame({"time": at("09:00", "10:00"), "id": [7, 7], "tier": ["gold", None],
    ...                           "closed": [False, True]})
    >>> cj.temporal_join(trades, customers, on="time", by="id", deletes="closed")["tier"].notna().tolist()
    [True, False]
    """
    columns = _columns(left, right, (on, left_on, right_on), (by, left_by, right_by))
    join = TemporalJoin(how, deletes, null_payload_deletes, retention, suffixes)
    times = TimeMeaning(time_zone, time_unit, clock_change)
    return _joined("temporal_join", left, right, columns, join, times, known_at=known_at, delay=delay)


def interval_join(
    left: Any,
    right: Any,
    lower: Duration,
    upper: Duration,
    *,
    on: On | None = None,
    by: By | None = None,
    left_on: str | None = None,
    right_on: str | None = None,
    left_by: str | Sequence[str] | None = None,
    right_by: str | Sequence[str] | None = None,
    how: How = "left",
    lower_inclusive: bool = True,
    upper_inclusive: bool = True,
    suffixes: Suffixes | None = None,
    time_zone: str | None = None,
    time_unit: TimeUnit | None = None,
    clock_change: ClockChange = "before",
) -> Any:
    """Join each row of a frame with all rows of another that have its key and a time within an interval around its own.

    A pair matches if the right row's event time minus the left row's is between ``lower`` and ``upper``, compared in
    microseconds.

    Args:
        left: As in ``asof_join``.
        right: As in ``asof_join``.
        lower: The smallest difference, such as ``"-5 minutes"`` or a ``timedelta``. It is negative if the right row may
            be earlier than the left row.
        upper: The largest difference, such as ``"1 hour"``.
        on: As in ``asof_join``.
        by: As in ``asof_join``.
        left_on: As in ``asof_join``.
        right_on: As in ``asof_join``.
        left_by: As in ``asof_join``.
        right_by: As in ``asof_join``.
        how: ``"left"`` also returns left rows without a match, with nulls; ``"inner"`` does not.
        lower_inclusive: Whether a difference equal to ``lower`` matches.
        upper_inclusive: Whether a difference equal to ``upper`` matches.
        suffixes: As in ``asof_join``.
        time_zone: As in ``asof_join``.
        time_unit: As in ``asof_join``.
        clock_change: As in ``asof_join``.

    Returns:
        As in ``asof_join``, but a left row is repeated for each of its matches. The matches of one left row are in the
        order of the right's event times, then of its columns.

    Raises:
        ConfigurationError: As in ``asof_join``; or no pair can be within the bounds.
        SchemaError: As in ``asof_join``.
        EnvironmentSetupError: As in ``asof_join``.

    Warns:
        MissingRowsWarning: As in ``asof_join``.

    >>> import pandas as pd
    >>> import cojoin as cj
    >>> at = lambda *times: pd.to_datetime(["2026-01-15 " + each for each in times], utc=True)
    >>> trades = pd.DataFrame({"time": at("09:30", "12:00"), "id": [7, 7]})
    >>> calls = pd.DataFrame({"time": at("09:25", "09:40"), "id": [7, 7], "minutes": [3, 8]})
    >>> cj.interval_join(trades, calls, "-10 minutes", "10 minutes", on="time", by="id")["minutes"].tolist()
    [3, 8, <NA>]
    """
    if how in ("right", "full", "outer"):
        msg = (
            f"how: expected 'left' or 'inner', got {how!r}: the result has the left's rows in their order; swap the "
            f"frames, or use connect(...).interval_join(..., how={'right' if how == 'right' else 'full'!r})"
        )
        raise ConfigurationError(msg)
    check_word("how", how, get_args(How))
    columns = _columns(left, right, (on, left_on, right_on), (by, left_by, right_by))
    join = IntervalJoin(lower, upper, how, lower_inclusive, upper_inclusive, suffixes)
    return _joined("interval_join", left, right, columns, join, TimeMeaning(time_zone, time_unit, clock_change))


class _Columns(NamedTuple):
    """The columns by which a frame is joined."""

    time: str
    key: tuple[str, ...]


_TIME_EXAMPLE = "on='event_time', on=('left_name', 'right_name'), or left_on= and right_on="


def _columns(
    left: Any, right: Any, times: tuple[Any, Any, Any], keys: tuple[Any, Any, Any]
) -> tuple[_Columns, _Columns]:
    """Return the columns by which both frames are joined.

    Args:
        left: The left frame.
        right: The right frame.
        times: The arguments ``on``, ``left_on`` and ``right_on``.
        keys: The arguments ``by``, ``left_by`` and ``right_by``.

    Raises:
        ConfigurationError: An argument is invalid.
    """
    on = _one_way("on", *times)
    if on is None:
        msg = f"on: expected the column with the times of both frames, got None; write {_TIME_EXAMPLE}"
        raise ConfigurationError(msg)
    pair = on if isinstance(on, tuple) else (on, on)
    if len(pair) != 2 or not all(isinstance(name, str) and name for name in pair):
        msg = f"on: expected the name of one column, or a pair of names, got {on!r}; write {_TIME_EXAMPLE}"
        raise ConfigurationError(msg)
    sides = _key_columns(_one_way("by", *keys), is_pair_clear=keys[0] is None)
    ambiguous = isinstance(keys[0], tuple) and all(isinstance(name, str) for name in keys[0])
    if ambiguous and len({*keys[0]}) > 1 and all(set(keys[0]) <= _names_of(frame) for frame in (left, right)):
        one, two = keys[0]
        msg = (
            f"by: {keys[0]!r} is the pair of the left's {one!r} and the right's {two!r}, and both frames have both; "
            f"write by=[{one!r}, {two!r}] for two key columns, or left_by={one!r}, right_by={two!r} for the pair"
        )
        raise ConfigurationError(msg)
    return _Columns(pair[0], sides[0]), _Columns(pair[1], sides[1])


def _one_way(name: str, both: Any, left: Any, right: Any) -> Any:
    """Return the argument for both frames, or the pair of the arguments for the left and the right.

    Raises:
        ConfigurationError: Columns are named in both ways, or for one frame alone.
    """
    if left is None and right is None:
        return both
    if both is not None:
        named = f"left_{name}={left!r}" if left is not None else f"right_{name}={right!r}"
        msg = f"{name}: expected {name}=, or left_{name}= and right_{name}=, got {name}={both!r} and {named}; drop one"
        raise ConfigurationError(msg)
    if left is None or right is None:
        missing, other, value = ("right", "left", left) if right is None else ("left", "right", right)
        msg = (
            f"{missing}_{name}: expected the {missing}'s column for {other}_{name}={value!r}, got None; name it, or "
            f"write {name}={value!r} if both frames have that name"
        )
        raise ConfigurationError(msg)
    return left, right


def _key_columns(by: Any, *, is_pair_clear: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the key columns of both frames.

    Args:
        by: A name, a pair, a list of names and pairs, or None.
        is_pair_clear: Whether the pair is from ``left_by`` and ``right_by``.

    Raises:
        ConfigurationError: ``by`` is none of these, or names unequal numbers of columns for the left and the right.
    """
    if by is None:
        return (), ()
    pairs: list[Any] = [by] if isinstance(by, str) else by if isinstance(by, list) else []
    is_pair = isinstance(by, tuple) and len(by) == 2
    sides = [[each] if isinstance(each, str) else each for each in by] if is_pair else []
    if sides and all(isinstance(each, (list, tuple)) for each in sides):
        left, right = sides
        if len(left) != len(right):
            name = "left_by, right_by" if is_pair_clear else "by"
            msg = (
                f"{name}: expected as many key columns of the left as of the right, got {len(left)} "
                f"({', '.join(map(str, left))}) and {len(right)} ({', '.join(map(str, right))})"
            )
            raise ConfigurationError(msg)
        pairs = list(zip(left, right, strict=True))
    pairs = [(each, each) if isinstance(each, str) else each for each in pairs]
    if not pairs or not all(_is_pair(each) for each in pairs):
        several = f"; for several key columns write by={list(by)!r}" if isinstance(by, tuple) and len(by) > 2 else ""
        msg = (
            f"{'left_by, right_by' if is_pair_clear else 'by'}: expected a column's name, a pair (left, right) as a "
            f"tuple, or a list of names and pairs, got {by!r}{several}; None joins rows by time alone"
        )
        raise ConfigurationError(msg)
    return tuple(left for left, _ in pairs), tuple(right for _, right in pairs)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(name, str) and name for name in value)


def _names_of(frame: Any) -> set[Any]:
    """Return the names of a frame's columns, as far as they are known before it is read."""
    schema = getattr(frame, "schema", None)
    lists = (getattr(frame, "column_names", None), getattr(frame, "columns", None), getattr(schema, "names", None))
    return {*next((names for names in lists if names is not None and not callable(names)), ())}


def _joined(
    function: str,
    left: Any,
    right: Any,
    columns: tuple[_Columns, _Columns],
    join: Join,
    times: TimeMeaning,
    **known: Any,
) -> Any:
    """Return the joined rows as a frame of the left's library, and warn of rows that can't match.

    ``known`` are the arguments with which ``Input`` declares the known time of the right's rows.

    Raises:
        ConfigurationError: A value is not a frame, or the frames are not of one kind.
    """
    for name, frame in (("left", left), ("right", right)):
        is_static = is_of_spark(frame) and getattr(frame, "isStreaming", None) is False
        if not is_frame(frame) and not is_static:
            if is_of_spark(frame):
                msg = (
                    f"{name}: expected a frame with all its rows, got {type(frame).__name__}; {function} of streams "
                    f"and sources is connect(Input(...), Input(...)).{function}(...)"
                )
                raise ConfigurationError(msg)
            raise ConfigurationError(not_an_input(frame, name, may_be_source=False))
    inputs = tuple(
        Input(frame, key=side.key, event_time=side.time, name=name, **knows)
        for name, frame, side, knows in zip(("left", "right"), (left, right), columns, ({}, known), strict=True)
    )
    if not is_frame(left) or not is_frame(right):
        return _on_spark(inputs[0], inputs[1], join, times)
    joined, unmatchable = join_frames(inputs[0], inputs[1], join, times)
    sentence = _warning(unmatchable, join.how)
    if sentence is not None:
        warnings.warn(sentence, MissingRowsWarning, stacklevel=3)
    return joined


_REASONS = {
    "null_key": "without a key",
    "null_event_time": "without an event time",
    "null_known_at": "without a known time",
    "no_moment": "with a time out of range, or in an hour of a clock change",
}


def _warning(unmatchable: tuple[Unmatchable, Unmatchable], how: str) -> str | None:
    """Return the warning that rows can't match; None if all can."""
    clauses = []
    for name, (rows, reasons) in zip(("left", "right"), unmatchable, strict=True):
        if reasons:
            why = ", ".join(f"{number:,} {_REASONS[reason]}" for reason, number in reasons.items())
            clauses.append(f"{sum(reasons.values()):,} of {rows:,} rows of the {name} can't match: {why}")
    if not clauses:
        return None
    lacks = "; the result lacks those of the left" if how == "inner" and unmatchable[0].reasons else ""
    return f"{'; '.join(clauses)}{lacks}"


def _on_spark(left: Input, right: Input, join: Join, times: TimeMeaning) -> DataFrame:
    """Return the joined rows of two static DataFrames of Spark's, in no order."""
    if is_frame(left.source) or is_frame(right.source):
        connect(left, right)  # It raises an error, as only one is on Spark.
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - rows in memory are joined without Spark

    if times.clock_change == "reject":
        msg = (
            "clock_change: expected 'before' or 'after' on Spark, got 'reject': connect(Input(..., "
            "clock_change='reject'), ...) rejects such rows, and counts them"
        )
        raise ConfigurationError(msg)
    known = None if right.known_at is None else _time_type(right, right.known_at) or pa.timestamp("us", "UTC")
    left, right = times.named(
        (left, right), (_time_type(left, left.event_time), _time_type(right, right.event_time)), known
    )
    rows, time = left.source, left.event_time
    # The join rejects rows without an event time, and raises the error for a column that does not exist.
    keeps_timeless = join.how == "left" and time.lower() in {name.lower() for name in rows.columns}
    has_time = F.col(back_quoted(time)).isNotNull()
    if left.time_unit is not None:
        largest = TimeAxis(unit=left.time_unit).largest
        has_time &= F.col(back_quoted(time)).between(-largest, largest)
    if keeps_timeless:
        left = replace(left, source=rows.where(has_time), null_key="unmatched")
    joined = connect(left, right)._apply(join)  # noqa: SLF001 - its own layer
    # A warning of rejected rows names the user's line; four calls are between that line and the one that warns.
    frame = joined._spark("to_dataframe()").to_dataframe(joined.plan, OUTPUT, depth=4)  # noqa: SLF001 - its own layer
    if keeps_timeless:
        lefts = zip(rows.columns, frame.columns, strict=False)
        columns = [F.col(back_quoted(name)).alias(renamed) for name, renamed in lefts]
        others = frame.schema.fields[len(rows.columns) :]
        columns += [F.lit(None).cast(field.dataType).alias(field.name) for field in others]
        frame = frame.union(rows.where(~has_time).select(columns))
    return frame


def _time_type(side: Input, column: str) -> pa.DataType | None:
    """Return the type of a DataFrame's times, as far as their meaning depends on it; None for an unknown column."""
    types = {field.name.lower(): field.dataType.simpleString() for field in side.source.schema.fields}
    kind = kind_of(types.get(column.lower(), ""))
    if kind in ("timestamp_ntz", "date"):
        return pa.timestamp("us")
    if kind in ("bigint", "int"):
        return pa.int64()
    return None
