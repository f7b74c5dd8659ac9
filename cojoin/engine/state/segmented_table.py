"""A key group's state table as an LSM tree: a memtable and segments, of which a batch reads few rows.

It keeps the *memtable*, which is part of the state value, and *segments* (``segments``), newest first: immutable files,
sorted by the hash of the key. The memtable *shadows* hashes: their rows in segments are superseded or deleted, whether
or not the memtable has rows of them. It shadows the hashes of rows that a batch read from segments and that were
changed, added, removed or expired; hashes whose rows were all put back unchanged are not shadowed. A read returns the
rows of a hash from the newest piece that has or shadows it. Keys whose hashes are equal always move together, so a
collision costs time and never a row.

A batch takes the memtable and the rows of its keys (``take``), and puts back what is to stay (``put_back``). A
memtable that has outgrown its limit is flushed (``flush``): it becomes a segment, and is compacted with the newest
segments while these are not much larger, so that sizes grow by a ratio (size-tiered compaction). The state value then
has the memtable and the hashes that it shadows, and its header the segments' names.

Compaction removes superseded and expired rows of segments. Expired rows are never returned; in segments they are
counted until they are read or compacted.

Without segments the memtable is decoded and returned whole in each batch. With segments it costs 0.1 ms for each
segment that a batch opens, and a binary search for each segment and touched key (``SegmentOptions``: writing).
Timers, and rows that wait for matches, are not such tables: they stay in the state value. Rows that wait for the
watermark have files of their own (``waiting_rows``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from cojoin.engine.state.segments import HASH, OpenSegment, Segment, SegmentContext, write_segment
from cojoin.engine.state.ttl import without_expired
from cojoin.engine.time.time_axis import TimeAxis, micros_of
from cojoin.engine.values.hashes import key_hashes
from cojoin.engine.values.schema_evolution import evolve
from cojoin.engine.values.tables import concat, take_rows
from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from cojoin.engine.state.segments import SegmentStore


def ranges(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of one or more ranges, one range after the other."""
    lengths = stops - starts
    ends = np.cumsum(lengths)
    positions: NDArray[np.int64] = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    return positions


