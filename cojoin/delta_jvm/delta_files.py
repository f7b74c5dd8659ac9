"""Commits that add data files written outside Spark to a Delta table.

Each commit is one of Delta's own transactions. It has a transaction id, that is, an application id and a version
(``transactions`` makes sure that it takes effect once), and the user metadata of the commit. It also creates the
table where there is none, with a checkpoint of the Delta log every 100 commits. Delta does the rest as for its own
writers: conflict detection, checkpoints and history. Files can be added only to tables whose data files are plain
Parquet (``shape_of``).

A commit costs some tens of milliseconds and a millisecond a file, on the driver. (Delta's protocol, "Actions".)
"""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from cojoin.errors import QueryFailedError
from cojoin.session.arrow_types import spark_schema
from cojoin.session.java_classes import java_class, java_session
from cojoin.session.kinds import adapter_of
from cojoin.session.stores import open_store
from cojoin.storage.locations import is_path
from cojoin.storage.written_file import WrittenFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = [
    "Shape",
    "WrittenFile",
    "added_files",
    "append_files",
    "commit_applications",
    "default_properties",
    "has_no_log",
    "is_loaded",
    "keep_checksums_small",
    "new_table",
    "plain_defaults",
    "plain_shape",
    "shape_of",
    "table_log",
    "written_versions",
]

_DEFAULTS = "spark.databricks.delta.properties.defaults."
_CHECKPOINT_INTERVAL = "checkpointInterval"
_FILES_IN_CHECKSUM = "spark.databricks.delta.allFilesInCrc.enabled"
_COMMITS_A_CHECKPOINT = "100"
"""The checkpoint interval of a new table. With Delta's default of 10, every tenth batch takes 1 to 5 seconds more."""

_HARMLESS = frozenset(
    f"delta.{name}"
    for name in (
        "appendOnly",
        _CHECKPOINT_INTERVAL,
        "checkpointPolicy",
        "deletedFileRetentionDuration",
        "enableChangeDataFeed",
        "enableDeletionVectors",
        "enableInCommitTimestamps",
        "inCommitTimestampEnablementTimestamp",
        "inCommitTimestampEnablementVersion",
        "isolationLevel",
        "logRetentionDuration",
        "minReaderVersion",
        "minWriterVersion",
        "setTransactionRetentionDuration",
    )
)
"""Table properties that do not affect the format of a plain data file."""

_LOADED: set[str] = set()
"""The applications in which Delta's log was used."""

_NULLABILITY = frozenset({"nullable", "containsNull", "valueContainsNull"})
_PYTHON_UTILS = "org.apache.spark.api.python.PythonUtils"


class Shape(NamedTuple):
    """The columns, the partition columns and the relevant properties of a table: what its data files must match."""

    schema: str
    partitions: str
    configuration: str


def table_log(session: SparkSession, location: str) -> Any:
    """Return the JVM's ``DeltaLog`` of a table, or of a folder that may become one.

    Args:
        session: The session.
        location: The table's path, with a ``/``, or its name.

    Returns:
        The log; None where the location is a name that no table has.
    """
    adapter = adapter_of(session)
    adapter.check_delta()
    _LOADED.add(adapter.application_id)
    # Delta's Python package has no access to the log.
    log, inner = java_class(session, "org.apache.spark.sql.delta.DeltaLog"), java_session(session)
    if is_path(location):
        return log.forTable(inner, location)
    if not session.catalog.tableExists(location):
        return None
    return log.forTable(inner, inner.sessionState().sqlParser().parseTableIdentifier(location))


def is_loaded(session: SparkSession) -> bool:
    """Return whether cojoin has used Delta's log in this application, so that its classes are loaded."""
    return adapter_of(session).application_id in _LOADED


def has_no_log(session: SparkSession, location: str) -> bool:
    """Return whether a look at the store alone shows that there is no table, so that Delta is not loaded for it.

    To load Delta takes a second, for which a query may have no other reason. False where Delta is loaded already.

    Args:
        session: The session.
        location: The table's path, with a ``/``, or its name.
    """
    if is_loaded(session) or not is_path(location):
        return False
    return not open_store(session, location).exists("_delta_log")


