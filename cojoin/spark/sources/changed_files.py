"""The files that have a Delta table's changes after a version, and which changes are gone since VACUUM deleted some.

A commit's changes are in the files of changes that it wrote, or else in the data files that it added and removed.
VACUUM deletes the former once their commit is old enough, and the latter once the commit that removed them is: oldest
first. So a few looks tell which files are gone, however many there are. A file that something else has deleted is not
looked for; the query fails where it reads it. It costs a Spark job over the commits. (Delta's protocol, "Change Data
Files".)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.delta_log import commit_versions
from cojoin.storage.locations import literally
from cojoin.storage.stores import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cojoin.storage.table_version import TableVersion

__all__ = ["vacuumed_versions"]

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
