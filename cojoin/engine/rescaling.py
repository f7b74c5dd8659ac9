"""Rescaling: the states of all key groups are joined into one, which is cut into another number of key groups.

Every row of a state's tables carries its key. So tables are concatenated by name and cut by key group, whatever the
operator. Some key groups may have been written before a function or an input changed, and some after, so their tables
are first converted to the widest schema. Counters can't be divided by key: those of all key groups are summed, and
``Operator.load_parts`` gives the sums to one key group. Every key group counts its own buffered rows.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cojoin.engine.batch_report import RARE_COUNTERS
from cojoin.engine.input_spec import has_null_key
from cojoin.engine.key_groups import is_hashed
from cojoin.engine.state.segments import HASHES, SegmentContext, between, write_segment
from cojoin.engine.values.hashes import key_hashes, row_hashes
from cojoin.engine.values.schema_evolution import evolve, widest
from cojoin.engine.values.tables import concat, take_rows
from cojoin.errors import CheckpointError, CodecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.state.segments import Segment, SegmentStore

_SIDES = {"held1": 0, "left": 0, "waiting": 0, "rejected1": 0, "held2": 1, "right": 1, "versions": 1, "rejected2": 1}
"""The tables of an operator's state that hold rows of an input, with the input: 0 is the left, 1 the right. All other
tables begin with the key columns, under the left input's names."""

_WITH_NULL_KEYS = frozenset({"held1", "held2"})
"""The tables that may have rows with a null key, which wait for the watermark as other rows do."""

_MOST_PIECES = 256

_FLAGGED = frozenset({"left", "right"})
"""The tables whose last column is a flag, after the input's columns. The flag's name is one that no column of the input
has, so it may change when the input's columns do."""


def key_columns(name: str, inputs: tuple[InputSpec, InputSpec]) -> list[str]:
    """Return the names of the key columns in a table of an operator's state."""
    return list(inputs[_SIDES.get(name, 0)].key)


def spreading_columns(name: str, inputs: tuple[InputSpec, InputSpec], schema: pa.Schema) -> list[str]:
    """Return the columns by which a table's rows with a null key are spread; none where it has no such rows."""
    spreading = inputs[_SIDES[name]].spreading if name in _WITH_NULL_KEYS else ()
    return [each for each in spreading if each in schema.names and is_hashed(schema.field(each).type)]


def cut(
    tables: Mapping[str, pa.Table],
    inputs: tuple[InputSpec, InputSpec],
    groups_of: Callable[[pa.Table], NDArray[np.int64]],
    count: int,
) -> list[dict[str, pa.Table]]:
    """Cut a whole state's tables by key group, and return every group's tables; the rows keep their order."""
    pieces: list[dict[str, pa.Table]] = [{} for _ in range(count)]
    for name, table in tables.items():
        key = key_columns(name, inputs)
        missing = [column for column in key if column not in table.column_names]
        if missing:
            msg = (
                f"the checkpoint's table {name!r} has no column {missing[0]!r}, which is part of the query's key; keep "
                f"the key as it was, or start with a new checkpoint"
            )
            raise CheckpointError(msg)
        groups = groups_of(table.select(key))
        order = np.argsort(groups, kind="stable")
        bounds = np.searchsorted(groups[order], np.arange(count + 1)).tolist()
        assert (bounds[0], bounds[-1]) == (0, table.num_rows), "a key group out of range"
        in_order = take_rows(table, order)
        for group, piece in enumerate(pieces):
            piece[name] = in_order.slice(bounds[group], bounds[group + 1] - bounds[group])
    return pieces


