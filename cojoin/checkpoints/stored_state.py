"""A query's state after one batch, opened for reading from a snapshot or from Spark's own state store.

Both have a header and tables for each key group, in the format of the engine's ``codec``. The rows of a table are read
as a DataFrame, with the columns of each key group evolved to the widest types among them.

Spark keeps the state after each of its last batches (``spark.sql.streaming.minBatchesToRetain``), with one value for
each key group, which has its newest rows and names the segments that have the others. Only the state after a batch that
Spark has committed is read, so it makes no difference whether the query runs, is stopped or was killed. Each value
names its key group and the batch that wrote it, which are compared with the manifests: the checksums of Spark's files
do not reveal a former version. (Spark: ``StateDataSource``.)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.segment_files import SegmentFolder
from cojoin.checkpoints.snapshot_row import STATE_SCHEMA, describe_content, open_content, snapshot_row
from cojoin.engine.key_groups import group_labels
from cojoin.engine.state.named_files import SEGMENTS, NamedFiles
from cojoin.engine.state.segmented_table import without_shadowed
from cojoin.engine.values import codec
from cojoin.engine.values.schema_evolution import evolve, widest
from cojoin.engine.values.types import parse_schema
from cojoin.errors import CheckpointError, CodecError
from cojoin.session.arrow_types import spark_schema
from cojoin.session.sealed import for_workers
from cojoin.session.spark_checkpoint import (
    ENCODED,
    STATE_COLUMNS,
    committed_batches,
    load_states,
    names_missing_state,
    names_state_store,
)
from cojoin.session.spark_errors import SPARK_ERRORS, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.snapshots import SnapshotIndex
    from cojoin.checkpoints.state_table import StateTable
    from cojoin.engine.state.segments import SegmentStore
    from cojoin.storage.store import Store


@dataclass(frozen=True)
class StoredTable:
    """The columns of one table of the state, and its rows and bytes over all key groups (``TableSize``)."""

    schema: pa.Schema
    rows: int
    bytes: int


@dataclass(frozen=True)
class StoredState:
    """The state of a query after one batch.

    ``headers`` has each key group's watermarks and counters, ``contents`` its tables (``key_group int, content
    binary``), and ``fingerprints`` the fingerprint of its content; None where the state is from Spark's state store.
    ``segments`` is the folder of the files with the state's other rows.
    """

    batch_id: int
    headers: Sequence[Mapping[str, Any]]
    tables: Mapping[str, StoredTable]
    contents: DataFrame
    segments: SegmentFolder
    fingerprints: Mapping[int, str] | None = None

    @classmethod
    def of_snapshot(cls, table: StateTable, snapshot: SnapshotIndex) -> StoredState:
        """Return the state of a snapshot; ``CheckpointError`` where its rows are missing or were changed."""
        rows = table.headers(snapshot)
        headers = [json.loads(row.header) for row in rows]
        tables = describe_tables([row.tables for row in rows], f"snapshot of batch {snapshot.batch_id}")
        fingerprints = {row.key_group: row.fingerprint for row in rows}
        return cls(snapshot.batch_id, headers, tables, table.contents(snapshot), table.segments, fingerprints)

    def rows(self, name: str) -> DataFrame:
        """Return the rows of a table."""
        if name not in self.tables:
            msg = f"the state after batch {self.batch_id} has no table {name!r}; it has {', '.join(self.tables)}"
            raise CheckpointError(msg)
        schema, opener = self.tables[name].schema, self.opener

        def decoded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for content in opener(batches):
                for piece in content.pieces(name):
                    yield from evolve(piece, schema, f"table {name!r}").combine_chunks().to_batches()

        return self.contents.mapInArrow(for_workers(decoded), spark_schema(schema))

    def numbered(self, name: str) -> DataFrame:
        """Return the rows of a table with columns named by position: names may have dots, or differ only in case."""
        return self.rows(name).toDF(*(f"c{position}" for position in range(len(self.tables[name].schema))))

    @property
    def opener(self) -> ContentOpener:
        """The function with which tasks read the contents."""
        return ContentOpener(self.segments, self.fingerprints, f"snapshot of batch {self.batch_id}")


class OpenContent(NamedTuple):
    """One key group's content: the tables that it has, and the files that it names, which are read piece by piece."""

    files: NamedFiles
    tables: Mapping[str, pa.Table]
    segments: SegmentFolder

    @property
    def names(self) -> list[str]:
        """The names of its tables."""
        return [*without_shadowed(self.files.segments, self.tables)]

    def pieces(self, name: str, keys: pa.Table | None = None) -> Iterator[pa.Table]:
        """Yield the rows of one table (``NamedFiles.pieces``), if there are any.

        Raises ``CodecError`` where a file is damaged, ``CheckpointError`` where it is missing.
        """
        if name in self.tables:
            pieces = self.files.pieces(name, self.tables, self.segments, keys)
            yield from (piece for piece in pieces if piece.num_rows)


