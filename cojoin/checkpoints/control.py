"""The control input (tag 0): messages of the driver to the key groups, as one more source of the Spark query.

The control input is a folder of Parquet files in the checkpoint, which Spark reads as a stream. Each row is a message
to one key group or to all of them: the state that a restored query begins with, or the end of all inputs.

A restored query's first batch and a drain's last batch are planned by cojoin: the message is written, and then an entry
of Spark's offset log (``offset_log``) that leaves the offsets of all other sources unchanged. After a crash in between,
the same batch therefore runs again, and nothing newer is read. Once a drain's message is written, every start finishes
the drain first.
"""

from __future__ import annotations

import contextlib
import io
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.offset_log import (
    COMMITS,
    LOG_VERSION,
    NOTHING_READ,
    OFFSETS,
    PUT_BACK,
    newest_id,
    planned_lines,
)
from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.storage.store import Store

__all__ = ["CONTROL_DDL", "END_OF_INPUT", "drain_is_promised", "open_control", "plan_drain", "register_messages"]

CONTROL_DDL = "key_group int, payload binary"
"""A message: the label of the key group that it is for, null for all key groups; and its bytes."""

END_OF_INPUT = b'{"end_of_input": true}'
_FOLDER, _END_FILE = "control", "control/end_of_input.parquet"
_SOURCES = "spark/sources"
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


def plan_drain(files: Store, check: Callable[[], None] = lambda: None) -> bool:
    """Plan the drain's last batch after the last committed batch; the call is idempotent.

    Args:
        files: The checkpoint.
        check: Raises an error where another run has taken over.

    Returns:
        False where no batch ever ran, so that there is nothing to end.

    Raises:
        CheckpointError: The offset log is damaged or of an unknown version, or the last planned batch is not committed;
            nothing was written.
    """
    newest, committed = newest_id(files, OFFSETS), newest_id(files, COMMITS)
    if newest is None:
        return False
    lines = planned_lines(files, newest)
    # Not the number of lines: a source that is read twice has two lines and one folder.
    control = newest_id(files, _SOURCES)
    if control is None:
        msg = f"checkpoint {files.root}: {_SOURCES} is gone, in which Spark keeps what it read; {PUT_BACK}"
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
    check()
    files.write_bytes(_END_FILE, message.getvalue())
    offset = register_messages(files, control, [_END_FILE], 0 if read is None else read + 1, check)
    # As for Spark itself, the first run that plans a batch has planned it.
    if not files.create(f"{OFFSETS}/{newest + 1}", "\n".join([*lines[:-1], offset]).encode()):
        check()
        msg = (
            f"checkpoint {files.root}: batch {newest + 1} was planned when the drain was about to plan it, so another "
            f"run has gone on meanwhile; start the query again"
        )
        raise CheckpointError(msg)
    return True


def _end_message() -> pa.Table:
    return pa.table([pa.array([None], pa.int32()), pa.array([END_OF_INPUT])], schema=_SCHEMA)


def register_messages(
    files: Store, source: int, names: Sequence[str], log_id: int, check: Callable[[], None] = lambda: None
) -> str:
    """Write files of messages into the log of the control input's source, as if Spark had found them.

    Args:
        files: The checkpoint.
        source: The number of the control input among the query's sources.
        names: The files, as paths below the checkpoint.
        log_id: The number of the entry.
        check: Raises an error where another run has taken over.

    Returns:
        The source's offset after these files, as a line of the offset log.
    """
    entries = [
        json.dumps({"path": files.url(name), "timestamp": files.modified(name), "batchId": log_id}) for name in names
    ]
    files.write_checked(f"{_SOURCES}/{source}/{log_id}", "\n".join([LOG_VERSION, *entries]), check)
    return json.dumps({"logOffset": log_id})