def keep_checksums_small(session: SparkSession) -> None:
    """Exclude the list of a table's files from the checksum files that a session's commits write.

    A value that the user has set stays. Where the session's time zone is not UTC, Delta reads the whole list again
    after each commit to compare the two: a Spark job each time, which takes up to half the time of a small batch.
    """
    if not adapter_of(session).is_set(_FILES_IN_CHECKSUM):
        session.conf.set(_FILES_IN_CHECKSUM, "false")


def append_files(
    session: SparkSession,
    transaction: Any,
    schema: pa.Schema,
    files: Sequence[WrittenFile],
    *,
    applications: Mapping[str, int],
    query_id: str,
    metadata: str | None = None,
    former: pa.Schema | None = None,
) -> int:
    """Write a commit that appends files in a table's folder; without files it only creates the table.

    Args:
        session: The session.
        transaction: Delta's transaction on the table, or on the folder that becomes one.
        schema: The files' columns.
        files: The files.
        applications: The transaction ids: the versions of applications, by the applications' ids.
        query_id: The query id in the table's history.
        metadata: The user metadata of the commit (``userMetadata``).
        former: Columns that the table may have instead; then the commit gives it those of the files.

    Returns:
        The table version that the commit created.

    Raises:
        QueryFailedError: The table does not consist, or no longer consists, of plain files with these columns.
    """
    read = java_class(session, "org.apache.spark.sql.delta.actions.Action").fromJson
    if transaction.readVersion() < 0:
        transaction.updateMetadataForNewTable(read(new_table(session, schema)))
    elif former is not None and shape_of(transaction.metadata()) == plain_shape(former):
        described = json.loads(transaction.metadata().json())
        described["metaData"]["schemaString"] = json.dumps(_nullable(schema))
        transaction.updateMetadata(read(json.dumps(described)), False)
    if shape_of(transaction.metadata()) != plain_shape(schema):
        msg = "its columns or properties were changed while the batch was running; start the query again"
        raise QueryFailedError(msg)
    transaction.registerSQLMetrics(java_session(session), _metrics(session, files))
    return commit_applications(
        session, transaction, applications, query_id=query_id, metadata=metadata, added=added_files(files)
    )


def commit_applications(
    session: SparkSession,
    transaction: Any,
    applications: Mapping[str, int],
    *,
    query_id: str,
    metadata: str | None = None,
    added: Sequence[str] = (),
) -> int:
    """Write a commit with transaction ids, and return the table version that it created.

    Args:
        session: The session.
        transaction: Delta's transaction on the table.
        applications: The transaction ids: the versions of applications, by the applications' ids.
        query_id: The query id in the table's history, together with the first application's version.
        metadata: The user metadata of the commit (``userMetadata``).
        added: Further actions, as lines of the Delta log.
    """
    read = java_class(session, "org.apache.spark.sql.delta.actions.Action").fromJson
    mode = java_class(session, "org.apache.spark.sql.streaming.OutputMode").Append()
    told = java_class(session, "scala.Option").apply(metadata)
    update = java_class(session, "org.apache.spark.sql.delta.DeltaOperations$StreamingUpdate")
    actions = [read(line) for line in (*written_versions(applications), *added)]
    committed = transaction.commit(
        java_class(session, _PYTHON_UTILS).toSeq(actions),
        update(mode, query_id, next(iter(applications.values()), -1), told),
    )
    return int(committed)


def shape_of(metadata: Any) -> Shape:
    """Return the shape of a table from its metadata in the Delta log."""
    configuration = metadata.configuration().mkString("\n").replace(" -> ", "=").splitlines()
    special = [each for each in configuration if each.startswith("delta.") and each.partition("=")[0] not in _HARMLESS]
    schema = json.dumps(json.loads(metadata.schemaString()), sort_keys=True)
    return Shape(schema, metadata.partitionColumns().mkString(","), "\n".join(special))


