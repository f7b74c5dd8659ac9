"""The number of files of a Delta table's commit, and the versions whose changes VACUUM has deleted.

A position of Delta's stream inside a commit is the number of the last file that was read, from 0 on. Of a table's rows
the stream numbers the added files, of its changes the files of changes, or where the commit has none, the added and the
removed ones; files that OPTIMIZE and the like rewrote do not count. Once it has read all of a commit, its position is
the next version; only a commit with files of changes is left at its last file. So the log alone says whether some of a
commit is unread. (Delta's ``DeltaSource`` and ``DeltaSourceCDCSupport``.)

A commit's changes are in the files of changes that it wrote, or else in the data files that it added and removed.
VACUUM deletes the former once their commit is old enough, and the latter once the commit that removed them is: oldest
first. So a binary search finds which files are gone. A file that something else has deleted is not looked for; the
query fails where it reads it. It costs the reading of the commits. (Delta's protocol, "Change Data Files".)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cojoin.errors import CheckpointError
from cojoin.session.delta_tables import table_log
from cojoin.session.kinds import adapter_of
from cojoin.session.stores import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cojoin.delta.actions import Commit
    from cojoin.delta.table_log import TableLog

__all__ = ["count_files", "files_in_commit", "vacuumed_versions"]


class _Mortal(NamedTuple):
    """A file that VACUUM may delete.

    Attributes:
        since: The version from which on it may be deleted, once that is old enough.
        path: Its path below the table's folder.
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
    try:
        log = table_log(spark, location)
    except CheckpointError:
        if adapter_of(spark).shares_paths:
            raise
        return None
    if log is None or version not in log.versions():
        return None
    return count_files(log.commit(version), is_feed=is_feed)


def count_files(commit: Commit, *, is_feed: bool) -> int:
    """Return how many files a stream of a table numbers in a commit.

    Args:
        commit: The commit.
        is_feed: Whether the stream reads the table's changes.
    """
    if is_feed and commit.changes:
        return len(commit.changes)
    return sum(file.changes_data for file in (*commit.added, *(commit.removed if is_feed else ())))


def vacuumed_versions(spark: SparkSession, location: str, first: int) -> list[int]:
    """Return the versions of a table whose changes are gone with their files, oldest first.

    Args:
        spark: The session.
        location: The table's path, with a ``/``, or its name.
        first: The first version whose changes are needed; all from there on must be in the log.
    """
    log = table_log(spark, location)
    if log is None:
        return []
    files, store = sorted(_mortal_files(log, first)), open_store(spark, log.path, "Delta table")
    gone, there = 0, len(files)
    if files and store.exists(files[0].path):
        return []
    while gone < there:
        middle = (gone + there) // 2
        if store.exists(files[middle].path):
            there = middle
        else:
            gone = middle + 1
    return sorted({version for file in files[:gone] for version in file.needed_by})


def _mortal_files(log: TableLog, first: int) -> list[_Mortal]:
    """Return the files that hold changes from a version on, and that the newest version does not have any more."""
    commits = [log.commit(version) for version in log.versions() if version >= first]
    removed: dict[str, int] = {}
    for commit in commits:
        removed |= {file.path: commit.version for file in commit.removed}
        # A file that gets a deletion vector is removed and added by one commit, and stays.
        for file in commit.added:
            removed.pop(file.path, None)
    needed: dict[tuple[int, str], list[int]] = {}
    for commit in commits:
        if commit.changes:
            mortal = [(commit.version, file.path) for file in commit.changes]
        else:
            files = [file for file in (*commit.added, *commit.removed) if file.changes_data]
            mortal = [(removed[file.path], file.path) for file in files if file.path in removed]
        for version_and_path in mortal:
            needed.setdefault(version_and_path, []).append(commit.version)
    # Files of a shallow clone are another table's.
    return [_Mortal(*named, tuple(versions)) for named, versions in needed.items() if "://" not in named[1]]
