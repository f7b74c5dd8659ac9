"""Spark's offset log, as cojoin reads it, compares it with a manifest, and plans batches in it.

The log is a text for each batch, of version ``v1``: a line with the version, a line of metadata, then a line for each
source in the order of the plan. The control input is the last source. Spark runs a batch that is planned and not
committed exactly as it was planned.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from typing import TYPE_CHECKING

from cojoin.errors import CheckpointError
from cojoin.session.kinds import adapter_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from cojoin.storage.store import Store

__all__ = [
    "BATCH_ID_PROPERTY",
    "COMMITS",
    "LOG_VERSION",
    "NOTHING_READ",
    "OFFSETS",
    "PUT_BACK",
    "SOURCES",
    "begin_after",
    "check_offsets",
    "committed_batches",
    "log_offset",
    "newest_id",
    "plan_first_batch",
    "plan_interrupted",
    "plan_look_at_the_clock",
    "planned_batch",
    "planned_entry",
    "planned_lines",
    "source_offsets",
]

NOTHING_READ = "-"
"""The offset of a source of which nothing was read, in Spark's offset log."""

OFFSETS, COMMITS, SOURCES = "spark/offsets", "spark/commits", "spark/sources"
"""The folders of Spark's logs in a checkpoint."""

LOG_VERSION = "v1"
PUT_BACK = (
    "put it back from a backup of the checkpoint, or restore a snapshot into a new checkpoint with restore_from= "
    "(`cojoin checkpoints list` shows them)"
)
"""What to do where a log of Spark is damaged, as the end of a sentence."""

BATCH_ID_PROPERTY = "streaming.sql.batchId"
"""The property of a batch's jobs that has the batch's id."""

_METADATA = "spark/metadata"
"""Without this file, Spark takes the logs for damaged."""


def source_offsets(files: Store, batch_id: int) -> list[str]:
    """Return each source's end offset of a batch, as its line in Spark's offset log; empty where there is no entry.

    Raises:
        CheckpointError: The batch's entry is damaged.
    """
    return planned_lines(files, batch_id)[2:] if files.exists(f"{OFFSETS}/{batch_id}") else []


def planned_entry(spark: SparkSession, files: Store) -> str:
    """Return the line of metadata with which Spark would plan a new query's first batch now.

    Args:
        spark: The session.
        files: A directory that Spark reaches, for the checkpoint of a query that only shows the line; with Spark
            Connect it can't be had in another way.
    """
    return adapter_of(spark).planned_metadata(files)


def plan_first_batch(
    spark: SparkSession, files: Store, sources: Sequence[str], control: int, check: Callable[[], None]
) -> None:
    """Plan a restored query's first batch, which reads only the control input.

    Args:
        spark: The session; the query keeps its number of shuffle partitions.
        files: The new checkpoint.
        sources: The offset of each other source at the end of the batch.
        control: The number of the entry in the control input's log.
        check: Raises an error where another start has taken over.
    """
    files.write_checked(_METADATA, json.dumps({"id": str(uuid.uuid4())}), check)
    offsets = [*sources, log_offset(control)]
    files.write_checked(f"{OFFSETS}/0", "\n".join([LOG_VERSION, planned_entry(spark, files), *offsets]), check)


def begin_after(files: Store, sources: Sequence[str], check: Callable[[], None]) -> None:
    """Set the sources' offsets to those of another query, once the first batch is committed; the call is idempotent.

    A second batch that reads nothing is planned with the same offsets: Spark initialises its sources from the last two.

    Args:
        files: The new checkpoint.
        sources: Each source's offset, as a line of Spark's offset log.
        check: Raises an error where another start has taken over.
    """
    version, metadata, *first = planned_lines(files, 0)
    text = "\n".join([version, metadata, *sources, first[-1]])
    files.write_checked(f"{OFFSETS}/0", text, check)
    if not files.create(f"{OFFSETS}/1", text.encode()):
        # A start that stood still has had Spark plan it, perhaps by the offsets from before, and can't execute it.
        files.write_checked(f"{OFFSETS}/1", text, check)