def plain_shape(schema: pa.Schema) -> Shape:
    """Return the shape of a table with these columns, no partitions and no relevant properties."""
    return Shape(json.dumps(_nullable(schema), sort_keys=True), "", "")


def plain_defaults(session: SparkSession) -> bool:
    """Return whether a session's default properties make new tables plain, to which files can be committed."""
    # Only Delta's classes can commit files, and Spark's own writer makes no use of this.
    return adapter_of(session).has_delta_classes and _HARMLESS.issuperset(_defaults(session))


def default_properties(session: SparkSession) -> dict[str, str]:
    """Return the properties that a session gives to new tables, by their names."""
    if adapter_of(session).has_delta_classes:
        return {name: str(session.conf.get(_DEFAULTS + name.removeprefix("delta."))) for name in _defaults(session)}
    rows = session.sql("SET").collect()
    return {f"delta.{row.key.removeprefix(_DEFAULTS)}": row.value for row in rows if row.key.startswith(_DEFAULTS)}


def _defaults(session: SparkSession) -> list[str]:
    """Return the names of the properties for which a session has defaults."""
    names = adapter_of(session).setting_names()
    return [f"delta.{name.removeprefix(_DEFAULTS)}" for name in names if name.startswith(_DEFAULTS)]


def _nullable(schema: pa.Schema) -> dict[str, Any]:
    """Return the schema of a new table as Spark's JSON: every field, element and value is nullable."""

    def widened(node: Any) -> Any:
        if isinstance(node, list):
            return [widened(each) for each in node]
        if isinstance(node, dict):
            return {name: True if name in _NULLABILITY else widened(each) for name, each in node.items()}
        return node

    made: dict[str, Any] = widened(spark_schema(schema).jsonValue())
    return made


def _properties(session: SparkSession) -> dict[str, str]:
    """Return the properties of a new table, without those for which the session has a default."""
    if session.conf.get(_DEFAULTS + _CHECKPOINT_INTERVAL, None) is not None:
        return {}
    return {f"delta.{_CHECKPOINT_INTERVAL}": _COMMITS_A_CHECKPOINT}


def new_table(session: SparkSession, schema: pa.Schema) -> str:
    """Return the ``metaData`` action of a table that a session creates, as a line of the Delta log."""
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(_nullable(schema)),
        "partitionColumns": [],
        "configuration": _properties(session),
        "createdTime": int(1000 * time.time()),
    }
    return json.dumps({"metaData": metadata})


def written_versions(applications: Mapping[str, int]) -> list[str]:
    """Return the ``txn`` actions of a transaction, as lines of the Delta log."""
    now = int(1000 * time.time())
    versions = [{"appId": app_id, "version": version, "lastUpdated": now} for app_id, version in applications.items()]
    return [json.dumps({"txn": each}) for each in versions]


def added_files(files: Sequence[WrittenFile]) -> list[str]:
    """Return the ``add`` actions of a transaction, as lines of the Delta log."""
    added = [
        {
            "path": each.name,
            "partitionValues": {},
            "size": each.size,
            "modificationTime": each.modified,
            "dataChange": True,
            "stats": each.statistics,
        }
        for each in files
    ]
    return [json.dumps({"add": each}) for each in added]


def _metrics(session: SparkSession, files: Sequence[WrittenFile]) -> Any:
    """Return the commit's operation metrics for the table's history, as Spark's metrics."""
    counts = {
        "numOutputRows": sum(each.rows for each in files),
        "numAddedFiles": len(files),
        "numOutputBytes": sum(each.size for each in files),
        "numRemovedFiles": 0,
    }
    create = java_class(session, "org.apache.spark.sql.execution.metric.SQLMetrics").createMetric
    made = {}
    for name, count in counts.items():
        made[name] = create(java_session(session).sparkContext(), name)
        made[name].set(count)
    return java_class(session, _PYTHON_UTILS).toScalaMap(made)
