"""All that is asked of ``deltalake``: a table is opened, read, created, and committed to.

There are no rules of cojoin's here: ``TableWriter`` has them, and the simulation of the tests has this class anew, on
its own disk. A handle stays at the version that was opened or updated to, also after a commit of its own.

``deltalake`` makes a commit at the version after the newest one, where no other writer was first. With a commit after
the handle's version it fails, or, where it may repeat, compares: it fails then where the other commit wrote one of the
application ids that this one writes, removed rows of the files that were there, or changed the table's metadata.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from cojoin.delta.actions import DataFile
from cojoin.delta.delta_errors import check_deltalake
from cojoin.delta.place import place_of, why_unreachable
from cojoin.errors import QueryFailedError
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.storage.store import Store

__all__ = ["DeltalakeTable"]


class DeltalakeTable:
    """A table by ``deltalake``, and the version at which it is open.

    The errors of ``deltalake`` are raised as they are: ``DeltaError``, ``OSError``, ``ValueError``.

    Args:
        store: The store.
        folder: The table's folder below the store's root; empty for the root itself.

    Attributes:
        is_overwritten: Whether other writers may look for a commit and then write it (S3).
        secrets: Texts that must appear in no error.

    Raises:
        EnvironmentSetupError: ``deltalake`` is missing or too old.
        QueryFailedError: ``deltalake`` does not reach the folder (``place_of``).
    """

    def __init__(self, store: Store, folder: str) -> None:
        check_deltalake()
        place = place_of(store, folder)
        if place is None:
            named = without_login(store.path(folder))
            msg = f"Delta table {named}: {why_unreachable(store, folder)}; Spark writes it"
            raise QueryFailedError(msg)
        self._url, self._options = place.url, dict(place.options) or None
        self.is_overwritten, self.secrets = place.is_overwritten, place.secrets
        self._handle: Any = None

    @property
    def is_open(self) -> bool:
        """Whether the table is open at a version."""
        return self._handle is not None

    @property
    def version(self) -> int:
        """The version at which it is open."""
        return int(self._handle.version())

    @property
    def table_id(self) -> str:
        """The table's id in that version."""
        return str(self._handle.metadata().id)

    def open(self) -> None:
        """Open the newest version.

        Raises:
            TableNotFoundError: There is no table, or its log can't be read.
            DeltaError: It can't be opened, such as one that is just being created.
        """
        from deltalake import DeltaTable  # noqa: PLC0415 - it takes a third of a second

        self._handle = None
        self._handle = DeltaTable(self._url, storage_options=self._options)

    def close(self) -> None:
        """Forget the version."""
        self._handle = None

    def update(self) -> None:
        """Go on to the newest version, by the commits after the one that is open."""
        self._handle.update_incremental()

    def files(self) -> list[DataFile]:
        """Return the version's files, without their statistics."""
        import pyarrow as pa  # noqa: PLC0415

        actions = pa.table(self._handle.get_add_actions())
        columns = {"path", "size_bytes", "modification_time", "partition"}.intersection(actions.column_names)
        return [
            DataFile(
                unquote(row["path"]),
                int(row["size_bytes"]),
                int(row["modification_time"]),
                partition_values={name: _as_text(value) for name, value in (row.get("partition") or {}).items()},
            )
            for row in actions.select(sorted(columns)).to_pylist()
        ]

    def commit(
        self,
        added: Sequence[DataFile],
        removed: Sequence[DataFile] = (),
        *,
        changes_data: bool = True,
        applications: Mapping[str, int],
        info: Mapping[str, Any],
        retries: int,
    ) -> None:
        """Make a commit on the version that is open.

        Args:
            added: The files that it adds.
            removed: The files that it removes.
            changes_data: Whether the table's rows change.
            applications: The versions of applications that it writes, by their ids.
            info: What the commit's ``commitInfo`` has beside ``deltalake``'s own.
            retries: How often it is repeated after another's commit, where that is not in conflict.

        Raises:
            CommitFailedError: Another commit was first.
        """
        self._handle.create_write_transaction(
            [*(_removal(each, changes_data) for each in removed), *(_addition(each, changes_data) for each in added)],
            mode="append",
            schema=self._handle.schema(),
            partition_by=list(self._handle.metadata().partition_columns),
            **_properties(applications, info, retries),
        )

    def create(
        self,
        schema: Mapping[str, Any],
        added: Sequence[DataFile],
        *,
        partition_by: Sequence[str],
        properties: Mapping[str, str],
        applications: Mapping[str, int],
        info: Mapping[str, Any],
    ) -> None:
        """Create the table with its first commit; it is not open afterwards.

        Args:
            schema: Its columns, as those of a ``metaData`` action.
            added: The files that the commit adds.
            partition_by: The columns by which it is partitioned.
            properties: Its properties.
            applications: The versions of applications that the commit writes, by their ids.
            info: What its ``commitInfo`` has beside ``deltalake``'s own.

        Raises:
            DeltaError: There is a table.
        """
        from deltalake import Schema, transaction  # noqa: PLC0415

        transaction.create_table_with_add_actions(
            self._url,
            Schema.from_json(json.dumps(schema)),
            [_addition(each, changes_data=True) for each in added],
            partition_by=list(partition_by),
            configuration=properties,
            storage_options=self._options,
            **_properties(applications, info, 0),
        )

    def write_checkpoint(self) -> None:
        """Write a checkpoint of the log at the version that is open."""
        self._handle.create_checkpoint()

    def clean_log(self) -> None:
        """Delete the part of the log that is older than the table's ``delta.logRetentionDuration``."""
        self._handle.cleanup_metadata()


def _properties(applications: Mapping[str, int], info: Mapping[str, Any], retries: int) -> dict[str, Any]:
    from deltalake import CommitProperties, Transaction, transaction  # noqa: PLC0415

    now = int(1000 * time.time())
    written = [Transaction(app_id, version, now) for app_id, version in applications.items()]
    return {
        "commit_properties": CommitProperties(dict(info), max_commit_retries=retries, app_transactions=written),
        "post_commithook_properties": transaction.PostCommitHookProperties(
            create_checkpoint=False, cleanup_expired_logs=False
        ),
    }


def _as_text(value: Any) -> str | None:
    """Return a partition's value as the log has it."""
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _addition(file: DataFile, changes_data: bool) -> Any:
    from deltalake.transaction import AddAction  # noqa: PLC0415

    values = dict(file.partition_values)
    return AddAction(file.path, file.size, values, file.modified, changes_data, file.statistics or "{}")


def _removal(file: DataFile, changes_data: bool) -> Any:
    from deltalake.transaction import RemoveAction  # noqa: PLC0415

    return RemoveAction(file.path, changes_data, int(1000 * time.time()), file.size, dict(file.partition_values))
