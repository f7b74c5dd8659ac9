"""The interval join: every pair of one key whose right row is ``lower`` to ``upper`` after its left row.

It keeps both sides' rows until no later row can match them, each with a flag whether it has matched.

It emits each pair once, when the watermark reaches the later of its two timestamps. With ``how`` left, right or full,
it emits a row without any match once, when the row is forgotten, with nulls for the other side; the key column then
holds the row's own key. A key's rows are emitted in the order of these moments. At equal moments, the left rows' total
order decides, then the right rows'.

It forgets a left row of time x when the watermark has reached both x and x + ``upper``, and a right row of time x when
it has reached both x and x - ``lower``. No ties need breaking: every row pairs with every other row in range, exact
to the microsecond. A late row is rejected by default. With ``late="apply"`` it is joined with the rows that are
still kept, and forgotten at once if no later row can match it.

Each batch costs a sort of the new rows as integers, a merge with the kept rows in memory, a binary search for each new
row, and the copies of the pairs; no Python for each row. After a restore, the kept rows are also sorted once, since
they may be in any order. Kept rows in segments (``segmented_table``) are looked up by the keys of the new rows, one
range of hashes after another where they are many, and sorted with them. Rows that may still be emitted without a match
are always in memory. A row in segments that has ended is counted until it is read or compacted. (Flink's
``IntervalJoin`` and ``TimeIntervalJoin``; here the output is in event-time order.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from cojoin.engine.joins.output_columns import JoinedColumns, Suffixes, joined_schema
from cojoin.engine.joins.search import at, expand, ranges, shift, sort_alone, sort_sides
from cojoin.engine.operator import OUTPUT, Emission, Operator, refuse_refresh
from cojoin.engine.ordering import stable_argsort
from cojoin.engine.state.segmented_table import Expired, SegmentedTable
from cojoin.engine.state.segments import MATCHED
from cojoin.engine.time.watermarks import END_OF_TIME
from cojoin.engine.values.arguments import Duration, check_flag, check_word, microseconds
from cojoin.engine.values.rows import free_name
from cojoin.engine.values.tables import concat, event_millis, take_rows
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.joins.search import SortedRows
    from cojoin.engine.operator import Sides
    from cojoin.engine.state.segmented_table import HashRange
    from cojoin.engine.time.operator_watermark import TimePolicy

IntervalHow: TypeAlias = Literal["inner", "left", "right", "full"]
"""What happens to a row without any match.

