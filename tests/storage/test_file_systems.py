"""Which directories and files a process reaches without the JVM, by the URIs that Spark writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cojoin.errors import ConfigurationError
from cojoin.storage.file_systems import direct_store, file_system
from cojoin.storage.object_store_settings import settings_of


def test_local_paths_and_known_stores_are_opened_and_others_are_not() -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
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


@pytest.mark.parametrize("uri", ["/lake/a%20b", "file:/lake/a%20b", "file:///lake/a%20b"])
def test_a_local_path_is_one_however_it_is_spelled(uri: str) -> None:
    system, path = file_system(uri, "segments")
    assert (system.type_name, path) == ("local", "/lake/a b")


def test_one_that_pyarrow_does_not_know_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigurationError, match=r"segments: .*can't reach dbfs://lake"):
        file_system("dbfs://lake/a", "segments")
