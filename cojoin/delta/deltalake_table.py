"""A Delta table by ``deltalake``: opened, read, created, and committed to, with its errors as cojoin's own.

cojoin's rules are in ``TableWriter``; the tests' simulation replaces ``DeltalakeTable`` alone. A handle stays at the
version that was opened or updated to, also after a commit by it.

``deltalake`` makes a commit at the version after the newest one, where no other writer was first. With a commit after
the handle's version it fails, or, where it may repeat, compares: it fails then where the other commit wrote one of the
application ids that this one writes, removed rows of the existing files, or changed the table's metadata.

It reaches local folders, and those on object stores that ``obstore`` reaches, too (``TableAddress``). It takes a
location for a URL: it undoes an escape such as ``%41`` in a local path, takes a backslash for a slash, and on object
stores looks for the log's newest checkpoint under a path that is escaped twice. It would write into another folder than
Spark does, so such folders are left to Spark.

Its errors are shown on one line, without colours and stacks; an error of a store has the store's answer and the remedy.
The options may hold credentials: no ``repr`` shows them, and every error masks them. Signed addresses are cut after the
host.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from cojoin.delta.actions import DataFile
from cojoin.errors import ConfigurationError, QueryFailedError
from cojoin.installed_packages import check_packages
from cojoin.storage.local_store import LocalStore
from cojoin.storage.locations import MASK, without_login

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cojoin.storage.object_store_settings import Settings
    from cojoin.storage.store import Store

_COLOUR, _ARROW, _STACK = (
    re.compile(r"\x1b\[[0-9;]*m"),
    re.compile(r"\s*\n\s*↳\s*"),
    re.compile(r"\n\s*0: .*", re.DOTALL),
)
_SCHEMES = {"s3": "s3", "gs": "gs", "azure": "az"}
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}|\\|//")
_RETRIES = {
    "max_retries": "10",
    "retry_timeout": "20s",
    "backoff_config.init_backoff": "100ms",
    "backoff_config.max_backoff": "3s",
    "backoff_config.base": "2",
}
"""As those of ``object_store_settings``: passing errors are bridged, and a store that is down is named in seconds."""

_SECRETS = ("secret", "token", "key", "sas")


class TableRefusedError(QueryFailedError):
    """A table that does not take a commit, since it asks more of data files than the commit has."""


class TableConflictError(QueryFailedError):
    """Other writers committed to a table at the same moment, in each of the tries."""


class LostCommitError(QueryFailedError):
    """A commit, of ``version``, that was made and is not in the table's log any more."""

    def __init__(self, message: str, version: int) -> None:
        super().__init__(message)
        self.version = version