- *inner*: it is not emitted, and counted as done.
- *left*: a left row is emitted with nulls for the right's columns.
- *right*: a right row is emitted with nulls for the left's columns, except the key, which is its own.
- *full*: both.
"""

_OF_OTHERS = {
    "outer": "full",
    "full_outer": "full",
    "fullouter": "full",
    "left_outer": "left",
    "leftouter": "left",
    "right_outer": "right",
    "rightouter": "right",
}
"""Words of pandas and Spark, and the word of this join for each."""

_ROWS_AT_ONCE = 1 << 18
"""The number of rows of the result that are built at a time: there may be many pairs, and each copies its rows."""

_MINUS = re.compile(r"\s*(?:interval\s+)?-\s*(?=[\d.])", re.IGNORECASE)


@dataclass(frozen=True)
class IntervalJoin:
    """The configuration of an interval join: the right time minus the left time of a pair is within two bounds.

    Attributes:
        lower: The smallest difference: ``"5 seconds"`` or a ``timedelta``. A negative one, such as ``"-5 seconds"``,
            lets the right row be earlier; the sign applies to the whole text.
        upper: The largest difference.
        how: What happens to a row without any match.
        lower_inclusive: Whether a right row exactly ``lower`` later matches.
        upper_inclusive: Whether a right row exactly ``upper`` later matches.
        suffixes: The suffixes for names that the left and the right both have; None refuses such names.

    Raises:
        ConfigurationError: A value is invalid, or no pair can be within the bounds.

    >>> IntervalJoin("-5 seconds", "1 minute", upper_inclusive=False).bounds
    (-5000000, 59999999)
    """

    lower: Duration
    upper: Duration
    how: IntervalHow = "inner"
    lower_inclusive: bool = True
    upper_inclusive: bool = True
    suffixes: Suffixes | None = None

    def __post_init__(self) -> None:
        if self.how in _OF_OTHERS:
            own = _OF_OTHERS[self.how]
            msg = f"how: expected 'inner', 'left', 'right' or 'full', got {self.how!r}; write how={own!r}"
            raise ConfigurationError(msg)
        check_word("how", self.how, get_args(IntervalHow))
        for name, value in (("lower_inclusive", self.lower_inclusive), ("upper_inclusive", self.upper_inclusive)):
            check_flag(name, value)
        lower, upper = self.bounds
        if _signed(self.lower, "lower") > _signed(self.upper, "upper"):
            msg = f"lower: expected no more than upper, got lower={self.lower!r}, upper={self.upper!r}; swap them"
            raise ConfigurationError(msg)
        if lower > upper:
            msg = (
                f"lower, upper: no time is between {self.lower!r} and {self.upper!r} when the bounds themselves are "
                f"excluded; leave lower_inclusive and upper_inclusive True, or set lower and upper further apart"
            )
            raise ConfigurationError(msg)

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest difference of a pair in microseconds, both included."""
        lower, upper = _signed(self.lower, "lower"), _signed(self.upper, "upper")
        return lower + (not self.lower_inclusive), upper - (not self.upper_inclusive)

    def output_schema(self, left: InputSpec, right: InputSpec) -> pa.Schema:
        """Return the columns of the result: the left's, then the right's without its key."""
        refuse_refresh(right, "interval_join", "pairs with rows of the former version may already be emitted")
        return joined_schema(left, right, self.suffixes, how=self.how)

    def create_operator(
        self, left: InputSpec, right: InputSpec, time: TimePolicy | None = None
    ) -> IntervalJoinOperator:
        """Return the operator of one key group."""
        return IntervalJoinOperator(self, left, right, time)

    def describe(self) -> dict[str, Any]:
        """Return the settings that must stay the same for a checkpoint to be used again, as JSON values."""
        lower, upper = self.bounds
        return {"operator": "interval_join", "how": self.how, "lower_us": lower, "upper_us": upper}


