"""What the results must be, worked out from scratch: no watermarks' plumbing, no Arrow, no key groups, no batches.

The as-of join three times (by brute force over the declared total order, by pandas' ``merge_asof``, by DuckDB's ``ASOF
JOIN``), the temporal and the interval join twice (by brute force and by DuckDB's plain SQL), and a function's run by a
loop over the laws of time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from datetime import datetime, timedelta, timezone
from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import duckdb
import pandas as pd

from tests.streams import AT

if TYPE_CHECKING:
    from collections.abc import Callable

    from cojoin.engine.functions import KeyedCoProcessFunction
    from tests.streams import Streams

NONE, END_OF_TIME = -(1 << 63), (1 << 63) - 1

Deleted: TypeAlias = "Callable[[tuple[Any, ...]], bool]"
"""Says whether a row is a tombstone."""

Matches = list[int | None]
"""For each left row the position of its version, or None."""


def canonical(value: Any) -> tuple[Any, ...]:
    """Spell a value so that Python sorts it as the total order does: nulls first, -0.0 before 0.0, NaN last."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (1, 1, 0.0, 0) if math.isnan(value) else (1, 0, value, math.copysign(1, value))
    if isinstance(value, list):
        return (1, tuple(map(canonical, value)))
    return (1, value)


def total_order(streams: Streams, side: int, row: tuple[Any, ...], deleted: Deleted | None = None) -> tuple[Any, ...]:
    """Spell a row so that Python sorts the rows of a key by the declared total order.

    What the sequence does not order, it orders by whether it is a tombstone, if that is told.
    """
    spec = streams.inputs[side]
    by_name = dict(zip(spec.schema.names, row, strict=True))
    sequence = tuple(canonical(by_name[name]) for name in spec.source_order)
    dead = deleted is not None and deleted(row)
    return (row[AT], 1 - side, not spec.sequence and dead, sequence, dead, tuple(map(canonical, row)))


def brute_force(streams: Streams, tolerance_us: int | None, *, exact: bool, deleted: Deleted | None = None) -> Matches:
    """Match by trying all pairs."""
    matches: Matches = []
    for left in streams.rows[0]:
        old_enough = [
            position
            for position, right in enumerate(streams.rows[1])
            if streams.key(0, left) == streams.key(1, right)
            and (right[AT] < left[AT] or (exact and right[AT] == left[AT]))
        ]
        by_order = {position: total_order(streams, 1, streams.rows[1][position], deleted) for position in old_enough}
        found = max(by_order, key=by_order.__getitem__, default=None)
        if found is not None and tolerance_us is not None and left[AT] - streams.rows[1][found][AT] > tolerance_us:
            found = None
        matches.append(found)
    return matches


def pandas_merge_asof(streams: Streams, tolerance_us: int | None, *, exact: bool) -> Matches:
    """Match by ``pandas.merge_asof``, which takes the last of equal times."""
    left, right = _frames(streams)
    merged = pd.merge_asof(
        left.sort_values("micros", kind="stable"),
        right,
        on="micros",
        by="key",
        tolerance=tolerance_us,
        allow_exact_matches=exact,
    )
    return _in_left_order(streams, zip(merged["left"], merged["right"], strict=True))


def duckdb_asof_join(streams: Streams, tolerance_us: int | None, *, exact: bool) -> Matches:
    """Match by DuckDB, which leaves open which of equal times it takes: only the last of them is there."""
    left, right = _frames(streams)
    right = right.drop_duplicates(["key", "micros"], keep="last")
    with duckdb.connect() as connection:
        connection.register("l", left).register("r", right)
        pairs = connection.sql(
            f"""SELECT l."left", CASE WHEN {tolerance_us is None} OR l.micros - r.micros <= {tolerance_us or 0}
                THEN r."right" END
                FROM l ASOF LEFT JOIN r ON l.key = r.key AND l.micros {">=" if exact else ">"} r.micros"""
        ).fetchall()
    return _in_left_order(streams, pairs)


