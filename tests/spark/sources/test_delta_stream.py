"""Tables that cojoin's own source reads: the rows and positions of Delta's own, and who reads a table."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from cojoin.delta.actions import DataFile
from cojoin.delta.table_log import TableLog, commit_name
from cojoin.delta.table_stream import Columns, Limits, Position, StreamFile
from cojoin.engine.row_changes import DELETES
from cojoin.session.arrow_types import arrow_schema
from cojoin.spark.batch.direct_reader import DirectReader
from cojoin.spark.batch.packing import Grouping
from cojoin.spark.batch.parquet_rows import RANGES
from cojoin.spark.bound_input import BoundInput
from cojoin.spark.sources import delta_reader, delta_stream
from cojoin.storage.local_store import LocalStore
from tests.delta.tables import commit, features
from tests.delta.test_table_stream import batches, ids, stream_of
from tests.seeds import SEED, drawn
from tests.spark.data import asof, connect, generate
from tests.spark.query.test_input_progress import Lake
from tests.spark.refused import refused
from tests.spark.sources.changed_tables import HAS_LIMITS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

AT = pa.timestamp("us", "UTC")


def rows_of(*keys: int, **more: Any) -> pa.Table:
    return pa.table({"id": list(keys), "at": pa.array([1_000_000 * each for each in keys], AT), **more})


@pytest.mark.spark
def test_batches_and_positions_are_those_of_deltas_own_source(spark: SparkSession, tmp_path: Path) -> None:
    draws, folder, written = random.Random(SEED), tmp_path / "table", 0
    limit, begin, seen, number = draws.choice([1, 2, 3, 1_000]), None, list[list[int]](), 0

    def keep(frame: Any, batch_id: int) -> None:
        del batch_id
        seen.append(sorted(row.id for row in frame.select("id").collect()))

    for _ in range(3):
        for _ in range(draws.randrange(1, 5)):
            kind = draws.choice(["append", "append", "optimize", "property"]) if written else "append"
            if kind == "append":
                write_deltalake(str(folder), rows_of(*range(written, written + 3)), mode="append")
                written += 3
            elif kind == "optimize":
                DeltaTable(str(folder)).optimize.compact()
            else:
                DeltaTable(str(folder)).alter.set_table_properties({"delta.checkpointInterval": "50"})
        stream = spark.readStream.format("delta").option("maxFilesPerTrigger", limit).load(str(folder))
        writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", f"{tmp_path}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
        begin = stream_of(folder).first() if begin is None else begin
        ours = batches(folder, begin, Limits(limit))
        theirs = []
        while (log := tmp_path / "checkpoint" / "offsets" / str(number)).exists():
            theirs.append(Position.of(json.loads(log.read_text().splitlines()[-1])))
            number += 1
        assert theirs == [end for end, _ in ours]
        assert seen[len(seen) - len(ours) :] == [sorted(ids(folder, paths)) for _, paths in ours]
        begin = ours[-1][0] if ours else begin


@pytest.mark.spark
def test_a_snapshot_of_files_of_one_moment_is_read_in_the_order_of_deltas_own_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, seen = tmp_path / "table", list[int]()
    names = ["p=a|b", "p=ab", "p=a b", "p=a-b", "p=a%7Cb", "p=ä", "p=a{b", "p=a", "p=A"]
    write_deltalake(str(folder), rows_of(*range(len(names)), p=names), partition_by=["p"])
    log = folder / commit_name(0)
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for add, name in zip((each["add"] for each in actions if "add" in each), names, strict=True):
        # Spark's folders have such names, deltalake's have not.
        (folder / name).mkdir()
        (folder / unquote(add["path"])).rename(folder / name / "0.parquet")
        add |= {"path": quote(f"{name}/0.parquet", safe="/="), "modificationTime": 1}
    log.write_text("".join(f"{json.dumps(each)}\n" for each in actions))

    def keep(frame: Any, batch_id: int) -> None:
        del batch_id
        seen.extend(row.id for row in frame.select("id").collect())

    stream = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(folder))
    writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", f"{tmp_path}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    ours = batches(folder, stream_of(folder).first(), Limits(1))
    assert [ids(folder, paths) for _, paths in ours] == [[each] for each in seen]
    assert sorted(seen) == list(range(len(names)))


@HAS_LIMITS
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["plain", "partitions", "deletion vectors"])
def test_a_checkpoint_goes_on_with_either_reader(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    """``test_delta_changes`` has the same of a change feed."""
    lake, read_by = Lake(spark, generate(keys=3, seed=SEED % 1_000), tmp_path), []
    lake.partition_by = ["customer_id"] if layout == "partitions" else []
    for name in ("trades", "customers"):
        lake.write(name, 4 if layout == "partitions" else 10, np.random.default_rng(SEED))
        if layout == "deletion vectors":
            table = f"delta.`{tmp_path}/{name}`"
            spark.sql(f"alter table {table} set tblproperties ('delta.enableDeletionVectors' = 'true')")
            spark.sql(f"delete from {table} where position % 5 = 2")
            rows = getattr(lake.streams, name)
            setattr(lake.streams, name, rows[rows.position % 5 != 2])
        log = TableLog(LocalStore(f"{tmp_path}/{name}"))
        files = log.files(log.versions()[-1])
        assert len(files) >= 8
        assert all(bool(each.deletion_vector) == (layout == "deletion vectors") for each in files)
    for reader in ("direct", "spark", "direct", "spark", "direct"):
        query, batches_seen = list[cj.Query](), list[Any]()

        def stop_after_two(report: Any, seen: list[Any] = batches_seen, query: list[cj.Query] = query) -> None:
            seen.append(report)
            if len(seen) == 2 and len(read_by) < 4:
                query[0].stop()

        spark.conf.set("spark.cojoin.delta", reader)
        try:
            pair = connect(*lake.sources(1, 1), key_groups=2)
        finally:
            spark.conf.unset("spark.cojoin.delta")
        query.append(
            asof(pair).start(
                output=cj.sinks.delta(f"{tmp_path}/out"),
                checkpoint=f"{tmp_path}/checkpoint",
                trigger=cj.Trigger.available_now(drain=True),
                on_progress=stop_after_two,
            )
        )
        query[0].await_termination()
        # The first batch may have been planned by the reader before.
        read_by.append({each.reading for each in batches_seen[-1].inputs})
    assert read_by == [{"direct"}, {"spark.cojoin.delta is spark"}] * 2 + [{"direct"}]
    assert lake.rows() == lake.streams.enriched()


@HAS_LIMITS
@pytest.mark.spark
def test_a_partitioned_table_is_read_with_its_values(spark: SparkSession, tmp_path: Path) -> None:
    days = pa.array(["2026-01-15", "2026-01-16", None]).cast(pa.date32())
    tables = {
        "left": rows_of(1, 2, 3, day=days, **{"a b": ["x y", "%", "ä=1"]}),
        "right": rows_of(1, 2, 3, tier=["gold", None, "tin"]),
    }
    write_deltalake(f"{tmp_path}/left", tables["left"], partition_by=["day", "a b"])
    write_deltalake(f"{tmp_path}/right", tables["right"])
    inputs = [cj.Input(cj.sources.delta(f"{tmp_path}/{name}"), "id", "at", name=name) for name in tables]
    joined = cj.connect(*inputs, key_groups=2).asof_join(suffixes=("", "_right"))
    assert [each.reading for each in joined.plan.inputs] == ["direct", "direct"]
    query = joined.start(
        output=cj.sinks.delta(f"{tmp_path}/out"),
        checkpoint=f"{tmp_path}/checkpoint",
        trigger=cj.Trigger.available_now(drain=True),
    )
    query.await_termination()
    out = pa.table(DeltaTable(f"{tmp_path}/out").to_pyarrow_table()).sort_by("id")
    assert out.select(["id", "day", "a b", "tier"]).to_pylist() == [
        {"id": each["id"], "day": each["day"], "a b": each["a b"], "tier": tier}
        for each, tier in zip(tables["left"].to_pylist(), ["gold", None, "tin"], strict=True)
    ]


@HAS_LIMITS
@pytest.mark.spark
def test_a_table_that_changes_between_the_check_of_its_columns_and_the_stream_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, source = tmp_path / "table", cj.sources.delta(f"{tmp_path}/table")
    part = pa.array([{"tags": ["x"], "n": 1}])
    write_deltalake(str(folder), rows_of(1, part=part), mode="append")
    schema = BoundInput(cj.Input(source, "id", "at"), "left", 1).spec.source_schema
    assert delta_stream.open_ranges(spark, source, schema).stored == schema
    commit(folder, 1, {"protocol": features("typeWidening", reader=["typeWidening"])})
    with refused(f"delta {folder}: by version 1 ", "only Delta's own source reads (its feature 'typeWidening')"):
        delta_stream.open_ranges(spark, source, schema)
    commit(folder, 1, {"commitInfo": {}})
    for version, changed in enumerate((rows_of(1, part=["x"]), rows_of(1, renamed=part), rows_of(1)), 2):
        write_deltalake(str(folder), changed, mode="overwrite", schema_mode="overwrite")
        with refused(
            f"delta {folder}: the columns of a table ", f"have changed by version {version} since", "make the"
        ):
            delta_stream.open_ranges(spark, source, schema)


@HAS_LIMITS
@pytest.mark.spark
def test_who_reads_a_table_is_told_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    plain, mapped, nested, widened = (f"{tmp_path}/{name}" for name in ("plain", "mapped", "nested", "widened"))
    write_deltalake(plain, rows_of(1))
    write_deltalake(nested, rows_of(1, tags=[[["a"]]]))
    one = spark.createDataFrame(rows_of(*range(10)).to_pandas()).coalesce(1)
    one.write.format("delta").option("delta.columnMapping.mode", "id").save(mapped)
    one.write.format("delta").option("delta.enableTypeWidening", "true").save(widened)

    def reading(source: Any, event_time: Any = "at") -> str | None:
        inputs = [cj.Input(each, "id", time) for each, time in ((source, event_time), (cj.sources.delta(plain), "at"))]
        left, right = cj.connect(*inputs).asof_join(suffixes=("", "_right")).plan.inputs
        assert right.reading == "direct"
        return left.reading

    assert reading(cj.sources.delta(plain, options={"maxBytesPerTrigger": "10m", "startingVersion": 0})) == "direct"
    assert reading(cj.sources.delta(plain, options={"failOnDataLoss": "false"})) == "it has the option failOnDataLoss"
    assert reading(cj.sources.delta(plain), F.col("at").alias("later")) == "its event time is an expression"
    assert reading(cj.sources.delta(mapped)) == "its column mapping by id"
    assert reading(cj.sources.delta(widened)) == "its feature 'typeWidening'"
    assert reading(cj.sources.delta(nested)) == "direct"
    assert reading(spark.readStream.format("delta").load(plain)) is None
    write_deltalake(f"{tmp_path}/dotted", rows_of(1, **{"a.b": [1]}))
    assert reading(cj.sources.delta(f"{tmp_path}/dotted")) == "its column is named 'a.b'"
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        bound = BoundInput(cj.Input(cj.sources.delta(plain), "id", "at"), "left", 1)
        assert bound.spec.reading == "spark.sql.files.ignoreMissingFiles is true"
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def packed_rows(bound: BoundInput, files: list[StreamFile], reading: delta_reader.TableReading) -> list[dict[str, Any]]:
    """Return the rows that tasks read of some files, in the order of their ids."""
    found = task_rows(delta_reader.ranges_of(reading, files), bound.spec.source_schema, reading.columns)
    return sorted(found, key=lambda row: row["id"])


def task_rows(
    tasks: Sequence[Any], schema: pa.Schema, columns: Columns, *, is_feed: bool = False
) -> list[dict[str, Any]]:
    stored, grouping, found = delta_stream.stored_schema(columns, schema), Grouping(schema, ("id",), 4), list[Any]()
    reader = DirectReader("input", None, grouping, {}, "a setting", stored, is_feed=is_feed)
    for task in tasks:
        for rows in reader([pa.RecordBatch.from_pylist(task.value, RANGES)]):
            found += pa.table(rows.columns[: len(schema)], schema=schema).to_pylist()
    return found


@HAS_LIMITS
@pytest.mark.spark
def test_mapped_columns_deleted_rows_and_nested_values_are_read_as_deltas_own_source_does(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws, written, folder = random.Random(SEED), 0, f"{tmp_path}/a table"
    monkeypatch.setattr(delta_reader, "_LEAST_BYTES", 500)
    renamed = list[str]()

    def append(count: int) -> None:
        nonlocal written
        rows = spark.range(written, written + count, 1, draws.randrange(1, 4)).selectExpr(
            "id",
            "timestamp_micros(id) as at",
            f"array(string(id), null) as `{'the tags' if renamed else 'tags'}`",
            "named_struct('Tier', string(id % 3), 'of', map('k', named_struct('at', timestamp_seconds(id)))) as part",
            "date_add(date'2026-01-15', int(id % 2)) as `a day`",
        )
        properties = {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}
        writer = rows.write.format("delta").mode("append").partitionBy("a day")
        (writer if written else writer.options(**properties)).save(folder)
        written += count

    for _ in range(draws.randrange(3, 7)):
        kind = draws.choice(["append", "append", "delete", "rename", "optimize"]) if written else "append"
        if kind == "append":
            append(draws.randrange(1, 200))
        elif kind == "delete":
            spark.sql(f"delete from delta.`{folder}` where id % {draws.randrange(2, 30)} = 0")
        elif kind == "rename" and not renamed:
            renamed.append("tags")
            spark.sql(f"alter table delta.`{folder}` rename column tags to `the tags`")
        elif kind == "optimize":
            spark.sql(f"optimize delta.`{folder}`")
    append(50)
    spark.sql(f"delete from delta.`{folder}` where id % 7 = 3")
    bound = BoundInput(cj.Input(cj.sources.delta(folder), "id", "at"), "left", 1)
    assert bound.spec.reading == "direct"
    opened = delta_stream.open_table(spark, cj.sources.delta(folder))
    columns, snapshot = Columns.of(opened.version.metadata), opened.version.version
    reading = delta_reader.TableReading(
        opened.store.root, None, opened.version.table_id, columns, tasks=draws.randrange(1, 9)
    )
    stream = reading.stream()
    first = stream.first()
    end = stream.next(first, snapshot, Limits(None))
    expected = [row.asDict(recursive=True) for row in spark.read.format("delta").load(folder).sort("id").collect()]
    found = packed_rows(bound, stream.files(first, end), reading)
    assert [plain(row) for row in found] == [plain(row) for row in expected]
    append(20)
    later = stream.next(end, snapshot + 1, Limits(None))
    assert [row["id"] for row in packed_rows(bound, stream.files(end, later), reading)] == [
        *range(written - 20, written)
    ]
    # A column that is dropped is not null in silence from then on.
    spark.sql(f"alter table delta.`{folder}` drop column `part`")
    with pytest.raises(cj.QueryFailedError, match=f"have changed in version {snapshot + 2} since"):
        stream.next(later, stream.newest(), Limits(None))


def plain(value: Any) -> Any:
    """Return a value as it can be compared: of a map its entries, of a time the microseconds."""
    if isinstance(value, dict):
        return sorted((name, plain(each)) for name, each in value.items())
    if isinstance(value, list):
        pairs = all(isinstance(each, tuple) for each in value) and value
        return [plain(each) for each in value] if not pairs else sorted((name, plain(each)) for name, each in value)
    return value.timestamp() if isinstance(value, datetime) else value


@pytest.fixture(scope="module")
def changed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of three partitions, of which a file each is written, deleted, updated or compacted."""
    folder = tmp_path_factory.mktemp("options") / "table"
    table = f"delta.`{folder}`"
    spark.sql(
        f"create table {table} (id bigint, at timestamp, p int) using delta partitioned by (p) "
        f"tblproperties ('delta.enableChangeDataFeed' = 'true')"
    )
    for number, statement in enumerate(STATEMENTS):
        if statement == "insert":
            rows = f"range({10 * number}, {10 * number + 6})"
            spark.sql(f"insert into {table} select /*+ repartition(1) */ id, timestamp_seconds(id), id % 3 from {rows}")
        else:
            spark.sql(statement.format(table))
    return folder


