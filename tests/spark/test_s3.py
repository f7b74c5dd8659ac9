"""Queries on a real server of S3's protocol: their results, what they tell where it refuses, and what it never sees."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import uuid
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, transaction, write_deltalake

import cojoin as cj
from benchmarks.kills.leavings import compare, enriched, rejected, write_files
from cojoin.checkpoints.segment_files import FOLDER
from cojoin.delta.deltalake_table import address_of
from cojoin.session.session_adapter import FILE_MANAGER, changed_settings
from cojoin.session.sessions import open_store
from tests.seeds import drawn
from tests.servers.jars import s3_jars
from tests.servers.s3 import HANG_UP, SETTINGS, Refusal, S3Server
from tests.spark.data import Folders, Streams, asof, connect, generate, table
from tests.spark.saved import DRAIN, PAUSE, Saved, in_segments
from tests.spark.sources.test_changed_meanwhile import EXPECTED, FILES, ROWS, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DENIED = Refusal("403 Forbidden", "AccessDenied", "Access Denied")
EXPIRED = Refusal("400 Bad Request", "ExpiredToken", "The provided token has expired.")
SECRETS = tuple(SETTINGS[f"fs.s3a.{each}.key"].encode() for each in ("access", "secret"))


@pytest.fixture
def data(tmp_path: Path) -> tuple[Streams, Folders]:
    """Streams with trades that no query admits, as five files of each side."""
    streams, folders = generate(trades=120, customers=40), Folders(tmp_path / "data")
    write_files(streams, folders)
    return streams, folders


class Hidden:
    """Files of the inputs that a run does not see, until they are shown."""

    def __init__(self, folders: Folders, pattern: str) -> None:
        self._files = [(path, path.with_name(f".{path.name}")) for path in folders.root.glob(f"*/{pattern}.parquet")]
        for path, hidden in self._files:
            path.rename(hidden)

    def show(self) -> None:
        for path, hidden in self._files:
            hidden.rename(path)


def join_of(folders: Folders, files_a_batch: int = 1) -> cj.Joined:
    return asof(connect(*folders.sources(files_a_batch)))


def compact_and_vacuum(table: DeltaTable, spark: SparkSession, place: str) -> None:
    del spark, place
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)


CHANGES: dict[str, tuple[Callable[[DeltaTable, SparkSession, str], Any], str]] = {
    "vacuumed": (compact_and_vacuum, "left/.*parquet is gone, .*: VACUUM removes .*; put it back as it was, and start"),
    "overwritten": (
        lambda table, _spark, _place: write_deltalake(table, rows_of(90), mode="overwrite"),
        "version 4 of the Delta table .*left has updated or deleted rows, and a stream",
    ),
    # That of deltalake keeps Python's lock, which the server needs.
    "restored": (
        lambda _table, spark, place: spark.sql(f"restore table delta.`{place}` to version as of 0"),
        "version 4 of the Delta table .*left has deleted rows, and a stream",
    ),
}


@pytest.mark.slow  # Three runs over tables on an object store.
@pytest.mark.parametrize("change", drawn(CHANGES, 1))
def test_a_table_on_s3_that_changes_while_a_query_runs_is_named_and_nothing_is_lost(
    spark: SparkSession, bucket: S3Server, tmp_path: Path, change: str
) -> None:
    client, kept, seen = bucket.client(), dict[str, bytes](), dict[int, list[tuple[int, str]]]()
    for number, (name, more) in product(range(FILES), (("left", {}), ("right", {"tier": ["gold"] * ROWS}))):
        place = address_of(open_store(spark, f"{bucket.root}/{name}"))
        assert place is not None
        options = dict(place.options)
        write_deltalake(place.url, rows_of(number, **more), mode="append", storage_options=options)
    left = partial(DeltaTable, place.url.replace("right", "left"), storage_options=options)

    def keep(frame: Any, batch_id: int) -> None:
        if batch_id == 1 and not kept:
            kept.update(each for each in bucket.objects() if each[0].startswith("left/"))
            CHANGES[change][0](left(), spark, f"{bucket.root}/left")
        seen[batch_id] = [(row.id, row.tier) for row in frame.collect()]

    def run(*triggers: cj.Trigger) -> None:
        for trigger in triggers:
            inputs = [
                cj.Input(cj.sources.delta(f"{bucket.root}/{name}", options={"maxFilesPerTrigger": 1}), "id", "at", name)
                for name in ("left", "right")
            ]
            joined = cj.connect(*inputs, key_groups=2).asof_join(suffixes=("", "_right"))
            assert [each.reading for each in joined.plan.inputs] == ["direct", "direct"]
            joined.start(output=keep, checkpoint=f"{tmp_path}/checkpoint", trigger=trigger).await_termination()

    # What is committed while a run over the present rows goes on is read by the next one.
    with pytest.raises(cj.CojoinError, match=CHANGES[change][1]):
        run(PAUSE, PAUSE)
    for name in [each for each, _ in bucket.objects() if each.startswith("left/")]:
        client.delete_object(Bucket=bucket.bucket, Key=name)
    for name, content in kept.items():
        client.put_object(Bucket=bucket.bucket, Key=name, Body=content)
    run(DRAIN)
    assert sorted(row for rows in seen.values() for row in rows) == EXPECTED


def faults(spark: SparkSession, streams: Streams, *queries: Saved) -> list[str]:
    """Return how the rows of queries that continue each other differ from what they must be."""
    out = [row for each in queries for row in enriched(spark, f"{each.folder}/out")]
    dead = [row for each in queries for row in rejected(spark, f"{each.checkpoint}/rejected")]
    return compare(streams, "all", out, dead)


@pytest.mark.slow  # A query on an object store.
def test_tables_on_s3_are_read_by_the_workers(
    spark: SparkSession, bucket: S3Server, capfd: pytest.CaptureFixture[str]
) -> None:
    times = pa.array([1_000_000, 2_000_000, 3_000_000], pa.timestamp("us", "UTC"))
    for name, column, by in (
        ("trades", {"trade_id": [1, 2, 3]}, ["customer_id"]),
        ("customers", {"tier": ["gold", None, "tin"]}, None),
    ):
        address = address_of(open_store(spark, f"{bucket.root}/{name}"))
        assert address is not None
        rows = pa.table({"customer_id": [1, 2, 3], "event_time": times, **column})
        write_deltalake(address.url, rows, storage_options=dict(address.options), partition_by=by)
    table = f"delta.`{bucket.root}/customers`"
    spark.sql(f"alter table {table} set tblproperties ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"delete from {table} where customer_id = 3")
    assert any("deletion_vector" in name for name, _ in bucket.objects())
    inputs = [
        cj.Input(cj.sources.delta(f"{bucket.root}/{name}"), "customer_id", "event_time", name=name)
        for name in ("trades", "customers")
    ]
    joined = cj.connect(*inputs, key_groups=2).asof_join(suffixes=("", "_customer"))
    assert [each.reading for each in joined.plan.inputs] == ["direct", "direct"]
    query = joined.start(
        output=cj.sinks.delta(f"{bucket.root}/out"), checkpoint=f"{bucket.root}/checkpoint", trigger=DRAIN
    )
    query.await_termination(progress=False)
    rows = spark.read.format("delta").load(f"{bucket.root}/out").orderBy("trade_id").select("trade_id", "tier")
    assert [tuple(each) for each in rows.collect()] == [(1, "gold"), (2, None), (3, None)]
    said = "".join(capfd.readouterr())
    assert not [each for each in SECRETS if each.decode() in said]


@pytest.mark.slow  # Two queries on an object store, of 400 requests a batch.
def test_a_join_on_s3_goes_on_in_other_key_groups(
    spark: SparkSession,
    bucket: S3Server,
    data: tuple[Streams, Folders],
    shuffle_partitions: Callable[[int], None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    streams, folders = data
    shuffle_partitions(2)
    old = Saved(spark, f"{bucket.root}/old query", folders, key_groups=3)
    query = old.start(in_segments(asof(connect(*folders.sources(2), key_groups=3))))
    query.await_termination(progress=False)
    assert old.files.names(FOLDER)
    new = Saved(spark, f"{bucket.root}/new query", folders, key_groups=2)
    new.run(in_segments(new.join()), trigger=DRAIN, restore_from=cj.Snapshot(old.checkpoint))
    assert not faults(spark, streams, old, new)
    new.assert_conserved()
    # Nothing that lies there, or that was said, has the credentials with which it was written.
    held = {name for name, content in bucket.objects() if any(each in content for each in SECRETS)}
    said = "".join(capfd.readouterr())
    assert not held
    assert not [each for each in SECRETS if each.decode() in said]


@pytest.mark.slow
def test_a_store_that_refuses_is_told_at_the_start(
    spark: SparkSession, bucket: S3Server, data: tuple[Streams, Folders], tmp_path: Path
) -> None:
    _, folders = data

    def refused(**places: object) -> str:
        given = {"checkpoint": f"{tmp_path}/checkpoint", "output": cj.sinks.delta(f"{tmp_path}/out"), **places}
        started = time.monotonic()
        with pytest.raises(cj.CojoinError) as caught:
            asof(connect(*folders.sources())).start(trigger=DRAIN, **given)
        assert time.monotonic() - started < 60
        text = str(caught.value)
        assert "\n" not in text
        assert not [each for each in SECRETS if each.decode() in text]
        assert not (tmp_path / "out").exists()
        return text

    bucket.refuses = lambda _method, _path: DENIED
    assert "give the session's credentials the right to" in refused(checkpoint=f"{bucket.root}/checkpoint")
    assert "give the session's credentials the right to" in refused(output=cj.sinks.delta(f"{bucket.root}/out"))
    bucket.refuses = lambda _method, _path: EXPIRED
    assert "its credentials have expired: renew them" in refused(checkpoint=f"{bucket.root}/checkpoint")
    bucket.refuses = lambda _method, _path: None
    bucket.ignores_conditions = True
    assert "does not honour conditional writes" in refused(checkpoint=f"{bucket.root}/checkpoint")
    said = refused(output=cj.sinks.delta(f"{bucket.root}/out"))
    assert said.startswith(f"output: Delta table {bucket.root}/out: its store does not honour conditional writes")
    bucket.ignores_conditions = False
    with changed_settings(spark, {FILE_MANAGER: "org.example.FileSystemBasedCheckpointFileManager"}):
        assert "keeps the state of an earlier attempt" in refused(checkpoint=f"{bucket.root}/checkpoint")
    spark._jsc.hadoopConfiguration().set("fs.s3.impl", "org.apache.hadoop.fs.s3a.S3AFileSystem")
    try:
        assert "write the place as s3a://" in refused(checkpoint=f"s3://{bucket.bucket}/checkpoint")
    finally:
        spark._jsc.hadoopConfiguration().unset("fs.s3.impl")
    assert list(bucket.objects()) == []
    configuration, nobody = spark._jsc.hadoopConfiguration(), f"{bucket.bucket}-nobody"
    for name, value in bucket.settings().items():
        configuration.set(name.replace(bucket.bucket, nobody), value)
    assert "make the bucket, or correct its name" in refused(checkpoint=f"s3a://{nobody}/checkpoint")
    configuration.set(f"fs.s3a.bucket.{nobody}.endpoint", "http://127.0.0.1:1")
    assert "see that the store runs, and that this machine reaches it" in refused(
        checkpoint=f"s3a://{nobody}/checkpoint"
    )


@pytest.mark.slow  # Two queries more on an object store.
@pytest.mark.parametrize("on_s3", ["checkpoint", "output"])
def test_a_checkpoint_and_its_output_may_be_on_two_stores(
    spark: SparkSession, bucket: S3Server, data: tuple[Streams, Folders], tmp_path: Path, on_s3: str
) -> None:
    streams, folders = data
    checkpoint, output = (str(tmp_path), bucket.root) if on_s3 == "output" else (bucket.root, str(tmp_path))
    saved = Saved(spark, checkpoint, folders)
    saved.run(trigger=DRAIN, output=cj.sinks.delta(f"{output}/out"))
    out, dead = enriched(spark, f"{output}/out"), rejected(spark, f"{saved.checkpoint}/rejected")
    assert not compare(streams, on_s3, out, dead)


@pytest.mark.slow  # Two runs on an object store, by Spark's own writer.
def test_a_query_by_hadoop_is_written_by_spark_and_goes_on(
    spark: SparkSession, bucket: S3Server, data: tuple[Streams, Folders]
) -> None:
    streams, folders = data
    saved, hidden = Saved(spark, f"{bucket.root}/query", folders), Hidden(folders, "0000[8-9]*")
    written = ("output", "rejected", "checkpoint/state", "checkpoint/progress")
    with changed_settings(spark, {"spark.cojoin.storage": "hadoop"}):
        first = saved.run(join_of(folders, 2))
        hidden.show()
        last = saved.run(join_of(folders, 2), trigger=DRAIN)
        for query in (first, last):
            assert query.progress is not None
            assert query.progress.written_by_spark == dict.fromkeys(written, "only Hadoop's file systems reach it")
        saved.assert_conserved()
        assert not faults(spark, streams, saved)
        progress = table(spark, f"{saved.checkpoint}/progress").select("batch_id")
        batches = [row.batch_id for row in progress.collect()]
    assert last.progress is not None
    assert len(batches) == len(set(batches))
    assert max(batches) == last.progress.batch_id
    # Nothing but Spark has committed.
    infos = [content for name, content in bucket.objects() if "/_delta_log/" in name and name.endswith(".json")]
    assert {name.partition("/_delta_log/")[0] for name, _ in bucket.objects() if "_delta_log" in name} == {
        "query/checkpoint/progress",
        "query/checkpoint/rejected",
        "query/checkpoint/state",
        "query/out",
    }
    assert all(b'"engineInfo":"Apache-Spark' in each for each in infos)


THEIRS = b'{"txn":{"appId":"theirs","version":1}}\n'


def of_another_table(commit: bytes) -> bytes:
    """Return what another writer would commit that has made the same table: a first commit with another table's id."""
    actions = [json.loads(line) for line in commit.splitlines()]
    kept = [each for each in actions if {"protocol", "metaData"} & each.keys()]
    for each in kept:
        if "metaData" in each:
            each["metaData"]["id"] = str(uuid.uuid4())
    return b"".join(json.dumps(each).encode() + b"\n" for each in kept)