@dataclass(frozen=True)
class ContentOpener:
    """Opens ``StoredState.contents``, key group by key group; it is serialized with the tasks.

    ``where`` names the state in messages; the other attributes are those of ``StoredState``.
    """

    segments: SegmentFolder
    fingerprints: Mapping[int, str] | None
    where: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[OpenContent]:
        """Yield each key group's content; ``CodecError`` is raised where one is damaged."""
        for batch in batches:
            for group, content in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                if self.fingerprints is None:
                    header, tables = codec.decode(content.as_py())
                    files = NamedFiles.of(header)
                else:
                    where = f"{self.where}, key group {group}"
                    files, tables = open_content(content.as_py(), self.fingerprints[group], where)
                yield OpenContent(files, tables, self.segments)


def describe_tables(groups: Sequence[Sequence[Any]], label: str) -> dict[str, StoredTable]:
    """Return the tables by name, merged from each key group's ``name``, ``rows``, ``bytes`` and ``columns``."""
    schemas: dict[str, dict[str, pa.Schema]] = {}
    sizes: dict[str, list[int]] = {}
    for tables in groups:
        for table in tables:
            known = schemas.setdefault(table["name"], {})
            if table["columns"] not in known:
                known[table["columns"]] = parse_schema(table["columns"], label=f"{label}: table {table['name']!r}")
            size = sizes.setdefault(table["name"], [0, 0])
            size[0] += table["rows"]
            size[1] += table["bytes"]
    return {
        name: StoredTable(widest([*known.values()], f"{label}: table {name!r}"), *sizes[name])
        for name, known in sorted(schemas.items())
    }


def open_batch(spark: SparkSession, files: Store, batch_id: int) -> StoredState:
    """Return the state after a batch, opened for reading.

    Raises ``CheckpointError`` where Spark no longer has the state, or a segment that it names is missing or damaged.
    """
    values, segments = _load(spark, files, batch_id), SegmentFolder.of(files)
    described = _read_values(values, files, batch_id, partial(_describe, segments=segments))
    _check_written([each["written"] for each in described], files, batch_id)
    tables = describe_tables([each["tables"] for each in described], f"state after batch {batch_id}")
    headers, contents = [each["header"] for each in described], values.selectExpr("label AS key_group", "content")
    return StoredState(batch_id, headers, tables, contents, segments)


def check_segments(spark: SparkSession, files: Store, batch_id: int) -> set[str]:
    """Check that the files that the state after a batch names are undamaged, and return their names.

    Errors are those of ``open_batch``.
    """
    check = partial(_check, segments=SegmentFolder.of(files))
    values = _read_values(_load(spark, files, batch_id), files, batch_id, check)
    _check_written([each["written"] for each in values], files, batch_id)
    return {name for each in values for name in each["files"]}


def _check_written(written: Sequence[Sequence[Any] | None], files: Store, batch_id: int) -> None:
    """Check that the values of the state after a batch are those of all key groups, and as new as the manifests say.

    ``written`` has the key group, the batch and the query that each value names; None where one names none.
    """
    last = Manifests(files).at_or_before(batch_id)
    if last is None or last.called is None:
        return
    # A value that names another query, or none, counts as missing.
    batches = {each[0]: each[1] for each in written if each is not None and each[2] in (None, last.query_id)}
    for group in sorted(map(int, last.report.state_bytes_by_key_group)):
        if not last.called <= batches.get(group, -1) <= batch_id:
            got = f"it is of batch {batches[group]}" if group in batches else "there is none"
            msg = (
                f"{files.named}: spark/state, Spark's own state store: expected the state of key group "
                f"{group} after batch {batch_id}, written by batch {last.called} or a later one, by the manifests; "
                f"{got}: its files were exchanged or are former ones; put them back from a backup, or take a snapshot "
                f"(`cojoin checkpoints list` shows them)"
            )
            raise CheckpointError(msg)


