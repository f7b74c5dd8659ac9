"""Reads a query's state from Spark's own state store without the query, for savepoints and for inspection.

Spark keeps the state after each of its last batches (``spark.sql.streaming.minBatchesToRetain``), with one value for
each key group. Only the state after a batch that Spark has committed is read, so it makes no difference whether the
query runs, is stopped or was killed. (Spark: ``StateDataSource``.)

Each value names its key group and the batch that wrote it, which are compared with the manifests: Spark's files have
checksums, which do not say whether a file is a former one.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.segment_files import SegmentFolder
from cojoin.checkpoints.snapshot_row import STATE_SCHEMA, snapshot_row
from cojoin.checkpoints.state_values import read_value
from cojoin.checkpoints.stored_state import StoredState, describe_tables
from cojoin.engine.key_groups import group_labels
from cojoin.engine.state.segments import Segment
from cojoin.engine.values import codec
from cojoin.errors import CheckpointError, CodecError
from cojoin.session.arrow_types import spark_schema
from cojoin.session.offset_log import committed_batches
from cojoin.session.sealed import for_workers
from cojoin.session.spark_errors import SPARK_ERRORS
from cojoin.session.state_store import ENCODED, STATE_COLUMNS, load_states, names_missing_state

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.storage.store import Store

__all__ = ["check_segments", "open_batch", "snapshot_rows"]


def open_batch(spark: SparkSession, files: Store, batch_id: int) -> StoredState:
    """Return the state after a batch, opened for reading.

    Raises:
        CheckpointError: Spark no longer has the state, or a segment that it names is missing or damaged.
    """
    values, segments = _load(spark, files, batch_id), SegmentFolder.of(files)
    described = _told(values, files, batch_id, partial(_describe, segments=segments))
    _check_written([each["written"] for each in described], files, batch_id)
    tables = describe_tables([each["tables"] for each in described], f"state after batch {batch_id}")
    headers, contents = [each["header"] for each in described], values.selectExpr("label AS key_group", "content")
    return StoredState(batch_id, headers, tables, contents, segments=segments)


def check_segments(spark: SparkSession, files: Store, batch_id: int) -> None:
    """Check that the segments that the state after a batch names exist and are undamaged.

    Raises:
        CheckpointError: Spark no longer has the state, or a segment that it names is missing or damaged.
    """
    check = partial(_check, segments=SegmentFolder.of(files))
    told = _told(_load(spark, files, batch_id), files, batch_id, check)
    _check_written([each["written"] for each in told], files, batch_id)


def _check_written(written: Sequence[Sequence[Any] | None], files: Store, batch_id: int) -> None:
    """Check that the values are those of all key groups, and as new as the manifests say.

    Args:
        written: The key group, the batch and the query that each value names; None where one names none.
        files: The checkpoint.
        batch_id: The batch after which they are the state.

    Raises:
        CheckpointError: A key group's value is missing, older or newer.
    """
    manifests = Manifests(files)
    before = [each for each in manifests.batch_ids() if each <= batch_id]
    last = manifests.read(before[-1]) if before else None
    if last is None or last.called is None:
        return
    # A value that names another query, or none, counts as one that is not there.
    found = {each[0]: each[1] for each in written if each is not None and each[2] in (None, last.query_id)}
    for group in sorted(map(int, last.report.state_bytes_by_key_group)):
        if not last.called <= found.get(group, -1) <= batch_id:
            got = f"it is of batch {found[group]}" if group in found else "there is none"
            msg = (
                f"checkpoint {files.root}: spark/state, Spark's own state store: expected the state of key group "
                f"{group} after batch {batch_id}, written by batch {last.called} or a later one, as the manifests say; "
                f"{got}: its files were exchanged or are former ones; put them back from a backup, or take a snapshot "
                f"(`cojoin checkpoints list` shows them)"
            )
            raise CheckpointError(msg)


def snapshot_rows(
    spark: SparkSession, files: Store, batch_id: int, as_of: int, key_groups: int, there: Collection[tuple[int, int]]
) -> DataFrame:
    """Return the rows of a snapshot of the state after a batch.

    Args:
        spark: The session.
        files: The checkpoint.
        batch_id: The batch whose state is read.
        as_of: The batch of the snapshot; batches between the two had no content.
        key_groups: The number of key groups.
        there: The rows (batch and key group) with content that a row may point to.

    Raises:
        CheckpointError: Spark no longer has the state.
    """
    numbers = {label: number for number, label in enumerate(group_labels(key_groups))}
    segments = SegmentFolder.of(files)

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for row in _snapshot(batches, as_of, numbers, there, segments):
            yield from row.to_batches()

    return _load(spark, files, batch_id).mapInArrow(for_workers(rows), spark_schema(STATE_SCHEMA))


def _load(spark: SparkSession, files: Store, batch_id: int) -> DataFrame:
    try:
        states = load_states(spark, files, batch_id)
    except SPARK_ERRORS as error:
        raise _missing(files, batch_id) from error
    return states.selectExpr(*STATE_COLUMNS).where("content IS NOT NULL")


def _collect(frame: DataFrame, files: Store, batch_id: int) -> list[Any]:
    try:
        rows: list[Any] = frame.collect()
    except SPARK_ERRORS as error:
        if names_missing_state(error):
            raise _missing(files, batch_id) from error
        raise
    return rows


def _missing(files: Store, batch_id: int) -> CheckpointError:
    known = committed_batches(files)
    if batch_id in known and (found := ENCODED.search(files.root)) is not None:
        msg = (
            f"checkpoint {files.root}: Spark's reader of its own state finds nothing below a path with {found[0]!r}, "
            f"which it encodes; read or restore a snapshot instead (`cojoin checkpoints list` shows them). Savepoints "
            f"need a checkpoint at a path of letters, digits, - and _"
        )
        return CheckpointError(msg)
    range_ = f"batches {known[0]} to {known[-1]}" if known else "no batch"
    msg = (
        f"checkpoint {files.root}: Spark's own state after batch {batch_id} is not there; it knows {range_} at the "
        f"most, and a snapshot keeps a batch for longer: `cojoin checkpoints list` shows them"
    )
    return CheckpointError(msg)


def _told(
    values: DataFrame, files: Store, batch_id: int, tell: Callable[[bytes], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return what ``tell`` returns for each value, computed in tasks.

    Raises:
        CheckpointError: A value is damaged; with several, the first message in alphabetical order is raised.
    """

    def texts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for content in batch.column("content"):
                try:
                    told = tell(content.as_buffer().to_pybytes())
                except (CheckpointError, CodecError) as error:
                    told = {"fault": str(error)}
                yield pa.RecordBatch.from_pydict({"text": [json.dumps(told)]})

    found = [
        json.loads(row.text) for row in _collect(values.mapInArrow(for_workers(texts), "text string"), files, batch_id)
    ]
    faults = sorted(each["fault"] for each in found if "fault" in each)
    if faults:
        msg = f"checkpoint {files.root}: Spark's own state after batch {batch_id}: {faults[0]}"
        raise CheckpointError(msg)
    return found


def _describe(content: bytes, segments: SegmentFolder) -> dict[str, Any]:
    header, tables = read_value(content, segments)
    row, _ = snapshot_row(0, 0, header, tables)
    written = codec.decode(content)[0].get("written")
    return {"header": header, "tables": row.column("tables")[0].as_py(), "written": written}


def _check(content: bytes, segments: SegmentFolder) -> dict[str, Any]:
    header, _ = codec.decode(content)
    for table in header.get("segments", {}).values():
        for each in table["segments"]:
            Segment(*each).open(segments)
    return {"written": header.get("written")}


def _snapshot(
    batches: Iterable[pa.RecordBatch],
    batch_id: int,
    numbers: dict[int, int],
    there: Collection[tuple[int, int]],
    segments: SegmentFolder,
) -> Iterator[pa.Table]:
    for batch in batches:
        for label, content in zip(batch.column("label").to_pylist(), batch.column("content"), strict=True):
            header, tables = read_value(content.as_buffer().to_pybytes(), segments)
            number = numbers[label]
            if ((header["saved"] or {}).get("content_batch_id"), number) not in there:
                header["saved"] = None
            row, _ = snapshot_row(number, batch_id, header, tables)
            yield row
