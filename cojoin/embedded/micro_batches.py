"""Cuts two inputs into micro-batches, and returns each batch's processing time, without reading the clock.

Every row is in exactly one micro-batch. Rows of one micro-batch keep the order of their input. Rows with the same
arrival are in the same micro-batch. Cutting by a column costs one sort, and a copy of each micro-batch's rows when it
is processed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.display import format_time
from cojoin.engine.time.watermarks import END_OF_TIME
from cojoin.engine.values.arguments import Duration, microseconds
from cojoin.engine.values.tables import take_rows
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import ConfigurationError, SchemaError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.operator import Sides

Batches: TypeAlias = int | Iterable[tuple[int, int]] | None
"""The cut of rows in their order: a number of batches, or for each batch a pair of row counts, left and right."""

Arrival: TypeAlias = str | tuple[str, str] | None
"""The column by which rows arrive: one name for both inputs, or the left's and the right's."""

Moment: TypeAlias = datetime | int
"""A time: a datetime with a time zone, or epoch milliseconds."""

Clock: TypeAlias = Moment | Iterable[Moment] | None
"""The processing time of all batches, or one for each; 0 is unknown."""

_ARRIVALS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_timestamp, pa.types.is_date)
"""The types of an arrival column; strings are not among them, since "10" sorts before "9"."""

_LONGEST_US = (1 << 63) - 1
"""The longest window in microseconds; no time is further from the epoch."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Cuts:
    """Two inputs, cut into micro-batches.

    Attributes:
        rows: The rows of both inputs.
        orders: The positions of each input's rows, in the order of the micro-batches; None if they are in that order.
        bounds: The index in that order at which each micro-batch of an input begins; the last one is its row count.
        ends: The end of each micro-batch's arrival window, in epoch milliseconds; None where that is unknown.
    """

    rows: Sides
    orders: tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]
    bounds: tuple[Sequence[int], Sequence[int]]
    ends: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.bounds[0]) - 1

    def batch(self, number: int) -> Sides:
        """Return a micro-batch's rows of both inputs."""
        return self._part(0, number), self._part(1, number)

    def _part(self, side: int, number: int) -> pa.Table:
        start, stop = self.bounds[side][number : number + 2]
        order = self.orders[side]
        table = self.rows[side]
        return table.slice(start, stop - start) if order is None else take_rows(table, order[start:stop])


def cut_batches(
    inputs: tuple[InputSpec, InputSpec], rows: Sides, batches: Batches, arrival: Arrival, every: Duration | None
) -> Cuts:
    """Return two inputs cut into micro-batches; ``Joined.steps`` documents the ways."""
    if batches is not None and (arrival is not None or every is not None):
        other = "arrival" if arrival is not None else "every"
        msg = (
            f"batches, {other}: rows can be cut in one way only; leave out batches= to cut by a column, or {other}= to "
            f"cut by numbers of rows"
        )
        raise ConfigurationError(msg)
    if arrival is not None:
        return _by_arrival(inputs, rows, arrival, every)
    if every is not None:
        return _by_event_time(inputs, rows, every)
    counts = (rows[0].num_rows, rows[1].num_rows)
    if batches is None:
        return Cuts(rows, (None, None), ([0, counts[0]], [0, counts[1]]))
    if isinstance(batches, (int, np.integer)):
        return Cuts(rows, (None, None), _even(batches, counts))
    return Cuts(rows, (None, None), _counted(batches, inputs, counts))


def processing_times(cuts: Cuts, clock: Clock) -> list[int]:
    """Return each batch's processing time in epoch milliseconds, by default the end of its arrivals; 0 is unknown."""
    if clock is None:
        times = [0] * len(cuts) if cuts.ends is None else list(cuts.ends)
        if times and cuts.ends is not None and times[0] <= 0:
            msg = (
                f"processing_time: rows arrive up to {format_time(times[0])}, and processing times are after "
                f"{format_time(0)}; give processing_time= a time for each batch, or 0 if it is unknown"
            )
            raise ConfigurationError(msg)
        return times
    if isinstance(clock, (datetime, int, np.integer)) or not isinstance(clock, Iterable) or isinstance(clock, str):
        return [_epoch_millis(clock, "processing_time")] * len(cuts)
    times = [_epoch_millis(each, f"processing_time[{place}]") for place, each in enumerate(clock)]
    if len(times) != len(cuts):
        msg = (
            f"processing_time: expected one time for each of the {_count(len(cuts), 'batch')}, got {len(times)}; the "
            f"drain after them uses the time of the last batch"
        )
        raise ConfigurationError(msg)
    for place, (before, after) in enumerate(pairwise(times), start=1):
        if after < before:
            msg = (
                f"processing_time[{place}]: it goes back, from {format_time(before)} to "
                f"{format_time(after) if after else 'unknown'}; give the times in order"
            )
            raise ConfigurationError(msg)
    return times


