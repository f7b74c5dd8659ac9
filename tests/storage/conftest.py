"""The stores that keep one contract: local files, S3's protocol, a store in memory; and Hadoop's in a Spark session."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from cojoin.storage.local_store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cojoin.storage.store import Store


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The endpoint of a server of S3's protocol."""
    from tests.servers.s3 import s3_server

    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(params=["local", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store of each kind, without a file; its root's name has a blank."""
    if request.param == "local":
        return LocalStore(f"{tmp_path}/my checkpoint")
    from obstore.store import MemoryStore

    from cojoin.storage.object_store import ObjectStore
    from cojoin.storage.object_store_settings import client_of, settings_of
    from tests.servers.s3 import BUCKET, settings_for

    if request.param == "memory":
        return ObjectStore(MemoryStore(), "memory://my checkpoint")
    root = f"s3a://{BUCKET}/{uuid.uuid4().hex}/my checkpoint"
    settings = settings_of(root, settings_for(request.getfixturevalue("s3")).get)
    assert settings is not None
    return ObjectStore(client_of(settings), root)