def snapshot_rows(
    spark: SparkSession,
    files: Store,
    batch_id: int,
    as_of: int,
    key_groups: int,
    with_content: Collection[tuple[int, int]],
) -> DataFrame:
    """Return the rows of a snapshot, as of batch ``as_of``, of the state after a batch; those between had no content.

    ``with_content`` has the rows (batch and key group) with content that a row may point to. Raises ``CheckpointError``
    where Spark no longer has the state.
    """
    numbers = {label: number for number, label in enumerate(group_labels(key_groups))}
    segments = SegmentFolder.of(files)

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for label, content in zip(batch.column("label").to_pylist(), batch.column("content"), strict=True):
                header, tables = lasting(content.as_buffer().to_pybytes(), segments)
                number = numbers[label]
                if ((header["saved"] or {}).get("content_batch_id"), number) not in with_content:
                    header["saved"] = None
                yield from snapshot_row(number, as_of, header, tables)[0].to_batches()

    return _load(spark, files, batch_id).mapInArrow(for_workers(rows), spark_schema(STATE_SCHEMA))


def lasting(content: bytes, segments: SegmentStore) -> tuple[dict[str, Any], dict[str, pa.Table]]:
    """Return a state value's header and tables for a snapshot, naming only files that are kept as long as that.

    Release 0.6 deletes files that only snapshots name, so the rows of a value that it has written are copied.
    """
    header, tables = codec.decode(content)
    header.pop(codec.WRITTEN, None)
    if codec.RUNS in header:
        return header, tables
    files = NamedFiles.of(header)
    header.pop(SEGMENTS, None)
    return header, files.whole(tables, segments)


def _load(spark: SparkSession, files: Store, batch_id: int) -> DataFrame:
    try:
        states = load_states(spark, files, batch_id)
    except SPARK_ERRORS as error:
        raise _missing(files, batch_id) from error
    return states.selectExpr(*STATE_COLUMNS).where("content IS NOT NULL")


def _missing(files: Store, batch_id: int) -> CheckpointError:
    known = committed_batches(files)
    if batch_id in known and (encoded := ENCODED.search(files.root)) is not None:
        msg = (
            f"{files.named}: Spark's reader of its state finds nothing below a path with {encoded[0]!r}, "
            f"which it encodes; read or restore a snapshot instead (`cojoin checkpoints list` shows them). Savepoints "
            f"need a checkpoint at a path of letters, digits, - and _"
        )
        return CheckpointError(msg)
    range_ = f"batches {known[0]} to {known[-1]}" if known else "no batch"
    msg = (
        f"{files.named}: Spark's own state after batch {batch_id} is missing; it has {range_} at the "
        f"most, and a snapshot keeps a batch for longer: `cojoin checkpoints list` shows them"
    )
    return CheckpointError(msg)


def _read_values(
    values: DataFrame, files: Store, batch_id: int, read: Callable[[bytes], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the result of ``read`` for each value, computed in tasks.

    Of the errors of damaged values, the first one in alphabetical order is raised.
    """

    def texts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for content in batch.column("content"):
                try:
                    value = read(content.as_buffer().to_pybytes())
                except (CheckpointError, CodecError) as error:
                    value = {"fault": str(error)}
                yield pa.RecordBatch.from_pydict({"text": [json.dumps(value)]})

    try:
        contents = [json.loads(row.text) for row in values.mapInArrow(for_workers(texts), "text string").collect()]
    except SPARK_ERRORS as error:
        if names_missing_state(error):
            raise _missing(files, batch_id) from error
        if names_state_store(error):
            msg = (
                f"{files.named}: Spark's own state after batch {batch_id} can't be read: {explain(error)}; "
                f"put spark/state back from a backup, or use a snapshot (`cojoin checkpoints list` shows them)"
            )
            raise CheckpointError(msg) from error
        raise
    faults = sorted(each["fault"] for each in contents if "fault" in each)
    if faults:
        msg = f"{files.named}: Spark's own state after batch {batch_id}: {faults[0]}"
        raise CheckpointError(msg)
    return contents


def _describe(content: bytes, segments: SegmentFolder) -> dict[str, Any]:
    header, tables = codec.decode(content)
    files = NamedFiles.of(header)
    files.check(segments)
    own = {name: value for name, value in header.items() if name not in (codec.WRITTEN, SEGMENTS, codec.RUNS)}
    return {"header": own, "tables": describe_content(files, tables), "written": header.get(codec.WRITTEN)}


def _check(content: bytes, segments: SegmentFolder) -> dict[str, Any]:
    header, _ = codec.decode(content)
    files = NamedFiles.of(header)
    files.check(segments)
    return {"written": header.get(codec.WRITTEN), "files": [file.name for file in files.files()]}
