"""The first commit of a small Delta table of cojoin's own, written without Delta's classes.

To load these takes a session one to two seconds, once. A query that has no other use for them, such as one that writes
into Parquet files or a topic, creates its table by this. The commit has what Delta's own first commit of such a table
has, and is put in place where there is none, so of two writers one succeeds. All later commits are Delta's. (Delta's
protocol, "Actions".)
"""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING

from cojoin.delta_jvm.delta_files import added_files, has_defaults, is_loaded, new_table, written_versions
from cojoin.session.kinds import adapter_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from cojoin.delta_jvm.delta_files import WrittenFile
    from cojoin.storage.store import Store

__all__ = ["create_table", "is_worth_it"]

LOG = "_delta_log"
FIRST = f"{LOG}/{0:020d}.json"


def is_worth_it(session: SparkSession, store: Store) -> bool:
    """Return whether a table is better created without Delta: Delta is not loaded, and this commit is the same.

    Args:
        session: The session; a setting of it may give new tables other properties, which only Delta knows to apply.
        store: The store, which must create a file atomically.
    """
    commits = adapter_of(session).has_delta_classes and store.swaps
    return commits and not is_loaded(session) and not has_defaults(session)


def create_table(
    session: SparkSession,
    store: Store,
    folder: str,
    schema: pa.Schema,
    files: Sequence[WrittenFile],
    applications: Mapping[str, int],
    query_id: str,
) -> bool:
    """Create a table with files that lie in its folder, and return whether it was created: False where there is one.

    Args:
        session: The session.
        store: The store.
        folder: The table's folder below the store's root.
        schema: The table's columns.
        files: The files.
        applications: The transaction ids: the versions of applications, by the applications' ids.
        query_id: The query id in the table's history, together with the first application's version.
    """
    lines = [
        json.dumps({"commitInfo": _told(files, applications, query_id)}),
        json.dumps({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}),
        new_table(session, schema),
        *written_versions(applications),
        *added_files(files),
    ]
    return store.create(f"{folder}/{FIRST}", "".join(f"{line}\n" for line in lines).encode())


def _told(files: Sequence[WrittenFile], applications: Mapping[str, int], query_id: str) -> dict[str, object]:
    """Return what the table's history shows, as of Delta's streaming updates."""
    epoch = next(iter(applications.values()), -1)
    counts = {
        "numOutputRows": sum(each.rows for each in files),
        "numAddedFiles": len(files),
        "numOutputBytes": sum(each.size for each in files),
        "numRemovedFiles": 0,
    }
    return {
        "timestamp": int(1000 * time.time()),
        "operation": "STREAMING UPDATE",
        "operationParameters": {"outputMode": "Append", "queryId": query_id, "epochId": str(epoch)},
        "isolationLevel": "Serializable",
        "isBlindAppend": True,
        "operationMetrics": {name: str(count) for name, count in counts.items()},
        "engineInfo": "cojoin",
        "txnId": str(uuid.uuid4()),
    }
