"""Checks that a source still has the rows after the position at which a restored query resumes.

A position is a line of Spark's offset log. Rows that the source no longer has are a loss, reported with its size, which
the user may accept; ``with_losses_accepted`` then moves the position to the earliest available one. A source with which
the query can't continue at all, such as a table that was created again, is an error. ``cojoin.kafka`` checks topics.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from cojoin.checkpoints.delta_log import session_with_long_history
from cojoin.errors import CheckpointError
from cojoin.session.delta_tables import table_log
from cojoin.session.spark_errors import SPARK_ERRORS
from cojoin.session.stores import open_store
from cojoin.storage.locations import is_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_position", "with_losses_accepted"]

_NOTHING_READ = ("", "-", "null")


def check_position(
    spark: SparkSession,
    what: str,
    format: str,  # noqa: A002 - Spark's word
    location: str | None,
    offset: str | None,
) -> list[str]:
    """Check whether a source still has the rows after a position, and return the losses.

    Args:
        spark: The session.
        what: The source, for messages, such as ``"input 'trades'"``.
        format: Spark's name of its format.
        location: A path or a table's name.
        offset: The line of Spark's offset log; None or ``-`` if nothing was read yet.

    Returns:
        A description of each loss, which the user may accept; none if nothing is lost.

    Raises:
        CheckpointError: The query can't continue with this source.
    """
    if offset is None or offset.strip() in _NOTHING_READ:
        return []
    if format == "delta":
        first, earliest = _delta_versions(spark, what, str(location), offset)
        if earliest > first:
            which = f"version {first} is" if earliest == first + 1 else f"versions {first} to {earliest - 1} are"
            return [f"{what}: Delta table {location}: {which} gone from the log"]
    # A file source needs only the files that are still to come.
    return []


def with_losses_accepted(
    spark: SparkSession,
    what: str,
    format: str,  # noqa: A002 - Spark's word
    location: str | None,
    offset: str | None,
) -> str | None:
    """Return the position moved past all losses, to the earliest one that is available.

    Args:
        spark: The session.
        what: The source, for messages.
        format: Spark's name of its format.
        location: A path or a table's name.
        offset: The line of Spark's offset log.

    Returns:
        A line of the same form; the same line if nothing is lost.

    Raises:
        CheckpointError: The query can't continue with this source.
    """
    if offset is None or not check_position(spark, what, format, location, offset):
        return offset
    _, earliest = _delta_versions(spark, what, str(location), offset)
    position = {"sourceVersion": 1, "reservoirVersion": earliest, "index": -1, "isStartingVersion": False}
    return json.dumps(json.loads(offset) | position, separators=(",", ":"))


def _delta_versions(spark: SparkSession, what: str, location: str, offset: str) -> tuple[int, int]:
    """Return the version to read next, and the earliest one, at or after it, from which all versions are available."""
    position, log = _parsed(what, offset), table_log(spark, location)
    table = None if log is None else log.newest()
    where = f"{what}: Delta table {location}"
    if log is None or table is None:
        msg = f"{where}: there is no such table, and the checkpoint has read it; start a new query"
        raise CheckpointError(msg)
    newest, table_id = table.version, table.table_id
    first = int(position["reservoirVersion"])
    if table_id != position["reservoirId"] or first > newest + 1:
        got = f"id {table_id}, version {newest}"
        msg = (
            f"{where}: the checkpoint has read a table of the id {position['reservoirId']} up to version {first}; "
            f"got {got}: it was replaced by another; start a new query"
        )
        raise CheckpointError(msg)
    in_snapshot = bool(position["isStartingVersion"])
    if in_snapshot:
        _check_snapshot(spark, where, location, first)
        first += 1
    there = set(log.versions())
    earliest = newest + 1
    while earliest > first and earliest - 1 in there:
        earliest -= 1
    if in_snapshot and earliest > first:
        # No position is both inside the table's snapshot and after the missing versions.
        msg = (
            f"{where}: the checkpoint has read a part of its version {first - 1}, and the versions {first} to "
            f"{earliest - 1} are gone from the log; start a new query"
        )
        raise CheckpointError(msg)
    return first, earliest


def _check_snapshot(spark: SparkSession, where: str, location: str, version: int) -> None:
    """Check that the rest of a table's initial snapshot can be read: its version, and the files removed since then."""
    by_path = is_path(location)
    try:
        with session_with_long_history(spark) as session:
            now, then = session.read.format("delta"), session.read.format("delta").option("versionAsOf", version)
            files_now = {*(now.load if by_path else now.table)(location).inputFiles()}
            files_then = {*(then.load if by_path else then.table)(location).inputFiles()}
        gone = [file for file in sorted(files_then - files_now) if not _exists(spark, file)]
        why = f"{len(gone):,} of its {len(files_then):,} files" if gone else None
    except SPARK_ERRORS:
        why = "its commits"
    if why is not None:
        msg = (
            f"{where}: the checkpoint has read a part of its version {version}, and {why} are gone, so the rest can't "
            f"be read; start a new query"
        )
        raise CheckpointError(msg)


def _exists(spark: SparkSession, file: str) -> bool:
    # Spark names files by encoded URLs.
    folder, _, name = unquote(file).rpartition("/")
    return open_store(spark, folder).exists(name)


def _parsed(what: str, offset: str) -> dict[str, Any]:
    try:
        position = json.loads(offset)
    except ValueError:
        position = None
    if not isinstance(position, dict):
        msg = f"{what}: the checkpoint's position is not in the form of Spark's offset log; got {offset[:60]!r}"
        raise CheckpointError(msg)
    return position
