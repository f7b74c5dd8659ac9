"""The control input (tag 0): messages of the driver to the key groups, as one more source of the Spark query.

The control input is a folder of Parquet files in the checkpoint, which Spark reads as a stream. Each row is a message
to one key group or to all of them: the state that a restored query begins with, or the end of all inputs.

A restored query's first batch and a drain's last batch are planned here: the message is written, and then an entry of
Spark's offset log that leaves the offsets of all other sources unchanged. Spark runs a batch that is planned and not
committed exactly as it was planned. After a crash in between, the same batch therefore runs again, and nothing newer is
read. Once a drain's message is written, every start finishes the drain first.

Spark's logs are texts of version ``v1``: a line with the version, in the offset log a line of metadata, then a line for
each source in the order of the plan. The control input is the last source.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812

from cojoin.errors import CheckpointError
from cojoin.storage.documents import Form, damaged, read_document, write_document
from cojoin.storage.java_classes import java_class
from cojoin.storage.session_settings import is_connect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.storage.store import Store

__all__ = [
    "CONTROL_DDL",
    "END_OF_INPUT",
    "NOTHING_READ",
    "begin_after",
    "check_offsets",
    "drain_is_promised",
    "open_control",
    "plan_drain",
    "plan_first_batch",
    "plan_look_at_the_clock",
    "planned_entry",
    "register_messages",
    "resumed_batches",
    "source_offsets",
]

CONTROL_DDL = "key_group int, payload binary"
"""A message: the label of the key group that it is for, null for all key groups; and its bytes."""

END_OF_INPUT = b'{"end_of_input": true}'
NOTHING_READ = "-"
"""The offset of a source of which nothing was read, in Spark's offset log."""

_FOLDER, _END_FILE = "control", "control/end_of_input.parquet"
_OFFSETS, _COMMITS, _SOURCES, _METADATA = "spark/offsets", "spark/commits", "spark/sources", "spark/metadata"
_RUNS_FILE, _KEPT_RUNS = "runs.json", 5
_RUNS = Form(
    "the batches with which the last runs began",
    1,
    "put it back from a backup of the checkpoint, or delete it where the last run of the query has ended properly",
    {"starts": list},
    unsealed=0,
)
_VERSION = "v1"
_PUT_BACK = (
    "put it back from a backup of the checkpoint, or restore a snapshot into a new checkpoint with restore_from= "
    "(`cojoin checkpoints list` shows them)"
)
_SCHEMA = pa.schema([("key_group", pa.int32()), ("payload", pa.binary())])


def open_control(spark: SparkSession, files: Store, labels: Sequence[int], tag: int) -> DataFrame:
    """Return the control input as a stream of ``(key_group, tag, payload)``.

    A message to all key groups becomes one row for each label.
    """
    files.make_directory(_FOLDER)
    messages = spark.readStream.schema(CONTROL_DDL).parquet(files.path(_FOLDER))
    every = F.array(*map(F.lit, labels))
    receivers = F.when(F.col("key_group").isNull(), every).otherwise(F.array("key_group"))
    return messages.select(
        F.explode(receivers).alias("key_group"), F.lit(tag).cast("tinyint").alias("tag"), F.col("payload")
    )


def source_offsets(files: Store, batch_id: int) -> list[str]:
    """Return each source's end offset of a batch, as its line in Spark's offset log; empty where there is no entry.

    Raises:
        CheckpointError: The batch's entry is damaged.
    """
    return _planned(files, batch_id)[2:] if files.exists(f"{_OFFSETS}/{batch_id}") else []


def drain_is_promised(files: Store) -> bool:
    """Return whether a drain was begun, which must finish before anything newer is read.

    Raises:
        CheckpointError: Its message is damaged.
    """
    content = files.read_bytes(_END_FILE)
    if content is None:
        return False
    # Names that are no UTF-8 are a ValueError.
    with contextlib.suppress(pa.ArrowException, OSError, ValueError):
        if pq.read_table(io.BytesIO(content)).equals(_end_message()):
            return True
    msg = (
        f"checkpoint {files.root}: {_END_FILE}, the message that ends all inputs, is damaged: it is not what cojoin "
        f"wrote; put it back from a backup of the checkpoint"
    )
    raise CheckpointError(msg)