def with_fewer(before: NDArray[np.uint64], after: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the distinct hashes that occur less often after than before."""
    distinct, counts = np.unique(before, return_counts=True)
    left = np.sort(after)
    still = np.searchsorted(left, distinct, "right") - np.searchsorted(left, distinct, "left")
    return distinct[still < counts]


def among(values: NDArray[np.uint64], known: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return for each value whether it is among the known ones, which are sorted."""
    if not len(known):
        return np.zeros(len(values), dtype=bool)
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return known[places] == values  # type: ignore[no-any-return]


SHADOWED = "@owned:"
"""The prefix under which a state value has the hashes that a memtable shadows; it is part of the stored format."""

MAX_CHUNKS = 16
"""The number of Arrow chunks (one per batch) above which a stored table is combined into one."""

_LARGEST_BYTES = 1 << 30
"""Segments that would become larger are not compacted: half of the 2 GB that an Arrow column of strings can hold."""

_MIN, _MAX = -(1 << 63), (1 << 63) - 1
_NONE = np.empty(0, dtype=np.uint64)


@dataclass(frozen=True)
class Expired:
    """Rows that no read may return any more: those whose time is at most ``cutoff``.

    It is in epoch microseconds of ``column``, whose times are on ``axis``, or with None in milliseconds of the last
    accesses that a state with a time-to-live stores with its values.
    """

    cutoff: int
    column: str | None = None
    axis: TimeAxis | None = None

    def filter(self, table: pa.Table) -> pa.Table:
        """Return a table without its expired rows; the same table where nothing has expired."""
        if self.column is None:
            return without_expired(table, self.cutoff)
        if self.cutoff < _MIN or not table.num_rows:
            return table
        young = micros_of(table, self.column, self.axis) > min(self.cutoff, _MAX)
        return table if young.all() else table.filter(pa.array(young))


@dataclass
class _Read:
    """A batch's reading of segments: the hashes of its rows, and the hashes of which some rows had expired."""

    hashes: NDArray[np.uint64]
    expired: NDArray[np.uint64]


class SegmentedTable:
    """The rows of one table, in a memtable and in segments, newest first; the label names them in messages.

    >>> table = SegmentedTable(pa.table({"id": [1, 2], "tier": ["gold", "none"]}), ["id"], "state")
    >>> table.take([pa.table({"id": [1]})]).num_rows, table.rows
    (2, 2)
    """

    def __init__(self, memtable: pa.Table, key: Sequence[str], label: str) -> None:
        self.memtable, self.rows = memtable, memtable.num_rows
        self.segments: tuple[Segment, ...] = ()
        self._key, self._label = list(key), label
        self._shadowed = _NONE
        self._expired: Expired | None = None
        self._taken: _Read | None = None
        self._store: SegmentStore | None = None

    @property
    def bytes(self) -> int:
        """The size of all rows in bytes: in memory, and of the segments' files."""
        return int(self.memtable.nbytes) + sum(segment.bytes for segment in self.segments)

    def convert_schema(self, change: Callable[[pa.Table], pa.Table]) -> None:
        """Convert the rows to another schema; those in segments are converted when they are read."""
        self.memtable = change(self.memtable)

    def take(self, keys: Sequence[pa.Table]) -> pa.Table:
        """Return the memtable's rows, then those of the keys' hashes in segments; ``put_back`` must follow.

        The tables have the key columns in the order of the key, whatever their names.
        """
        if not self.segments:
            return self.memtable
        wanted = np.unique(np.concatenate([key_hashes(each) for each in keys])) if keys else _NONE
        wanted = wanted[~among(wanted, self._shadowed)]
        pieces = [_none_of(self.memtable)]
        for piece in self._open(self.segments):
            if not len(wanted):
                break
            starts, stops = (np.searchsorted(piece.hashes, wanted, side) for side in ("left", "right"))
            present = stops > starts
            if present.any():
                positions = ranges(starts[present], stops[present])
                pieces.append(self._adapted(piece.table.take(pa.array(positions))))
            wanted = wanted[~(present | among(wanted, piece.tombstones))]
        taken = concat(pieces)
        alive = taken if self._expired is None else self._expired.filter(taken)
        hashes, before = (_hashes_of(each) for each in (alive, taken))
        self._taken = _Read(hashes, with_fewer(before, hashes) if len(before) > len(hashes) else _NONE)
        self.rows -= len(before) - len(hashes)
        return concat([self.memtable, alive.drop_columns([HASH])])

    def put_back(self, rows: pa.Table, origins: NDArray[np.int64]) -> None:
        """Store rows in place of those that were taken; new rows may only have keys that were taken.

        ``origins`` is the position of each among the taken rows, if it is one of them and unchanged; for a new row any
        number that is not such a position.
        """
        count, taken = self.memtable.num_rows, self._taken
        if taken is None:
            self._keep(rows, rows.num_rows)
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

    def _keep(self, memtable: pa.Table, rows: int) -> None:
        chunks = memtable.column(0).num_chunks if memtable.num_columns else 0
        self.memtable = memtable.combine_chunks() if chunks > MAX_CHUNKS else memtable
        self.rows = rows

    def expire(self, expired: Expired) -> None:
        """Remove what has expired: in memory at once, in segments when it is read or compacted."""
        young = expired.filter(self.memtable)
        self.rows -= self.memtable.num_rows - young.num_rows
        self.memtable = young
        if self.segments and (self._expired is None or self._expired.cutoff < expired.cutoff):
            self._expired = expired

    def flush(self, segmenting: SegmentContext) -> int:
        """Write the memtable as a segment if it has outgrown its limit, and return the bytes written.

        The newest segments are compacted with it while they are not larger by the ratio (``SegmentOptions``).
        """
        options, size = segmenting.options, int(self.memtable.nbytes) + int(self._shadowed.nbytes)
        if options is None or size <= options.limit_bytes:
            return 0
        ratio, merged = options.ratio_of(segmenting.key_group), 0
        for segment in self.segments:
            if segment.bytes >= ratio * size or segment.bytes + size > _LARGEST_BYTES:
                break
            merged, size = merged + 1, size + segment.bytes
        self._store = segmenting.store
        hashes = key_hashes(self.memtable.select(self._key))
        pieces = [self.memtable.add_column(0, pa.field(HASH, pa.uint64()), pa.array(hashes))]
        tombstones = [self._shadowed]
        hidden = np.union1d(self._shadowed, hashes)
        opened = list(self._open(self.segments[:merged]))
        for rows in self._surviving(opened, hidden):
            alive = rows if self._expired is None else self._expired.filter(rows)
            pieces.append(alive)
            if alive.num_rows < rows.num_rows:
                # Older segments may still have rows of these hashes.
                self.rows -= rows.num_rows - alive.num_rows
                tombstones.append(_hashes_of(rows))
        tombstones += [piece.tombstones for piece in opened]
        written = self._write(segmenting, concat(pieces), tombstones, is_oldest=merged == len(self.segments))
        self.segments = (*([written] if written else []), *self.segments[merged:])
        self.memtable, self._shadowed = _empty(self.memtable), _NONE
        if not self.segments:
            self._expired = None
        return written.bytes if written else 0

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
        if not self.segments:
            return self.memtable
        pieces = [self.memtable]
        for rows in self._surviving(self._open(self.segments), self._shadowed):
            alive = rows if self._expired is None else self._expired.filter(rows)
            pieces.append(alive.drop_columns([HASH]))
        return concat(pieces)

    def _surviving(self, pieces: Iterator[OpenSegment] | Sequence[OpenSegment], hidden: Any) -> Iterator[pa.Table]:
        """Yield each piece's rows, with their hashes, except those of hidden hashes and of hashes of a newer piece."""
        for piece in pieces:
            shown = ~among(piece.hashes, hidden)
            yield self._adapted(piece.table if shown.all() else piece.table.filter(pa.array(shown)))
            hidden = np.union1d(hidden, np.concatenate([piece.hashes, piece.tombstones]))

    def _open(self, segments: Sequence[Segment]) -> Iterator[OpenSegment]:
        assert self._store is not None or not segments
        return (segment.open(self._store) for segment in segments)  # type: ignore[arg-type]

    def _adapted(self, rows: pa.Table) -> pa.Table:
        """Return rows of a segment, with their hashes, in the table's present columns."""
        return evolve(rows, pa.schema([rows.schema.field(0), *self.memtable.schema]), self._label)

    def describe(self) -> dict[str, Any]:
        """Return the record of the segments for a state value's header, as JSON values."""
        expired = self._expired and [self._expired.cutoff, self._expired.column]
        return {"rows": self.rows, "expired": expired, "segments": [each.as_list() for each in self.segments]}

    def shadowed(self) -> pa.Table:
        """Return the hashes that the memtable shadows, as a table."""
        return pa.table({HASH: pa.array(self._shadowed)})

    def attach(self, described: Mapping[str, Any], shadowed: pa.Table, store: SegmentStore) -> None:
        """Restore what ``describe`` and ``shadowed`` returned; the memtable was loaded before."""
        self.rows, self._store = int(described["rows"]), store
        self.segments = tuple(Segment(*each) for each in described["segments"])
        self._shadowed = shadowed.column(0).to_numpy()
        self._expired = Expired(*described["expired"]) if described["expired"] else None


def without_shadowed(described: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Return the tables of a state value, except those of shadowed hashes."""
    return {
        name: table
        for name, table in tables.items()
        if name.removeprefix(SHADOWED) not in described or name in described
    }


def whole_tables(
    described: Mapping[str, Any], tables: Mapping[str, pa.Table], store: SegmentStore
) -> dict[str, pa.Table]:
    """Return a state value's tables with all of their rows, for a reader without an operator."""
    whole = without_shadowed(described, tables)
    for name, description in described.items():
        table = SegmentedTable(tables[name], (), f"table {name!r}")
        table.attach(description, tables[SHADOWED + name], store)
        whole[name] = table.read_all()
    return whole


def _hashes_of(rows: pa.Table) -> NDArray[np.uint64]:
    return rows.column(0).to_numpy()  # type: ignore[no-any-return]


def _none_of(rows: pa.Table) -> pa.Table:
    """Return an empty table that also has the column of hashes."""
    return _empty(rows).add_column(0, pa.field(HASH, pa.uint64()), pa.array([], pa.uint64()))


def _empty(rows: pa.Table) -> pa.Table:
    return rows.schema.empty_table()


class Flushed(NamedTuple):
    """The content of a state value after a flush."""

    described: dict[str, Any]
    """For each table with segments, the header's record of it (``SegmentedTable.describe``)."""

    tables: dict[str, pa.Table]
    """The memtables, and the hashes that they shadow."""

    written: int
    """The bytes written as segments."""


def flush(tables: Mapping[str, SegmentedTable], segmenting: SegmentContext | None) -> Flushed:
    """Write memtables that are too large for the state value as segments; None leaves all rows in the state value."""
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
    """Connect tables whose memtables were loaded from a state value with their segments, as its header has them."""
    for name, description in described.items():
        if segmenting is None:
            msg = (
                f"the state has rows of {name!r} in segments, such as {description['segments'][0][0]}, and no segment "
                f"store is configured; run the query with its own checkpoint, where pyarrow can read it"
            )
            raise CheckpointError(msg)
        tables[name].attach(description, stored[SHADOWED + name], segmenting.store)
