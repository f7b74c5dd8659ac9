"""The control input (tag 0): what the driver tells every key group, in band and planned by Spark like any other rows.

It is a folder of parquet files in the checkpoint, a message a row, for one key group or for all, that Spark streams:
the state that a new query begins with, and the end of all inputs. A restored query's first batch and a drain's last one
are planned by hand: the message is written, then an entry of Spark's offset log that leaves every other source where it
stands. Spark runs a batch that is planned and not committed exactly as it was planned, so a crash in between runs the
same batch again and nothing newer is read. A drain's message is a promise: once it is there, every start finishes the
drain first. The logs are Spark's ``v1`` texts: a line with the version, for offsets a line of metadata, then a line a
source in the order of the plan, the control input last.
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
from cojoin.storage.documents import Form, read_document, write_document
from cojoin.storage.java_classes import java_class

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.storage.small_files import CheckpointFiles

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
    "register_messages",
    "resumed_batches",
    "source_offsets",
]

CONTROL_DDL = "key_group int, payload binary"
"""A message: the label of the key group that it is for, null for all; and its bytes."""

END_OF_INPUT = b'{"end_of_input": true}'
NOTHING_READ = "-"
"""How Spark's offset log spells a source of which nothing was read."""

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


def open_control(spark: SparkSession, files: CheckpointFiles, labels: Sequence[int], tag: int) -> DataFrame:
    """Open the control input as ``(key_group, tag, payload)``, each message once for every key group's label."""
    files.make_directory(_FOLDER)
    messages = spark.readStream.schema(CONTROL_DDL).parquet(files.path(_FOLDER))
    every = F.array(*map(F.lit, labels))
    receivers = F.when(F.col("key_group").isNull(), every).otherwise(F.array("key_group"))
    return messages.select(
        F.explode(receivers).alias("key_group"), F.lit(tag).cast("tinyint").alias("tag"), F.col("payload")
    )


def source_offsets(files: CheckpointFiles, batch_id: int) -> list[str]:
    """Return where each source stands at the end of a batch, a line each, as Spark logged it; nothing without a log.

    Raises:
        CheckpointError: The batch's file is damaged.
    """
    return _planned(files, batch_id)[2:] if files.exists(f"{_OFFSETS}/{batch_id}") else []


def drain_is_promised(files: CheckpointFiles) -> bool:
    """Tell whether a drain was begun: it must be finished before anything newer is read."""
    return files.exists(_END_FILE)


def plan_drain(files: CheckpointFiles) -> bool:
    """Plan the drain's last batch after the last committed one; planning it twice is once.

    Returns:
        False where no batch ever ran, so there is nothing to end.

    Raises:
        CheckpointError: The offset log is not as this version knows it; nothing was written.
    """
    newest, committed = _newest(files, _OFFSETS), _newest(files, _COMMITS)
    if newest is None:
        return False
    lines = _planned(files, newest)
    # Not the number of lines: an input that is read twice has a line for each, and one folder.
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
    pq.write_table(pa.table([pa.array([None], pa.int32()), pa.array([END_OF_INPUT])], schema=_SCHEMA), message)
    files.write_bytes(_END_FILE, message.getvalue())
    offset = register_messages(files, control, [_END_FILE], 0 if read is None else read + 1)
    files.write(f"{_OFFSETS}/{newest + 1}", "\n".join([*lines[:-1], offset]))
    return True


def plan_first_batch(spark: SparkSession, files: CheckpointFiles, sources: Sequence[str], control: int) -> None:
    """Plan a new query's first batch, which reads the control input alone.

    Args:
        spark: The session; the query keeps its number of shuffle partitions.
        files: The new checkpoint.
        sources: What the batch takes of each other source.
        control: The number of the control source's entry.
    """
    # The settings that a query keeps for good are known to Spark alone.
    metadata = java_class(spark, "org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata")
    entry = json.loads(metadata.apply(0, int(1000 * time.time()), spark._jsparkSession.conf()).json())  # noqa: SLF001
    entry["conf"] = {
        name: spark.conf.get(name, value) if value is None else value for name, value in entry["conf"].items()
    }
    # Spark takes logs without it for those of somebody who has lost a file.
    files.write(_METADATA, json.dumps({"id": str(uuid.uuid4())}))
    files.write(f"{_OFFSETS}/0", "\n".join([_VERSION, json.dumps(entry), *sources, json.dumps({"logOffset": control})]))


