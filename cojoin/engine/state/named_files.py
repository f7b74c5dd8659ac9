"""The files that a state names: segments of its tables (``segmented_table``), and runs of waiting rows.

The names are in the header of a state value, and in that of a snapshot's content.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from cojoin.engine.state.segmented_table import SHADOWED, SegmentedTable, without_shadowed
from cojoin.engine.state.segments import Segment, SegmentContext
from cojoin.engine.state.waiting_rows import Run
from cojoin.engine.values.codec import RUNS
from cojoin.engine.values.schema_evolution import evolve
from cojoin.engine.values.tables import concat

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from cojoin.engine.state.segments import SegmentStore

SEGMENTS = "segments"
"""The header's entry of tables with segments."""


class TableSize(NamedTuple):
    """One table of a state: its columns, and its rows and bytes, those in files included.

    Rows of segments that have expired, and were neither read nor compacted since, are counted.
    """

    name: str
    rows: int
    bytes: int
    schema: pa.Schema


@dataclass(frozen=True)
class NamedFiles:
    """The files that a state names: by table the records of its segments, and those of its runs."""

    segments: Mapping[str, Any] = field(default_factory=dict)
    runs: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> NamedFiles:
        """Return the files that a header names."""
        return cls(header.get(SEGMENTS, {}), header.get(RUNS, {}))

    def header(self) -> dict[str, Any]:
        """Return the entries of a header that names these files; a state that names none has none of them."""
        return {SEGMENTS: dict(self.segments), RUNS: dict(self.runs)} if self.segments or self.runs else {}

    def files(self) -> list[Segment]:
        """Return the record of each file."""
        segments = [Segment(*each) for described in self.segments.values() for each in described["segments"]]
        runs = [Run.of(values).file for described in self.runs.values() for values in described]
        # Equal rows of both inputs are one file.
        return list({file.name: file for file in [*segments, *runs]}.values())

    def check(self, store: SegmentStore) -> None:
        """Check that no file is missing or damaged (``Segment.content``)."""
        for file in self.files():
            file.content(store)

    def sizes(self, tables: Mapping[str, pa.Table]) -> list[TableSize]:
        """Return the sizes of a state's tables, of which ``tables`` has the rows that are not in files."""
        sizes = []
        for name, table in without_shadowed(self.segments, tables).items():
            rows, size = table.num_rows, table.nbytes
            if name in self.segments:
                rows = int(self.segments[name]["rows"])
                size += sum(Segment(*each).bytes for each in self.segments[name]["segments"])
            runs = [Run.of(values) for values in self.runs.get(name, ())]
            rows, size = rows + sum(run.rows for run in runs), size + sum(run.bytes for run in runs)
            sizes.append(TableSize(name, rows, size, table.schema))
        return sizes

    def whole(self, tables: Mapping[str, pa.Table], store: SegmentStore) -> dict[str, pa.Table]:
        """Return a state's tables with the rows of all files."""
        names = without_shadowed(self.segments, tables)
        return {name: concat([*self.pieces(name, tables, store)]) for name in names}

    def pieces(
        self, name: str, tables: Mapping[str, pa.Table], store: SegmentStore, keys: pa.Table | None = None
    ) -> Iterator[pa.Table]:
        """Yield the rows of one of a state's tables, file by file.

        With ``keys``, as columns in the order of the key, all rows of these and some others; those that lie in segments
        are found by their hashes.
        """
        label = f"table {name!r}"
        if name in self.segments:
            table = SegmentedTable(tables[name], (), label)
            table.attach(self.segments[name], tables[SHADOWED + name], SegmentContext(store))
            yield from table.read_pieces() if keys is None else [table.take([keys])]
            return
        yield tables[name]
        for run in map(Run.of, self.runs.get(name, ())):
            yield evolve(run.rows_up_to(run.last, store)[0], tables[name].schema, label)
