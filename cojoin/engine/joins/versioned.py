"""The base class of the as-of and the temporal join, which join rows with versions (Flink: versioned table).

It keeps left rows whose match may still change, and the versions that a waiting row or a row to come can match.

It emits each left row at most once, when the watermark reaches the row's *emission time*, which depends on rows alone:
a key's rows by emission time, and equal ones in the left's total order. It removes a left row when the row is emitted,
and a version when no row can match it any more. A version is done when the watermark has reached it, kept or not.

It costs a sort of the batch's rows as integers, and a merge with the waiting rows and with the versions in memory; no
Python for each row. Once after a restore, the rows kept are sorted too, since they may come in any order. Versions in
segments (``segmented_table``) are looked up by the keys of the batch and of all waiting rows, one range of hashes after
another where they are many, and sorted with it. An expired version there is counted until it is read or compacted.

Where versions have known times (``known_time``), they are sorted by event time all the same, and by effective time in
addition. All versions that ``advance`` gets are effective, so the newest of a key is the only one to be kept.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cojoin.engine.joins.output_columns import JoinedColumns
from cojoin.engine.joins.search import Neighbours, shift, sort_alone, sort_sides
from cojoin.engine.operator import OUTPUT, Emission, Operator
from cojoin.engine.ordering import stable_argsort
from cojoin.engine.state.segmented_table import Expired, SegmentedTable
from cojoin.engine.values.tables import concat, event_millis, take_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.joins.search import SortedRows
    from cojoin.engine.operator import Sides
    from cojoin.engine.ordering import Ranks
    from cojoin.engine.state.segmented_table import HashRange
    from cojoin.engine.time.operator_watermark import TimePolicy


class Decision(NamedTuple):
    """The matches and emission times of the left rows, in their sorted order."""

    matches: NDArray[np.int64]
    """Each row's version as a position in the sorted right, or -1; final once the emission time is reached."""

    emission_times: NDArray[np.int64]
    """Each row's emission time in epoch milliseconds.

    While it is above the watermark it is an upper bound: later versions may lower it.
    """