def plan_drain(files: Store) -> bool:
    """Plan the drain's last batch after the last committed batch; the call is idempotent.

    Returns:
        False where no batch ever ran, so that there is nothing to end.

    Raises:
        CheckpointError: The offset log is damaged or of an unknown version, or the last planned batch is not committed;
            nothing was written.
    """
    newest, committed = _newest(files, _OFFSETS), _newest(files, _COMMITS)
    if newest is None:
        return False
    lines = _planned(files, newest)
    # Not the number of lines: a source that is read twice has two lines and one folder.
    control = _newest(files, _SOURCES)
    if control is None:
        msg = f"checkpoint {files.root}: {_SOURCES} is gone, in which Spark keeps what it read; {_PUT_BACK}"
        raise CheckpointError(msg)
    read = None if lines[-1] == NOTHING_READ else int(json.loads(lines[-1])["logOffset"])
    if read is not None and _END_FILE in (files.read(f"{_SOURCES}/{control}/{read}") or ""):
        return True
    if newest != committed:
        msg = (
            f"checkpoint {files.root}: batch {newest} is planned but not committed; let a run finish it before a drain"
        )
        raise CheckpointError(msg)
    message = io.BytesIO()
    pq.write_table(_end_message(), message)
    files.write_bytes(_END_FILE, message.getvalue())
    offset = register_messages(files, control, [_END_FILE], 0 if read is None else read + 1)
    files.write(f"{_OFFSETS}/{newest + 1}", "\n".join([*lines[:-1], offset]))
    return True


def _end_message() -> pa.Table:
    return pa.table([pa.array([None], pa.int32()), pa.array([END_OF_INPUT])], schema=_SCHEMA)


def planned_entry(spark: SparkSession, files: Store) -> str:
    """Return the line of metadata with which Spark would plan a new query's first batch now.

    Args:
        spark: The session.
        files: A directory that Spark reaches, for the checkpoint of a query that only shows the line; with Spark
            Connect it can't be had in another way.
    """
    # Only Spark knows which settings a query keeps from its first batch on.
    if is_connect(spark):
        return _shown_entry(spark, files)
    metadata = java_class(spark, "org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata")
    entry = json.loads(metadata.apply(0, int(1000 * time.time()), spark._jsparkSession.conf()).json())  # noqa: SLF001
    entry["conf"] = {
        name: spark.conf.get(name, value) if value is None else value for name, value in entry["conf"].items()
    }
    return json.dumps(entry)


def _shown_entry(spark: SparkSession, files: Store) -> str:
    name = f"control/shown-{uuid.uuid4().hex}"
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", files.path(name)).trigger(once=True).start()
    try:
        query.awaitTermination()
        line = (files.read(f"{name}/offsets/0") or "").splitlines()[1]
    finally:
        files.delete_directory(name)
    return json.dumps({**json.loads(line), "batchTimestampMs": int(1000 * time.time())})


def plan_first_batch(spark: SparkSession, files: Store, sources: Sequence[str], control: int) -> None:
    """Plan a restored query's first batch, which reads only the control input.

    Args:
        spark: The session; the query keeps its number of shuffle partitions.
        files: The new checkpoint.
        sources: The offset of each other source at the end of the batch.
        control: The number of the entry in the control input's log.
    """
    # Without this file, Spark takes the logs for damaged.
    files.write(_METADATA, json.dumps({"id": str(uuid.uuid4())}))
    offsets = [*sources, json.dumps({"logOffset": control})]
    files.write(f"{_OFFSETS}/0", "\n".join([_VERSION, planned_entry(spark, files), *offsets]))


def begin_after(files: Store, sources: Sequence[str]) -> None:
    """Set the sources' offsets to those of another query, once the first batch is committed; the call is idempotent.

    A second batch that reads nothing is planned with the same offsets: Spark initialises its sources from the last two.

    Args:
        files: The new checkpoint.
        sources: Each source's offset, as a line of Spark's offset log.
    """
    version, metadata, *first = _planned(files, 0)
    text = "\n".join([version, metadata, *sources, first[-1]])
    files.write(f"{_OFFSETS}/0", text)
    if files.read(f"{_OFFSETS}/1") is None:
        files.write(f"{_OFFSETS}/1", text)


def register_messages(files: Store, source: int, names: Sequence[str], log_id: int) -> str:
    """Write files of messages into the log of the control input's source, as if Spark had found them.

    Args:
        files: The checkpoint.
        source: The number of the control input among the query's sources.
        names: The files, as paths below the checkpoint.
        log_id: The number of the entry.

    Returns:
        The source's offset after these files, as a line of the offset log.
    """
    entries = [
        json.dumps({"path": files.url(name), "timestamp": files.modified(name), "batchId": log_id}) for name in names
    ]
    files.write(f"{_SOURCES}/{source}/{log_id}", "\n".join([_VERSION, *entries]))
    return json.dumps({"logOffset": log_id})