def plan_look_at_the_clock(files: Store, now: int) -> bool:
    """Plan a batch without rows after the last committed batch, for what depends on the processing time alone.

    Args:
        files: The checkpoint.
        now: The batch's processing time, in epoch milliseconds.

    Returns:
        False where no batch ever ran, or where a planned batch, with its own processing time, is not yet committed.
    """
    newest, committed = newest_id(files, OFFSETS), newest_id(files, COMMITS)
    if newest is None or newest != committed:
        return False
    version, metadata, *sources = planned_lines(files, newest)
    entry = json.dumps({**json.loads(metadata), "batchTimestampMs": now})
    # As for Spark itself, the first run that plans a batch has planned it.
    return files.create(f"{OFFSETS}/{newest + 1}", "\n".join([version, entry, *sources]).encode())


def planned_batch(files: Store) -> int | None:
    """Return the batch that is planned and not committed, which Spark runs first; None where there is none."""
    newest, committed = newest_id(files, OFFSETS), newest_id(files, COMMITS)
    return newest if newest is not None and newest != committed else None


def log_offset(number: int) -> str:
    """Return the offset of the control input's log as Spark writes it.

    Spark compares offsets as texts: by another one it would plan a batch in which nothing is new.
    """
    return json.dumps({"logOffset": number}, separators=(",", ":"))


def check_offsets(files: Store, batch_id: int, expected: Sequence[str]) -> None:
    """Check that Spark's offset log agrees with the manifest of the last batch.

    Args:
        files: The checkpoint.
        batch_id: The last batch that counts. Batches that Spark has committed since have moved no source.
        expected: Each source's offset in that batch's manifest.

    Raises:
        CheckpointError: They differ, so the query would not continue where it stopped.
    """
    batch_id = max(batch_id, newest_id(files, COMMITS) or 0)
    found = source_offsets(files, batch_id)
    if found != list(expected):
        differs = next((pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]), None)
        told = (
            f"{len(found)} sources, the manifest {len(expected)}"
            if differs is None
            else f"{differs[0]}, the manifest {differs[1]}"
        )
        msg = (
            f"checkpoint {files.root}: {OFFSETS}/{batch_id} is not what the query has counted: it says {told}; "
            f"{PUT_BACK}"
        )
        raise CheckpointError(msg)


def plan_interrupted(spark: SparkSession, files: Store, begins: Sequence[str], ends: Sequence[str]) -> None:
    """Write the logs of a query as if its batch from some offsets to others was planned and then interrupted.

    Args:
        spark: The session.
        files: An empty directory.
        begins: Where each source begins, as its line in the offset log.
        ends: Where it ends.
    """
    entry = planned_entry(spark, files)
    files.write(_METADATA, json.dumps({"id": str(uuid.uuid4())}))
    files.write(f"{OFFSETS}/0", "\n".join([LOG_VERSION, entry, *begins]))
    files.write(f"{COMMITS}/0", "\n".join([LOG_VERSION, json.dumps({"nextBatchWatermarkMs": 0})]))
    files.write(f"{OFFSETS}/1", "\n".join([LOG_VERSION, entry, *ends]))


def planned_lines(files: Store, batch_id: int) -> list[str]:
    """Return the lines of a batch's entry in Spark's offset log."""
    name = f"{OFFSETS}/{batch_id}"
    lines = (files.read(name) or "").splitlines()
    # The format of other sources' offsets is their own; the control input is the last line.
    if len(lines) < 3 or lines[0] != LOG_VERSION or not _is_object(lines[1]) or not _is_position(lines[-1]):
        msg = (
            f"checkpoint {files.root}: {name}, a batch in Spark's offset log, is not in the form {LOG_VERSION}: it was "
            f"cut or changed, or written by another version of Spark; {PUT_BACK}"
        )
        raise CheckpointError(msg)
    return lines


def _is_position(line: str) -> bool:
    return line == NOTHING_READ or (_is_object(line) and isinstance(json.loads(line).get("logOffset"), int))


def _is_object(line: str) -> bool:
    with contextlib.suppress(ValueError):
        return isinstance(json.loads(line), dict)
    return False


def committed_batches(files: Store) -> list[int]:
    """Return the batches in Spark's commit log, oldest first."""
    return sorted(int(name) for name in files.names(COMMITS) if name.isdigit())


def newest_id(files: Store, directory: str) -> int | None:
    """Return the greatest number that names a file or folder in a directory; None where there is none."""
    ids = [int(name) for name in files.names(directory) if name.isdigit()]
    return max(ids, default=None)
