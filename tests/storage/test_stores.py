"""Every store keeps one contract, with many writers, too; and each directory is on the store that reaches it."""

from __future__ import annotations

import os
import threading
import time
import zlib
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from cojoin.storage.hadoop_store import HadoopStore
from cojoin.storage.local_store import LocalStore
from cojoin.storage.object_store import ObjectStore
from cojoin.storage.store import UnreadableFileError
from cojoin.storage.stores import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cojoin.storage.store import Store


def keeps_the_contract(store: Store) -> None:
    assert not store.exists()
    assert store.read("a/b.json") is None
    assert store.read_tagged("a/b.json") is None
    assert store.names("a") == store.names("") == []
    store.check_place()
    assert store.names("") == []
    store.write("a/b.json", "first, and longer than what follows")
    store.write("a/b.json", "zweite Fassung: 'µs' ✓\n")
    store.write("a/a.json", "")
    store.write_bytes("a/c/d.bin", bytes(range(256)))
    assert store.read("a/b.json") == "zweite Fassung: 'µs' ✓\n"
    assert store.read("a/a.json") == ""
    assert store.read_bytes("a/c/d.bin") == bytes(range(256))
    assert store.names("a") == ["a.json", "b.json", "c"]
    assert store.names("") == ["a"]
    assert store.exists("a")
    assert store.exists("a/b.json")
    assert not store.exists("a/b")
    assert store.path("a/b.json") == f"{store.root}/a/b.json"
    assert "my%20checkpoint/a%20b" in store.url("a b")
    assert store.size("a/c/d.bin") == 256
    assert store.size("a") == 256 + len("zweite Fassung: 'µs' ✓\n".encode())
    assert abs(store.modified("a/b.json") / 1000 - time.time()) < 600
    store.delete("a/b.json")
    store.delete("a/b.json")
    assert not store.exists("a/b.json")
    store.delete_directory("a")
    store.delete_directory("a")
    assert store.names("") == []
    store.make_directory("made/here")
    store.make_directory("made/here")
    assert store.exists("made/here")
    assert store.names("made/here") == []


def compares_and_swaps(store: Store) -> None:
    assert store.create("lease", b"1")
    assert not store.create("lease", b"other")
    found = store.read_tagged("lease")
    assert found is not None
    assert found.content == b"1"
    assert store.replace("lease", b"2", found.tag)
    assert not store.replace("lease", b"3", found.tag)
    assert store.read("lease") == "2"
    store.delete("lease")
    assert not store.replace("lease", b"4", found.tag)
    assert store.read("lease") is None


def test_a_file_is_written_read_listed_and_deleted(store: Store) -> None:
    keeps_the_contract(store)


def test_a_file_is_replaced_only_where_it_is_the_one_that_was_read(store: Store) -> None:
    compares_and_swaps(store)