@pytest.mark.slow  # Two runs on an object store, the first of which fails.
@pytest.mark.parametrize(("folder", "version"), [("out", 0), ("out", 1), ("checkpoint/state", 1)])
def test_a_commit_that_another_writer_overwrites_is_made_again_by_the_next_start(
    spark: SparkSession,
    bucket: S3Server,
    data: tuple[Streams, Folders],
    monkeypatch: pytest.MonkeyPatch,
    folder: str,
    version: int,
) -> None:
    streams, folders = data
    saved, client = Saved(spark, f"{bucket.root}/query", folders), bucket.client()
    name, made = f"query/{folder}/_delta_log/{version:020d}.json", list[bytes]()

    def followed(commit: Callable[..., None]) -> Callable[..., None]:
        """Return the commit, after which another writer puts its own in the place of a version, as Spark's may."""

        def both(*arguments: Any, **options: Any) -> None:
            commit(*arguments, **options)
            if not made and any(each == name for each, _ in bucket.objects()):
                made.append(client.get_object(Bucket=bucket.bucket, Key=name)["Body"].read())
                client.put_object(Bucket=bucket.bucket, Key=name, Body=of_another_table(made[0]) + THEIRS)

        return both

    monkeypatch.setattr(DeltaTable, "create_write_transaction", followed(DeltaTable.create_write_transaction))
    creation = followed(transaction.create_table_with_add_actions)
    monkeypatch.setattr(transaction, "create_table_with_add_actions", creation)
    with pytest.raises(cj.QueryFailedError) as caught:
        saved.run(join_of(folders, 2), trigger=DRAIN)
    text = str(caught.value)
    lost = (
        f"Delta table {saved.folder}/{folder}: the commit of version {version} was made and is that of another writer"
    )
    assert lost in text
    assert "let only one of them write at a time, and start the query again" in text
    assert made
    saved.run(join_of(folders, 2), trigger=DRAIN)
    assert not faults(spark, streams, saved)
    saved.assert_conserved()
    assert dict(bucket.objects())[name].endswith(THEIRS)


