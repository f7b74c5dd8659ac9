"""A key group's state table as an LSM tree: a memtable and segments, from which a batch reads only its keys' rows.

The *memtable* is part of the state value. *Segments* (``segments``) are immutable, sorted by the hash of the key, and
in several files where they are large; they are kept newest first. The memtable *shadows* a hash if rows of it were read
from segments, and one of them was changed or removed or has expired, or another was added. Rows of a shadowed hash in
segments are superseded or deleted, whether or not the memtable has rows of it. A hash whose rows were all put back
unchanged is not shadowed. A read returns the rows of a hash from the newest piece that has or shadows it. Keys with
equal hashes always move together, so a collision costs time and never a row.

A batch takes the memtable and the rows of its keys (``take``), and puts back the rows that stay (``put_back``). Where
its keys have more bytes of rows than a slice, it takes one range of hashes after another (``by_key_range``). A single
key with too many is noted (``LargeKey``). A memtable that has outgrown its limit is flushed (``flush``): it becomes a
segment, and is compacted with the newest segments while these are not much larger, so that sizes grow by a ratio
(size-tiered compaction). The state value then has the memtable and the hashes that it shadows. Its header has the
segments' names.

Compaction removes superseded and expired rows of segments. It merges one range of hashes after another, so only some
megabytes of rows are in memory, however large the segments are. Expired rows are never returned. Those in segments are
counted until they are read or compacted.

Without segments the memtable is decoded and returned whole in each batch. With segments a batch costs 0.1 ms for each
segment that it opens, and a binary search for each segment and touched key. ``SegmentOptions`` has the cost of writing.
Timers, and left rows that wait for a version, stay in the state value, in other tables. Rows that wait for the
watermark have other files (``waiting_rows``).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from cojoin.engine.state.segments import (
    HASH,
    HASHES,
    OpenSegment,
    Segment,
    SegmentContext,
    SegmentOptions,
    between,
    write_segment,
)
from cojoin.engine.state.ttl import without_expired
from cojoin.engine.time.time_axis import TimeAxis, is_moment, micros_of
from cojoin.engine.values.hashes import key_hashes
from cojoin.engine.values.rows import decode_rows
from cojoin.engine.values.schema_evolution import evolve
from cojoin.engine.values.tables import concat, take_rows
from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray


def ranges(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the integers of one or more ranges, one range after the other; stops are excluded."""
    lengths = stops - starts
    ends = np.cumsum(lengths)
    positions: NDArray[np.int64] = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    return positions


