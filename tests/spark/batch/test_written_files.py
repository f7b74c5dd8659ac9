"""Outputs that the workers write themselves: what Spark and Delta read back, and when Spark writes after all."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import ArrayType, StructType, VariantType

import cojoin as cj
from benchmarks.join.contender import Job
from benchmarks.join.contenders.cojoin_joins import run as run_benchmark
from benchmarks.join.generate import Size
from benchmarks.join.generate import generate as make_benchmark_data
from benchmarks.join.oracle import find_faults
from benchmarks.join.result import result_files
from cojoin.engine.values.codec import write_messages
from cojoin.engine.values.types import parse_schema
from cojoin.session.arrow_types import arrow_schema, spark_schema
from cojoin.spark.batch.written_files import CallFiles, FileTarget, TargetFile, _Writer, can_be_written
from cojoin.spark.sinks.batch_marker import BatchMarker
from cojoin.spark.sinks.sink import OutputId
from cojoin.storage.object_store_settings import settings_of
from cojoin.storage.parquet_files import WrittenFile
from tests.servers.s3 import Refusal, S3Server
from tests.spark.data import connect, generate, rows, table
from tests.spark.saved import DRAIN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

KINDS = parse_schema("""
    id bigint NOT NULL, small smallint, tiny tinyint, whole int, amount double, rate float, ok boolean, name string,
    raw binary, day date, at timestamp, local timestamp_ntz, price decimal(20, 4), tags array<string>,
    counts map<string, bigint>, place struct<x: int, inner: struct<y: timestamp>>
