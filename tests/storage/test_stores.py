"""Every store keeps one contract, with many writers, too; and each directory is on the store that reaches it."""

from __future__ import annotations

import os
import random
import resource
import threading
import time
import uuid
import zlib
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from cojoin.session.hadoop_store import HadoopStore
from cojoin.session.sessions import open_store
from cojoin.storage.local_store import LocalStore
from cojoin.storage.object_store import ObjectStore
from cojoin.storage.object_store_settings import settings_of
from cojoin.storage.store import UnreadableFileError
from tests.seeds import SEED
from tests.servers.s3 import BUCKET, S3Server, settings_for

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
    # As Java escapes them: blanks and controls beyond ASCII, too.
    assert store.url("ä\N{IDEOGRAPHIC SPACE}\N{NO-BREAK SPACE}\x85\u2028").endswith("/ä%E3%80%80%C2%A0%C2%85%E2%80%A8")
    assert store.size("a/c/d.bin") == 256
    assert store.size("a") == 256 + len("zweite Fassung: 'µs' ✓\n".encode())
    times = dict(store.times(lambda folder: folder == "a"))
    assert {each.rpartition("/a/")[2] for each in times} == {"a.json", "b.json"}
    assert all(store.root.endswith(each.rpartition("/a/")[0]) for each in times)
    assert set(times.values()) <= {store.modified("a/a.json"), store.modified("a/b.json")}
    assert {each.rpartition("/")[2] for each, _ in store.times(bool)} == {"a.json", "b.json", "d.bin"}
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


def abandoned_ones_are_deleted(store: Store, folder: Path) -> None:
    store.write("a/3.json", "{}")
    for name, days in ((f".3.json.{'0f' * 16}.tmp", 2), (f".4.json.{'ab' * 16}.tmp", 0), (".3.json.former", 2)):
        (folder / "a" / name).write_text("{")
        os.utime(folder / "a" / name, (time.time() - 86_400 * days,) * 2)
    os.utime(folder / "a" / "3.json", (0, 0))
    store.delete_abandoned("")
    store.delete_abandoned("none")
    store.delete_abandoned("a")
    left = sorted(each.name for each in (folder / "a").iterdir() if not each.name.endswith(".crc"))
    assert left == [".3.json.former", f".4.json.{'ab' * 16}.tmp", "3.json"], "a younger one may still be written"


def test_what_a_crash_left_half_written_is_deleted_a_day_later(tmp_path: Path) -> None:
    abandoned_ones_are_deleted(LocalStore(str(tmp_path)), tmp_path)


@pytest.mark.spark
def test_hadoops_store_deletes_what_a_crash_left_half_written(spark: SparkSession, tmp_path: Path) -> None:
    abandoned_ones_are_deleted(HadoopStore(spark, str(tmp_path)), tmp_path)