STATEMENTS = (
    "insert",
    "insert",
    "delete from {} where p = 2",
    "update {} set at = at + interval 1 second where id % 10 < 2",
    "insert",
    "optimize {}",
    "update {} set at = at + interval 1 second where id % 10 = 1",
    "delete from {} where id % 10 = 3",
    "insert",
    "update {} set at = at + interval 1 second",
)
"""The commits of the table that is read with each of Delta's options."""

SKIPS, FEED = {"skipChangeCommits": "true"}, {"readChangeFeed": "true"}
DELTAS_OPTIONS: dict[str, tuple[dict[str, str], int, bool]] = {
    "files": ({"maxFilesPerTrigger": "2", **SKIPS}, 10, True),
    "bytes": ({"maxBytesPerTrigger": "1500b", **SKIPS}, 10, True),
    "files and bytes": ({"maxFilesPerTrigger": "3", "maxBytesPerTrigger": "2k", **SKIPS}, 10, True),
    "version": ({"startingVersion": "2", "maxFilesPerTrigger": "1", **SKIPS}, 10, True),
    "timestamp": ({"startingTimestamp": "", "maxFilesPerTrigger": "2", **SKIPS}, 10, False),
    "deletes": ({"ignoreDeletes": "true", "startingVersion": "0", "maxFilesPerTrigger": "4"}, 3, True),
    "changes": ({"ignoreChanges": "true", "maxFilesPerTrigger": "2"}, 10, True),
    "excluded": ({"excludeRegex": "p=1", "maxFilesPerTrigger": "2", **SKIPS}, 10, False),
    "feed": ({**FEED, "maxFilesPerTrigger": "3"}, 10, True),
    "feed by bytes": ({**FEED, "maxBytesPerTrigger": "3k"}, 10, True),
    "feed from a version": ({**FEED, "startingVersion": "1", "maxFilesPerTrigger": "2"}, 10, False),
    "feed from a timestamp": ({**FEED, "startingTimestamp": "", "maxFilesPerTrigger": "1"}, 10, False),
}
"""Delta's options, the last version that is there, and whether cojoin reads a table with them."""