class IntervalJoinOperator(Operator):
    """The operator that runs an interval join for one key group."""

    def __init__(self, join: IntervalJoin, left: InputSpec, right: InputSpec, time: TimePolicy | None = None) -> None:
        super().__init__((left, right), ("reject", "reject"), time)
        self._columns = JoinedColumns(left, right, join.output_schema(left, right))
        self._pads = (join.how in {"left", "full"}, join.how in {"right", "full"})
        self._lower, self._upper = join.bounds
        self.output_delay_ms = -(-max(abs(self._lower), abs(self._upper)) // 1_000)
        self._kept = (self._table(0, None), self._table(1, None))
        # Whether the memtables are in the total order within each key.
        self._settled = True

    def _table(self, side: int, stored: pa.Table | None) -> SegmentedTable:
        """Return a side's rows, whose last column is the flag; that of stored rows may have another name."""
        spec = self.inputs[side]
        rows = self.input_rows(side, None if stored is None else stored.drop_columns([stored.column_names[-1]]))
        flags = pa.array([], pa.bool_()) if stored is None else stored.column(stored.num_columns - 1)
        # Rows of segments are dropped unseen when they have ended, so those that are to be emitted then stay.
        stays = (lambda table: ~_flags_of(table)) if self._pads[side] else None
        flagged = rows.append_column(pa.field(_flag_name(spec), pa.bool_()), flags)
        return SegmentedTable(flagged, spec.key, f"input {spec.name!r}", stays)

    def unmatched(self, side: int, rows: pa.Table) -> pa.Table:
        """Return rows with a null key as rows without a match."""
        return self._columns.alone(side, sort_alone(self.inputs, side, rows))

    def advance(self, due: Sides, before: int, after: int, last_event: int | None) -> Iterator[Emission]:
        """Join the due rows with the kept rows and with each other, then forget rows that can't match any more."""
        del before, last_event
        if due[0].num_rows or due[1].num_rows or self._any_ended(after):
            rows = [(each, spec.keys(each)) for spec, each in zip(self.inputs, due, strict=True)]
            settled, self._settled = self._settled, True
            for within, (left, right) in self.by_key_range(self._kept, rows):
                kept = self.waiting_rows()
                yield from self._join((left, right), after, within, settled=settled)
                self._count_done(kept[0] + left.num_rows, kept[1] + right.num_rows)
        kept = self.waiting_rows()
        self._expire(after)
        self._count_done(*kept)

    def _count_done(self, *rows: int) -> None:
        """Count the rows of each side that are done, of those that were kept or came."""
        for counts, were, are in zip(self.counts, rows, self.waiting_rows(), strict=True):
            counts.done += were - are

    def _join(self, due: Sides, after: int, within: HashRange | None, *, settled: bool) -> Iterator[Emission]:
        """Join the due rows, and keep those of all rows in memory that a later row may match.

        All are of keys in a range of hashes.
        """
        touched = [spec.keys(rows) for spec, rows in zip(self.inputs, due, strict=True)]
        taken = [table.take(touched, within) for table in self._kept]
        known = [table.memtable.num_rows if settled else 0 for table in self._kept]
        matched_before = [_flags_of(table) for table in taken]
        left, right = (
            concat([table.drop_columns([table.column_names[-1]]), rows]).combine_chunks()
            for table, rows in zip(taken, due, strict=True)
        )
        sides = sort_sides(self.inputs, (left, right), (known[0], known[1]))
        fresh = [side.order >= table.num_rows for side, table in zip(sides, taken, strict=True)]
        lefts, rights = self._pairs(sides, fresh)
        matched, ends, lonely = [], [], []
        for number, (side, positions) in enumerate(zip(sides, (lefts, rights), strict=True)):
            flags = np.append(matched_before[number], np.zeros(due[number].num_rows, dtype=bool))[side.order]
            flags[positions] = True
            matched.append(flags)
            ends.append(self._ends(number, side.micros))
            lonely.append(np.flatnonzero(~flags & (ends[number] <= after) & self._pads[number]))
        no_left, no_right = np.full(len(lonely[1]), -1), np.full(len(lonely[0]), -1)
        releases = event_millis(np.maximum(at(sides[0].micros, lefts), at(sides[1].micros, rights)))
        releases = np.concatenate([releases, ends[0][lonely[0]], ends[1][lonely[1]]])
        codes = np.concatenate([sides[0].codes[lefts], sides[0].codes[lonely[0]], sides[1].codes[lonely[1]]])
        lefts = np.concatenate([lefts, lonely[0], no_left])
        rights = np.concatenate([rights, no_right, lonely[1]])
        in_order = stable_argsort(codes, releases, lefts, rights)
        for number, side in enumerate(sides):
            self._keep(number, side, matched[number], matched_before[number], ends[number] > after)
        for start in range(0, len(in_order), _ROWS_AT_ONCE):
            piece = in_order[start : start + _ROWS_AT_ONCE]
            yield Emission(OUTPUT, self._columns.take(sides, lefts[piece], rights[piece]))

    def _pairs(
        self, sides: tuple[SortedRows, SortedRows], fresh: list[NDArray[np.bool_]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the pairs with a new row: new left rows with all right rows, old left rows with new right rows."""
        left, right = sides
        new_left, old_left, new_right = np.flatnonzero(fresh[0]), np.flatnonzero(~fresh[0]), np.flatnonzero(fresh[1])
        probes, matches = expand(*ranges(left.pick(new_left), right, self._lower, self._upper))
        others, behind = expand(*ranges(right.pick(new_right), left.pick(old_left), -self._upper, -self._lower))
        return np.concatenate([new_left[probes], old_left[behind]]), np.concatenate([matches, new_right[others]])

    def _any_ended(self, watermark: int) -> bool:
        return any(
            bool((self._ends(side, self.inputs[side].micros(kept.memtable)) <= watermark).any())
            for side, kept in enumerate(self._kept)
        )

    def _ends(self, side: int, micros: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the watermark from which each row of a side can't match any later row, in epoch milliseconds."""
        return event_millis(np.maximum(micros, shift(micros, -self._lower if side else self._upper)))

    def _keep(
        self,
        side: int,
        rows: SortedRows,
        matched: NDArray[np.bool_],
        matched_before: NDArray[np.bool_],
        stays: NDArray[np.bool_],
    ) -> None:
        """Put those rows of a side back that stay, with their flags."""
        order, flags = rows.order[stays], matched[stays]
        is_old = order < len(matched_before)
        is_old[is_old] = matched_before[order[is_old]] == flags[is_old]
        table = take_rows(rows.table, order).append_column(self._kept[side].memtable.schema.field(-1), pa.array(flags))
        self._kept[side].put_back(table, np.where(is_old, order, -1))

    def _expire(self, watermark: int) -> None:
        """Remove the rows of segments that have ended; they are not emitted."""
        for number, (spec, kept) in enumerate(zip(self.inputs, self._kept, strict=True)):
            if kept.segments and watermark == END_OF_TIME:
                kept.forget_segments()
            elif kept.segments:
                # As in ``_ends``.
                age = max(0, -self._lower if number else self._upper)
                kept.expire(Expired.by_age(watermark, age, spec.event_time, spec.axis))

    def waiting_rows(self) -> tuple[int, int]:
        """Return the number of rows of each side that a later row may match; in segments, those that have ended too."""
        return self._kept[0].rows, self._kept[1].rows

    def segmented_tables(self) -> dict[str, SegmentedTable]:
        """Return both sides' rows, of which a batch touches few keys."""
        is_plain = all(
            spec.event_time is not None and spec.changes is None and spec.known is None for spec in self.inputs
        )
        return dict(zip(("left", "right"), self._kept, strict=True)) if is_plain else {}

    def parts(self) -> tuple[dict[str, Any], dict[str, pa.Table]]:
        """Return all that is kept (``Operator.parts``); rows of segments that have ended are not, and count as done."""
        header, tables = super().parts()
        for counts, name, kept in zip(header["counts"], ("left", "right"), self._kept, strict=True):
            counts["done"] += kept.rows - tables[name].num_rows
        return header, tables

    def state_tables(self) -> dict[str, pa.Table]:
        """Return both sides' rows, each with a flag that says whether it has matched."""
        return {name: kept.memtable for name, kept in zip(("left", "right"), self._kept, strict=True)}

    def load_state_tables(self, tables: dict[str, pa.Table]) -> None:
        """Restore both sides' rows; the last column is the flag, whatever its name."""
        self._kept = (self._table(0, tables.get("left")), self._table(1, tables.get("right")))
        self._settled = False


def _flag_name(spec: InputSpec) -> str:
    return free_name(MATCHED, spec.schema.names)


def _flags_of(table: pa.Table) -> NDArray[np.bool_]:
    return table.column(table.num_columns - 1).to_numpy()  # type: ignore[no-any-return]


def _signed(duration: Duration, label: str) -> int:
    """Return a duration, which may be negative, in whole microseconds."""
    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1)
    if isinstance(duration, str) and (minus := _MINUS.match(duration)):
        return -microseconds(duration[minus.end() :], label)
    return microseconds(duration, label)