def merged_header(headers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the header of the joined state: the values on which all key groups agree, and their counters summed.

    It has no last snapshot (``saved``), since the joined state is not stored yet. In an older checkpoint the key groups
    may have different watermarks; then the smallest is taken, so that no row becomes late.
    """
    return {
        **headers[0],
        "watermark": min((header["watermark"] for header in headers), key=lambda saved: saved["merge"]["current"]),
        "counts": [_summed([header["counts"][side] for header in headers]) for side in (0, 1)],
        "rows_out": sum(header["rows_out"] for header in headers),
        "processing_time": max(header["processing_time"] for header in headers),
        "saved": None,
    }


def _summed(counts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rejected: Counter[str] = Counter()
    for group in counts:
        rejected.update(group["rejected"])
    sums = {name: sum(group[name] for group in counts) for name in ("rows_in", "done", "late_applied")}
    rare = {name: sum(group.get(name, 0) for group in counts) for name in RARE_COUNTERS}
    commits = [group["late_commit"] for group in counts if "late_commit" in group]
    return {
        **sums,
        "rejected": dict(rejected),
        **{name: count for name, count in rare.items() if count},
        **({"late_commit": max(commits)} if commits else {}),
    }


def assemble(pieces: Sequence[Mapping[str, pa.Table]]) -> dict[str, pa.Table]:
    """Return the tables of all key groups concatenated by name, in the widest schema; a key group may lack a table."""
    by_name: dict[str, list[pa.Table]] = {}
    for piece in pieces:
        for name, table in piece.items():
            by_name.setdefault(name, []).append(table)
    return {name: concat(_alike(name, tables)) for name, tables in by_name.items()}


class SpilledTables:
    """A key group's tables, collected in pieces: in memory, and beyond ``most_bytes`` in files.

    Args:
        inputs: The inputs of the query.
        most_bytes: The bytes of rows in memory above which they are written to files, and about the bytes of a range
            that is read back; None keeps all rows in memory.
        open_store: Returns the store of the files; it is called once, before the first file.

    Attributes:
        store: The store of the files; None before the first file.
    """

    def __init__(
        self, inputs: tuple[InputSpec, InputSpec], most_bytes: int | None, open_store: Callable[[], SegmentStore]
    ) -> None:
        self.store: SegmentStore | None = None
        self._inputs, self._most_bytes, self._open_store = inputs, most_bytes, open_store
        self._pieces: list[Mapping[str, pa.Table]] = []
        self._bytes = 0
        self._files: dict[str, list[Segment]] = {}

    def add(self, tables: Mapping[str, pa.Table], size: int = 0) -> None:
        """Add rows of some or all tables; ``size`` are the bytes of the message whose memory they keep in use."""
        self._pieces.append(tables)
        self._bytes += max(size, sum(table.nbytes for table in tables.values()))
        if self._most_bytes is None:
            return
        if len(self._pieces) >= _MOST_PIECES:
            # The buffers of many small pieces take more memory than their rows.
            self._pieces = [{name: table.combine_chunks() for name, table in assemble(self._pieces).items()}]
            self._bytes = sum(table.nbytes for table in self._pieces[0].values())
        if self._bytes > self._most_bytes:
            self.store = self.store or self._open_store()
            self._spill(self.store)

    def whole(self) -> dict[str, pa.Table] | None:
        """Return the tables; None where some of their rows are in files."""
        return None if self._files else assemble(self._pieces)

    def ranges(self) -> Iterator[tuple[int, dict[str, pa.Table]]]:
        """Yield ranges of hashes: the last hash, and the tables' rows in the range; rows of a hash keep their order."""
        assert self.store is not None
        assert self._most_bytes is not None
        self._spill(self.store)
        size = sum(file.bytes for files in self._files.values() for file in files)
        first, count = 0, -(-size // self._most_bytes)
        for number in range(1, count + 1):
            last = HASHES * number // count - 1
            yield last, assemble([*self._within(first, last, self.store)])
            first = last + 1

    def _spill(self, store: SegmentStore) -> None:
        for name, table in assemble(self._pieces).items():
            hashes = _hashes(table, key_columns(name, self._inputs))
            order = np.argsort(hashes, kind="stable")
            file = write_segment(SegmentContext(store), hashes[order], take_rows(table, order), hashes[:0])
            self._files.setdefault(name, []).append(file)
        self._pieces, self._bytes = [], 0

    def _within(self, first: int, last: int, store: SegmentStore) -> Iterator[dict[str, pa.Table]]:
        for name, files in self._files.items():
            for file in files:
                try:
                    opened = file.open(store)
                except (CheckpointError, CodecError) as error:
                    msg = f"restored rows on the local disk can't be read again: {error.args[0].partition('; ')[0]}"
                    msg += "; see to this disk, and start the query again"
                    raise CheckpointError(msg) from error
                rows = np.arange(*between(opened.hashes, first, last))
                # The rows are copied, so that a file is mapped only while it is read. The first column has the hashes.
                yield {name: take_rows(opened.table.select(range(1, opened.table.num_columns)), rows)}


def _hashes(table: pa.Table, key: Sequence[str]) -> NDArray[np.uint64]:
    """Return the hash of each row's key; a row with a null in its key, which matches no other, has the whole row's."""
    is_null = has_null_key(table, key)
    hashes = np.zeros(table.num_rows, dtype=np.uint64)
    hashes[is_null] = row_hashes(table.filter(pa.array(is_null)))
    hashes[~is_null] = key_hashes(table.select(key).filter(pa.array(~is_null)))
    return hashes


def _alike(name: str, tables: Sequence[pa.Table]) -> Sequence[pa.Table]:
    first = tables[0].schema
    if all(table.schema.equals(first) for table in tables):
        return tables
    label = f"state {name.removeprefix('state:')!r}" if name.startswith("state:") else f"table {name!r}"
    if name not in _FLAGGED:
        schema = widest([table.schema for table in tables], label)
        return [evolve(table, schema, label) for table in tables]
    # Columns are matched by name, but the flag by its position: a new column of the input may have the flag's name.
    rows = [table.drop_columns([table.column_names[-1]]) for table in tables]
    schema = widest([part.schema for part in rows], label)
    flag = next(table.schema.field(-1) for table, part in zip(tables, rows, strict=True) if part.schema.equals(schema))
    return [
        evolve(part, schema, label).append_column(flag, table.column(table.num_columns - 1))
        for table, part in zip(tables, rows, strict=True)
    ]