def batches_of(stream: Any, place: Path, *, is_feed: bool) -> list[tuple[Position, list[Any]]]:
    """Return the batches of a stream of Delta's own source that are new: the position of each, and its rows."""
    found = list[tuple[Position, list[Any]]]()
    columns = ["id", "unix_micros(at)", "p"]
    if is_feed:
        columns += [f"_change_type in {DELETES}", "_commit_version"]

    def keep(frame: Any, batch_id: int) -> None:
        log = (place / "offsets" / str(batch_id)).read_text().splitlines()
        found.append((Position.of(json.loads(log[-1])), sorted(map(tuple, frame.selectExpr(*columns).collect()))))

    writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(place))
    writer.trigger(availableNow=True).start().awaitTermination()
    return found


def own_batches(
    spark: SparkSession, source: Any, start: dict[str, Any] | None
) -> tuple[dict[str, Any], list[tuple[Position, list[Any]]]]:
    """Return the same of cojoin's reader from a position on, and the position behind the last."""
    opened = delta_stream.open_table(spark, source)
    columns, struct = Columns.of(opened.version.metadata), delta_stream.present_columns(source, opened)
    assert struct is not None
    schema, table_id = arrow_schema(struct), opened.version.table_id
    reading = delta_reader.TableReading(
        opened.store.root, None, table_id, columns, *delta_stream._options(source), snapshot=source.snapshot_version
    )
    reader, found = delta_reader._reader(reading), list[tuple[Position, list[Any]]]()
    reader.prepareForTriggerAvailableNow()
    begin: dict[str, Any] = start or reader.initialOffset()
    while (end := reader.latestOffset(begin, reader.getDefaultReadLimit())) != begin:
        rows = task_rows(reader.partitions(begin, end), schema, columns, is_feed=source.feed is not None)
        names = [name for name in schema.names if name != "_commit_timestamp"]
        times = [{**row, "at": round(1_000_000 * row["at"].timestamp())} for row in rows]
        found.append((Position.of(end), sorted(tuple(row[name] for name in names) for row in times)))
        begin = end
    return begin, found