@pytest.mark.slow  # It is stopped at several moments of a run, on an object store.
@pytest.mark.parametrize("refusal", drawn([EXPIRED, DENIED], 1), ids=["expired", "denied"])
def test_credentials_that_expire_during_a_run_lose_nothing(
    spark: SparkSession,
    bucket: S3Server,
    data: tuple[Streams, Folders],
    refusal: Refusal,
    capfd: pytest.CaptureFixture[str],
) -> None:
    errors = interrupted(spark, bucket, data, refusal)
    said = "".join(capfd.readouterr())
    for error in errors:
        # Java's client tells of a refused HEAD request, whose answer has no text, only by its number.
        told = refusal.code, refusal.status, f"Status Code: {refusal.status.partition(' ')[0]}"
        assert any(each in error for each in told), error
        assert any(each in error for each in ("renew", "the right to", "have not expired, and may list")), error
        assert not [each for each in SECRETS if each.decode() in error + said]


@pytest.mark.slow  # As above.
def test_a_store_that_goes_away_during_a_run_loses_nothing(
    spark: SparkSession, bucket: S3Server, data: tuple[Streams, Folders]
) -> None:
    # By its defaults Hadoop tries each request for two minutes and a half.
    for name, value in {"retry.limit": "1", "retry.interval": "50ms", "attempts.maximum": "1"}.items():
        spark._jsc.hadoopConfiguration().set(f"fs.s3a.bucket.{bucket.bucket}.{name}", value)
    for error in interrupted(spark, bucket, data, HANG_UP):
        assert "see that the store runs, and that this machine reaches it by the endpoint" in error, error
        assert "start the query again, which continues where it stopped" in error, error