def _epoch_millis(moment: Any, label: str) -> int:
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            msg = f"{label}: {moment!r} has no time zone; name the one that is meant, such as with tzinfo=timezone.utc"
            raise ConfigurationError(msg)
        millis = (moment - _EPOCH) // timedelta(milliseconds=1)
    elif isinstance(moment, (int, np.integer)) and not isinstance(moment, bool):
        millis = int(moment)
    else:
        msg = (
            f"{label}: expected a datetime with a time zone, or epoch milliseconds as a whole number, got {moment!r} "
            f"({type(moment).__name__})"
        )
        raise ConfigurationError(msg)
    if not 0 <= millis < END_OF_TIME:
        msg = f"{label}: expected a time from 1970 on, below {END_OF_TIME} epoch milliseconds, got {moment!r}"
        raise ConfigurationError(msg)
    return millis


def _even(batches: Any, counts: tuple[int, int]) -> tuple[list[int], list[int]]:
    if isinstance(batches, bool) or batches < 1:
        msg = f"batches: expected a whole number above zero, or pairs of row counts, got {batches!r}"
        raise ConfigurationError(msg)
    left, right = ([-(-count * number // batches) for number in range(batches + 1)] for count in counts)
    return left, right


def _counted(batches: Any, inputs: tuple[InputSpec, InputSpec], counts: tuple[int, int]) -> tuple[list[int], list[int]]:
    if not isinstance(batches, Iterable) or isinstance(batches, (str, bytes)):
        msg = (
            f"batches: expected a number of batches, or pairs of row counts such as [(2, 1), (0, 3)], got {batches!r}; "
            f"to cut by a column, use arrival= or every="
        )
        raise ConfigurationError(msg)
    bounds: tuple[list[int], list[int]] = ([0], [0])
    for place, pair in enumerate(batches):
        if not isinstance(pair, (tuple, list, np.ndarray)) or len(pair) != 2 or not all(map(_is_count, pair)):
            msg = f"batches[{place}]: expected the next rows of the left and of the right, such as (2, 1), got {pair!r}"
            raise ConfigurationError(msg)
        for side, number in zip(bounds, pair, strict=True):
            side.append(side[-1] + int(number))
    for spec, side, count in zip(inputs, bounds, counts, strict=True):
        if side[-1] != count:
            differs = (
                f"{_count(count - side[-1], 'row')} would be in no batch"
                if side[-1] < count
                else f"{side[-1] - count:,} too many"
            )
            msg = (
                f"batches: they take {_count(side[-1], 'row')} of input {spec.name!r}, which has {count:,}: {differs}; "
                f"let the pairs add up to {counts}"
            )
            raise ConfigurationError(msg)
    return bounds


def _is_count(number: Any) -> bool:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool) and int(number) >= 0


def _by_arrival(inputs: tuple[InputSpec, InputSpec], rows: Sides, arrival: Arrival, every: Duration | None) -> Cuts:
    names = (arrival, arrival) if isinstance(arrival, str) else arrival
    if not isinstance(names, (tuple, list)) or len(names) != 2 or not all(isinstance(each, str) for each in names):
        msg = f"arrival: expected a column's name, or a pair of names, left and right, got {arrival!r}"
        raise ConfigurationError(msg)
    left, right = (_arrivals(*each) for each in zip(inputs, rows, names, strict=True))
    kinds = [type_to_ddl(each.type) for each in (left, right)]
    if kinds[0] != kinds[1]:
        msg = (
            f"arrival: column {names[0]!r} of input {inputs[0].name!r} is {kinds[0]}, column {names[1]!r} of input "
            f"{inputs[1].name!r} is {kinds[1]}; cast one, so that their order is known"
        )
        raise SchemaError(msg)
    is_time = pa.types.is_timestamp(left.type)
    if every is not None:
        if not is_time:
            msg = f"every: expected an arrival column of times, got {names[0]!r}, which is {kinds[0]}; leave every= out"
            raise SchemaError(msg)
        length = _window(every)
        return _by_windows(rows, (_micros(left), _micros(right)), length, ends=True)
    if is_time:
        return _by_windows(rows, (_micros(left), _micros(right)), 1, ends=True)
    whole = pa.chunked_array([*left.chunks, *right.chunks], left.type)
    ranks = pc.rank(whole, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    return _numbered(rows, (ranks[: len(left)], ranks[len(left) :]))


def _arrivals(spec: InputSpec, rows: pa.Table, name: str) -> pa.ChunkedArray:
    if name not in rows.column_names:
        near = did_you_mean(name, rows.column_names)
        msg = (
            f"arrival: input {spec.name!r} has no column {name!r}{near}; where the columns differ, give a pair of "
            f"names, left and right"
        )
        raise SchemaError(msg)
    column = rows.column(name)
    label = f"arrival: column {name!r} of input {spec.name!r}"
    kind = type_to_ddl(column.type)
    if not any(is_kind(column.type) for is_kind in _ARRIVALS):
        cure = "convert it to one of these" if kind == "string" else "take another column"
        msg = f"{label} is {kind}; expected numbers, timestamps or dates, whose order is that of arrival: {cure}"
        raise SchemaError(msg)
    if pa.types.is_timestamp(column.type) and column.type.tz is None:
        msg = f"{label} is {kind}: it has no time zone; convert it to timestamps with the zone that is meant"
        raise SchemaError(msg)
    if column.null_count:
        row = pc.index(pc.is_null(column), value=True).as_py()
        msg = f"{label} is null in row {row}, so it never arrives; fill it, or cut with batches="
        raise SchemaError(msg)
    return column


def _by_event_time(inputs: tuple[InputSpec, InputSpec], rows: Sides, every: Duration) -> Cuts:
    length, times = _window(every), []
    for spec, table in zip(inputs, rows, strict=True):
        if spec.event_time is None:
            msg = (
                f"every: input {spec.name!r} has no event time; name the column by which its rows arrive with arrival="
            )
            raise ConfigurationError(msg)
        # A row without event time is rejected, in the batch of the row before it, or after it if it is the first.
        known = pa.array(spec.micros(table), mask=spec.without_time(table))
        times.append(_micros(pc.fill_null_backward(pc.fill_null_forward(known))))
    return _by_windows(rows, (times[0], times[1]), length, ends=False)


def _micros(times: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    return times.cast(pa.int64()).fill_null(0).to_numpy()  # type: ignore[no-any-return]


def _window(every: Duration) -> int:
    length = microseconds(every, "every")
    if not length:
        msg = f"every: must be longer than zero, got {every!r}"
        raise ConfigurationError(msg)
    if length > _LONGEST_US:
        msg = (
            f"every: expected at most {_LONGEST_US} microseconds, some 292,000 years, got {every!r}; to have all rows "
            f"in one batch, leave every= out"
        )
        raise ConfigurationError(msg)
    return length


def _by_windows(rows: Sides, times: tuple[NDArray[np.int64], NDArray[np.int64]], length: int, *, ends: bool) -> Cuts:
    """Return inputs cut by windows of time, in microseconds, that are aligned to the epoch; empty ones are left out."""
    windows = [np.floor_divide(each, length) for each in times]
    known, numbers = np.unique(np.concatenate(windows), return_inverse=True)
    cuts = _numbered(rows, (numbers[: len(times[0])], numbers[len(times[0]) :]))
    if not ends:
        return cuts
    # A window of one microsecond ends at that microsecond, a longer one where the next begins, both rounded up to ms.
    last = [(int(each) + (length > 1)) * length for each in known]
    return Cuts(cuts.rows, cuts.orders, cuts.bounds, [-(-each // 1_000) for each in last])


def _numbered(rows: Sides, numbers: tuple[NDArray[np.int64], NDArray[np.int64]]) -> Cuts:
    """Return inputs cut by the number of each row's batch, in the order of the numbers that occur."""
    present = np.unique(np.concatenate(numbers))
    orders, bounds = [], []
    for side in numbers:
        order = np.argsort(side, kind="stable")
        orders.append(order)
        bounds.append([*np.searchsorted(side[order], present).tolist(), len(order)])
    return Cuts(rows, (orders[0], orders[1]), (bounds[0], bounds[1]))


def _count(number: int, label: str) -> str:
    plural = f"{label}es" if label.endswith("ch") else f"{label}s"
    return f"{number:,} {label if number == 1 else plural}"