def begin_after(files: CheckpointFiles, sources: Sequence[str]) -> None:
    """Once the first batch is committed, have every source go on where another query's stood; doing it twice is once.

    A second batch that reads nothing is planned with the same offsets: Spark initialises its sources from the last two.

    Args:
        files: The new checkpoint.
        sources: Where each stood, in Spark's own spelling.
    """
    version, metadata, *first = _planned(files, 0)
    text = "\n".join([version, metadata, *sources, first[-1]])
    files.write(f"{_OFFSETS}/0", text)
    if files.read(f"{_OFFSETS}/1") is None:
        files.write(f"{_OFFSETS}/1", text)


def register_messages(files: CheckpointFiles, source: int, names: Sequence[str], log_id: int) -> str:
    """Enter files of messages into the control source's own log, as if Spark had found them.

    Args:
        files: The checkpoint.
        source: The number of the control input among the query's sources.
        names: The files, below the checkpoint.
        log_id: The number of the entry.

    Returns:
        The source's offset, as the offset log spells it, once they are read.
    """
    entries = [
        json.dumps({"path": files.url(name), "timestamp": files.modified(name), "batchId": log_id}) for name in names
    ]
    files.write(f"{_SOURCES}/{source}/{log_id}", "\n".join([_VERSION, *entries]))
    return json.dumps({"logOffset": log_id})


def plan_look_at_the_clock(files: CheckpointFiles, now: int) -> bool:
    """Plan a batch without rows after the last committed one: what waits for the clock alone gets its turn.

    Args:
        files: The checkpoint.
        now: The batch's processing time, in epoch milliseconds.

    Returns:
        False where no batch ever ran, or one is planned and not yet committed: that one has a clock of its own.
    """
    newest, committed = _newest(files, _OFFSETS), _newest(files, _COMMITS)
    if newest is None or newest != committed:
        return False
    version, metadata, *sources = _planned(files, newest)
    entry = json.dumps({**json.loads(metadata), "batchTimestampMs": now})
    files.write(f"{_OFFSETS}/{newest + 1}", "\n".join([version, entry, *sources]))
    return True


def resumed_batches(files: CheckpointFiles) -> frozenset[int]:
    """Note that a run starts, and return the batches with which the last runs began anew.

    A batch that an earlier run planned belongs to that run: executed again, it must not take itself for a new start.

    Raises:
        CheckpointError: The note of the earlier runs is damaged.
    """
    earlier = read_document(files, _RUNS_FILE, _RUNS, lambda content: [*map(int, content["starts"])]) or []
    newest = _newest(files, _OFFSETS)
    begins_with = 0 if newest is None else newest + 1
    # Each once: however often a run fails before it plans a batch, the start of the last one that did is kept.
    starts = [*dict.fromkeys([*earlier, begins_with])][-_KEPT_RUNS:]
    write_document(files, _RUNS_FILE, _RUNS, {"starts": starts})
    return frozenset(starts)


def check_offsets(files: CheckpointFiles, batch_id: int, expected: Sequence[str]) -> None:
    """See that Spark's offset log says of the last batch what its manifest says.

    Args:
        files: The checkpoint.
        batch_id: The last batch that counts; those that Spark has committed since have moved no source.
        expected: Where its manifest says that each source stood.

    Raises:
        CheckpointError: It says something else, so the query would go on at another place than where it stopped.
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


def _planned(files: CheckpointFiles, batch_id: int) -> list[str]:
    """Return the lines of a batch in Spark's offset log."""
    name = f"{_OFFSETS}/{batch_id}"
    lines = (files.read(name) or "").splitlines()
    # What other sources say of themselves is theirs; the control input is the last.
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


def _newest(files: CheckpointFiles, directory: str) -> int | None:
    ids = [int(name) for name in files.names(directory) if name.isdigit()]
    return max(ids, default=None)
