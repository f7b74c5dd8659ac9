"""The rows of a batch that stay, of the files that the workers have written: read by the driver, a row group at a time.

The driver holds the batch's keys in memory. It holds all rows where a key comes twice, since their content decides
then, and where rows are compared with stored ones (``order_by``).
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.values.tables import concat
from cojoin.errors import QueryFailedError
from cojoin.spark.batch.direct_reader import open_stored
from cojoin.spark.batch.parquet_rows import StoredFile, misfit, rows_between
from cojoin.spark.sources.delta_stream import places_of_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from cojoin.engine.upsert import Upsert
    from cojoin.storage.parquet_files import WrittenFile
    from cojoin.storage.store import Store


_log = logging.getLogger("cojoin")


class UnfitFileError(Exception):
    """A parquet file that only Spark reads, with the reason."""


class FileRows:
    """The rows of parquet files below a store's root, as Spark reads them."""

    def __init__(self, store: Store) -> None:
        self._store, self._places = store, places_of_store(store)

    def read(self, name: str, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of a file; a column that it lacks is null.

        Raises ``UnfitFileError`` where only Spark reads it, ``QueryFailedError`` where it can't be read.
        """
        with self._opened(name) as file:
            why = misfit(file.metadata, schema)
            if why is not None:
                msg = f"only Spark reads the file {name}: {why}"
                raise UnfitFileError(msg)
            for batch in rows_between(file, schema, 0, file.metadata.num_rows):
                yield pa.Table.from_arrays(batch.columns, schema=schema)

    def read_all(self, files: Iterable[WrittenFile], schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of files, one after another; errors are those of ``read``."""
        return (rows for file in files for rows in self.read(file.name, schema))

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[StoredFile]:
        try:
            if self._places:
                with open_stored(f"{self._store.root}/{quote(name)}", self._places) as file:
                    yield file
            else:
                with StoredFile(f"{self._store.root.removeprefix('file:')}/{name}") as file:
                    yield file
        except (OSError, pa.ArrowException) as error:
            msg = f"its file {name} can't be read: {error}; put it back from a backup"
            raise QueryFailedError(msg) from error


class BatchRows:
    """The rows of a batch that stay by a rule, in the order of the batch's files.

    Attributes:
        places: Their numbers among all rows of the batch.
        keys: Their keys.
        columns: Their keys, or all their columns where a key comes twice or rows are compared with stored ones.
        removes: Which of them remove the stored row of their key.
        superseded: How many rows another of their key has superseded.
        null_keys: How many rows have a null in their key.
        duplicate: A key that comes twice in the batch, in words; None where none does.
    """

    def __init__(
        self,
        source: FileRows,
        schema: pa.Schema,
        rule: Upsert,
        order: Sequence[str],
        files: Sequence[WrittenFile],
    ) -> None:
        """Read the files, which have the columns of ``schema``; ``order`` is that of ``Upsert.standing``.

        Raises ``QueryFailedError`` where a key comes twice that must not.
        """
        self.schema = pa.schema([field.with_nullable(True) for field in schema])
        self.stored_schema, self.rule, self.files = rule.stored(self.schema), rule, files
        self.key_schema = pa.schema([self.schema.field(name) for name in rule.key])
        self._source = source
        read = [*rule.key, *([] if rule.deletes is None else [rule.deletes])]
        rows = self._all(pa.schema([self.schema.field(name) for name in read]))
        keyed = rule.keyed(rows)
        self.duplicate = rule.example(rows, keyed)
        if self.duplicate is not None and rule.conflict == "error":
            msg = (
                f"a key must not come twice, by conflict='error', and the batch has {self.duplicate}; nothing was "
                f'written: name further columns in upsert=, or choose conflict="last" or "first"'
            )
            raise QueryFailedError(msg)
        if self.duplicate is not None or rule.order_by:
            rows = self._all(self.schema)
        self.places, self.null_keys, self.superseded = rule.standing(rows, order, keyed)
        self.columns = rows if len(self.places) == rows.num_rows else rows.take(pa.array(self.places))
        self.keys = self.columns.select(list(rule.key))
        self.removes: NDArray[np.bool_] = np.zeros(len(self.places), dtype=bool)
        if rule.deletes is not None:
            self.removes = pc.fill_null(self.columns.column(rule.deletes), False).to_numpy()

    def read(self, chosen: NDArray[np.bool_]) -> Iterator[pa.Table]:
        """Yield the stored columns of some of the rows."""
        places, first = self.places[chosen], 0
        for file in self.files:
            own = places[(places >= first) & (places < first + file.rows)] - first
            first += file.rows
            if len(own):
                yield from rows_at(self._source.read(file.name, self.stored_schema), own, is_kept=True)

    def _all(self, schema: pa.Schema) -> pa.Table:
        return concat([schema.empty_table(), *self._source.read_all(self.files, schema)])


class KeyWarnings:
    """Logs that rows of an output have no key, or share one: once in a run each, since the progress counts them."""

    def __init__(self, label: str, key: Sequence[str]) -> None:
        self._label, self._key = label, ", ".join(key)
        self._given: set[str] = set()

    def give(self, batch_id: int, rows: int, counts: Mapping[str, int], duplicate: str | None = None) -> None:
        """Log about a batch with some rows; ``duplicate`` is a key that comes twice in it."""
        texts = {
            "null_keys": f"have a null in their key ({self._key}), so they are left out",
            "superseded": f"are superseded by another of their key{f', such as {duplicate}' if duplicate else ''}",
        }
        for name, text in texts.items():
            if counts.get(name) and name not in self._given:
                self._given.add(name)
                numbers = f"{counts[name]:,} of {rows:,} rows"
                more = "later ones are counted in BatchReport.upserts"
                _log.warning("batch %s: %s: %s %s; %s", batch_id, self._label, numbers, text, more)


def rows_at(tables: Iterable[pa.Table], rows: NDArray[np.int64], *, is_kept: bool) -> Iterator[pa.Table]:
    """Yield of consecutive tables the rows with some rising numbers, or all others."""
    first = 0
    for table in tables:
        begin, end = np.searchsorted(rows, [first, first + table.num_rows])
        is_one = np.zeros(table.num_rows, dtype=bool)
        is_one[rows[begin:end] - first] = True
        first += table.num_rows
        yield table.filter(pa.array(is_one if is_kept else ~is_one))
