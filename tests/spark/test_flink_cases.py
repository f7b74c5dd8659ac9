"""Some of Flink's cases through real Spark: what a harness was told, batch by batch, gives the same rows there.

A case's calls are recorded on the harness and replayed as files. A watermark travels as a row without a key whose
column says it: such a row is rejected, but nothing is wrong with its time.
"""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cojoin as cj
from cojoin.engine.joins import IntervalJoin, TemporalJoin
from cojoin.engine.time.control_rows import ONE_PARTITION
from cojoin.session.arrow_types import spark_schema
from cojoin.testing import Harness, Record, SideRecord
from tests.flink import join_steps, process_steps, ttl_steps, watermark_steps
from tests.flink.cases import CASES

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CHOSEN = (
    # Keys, timers and both inputs; side outputs; channels, as Flink's valve has them; state, time-to-live.
    *("co-02", "pr-10", "ts-22", "tt-02"),
    # Watermarks that rows carry; joins, with late rows and deletes.
    *("wm-14", "tj-14"),
    # More of these kinds.
    *(pytest.param(each, marks=pytest.mark.slow) for each in ("co-14", "co-20", "pr-06", "pr-19", "ts-26", "ij-19")),
)


class Recorder(Harness):
    """Remembers its calls; a case may use several harnesses, one after the other."""

    made: list[Recorder]

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.calls: list[Any] = []
        self.made.append(self)

    def _call(self, elements1: Any = (), elements2: Any = (), controls: Any = (), *, end: bool = False) -> None:
        super()._call(elements1, elements2, controls, end=end)
        self.calls.append((elements1, elements2, controls, end))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    recorder: Any = type("Recorder", (Recorder,), {"made": []})
    for module in (process_steps, join_steps, ttl_steps, watermark_steps):
        monkeypatch.setattr(module, "Harness", recorder)
    return recorder.made  # type: ignore[no-any-return]


class Replay:
    """Recorded calls as two folders, a file of each a micro-batch."""

    def __init__(self, folder: Path, harness: Harness) -> None:
        self.folder, self.sides, self.inputs, self.count = folder, harness._sides, harness._inputs, 0
        added = [(pa.field(f"mark{n}", pa.int64()), pa.field(f"part{n}", pa.string())) for n in (1, 2)]
        self.schemas = [pa.schema([*spec.schema, *fields]) for spec, fields in zip(self.inputs, added, strict=True)]
        self.partition = [ONE_PARTITION, ONE_PARTITION]
        for name in ("1", "2"):
            (folder / name).mkdir()

    def write(self, batch: list[Any]) -> None:
        """Write a file of each input: the elements, then a row for each watermark."""
        for side, schema in enumerate(self.schemas):
            said = {
                name: watermark
                for call in batch
                for control in call[2]
                for name, watermark in control.watermarks.items()
                if control.input == side + 1
            }
            self.partition[side] = next(iter(said), self.partition[side])
            table = self.sides[side].table([element for call in batch for element in call[side]])
            marks, parts = pa.nulls(table.num_rows, pa.int64()), pa.array([self.partition[side]] * table.num_rows)
            rows = pa.Table.from_arrays([*table.columns, marks, parts.cast(pa.string())], schema=schema)
            path = self.folder / str(side + 1) / f"{self.count:05d}.parquet"
            pq.write_table(pa.concat_tables([rows, self._watermarks(side, schema, said)]), path)
            os.utime(path, (1_700_000_000 + self.count,) * 2)
        self.count += 1

    def _watermarks(self, side: int, schema: pa.Schema, said: dict[str, int]) -> pa.Table:
        columns = {name: pa.nulls(len(said), schema.field(name).type) for name in schema.names}
        columns[schema.names[-2]] = pa.array(list(said.values()), pa.int64())
        columns[schema.names[-1]] = pa.array(list(said), pa.string())
        time = self.inputs[side].event_time
        if time is not None:
            micros = pa.array([1_000 * each for each in said.values()], pa.int64())
            columns[time] = micros.cast(schema.field(time).type)
        return pa.table(columns, schema=schema)

    def connect(self, spark: SparkSession) -> cj.ConnectedInputs:
        sides = []
        for number, (spec, schema) in enumerate(zip(self.inputs, self.schemas, strict=True), start=1):
            stream = spark.readStream.schema(spark_schema(schema)).option("maxFilesPerTrigger", 1)
            by_hand = spec.watermark.generator == cj.WatermarkStrategy.no_watermarks().generator
            sides.append(
                cj.Input(
                    stream.parquet(str(self.folder / str(number))),
                    key=spec.key,
                    event_time=spec.event_time,
                    name=spec.name,
                    partition=f"part{number}",
                    sequence=spec.sequence,
                    watermark=cj.WatermarkStrategy.for_punctuated(f"mark{number}") if by_hand else spec.watermark,
                    max_ahead=None,
                    late=spec.late,
                )
            )
        return cj.connect(*sides, key_groups=2)


