"""The upsert of a batch into a plain Delta table without the JVM: files with replaced rows are written again without.

The workers have written the batch's rows into the table's folder, as for an append. The driver reads their keys, and
looks for them in the table: the statistics in the log leave out the files that can't hold one, and of the others it
reads the key columns. Where no file holds a key, all keys are new, and the commit is an append of the workers' files.
Otherwise each file that holds replaced rows is written again without them, and one commit removes these files and adds
the new ones (copy-on-write). Where not all rows of the batch stay, those that stay are written again, too.

It is planned on the very version on which the commit is made, and planned again after any other commit in between. So
it is as exact as an append, and another writer's rows are neither lost nor doubled.

The driver holds the batch's keys in memory; its rows as well where a key comes twice or rows are compared with stored
ones. The table's files are read and written a row group at a time. Rewriting costs some 0.4 s for a million rows of ten
columns, and reading keys a tenth of that. A batch or a rewriting above ``MOST_BYTES`` is left to Spark's MERGE, if the
session has Delta's classes. (Rows that were written again are in files whose names begin with ``kept-``.)
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.delta.table_batches import KEPT
from cojoin.engine.upsert import KeySet, already_stored, show_key
from cojoin.engine.values.tables import concat
from cojoin.errors import QueryFailedError
from cojoin.spark.batch.written_files import FileTarget, TargetFile
from cojoin.spark.sinks.batch_rows import BatchRows, FileRows, rows_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from cojoin.delta.actions import DataFile
    from cojoin.storage.parquet_files import WrittenFile
    from cojoin.storage.store import Store

MOST_BYTES = 1 << 30
"""The largest batch, or rewriting, in bytes of parquet files, that the driver makes where Spark could make it, too."""

_FILE_BYTES = 512 << 20
"""The size in memory of the rows of a new file."""


class LeftToSparkError(Exception):
    """An upsert that Spark's MERGE must make, with the reason."""


def check_size(label: str, sizes: Iterable[int]) -> None:
    """Raise a ``LeftToSparkError`` where files are too large for the driver."""
    total = sum(sizes)
    if total > MOST_BYTES:
        msg = f"{label} has {total >> 20:,} MB, more than {MOST_BYTES >> 20:,} MB"
        raise LeftToSparkError(msg)


class _Holder(NamedTuple):
    """A file of the table that holds keys of the batch: the numbers of these rows, and the places of their keys."""

    file: DataFile
    rows: NDArray[np.int64]
    places: NDArray[np.int64]