class VersionedJoinOperator(Operator):
    """The operator that joins left rows with versions for one key group; subclasses decide what matches, and when.

    With ``inner``, left rows without a match are left out. A version may match a row while it is at most ``age``
    microseconds old; None means any age. Without ``keeps_versions`` rows match only versions after them, so none is
    kept; with ``waits`` left rows may wait for these.
    """

    def __init__(
        self,
        inputs: tuple[InputSpec, InputSpec],
        schema: pa.Schema,
        time: TimePolicy | None,
        *,
        inner: bool,
        age: int | None,
        deletes: str | None = None,
        keeps_versions: bool = True,
        waits: bool = False,
    ) -> None:
        super().__init__(inputs, ("reject", "apply"), time)
        self._inner, self._age, self._keeps_versions, self._waits = inner, age, keeps_versions, waits
        self._columns = JoinedColumns(*inputs, schema, deletes)
        self._waiting = inputs[0].schema.empty_table()
        self._versions = self._new_versions(inputs[1].schema.empty_table())
        # Whether the waiting rows and the versions in memory are in the total order within each key.
        self._settled = True

    def _new_versions(self, versions: pa.Table) -> SegmentedTable:
        right = self.inputs[1]
        return SegmentedTable(versions, right.key, f"input {right.name!r}")

    @abstractmethod
    def _decide(self, left: SortedRows, right: SortedRows) -> Decision:
        """Return the matches and emission times of all rows that wait or are due."""

    def _retainable(self, right: SortedRows) -> NDArray[np.bool_]:
        """Return which of the sorted versions may be kept if they are the newest of their keys."""
        return np.ones(len(right), dtype=bool)

    def unmatched(self, side: int, rows: pa.Table) -> pa.Table:
        """Return left rows with a null key as rows without a match."""
        return self._columns.alone(side, sort_alone(self.inputs, side, rows))

    def advance(self, due: Sides, before: int, after: int, last_event: int | None) -> Iterator[Emission]:
        """Join the left rows whose emission time is reached, and remove versions that no row can match any more."""
        del before, last_event
        if not self._waiting.num_rows and not due[0].num_rows and not due[1].num_rows:
            self._expire_versions(after)
            return
        tables = (self._waiting, *due)
        rows = [(each, self.inputs[side].keys(each)) for side, each in zip((0, 0, 1), tables, strict=True)]
        self._waiting, settled = self._waiting.slice(0, 0), self._settled
        for within, (waiting, left, right) in self.by_key_range([self._versions], rows):
            yield Emission(OUTPUT, self._joined(waiting, (left, right), after, within, settled=settled))
        self._settled = True
        self._expire_versions(after)

    def _joined(
        self, waiting: pa.Table, due: Sides, after: int, within: HashRange | None, *, settled: bool
    ) -> pa.Table:
        """Return the joined rows that are released, and keep the others; all rows have keys of a range of hashes."""
        left = concat([waiting, due[0]]).combine_chunks()
        touched = [spec.keys(rows) for spec, rows in zip(self.inputs, (left, due[1]), strict=True)]
        taken = self._versions.take(touched, within)
        right = self._at_commits(concat([taken, due[1]])).combine_chunks()
        # Rows that a restored segment holds may be in any order.
        in_order = (waiting.num_rows, 0 if self._versions.segments else taken.num_rows) if settled else (0, 0)
        rows, versions = sort_sides(self.inputs, (left, right), in_order, self._right_ranks())
        versions = self._effective(versions)
        matches, emission_times = self._decide(rows, versions)
        waits = np.flatnonzero(emission_times > after)
        self.counts[0].done += len(rows) - len(waits)
        self.counts[1].done += due[1].num_rows
        self._waiting = concat([self._waiting, take_rows(left, rows.order[waits])])
        kept = versions.order[self._kept(versions, matches[waits], after)]
        self._versions.put_back(take_rows(right, kept), kept)
        return self._output(rows, versions, Decision(matches, emission_times), after)

    def _at_commits(self, versions: pa.Table) -> pa.Table:
        """Return versions and deletes where those deletes that have kept the deleted row's time have their commit's."""
        changes, known = self.inputs[1].changes, self.inputs[1].known
        return versions if changes is None or known is None else changes.at_commits(versions)

    def _effective(self, versions: SortedRows) -> SortedRows:
        """Return the sorted versions and deletes that change anything; the others are done, and are not kept."""
        right = self.inputs[1]
        if right.changes is None or not len(versions):
            return versions
        rows = take_rows(versions.table.select([*right.key, *right.changes.deciding]), versions.order)
        dropped = right.changes.ineffective(rows, right.key, versions.codes, versions.micros)
        return versions.pick(np.flatnonzero(~dropped)) if dropped.any() else versions

    def _right_ranks(self) -> Ranks | None:
        """Return the ranks of versions of one microsecond, besides the source's own order and their content."""
        return self.inputs[1].ranks

    def _behind(self, left: SortedRows, right: SortedRows, tolerance: int | None, *, exact: bool) -> NDArray[np.int64]:
        """Return the newest version before (``exact``: at or before) each row, of those that are known at its time."""
        near, spec = Neighbours(left, right, tolerance, exact=exact), self.inputs[1]
        return near.behind() if spec.known is None else near.known_behind(spec.micros(right.table)[right.order])

    def _output(self, rows: SortedRows, versions: SortedRows, decision: Decision, after: int) -> pa.Table:
        """Return the joined rows that are released, by key, emission time and total order."""
        matches, times = decision
        chosen = times <= after
        if self._inner:
            chosen &= matches >= 0
        places, codes = np.arange(len(rows)), rows.codes
        if not chosen.all():
            places, codes, matches, times = places[chosen], codes[chosen], matches[chosen], times[chosen]
        # Rows that do not wait are emitted at their own times, by which they are sorted.
        if self._waits and not ((times[1:] >= times[:-1]) | (codes[1:] != codes[:-1])).all():
            in_order = stable_argsort(codes, times)
            places, matches = places[in_order], matches[in_order]
        return self._columns.take((rows, versions), places, matches)

    def _kept(self, right: SortedRows, matched_by_waiting: NDArray[np.int64], watermark: int) -> NDArray[np.bool_]:
        """Return which sorted versions to keep: each key's newest, and those that match a waiting row."""
        kept = np.zeros(len(right), dtype=bool)
        if self._keeps_versions:
            kept = self._retainable(right)
            kept[:-1] &= right.codes[1:] != right.codes[:-1]
            kept &= self._unexpired(right.micros, watermark)
            kept[matched_by_waiting[matched_by_waiting >= 0]] = True
        return kept

    def _unexpired(self, micros: NDArray[np.int64], watermark: int) -> NDArray[np.bool_]:
        """Return which versions a row to come can match; the earliest comes one millisecond after the watermark."""
        if self._age is None:
            return np.ones(len(micros), dtype=bool)
        return event_millis(shift(micros, self._age)) > watermark

    def _expire_versions(self, watermark: int) -> None:
        """Remove versions by age, in segments too, except those that a waiting row may match."""
        if self._age is not None and self._versions.rows:
            (left, right), needed = self.inputs, watermark
            if self._waiting.num_rows:
                needed = min(watermark, int(left.millis(self._waiting).min()) - 1)
            # As in ``_unexpired``.
            self._versions.expire(Expired.by_age(needed, self._age, right.event_time, right.axis))

    def forget_table(self) -> None:
        """Forget all versions, which count as done already; rows that wait are matched with those that come."""
        self._versions = self._new_versions(self.inputs[1].schema.empty_table())

    def waiting_rows(self) -> tuple[int, int]:
        """Return how many left rows have a match that may still change."""
        return self._waiting.num_rows, 0

    def state_tables(self) -> dict[str, pa.Table]:
        """Return the kept versions and the waiting left rows, as far as this join has them."""
        memtable = self._versions.memtable
        tables = {"versions": (self._keeps_versions, memtable), "waiting": (self._waits, self._waiting)}
        return {name: table for name, (has, table) in tables.items() if has}

    def load_state_tables(self, tables: dict[str, pa.Table]) -> None:
        """Restore what ``state_tables`` returned."""
        versions = self.input_rows(1, tables.get("versions"))
        self._waiting = self.input_rows(0, tables.get("waiting"))
        self._versions = self._new_versions(versions)
        self._settled = False

    def segmented_tables(self) -> dict[str, SegmentedTable]:
        """Return the versions, whose rows may lie in segments, since a batch touches few of their keys."""
        return {"versions": self._versions} if self._keeps_versions else {}

    def details(self) -> dict[str, int]:
        """Return how many versions are kept, superseded ones that match a waiting row included."""
        return {"versions_in_force": self._versions.rows}
