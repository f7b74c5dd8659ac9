"""A query's state after one batch, opened for reading from a snapshot or from Spark's own state store.

Both have a header and tables for each key group, in the format of the engine's ``codec``. The rows of a table are read
as a DataFrame, with the columns of each key group evolved to the widest types among them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.checkpoints.snapshot_row import read_content
from cojoin.checkpoints.state_values import read_value
from cojoin.engine.values.schema_evolution import evolve, widest
from cojoin.engine.values.types import parse_schema
from cojoin.errors import CheckpointError
from cojoin.session.arrow_types import spark_schema
from cojoin.session.sealed import for_workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from cojoin.checkpoints.segment_files import SegmentFolder
    from cojoin.checkpoints.snapshot_record import Snapshot
    from cojoin.checkpoints.state_table import StateTable

__all__ = ["ContentOpener", "StoredState", "StoredTable", "describe_tables"]


@dataclass(frozen=True)
class StoredTable:
    """The description of one table of the state, over all key groups.

    Attributes:
        schema: The columns.
        rows: The number of rows.
        bytes: The rows' size in memory, in bytes.
    """

    schema: pa.Schema
    rows: int
    bytes: int


@dataclass(frozen=True)
class StoredState:
    """The state of a query after one batch.

    Attributes:
        batch_id: The batch.
        headers: Each key group's header: watermarks and counters.
        tables: The tables, by name.
        contents: ``key_group int, content binary``: each key group's tables.
        fingerprints: The fingerprint of each key group's content; None where the state is from Spark's state store.
        segments: The folder of the segments with the other rows of Spark's state; None for a snapshot.
    """

    batch_id: int
    headers: Sequence[Mapping[str, Any]]
    tables: Mapping[str, StoredTable]
    contents: DataFrame
    fingerprints: Mapping[int, str] | None = None
    segments: SegmentFolder | None = None

    @classmethod
    def of_snapshot(cls, table: StateTable, snapshot: Snapshot) -> StoredState:
        """Return the state of a snapshot.

        Raises:
            CheckpointError: The snapshot's rows are missing or were changed.
        """
        rows = table.headers(snapshot)
        headers = [json.loads(row.header) for row in rows]
        tables = describe_tables([row.tables for row in rows], f"snapshot of batch {snapshot.batch_id}")
        fingerprints = {row.key_group: row.fingerprint for row in rows}
        return cls(snapshot.batch_id, headers, tables, table.contents(snapshot), fingerprints)

    def rows(self, name: str) -> DataFrame:
        """Return the rows of a table.

        Raises:
            CheckpointError: There is no such table.
        """
        if name not in self.tables:
            msg = f"the state after batch {self.batch_id} has no table {name!r}; it has {', '.join(self.tables)}"
            raise CheckpointError(msg)
        schema, opener = self.tables[name].schema, self.opener

        def decoded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for tables in opener(batches):
                if name in tables and tables[name].num_rows:
                    yield from evolve(tables[name], schema, f"table {name!r}").combine_chunks().to_batches()

        return self.contents.mapInArrow(for_workers(decoded), spark_schema(schema))

    @property
    def opener(self) -> ContentOpener:
        """The function with which tasks read the contents."""
        return ContentOpener(self.fingerprints, f"snapshot of batch {self.batch_id}", self.segments)


@dataclass(frozen=True)
class ContentOpener:
    """Reads the tables of ``StoredState.contents``, key group by key group; it is serialized with the tasks.

    Attributes:
        fingerprints: The fingerprint of each key group's content; None where the state is from Spark's state store.
        where: The name of the state, for messages.
        segments: The folder of the segments with further rows; None where the content has all rows.
    """

    fingerprints: Mapping[int, str] | None
    where: str
    segments: SegmentFolder | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, pa.Table]]:
        """Read each key group's content.

        Raises:
            CodecError: The content, or a segment, is damaged.
            CheckpointError: A segment does not exist.
        """
        for batch in batches:
            for group, content in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                if self.fingerprints is None:
                    assert self.segments is not None
                    yield read_value(content.as_py(), self.segments)[1]
                else:
                    yield read_content(content.as_py(), self.fingerprints[group], f"{self.where}, key group {group}")


def describe_tables(groups: Sequence[Sequence[Any]], what: str) -> dict[str, StoredTable]:
    """Return the tables by name, merged from each key group's ``name``, ``rows``, ``bytes`` and ``columns``."""
    schemas: dict[str, dict[str, pa.Schema]] = {}
    sizes: dict[str, list[int]] = {}
    for tables in groups:
        for table in tables:
            known = schemas.setdefault(table["name"], {})
            if table["columns"] not in known:
                known[table["columns"]] = parse_schema(table["columns"], what=f"{what}: table {table['name']!r}")
            size = sizes.setdefault(table["name"], [0, 0])
            size[0] += table["rows"]
            size[1] += table["bytes"]
    return {
        name: StoredTable(widest([*known.values()], f"{what}: table {name!r}"), *sizes[name])
        for name, known in sorted(schemas.items())
    }
