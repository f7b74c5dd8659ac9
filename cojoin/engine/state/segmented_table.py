"""Rows at rest of one table and key group, of which a batch touches few: the newest in memory, others in segments.

Keeps: ``newest``, a table that lies in the state value, and *segments* (``segments``), newest first: immutable files
sorted by the hash of the key. The newest piece that has a hash has all of its rows; ``newest`` *owns* the hashes whose
rows it took out of segments, also those that have no row any more. So keys whose hashes are equal do each other no
harm. A batch takes the newest rows and those of its own keys (``take``) and puts back what is to be kept
(``put_back``): rows of segments that did not change stay there. Writes: once ``newest`` has outgrown its limit it
becomes a segment (``settle``), merged with the newer ones of the others, sizes growing by a ratio. Forgets: superseded
rows and what has expired when they are merged; until then they take room, and what has expired counts as a row, but is
never given out. Timers, rows that wait and rows that are held are no such tables: they stay in the state value. Costs:
without segments nothing; with them a binary search a segment and touched key, and a row written a few times over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cojoin.engine.state.segments import HASH, OpenSegment, Segment, Segmenting, write_segment
from cojoin.engine.state.ttl import without_expired
from cojoin.engine.values.hash_sets import among, ranges, with_fewer
from cojoin.engine.values.key_hashes import key_hashes
from cojoin.engine.values.schema_evolution import evolve
from cojoin.engine.values.tables import concat, event_micros, take_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from cojoin.engine.state.segments import SegmentStore

__all__ = ["MAX_CHUNKS", "OWNED", "Expired", "KeptRows", "own_tables", "whole_tables"]

OWNED = "@owned:"
"""How a state value names the hashes that a table's newest rows own, before the table's name."""

MAX_CHUNKS = 16
"""How many pieces, one of each batch, a table at rest may have before they are made one."""

_LARGEST_BYTES = 1 << 30
"""Segments that would become larger are not merged: a column of strings ends at 2 GB."""

_MIN, _MAX = -(1 << 63), (1 << 63) - 1
_NONE = np.empty(0, dtype=np.uint64)


@dataclass(frozen=True)
class Expired:
    """What nobody asks for any more.

    Attributes:
        cutoff: The greatest time that has expired.
        column: The column of times, in epoch microseconds; None for a state with a time-to-live, which has its last
            accesses beside what it stores.
    """

    cutoff: int
    column: str | None = None

    def leave_out(self, table: pa.Table) -> pa.Table:
        """Return a table without what has expired; the same table where nothing has."""
        if self.column is None:
            return without_expired(table, self.cutoff)
        if self.cutoff < _MIN or not table.num_rows:
            return table
        young = event_micros(table, self.column) > min(self.cutoff, _MAX)
        return table if young.all() else table.filter(pa.array(young))


@dataclass
class _Taken:
    """What a batch has taken out of segments: the hashes of these rows, and those of which some had expired."""

    hashes: NDArray[np.uint64]
    expired: NDArray[np.uint64]


class KeptRows:
    """The rows of one table.

    Args:
        newest: The rows to begin with, mostly none.
        key: The names of the key's columns.
        what: What the rows are, for messages.

    Attributes:
        newest: The rows in memory.
        rows: How many rows are kept, those in segments too.
        segments: The segments, newest first.

    >>> kept = KeptRows(pa.table({"id": [1, 2], "tier": ["gold", "none"]}), ["id"], "state")
    >>> kept.take([pa.table({"id": [1]})]).num_rows, kept.rows
    (2, 2)
    """

    def __init__(self, newest: pa.Table, key: Sequence[str], what: str) -> None:
        self.newest, self.rows = newest, newest.num_rows
        self.segments: tuple[Segment, ...] = ()
        self._key, self._what = list(key), what
        self._owned = _NONE
        self._expired: Expired | None = None
        self._taken: _Taken | None = None
        self._store: SegmentStore | None = None

    @property
    def bytes(self) -> int:
        """The bytes of all rows: in memory, and of the segments' files."""
        return int(self.newest.nbytes) + sum(segment.bytes for segment in self.segments)

    def replace(self, change: Callable[[pa.Table], pa.Table]) -> None:
        """Bring the rows to another schema; those in segments follow when they are read (``evolution``)."""
        self.newest = change(self.newest)

    def take(self, keys: Sequence[pa.Table]) -> pa.Table:
        """Return the rows of some keys, among those of others; ``put_back`` follows.

        Args:
            keys: Tables of the key's columns, in the order of the key, whatever their names.

        Returns:
            The newest rows, then those of the keys' hashes that lie in segments.
        """
        if not self.segments:
            return self.newest
        wanted = np.unique(np.concatenate([key_hashes(each) for each in keys])) if keys else _NONE
        wanted = wanted[~among(wanted, self._owned)]
        found = [_none_of(self.newest)]
        for piece in self._open(self.segments):
            if not len(wanted):
                break
            starts, stops = (np.searchsorted(piece.hashes, wanted, side) for side in ("left", "right"))
            there = stops > starts
            if there.any():
                positions = ranges(starts[there], stops[there])
                found.append(self._adapted(piece.table.take(pa.array(positions))))
            wanted = wanted[~(there | among(wanted, piece.gone))]
        taken = concat(found)
        alive = taken if self._expired is None else self._expired.leave_out(taken)
        hashes, before = (_hashes_of(each) for each in (alive, taken))
        self._taken = _Taken(hashes, with_fewer(before, hashes) if len(before) > len(hashes) else _NONE)
        self.rows -= len(before) - len(hashes)
        return concat([self.newest, alive.drop_columns([HASH])])

    def put_back(self, rows: pa.Table, origins: NDArray[np.int64]) -> None:
        """Keep rows instead of those that were taken.

        Args:
            rows: The rows to keep, of the taken keys: of others none may be new.
            origins: For each its position among the rows that were taken, if it is one of them and unchanged; a new
                row has another number.
        """
        count, taken = self.newest.num_rows, self._taken
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
        self._owned = np.union1d(self._owned, moved)
        stays = from_segment.copy()
        stays[from_segment] = ~among(hashes[origins[from_segment] - count], moved)
        self._keep(rows.filter(pa.array(~stays)) if stays.any() else rows, live)

    def _keep(self, newest: pa.Table, rows: int) -> None:
        chunks = newest.column(0).num_chunks if newest.num_columns else 0
        self.newest = newest.combine_chunks() if chunks > MAX_CHUNKS else newest
        self.rows = rows

    def expire(self, expired: Expired) -> None:
        """Forget what has expired: at once in memory, in segments when it is read or merged."""
        young = expired.leave_out(self.newest)
        self.rows -= self.newest.num_rows - young.num_rows
        self.newest = young
        if self.segments and (self._expired is None or self._expired.cutoff < expired.cutoff):
            self._expired = expired

    def settle(self, segmenting: Segmenting) -> int:
        """Make the newest rows a segment, if they have outgrown their limit; merge it with others.

        Returns:
            The bytes written.
        """
        options, size = segmenting.options, int(self.newest.nbytes) + int(self._owned.nbytes)
        if options is None or size <= options.limit_bytes:
            return 0
        ratio, merged = options.ratio_of(segmenting.key_group), 0
        for segment in self.segments:
            if segment.bytes >= ratio * size or segment.bytes + size > _LARGEST_BYTES:
                break
            merged, size = merged + 1, size + segment.bytes
        self._store = segmenting.store
        hashes = key_hashes(self.newest.select(self._key))
        pieces = [self.newest.add_column(0, pa.field(HASH, pa.uint64()), pa.array(hashes))]
        gone = [self._owned]
        hidden = np.union1d(self._owned, hashes)
        opened = list(self._open(self.segments[:merged]))
        for rows in self._surviving(opened, hidden):
            alive = rows if self._expired is None else self._expired.leave_out(rows)
            pieces.append(alive)
            if alive.num_rows < rows.num_rows:
                # Older segments may still have rows of these hashes.
                self.rows -= rows.num_rows - alive.num_rows
                gone.append(_hashes_of(rows))
        gone += [piece.gone for piece in opened]
        written = self._write(segmenting, concat(pieces), gone, is_oldest=merged == len(self.segments))
        self.segments = (*([written] if written else []), *self.segments[merged:])
        self.newest, self._owned = _empty(self.newest), _NONE
        if not self.segments:
            self._expired = None
        return written.bytes if written else 0

    def _write(
        self, segmenting: Segmenting, rows: pa.Table, gone: Sequence[NDArray[np.uint64]], *, is_oldest: bool
    ) -> Segment | None:
        hashes = _hashes_of(rows)
        order = np.argsort(hashes, kind="stable")
        hashes, plain = hashes[order], take_rows(rows.drop_columns([HASH]), order)
        # In the oldest there is nothing to hide.
        absent = _NONE if is_oldest else np.unique(np.concatenate(gone))
        absent = absent[~among(absent, hashes)]
        return write_segment(segmenting, hashes, plain, absent) if len(hashes) or len(absent) else None

    def whole(self) -> pa.Table:
        """Return all rows; those that segments have are read, all of them."""
        if not self.segments:
            return self.newest
        found = [self.newest]
        for rows in self._surviving(self._open(self.segments), self._owned):
            alive = rows if self._expired is None else self._expired.leave_out(rows)
            found.append(alive.drop_columns([HASH]))
        return concat(found)

    def _surviving(self, pieces: Iterator[OpenSegment] | Sequence[OpenSegment], hidden: Any) -> Iterator[pa.Table]:
        """Yield each piece's rows that no newer piece has, nor one of the hidden hashes, with their hashes."""
        for piece in pieces:
            shown = ~among(piece.hashes, hidden)
            yield self._adapted(piece.table if shown.all() else piece.table.filter(pa.array(shown)))
            hidden = np.union1d(hidden, np.concatenate([piece.hashes, piece.gone]))

    def _open(self, segments: Sequence[Segment]) -> Iterator[OpenSegment]:
        assert self._store is not None or not segments
        return (segment.open(self._store) for segment in segments)  # type: ignore[arg-type]

    def _adapted(self, rows: pa.Table) -> pa.Table:
        """Return rows of a segment, with their hashes, in the columns of now."""
        return evolve(rows, pa.schema([rows.schema.field(0), *self.newest.schema]), self._what)

    def describe(self) -> dict[str, Any]:
        """Return what a state value must know beside the newest rows and the hashes that they own, as JSON values."""
        expired = self._expired and [self._expired.cutoff, self._expired.column]
        return {"rows": self.rows, "expired": expired, "segments": [each.as_list() for each in self.segments]}

    def owned(self) -> pa.Table:
        """Return the hashes that the newest rows own, as a table."""
        return pa.table({HASH: pa.array(self._owned)})

    def attach(self, described: Mapping[str, Any], owned: pa.Table, store: SegmentStore) -> None:
        """Take what ``describe`` and ``owned`` gave; the newest rows are there already."""
        self.rows, self._store = int(described["rows"]), store
        self.segments = tuple(Segment(*each) for each in described["segments"])
        self._owned = owned.column(0).to_numpy()
        self._expired = Expired(*described["expired"]) if described["expired"] else None


def own_tables(described: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Return the tables of a state value without those that tell of segments."""
    return {
        name: table for name, table in tables.items() if name.removeprefix(OWNED) not in described or name in described
    }


def whole_tables(
    described: Mapping[str, Any], tables: Mapping[str, pa.Table], store: SegmentStore
) -> dict[str, pa.Table]:
    """Return a state value's tables with all of their rows, for who has no operator.

    Args:
        described: What ``KeptRows.describe`` gave, by table.
        tables: The tables of the state value.
        store: Where segments lie.
    """
    found = own_tables(described, tables)
    for name, each in described.items():
        kept = KeptRows(tables[name], (), f"table {name!r}")
        kept.attach(each, tables[OWNED + name], store)
        found[name] = kept.whole()
    return found


def _hashes_of(rows: pa.Table) -> NDArray[np.uint64]:
    return rows.column(0).to_numpy()  # type: ignore[no-any-return]


def _none_of(rows: pa.Table) -> pa.Table:
    """Return no rows, with hashes."""
    return _empty(rows).add_column(0, pa.field(HASH, pa.uint64()), pa.array([], pa.uint64()))


def _empty(rows: pa.Table) -> pa.Table:
    return rows.schema.empty_table()