""")
MOMENT = datetime(2026, 1, 15, 12, 30, 15, 123_456, tzinfo=timezone.utc)
ROW: dict[str, Any] = {
    "id": 1, "small": 2, "tiny": 3, "whole": 4, "amount": 1.5, "rate": 0.5, "ok": True, "name": "ä", "raw": b"\x00\xff",
    "day": date(2026, 1, 15), "at": MOMENT, "local": MOMENT.replace(tzinfo=None), "price": Decimal("12.3400"),
    "tags": ["a", None], "counts": [("k", 7)], "place": {"x": 1, "inner": {"y": MOMENT}},
}  # fmt: skip
NOTHING: dict[str, Any] = dict.fromkeys(KINDS.names) | {"id": 2}
NUMBERS = pa.schema([("id", pa.int64())])
OUTPUT = OutputId("a query", "output")


def batch(batch_id: int, rows: int, rows_digest: int = 0) -> BatchMarker:
    return BatchMarker(batch_id, rows, rows_digest, "offsets")


def written(target: FileTarget, content: pa.Table, kind: int = 1) -> list[WrittenFile]:
    """Have a task write a table; what is of another kind comes through."""
    payloads = [message.to_pybytes() for message in write_messages(content)]
    other = pa.record_batch({"kind": pa.array([0], pa.int8()), "payload": pa.array([b"{}"])})
    emitted = pa.record_batch(
        {"kind": pa.array([kind] * len(payloads), pa.int8()), "payload": pa.array(payloads, pa.binary())}
    )
    given = list(_Writer({kind: target})([other, emitted, other]))
    lines = [line for batch in given for line in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
    assert [line for line in lines if line[0] == 0] == [(0, b"{}")] * 2
    return [WrittenFile.read(line) for number, line in lines if number == kind]


def test_every_type_is_read_back_as_spark_writes_it(spark: SparkSession, tmp_path: Path) -> None:
    sink = cj.sinks.delta(f"{tmp_path}/out").open(spark, OUTPUT)
    content = pa.Table.from_pylist([ROW, NOTHING], schema=KINDS)
    target = sink.target(KINDS, 0)
    assert target is not None
    place = sink.commit(KINDS, written(target, content), batch(0, 2))
    assert (place["delta"], place["version"]) == (f"{tmp_path}/out", 0)
    by_spark = spark.createDataFrame(content, spark_schema(KINDS))
    by_spark.write.format("delta").save(f"{tmp_path}/by_spark")
    mine, theirs = (table(spark, tmp_path / name).orderBy("id") for name in ("out", "by_spark"))
    assert mine.schema == theirs.schema
    assert mine.collect() == theirs.collect()
    # A reader that passes over files by the statistics finds the rows all the same.
    assert mine.where("at >= timestamp'2026-01-15 12:30:15.123456Z' and price > 12.3 and name >= 'z'").count() == 1
    assert mine.where("at < timestamp'2026-01-15 12:30:15.123Z' or price < 12.3 or day < date'2026-01-15'").count() == 0
    # Further rows by Spark, and further files, go into the same table.
    sink.write(by_spark, batch(1, 2))
    target = sink.target(KINDS, 2)
    assert target is not None
    sink.commit(KINDS, written(target, content), batch(2, 2))
    assert table(spark, tmp_path / "out").count() == 6


def test_numbers_and_times_are_stored_as_differences_that_all_readers_know(spark: SparkSession, tmp_path: Path) -> None:
    many = [ROW | {"id": number, "small": number % 7, "name": f"n{number % 9}"} for number in range(0, 9_000, 3)]
    content = pa.Table.from_pylist([*many, NOTHING | {"id": -1}], schema=KINDS)
    target = FileTarget(f"{tmp_path}/out", KINDS)
    (file,) = written(target, content)
    place = f"{target.folder}/{file.name}"
    group = pq.read_metadata(place).row_group(0)
    encodings = {group.column(at).path_in_schema: group.column(at).encodings for at in range(group.num_columns)}
    packed = {name for name, found in encodings.items() if "DELTA_BINARY_PACKED" in found}
    assert packed == {"id", "small", "tiny", "whole", "day", "at", "local"}
    with_dictionary = {name for name, found in encodings.items() if "RLE_DICTIONARY" in found}
    nested = {"tags.list.element", "counts.key_value.key", "counts.key_value.value", "place.x", "place.inner.y"}
    assert with_dictionary == {"name", *nested}
    assert pq.read_table(place).cast(content.schema).equals(content)
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    flat = [name for name in KINDS.names if name not in ("tags", "counts", "place")]
    columns = ", ".join(f'"{name}"' for name in flat)
    by_duckdb = connection.sql(f"select {columns} from '{place}'").to_arrow_table()
    assert by_duckdb.cast(content.select(flat).schema).equals(content.select(flat))
    name = "spark.sql.parquet.enableVectorizedReader"
    for vectorized in ("true", "false"):
        spark.conf.set(name, vectorized)
        try:
            by_spark = spark.read.parquet(place).toArrow()
        finally:
            spark.conf.unset(name)
        assert by_spark.cast(content.schema).equals(content)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_readers_that_filter_find_nan_as_the_greatest_value(spark: SparkSession, tmp_path: Path, dtype: str) -> None:
    schema = parse_schema(f"id bigint, rate {dtype}, place struct<x: int, rate: {dtype}>")
    values = [math.nan, 1.0, -3.0, None]
    content = pa.Table.from_pylist(
        [{"id": at, "rate": each, "place": {"x": at, "rate": each}} for at, each in enumerate(values)], schema=schema
    )
    sink = cj.sinks.delta(f"{tmp_path}/out").open(spark, OUTPUT)
    target = sink.target(schema, 0)
    assert target is not None
    (file,) = files = written(target, content)
    sink.commit(schema, files, batch(0, 4))
    place = f"{tmp_path}/out/{file.name}"
    for column in ("rate", "place.rate"):
        for comparison in (">= 2", "> 1.0", "= cast('NaN' as double)"):
            condition = f"{column} {comparison}"
            by_duckdb = duckdb.sql(f"select id from '{place}' where {condition}")
            found = [table(spark, tmp_path / "out"), spark.read.parquet(place)]
            assert [rows(each.where(condition).select("id")) for each in found] == [[(0,)]] * 2, condition
            assert by_duckdb.fetchall() == [(0,)], condition
        assert rows(table(spark, tmp_path / "out").where(f"{column} < 2").select("id")) == [(1,), (2,)]


def test_files_that_are_committed_again_take_no_effect(spark: SparkSession, tmp_path: Path) -> None:
    for batch_id, number in ((0, 1), (1, 2), (1, 2)):
        sink = cj.sinks.delta(f"{tmp_path}/out").open(spark, OUTPUT)
        target = sink.target(NUMBERS, batch_id)
        assert target is not None
        sink.commit(NUMBERS, written(target, pa.table({"id": [number]})), batch(batch_id, 1, number))
    assert rows(table(spark, tmp_path / "out")) == [(1,), (2,)]
    history = spark.sql(f"describe history delta.`{tmp_path}/out`").orderBy("version").collect()
    assert [row.operation for row in history] == ["CREATE TABLE", "WRITE"]
    assert history[1].operationMetrics["numOutputRows"] == "1"


def test_a_changed_bit_is_seen_by_who_compares_checksums(tmp_path: Path) -> None:
    target = FileTarget(f"{tmp_path}/out", NUMBERS, "none")
    (file,) = written(target, pa.table({"id": range(10_000)}))
    path = tmp_path / "out" / file.name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match="checksum"):
        pq.read_table(path, page_checksum_verification=True)


def test_spark_writes_where_the_table_is_not_plain(spark: SparkSession, tmp_path: Path) -> None:
    def target(name: str, **options: Any) -> FileTarget | None:
        return cj.sinks.delta(f"{tmp_path}/{name}", **options).open(spark, OUTPUT).target(NUMBERS, 0)

    assert target("new") is not None
    assert target("new", partition_by="id") is None
    assert target("new", options={"mergeSchema": True}) is None
    for name, properties in (
        ("mapped", "'delta.columnMapping.mode' = 'name'"),
        ("compacted", "'delta.autoOptimize.autoCompact' = 'true'"),
        ("append", "'delta.appendOnly' = 'true', 'mine' = 'x'"),
    ):
        spark.sql(f"create table delta.`{tmp_path}/{name}` (id bigint) using delta tblproperties ({properties})")
    assert [target(name) is None for name in ("mapped", "compacted", "append")] == [True, True, False]
    spark.sql(f"create table delta.`{tmp_path}/never_null` (id bigint not null) using delta")
    spark.sql(f"create table delta.`{tmp_path}/wider` (id bigint, more string) using delta")
    assert [target(name) for name in ("never_null", "wider")] == [None, None]
    spark.conf.set("spark.databricks.delta.properties.defaults.columnMapping.mode", "name")
    try:
        assert target("another") is None
    finally:
        spark.conf.unset("spark.databricks.delta.properties.defaults.columnMapping.mode")
    for setting, value in (
        ("spark.sql.parquet.compression.codec", "lz4"),
        # Spark encrypts its files then.
        ("parquet.crypto.factory.class", "org.apache.parquet.crypto.keytools.PropertiesDrivenCryptoFactory"),
    ):
        spark.conf.set(setting, value)
        try:
            assert target("new") is None
            assert FileTarget.at(spark, f"{tmp_path}/files", NUMBERS) is None
        finally:
            spark.conf.unset(setting)
    configuration = spark._jsc.hadoopConfiguration()
    configuration.set("parquet.crypto.factory.class", "any")
    try:
        assert target("new") is None
    finally:
        configuration.unset("parquet.crypto.factory.class")
    assert target("new") is not None


def test_the_log_of_a_new_table_is_checkpointed_seldom_unless_somebody_said_otherwise(
    spark: SparkSession, tmp_path: Path
) -> None:
    def interval(name: str) -> str | None:
        sink = cj.sinks.delta(f"{tmp_path}/{name}").open(spark, OUTPUT)
        target = sink.target(NUMBERS, 0)
        assert target is not None
        sink.commit(NUMBERS, written(target, pa.table({"id": [7]})), batch(0, 1))
        (detail,) = spark.sql(f"describe detail delta.`{tmp_path}/{name}`").collect()
        given: str | None = detail.properties.get("delta.checkpointInterval")
        return given

    assert interval("new") == "100"
    spark.sql(f"create table delta.`{tmp_path}/there` (id bigint) using delta")
    assert interval("there") is None
    default = "spark.databricks.delta.properties.defaults.checkpointInterval"
    spark.conf.set(default, "25")
    try:
        assert interval("chosen") == "25"
    finally:
        spark.conf.unset(default)


@pytest.mark.slow
@pytest.mark.parametrize(("chosen", "holds_files"), [(None, False), ("true", True)])
def test_a_querys_commits_keep_checksums_small_unless_somebody_said_otherwise(
    spark: SparkSession, tmp_path: Path, chosen: str | None, *, holds_files: bool
) -> None:
    setting = "spark.databricks.delta.allFilesInCrc.enabled"
    before = spark.conf.get(setting)
    if chosen is None:
        spark.conf.unset(setting)
    else:
        spark.conf.set(setting, chosen)
    try:
        joined = connect(*generate(trades=4, customers=2).write(tmp_path, 1).sources()).asof_join(suffixes=("", "_c"))
        query = joined.start(
            output=cj.sinks.delta(f"{tmp_path}/out", partition_by="customer_id"),
            checkpoint=f"{tmp_path}/cp",
            trigger=DRAIN,
        )
        query.await_termination(progress=False)
        assert query.progress is not None
        assert query.progress.written_by_spark == {"output": "partition_by=['customer_id']"}
        assert spark.conf.get(setting, None) == chosen
    finally:
        spark.conf.set(setting, before)
    (checksum,) = Path(f"{tmp_path}/out/_delta_log").glob("0*.crc")
    assert ("allFiles" in json.loads(checksum.read_text())) is holds_files


def test_a_table_that_changed_meanwhile_is_not_written(spark: SparkSession, tmp_path: Path) -> None:
    sink = cj.sinks.delta(f"{tmp_path}/out").open(spark, OUTPUT)
    spark.range(1).write.format("delta").save(f"{tmp_path}/out")
    target = sink.target(NUMBERS, 0)
    assert target is not None
    files = written(target, pa.table({"id": [7]}))
    spark.sql(f"alter table delta.`{tmp_path}/out` add columns (more string)")
    with pytest.raises(
        cj.QueryFailedError,
        match="its columns were changed, or are not the query's: in the table alone: more string",
    ):
        sink.commit(NUMBERS, files, batch(0, 1))
    assert table(spark, tmp_path / "out").count() == 1
    assert sink.target(NUMBERS, 0) is None


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    target = FileTarget(f"{tmp_path}/out", NUMBERS)
    payloads = [*(message.to_pybytes() for message in write_messages(pa.table({"id": [1]}))), b"no message"]
    broken = pa.record_batch({"kind": pa.array([1] * len(payloads), pa.int8()), "payload": pa.array(payloads)})
    with pytest.raises((pa.ArrowException, OSError)):
        list(_Writer({1: target})([broken]))
    assert not list(Path(target.folder).iterdir())


def test_a_call_writes_many_rows_itself_and_leaves_few_to_the_task(tmp_path: Path) -> None:
    target = FileTarget(f"{tmp_path}/out", NUMBERS)
    files = CallFiles({1: target})
    many, few = (pa.table({"id": pa.array(range(count))}) for count in (50_000, 49_999))
    assert [files.take(1, many), files.take(1, few), files.take(2, many), files.take(1, many)] == [
        True,
        False,
        False,
        True,
    ]
    ((kind, line),) = files.complete()
    files.keep()
    files.remove()
    made = WrittenFile.read(line)
    assert (kind, made.rows) == (1, 100_000)
    assert pq.read_table(f"{target.folder}/{made.name}").equals(pa.concat_tables([many, many]))
    # The step that gathers what calls have left passes the lines of their files on.
    payloads = [line, *(message.to_pybytes() for message in write_messages(few)), b"{}"]
    kinds = pa.array([*([1] * (len(payloads) - 1)), 0], pa.int8())
    emitted = pa.record_batch({"kind": kinds, "payload": pa.array(payloads)})
    given = pa.Table.from_batches(list(_Writer({1: target})([emitted]))).to_pylist()
    assert [each["kind"] for each in given] == [1, 0, 1]
    assert [WrittenFile.read(given[at]["payload"]).rows for at in (0, 2)] == [100_000, 49_999]


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_call_that_fails_leaves_no_file(tmp_path: Path, *, is_complete: bool) -> None:
    files = CallFiles({1: FileTarget(str(tmp_path), NUMBERS)})
    assert files.take(1, pa.table({"id": pa.array(range(50_000))}))
    if is_complete:
        assert files.complete()
    files.remove()
    assert not list(tmp_path.iterdir())


def test_a_step_that_fails_removes_the_files_of_its_calls(tmp_path: Path) -> None:
    target = FileTarget(str(tmp_path), NUMBERS)
    files = CallFiles({1: target})
    assert files.take(1, pa.table({"id": pa.array(range(50_000))}))
    ((_, line),) = files.complete()
    payloads = pa.array([line, b"no message"])
    with pytest.raises((pa.ArrowException, OSError)):
        list(_Writer({1: target})([pa.record_batch({"kind": pa.array([1, 1], pa.int8()), "payload": payloads})]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("state", ["begun", "complete", "without a footer"])
def test_a_file_that_is_removed_leaves_no_part_on_a_store(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with S3Server("removed") as server:
        settings = settings_of(f"{server.root}/out", server.settings().get)
        schema = pa.schema([("raw", pa.binary())])
        file = TargetFile(FileTarget(f"{server.root}/out", schema, "none", settings))
        # An upload has parts from 10 MB on.
        file.add(pa.record_batch([pa.array([bytes([at]) * (1 << 20) for at in range(24)])], schema=schema))
        file._write_waiting()
        client = server.client()
        if state == "complete":
            file.close()
            assert [name for name, _ in server.objects()]
        elif state == "without a footer":

            def fail() -> None:
                file._writer.is_open = False
                raise OSError

            monkeypatch.setattr(file._writer, "close", fail)
        file.remove()
        assert not client.list_multipart_uploads(Bucket=server.bucket).get("Uploads")
        assert not [name for name, _ in server.objects()]


def test_an_upload_that_is_refused_says_what_to_do() -> None:
    with S3Server("refused") as server:
        settings, schema = settings_of(f"{server.root}/out", server.settings().get), pa.schema([("id", pa.int64())])
        server.refuses = lambda _method, _path: Refusal("400 Bad Request", "ExpiredToken", "The token has expired.")
        file = TargetFile(FileTarget(f"{server.root}/out", schema, "none", settings))
        file.add(pa.record_batch([pa.array([1])], schema=schema))
        with pytest.raises(cj.QueryFailedError) as caught:
            file.close()
        said = str(caught.value)
        assert said.startswith(f"{server.root}/out/part-")
        assert "ExpiredToken: The token has expired.; its credentials have expired: renew them" in said
        server.refuses = lambda _method, _path: None
        file.remove()


@pytest.mark.slow
def test_large_calls_and_small_ones_of_a_batch_give_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    size = Size(400_000, 20_000, 300, 2)
    make_benchmark_data(size, tmp_path / "data")
    job = Job("asof", "delta", tmp_path / "data", tmp_path)
    run_benchmark(spark, job)
    files = result_files(job.out, "delta")
    assert find_faults(job.data, files) == {}
    rows = sorted(pq.read_metadata(path).num_rows for path in files)
    assert sum(rows) == size.trades
    # Two tasks have eight calls, of which keys that trade much make some large.
    assert sum(count >= 50_000 for count in rows) >= 2
    assert len(rows) < 8 + 2


def test_many_rows_make_one_file_of_few_row_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr("cojoin.spark.batch.written_files._ROW_GROUP_ROWS", 100)
    pieces = [pa.table({"id": pa.array(range(start, start + 60))}) for start in range(0, 300, 60)]
    target = FileTarget(str(tmp_path), NUMBERS, "zstd")
    messages = [message.to_pybytes() for piece in pieces for message in write_messages(piece)]
    batch = pa.record_batch({"kind": pa.array([1] * 5, pa.int8()), "payload": pa.array(messages)})
    (line,) = [payload for given in _Writer({1: target})([batch]) for payload in given.column(1).to_pylist()]
    name = json.loads(line)["name"]
    metadata = pq.read_metadata(tmp_path / name)
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [100, 20, 100, 20, 60]
    assert pq.read_table(tmp_path / name).column("id").to_pylist() == list(range(300))
    assert name.endswith(".zstd.parquet")


def test_a_schema_of_ours_is_that_of_a_new_table(spark: SparkSession, tmp_path: Path) -> None:
    sink = cj.sinks.delta(f"{tmp_path}/out").open(spark, OUTPUT)
    target = sink.target(KINDS, 0)
    assert target is not None
    sink.commit(KINDS, written(target, pa.Table.from_pylist([ROW], schema=KINDS)), batch(0, 1))
    assert table(spark, tmp_path / "out").schema.names == spark_schema(KINDS).names
    assert all(field.nullable for field in table(spark, tmp_path / "out").schema)


def test_a_variant_is_left_to_spark_although_it_looks_like_bytes() -> None:
    for dtype in (VariantType(), ArrayType(VariantType())):
        assert not can_be_written(arrow_schema(StructType().add("v", dtype)))