def plan_look_at_the_clock(files: Store, now: int) -> bool:
    """Plan a batch without rows after the last committed batch, for what depends on the processing time alone.

    Args:
        files: The checkpoint.
        now: The batch's processing time, in epoch milliseconds.

    Returns:
        False where no batch ever ran, or where a planned batch, with its own processing time, is not yet committed.
    """
    newest, committed = _newest(files, _OFFSETS), _newest(files, _COMMITS)
    if newest is None or newest != committed:
        return False
    version, metadata, *sources = _planned(files, newest)
    entry = json.dumps({**json.loads(metadata), "batchTimestampMs": now})
    files.write(f"{_OFFSETS}/{newest + 1}", "\n".join([version, entry, *sources]))
    return True


def resumed_batches(files: Store, epoch: int = 0, counted: int = 0) -> frozenset[int]:
    """Write down that a run starts, and return the first batch of each of the last five runs, this one included.

    A batch that an earlier run planned belongs to that run: executed again by this run, it is not its first batch.

    Args:
        files: The checkpoint.
        epoch: The lease epoch of this run.
        counted: The epoch of the run that wrote the last manifest.

    Raises:
        CheckpointError: The file about the earlier runs is damaged, or a former version of itself.
    """
    found = read_document(
        files, _RUNS_FILE, _RUNS, lambda content: ([*map(int, content["starts"])], int(content.get("epoch", counted)))
    )
    earlier, written = found or ([], counted)
    if written < counted:
        why = f"the run of epoch {counted} has written it, and this is a former version, of epoch {written}"
        raise damaged(files, _RUNS_FILE, _RUNS, why)
    newest = _newest(files, _OFFSETS)
    begins_with = 0 if newest is None else newest + 1
    # Without repetitions: however often a run fails before it plans a batch, earlier runs' starts are kept.
    starts = [*dict.fromkeys([*earlier, begins_with])][-_KEPT_RUNS:]
    write_document(files, _RUNS_FILE, _RUNS, {"starts": starts, "epoch": epoch})
    return frozenset(starts)


def check_offsets(files: Store, batch_id: int, expected: Sequence[str]) -> None:
    """Check that Spark's offset log agrees with the manifest of the last batch.

    Args:
        files: The checkpoint.
        batch_id: The last batch that counts. Batches that Spark has committed since have moved no source.
        expected: Each source's offset in that batch's manifest.

    Raises:
        CheckpointError: They differ, so the query would not continue where it stopped.
    """
    batch_id = max(batch_id, _newest(files, _COMMITS) or 0)
    found = source_offsets(files, batch_id)
    if found != list(expected):
        differs = next((pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]), None)
        told = (
            f"{len(found)} sources, the manifest {len(expected)}"
            if differs is None
            else f"{differs[0]}, the manifest {differs[1]}"
        )
        msg = (
            f"checkpoint {files.root}: {_OFFSETS}/{batch_id} is not what the query has counted: it says {told}; "
            f"{_PUT_BACK}"
        )
        raise CheckpointError(msg)


def _planned(files: Store, batch_id: int) -> list[str]:
    """Return the lines of a batch's entry in Spark's offset log."""
    name = f"{_OFFSETS}/{batch_id}"
    lines = (files.read(name) or "").splitlines()
    # The format of other sources' offsets is their own; the control input is the last line.
    if len(lines) < 3 or lines[0] != _VERSION or not _is_object(lines[1]) or not _is_position(lines[-1]):
        msg = (
            f"checkpoint {files.root}: {name}, a batch in Spark's offset log, is not in the form {_VERSION}: it was "
            f"cut or changed, or written by another version of Spark; {_PUT_BACK}"
        )
        raise CheckpointError(msg)
    return lines


def _is_position(line: str) -> bool:
    return line == NOTHING_READ or (_is_object(line) and isinstance(json.loads(line).get("logOffset"), int))


def _is_object(line: str) -> bool:
    with contextlib.suppress(ValueError):
        return isinstance(json.loads(line), dict)
    return False


def _newest(files: Store, directory: str) -> int | None:
    ids = [int(name) for name in files.names(directory) if name.isdigit()]
    return max(ids, default=None)
