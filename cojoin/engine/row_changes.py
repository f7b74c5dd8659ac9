"""Rows that delete: a table's change feed, and rows with a span of validity (SCD2), as versions and deletes.

A *version* is valid from its event time. A *delete* (``_deleted``) ends the version of its key that is valid then. The
rows of a source are made into versions and deletes where they enter (``expanded``), the same way in each surrounding:

- A row of a change feed (``ChangeFeed``) is one of them already: Delta's, or Debezium's. If event time is a column of
  the table, a delete takes effect at the later of the deleted row's time and its commit's time, because the column only
  says since when the row was valid. If event time is the commit's time, and the feed numbers its commits, the rows of
  its initial snapshot are valid from the beginning of time (``EARLIEST``).
- A row with a span of validity is a version at its begin and, unless it is still valid, a delete at its end. A row that
  ends where it begins was never valid. A deleted row of a feed is a delete at its begin.

A delete that is replaced in its own commit, as by an overwrite or a MERGE, is *superseded*: it is dropped and counted
as done. What it is replaced by has its key, and with validity also its begin. A feed without numbered commits has none.

The version that replaces it may be rejected. Then the delete is dropped all the same, so the former state stays in
force, and is counted as ``unchanged``. With validity a rejected row may have another begin, or none: then every delete
of its key and commit counts as replaced by it. Where a commit is read in several batches, its rejected versions are
remembered until all of it is read (their key and the columns of ``deciding``), and the deletes that they may replace
wait until then. Batches bring the commits in their order, so only those of the newest commit are kept.

A version is *moved back* if a delete of its key and commit is of a row with a later event time. Where rows have known
times (``known_time``), it would never match, since the row with the greatest event time of those that are known does.
It is rejected, and the row keeps its former state. For that, deletes keep the deleted row's time until they are due.

Ties at one microsecond of a key: first the ends of validity, then the source's own order, and in one commit deletes
before versions. So a version that begins where another ends is valid. An end only ends its own row's version.

It keeps nothing, and costs some vectorised passes over the columns of time and of commits.

Rows in memory with a span of validity are checked before anything runs, which costs one sort (``check_validity``). Rows
with a null key or begin are rejected later, and a row that ends where it begins overlaps with none.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.ordering import OrderedPart, sort_part
from cojoin.engine.time.time_axis import TimeAxis, micros_of
from cojoin.engine.values.keys import encode_keys
from cojoin.engine.values.rows import decode_rows, describe_row
from cojoin.engine.values.tables import concat, event_millis
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.time.known_time import KnownTime

DELETED, VALID_AT = "_deleted", "_valid_at"
"""The columns that are added to the rows: whether it is a delete, and for rows with validity their event time."""

COMMIT, COMMITTED_AT = "_commit_version", "_commit_timestamp"
"""Delta's columns of a change feed."""

CHANGE_TYPE, DELETES = "_change_type", ("delete", "update_preimage")
"""Delta's column of a change's kind, and the kinds of rows that the change has ended."""

EARLIEST = -2_208_988_800_000_000
"""1900-01-01 00:00 UTC in epoch microseconds, which stands for the beginning of time.

Earlier times fail somewhere on their way: pandas' nanoseconds begin in 1677, Python's local times in the year 1 UTC are
out of range west of Greenwich, and Spark refuses Parquet times before 1900 where it is set to ask which calendar is
meant (``spark.sql.parquet.datetimeRebaseModeInRead``).
"""

NEVER_ENDS = 253_370_764_800_000_000
"""9999-01-01 00:00 UTC in epoch microseconds. Warehouses write an end from then on where there is none."""

_TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class ChangeFeed:
    """The columns of a change feed, besides ``DELETED``: the time of a change's commit, and the commit's number.

    The number also distinguishes the rows of the initial snapshot. None where the order of changes is only that of the
    source, such as Kafka's offsets.
    """

    committed_at: str
    commit: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        return (*(() if self.commit is None else (self.commit,)), self.committed_at)


DELTA_FEED = ChangeFeed(COMMITTED_AT, COMMIT)
"""The change feed of a Delta table."""


