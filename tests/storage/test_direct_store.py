"""Which directories this process reaches by itself."""

from __future__ import annotations

from pathlib import Path

from cojoin.storage.direct_store import direct_store
from cojoin.storage.object_store_settings import settings_of


def test_local_paths_and_known_stores_are_opened_and_others_are_not() -> None:
    opened = [
        direct_store(root, lambda place: settings_of(place, {}.get))
        for root in ("/lake/a b", "file:///lake/a", "lake", "s3a://lake/a", "hdfs://lake/a")
    ]
    assert [None if each is None else each.root for each in opened] == [
        "file:/lake/a b",
        "file:/lake/a",
        f"file:{Path('lake').absolute()}",
        "s3a://lake/a",
        None,
    ]