def test_a_writer_that_stood_still_for_a_day_fails_and_harms_nothing(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.write("a", "before")
    with store._partial("a", b"after") as partial:
        os.utime(partial, (0, 0))
        store.delete_abandoned("")
        with pytest.raises(cj.CheckpointError, match="a can't be written"):
            store._put_in_place(partial, "a")
    assert store.read("a") == "before"


def a_directory_is_deleted_only_if_it_is_empty(store: Store, folder: Path) -> None:
    store.write("a/b/c", "here")
    store.delete_empty_directory("a/b")
    assert store.read("a/b/c") == "here"
    store.delete("a/b/c")
    store.delete_empty_directory("a/b")
    store.delete_empty_directory("a/b")
    assert not (folder / "a" / "b").exists()


def test_a_local_directory_is_deleted_only_if_it_is_empty(tmp_path: Path) -> None:
    a_directory_is_deleted_only_if_it_is_empty(LocalStore(str(tmp_path)), tmp_path)


@pytest.mark.spark
def test_hadoop_deletes_a_directory_only_if_it_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    a_directory_is_deleted_only_if_it_is_empty(HadoopStore(spark, str(tmp_path)), tmp_path)


def test_a_local_file_is_compared_with_the_checksums_that_hadoop_wrote(tmp_path: Path) -> None:
    store, content = LocalStore(str(tmp_path)), random.Random(SEED).randbytes(1300)
    sums = b"".join(zlib.crc32(content[at : at + 512]).to_bytes(4, "big") for at in (0, 512, 1024))
    (tmp_path / "0").write_bytes(content)
    (tmp_path / ".0.crc").write_bytes(b"crc\x00" + (512).to_bytes(4, "big") + sums)
    assert store.read_bytes("0") == content
    (tmp_path / "0").write_bytes(content[:700] + bytes([content[700] ^ 1]) + content[701:])
    with pytest.raises(UnreadableFileError, match="0 can't be read: its checksums are others"):
        store.read_bytes("0")
    store.write("0", "ours")
    assert store.read("0") == "ours"
    assert not (tmp_path / ".0.crc").exists()


class Far(LocalStore):
    @property
    def root(self) -> str:
        return "ftp://me:opensesame@lake/trades"


def test_a_file_that_cannot_be_read_is_named_as_the_stores_and_without_a_login(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for store, named in (
        (LocalStore(str(tmp_path)), f"checkpoint file:{tmp_path}"),
        (Far(str(tmp_path), "Delta table"), "Delta table ftp://***@lake/trades"),
    ):
        with pytest.raises(UnreadableFileError) as caught:
            store.read_bytes("a")
        cure = f"put it back from a backup of the {store.label}"
        assert str(caught.value) == f"{named}: a can't be read: Is a directory; {cure}"


def test_a_local_place_that_refuses_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    for do in (
        lambda: LocalStore(f"{tmp_path}/file/within").write("a", "b"),
        lambda: LocalStore("/proc/none").check_place(),
        lambda: LocalStore("/proc/none").make_directory("a"),
    ):
        with pytest.raises(cj.CheckpointError, match=r"checkpoint file:.* can't be (written|made): .*; expected a dir"):
            do()


def test_a_disk_that_is_full_leaves_the_former_file(tmp_path: Path) -> None:
    store, (soft, hard) = LocalStore(str(tmp_path)), resource.getrlimit(resource.RLIMIT_FSIZE)
    assert store.create("a", b"before")
    found = store.read_tagged("a")
    assert found is not None
    for write in (
        lambda: store.write_bytes("a", b"0" * 5000),
        lambda: store.replace("a", b"0" * 5000, found.tag),
        lambda: store.create("b", b"0" * 5000),
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            with pytest.raises(cj.CheckpointError, match=r"can't be written: File too large; make room on that disk"):
                write()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.names("") == ["a"]
    assert store.read("a") == "before"
    assert not list(tmp_path.glob(".*.tmp"))


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
    assert not store.has_conditional_writes


@pytest.mark.spark
def test_a_local_path_needs_no_jvm_however_it_is_spelled(spark: SparkSession, tmp_path: Path) -> None:
    for spelled in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}", f"{tmp_path}/x/..", f"file:{tmp_path}/./"):
        store = open_store(spark, spelled)
        assert isinstance(store, LocalStore)
        assert store.root == f"file:{tmp_path}"


def test_an_object_store_without_conditional_writes_is_found(store: Store) -> None:
    if not isinstance(store, ObjectStore):
        pytest.skip("a file system has other ways")
    store.check_conditional_writes()
    assert store.names("") == []
    put = store._client.put
    store._client = Unconditional(put, store._client)  # type: ignore[assignment]
    with pytest.raises(cj.CheckpointError, match=r"does not honour conditional writes .*spark.cojoin.storage=hadoop"):
        store.check_conditional_writes()


def test_hadoops_marker_of_a_directory_is_no_file_in_it() -> None:
    with S3Server() as server:
        root = f"s3a://{BUCKET}/{uuid.uuid4().hex}"
        settings = settings_of(root, settings_for(server.endpoint).get)
        assert settings is not None
        store = ObjectStore.of(settings, root)
        for marker in ("sources/", "sources/1/"):
            server.client().put_object(Bucket=BUCKET, Key=f"{settings.prefix}/{marker}")
        assert (store.names("sources"), store.names("sources/1")) == (["1"], [])
        assert store.exists("sources/1")
        store.write("sources/1/0", "v1")
        assert store.names("sources/1") == ["0"]
        assert store.read("sources/1/1") is None
        assert store.names("") == ["sources"]
        assert store.size("sources") == 2


class Unconditional:
    """A store that ignores conditions, as some servers of S3's protocol do."""

    def __init__(self, put: object, client: object) -> None:
        self._put, self._client = put, client

    def put(self, name: str, content: bytes, **_: object) -> object:
        return self._put(name, content)  # type: ignore[operator]

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)