@HAS_LIMITS
@pytest.mark.slow  # Two streams each.
@pytest.mark.spark
@pytest.mark.parametrize("case", drawn(DELTAS_OPTIONS, 4))
def test_rows_and_batches_with_deltas_options_are_those_of_deltas_own_source(
    spark: SparkSession, changed: Path, tmp_path: Path, case: str
) -> None:
    options, last, is_direct = DELTAS_OPTIONS[case]
    folder, whole, is_feed = tmp_path / "table", changed / "_delta_log", "readChangeFeed" in options
    shutil.copytree(changed, folder, ignore=shutil.ignore_patterns("*checkpoint*"))
    if "startingTimestamp" in options:
        # In whole milliseconds, as Delta takes it.
        moment = datetime.fromtimestamp(int(1_000 * (whole / f"{2:020}.json").stat().st_mtime) / 1_000, timezone.utc)
        options = {**options, "startingTimestamp": moment.isoformat(timespec="milliseconds")}
    source = cj.sources.delta(str(folder), options=options)
    if is_direct and is_feed:
        limits = {name: value for name, value in options.items() if name not in FEED}
        source = cj.sources.delta(str(folder), changes=True, options=limits)
    theirs, ours, start = list[Any](), list[Any](), None
    for first, until in ((0, 2), (3, last)):
        for version in range(len(STATEMENTS) + 1):
            place = folder / "_delta_log" / f"{version:020}.json"
            if version > until:
                place.unlink(missing_ok=True)
                place.with_suffix(".crc").unlink(missing_ok=True)
            elif version >= first:
                shutil.copy2(whole / place.name, place)
        stream = spark.readStream.format("delta").options(**options).load(str(folder))
        theirs += batches_of(stream, tmp_path / "theirs", is_feed=is_feed)
        if is_direct:
            start, found = own_batches(spark, source, start)
            ours += found
        else:
            with pytest.raises(delta_stream.UnsuitableError, match=r"^it has the option "):
                delta_stream._options(source)
            ours += batches_of(source.open(), tmp_path / "ours", is_feed=is_feed)
    if is_feed:
        # A position behind a commit with change files is written in another way, and may be a batch without rows.
        theirs, ours = ([rows for _, rows in each if rows] for each in (theirs, ours))
    assert ours == theirs
    assert sum(len(rows) > 0 for rows in ours) >= 2