def batches(calls: list[Any], *, sequenced: bool) -> list[list[Any]]:
    """Put calls together that Spark may see in one micro-batch: rows, then at most one watermark of each channel."""
    if not sequenced:
        return [[call] for call in calls]
    found: list[list[Any]] = []
    said: set[Any] = set()
    second = False
    for call in calls:
        channels = {(control.input, name) for control in call[2] for name in control.watermarks}
        has_rows = bool(call[0] or call[1])
        if not found or (has_rows and (said or (second and call[0]))) or said & channels:
            found.append([])
            said, second = set(), False
        found[-1].append(call)
        said |= channels
        second |= bool(call[1])
    return found


def joined(pair: cj.ConnectedInputs, operation: Any) -> cj.Joined:
    for kind, join in ((IntervalJoin, pair.interval_join), (TemporalJoin, pair.temporal_join)):
        if isinstance(operation, kind):
            return join(**{each.name: getattr(operation, each.name) for each in fields(operation)})  # type: ignore[operator]
    return pair.process(
        operation.function,
        operation.output,
        order=operation.order,
        side_outputs=operation.side_outputs,
        processing_time_timers=False,
    )


def spelled(row: Any, names: list[str]) -> str:
    return repr([row[name] for name in names])


def steps_of(case: str) -> Any:
    kinds = {"ij": join_steps, "tj": join_steps, "tt": ttl_steps, "wm": watermark_steps}
    return kinds.get(CASES[case].kind, process_steps)


@pytest.mark.parametrize("case", CHOSEN)
def test_spark_gives_the_rows_of_the_harness(
    spark: SparkSession, tmp_path: Path, made: list[Recorder], case: str
) -> None:
    steps_of(case).run(CASES[case])
    harness = made[-1]
    replay = Replay(tmp_path, harness)
    calls = [call for each in made for call in each.calls]
    for batch in batches(calls, sequenced=bool(harness._inputs[0].sequence)):
        replay.write(batch)
    drains = any(call[3] for call in calls)
    query = joined(replay.connect(spark), harness._operation)
    schema = harness._operation.output_schema(*harness._inputs)
    names = [field.name for field in schema if not pa.types.is_timestamp(field.type)]
    events = [event for each in made for event in each.log]
    expected = [spelled(event.value, names) for event in events if isinstance(event, Record)]
    expected_beside = [repr([*event.value]) for event in events if isinstance(event, SideRecord)]
    found: list[str] = []
    beside: list[str] = []

    def collect(frame: DataFrame, _: int) -> None:
        found.extend(spelled(row, names) for row in frame.collect())

    checkpoint = f"{tmp_path}/checkpoint"
    if expected_beside or drains:
        query.start(
            output=collect,
            side_outputs={
                tag: lambda frame, _: beside.extend(repr([*row]) for row in frame.collect())
                for tag in query.plan.side_outputs
            },
            rejected=lambda frame, _: None,
            checkpoint=checkpoint,
            trigger=cj.Trigger.available_now(drain=drains),
        ).await_termination()
    else:
        stream = query.to_dataframe().writeStream.foreachBatch(collect).option("checkpointLocation", checkpoint)
        stream.trigger(availableNow=True).start().awaitTermination()
    assert (sorted(found), sorted(beside)) == (sorted(expected), sorted(expected_beside))
    assert found