class TableUpsert:
    """The change by which a batch is upserted into a table, for ``TableBatches.replace``; ``counts`` are its rows.

    ``source`` reads files of the table's folder, which is the store's root. ``target`` is that folder, with the columns
    of the batch's files. ``may_leave`` is whether a large change may be left to Spark.
    """

    def __init__(
        self, store: Store, source: FileRows, target: FileTarget, batch: BatchRows, *, may_leave: bool
    ) -> None:
        self._store, self._source, self._batch, self._may_leave = store, source, batch, may_leave
        self._target = FileTarget(target.folder, batch.stored_schema, target.compression, target.settings)
        self._written: list[WrittenFile] = []
        self.counts: dict[str, int] = {}

    def __call__(self, present: Sequence[DataFile]) -> tuple[list[WrittenFile], list[DataFile]]:
        """Return the files to add and those to remove, of a version with these files.

        Raises ``LeftToSparkError`` where Spark must make the change, ``UnfitFileError`` where only it reads a file, and
        ``QueryFailedError`` where the table has a key that must not come twice.
        """
        self.clean()
        batch = self._batch
        holders = self._holders(present)
        is_stored = np.zeros(len(batch.places), dtype=bool)
        for holder in holders:
            is_stored[holder.places] = True
        if batch.rule.conflict == "error" and is_stored.any():
            key = show_key(batch.keys.slice(int(np.argmax(is_stored)), 1))
            raise QueryFailedError(already_stored(key))
        wins = self._winners(holders, is_stored)
        changed = [each for each in holders if wins[each.places].any()]
        if self._may_leave:
            check_size("the part of the table that it changes", (each.file.size for each in changed))
        self._write(KEPT, (rows for each in changed for rows in self._rows(each, wins[each.places], is_kept=False)))
        stays = wins & ~batch.removes
        self.counts = {
            "inserted": int((stays & ~is_stored).sum()),
            "updated": int((stays & is_stored).sum()),
            "deleted": int((wins & is_stored & batch.removes).sum()),
            "superseded": batch.superseded + int((~wins).sum()),
            "null_keys": batch.null_keys,
        }
        if int(stays.sum()) == sum(file.rows for file in batch.files) and batch.stored_schema == batch.schema:
            return [*self._written, *batch.files], [each.file for each in changed]
        self._write("part", batch.read(stays))
        return list(self._written), [each.file for each in changed]

    def clean(self, committed: Sequence[WrittenFile] | None = None) -> None:
        """Delete the files that an earlier try has written, which no commit names.

        With ``committed``, the files of the commit that was made, delete all other ones, those of the workers as well.
        """
        named = {file.name for file in committed or ()}
        of_workers = [] if committed is None else self._batch.files
        for file in [*self._written, *of_workers]:
            if file.name not in named:
                with contextlib.suppress(Exception):
                    self._store.delete(file.name)
        self._written = []

    def _holders(self, present: Sequence[DataFile]) -> list[_Holder]:
        """Return the files that hold keys of the batch."""
        batch, bounds = self._batch, dict[str, tuple[Any, Any]]()
        if not len(batch.places):
            return []
        for field in batch.key_schema:
            if pa.types.is_integer(field.type) or pa.types.is_string(field.type):
                ends = pc.min_max(batch.keys.column(field.name))
                # A text that is not valid UTF-8 can't be compared with those in JSON.
                with contextlib.suppress(UnicodeDecodeError):
                    bounds[field.name] = ends["min"].as_py(), ends["max"].as_py()
        candidates = [(file, known) for file in present if _may_hold(known := file.counted(), bounds)]
        elsewhere = [file.path for file, _ in candidates if "://" in file.path or file.path.startswith("/")]
        if elsewhere:
            msg = f"a file of the table is outside of its folder: {elsewhere[0]}"
            raise LeftToSparkError(msg)
        if not candidates:
            return []
        # Where files and batch overlap by little, few rows on either side are left to be hashed.
        overlap = _overlap([known for _, known in candidates], bounds)
        places = _between(batch.keys, overlap)
        keys = KeySet(batch.keys.take(pa.array(places)))
        looked = [self._look(file, overlap, keys) for file, _ in candidates]
        return [_Holder(file, rows, places[at]) for file, rows, at in looked if len(rows)]

    def _look(self, file: DataFile, overlap: dict[str, tuple[int, int]], keys: KeySet) -> _Holder:
        """Return the rows of a file whose keys are among some, with the places of these there."""
        rows, places, first = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)], 0
        for table in self._source.read(file.path, self._batch.key_schema):
            near = _between(table, overlap)
            at = keys.find(table if len(near) == table.num_rows else table.take(pa.array(near)))
            rows.append(first + near[at >= 0])
            places.append(at[at >= 0])
            first += table.num_rows
        return _Holder(file, np.concatenate(rows), np.concatenate(places))

    def _winners(self, holders: Sequence[_Holder], is_stored: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of the batch's rows take the place of the stored row of their key, or have none."""
        rule, rows = self._batch.rule, self._batch.columns
        if not rule.order_by:
            return ~is_stored if rule.conflict == "first" else np.ones(len(is_stored), dtype=bool)
        stored = (part for each in holders for part in self._rows(each, np.ones(len(each.rows), bool), is_kept=True))
        older = concat([self._batch.stored_schema.empty_table(), *stored])
        return rule.winners(older, rows)

    def _rows(self, holder: _Holder, chosen: NDArray[np.bool_], *, is_kept: bool) -> Iterator[pa.Table]:
        """Yield some of the rows of a holder's keys, or all but these."""
        rows = self._source.read(holder.file.path, self._batch.stored_schema)
        return rows_at(rows, holder.rows[chosen], is_kept=is_kept)

    def _write(self, prefix: str, tables: Iterable[pa.Table]) -> None:
        """Write rows to new files of the table, which begin with a prefix."""
        file, size = None, 0
        for table in tables:
            for rows in table.to_batches():
                file = file or TargetFile(self._target, prefix)
                file.add(rows)
                size += rows.nbytes
            if file is not None and size >= _FILE_BYTES:
                self._written.append(file.close())
                file, size = None, 0
        if file is not None:
            self._written.append(file.close())


def _overlap(files: Sequence[dict[str, Any]], bounds: dict[str, tuple[Any, Any]]) -> dict[str, tuple[int, int]]:
    """Return the range of integers, by column, that both some files have, by their statistics, and a batch."""
    ranges = {}
    for name, (low, high) in bounds.items():
        lows: list[Any] = [(known.get("minValues") or {}).get(name) for known in files]
        highs: list[Any] = [(known.get("maxValues") or {}).get(name) for known in files]
        if all(type(value) is int for value in (low, high, *lows, *highs)):
            ranges[name] = max(low, min(lows)), min(high, max(highs))
    return ranges


def _between(keys: pa.Table, ranges: dict[str, tuple[int, int]]) -> NDArray[np.int64]:
    """Return the places of the rows within some ranges of integers, by column."""
    is_within = np.ones(keys.num_rows, dtype=bool)
    for name, (low, high) in ranges.items():
        column = keys.column(name)
        within = pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))
        is_within &= pc.fill_null(within, False).to_numpy()
    return np.flatnonzero(is_within)


def _may_hold(statistics: dict[str, Any], bounds: dict[str, tuple[Any, Any]]) -> bool:
    """Return whether a file may hold a key between some bounds, by column."""
    if statistics.get("numRecords") == 0:
        return False
    least, greatest = statistics.get("minValues") or {}, statistics.get("maxValues") or {}
    for name, (low, high) in bounds.items():
        # A truncated text ends with the greatest character, or is a lower bound.
        if type(greatest.get(name)) is type(low) and greatest[name] < low:
            return False
        if type(least.get(name)) is type(high) and least[name] > high:
            return False
    return True