def _frames(streams: Streams, deleted: Deleted | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    frames = []
    for side, name in enumerate(("left", "right")):
        rows = sorted(enumerate(streams.rows[side]), key=lambda each: total_order(streams, side, each[1], deleted))
        columns = {
            # A key with a null is null, as in SQL.
            "key": pd.Series([_spelled_key(streams.key(side, row)) for _, row in rows], dtype="string"),
            "micros": pd.Series([row[AT] for _, row in rows], dtype="int64"),
            name: pd.Series([position for position, _ in rows], dtype="int64"),
        }
        frames.append(pd.DataFrame(columns))
    return frames[0], frames[1]


def _spelled_key(key: tuple[Any, ...]) -> str | None:
    return None if None in key else repr(key)


def _in_left_order(streams: Streams, pairs: Any) -> Matches:
    found = {int(left): None if pd.isna(right) else int(right) for left, right in pairs}
    return [found[position] for position in range(len(streams.rows[0]))]


def joined_rows(streams: Streams, matches: Matches, how: str) -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
    """Return each key's output rows in the declared order."""
    width = len(streams.inputs[0].key)
    order = sorted(range(len(matches)), key=lambda position: total_order(streams, 0, streams.rows[0][position]))
    rows = defaultdict(list)
    for position in order:
        left, match = streams.rows[0][position], matches[position]
        if match is None and how == "inner":
            continue
        right = (None,) * 6 if match is None else streams.rows[1][match]
        rows[left[:width]].append((*left, *right[width:]))
    return dict(rows)


Pairs = list[tuple[int | None, int | None]]
"""The rows of a result, as positions of their left and right rows; None where one has no match."""


def brute_force_directed(streams: Streams, tolerance_us: int | None, *, exact: bool, direction: str) -> Matches:
    """Match by trying all pairs: the nearest in time, behind before ahead, then the last in the total order."""
    matches: Matches = []
    for left in streams.rows[0]:
        best = None
        for position, right in enumerate(streams.rows[1]):
            away = right[AT] - left[AT]
            looks = {"backward": away <= 0, "forward": away >= 0, "nearest": True}[direction]
            if not looks or streams.key(0, left) != streams.key(1, right) or (away == 0 and not exact):
                continue
            if tolerance_us is None or abs(away) <= tolerance_us:
                same_time = [-abs(away), away <= 0]
                found = (same_time, total_order(streams, 1, right), position)
                best = found if best is None else max(best, found)
        matches.append(None if best is None else best[-1])
    return matches


def pandas_merge_asof_directed(streams: Streams, tolerance_us: int | None, *, exact: bool, direction: str) -> Matches:
    """Match by ``pandas.merge_asof``, which takes the first of equal times ahead: only the last of them is there."""
    left, right = _frames(streams)
    merged = pd.merge_asof(
        left.sort_values("micros", kind="stable"),
        right.drop_duplicates(["key", "micros"], keep="last").sort_values("micros", kind="stable"),
        on="micros",
        by="key",
        tolerance=tolerance_us,
        allow_exact_matches=exact,
        direction=direction,
    )
    return _in_left_order(streams, zip(merged["left"], merged["right"], strict=True))


def asof_moment(streams: Streams, tolerance_us: int | None, direction: str, left: int, right: int | None) -> int:
    """Say when a match is certain, a microsecond after the other: the first at which no later one could change it."""
    own = streams.rows[0][left][AT]
    if direction == "backward":
        return own // 1_000
    ends = [] if tolerance_us is None else [own + tolerance_us]
    if right is not None:
        other = streams.rows[1][right][AT]
        ends.append(other if other > own else own + max(own - other - 1, 0))
    return min(ends, default=END_OF_TIME * 1_000) // 1_000


def temporal_join(streams: Streams, retention_us: int | None, deleted: Deleted) -> Matches:
    """Match by DuckDB: every version but the tombstones is in force from its time to before its successor's."""
    left, right = _frames(streams, deleted)
    right = right.drop_duplicates(["key", "micros"], keep="last")
    right["deleted"] = [deleted(streams.rows[1][position]) for position in right["right"]]
    right = right.astype({"deleted": bool})
    with duckdb.connect() as connection:
        connection.register("l", left).register("r", right)
        pairs = connection.sql(
            f"""WITH v AS (SELECT *, lead(micros) OVER (PARTITION BY key ORDER BY micros) AS until FROM r)
                SELECT l."left", v."right" FROM l LEFT JOIN v ON l.key = v.key AND NOT v.deleted
                AND l.micros >= v.micros AND (v.until IS NULL OR l.micros < v.until)
                AND ({retention_us is None} OR l.micros - v.micros <= {retention_us or 0})"""
        ).fetchall()
    return _in_left_order(streams, pairs)


def interval_join(streams: Streams, bounds: tuple[int, int], inclusive: tuple[bool, bool], how: str) -> Pairs:
    """Pair by trying all pairs."""
    pairs: Pairs = []
    for position, left in enumerate(streams.rows[0]):
        for other, right in enumerate(streams.rows[1]):
            away = right[AT] - left[AT]
            if streams.key(0, left) == streams.key(1, right) and (
                bounds[0] < away < bounds[1]
                or (inclusive[0] and away == bounds[0] <= bounds[1])
                or (inclusive[1] and away == bounds[1] >= bounds[0])
            ):
                pairs.append((position, other))
    matched = [{pair[side] for pair in pairs} for side in (0, 1)]
    lefts = [each for each in range(len(streams.rows[0])) if how in {"left", "full"} and each not in matched[0]]
    rights = [each for each in range(len(streams.rows[1])) if how in {"right", "full"} and each not in matched[1]]
    return [*pairs, *((each, None) for each in lefts), *((None, each) for each in rights)]


def duckdb_interval_join(streams: Streams, bounds: tuple[int, int], inclusive: tuple[bool, bool], how: str) -> Pairs:
    """Pair by DuckDB, in plain SQL."""
    left, right = _frames(streams)
    above, below = (">=" if inclusive[0] else ">"), ("<=" if inclusive[1] else "<")
    with duckdb.connect() as connection:
        connection.register("l", left).register("r", right)
        return connection.sql(
            f"""SELECT l."left", r."right" FROM l {how.upper()} JOIN r ON l.key = r.key
                AND r.micros - l.micros {above} {bounds[0]} AND r.micros - l.micros {below} {bounds[1]}"""
        ).fetchall()


def interval_moment(
    streams: Streams, bounds: tuple[int, int], inclusive: tuple[bool, bool], pair: tuple[int | None, int | None]
) -> int:
    """Say when a row of the result is certain: both have come, or the last moment of a match has passed."""
    first, last = bounds[0] + (not inclusive[0]), bounds[1] - (not inclusive[1])
    ends = []
    if pair[0] is not None:
        ends += [streams.rows[0][pair[0]][AT]] + [streams.rows[0][pair[0]][AT] + last] * (pair[1] is None)
    if pair[1] is not None:
        ends += [streams.rows[1][pair[1]][AT]] + [streams.rows[1][pair[1]][AT] - first] * (pair[0] is None)
    return max(ends) // 1_000


def rows_in_order(
    streams: Streams, pairs: Pairs, moment: Callable[[int | None, int | None], int]
) -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
    """Return each key's rows of a result by their moments, then by the left's, then by the right's declared order."""
    width = len(streams.inputs[0].key)

    places: list[dict[int | None, int]] = [{None: -1}, {None: -1}]
    for side in (0, 1):
        rows = streams.rows[side]
        order = sorted(range(len(rows)), key=lambda position: total_order(streams, side, rows[position]))
        places[side].update({position: place for place, position in enumerate(order)})

    def place(pair: tuple[int | None, int | None]) -> tuple[int, ...]:
        return (moment(*pair), places[0][pair[0]], places[1][pair[1]])

    result = defaultdict(list)
    for left, right in sorted(pairs, key=place):
        other = (None,) * 6 if right is None else streams.rows[1][right]
        row = (*other[:width], *(None,) * (7 - width)) if left is None else streams.rows[0][left]
        result[row[:width]].append((*row, *other[width:]))
    return dict(result)


def micros(value: Any) -> Any:
    """Return a time of a result in epoch microseconds, as the drawn rows have it; all else as it is."""
    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)
    return value


