"""The number of files of a Delta table's commit, and the versions whose changes VACUUM has deleted.

A position of Delta's stream inside a commit is the number of the last file that was read, from 0 on. Of a table's rows
the stream numbers the added files, of its changes the files of changes, or where the commit has none, the added and the
removed ones; files that OPTIMIZE and the like rewrote do not count. Once it has read all of a commit, its position is
the next version; only a commit with files of changes is left at its last file. So the log alone says whether some of a
commit is unread. (Delta's ``DeltaSource`` and ``DeltaSourceCDCSupport``.)

A commit's changes are in the files of changes that it wrote, or else in the data files that it added and removed.
VACUUM deletes the former once their commit is old enough, and the latter once the commit that removed them is: oldest
first. So a binary search finds which files are gone. A file that something else has deleted is not looked for; the
query fails where it reads it. It costs a Spark job over the commits. (Delta's protocol, "Change Data Files".)
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.delta_log import commit_versions
from cojoin.delta_jvm.table_version import log_path
from cojoin.errors import CheckpointError
from cojoin.session.kinds import adapter_of
from cojoin.session.stores import open_store
from cojoin.storage.locations import literally

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cojoin.delta_jvm.table_version import TableVersion

__all__ = ["count_files", "files_in_commit", "vacuumed_versions"]

_FILE = "path string, dataChange boolean"
_ACTIONS = f"add struct<{_FILE}>, remove struct<{_FILE}>, cdc struct<{_FILE}>"


class _Mortal(NamedTuple):
    """A file that VACUUM may delete.

    Attributes:
        since: The version from which on it may be deleted, once that is old enough.
        path: Its path, as the log has it.
        needed_by: The versions whose changes it holds.
    """

    since: int
    path: str
    needed_by: tuple[int, ...]


def files_in_commit(spark: SparkSession, location: str, version: int, *, is_feed: bool) -> int | None:
    """Return how many files a stream of a table numbers in a commit.

    An entry of the log never changes, so the answer is the same as long as there is one.

    Args:
        spark: The session.
        location: The table's path, with a ``/``, or its name.
        version: The commit's version.
        is_feed: Whether the stream reads the table's changes.

    Returns:
        The number; None where the commit is gone from the log, or a session of Spark Connect does not reach the log.

    Raises:
        CheckpointError: The log could not be read.
    """
    folder = log_path(spark, location)
    if folder is None:
        return None
    try:
        store = open_store(spark, folder, "Delta log")
    except CheckpointError:
        if adapter_of(spark).shares_paths:
            raise
        return None
    text = store.read(f"{version:020d}.json")
    return None if text is None else count_files(text, is_feed=is_feed)


def count_files(text: str, *, is_feed: bool) -> int:
    r"""Return how many files a stream of a table numbers in a commit.

    Args:
        text: The commit in the table's log: a line of JSON for each action.
        is_feed: Whether the stream reads the table's changes.

    >>> written, changed = '{"add":{"path":"a","dataChange":true}}', '{"cdc":{"path":"b"}}'
    >>> removed, moved = '{"remove":{"path":"c","dataChange":true}}', '{"add":{"path":"d","dataChange":false}}'
    >>> plain, merged = "
    ".join([removed, written, moved]), "
    ".join([removed, written, changed])
    >>> [count_files(each, is_feed=True) for each in (plain, merged)]
    [2, 1]
    >>> [count_files(each, is_feed=False) for each in (plain, merged)]
    [1, 1]
    """
    actions = [json.loads(line) for line in text.splitlines() if line.strip()]
    changes = sum("cdc" in each for each in actions)
    if is_feed and changes:
        return changes
    kinds = ("add", "remove") if is_feed else ("add",)
    return sum(bool(each.get(kind, {}).get("dataChange")) for each in actions for kind in kinds)


def vacuumed_versions(spark: SparkSession, table: TableVersion, first: int) -> list[int]:
    """Return the versions of a table whose changes are gone with their files, oldest first.

    Args:
        spark: The session.
        table: The table.
        first: The first version whose changes are needed; all from there on must be in the log.
    """
    files = sorted(_mortal_files(spark, table, first))
    store = open_store(spark, table.path)
    gone, there = 0, len(files)
    if files and store.exists(unquote(files[0].path)):
        return []
    while gone < there:
        middle = (gone + there) // 2
        if store.exists(unquote(files[middle].path)):
            there = middle
        else:
            gone = middle + 1
    return sorted({version for each in files[:gone] for version in each.needed_by})


def _mortal_files(spark: SparkSession, table: TableVersion, first: int) -> list[_Mortal]:
    """Return the files that hold changes from a version on, and that the newest version does not have any more."""
    versions = [each for each in commit_versions(spark, table) if each >= first]
    if not versions:
        return []
    lines = spark.read.schema(_ACTIONS).json([literally(f"{table.log_path}/{each:020d}.json") for each in versions])
    action = F.coalesce(*(F.when(F.col(name).isNotNull(), F.lit(name)) for name in ("cdc", "add", "remove")))
    told = F.coalesce("cdc", "add", "remove")
    named = lines.select(
        F.col("_metadata.file_name").alias("file"), action.alias("action"), told["path"], told["dataChange"]
    )
    found = named.where("action IS NOT NULL").toDF("file", "action", "path", "changes").collect()
    by_version: dict[int, dict[str, list[Any]]] = {}
    for row in found:
        by_version.setdefault(int(row.file.removesuffix(".json")), {}).setdefault(row.action, []).append(row)
    removed: dict[str, int] = {}
    for version, actions in sorted(by_version.items()):
        removed |= {row.path: version for row in actions.get("remove", ())}
        # A file that gets a deletion vector is removed and added by one commit, and stays.
        for row in actions.get("add", ()):
            removed.pop(row.path, None)
    needed: dict[tuple[int, str], list[int]] = {}
    for version, actions in sorted(by_version.items()):
        if "cdc" in actions:
            mortal = [(version, row.path) for row in actions["cdc"]]
        else:
            rows = [row for name in ("add", "remove") for row in actions.get(name, ()) if row.changes]
            mortal = [(removed[row.path], row.path) for row in rows if row.path in removed]
        for each in mortal:
            needed.setdefault(each, []).append(version)
    # Files of a shallow clone are another table's.
    return [_Mortal(*each, tuple(versions)) for each, versions in needed.items() if "://" not in each[1]]