@pytest.mark.slow
@pytest.mark.spark
def test_a_commit_that_removes_rows_ends_the_query_with_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, generate(trades=40, customers=10), tmp_path)
    for name in ("trades", "customers"):
        lake.write(name, 1, np.random.default_rng(SEED))
    lake.run(lake.sources(1, 1), drain=False)
    spark.sql(f"delete from delta.`{tmp_path}/trades` where position < 5")
    query = asof(connect(*lake.sources(1, 1), key_groups=2)).start(
        output=lambda frame, batch_id: None,
        checkpoint=f"{tmp_path}/checkpoint",
        trigger=cj.Trigger.available_now(),
    )
    with pytest.raises(cj.QueryFailedError, match=r"^version 1 of the Delta table .*trades has .*deleted rows, and a"):
        query.await_termination()


def test_tasks_have_each_row_once_however_large_files_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws, schema, files = random.Random(SEED), pa.schema([("id", pa.int64()), ("day", pa.string())]), []
    monkeypatch.setattr(delta_reader, "_LEAST_BYTES", 1)
    for number in range(draws.randrange(1, 5)):
        count, place = draws.randrange(0, 400), tmp_path / f"{number} ä.parquet"
        groups = draws.randrange(1, 200)
        pq.write_table(pa.table({"id": range(1_000 * number, 1_000 * number + count)}), place, row_group_size=groups)
        known = draws.choice([None, json.dumps({"numRecords": count})])
        files.append(DataFile(place.name, place.stat().st_size, 0, known, {"day": draws.choice(["a", "", None])}))
    expected = Counter(
        (each, file.partition_values["day"] or None)
        for file in files
        for each in pq.read_table(tmp_path / file.path)["id"].to_pylist()
    )
    reading = delta_reader.TableReading(
        f"file:{tmp_path}", None, "t", Columns({}, (), {}), Limits(), tasks=draws.randrange(1, 9)
    )
    tasks = delta_reader.ranges_of(reading, [StreamFile("add", each, 0) for each in files])
    reader, seen = DirectReader("input", None, Grouping(schema, ("id",), 4), {}, "a setting"), Counter[Any]()
    for task in tasks:
        for rows in reader([pa.RecordBatch.from_pylist(task.value, RANGES)]):
            seen.update(zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), strict=True))
    assert seen == expected
    assert len(tasks) <= reading.tasks + len(files)


