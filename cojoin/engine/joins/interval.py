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

Each batch costs a sort of the new rows as integers, a merge with the kept rows, a binary search for each new row, and
the copies of the pairs; no Python for each row. After a restore, the kept rows are also sorted once, since they may be
in any order. (Flink's ``IntervalJoin`` and ``TimeIntervalJoin``; here the output is in event-time order.)
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
        self._kept: Sides = (left.schema.empty_table(), right.schema.empty_table())
        self._matched = (np.zeros(0, dtype=bool), np.zeros(0, dtype=bool))
        # Whether the rows kept are in the total order within each key.
        self._settled = True

    def unmatched(self, side: int, rows: pa.Table) -> pa.Table:
        """Return rows with a null key as rows without a match."""
        return self._columns.alone(side, sort_alone(self.inputs, side, rows))

    def advance(self, due: Sides, before: int, after: int, last_event: int | None) -> Iterator[Emission]:
        """Join the due rows with the kept rows and with each other, then forget rows that can't match any more."""
        del before, last_event
        if not due[0].num_rows and not due[1].num_rows and not self._any_ended(after):
            return
        rows = (concat([self._kept[0], due[0]]).combine_chunks(), concat([self._kept[1], due[1]]).combine_chunks())
        sides = sort_sides(self.inputs, rows, self.waiting_rows() if self._settled else (0, 0))
        fresh = [side.order >= kept.num_rows for side, kept in zip(sides, self._kept, strict=True)]
        lefts, rights = self._pairs(sides, fresh)
        matched, ends, lonely = [], [], []
        for number, (side, positions) in enumerate(zip(sides, (lefts, rights), strict=True)):
            flags = np.append(self._matched[number], np.zeros(due[number].num_rows, dtype=bool))[side.order]
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
        self._forget(sides, matched, [each > after for each in ends])
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
            bool((self._ends(side, self.inputs[side].micros(kept)) <= watermark).any())
            for side, kept in enumerate(self._kept)
        )

    def _ends(self, side: int, micros: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the watermark from which each row of a side can't match any later row, in epoch milliseconds."""
        return event_millis(np.maximum(micros, shift(micros, -self._lower if side else self._upper)))

    def _forget(
        self, sides: tuple[SortedRows, SortedRows], matched: list[NDArray[np.bool_]], kept: list[NDArray[np.bool_]]
    ) -> None:
        for counts, stays in zip(self.counts, kept, strict=True):
            counts.done += int((~stays).sum())
        left, right = (take_rows(side.table, side.order[stays]) for side, stays in zip(sides, kept, strict=True))
        self._kept, self._settled = (left, right), True
        self._matched = (matched[0][kept[0]], matched[1][kept[1]])

    def waiting_rows(self) -> tuple[int, int]:
        """Return the number of rows of each side that a later row may match."""
        return self._kept[0].num_rows, self._kept[1].num_rows

    def state_tables(self) -> dict[str, pa.Table]:
        """Return both sides' rows, each with a flag that says whether it has matched."""
        return {
            name: table.append_column(free_name("matched", table.schema.names), pa.array(matched))
            for name, table, matched in zip(("left", "right"), self._kept, self._matched, strict=True)
        }

    def load_state_tables(self, tables: dict[str, pa.Table]) -> None:
        """Restore both sides' rows; the last column is the flag, whatever its name."""
        kept, matched = [], []
        for side, name in enumerate(("left", "right")):
            table = tables.get(name)
            rows = None if table is None else table.drop_columns([table.column_names[-1]])
            kept.append(self.input_rows(side, rows))
            flags = [] if table is None else table.columns[-1].to_numpy()
            matched.append(np.asarray(flags, dtype=bool))
        self._kept, self._matched = (kept[0], kept[1]), (matched[0], matched[1])
        self._settled = False


def _signed(duration: Duration, label: str) -> int:
    """Return a duration, which may be negative, in whole microseconds."""
    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1)
    if isinstance(duration, str) and (minus := _MINUS.match(duration)):
        return -microseconds(duration[minus.end() :], label)
    return microseconds(duration, label)