def interrupted(spark: SparkSession, bucket: S3Server, data: tuple[Streams, Folders], refusal: Refusal) -> list[str]:
    """Run a query that the store refuses at several moments to its end, check its rows, and return its errors."""
    streams, folders = data
    saved, errors = Saved(spark, f"{bucket.root}/query", folders), list[str]()
    for more in (150, 500, 900):
        last = bucket.requests.total() + more
        bucket.refuses = lambda _method, _path, last=last: refusal if bucket.requests.total() > last else None
        try:
            saved.run(trigger=DRAIN)
        except cj.CojoinError as error:
            errors.append(str(error))
        bucket.refuses = lambda _method, _path: None
    if not any(each.report.drained for each in [saved.manifests.last()] if each is not None):
        saved.run(trigger=DRAIN)
    assert not faults(spark, streams, saved)
    assert errors
    return errors


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte and a half."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run(
            [mount, "-t", "tmpfs", "-o", "size=1536k", "tmpfs", str(place)], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("this user may not mount a disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow  # Two runs, the first of which fails.
def test_a_disk_that_is_full_loses_nothing(
    spark: SparkSession, small_disk: Path, data: tuple[Streams, Folders]
) -> None:
    streams, folders = data
    saved, errors = Saved(spark, small_disk, folders), list[str]()
    for free in (100_000, 200_000, 400_000):
        ballast = small_disk / "ballast"
        used = shutil.disk_usage(small_disk)
        ballast.write_bytes(b"0" * max(0, used.free - free))
        try:
            saved.run(trigger=DRAIN)
            break
        except cj.CojoinError as error:
            errors.append(str(error))
        finally:
            ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    last = saved.manifests.last()
    if last is None or not last.report.drained:
        saved.run(trigger=DRAIN)
    assert not faults(spark, streams, saved)
    assert errors
    assert all("No space left on device" in each for each in errors), errors


@pytest.mark.slow  # A session of another process, whose settings can't be changed.
def test_no_text_of_spark_has_the_credentials(data: tuple[Streams, Folders], tmp_path: Path) -> None:
    if not s3_jars():
        pytest.skip("the jars for s3a:// are those of Spark 4.2")
    assert data[1].root == tmp_path / "data"
    with S3Server(f"bucket-{uuid.uuid4().hex}") as server:
        program = [sys.executable, "-m", "tests.spark.logged_query", str(tmp_path), server.endpoint, server.root]
        done = subprocess.run(program, check=False, capture_output=True)
        assert not done.returncode, done.stderr[-4000:]
        stored = dict(server.objects())
    logs = {path.name: path.read_bytes() for path in (tmp_path / "events").rglob("*") if path.is_file()}
    # The log has what Spark shows of a session and of each query's plan.
    assert any(b"fs.s3a.secret.key" in each and b"SparkListenerSQLExecutionStart" in each for each in logs.values())
    assert b"== Analyzed Logical Plan ==" in done.stdout
    assert any(name.startswith("query/checkpoint/") for name in stored)
    texts = {"printed": done.stdout, "logged": done.stderr, **logs, **stored}
    signs = (*SECRETS, b"X-Amz-Signature", b"X-Amz-Credential", b"AWSAccessKeyId")
    assert not {name: sign for name, text in texts.items() for sign in signs if sign in text}