@HAS_LIMITS
def test_a_query_begins_with_a_version_that_the_table_has(tmp_path: Path) -> None:
    for number in range(4):
        write_deltalake(str(tmp_path), rows_of(number), mode="append")
    table = TableLog(LocalStore(str(tmp_path))).at(3)

    def read(begin: int) -> list[int]:
        reading = delta_reader.TableReading(
            f"file:{tmp_path}", None, table.table_id, Columns.of(table.metadata), begin=begin
        )
        reader, found = delta_reader._reader(reading), list[int]()
        start = reader.initialOffset()
        while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
            paths = [each["path"].rpartition("/")[2] for task in reader.partitions(start, end) for each in task.value]
            found += ids(tmp_path, paths)
            start = end
        return found

    assert [sorted(read(begin)) for begin in range(4)] == [[0, 1, 2, 3], [1, 2, 3], [2, 3], [3]]
    # A table that was loaded up to its newest version elsewhere is read from the next one on.
    assert read(4) == []
    with pytest.raises(cj.QueryFailedError, match="begins with version 9, and the newest version is 3; give"):
        read(9)


@pytest.mark.parametrize("partition", ["_commit_version", "day"])
def test_a_table_with_the_columns_of_a_feed_is_none(tmp_path: Path, partition: str) -> None:
    columns = {"id": [1, 2], "_deleted": [True, False], "_change_type": ["delete", "delete"]}
    pq.write_table(pa.table(columns), tmp_path / "0.parquet")
    size = (tmp_path / "0.parquet").stat().st_size
    file = DataFile("0.parquet", size, partition_values={partition: "7"})
    schema = pa.schema([*pa.table(columns).schema, pa.field(partition, pa.int64())])
    reading = delta_reader.TableReading(f"file:{tmp_path}", None, "t", Columns({}, (), {}))
    reader = DirectReader("input", None, Grouping(schema, ("id",), 4), {}, "a setting")
    (task,) = delta_reader.ranges_of(reading, [StreamFile("add", file, 0)])
    (rows,) = reader([pa.RecordBatch.from_pylist(task.value, RANGES)])
    assert dict(zip(schema.names, (each.to_pylist() for each in rows.columns[:4]), strict=True)) == {
        **columns,
        partition: [7, 7],
    }
