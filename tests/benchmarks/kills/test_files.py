"""Copies of a folder, on a disk and on S3's protocol: all its files, and none of another folder's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.kills.places import Place
from cojoin.storage.local_store import LocalStore
from cojoin.storage.object_store import ObjectStore
from cojoin.storage.object_store_settings import settings_of
from tests.servers.s3 import S3Server, settings_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.kills.files import Files
    from cojoin.storage.store import Store


class Held:
    """A place with stores in its folders."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.files: Files = place.files()
        self._endpoint, self._root = place.endpoint, place.root(folder)

    def path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def store(self, name: str) -> Store:
        if self._endpoint is None:
            return LocalStore(self.path(name))
        settings = settings_of(self.path(name), settings_for(self._endpoint).get)
        assert settings is not None
        return ObjectStore.of(settings, self.path(name))


@pytest.fixture
def on_disk(tmp_path: Path) -> Held:
    return Held(Place(), tmp_path)


@pytest.fixture
def on_s3(tmp_path: Path) -> Iterator[Held]:
    with S3Server("copied") as server:
        yield Held(Place(server.endpoint, server.bucket), tmp_path)


@pytest.fixture(params=["on_disk", "on_s3"])
def held(request: pytest.FixtureRequest) -> Held:
    found: Held = request.getfixturevalue(request.param)
    return found


def test_a_copy_has_all_files_and_stays_as_it_was(held: Held) -> None:
    checkpoint = held.store("checkpoint")
    for name in ("lease.json", "state/_delta_log/0.json", "spark/.hidden"):
        checkpoint.write(name, name)
    held.store("checkpoint-of-another").write("lease.json", "another")
    held.files.copy(held.path("checkpoint"), held.path("copy"))
    assert sorted(held.files.names(held.path("copy"))) == ["lease.json", "spark/.hidden", "state/_delta_log/0.json"]
    checkpoint.write("lease.json", "newer")
    checkpoint.write("manifest/1.json", "newer")
    held.files.delete(held.path("checkpoint"))
    assert not held.files.names(held.path("checkpoint"))
    held.files.copy(held.path("copy"), held.path("checkpoint"))
    assert held.store("checkpoint").read("lease.json") == "lease.json"
    assert held.store("checkpoint").read("manifest/1.json") is None
    assert held.store("checkpoint-of-another").read("lease.json") == "another"


def test_an_object_that_goes_after_it_was_listed_is_left_out(on_s3: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = on_s3.store("checkpoint")
    checkpoint.write("kept", "kept")
    checkpoint.write("gone", "gone")
    names = on_s3.files.names

    def and_then_gone(folder: str) -> list[str]:
        found = names(folder)
        checkpoint.delete("gone")
        return found

    monkeypatch.setattr(on_s3.files, "names", and_then_gone)
    on_s3.files.copy(on_s3.path("checkpoint"), on_s3.path("copy"))
    assert names(on_s3.path("copy")) == ["kept"]


def test_a_folder_that_does_not_exist_has_no_files(held: Held) -> None:
    assert held.files.names(held.path("nowhere")) == []
