"""The simulated Delta tables and the simulated logs of Spark behave as the real ones, step by step."""

from __future__ import annotations

import json
import random
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.snapshot_row import SnapshotCadence
from cojoin.checkpoints.table_transactions import TableTransactions
from cojoin.errors import QueryFailedError
from cojoin.session.arrow_types import spark_schema
from cojoin.storage.written_file import WrittenFile
from tests.seeds import SEED
from tests.simulation import simulated_clock
from tests.simulation.seams import simulated
from tests.simulation.simulated_clock import Process, Scheduler
from tests.simulation.simulated_disk import Disk
from tests.simulation.simulated_frames import Functions
from tests.simulation.simulated_spark import Lake, Session, Stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_SCHEMA = pa.schema([("id", pa.int64())])
_QUERY = "a query"


class Tables:
    """Drivers of several epochs that commit to one Delta table."""

    def __init__(self, session: Any, location: str) -> None:
        self._drivers = [TableTransactions(session, location, "cojoin-x-output", epoch) for epoch in (1, 2, 3)]

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
            file = WrittenFile(f"part-{batch_id}.parquet", 1, 1, 0, "{}")
            return transactions.append(
                _SCHEMA,
                [file],
                batch_id,
                query_id=_QUERY,
                metadata=f"{driver}",
                is_done=lambda newest: newest >= batch_id,
            )
        except QueryFailedError as error:
            return str(error).partition(": ")[2]


def in_simulation(do: Callable[[Disk], Any]) -> Any:
    """Run something as the only process of a simulation."""
    running = Scheduler(random.Random(SEED), 0.0)
    disk = Disk(running, swaps=True, loses_power=False)
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
def test_delta_answers_the_same(spark: SparkSession, tmp_path: Path, number: int) -> None:
    draw = random.Random(f"{SEED} {number}")
    steps = [
        (
            draw.choice(("append", "append", "append", "look", "fence", "metadata")),
            draw.randint(0, 2),
            draw.randint(0, 5),
        )
        for _ in range(25)
    ]

    def answers(session: Any, location: str) -> list[Any]:
        tables = Tables(session, location)
        return [tables.do(*step) for step in steps]

    real = answers(spark, f"{tmp_path}/table")
    made = in_simulation(lambda disk: answers(Session(disk, Lake()), "/lake/table"))
    told = [str(each).replace("/lake/table", "T") for each in made]
    assert told == [str(each).replace(f"{tmp_path}/table", "T") for each in real], steps


def test_of_two_transactions_on_one_application_one_fails(spark: SparkSession, tmp_path: Path) -> None:
    """Each begins before the other commits; the second looks again and finds the batch."""

    def both(session: Any, location: str) -> list[Any]:
        first, second = (TableTransactions(session, location, "cojoin-x-output", epoch) for epoch in (1, 1))
        file = WrittenFile("part-0.parquet", 1, 1, 0, "{}")

        def append(transactions: TableTransactions, batch_id: int, is_done: Callable[[int], bool]) -> int:
            return transactions.append(_SCHEMA, [file], batch_id, query_id=_QUERY, metadata="m", is_done=is_done)

        seen = []

        def other_first(newest: int) -> bool:
            seen.append(newest)
            if len(seen) == 1:
                append(second, 1, lambda now: now >= 1)
            return newest >= 1

        append(first, 0, lambda now: now >= 0)
        return [append(first, 1, other_first), seen, second.look()[1]]

    real = both(spark, f"{tmp_path}/table")
    assert real == in_simulation(lambda disk: both(Session(disk, Lake()), "/lake/table")) == [1, [0, 1], 1]


_PARTS = pa.schema([("batch_id", pa.int64()), ("segment", pa.int32()), ("row", pa.int64())])


def read_beside_gone_files(session: Any, functions: Any, location: str, remove: Callable[[str], None]) -> list[Any]:
    """Return what conditions find in a partitioned table of which the files of one partition are gone."""
    rows = [(0, None, 1), (0, 0, 2), (1, 0, 3), (1, 1, 4), (2, None, 5)]
    for batch_id in range(3):
        written = [dict(zip(_PARTS.names, row, strict=True)) for row in rows if row[0] == batch_id]
        frame = session.createDataFrame(written, spark_schema(_PARTS))
        writer = frame.write.format("delta").mode("overwrite").partitionBy("batch_id", "segment")
        writer.option("replaceWhere", f"batch_id = {batch_id}").save(location)
    remove("batch_id=1/segment=0")
    batch, segment, row = (functions.col(name) for name in _PARTS.names)

    def read(condition: Any) -> list[int] | None:
        try:
            answer = session.read.format("delta").load(location).where(condition).select("row").collect()
        except (PySparkException, Py4JError):
            return None
        return sorted(each.row for each in answer)

    conditions = (
        batch == 0,
        batch == 1,
        (batch == 1) & segment.isin([1]),
        (batch == 0) & segment.isin([0, 1]) | (batch == 2) & segment.isin([0]),
        segment.isin([0]),
        row == 3,
    )
    return [read(each) for each in conditions]


def test_a_condition_on_partitions_reads_their_files_alone(spark: SparkSession, tmp_path: Path) -> None:
    """What a query deletes of other batches does not hurt a reader."""

    def made(disk: Disk) -> list[Any]:
        def remove(folder: str) -> None:
            for path in [each for each in disk.files if f"/{folder}/" in each]:
                del disk.files[path]

        return read_beside_gone_files(Session(disk, Lake()), Functions, "/lake/table", remove)

    real = read_beside_gone_files(spark, F, f"{tmp_path}/table", lambda name: shutil.rmtree(tmp_path / "table" / name))
    assert real == in_simulation(made) == [[1, 2], None, [4], [2], None, None]


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