@dataclass(frozen=True)
class RowChanges:
    """The reading of an input's rows as versions and deletes, which most of its methods take.

    Attributes:
        event_time: The event-time column of the versions and deletes; None if they have none.
        feed: The change feed of which the rows are; None where they are of none.
        valid_from: The column with the begin of a row's validity; None if rows have no span of validity.
        valid_to: The column with its end.
        axis: The meaning of a span's times without a zone, dates and whole numbers; None for timestamps.
        known: The time from which the rows are known; None where that is their event time.
    """

    event_time: str | None
    feed: ChangeFeed | None = None
    valid_from: str | None = None
    valid_to: str | None = None
    axis: TimeAxis | None = None
    known: KnownTime | None = None

    def describe(self) -> dict[str, Any]:
        """Return the columns by which rows are made into versions and deletes, as JSON values."""
        feed = None if self.feed is None else asdict(self.feed)
        return {"feed": feed, "valid_from": self.valid_from, "valid_to": self.valid_to}

    @classmethod
    def read(
        cls,
        described: Mapping[str, Any] | None,
        event_time: str | None,
        axis: TimeAxis | None,
        known: KnownTime | None = None,
    ) -> RowChanges | None:
        """Return what ``describe`` described; None for None."""
        if described is None:
            return None
        feed = None if described["feed"] is None else ChangeFeed(**described["feed"])
        return cls(event_time, feed, described["valid_from"], described["valid_to"], axis, known)

    @property
    def is_feed(self) -> bool:
        """Whether the rows are those of a change feed."""
        return self.feed is not None

    @property
    def begins_with_snapshot(self) -> bool:
        """Whether the rows begin with those of a snapshot, which are known by their commits."""
        return self.feed is not None and self.feed.commit is not None

    @property
    def orders_deletes(self) -> bool:
        """True if the rows of one microsecond are ordered by their commits, or by ends of validity."""
        return self.begins_with_snapshot or self.valid_from is not None

    @property
    def added(self) -> tuple[pa.Field, ...]:
        """The columns that ``expanded`` adds to the rows of the source, after theirs."""
        if self.valid_from is None:
            return ()
        return (pa.field(VALID_AT, _TIME), *(() if self.is_feed else (pa.field(DELETED, pa.bool_()),)))

    @property
    def technical(self) -> tuple[str, ...]:
        """The columns that a join's result leaves out."""
        of_feed = () if self.feed is None else self.feed.columns
        names = [DELETED, *of_feed, *([VALID_AT] if self.valid_from else [])]
        # The commit's time stays where it is what the user named as event time.
        return tuple(name for name in names if name != self.event_time or name == VALID_AT)

    @property
    def deciding(self) -> tuple[str, ...]:
        """The columns that distinguish versions from deletes, besides the key."""
        validity = [] if self.valid_from is None else [VALID_AT, self.valid_from]
        return (DELETED, *self._commits, *validity)

    @property
    def _commits(self) -> tuple[str, ...]:
        """The column with the commits' numbers, if there is one."""
        return () if self.feed is None or self.feed.commit is None else (self.feed.commit,)

    @property
    def begins_with_the_first(self) -> bool:
        """Whether the rows of the initial snapshot are valid from the beginning of time."""
        return self.begins_with_snapshot and self.feed is not None and self.event_time == self.feed.committed_at

    @property
    def deletes_move_time(self) -> bool:
        """Whether deletes count for the watermark, since their times are in the order of the source."""
        if self.known is not None and self.known.is_commit:
            return True
        return self.feed is not None and self.event_time == self.feed.committed_at

    def expanded(self, rows: pa.Table) -> tuple[pa.Table, NDArray[np.int64] | None]:
        """Return rows of the source as versions and deletes, with the columns of ``added``.

        With them comes the place in ``rows`` of each; None where they are one to one.
        """
        if self.valid_from is None:
            return rows if self.known is not None else self.at_commits(rows), None
        begins, ends = self._span(rows)
        deleted = self.deleted(rows) if self.is_feed else np.zeros(rows.num_rows, dtype=bool)
        has_end = _mask(pc.and_(pc.is_valid(begins), pc.is_valid(ends))) & ~deleted
        first, last = _micros(begins), _micros(ends)
        never = has_end & (first == last)
        ending = np.flatnonzero(has_end & (last > first) & (last < NEVER_ENDS))
        places = np.concatenate([np.arange(rows.num_rows), ending])
        begins, ends = begins.combine_chunks(), ends.combine_chunks()
        valid_at = pa.chunked_array([begins, ends.take(pa.array(ending))], _TIME)
        is_deleted = pa.array(np.concatenate([deleted | never, np.ones(len(ending), dtype=bool)]))
        table = rows if not len(ending) else rows.combine_chunks().take(pa.array(places))
        if self.is_feed:
            place = table.column_names.index(DELETED)
            return table.set_column(place, DELETED, is_deleted).append_column(self.added[0], valid_at), places
        return table.append_column(self.added[0], valid_at).append_column(self.added[1], is_deleted), places

    def at_commits(self, rows: pa.Table) -> pa.Table:
        """Return rows of a feed where a delete's event time is not before its commit."""
        if self.feed is None or self.valid_from is not None or self.event_time in (None, self.feed.committed_at):
            return rows
        deleted = rows.column(DELETED)
        if not pc.any(deleted).as_py():
            return rows
        times = rows.column(self.event_time)
        # Arrow has no maximum of times.
        pair = times.cast(pa.int64()), rows.column(self.feed.committed_at).cast(pa.int64())
        late = pc.max_element_wise(*pair).cast(_TIME)
        place = rows.column_names.index(self.event_time)
        return rows.set_column(place, rows.schema.field(place), pc.if_else(deleted, late, times))

    def commits_of(self, rows: pa.Table) -> list[tuple[int, int]]:
        """Return the version and the epoch milliseconds of each row's commit; none where commits have no number."""
        if self.feed is None or self.feed.commit is None:
            return []
        times = event_millis(_micros(rows.column(self.feed.committed_at)))
        return list(zip(rows.column(self.feed.commit).to_pylist(), times.tolist(), strict=True))

    def deletes_in_time(self, rows: pa.Table, latest: int) -> pa.Table:
        """Return rows where a delete that would take effect after ``latest`` does so at its commit.

        ``latest`` is the latest time that is not too far ahead of the clock, in epoch milliseconds. The deleted row was
        also too far ahead, and was rejected.
        """
        if self.feed is None or self.valid_from is not None or self.event_time in (None, self.feed.committed_at):
            return rows
        place = rows.column_names.index(str(self.event_time))
        late = self.deleted(rows) & (event_millis(_micros(rows.column(place))) > latest)
        if not late.any():
            return rows
        # With known times the commit is regarded where the delete is due, and the time shows what it has replaced.
        first = pa.scalar(EARLIEST, pa.int64()).cast(_TIME)
        at_commit = rows.column(self.feed.committed_at) if self.known is None else first
        times = pc.if_else(pa.array(late), at_commit, rows.column(place))
        return rows.set_column(place, rows.schema.field(place), times)

    def from_the_beginning(self, rows: pa.Table, snapshot: int | None) -> pa.Table:
        """Return rows where those of the initial snapshot are valid, or known, from the beginning of time.

        ``snapshot`` is the version of the table that is the feed's snapshot; None where all rows are of later ones.
        """
        known = self.known is not None and self.known.is_commit and self.known.snapshot_known == "at_event_time"
        if snapshot is None or not (known or self.begins_with_the_first) or not rows.num_rows:
            return rows
        assert self.feed is not None
        (commit,), place = self._commits, rows.column_names.index(self.feed.committed_at)
        times = rows.column(place)
        is_known = pc.less_equal(rows.column(commit), snapshot)
        first = pa.scalar(EARLIEST, pa.int64()).cast(_TIME)
        return rows.set_column(place, rows.schema.field(place), pc.if_else(is_known, first, times))

    def ends_before_it_begins(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Return which versions are of rows whose validity ends before it begins."""
        if self.valid_from is None:
            return np.zeros(rows.num_rows, dtype=bool)
        begins, ends = self._span(rows)
        return _mask(pc.fill_null(pc.less(ends, begins), False)) & ~self.deleted(rows)

    def _span(self, rows: pa.Table) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """Return the begins and the ends of the rows' validity, as timestamps."""
        begins, ends = rows.column(str(self.valid_from)), rows.column(str(self.valid_to))
        if self.axis is None:
            return begins, ends
        return pa.chunked_array([self.axis.timestamps(begins)]), pa.chunked_array([self.axis.timestamps(ends)])

    def clock_changed(self, rows: pa.Table) -> int:
        """Return the number of begins and ends of validity that a clock change repeats or leaves out."""
        if self.axis is None or not rows.num_rows:
            return 0
        begins, ends = (self.axis.changed(rows.column(str(name))) for name in (self.valid_from, self.valid_to))
        return int((begins & ~self.deleted(rows)).sum() + (ends & self._ends(rows)).sum())

    def moves_time(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Return which rows count for the watermark, and may be too far ahead of the clock."""
        return np.ones(rows.num_rows, dtype=bool) if self.deletes_move_time else ~self.deleted(rows)

    def without_superseded(self, rows: pa.Table, key: Sequence[str]) -> pa.Table:
        """Return rows without the superseded deletes."""
        superseded = self.superseded(rows, key)
        return rows.filter(pa.array(~superseded)) if superseded.any() else rows

    def superseded(self, rows: pa.Table, key: Sequence[str]) -> NDArray[np.bool_]:
        """Return which rows are deletes whose key, and begin of validity, has a version of the same commit."""
        nothing = np.zeros(rows.num_rows, dtype=bool)
        if not self._commits:
            return nothing
        deleted = self.deleted(rows)
        own = deleted & ~self._ends(rows)
        if not own.any() or deleted.all():
            return nothing
        same = rows.select([*key, *self._commits, *([] if self.valid_from is None else [self.valid_from])])
        (codes,), count = encode_keys([_without_nulls(same)])
        replaced = np.zeros(count, dtype=bool)
        replaced[codes[~deleted]] = True
        return own & replaced[codes]

    def moved_back(self, rows: pa.Table, key: Sequence[str]) -> NDArray[np.bool_]:
        """Return which rows are versions that a change of their table has moved back."""
        if self.known is None or not self._commits:
            return np.zeros(rows.num_rows, dtype=bool)
        gone = self.deleted(rows)
        if not gone.any() or gone.all():
            return np.zeros(rows.num_rows, dtype=bool)
        (codes,), count = encode_keys([_without_nulls(rows.select([*key, *self._commits]))])
        times, latest = rows.column(str(self.event_time)), np.full(count, np.iinfo(np.int64).min)
        micros = np.where(_mask(pc.is_null(times)), latest[0], _micros(times))
        np.maximum.at(latest, codes[gone], micros[gone])
        return ~gone & (micros < latest[codes])

    def remembered_columns(self, key: Sequence[str]) -> list[str]:
        """Return the columns of a rejected version that decide what it replaces."""
        return list(dict.fromkeys([*key, *self.deciding]))

    def replacing(self, rows: pa.Table, key: Sequence[str], snapshot: int | None) -> pa.Table:
        """Return the rows that may replace others of their commit: versions with a key, after the initial snapshot.

        They have the columns of ``remembered_columns``. Where commits have no number, none is returned. ``snapshot`` is
        as in ``from_the_beginning``.
        """
        columns = self.remembered_columns(key)
        if not self._commits:
            return rows.select(columns).slice(0, 0)
        wanted = ~self.deleted(rows)
        if snapshot is not None:
            wanted &= _mask(pc.greater(rows.column(self._commits[0]), snapshot))
        for name in key:
            wanted &= _mask(pc.is_valid(rows.column(name)))
        return rows.select(columns).filter(pa.array(wanted))

    def of_newest_commit(self, rejected: pa.Table, rows: pa.Table) -> pa.Table:
        """Return the rejected rows of the newest commit, the only one of which more rows may come.

        They are one or more that ``replacing`` returned; ``rows`` are all that the same batches admitted.
        """
        (commit,) = self._commits
        commits = rejected.column(commit)
        newest = pc.max(pa.chunked_array([*commits.chunks, *rows.column(commit).chunks]))
        return rejected.filter(pc.equal(commits, newest))

    def replaced_by(self, rows: pa.Table, rejected: pa.Table, key: Sequence[str]) -> NDArray[np.bool_]:
        """Return which rows are deletes that rejected versions of the same commit replace.

        The rows are without superseded ones; ``rejected`` is the result of ``replacing``.
        """
        if self.valid_from is None:
            return self.may_be_replaced_by(rows, rejected, key)
        own, names = self.deleted(rows) & ~self._ends(rows), [*key, *self._commits]
        if not own.any():
            return own
        replaced = own & _among(rows, rejected, [*names, self.valid_from])
        elsewhere = rejected.filter(pa.array(~_among(rejected, rows.filter(pa.array(own)), [*names, self.valid_from])))
        return replaced | (own & _among(rows, elsewhere, names))

    def may_be_replaced_by(self, rows: pa.Table, rejected: pa.Table, key: Sequence[str]) -> NDArray[np.bool_]:
        """Return which rows are deletes of a rejected version's key and commit; arguments as in ``replaced_by``."""
        if not rejected.num_rows:
            return np.zeros(rows.num_rows, dtype=bool)
        own = self.deleted(rows) & ~self._ends(rows)
        return own & _among(rows, rejected, [*key, *self._commits]) if own.any() else own

    def ranks(self, rows: pa.Table) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
        """Return the ranks of rows of one microsecond: before the source's own order, and after it."""
        return (~self._ends(rows)).astype(np.int8), (~self.deleted(rows)).astype(np.int8)

    def ineffective(
        self, rows: pa.Table, key: Sequence[str], codes: NDArray[np.int64], micros: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return which rows, sorted by key in the total order, change nothing, if these are all of their keys.

        Superseded deletes do not: Delta may read an overwrite's versions in one batch and its deletes in a later one.
        With validity, the newest of several rows of a table with one begin counts: the older ones, and all if the
        newest is a delete, are left out as if they had never been. An end counts if the version before it is its own
        row.
        """
        dropped = self.superseded(rows, key)
        if self.valid_from is None or not rows.num_rows:
            return dropped
        ends, places = self._ends(rows), np.arange(rows.num_rows)
        counts = ~ends & ~dropped
        later = np.zeros(len(places), dtype=bool)
        # Ends are the first of their microsecond, so the others of one begin follow each other.
        counting = places[counts]
        later[counting[:-1]] = (codes[counting[1:]] == codes[counting[:-1]]) & (
            micros[counting[1:]] == micros[counting[:-1]]
        )
        valid = counts & ~self.deleted(rows) & ~later
        before = np.maximum.accumulate(np.where(valid, places, -1))
        own = (before >= 0) & (codes[before] == codes)
        own &= micros[before] == micros_of(rows, self.valid_from, self.axis)
        for commit in self._commits:
            commits = rows.column(commit).to_numpy()
            own &= commits[before] == commits
        counted: NDArray[np.bool_] = valid | (ends & own)
        return ~counted

    def deleted(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Return which rows are deletes, or ends of validity."""
        return _mask(pc.fill_null(rows.column(DELETED), False))

    def _ends(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Return which rows are ends of validity; other deletes are of a feed, and at the begin of their own row."""
        if self.valid_from is None:
            return np.zeros(rows.num_rows, dtype=bool)
        deleted = self.deleted(rows)
        if not self.is_feed:
            return deleted
        later: NDArray[np.bool_] = _micros(rows.column(VALID_AT)) != micros_of(rows, self.valid_from, self.axis)
        return deleted & later


def _among(rows: pa.Table, others: pa.Table, columns: Sequence[str]) -> NDArray[np.bool_]:
    """Return which rows have the values of one of the other rows in some columns."""
    both = concat([each.select(list(columns)) for each in (rows, others)])
    (codes,), _ = encode_keys([_without_nulls(both)])
    return np.isin(codes[: rows.num_rows], codes[rows.num_rows :])


def _mask(values: pa.ChunkedArray | pa.Array) -> NDArray[np.bool_]:
    return np.asarray(values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.to_numpy())


def _micros(times: pa.ChunkedArray) -> NDArray[np.int64]:
    return np.asarray(times.cast(pa.int64()).fill_null(0).to_numpy())


def _without_nulls(table: pa.Table) -> pa.Table:
    """Return key columns without nulls, which belong to no version and no delete, so any value serves."""
    columns = [_filled(column) if column.null_count else column for column in table.columns]
    return pa.table(columns, names=[f"k{place}" for place in range(table.num_columns)])


def _filled(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of times, which may be dates or whole numbers, with 0 for a null; another one is unchanged."""
    is_date, types = pa.types.is_date32(column.type), pa.types
    if is_date or types.is_timestamp(column.type) or types.is_integer(column.type):
        return column.cast(pa.int32() if is_date else pa.int64()).fill_null(0)
    return column


_LAST = (1 << 63) - 1


def check_validity(rows: pa.Table, spec: InputSpec) -> None:
    """Check that no row in memory ends before it begins, and that those of a key do not overlap."""
    assert spec.changes is not None
    valid_from, valid_to = spec.changes.valid_from, spec.changes.valid_to
    if valid_from is None or valid_to is None:
        return
    known = np.ones(rows.num_rows, dtype=bool)
    for name in (*spec.key, valid_from):
        known &= np.asarray(pc.is_valid(rows.column(name)).to_numpy())
    rows = rows.filter(pa.array(known)).combine_chunks()
    begins, ends = (micros_of(rows, name, spec.changes.axis) for name in (valid_from, valid_to))
    ends = np.where(np.asarray(pc.is_null(rows.column(valid_to)).to_numpy()), _LAST, ends)
    wrong = np.flatnonzero(ends < begins)
    if len(wrong):
        raise ends_too_early(spec, len(wrong), _shown(rows, int(wrong[0])))
    rows = rows.filter(pa.array(ends > begins))
    begins, ends = begins[ends > begins], ends[ends > begins]
    (codes,), _ = encode_keys([spec.keys(rows)])
    order, codes, _ = sort_part(OrderedPart(codes, begins, 0, rows, spec.source_order))
    # Where no earlier row overlaps, none ends later than the row before, so the first overlap of a key is found.
    overlaps = np.flatnonzero((codes[1:] == codes[:-1]) & (ends[order][:-1] > begins[order][1:]))
    if len(overlaps):
        pair = [_shown(rows, int(order[overlaps[0] + step])) for step in (0, 1)]
        raise overlapping(spec, len(overlaps), pair[0], pair[1])


def ends_too_early(spec: InputSpec, count: int, example: str) -> ConfigurationError:
    """Return the error about rows of an input whose validity ends before it begins, with one of them."""
    assert spec.changes is not None
    rows = "1 row ends before it begins" if count == 1 else f"{count:,} rows end before they begin"
    return ConfigurationError(
        f"input {spec.name!r}: {rows}: {spec.changes.valid_to!r} is before {spec.changes.valid_from!r}, as in "
        f"{example}; correct or leave out such rows"
    )


def overlapping(spec: InputSpec, count: int, one: str, other: str) -> ConfigurationError:
    """Return the error about rows that begin before the row before them has ended, with the first pair."""
    assert spec.changes is not None
    rows = "1 row is" if count == 1 else f"{count:,} rows are"
    return ConfigurationError(
        f"input {spec.name!r}: {rows} valid while another row of the same {', '.join(spec.key)} is: "
        f"{spec.changes.valid_from!r} is before the other's {spec.changes.valid_to!r}, as in {one} and {other}; a key "
        f"has one version at a time: close the earlier row where the later one begins, or leave one out"
    )


def _shown(rows: pa.Table, place: int) -> str:
    (row,) = decode_rows(rows.slice(place, 1), str)
    return describe_row(row)
