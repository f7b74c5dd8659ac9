"""The simulated Delta tables and the simulated logs of Spark behave as the real ones, step by step."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from cojoin.checkpoints.output_tables import TableTransactions
from cojoin.checkpoints.snapshot_row import SnapshotCadence
from cojoin.delta.table_log import TableLog
from cojoin.errors import QueryFailedError
from cojoin.session.arrow_types import spark_schema
from cojoin.session.spark_errors import SPARK_ERRORS, names_missing_file
from cojoin.storage.local_store import LocalStore
from cojoin.storage.parquet_files import WrittenFile
from tests.seeds import SEED
from tests.simulation import simulated_clock
from tests.simulation.seams import simulated
from tests.simulation.simulated_clock import Process, Scheduler
from tests.simulation.simulated_disk import Disk
from tests.simulation.simulated_frames import write_rows
from tests.simulation.simulated_spark import Lake, Session, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_SCHEMA = pa.schema([("id", pa.int64())])
_QUERY = "a query"


class Tables:
    """Drivers of several epochs that commit to one Delta table, where its log is committed to without the JVM.

    Args:
        session: The session.
        location: The table.
        put: Writes a file of one byte.
    """

    def __init__(self, session: Any, location: str, put: Callable[[str], None]) -> None:
        self._drivers = [TableTransactions(session, location, "cojoin-x-output", epoch) for epoch in (1, 2, 3)]
        self._location, self._put = location, put

    def append(self, driver: int, batch_id: int, is_done: Callable[[int], bool]) -> tuple[int, bool]:
        """Append a file as a batch; return the table's version, and whether that was new."""
        name = f"part-{driver}-{batch_id}.parquet"
        self._put(f"{self._location}/{name}")
        files, told = [WrittenFile(name, 1, 1, 0, "{}")], {"query_id": _QUERY, "metadata": f"{driver}"}
        made = self._drivers[driver].batches().append(_SCHEMA, files, batch_id, **told, is_done=is_done)
        return made.version, made.is_new

    def do(self, operation: str, driver: int, batch_id: int) -> Any:
        """Return what an operation answers; ids of tables differ, so they are left out."""
        transactions = self._drivers[driver]
        try:
            if operation == "look":
                table_id, newest = transactions.look()
                return table_id is None, newest
            if operation == "fence":
                return transactions.fence(_QUERY)
            if operation == "metadata":
                commit = transactions.commit_of(batch_id)
                return None if commit is None else commit.user_metadata
            return self.append(driver, batch_id, lambda newest: newest >= batch_id)
        except QueryFailedError as error:
            return str(error).partition(": ")[2]