def spelled(rows: dict[tuple[Any, ...], list[tuple[Any, ...]]]) -> dict[tuple[Any, ...], list[str]]:
    """Spell rows, so that NaN equals itself."""
    return {key: [repr(row) for row in mine] for key, mine in rows.items()}


def result_by_key(streams: Streams, rows: list[Any]) -> dict[tuple[Any, ...], list[str]]:
    """Part the rows of a result by key and keep the order within each, spelled as ``spelled`` does."""
    return by_key([tuple(map(micros, row)) for row in rows], len(streams.inputs[0].key))


class Simulation:
    """Runs a function by the laws of event time, key by key; it is also every handle that the function gets."""

    def __init__(self, function: KeyedCoProcessFunction, streams: Streams) -> None:
        self.function = function
        self.streams = streams
        self.states: dict[str, dict[Any, Any]] = defaultdict(dict)
        self.outputs: list[Any] = []
        self.not_fired = 0

    def run(self) -> SimpleNamespace:
        """Return all rows that the function yields, and how many timers the drain left."""
        self.function.open(self)  # type: ignore[arg-type]
        streams = self.streams
        keys = {streams.key(side, row) for side in (0, 1) for row in streams.rows[side]}
        for key in keys:
            self._run_key(key)
        return SimpleNamespace(rows=self.outputs, not_fired=self.not_fired)

    def _run_key(self, key: tuple[Any, ...]) -> None:
        self.key, self.watermark, self.timers, self.refused = key, NONE, set(), set()
        self.sweeps, self.last_event = False, None
        streams, reached = self.streams, NONE
        mine = [(side, row) for side in (0, 1) for row in streams.rows[side] if streams.key(side, row) == key]
        mine.sort(key=lambda each: total_order(streams, *each))
        for limit, self.last_event in [(streams.watermark(), None), (END_OF_TIME, streams.last_event())]:
            due = [each for each in mine if reached < each[1][AT] // 1_000 <= limit]
            for time, rows in groupby(due, key=lambda each: each[1][AT] // 1_000):
                self._fire(time - 1)
                self.watermark, self.time = time - 1, time
                for side, row in rows:
                    names = streams.inputs[side].schema.names
                    value = SimpleNamespace(**dict(zip(names, row, strict=True)))
                    self._call((self.function.process_element1, self.function.process_element2)[side], value)
            self._fire(limit)
            reached = limit
        self.not_fired += len(self.refused)

    def _fire(self, limit: int) -> None:
        self.sweeps = True
        while self.timers and min(self.timers) <= limit:
            self.time = min(self.timers)
            self.timers.remove(self.time)
            self.watermark = max(self.watermark, self.time)
            self._call(self.function.on_timer, self.time)
        self.sweeps = False

    def _call(self, callback: Callable[[Any, Any], Any], value: Any) -> None:
        self.outputs.extend(callback(value, self) or ())

    def timestamp(self) -> int:
        return self.time

    def get_current_key(self) -> Any:
        return self.key if len(self.key) > 1 else self.key[0]

    def timer_service(self) -> Simulation:
        return self

    def current_watermark(self) -> int:
        return self.watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        if timestamp in self.timers:
            return
        if self.sweeps and self.last_event is not None and timestamp > self.last_event:
            self.refused.add(timestamp)
        else:
            self.refused.discard(timestamp)
            self.timers.add(timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self.timers.discard(timestamp)
        self.refused.discard(timestamp)

    def get_state(self, descriptor: Any) -> SimpleNamespace:
        entries = self.states[descriptor.name]
        return SimpleNamespace(
            value=lambda: entries.get(self.key),
            update=lambda value: entries.__setitem__(self.key, value),
            clear=lambda: entries.pop(self.key, None),
        )

    def get_list_state(self, descriptor: Any) -> SimpleNamespace:
        entries = self.states[descriptor.name]
        return SimpleNamespace(
            get=lambda: list(entries.get(self.key, [])),
            add=lambda value: entries.setdefault(self.key, []).append(value),
            update=lambda values: entries.__setitem__(self.key, list(values)),
            clear=lambda: entries.pop(self.key, None),
        )

    def get_map_state(self, descriptor: Any) -> SimpleNamespace:
        entries = self.states[descriptor.name]
        return SimpleNamespace(
            get=lambda user_key: entries.get(self.key, {}).get(user_key),
            put=lambda user_key, value: entries.setdefault(self.key, {}).__setitem__(user_key, value),
            remove=lambda user_key: entries.get(self.key, {}).pop(user_key, None),
            items=lambda: list(entries.get(self.key, {}).items()),
        )


def by_key(rows: list[Any], width: int = 1) -> dict[Any, list[Any]]:
    """Part rows by their first fields and keep the order within each; spelled, so that NaN equals itself."""
    parted = defaultdict(list)
    for row in rows:
        parted[tuple(row[:width])].append(repr(tuple(row)))
    return dict(parted)


def bag(rows: list[Any]) -> Counter[str]:
    """Return rows without their order; spelled, so that NaN equals itself."""
    return Counter(repr(tuple(row)) for row in rows)