@contextlib.contextmanager
def translated(table: str, label: str, secrets: Sequence[str] = ()) -> Iterator[None]:
    """Raise an error of ``deltalake`` within the block as a ``QueryFailedError``, with secrets masked.

    ``label`` is the participle of what can't be done with the table, such as ``"read"``.
    """
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    try:
        yield
    except (DeltaError, OSError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise QueryFailedError(explained_error(error, table, label, secrets)) from None


def explained_error(error: BaseException, table: str, label: str, secrets: Sequence[str] = ()) -> str:
    """Return an error's message on one line, with its remedy; its arguments are those of ``translated``."""
    from cojoin.storage.object_store import explained  # noqa: PLC0415 - it loads obstore, for errors alone

    text = _ARROW.sub(": ", _STACK.sub("", _COLOUR.sub("", str(error)))).strip()
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    why, cure = explained(type(error)(text) if isinstance(error, OSError) else OSError(text))
    cure = cure or "see that the driver may list, read, write and delete in it"
    return f"Delta table {without_login(table)}: it can't be {label}: {why}; {cure}"


@dataclass(frozen=True)
class TableAddress:
    """A table's folder, as ``deltalake`` takes it: a URL, or a path on a local disk.

    The options of its store may hold credentials. ``is_overwritten``: other writers may look for a commit and then
    write it, as Spark's do on S3 by default.
    """

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_overwritten: bool = False

    @property
    def secrets(self) -> list[str]:
        """The options' values that must appear nowhere."""
        return [value for name, value in self.options.items() if value and any(each in name for each in _SECRETS)]


def address_of(store: Store, folder: str = "") -> TableAddress | None:
    """Return how ``deltalake`` reaches a folder below the store's root; None if it does not (``why_unreachable``)."""
    if why_unreachable(store, folder) is not None:
        return None
    settings = store.for_tasks()
    if settings is None:
        return TableAddress(store.path(folder).removeprefix("file:"))
    path = "/".join(each for each in (settings.bucket, settings.prefix, folder.strip("/")) if each)
    return TableAddress(f"{_SCHEMES[settings.kind]}://{path}", _options(settings), settings.kind == "s3")


def why_unreachable(store: Store, folder: str = "") -> str | None:
    """Return why ``deltalake`` does not reach a folder; None where it does."""
    settings = store.for_tasks()
    if settings is None and not isinstance(store, LocalStore):
        return "only Hadoop's file systems reach it"
    path = store.path(folder).partition(":")[2].lstrip("/") if settings is None else f"{settings.prefix}/{folder}"
    if _ESCAPE.search(path.strip("/")) or (settings is not None and quote(path) != path):
        return "its path has characters that deltalake takes for a URL's"
    return None


def _options(settings: Settings) -> dict[str, str]:
    """Return the options of ``obstore`` as those of ``deltalake``, which have the same names and are all texts."""
    options: dict[str, str] = dict(_RETRIES)
    for name, value in settings.options.items():
        if isinstance(value, dict):
            options.update((inner, _text(each)) for inner, each in value.items())
        else:
            options[name] = _text(value)
    return options


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def deleted_rows(store: Store, version: int, paths: Sequence[str]) -> dict[str, bytes]:
    """Return the deleted rows of files with deletion vectors in a version, as ``StreamFile`` has them, by their paths.

    The store's root is the table's folder. Raises ``QueryFailedError`` where they can't be read; a file that
    ``deltalake`` does not name is left out.
    """
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415
    from deltalake import DeltaTable  # noqa: PLC0415

    address = _reached(store, "")
    with translated(store.root, f"read in version {version}", address.secrets):
        table = DeltaTable(address.url, version, storage_options=dict(address.options) or None)
        vectors, root = pa.table(table.deletion_vectors()), f"{table.table_uri.rstrip('/')}/"
    rows, wanted = dict[str, bytes](), set(paths)
    for url, kept in zip(vectors["filepath"].to_pylist(), vectors["selection_vector"], strict=True):
        path = unquote(url.removeprefix(root))
        if path in wanted:
            rows[path] = np.packbits(~kept.values.to_numpy(zero_copy_only=False), bitorder="little").tobytes()
    return rows


def _reached(store: Store, folder: str) -> TableAddress:
    """Return how ``deltalake`` reaches a folder; errors are those of ``DeltalakeTable``."""
    check_packages(f"Delta table {without_login(store.path(folder))}", "spark", "deltalake")
    address = address_of(store, folder)
    if address is None:
        msg = (
            f"Delta table {without_login(store.path(folder))}: {why_unreachable(store, folder)}; only Spark reaches it"
        )
        raise QueryFailedError(msg)
    return address


class DeltalakeTable:
    """A table by ``deltalake``, in a folder below the store's root, and the version at which it is open.

    The errors of ``deltalake`` are raised as they are: ``DeltaError``, ``OSError``, ``ValueError``. ``is_overwritten``
    and ``secrets`` are those of ``TableAddress``. The constructor raises ``EnvironmentSetupError`` where ``deltalake``
    is missing or too old, and ``QueryFailedError`` where it does not reach the folder.
    """

    def __init__(self, store: Store, folder: str) -> None:
        address = _reached(store, folder)
        self._url, self._options = address.url, dict(address.options) or None
        self.is_overwritten, self.secrets = address.is_overwritten, address.secrets
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

        Raises ``TableNotFoundError`` where no log can be read, and ``DeltaError`` where the table can't be opened, such
        as one that is just being created.
        """
        from deltalake import DeltaTable  # noqa: PLC0415 - it takes a third of a second

        self._handle = None
        self._handle = DeltaTable(self._url, storage_options=self._options)

    def close(self) -> None:
        """Drop the handle and its version."""
        self._handle = None

    def update(self) -> None:
        """Move to the newest version, by the commits after the one that is open."""
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
                partition_values={
                    name: None if value is None else _text(value)
                    for name, value in (row.get("partition") or {}).items()
                },
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
        """Make a commit on the version that is open; ``CommitFailedError`` where another commit was first.

        ``applications`` has the versions of applications that it writes, by their ids; ``info`` is added to
        ``deltalake``'s own ``commitInfo``. It is repeated ``retries`` times after another's commit that is not in
        conflict.
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
        """Create the table with its first commit, which adds files; ``DeltaError`` where it exists.

        It is not open then.

        ``schema`` has its columns as a ``metaData`` action has them; the other arguments are those of ``commit``.
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


def _addition(file: DataFile, changes_data: bool) -> Any:
    from deltalake.transaction import AddAction  # noqa: PLC0415

    values = dict(file.partition_values)
    return AddAction(file.path, file.size, values, file.modified, changes_data, file.statistics or "{}")


def _removal(file: DataFile, changes_data: bool) -> Any:
    from deltalake.transaction import RemoveAction  # noqa: PLC0415

    return RemoveAction(file.path, changes_data, int(1000 * time.time()), file.size, dict(file.partition_values))