def put_really(path: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(b"x")


def in_simulation(do: Callable[[Disk], Any]) -> Any:
    """Run something as the only process of a simulation."""
    running = Scheduler(random.Random(SEED), 0.0)
    disk = Disk(running, has_conditional_writes=True, loses_power=False)
    found: list[Any] = []
    simulated_clock._current.append(running)
    try:
        with simulated():
            process = Process("alone", "one", 1)
            running.spawn(process, "main", lambda: found.append(do(disk)))
            running.wait(lambda: not running.tasks)
            running.end()
    finally:
        simulated_clock._current.pop()
    if process.error is not None:
        raise process.error
    return found[0]


@pytest.mark.parametrize("number", range(4))
def test_a_table_answers_the_same(spark: SparkSession, tmp_path: Path, number: int) -> None:
    draw = random.Random(f"{SEED} {number}")
    operations = ("append", "append", "append", "look", "fence", "metadata")
    steps = [(draw.choice(operations), draw.randint(0, 2), draw.randint(0, 5)) for _ in range(25)]

    def answers(session: Any, location: str, put: Callable[[str], None]) -> list[Any]:
        tables = Tables(session, location, put)
        return [tables.do(*step) for step in steps]

    real = answers(spark, f"{tmp_path}/table", put_really)
    made = in_simulation(
        lambda disk: answers(Session(disk, Lake()), "/lake/table", lambda path: disk.put(path, b"x"))  # type: ignore[arg-type, return-value]
    )
    told = [str(each).replace("/lake/table", "T") for each in made]
    assert told == [str(each).replace(f"{tmp_path}/table", "T") for each in real], steps


def test_of_two_commits_of_one_application_one_looks_again(spark: SparkSession, tmp_path: Path) -> None:
    """Each begins before the other commits; the second looks again and finds the batch."""

    def both(session: Any, location: str, put: Callable[[str], None]) -> list[Any]:
        first, second = (Tables(session, location, put) for _ in range(2))
        seen = []

        def other_first(newest: int) -> bool:
            seen.append(newest)
            if len(seen) == 1:
                second.append(0, 1, lambda now: now >= 1)
            return newest >= 1

        first.append(0, 0, lambda now: now >= 0)
        return [first.append(0, 1, other_first), seen, second.do("look", 0, 0)]

    real = both(spark, f"{tmp_path}/table", put_really)
    made = in_simulation(lambda disk: both(Session(disk, Lake()), "/lake/table", lambda path: disk.put(path, b"x")))
    assert real == made == [(1, False), [0, 1], (False, 1)]


_PARTS = pa.schema([("batch_id", pa.int64()), ("segment", pa.int32()), ("row", pa.int64())])
_APPS = ("runs", "savepoints")


def written_by_spark(session: Any, location: str, draw: random.Random, log: TableLog) -> list[Any]:
    """Return the rows and the versions of applications after each of some random writes of Spark's own writer."""
    found: list[Any] = []
    for number in range(12):
        batch_id, segment, app_id = draw.randint(0, 2), draw.randint(0, 1), draw.choice(_APPS)
        operation, version = draw.choice(("replace", "replace", "claim", "delete")), draw.randint(0, 6)
        if operation == "delete" and number:
            where = f"(batch_id = {batch_id} AND segment = {segment}) OR (batch_id = 2 AND segment IS NULL)"
            session.sql(f"DELETE FROM delta.`{location}` WHERE {where}")
        elif operation == "claim" and number:
            rows = session.read.format("delta").load(location).limit(0)
            writer = rows.write.format("delta").mode("append").partitionBy("batch_id", "segment")
            writer.option("txnAppId", app_id).option("txnVersion", str(version)).save(location)
        else:
            values = [(batch_id, each, number) for each in (None, *range(segment + 1))]
            written = [dict(zip(_PARTS.names, row, strict=True)) for row in values]
            writer = session.createDataFrame(written, spark_schema(_PARTS)).write.format("delta").mode("overwrite")
            writer = writer.partitionBy("batch_id", "segment").option("replaceWhere", f"batch_id = {batch_id}")
            writer.option("txnAppId", app_id).option("txnVersion", str(version)).save(location)
        there = session.read.format("delta").load(location).collect()
        table = log.newest()
        assert table is not None
        rows_there = sorted((each.batch_id, -1 if each.segment is None else each.segment, each.row) for each in there)
        found.append((operation, rows_there, [table.transaction(each) for each in _APPS]))
    return found


@pytest.mark.parametrize("number", range(3))
def test_spark_writes_the_state_table_the_same(spark: SparkSession, tmp_path: Path, number: int) -> None:
    def draw() -> random.Random:
        return random.Random(f"written by Spark {SEED} {number}")

    def made(disk: Disk) -> list[Any]:
        session = Session(disk, Lake())
        return written_by_spark(session, "/lake/table", draw(), TableLog(session.store("/lake/table")))

    real = written_by_spark(spark, f"{tmp_path}/table", draw(), TableLog(LocalStore(f"{tmp_path}/table", "table")))
    assert real == in_simulation(made)


def read_beside_gone_files(session: Any, folder: str, remove: Callable[[str], None]) -> list[Any]:
    """Return how the reading of two files by their paths ends where one goes afterwards, and where it was gone."""

    def end_of(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except SPARK_ERRORS as error:
            return names_missing_file(error)

    reader, paths = session.read.schema(spark_schema(_SCHEMA)), [f"{folder}/1.parquet", f"{folder}/2.parquet"]
    both = reader.parquet(*paths)
    whole = sorted(each.id for each in both.collect())
    rows = reader.parquet(*paths)
    remove(paths[1])
    return [whole, end_of(rows.collect), end_of(lambda: reader.parquet(*paths))]


def test_files_are_looked_for_when_they_are_named_and_read_later(spark: SparkSession, tmp_path: Path) -> None:
    for number in (1, 2):
        pq.write_table(pa.table({"id": [number]}, schema=_SCHEMA), tmp_path / f"{number}.parquet")

    def made(disk: Disk) -> list[Any]:
        for number in (1, 2):
            write_rows(disk, "/lake", f"{number}.parquet", [{"id": number}])
        return read_beside_gone_files(Session(disk, Lake()), "/lake", disk.remove)

    real = read_beside_gone_files(spark, f"{tmp_path}", lambda path: Path(path).unlink())
    assert real == in_simulation(made) == [[1, 2], True, True]


class RealStream:
    """A query of Spark over a folder of texts."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        (folder / "in").mkdir()
        self._count = 0

    def add(self) -> None:
        self._count += 1
        (self._folder / "in" / f"{self._count}.txt").write_text("a row\n")

    def run(self, batch: Callable[[int], None]) -> str:
        """Run what is there, a file in each batch; return how it ended."""

        def write(rows: DataFrame, batch_id: int) -> None:
            rows.count()
            batch(batch_id)

        stream = self._spark.readStream.option("maxFilesPerTrigger", 1).text(f"{self._folder}/in").writeStream
        stream = stream.foreachBatch(write).option("checkpointLocation", f"{self._folder}/spark")
        try:
            stream.trigger(availableNow=True).start().awaitTermination()
        except PySparkException as error:
            return "refused" if "CONCURRENT_STREAM_LOG_UPDATE" in str(error) else "failed"
        return "ended"

    def names(self, log: str) -> list[int]:
        return sorted(int(each.name) for each in (self._folder / "spark" / log).glob("*") if each.name.isdigit())

    def write(self, name: str, like: str | None = None) -> None:
        text = "v1\n{}" if like is None else (self._folder / "spark" / like).read_text()
        (self._folder / "spark" / name).write_text(text)


class MadeStream:
    """The same, simulated; its right input is the folder."""

    def __init__(self, disk: Disk) -> None:
        self._disk, self._lake = disk, Lake()

    def add(self) -> None:
        self._lake.right += 1

    def run(self, batch: Callable[[int], None]) -> str:
        stream = Stream(Session(self._disk, self._lake), "/lake", 1, SnapshotCadence.of(None))
        stream = stream.foreachBatch(lambda _, batch_id: batch(batch_id))
        draw, simulated_clock.scheduler().random = simulated_clock.scheduler().random, _One()  # type: ignore[assignment]
        try:
            stream.trigger(availableNow=True).start().awaitTermination()
        except PySparkException as error:
            return "refused" if "CONCURRENT_STREAM_LOG_UPDATE" in str(error) else "failed"
        finally:
            simulated_clock.scheduler().random = draw
        return "ended"

    def names(self, log: str) -> list[int]:
        return sorted(int(name) for name in self._disk.below(f"/lake/spark/{log}") if name.isdigit())

    def write(self, name: str, like: str | None = None) -> None:
        text = b"v1\n{}" if like is None else self._disk.files[f"/lake/spark/{like}"].content
        self._disk.put(f"/lake/spark/{name}", text)


class _One(random.Random):
    """Draws the smallest number, so that each batch has one file."""

    def randint(self, a: int, b: int) -> int:
        del b
        return a

    def random(self) -> float:
        return 0.5


def life(stream: RealStream | MadeStream) -> list[Any]:
    """Return what a query does that fails, is run again, and meets another query in its log."""
    told: list[Any] = []

    def run(act: Callable[[int], None] = lambda _: None) -> None:
        batches: list[int] = []

        def batch(batch_id: int) -> None:
            batches.append(batch_id)
            act(batch_id)

        told.append((stream.run(batch), batches, stream.names("offsets"), stream.names("commits")))

    def fail(batch_id: int) -> None:
        if batch_id == 2:
            raise ValueError

    for _ in range(3):
        stream.add()
    # The third batch fails, and is run again as it was planned, although there is more now.
    run(fail)
    stream.add()
    run()
    # Nothing is new.
    run()
    # Another query commits the batch that this one runs.
    stream.add()
    run(lambda batch_id: stream.write(f"commits/{batch_id}"))
    # Another query plans the batch after it.
    stream.add()
    stream.add()
    run(lambda batch_id: stream.write(f"offsets/{batch_id + 1}", f"offsets/{batch_id}") if batch_id == 5 else None)
    run()
    return told


def test_the_logs_of_spark_have_the_same_entries(spark: SparkSession, tmp_path: Path) -> None:
    real = life(RealStream(spark, tmp_path))
    made = in_simulation(lambda disk: life(MadeStream(disk)))
    assert made == real, json.dumps([made, real])