def test_of_many_that_replace_a_file_each_builds_on_the_one_before(store: Store) -> None:
    store.write("counter", "0 by nobody")

    def count(writer: int) -> None:
        done = 0
        while done < 5:
            found = store.read_tagged("counter")
            assert found is not None
            counted = int(found.content.split()[0]) + 1
            done += store.replace("counter", b"%d by %d" % (counted, writer), found.tag)

    threads = [threading.Thread(target=count, args=(writer,)) for writer in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (store.read("counter") or "").startswith("30 by ")


def test_a_file_that_is_being_replaced_is_still_the_former_one(store: Store) -> None:
    # What release 0.5.0, or Hadoop's store, leaves between its two renames.
    store.write("x/.2.json.former", "former")
    assert store.exists("x/2.json")
    assert store.read("x/2.json") == "former"
    assert store.names("x") == ["2.json"]
    found = store.read_tagged("x/2.json")
    assert found is not None
    store.write("x/2.json", "new")
    assert (store.read("x/2.json"), store.names("x")) == ("new", ["2.json"])
    store.write("x/.2.json.former", "former")
    store.delete("x/2.json")
    assert not store.exists("x/2.json")


def test_what_a_crash_left_half_written_is_not_seen(tmp_path: Path) -> None:
    (tmp_path / ".3.json.0f.tmp").write_text("{")
    (tmp_path / "2.json").write_text("{}")
    assert LocalStore(str(tmp_path)).names("") == ["2.json"]


def test_a_local_file_is_compared_with_the_checksums_that_hadoop_wrote(tmp_path: Path) -> None:
    store, content = LocalStore(str(tmp_path)), os.urandom(1300)
    sums = b"".join(zlib.crc32(content[at : at + 512]).to_bytes(4, "big") for at in (0, 512, 1024))
    (tmp_path / "0").write_bytes(content)
    (tmp_path / ".0.crc").write_bytes(b"crc\x00" + (512).to_bytes(4, "big") + sums)
    assert store.read_bytes("0") == content
    (tmp_path / "0").write_bytes(content[:700] + b"?" + content[701:])
    with pytest.raises(UnreadableFileError, match="0 can't be read: its checksums are others"):
        store.read_bytes("0")
    store.write("0", "ours")
    assert store.read("0") == "ours"
    assert not (tmp_path / ".0.crc").exists()


def test_a_local_place_that_refuses_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    for do in (
        lambda: LocalStore(f"{tmp_path}/file/within").write("a", "b"),
        lambda: LocalStore("/proc/none").check_place(),
        lambda: LocalStore("/proc/none").make_directory("a"),
    ):
        with pytest.raises(cj.CheckpointError, match=r"checkpoint file:.* can't be (written|made): .*; expected a dir"):
            do()


@pytest.mark.spark
def test_hadoop_reads_what_the_local_store_writes_and_the_reverse(spark: SparkSession, tmp_path: Path) -> None:
    local, hadoop = LocalStore(f"{tmp_path}/a b"), HadoopStore(spark, f"{tmp_path}/a b")
    assert (local.root, local.url("ä#1 x"), local.path("x")) == (hadoop.root, hadoop.url("ä#1 x"), hadoop.path("x"))
    for one, other in ((local, hadoop), (hadoop, local), (local, hadoop)):
        one.write("x/a.json", f"by {type(one).__name__}")
        assert other.read("x/a.json") == f"by {type(one).__name__}"
        assert other.names("x") == ["a.json"]
        assert other.modified("x/a.json") == one.modified("x/a.json")
    hadoop.delete("x/a.json")
    assert not local.exists("x/a.json")
    local.delete_directory("x")


@pytest.mark.spark
def test_hadoops_store_keeps_the_contract_alone(spark: SparkSession, tmp_path: Path) -> None:
    store = HadoopStore(spark, f"{tmp_path}/my checkpoint")
    keeps_the_contract(store)
    compares_and_swaps(store)
    assert not store.swaps


@pytest.mark.spark
def test_a_local_path_needs_no_jvm_however_it_is_spelled(spark: SparkSession, tmp_path: Path) -> None:
    for spelled in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}", f"{tmp_path}/x/..", f"file:{tmp_path}/./"):
        store = open_store(spark, spelled)
        assert isinstance(store, LocalStore)
        assert store.root == f"file:{tmp_path}"


def test_an_object_store_without_conditional_writes_is_found(store: Store) -> None:
    if not isinstance(store, ObjectStore):
        pytest.skip("a file system has other ways")
    store.check_swaps()
    assert store.names("") == []
    put = store._client.put
    store._client = Unconditional(put, store._client)  # type: ignore[assignment]
    with pytest.raises(cj.CheckpointError, match=r"does not honour conditional writes .*spark.cojoin.storage=hadoop"):
        store.check_swaps()


class Unconditional:
    """A store that ignores conditions, as some servers of S3's protocol do."""

    def __init__(self, put: object, client: object) -> None:
        self._put, self._client = put, client

    def put(self, name: str, content: bytes, **_: object) -> object:
        return self._put(name, content)  # type: ignore[operator]

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)
