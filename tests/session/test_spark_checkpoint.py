"""A file stream goes on in a new checkpoint with exactly the files that were not read, compacted or not."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.session.hadoop_store import HadoopStore
from cojoin.session.session_adapter import FILE_MANAGER, changed_settings
from cojoin.session.sessions import open_store
from cojoin.session.spark_checkpoint import (
    check_file_manager,
    compact_interval,
    logged_time,
    planned_lines,
    source_entries,
    stream_settings,
    write_source_log,
)
from cojoin.storage.local_store import LocalStore
from tests.servers.jars import s3_jars
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cojoin.storage.store import Store

pytestmark = pytest.mark.spark

FILES = 13
NAMES = [f"trade {number} µs.json" for number in range(FILES)]


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Store:
    return open_store(spark, f"{tmp_path}/checkpoint")


@pytest.fixture(scope="module")
def streamed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files, and the checkpoint of a stream that read each in a batch of its own."""
    folder = tmp_path_factory.mktemp("streamed")
    (folder / "in").mkdir()
    for number, name in enumerate(NAMES):
        (folder / "in" / name).write_text(json.dumps({"trade_id": number}))
        # Spark takes files by their time.
        os.utime(folder / "in" / name, (1_700_000_000 + number, 1_700_000_000 + number))
    assert run(spark, folder, folder / "old") == [[number] for number in range(FILES)]
    return folder


def run(spark: SparkSession, folder: Path, checkpoint: Path) -> list[list[int]]:
    """Stream the folder to its end, a file a batch, and give each batch's trades."""
    batches: list[list[int]] = []
    stream = spark.readStream.schema("trade_id long").option("maxFilesPerTrigger", 1).json(f"{folder}/in")
    writer = stream.writeStream.foreachBatch(
        lambda frame, _: batches.append([row.trade_id for row in frame.collect()]),
    )
    query = writer.option("checkpointLocation", f"{checkpoint}/spark").trigger(availableNow=True).start()
    query.awaitTermination()
    return batches


def entry(number: int, batch_id: int) -> dict[str, Any]:
    return {"path": f"file:///in/{number}.json", "timestamp": 5 + number, "batchId": batch_id}


def test_a_log_that_spark_wrote_is_read_whole(spark: SparkSession, streamed: Path) -> None:
    old = open_store(spark, f"{streamed}/old")
    assert "9.compact" in old.names("spark/sources/0")
    found = source_entries(old, 0)
    assert [each["batchId"] for each in found] == list(range(FILES))
    assert [each["timestamp"] for each in found] == [1000 * (1_700_000_000 + number) for number in range(FILES)]
    assert found[0]["path"].rpartition("/")[2] == "trade%200%20µs.json"
    assert source_entries(old, 1) == []


@pytest.mark.parametrize("come_to", [2, 9, 11])
def test_a_new_checkpoint_reads_exactly_the_rest(spark: SparkSession, streamed: Path, come_to: int) -> None:
    old, new = open_store(spark, f"{streamed}/old"), open_store(spark, f"{streamed}/new {come_to}")
    for _ in range(2):
        write_source_log(new, 0, source_entries(old, 0), come_to, interval=compact_interval(spark))
    version, metadata, *_ = (old.read("spark/offsets/12") or "").splitlines()
    # Spark refuses a checkpoint that has logs and no id.
    new.write("spark/metadata", json.dumps({"id": str(uuid.uuid4())}))
    new.write("spark/offsets/0", "\n".join([version, metadata, json.dumps({"logOffset": come_to})]))
    new.write("spark/commits/0", old.read("spark/commits/12") or "")
    # What was read is no longer needed.
    gone = streamed / "gone"
    shutil.copytree(streamed / "in", gone)
    for name in NAMES[: come_to + 1]:
        (streamed / "in" / name).unlink()
    try:
        assert run(spark, streamed, streamed / f"new {come_to}") == [[n] for n in range(come_to + 1, FILES)]
    finally:
        shutil.rmtree(streamed / "in")
        gone.rename(streamed / "in")
    assert source_entries(new, 0) == source_entries(old, 0)