def with_fewer(before: NDArray[np.uint64], after: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the distinct hashes that occur less often after than before."""
    distinct, counts = np.unique(before, return_counts=True)
    after = np.sort(after)
    counts_after = np.searchsorted(after, distinct, "right") - np.searchsorted(after, distinct, "left")
    return distinct[counts_after < counts]


def among(values: NDArray[np.uint64], known: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return for each value whether it is one of ``known``, which are sorted."""
    if not len(known):
        return np.zeros(len(values), dtype=bool)
    positions = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return known[positions] == values  # type: ignore[no-any-return]


SHADOWED = "@owned:"
"""The prefix of a state value's tables of shadowed hashes, before the memtable's name; part of the stored format."""

MAX_CHUNKS = 16
"""The number of Arrow chunks (one per batch) above which a stored table is combined into one."""

_MIN, _MAX = -(1 << 63), (1 << 63) - 1
_NONE = np.empty(0, dtype=np.uint64)


@dataclass(frozen=True)
class Expired:
    """The rule by which rows have expired: those whose time is at most ``cutoff``, which no read returns any more.

    With a ``column`` it is the time in this column, in epoch microseconds; ``axis`` converts times that are not
    timestamps. Without one it is the last access, in milliseconds, which a state with a time-to-live stores.
    """

    cutoff: int
    column: str | None = None
    axis: TimeAxis | None = None

    @classmethod
    def by_age(cls, watermark: int, age: int, column: str | None, axis: TimeAxis | None) -> Expired:
        """Return the rule for rows whose time plus ``age`` microseconds is at most the watermark's millisecond."""
        return cls((watermark + 1) * 1_000 - age - 1, column, axis)

    def describe(self) -> list[Any]:
        """Return the attributes as JSON values."""
        return [self.cutoff, self.column, *([] if self.axis is None else [self.axis.describe()])]

    @classmethod
    def read(cls, described: Sequence[Any], schema: pa.Schema) -> Expired | None:
        """Return the rule that ``describe`` returned, for a table with this schema.

        None where release 0.6 or earlier wrote it, without the axis, and the column's times need one.
        """
        cutoff, column, *axis = described
        if column is not None and not axis and not is_moment(schema.field(column).type):
            return None
        return cls(cutoff, column, TimeAxis.read(axis[0]) if axis else None)

    def filter(self, table: pa.Table) -> pa.Table:
        """Return a table without its expired rows; the same table where nothing has expired."""
        if self.column is None:
            return without_expired(table, self.cutoff)
        if self.cutoff < _MIN or not table.num_rows:
            return table
        young = micros_of(table, self.column, self.axis) > min(self.cutoff, _MAX)
        return table if young.all() else table.filter(pa.array(young))


class HashRange(NamedTuple):
    """A range of key hashes, with its first and its last one."""

    first: int
    last: int

    def has(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return for each hash whether it is in the range."""
        return (np.uint64(self.first) <= hashes) & (hashes <= np.uint64(self.last))  # type: ignore[no-any-return]


class LargeKey(NamedTuple):
    """A key whose rows in segments may be too large for a task's memory; ``of`` is the label of its table."""

    of: str
    key: Mapping[str, Any]
    rows: int
    bytes: int


class _Surviving(NamedTuple):
    """A file's rows that are neither hidden nor superseded, with their hashes, and its tombstones, within a range."""

    rows: pa.Table
    tombstones: NDArray[np.uint64]


@dataclass
class _Read:
    """The hashes of the rows that a batch read from segments, and those hashes of which some rows had expired."""

    hashes: NDArray[np.uint64]
    expired: NDArray[np.uint64]


class SegmentedTable:
    """The rows of one table, in a memtable and in segments, newest first; messages name the table by its label.

    ``stays`` returns which rows stay in the memtable when it is flushed; without it no row stays. ``large`` is the
    largest taken key that may need more than a task's memory, or None.

    >>> table = SegmentedTable(pa.table({"id": [1, 2], "tier": ["gold", "none"]}), ["id"], "state")
    >>> table.take([pa.table({"id": [1]})]).num_rows, table.rows
    (2, 2)
    """

    def __init__(
        self,
        memtable: pa.Table,
        key: Sequence[str],
        label: str,
        stays: Callable[[pa.Table], NDArray[np.bool_]] | None = None,
    ) -> None:
        self.memtable, self.rows, self._stays = memtable, memtable.num_rows, stays
        self.segments: tuple[Segment, ...] = ()
        self.large: LargeKey | None = None
        self._key, self._label = list(key), label
        self._shadowed = _NONE
        self._expired: Expired | None = None
        self._taken: _Read | None = None
        # The memtable's rows outside the range of hashes that was taken.
        self._apart = _empty(memtable)
        self._segmenting: SegmentContext | None = None

    @property
    def bytes(self) -> int:
        """The size of all rows in bytes: in memory, and of the segments' files."""
        return int(self.memtable.nbytes) + sum(segment.bytes for segment in self.segments)

    def convert_schema(self, change: Callable[[pa.Table], pa.Table]) -> None:
        """Convert the rows to another schema; those in segments are converted when they are read."""
        self.memtable = change(self.memtable)

    def take(self, keys: Sequence[pa.Table], within: HashRange | None = None) -> pa.Table:
        """Return the memtable's rows, then the rows of the keys' hashes in segments; ``put_back`` must follow.

        With ``within``, only rows of this range of hashes are taken, and the keys' hashes must be in it. ``put_back``
        may only add rows of these keys. The tables of ``keys`` have the key's columns in its order, under any names.
        """
        if within is not None:
            is_within = within.has(key_hashes(self.memtable.select(self._key)))
            self._apart = self.memtable.filter(pa.array(~is_within))
            self.memtable = self.memtable.filter(pa.array(is_within))
        if not self.segments:
            return self.memtable
        wanted = np.unique(np.concatenate([key_hashes(each) for each in keys])) if keys else _NONE
        wanted = wanted[~among(wanted, self._shadowed)]
        pieces = [_empty(self.memtable).add_column(0, pa.field(HASH, pa.uint64()), pa.array([], pa.uint64()))]
        for parts in _segments(self.segments):
            done = [_NONE]
            for part, own in zip(parts, _by_part(wanted, parts), strict=True):
                if not len(own):
                    continue
                piece = self._open(part)
                starts, stops = (np.searchsorted(piece.hashes, own, side) for side in ("left", "right"))
                present = stops > starts
                if present.any():
                    positions = ranges(starts[present], stops[present])
                    pieces.append(self._adapted(piece.table.take(pa.array(positions))))
                done.append(own[present | among(own, piece.tombstones)])
            wanted = wanted[~among(wanted, np.concatenate(done))]
        taken = concat(pieces)
        alive = taken if self._expired is None else self._expired.filter(taken)
        self._note_large(alive)
        hashes, before = (_hashes_of(each) for each in (alive, taken))
        self._taken = _Read(hashes, with_fewer(before, hashes) if len(before) > len(hashes) else _NONE)
        self.rows -= len(before) - len(hashes)
        return concat([self.memtable, alive.drop_columns([HASH])])

    def _note_large(self, rows: pa.Table) -> None:
        """Note the largest key among rows of segments if a task's memory may be too small for it.

        Rows with the same hash must be adjacent.
        """
        options = None if self._segmenting is None else self._segmenting.options
        most = 0 if options is None else max(options.key_bytes, 0 if self.large is None else self.large.bytes)
        if options is None or rows.nbytes <= most:
            return
        hashes = _hashes_of(rows)
        bounds = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1], [True]])).tolist()
        spans = [(0, len(bounds) - 1)]
        while spans:
            first, last = spans.pop()
            piece = rows.slice(bounds[first], bounds[last] - bounds[first])
            if piece.nbytes > most and last - first > 1:
                spans += [(first, (first + last) // 2), ((first + last) // 2, last)]
            elif piece.nbytes > most:
                most = piece.nbytes
                (key,) = decode_rows(piece.slice(0, 1).select(self._key), beyond=str)
                self.large = LargeKey(self._label, key.as_dict(), piece.num_rows, most)

    def put_back(self, rows: pa.Table, origins: NDArray[np.int64]) -> None:
        """Store rows instead of those that were taken; new rows may only have keys that were taken.

        ``origins`` has an entry for each row: for an unchanged one its position among the taken rows, for a new one any
        number that is not such a position.
        """
        count, taken = self.memtable.num_rows, self._taken
        if taken is None:
            self._keep(rows, rows.num_rows + self._apart.num_rows)
            return
        hashes, self._taken = taken.hashes, None
        live = self.rows + rows.num_rows - count - len(hashes)
        is_new = (origins < 0) | (origins >= count + len(hashes))
        from_segment = ~is_new & (origins >= count)
        unchanged = np.zeros(len(hashes), dtype=bool)
        unchanged[origins[from_segment] - count] = True
        changed = [hashes[~unchanged], taken.expired]
        if is_new.any() and len(hashes):
            added = key_hashes(rows.filter(pa.array(is_new)).select(self._key))
            changed.append(added[among(added, np.unique(hashes))])
        moved = np.unique(np.concatenate(changed))
        self._shadowed = np.union1d(self._shadowed, moved)
        stays = from_segment.copy()
        stays[from_segment] = ~among(hashes[origins[from_segment] - count], moved)
        self._keep(rows.filter(pa.array(~stays)) if stays.any() else rows, live)

    def sizes_of(self, hashes: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Return an estimate of the segments' bytes of rows for each hash; the hashes are sorted and distinct."""
        sizes = np.zeros(len(hashes))
        for parts in _segments(self.segments):
            start = 0
            for part, own in zip(parts, _by_part(hashes, parts), strict=True):
                if len(own) and part.rows:
                    known = self._open(part).hashes
                    counts = np.searchsorted(known, own, "right") - np.searchsorted(known, own)
                    sizes[start : start + len(own)] += counts * (part.bytes / part.rows)
                start += len(own)
        return sizes

    def _keep(self, memtable: pa.Table, rows: int) -> None:
        if self._apart.num_rows:
            memtable, self._apart = concat([self._apart, memtable]), _empty(memtable)
        chunks = memtable.column(0).num_chunks if memtable.num_columns else 0
        self.memtable = memtable.combine_chunks() if chunks > MAX_CHUNKS else memtable
        self.rows = rows

    def expire(self, expired: Expired) -> None:
        """Remove the expired rows: of the memtable at once, of segments when they are read or compacted."""
        young = expired.filter(self.memtable)
        self.rows -= self.memtable.num_rows - young.num_rows
        self.memtable = young
        if self.segments and (self._expired is None or self._expired.cutoff < expired.cutoff):
            self._expired = expired

    def flush(self, segmenting: SegmentContext) -> int:
        """Write the memtable as a segment if it has outgrown its limit, and return the bytes written.

        The newest segments are compacted with it while the next is not larger by the ratio (``SegmentOptions``).
        """
        options = segmenting.options
        outgrown = None if options is None else self._outgrown(options.limit_bytes)
        if options is None or outgrown is None:
            return 0
        flushed, kept = outgrown
        size = int(flushed.nbytes) + int(self._shadowed.nbytes)
        ratio, segments, merged = options.ratio_of(segmenting.key_group), _segments(self.segments), 0
        for parts in segments:
            of_segment = sum(part.bytes for part in parts)
            if of_segment >= ratio * size:
                break
            merged, size = merged + 1, size + of_segment
        self._segmenting = segmenting
        hashes = key_hashes(flushed.select(self._key))
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        hidden = np.union1d(self._shadowed, hashes)
        written: list[Segment] = []
        for first, last, older in self._by_range(segments[:merged], hidden, size, options.slice_bytes):
            start, stop = between(hashes, first, last)
            rows = take_rows(flushed, order[start:stop])
            pieces = [rows.add_column(0, pa.field(HASH, pa.uint64()), pa.array(hashes[start:stop]))]
            tombstones = [_sliced(self._shadowed, first, last)]
            for old in older:
                alive = old.rows if self._expired is None else self._expired.filter(old.rows)
                pieces.append(alive)
                tombstones.append(old.tombstones)
                if alive.num_rows < old.rows.num_rows:
                    # Older segments may still have rows of these hashes.
                    self.rows -= old.rows.num_rows - alive.num_rows
                    tombstones.append(_hashes_of(old.rows))
            part = self._write(segmenting, concat(pieces), tombstones, is_oldest=merged == len(segments))
            written += [replace(part, last=None if last == HASHES - 1 else last)] if part else []
        if written:
            written[-1] = replace(written[-1], last=None)
        self.segments = (*written, *chain.from_iterable(segments[merged:]))
        self.memtable, self._shadowed = kept, _NONE
        if not self.segments:
            self._expired = None
        return sum(part.bytes for part in written)

    def move(self, segmenting: SegmentContext, last: int) -> list[Segment]:
        """Move the memtable's rows to a file, for ``adopt``, and return its record; rows that ``stays`` returns stay.

        ``last`` is the end of their range of hashes; files that were moved before have only hashes below the range.
        """
        rows = self.memtable
        stays = np.zeros(rows.num_rows, dtype=bool) if self._stays is None else self._stays(rows)
        self.memtable, moved = rows.filter(pa.array(stays)), rows.filter(pa.array(~stays))
        hashes = key_hashes(moved.select(self._key))
        part = self._write(segmenting, moved.add_column(0, HASH, pa.array(hashes)), [], is_oldest=True)
        return [replace(part, last=last)] if part else []

    def adopt(self, parts: Sequence[Segment], segmenting: SegmentContext) -> None:
        """Make the files that ``move`` returned, in order, the one segment of this table, which has none yet."""
        if parts:
            self._segmenting, self.segments = segmenting, (*parts[:-1], replace(parts[-1], last=None))
            self.rows += sum(part.rows for part in parts)

    def _outgrown(self, limit: int) -> tuple[pa.Table, pa.Table] | None:
        """Return the memtable's rows to flush, and those that stay; None where those to flush are within the limit."""
        rows, others = self.memtable, int(self._shadowed.nbytes)
        if rows.nbytes + others <= limit:
            return None
        if self._stays is None:
            return rows, _empty(rows)
        stays = self._stays(rows)
        flushed = rows.filter(pa.array(~stays))
        return None if flushed.nbytes + others <= limit else (flushed, rows.filter(pa.array(stays)))

    def forget_segments(self) -> None:
        """Forget all rows of segments."""
        self.segments, self._shadowed, self._expired = (), _NONE, None
        self.rows = self.memtable.num_rows

    def _write(
        self, segmenting: SegmentContext, rows: pa.Table, tombstones: Sequence[NDArray[np.uint64]], *, is_oldest: bool
    ) -> Segment | None:
        hashes = _hashes_of(rows)
        order = np.argsort(hashes, kind="stable")
        hashes, plain = hashes[order], take_rows(rows.drop_columns([HASH]), order)
        # The oldest segment needs no tombstones, since no older one has rows.
        absent = _NONE if is_oldest else np.unique(np.concatenate(tombstones))
        absent = absent[~among(absent, hashes)]
        return write_segment(segmenting, hashes, plain, absent) if len(hashes) or len(absent) else None

    def read_all(self) -> pa.Table:
        """Return all rows; all segments are read."""
        return concat([*self.read_pieces()])

    def read_pieces(self) -> Iterator[pa.Table]:
        """Yield all rows: those of the memtable, then those of each segment."""
        yield self.memtable
        segments, size = _segments(self.segments), sum(part.bytes for part in self.segments)
        for _, _, older in self._by_range(segments, self._shadowed, size, SegmentOptions().slice_bytes):
            for old in older:
                alive = old.rows if self._expired is None else self._expired.filter(old.rows)
                yield alive.drop_columns([HASH])

    def _by_range(
        self, segments: Sequence[tuple[Segment, ...]], hidden: NDArray[np.uint64], size: int, range_bytes: int
    ) -> Iterator[tuple[int, int, Iterator[_Surviving]]]:
        """Yield ranges of hashes: the first and last hash, and the surviving rows of the segments, newest first.

        A row survives if its hash is neither in ``hidden`` nor among the rows and tombstones of a newer segment. A
        table of ``size`` bytes is divided into ranges of about ``range_bytes``.
        """
        count = max(1, -(-size // range_bytes))
        bounds = [HASHES * number // count for number in range(count + 1)]
        opened: dict[Segment, OpenSegment] = {}
        for first, after in pairwise(bounds):
            within = [_parts_between(parts, first, after - 1) for parts in segments]
            # A file that several ranges need is opened once, since a file of a non-local store is read as a whole.
            opened = {part: opened.get(part) or self._open(part) for parts in within for part in parts}
            hidden_within = _sliced(hidden, first, after - 1)
            yield first, after - 1, self._surviving(within, opened, hidden_within, first, after - 1)

    def _surviving(
        self,
        segments: Sequence[Sequence[Segment]],
        opened: Mapping[Segment, OpenSegment],
        hidden: NDArray[np.uint64],
        first: int,
        last: int,
    ) -> Iterator[_Surviving]:
        for parts in segments:
            passed = [hidden]
            for part in parts:
                piece = opened[part]
                start, stop = between(piece.hashes, first, last)
                hashes, rows = piece.hashes[start:stop], piece.table.slice(start, stop - start)
                tombstones, shown = _sliced(piece.tombstones, first, last), ~among(hashes, hidden)
                rows = self._adapted(rows if shown.all() else rows.filter(pa.array(shown)))
                yield _Surviving(rows, tombstones)
                passed += [hashes, tombstones]
            hidden = np.unique(np.concatenate(passed))

    def _open(self, part: Segment) -> OpenSegment:
        assert self._segmenting is not None
        return part.open(self._segmenting.store)

    def _adapted(self, rows: pa.Table) -> pa.Table:
        """Return rows of a segment, with their hashes, converted to the table's present columns."""
        return evolve(rows, pa.schema([rows.schema.field(0), *self.memtable.schema]), self._label)

    def describe(self) -> dict[str, Any]:
        """Return the record of the segments for a state value's header, as JSON values."""
        expired = self._expired and self._expired.describe()
        return {"rows": self.rows, "expired": expired, "segments": [each.as_list() for each in self.segments]}

    def shadowed(self) -> pa.Table:
        """Return the hashes that the memtable shadows, as a table."""
        return pa.table({HASH: pa.array(self._shadowed)})

    def attach(self, described: Mapping[str, Any], shadowed: pa.Table, segmenting: SegmentContext) -> None:
        """Restore the segments from what ``describe`` and ``shadowed`` returned, after the memtable was loaded."""
        self.rows, self._segmenting = int(described["rows"]), segmenting
        self.segments = tuple(Segment(*each) for each in described["segments"])
        self._shadowed = shadowed.column(0).to_numpy()
        expired = described["expired"]
        self._expired = Expired.read(expired, self.memtable.schema) if expired else None


def without_shadowed(described: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Return the tables of a state value, except those of shadowed hashes."""
    shadowed = {SHADOWED + name for name in described}
    return {name: table for name, table in tables.items() if name not in shadowed}


def _segments(parts: Sequence[Segment]) -> list[tuple[Segment, ...]]:
    """Return the parts grouped by segment; the part whose ``last`` is None is a segment's last one."""
    segments: list[tuple[Segment, ...]] = []
    start = 0
    for number, part in enumerate(parts, start=1):
        if part.last is None:
            segments.append(tuple(parts[start:number]))
            start = number
    return segments


def _parts_between(parts: Sequence[Segment], first: int, last: int) -> Sequence[Segment]:
    """Return a segment's parts that may have hashes of a range.

    >>> from types import SimpleNamespace
    >>> parts = [SimpleNamespace(last=last) for last in (10, 20, None)]
    >>> [part.last for part in _parts_between(parts, 10, 20)], [part.last for part in _parts_between(parts, 21, 21)]
    ([10, 20], [None])
    """
    ends = [HASHES - 1 if part.last is None else part.last for part in parts]
    return parts[bisect_left(ends, first) : bisect_left(ends, last) + 1]


def _by_part(wanted: NDArray[np.uint64], parts: Sequence[Segment]) -> list[NDArray[np.uint64]]:
    """Return sorted hashes split by the part of a segment that may have them."""
    ends = np.array([part.last for part in parts[:-1]], dtype=np.uint64)
    return np.split(wanted, np.searchsorted(wanted, ends, "right"))


def _sliced(hashes: NDArray[np.uint64], first: int, last: int) -> NDArray[np.uint64]:
    start, stop = between(hashes, first, last)
    return hashes[start:stop]


def _hashes_of(rows: pa.Table) -> NDArray[np.uint64]:
    return rows.column(0).to_numpy()  # type: ignore[no-any-return]


def _empty(rows: pa.Table) -> pa.Table:
    return rows.schema.empty_table()


def by_key_range(
    tables: Collection[SegmentedTable], rows: Sequence[tuple[pa.Table, pa.Table]], options: SegmentOptions | None
) -> Iterator[tuple[HashRange | None, list[pa.Table]]]:
    """Yield ranges of hashes, each with the rows of ``rows`` in it, table by table.

    ``rows`` are tables, each with its key columns. A range is chosen so that the segments have about a slice's bytes of
    its keys, or more where a single key has more. Where the segments have less than that in all, or without options,
    there is one range, None, with all rows.
    """
    if options is None or sum(part.bytes for table in tables for part in table.segments) <= options.slice_bytes:
        yield None, [each for each, _ in rows]
        return
    hashes = [key_hashes(keys) for _, keys in rows]
    starts, first = _range_starts(tables, np.unique(np.concatenate(hashes)), options.slice_bytes), 0
    for after in chain(islice(starts, 1, None), [HASHES]):
        within = HashRange(first, after - 1)
        if after - first == HASHES:
            yield None, [each for each, _ in rows]
        else:
            yield within, [each.filter(pa.array(within.has(own))) for (each, _), own in zip(rows, hashes, strict=True)]
        first = after


def _range_starts(tables: Collection[SegmentedTable], touched: NDArray[np.uint64], slice_bytes: int) -> Iterator[int]:
    """Yield the hashes with which ranges begin, among the touched ones.

    Files are opened only as far as the next range needs them: a store may have to fetch each, and caches few.
    """
    ends = {part.last for table in tables for part in table.segments if part.last is not None}
    size, number = 0.0, -1.0
    for piece in np.split(touched, np.searchsorted(touched, np.array(sorted(ends), dtype=np.uint64), "right")):
        if len(piece):
            sizes = size + np.cumsum(sum(table.sizes_of(piece) for table in tables))
            numbers = sizes // slice_bytes
            yield from piece[numbers > np.append(number, numbers[:-1])].tolist()
            size, number = sizes[-1], numbers[-1]


class Flushed(NamedTuple):
    """The content of a state value after a flush."""

    described: dict[str, Any]
    """The header's records of the tables with segments (``SegmentedTable.describe``)."""

    tables: dict[str, pa.Table]
    """The memtables, and the hashes that they shadow."""

    written: int
    """The bytes written as segments."""


def flush(tables: Mapping[str, SegmentedTable], segmenting: SegmentContext | None) -> Flushed:
    """Write memtables that are too large for the state value as segments; None leaves all rows in memtables."""
    written = 0 if segmenting is None else sum(table.flush(segmenting) for table in tables.values())
    with_segments = {name: table for name, table in tables.items() if table.segments}
    memtables = {name: table.memtable for name, table in tables.items()}
    shadowed = {SHADOWED + name: table.shadowed() for name, table in with_segments.items()}
    described = {name: table.describe() for name, table in with_segments.items()}
    return Flushed(described, {**memtables, **shadowed}, written)


def attach(
    tables: Mapping[str, SegmentedTable],
    described: Mapping[str, Any],
    stored: Mapping[str, pa.Table],
    segmenting: SegmentContext | None,
) -> None:
    """Attach the segments that a state value's header describes to tables whose memtables were loaded from it."""
    for name, description in described.items():
        if segmenting is None:
            msg = (
                f"the state has rows of {name!r} in segments, such as {description['segments'][0][0]}, and no segment "
                f"store is configured; run the query with its own checkpoint, where pyarrow can read it"
            )
            raise CheckpointError(msg)
        tables[name].attach(description, stored[SHADOWED + name], segmenting)
