"""The folders that ``deltalake`` reaches: local ones, and those on object stores that ``obstore`` reaches, too.

It takes a location for a URL. So it undoes an escape such as ``%41`` in a local path, takes a backslash for a slash,
and on object stores it looks for the log's newest checkpoint under a path that is escaped twice. It would write into
another folder than Spark does: such folders are left to Spark. The options may hold credentials, which are shown in no
``repr`` and masked in every error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cojoin.storage.local_store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.storage.object_store_settings import Settings
    from cojoin.storage.store import Store

__all__ = ["Place", "place_of", "why_unreachable"]

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


@dataclass(frozen=True)
class Place:
    """A table's folder, as ``deltalake`` takes it.

    Attributes:
        url: Its URL, or its path on a local disk.
        options: The options of its store; they may hold credentials.
        is_overwritten: Whether other writers may look for a commit and then write it, as Spark's do on S3 by default.
    """

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_overwritten: bool = False

    @property
    def secrets(self) -> list[str]:
        """The options' values that must appear nowhere."""
        return [value for name, value in self.options.items() if value and any(each in name for each in _SECRETS)]


def place_of(store: Store, folder: str = "") -> Place | None:
    """Return how ``deltalake`` reaches a folder; None where it does not, and ``why_unreachable`` says why.

    Args:
        store: The store.
        folder: The folder below the store's root.
    """
    if why_unreachable(store, folder) is not None:
        return None
    settings = store.for_tasks()
    if settings is None:
        return Place(store.path(folder).removeprefix("file:"))
    path = "/".join(each for each in (settings.bucket, settings.prefix, folder.strip("/")) if each)
    return Place(f"{_SCHEMES[settings.kind]}://{path}", _options(settings), settings.kind == "s3")


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
    """Return the options of ``obstore`` as those of ``deltalake``, which has the same names and only texts."""
    found: dict[str, str] = dict(_RETRIES)
    for name, value in settings.options.items():
        if isinstance(value, dict):
            found.update((inner, _text(each)) for inner, each in value.items())
        else:
            found[name] = _text(value)
    return found


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