def test_what_a_compacted_file_repeats_counts_once(files: Store) -> None:
    written = [entry(number, number // 2) for number in range(8)]
    write_source_log(files, 3, written, 3, interval=3)
    assert files.names("spark/sources/3") == ["2.compact", "3"]
    files.write("spark/sources/3/1", "v1\n" + json.dumps(written[2]))
    assert source_entries(files, 3) == written
    assert files.read("spark/sources/3/3") == (
        'v1\n{"path":"file:///in/6.json","timestamp":11,"batchId":3}\n'
        '{"path":"file:///in/7.json","timestamp":12,"batchId":3}'
    )


def test_nothing_read_is_no_log(files: Store) -> None:
    write_source_log(files, 0, [entry(0, 0)], -1)
    assert not files.exists("spark/sources/0")


def test_a_log_with_a_hole_is_refused(files: Store) -> None:
    with refused("should reach id 3", "no files for 1, 3", kind=cj.CheckpointError):
        write_source_log(files, 0, [entry(0, 0), entry(1, 2)], 3)
    assert not files.exists()


def test_a_checkpoint_in_which_a_query_ran_is_left_alone(files: Store) -> None:
    files.write("spark/sources/0/1", "v1")
    with refused("spark/sources/0 holds 1, so a query has already run in it", kind=cj.CheckpointError):
        write_source_log(files, 0, [entry(0, 0)], 0)
    assert files.names("spark/sources/0") == ["1"]


def test_a_line_ends_where_spark_ends_it(tmp_path: Path) -> None:
    files, odd = LocalStore(str(tmp_path)), {**entry(0, 0), "path": "file:///in/a\x85b\u2028c.json"}
    write_source_log(files, 0, [odd, entry(1, 1)], 1)
    assert source_entries(files, 0) == [odd, entry(1, 1)]
    offset = json.dumps({"topic\x0b": "\u2029"}, ensure_ascii=False)
    files.write("spark/offsets/0", f'v1\n{{}}\n{offset}\n{{"logOffset":0}}\n')
    assert planned_lines(files, 0)[2:] == [offset, '{"logOffset":0}']


@pytest.mark.parametrize(
    ("text", "said"), [("v2", "is not in the form v1; got 'v2'"), ("", "got ''"), ("v1\n{}", "is not an entry")]
)
def test_a_log_of_another_form_is_refused(files: Store, text: str, said: str) -> None:
    files.write("spark/sources/0/0", text)
    with refused("spark/sources/0/0", said, kind=cj.CheckpointError):
        source_entries(files, 0)


def test_the_logged_time_of_a_batch_is_its_current_timestamp(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"trade_id": 1}')
    times: list[int] = []
    stream = spark.readStream.schema("trade_id long").json(f"{tmp_path}/in")
    timed = stream.selectExpr("unix_millis(current_timestamp()) AS now")
    writer = timed.writeStream.foreachBatch(lambda frame, _: times.extend(row.now for row in frame.collect()))
    writer.option("checkpointLocation", f"{tmp_path}/spark").trigger(availableNow=True).start().awaitTermination()
    assert times == [logged_time(LocalStore(str(tmp_path)), 0)]


def test_only_local_checkpoints_are_written_in_another_way_and_a_users_settings_stay(
    spark: SparkSession, tmp_path: Path
) -> None:
    local, elsewhere = LocalStore(str(tmp_path)), HadoopStore(spark, f"file:{tmp_path}")
    polling = "spark.sql.streaming.pollingDelay"
    assert stream_settings(spark, local).keys() == {FILE_MANAGER, polling}
    assert stream_settings(spark, elsewhere).keys() == {polling}
    try:
        spark.conf.set(FILE_MANAGER, "of.the.User")
        assert stream_settings(spark, local).keys() == {polling}
        spark.conf.set(polling, "5ms")
        assert stream_settings(spark, local) == {}
    finally:
        spark.conf.unset(FILE_MANAGER)
        spark.conf.unset(polling)


@pytest.fixture
def store(spark: SparkSession) -> Iterator[Store]:
    """Return a folder on an object store, in which nothing is written."""
    if not s3_jars():
        pytest.skip("the jars for s3a:// are those of Spark 4.2")
    configuration = spark._jsc.hadoopConfiguration()
    names = [f"fs.s3a.{each}" for each in ("access.key", "secret.key", "endpoint")]
    for name in names:
        configuration.set(name, "http://127.0.0.1:1")
    yield open_store(spark, "s3a://lake/checkpoint")
    for name in names:
        configuration.unset(name)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("FileSystemBased", "keeps the state of an earlier attempt where a batch or a task is repeated"),
        ("AbortableStreamBased", "continues where the store has refused a file"),
    ],
)
def test_a_class_that_may_lose_files_on_a_store_is_refused(
    spark: SparkSession, tmp_path: Path, store: Store, kind: str, reason: str
) -> None:
    name = f"org.apache.spark.{kind}CheckpointFileManager"
    told = "expected the class by which Spark writes a checkpoint on this store", reason, "unset it"
    check_file_manager(spark, store)
    with changed_settings(spark, {FILE_MANAGER: name}):
        check_file_manager(spark, LocalStore(str(tmp_path)))
        check_file_manager(spark, HadoopStore(spark, f"file:{tmp_path}"))
        with refused(*told):
            check_file_manager(spark, store)
    # Hadoop's configuration may choose it, too.
    configuration = spark._jsc.hadoopConfiguration()
    try:
        configuration.set(FILE_MANAGER, name)
        with refused(*told):
            check_file_manager(spark, store)
    finally:
        configuration.unset(FILE_MANAGER)


def test_a_store_on_which_spark_would_choose_such_a_class_is_refused(spark: SparkSession) -> None:
    files = HadoopStore(spark, "http://127.0.0.1:1/checkpoint")
    with refused(
        "Hadoop has no fs.AbstractFileSystem.http.impl, so Spark would write the checkpoint by its "
        "FileSystemBasedCheckpointFileManager, which keeps the state of an earlier attempt",
        "set spark.hadoop.fs.AbstractFileSystem.http.impl to its class",
    ):
        check_file_manager(spark, files)
