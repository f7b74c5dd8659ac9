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
from pyspark.sql.pandas.types import from_arrow_schema

import cojoin as cj
from cojoin.joins import IntervalJoin, TemporalJoin
from cojoin.testing import Harness, Record, SideRecord
from tests.flink import join_steps, process_steps
from tests.flink.cases import CASES

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cojoin.inputs import InputSpec

pytestmark = pytest.mark.spark

CHOSEN = (
    *("co-02", "co-14", "co-15", "co-16", "co-32"),
    *("pr-01", "pr-06", "pr-10", "pr-19"),
    *("ts-01", "ts-09", "ts-22", "ts-24", "ts-26"),
    *("ij-01", "ij-13", "ij-19", "tj-04", "tj-14"),
)


class Recorder(Harness):
    """Remembers its calls and all that came out of any of the harnesses of a case."""

    calls: list[Any]
    events: list[Any]
    last: Recorder

    def _call(self, elements1: Any = (), elements2: Any = (), controls: Any = (), *, end: bool = False) -> None:
        super()._call(elements1, elements2, controls, end=end)
        type(self).last = self
        self.calls.append((elements1, elements2, controls, end))

    def take(self) -> list[Any]:
        taken = super().take()
        self.events += taken
        return taken


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    made: Any = type("Recorder", (Recorder,), {"calls": [], "events": []})
    monkeypatch.setattr(process_steps, "Harness", made)
    monkeypatch.setattr(join_steps, "Harness", made)
    return made  # type: ignore[no-any-return]


class Replay:
    """Recorded calls as two folders, a file of each a micro-batch."""

    def __init__(self, folder: Path, inputs: tuple[InputSpec, InputSpec]) -> None:
        self.folder, self.inputs, self.count = folder, inputs, 0
        self.schemas = [spec.schema.append(pa.field(f"mark{n}", pa.int64())) for n, spec in enumerate(inputs, start=1)]
        for name in ("1", "2"):
            (folder / name).mkdir()

    def write(self, tables: tuple[pa.Table, pa.Table], marks: tuple[list[int], list[int]]) -> None:
        for number, (table, said, schema) in enumerate(zip(tables, marks, self.schemas, strict=True), start=1):
            rows = table.append_column(schema.field(-1), pa.nulls(table.num_rows, pa.int64()))
            columns = {name: pa.nulls(len(said), schema.field(name).type) for name in schema.names}
            columns[schema.names[-1]] = pa.array(said, pa.int64())
            time = self.inputs[number - 1].event_time
            if time is not None:
                columns[time] = pa.array([1_000 * mark for mark in said], pa.int64()).cast(schema.field(time).type)
            path = self.folder / str(number) / f"{self.count:05d}.parquet"
            pq.write_table(pa.concat_tables([rows, pa.table(columns, schema=schema)]), path)
            os.utime(path, (1_700_000_000 + self.count,) * 2)
        self.count += 1

    def connect(self, spark: SparkSession) -> cj.ConnectedInputs:
        sides = []
        for number, (spec, schema) in enumerate(zip(self.inputs, self.schemas, strict=True), start=1):
            stream = spark.readStream.schema(from_arrow_schema(schema)).option("maxFilesPerTrigger", 1)
            sides.append(
                cj.Input(
                    stream.parquet(str(self.folder / str(number))),
                    key=spec.key,
                    event_time=spec.event_time,
                    name=spec.name,
                    sequence=spec.sequence,
                    watermark=cj.WatermarkStrategy.for_punctuated(f"mark{number}"),
                    max_ahead=None,
                    late=spec.late,
                )
            )
        return cj.connect(*sides, key_groups=2)


def batches(calls: list[Any]) -> list[list[Any]]:
    """Put calls together that Spark may see in one micro-batch: rows, then at most one watermark of each input."""
    found: list[list[Any]] = []
    said: set[int] = set()
    second = False
    for call in calls:
        controls = [control.input for control in call[2]]
        has_rows = bool(call[0] or call[1])
        if not found or (has_rows and (said or (second and call[0]))) or said & set(controls):
            found.append([])
            said, second = set(), False
        found[-1].append(call)
        said |= set(controls)
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


@pytest.mark.parametrize("case", CHOSEN)
def test_spark_gives_the_rows_of_the_harness(
    spark: SparkSession, tmp_path: Path, recorder: type[Recorder], case: str
) -> None:
    steps = join_steps if CASES[case].kind in ("ij", "tj") else process_steps
    steps.run(CASES[case])
    harness = recorder.last
    replay = Replay(tmp_path, harness._inputs)
    ends = False
    for batch in batches(recorder.calls):
        elements: Any = [[element for call in batch for element in call[side]] for side in (0, 1)]
        tables: Any = [side.table(each) for side, each in zip(harness._sides, elements, strict=True)]
        marks: tuple[list[int], list[int]] = ([], [])
        for call in batch:
            ends |= call[3]
            for control in call[2]:
                assert not control.statuses
                marks[control.input - 1].extend(control.watermarks.values())
        replay.write(tables, marks)
    query = joined(replay.connect(spark), harness._operation)
    schema = harness._operation.output_schema(*harness._inputs)
    names = [field.name for field in schema if not pa.types.is_timestamp(field.type)]
    expected = [spelled(event.value, names) for event in recorder.events if isinstance(event, Record)]
    expected_beside = [repr([*event.value]) for event in recorder.events if isinstance(event, SideRecord)]
    found: list[str] = []
    beside: list[str] = []
    started = query.start(
        output=lambda frame, _: found.extend(spelled(row, names) for row in frame.collect()),
        side_outputs={
            tag: lambda frame, _: beside.extend(repr([*row]) for row in frame.collect())
            for tag in query.plan.side_outputs
        },
        rejected=lambda frame, _: None,
        checkpoint=f"{tmp_path}/checkpoint",
        trigger=cj.Trigger.available_now(drain=ends),
    )
    started.await_termination()
    assert expected + expected_beside
    assert (sorted(found), sorted(beside)) == (sorted(expected), sorted(expected_beside))
