"""The batches that followed a snapshot, as the checkpoint recorded them: their end, their time, and one key's rows.

The newest batches have manifests, the older ones rows in the progress table. A batch without content has neither, and
the next one with content begins where the one before it ended.

The time is that of the real run, which other keys' rows and other source partitions moved or held back. So the
operator's inputs get, in place of their watermark strategies, the watermark, the largest timestamp and the status that
were recorded after each batch, and the operator merges them by its own rules. The same rows are late, the same timers
fire and the same rows are emitted as in the real run.

Delta tables and folders of files are read by a stream of Spark with its own checkpoint in a temporary folder. One
micro-batch is planned in it that reads, for each batch of the real query, exactly from its begin to its end, so an
offset means the same as in the query. Other sources read between offsets themselves (``Source.between``). It costs one
Spark job over all rows between the first offset and the last, and one source of Spark's for each batch.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections import defaultdict
from dataclasses import dataclass, fields, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.inspect.key_state import having
from cojoin.checkpoints.inspect.query_state import read_progress
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.progress_rows import RecordedBatch
from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.time.operator_watermark import InputWatermark
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.values.rows import back_quoted
from cojoin.engine.values.tables import concat
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.session import spark_checkpoint
from cojoin.session.sessions import adapter_of, open_store
from cojoin.session.spark_checkpoint import NOTHING_READ, has_read, plan_interrupted
from cojoin.session.spark_errors import explain
from cojoin.spark.query.input_progress import snapshot_of
from cojoin.storage.locations import literally

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from cojoin.checkpoints.inspect.key_state import Values
    from cojoin.checkpoints.progress_rows import RecordedInput
    from cojoin.engine.operator import Sides
    from cojoin.engine.plan import Plan
    from cojoin.spark.bound_input import BoundInput
    from cojoin.spark.sources.sources import Source
    from cojoin.storage.store import Store


def batches_after(spark: SparkSession, files: Store, batch_id: int) -> list[RecordedBatch]:
    """Return the batches with content that followed a batch, oldest first."""
    manifests = Manifests(files)
    known = manifests.batch_ids()
    later = [each for each in known if each > batch_id]
    read = [manifests.read(number) for number in later]
    batches = [RecordedBatch.of_report(each.report, each.offsets) for each in read if each is not None]
    # Manifests are deleted from the oldest on, so if this batch has one, those after it have theirs.
    if batch_id not in known:
        first = min(later, default=None)
        rows = read_progress(spark, files.root).where(F.col("batch_id") > batch_id)
        rows = rows if first is None else rows.where(F.col("batch_id") < first)
        wanted = rows.select(*(each.name for each in fields(RecordedBatch))).toArrow().to_pylist()
        batches = [*sorted(map(RecordedBatch.of_row, wanted), key=lambda batch: batch.batch_id), *batches]
    return batches


def with_recorded_time(plan: Plan) -> Plan:
    """Return a plan whose watermarks only follow ``recorded_controls``."""
    return replace(plan.with_inputs(watermark=WatermarkStrategy()), key_groups=1)


def header_at(header: Mapping[str, Any], batch: RecordedBatch) -> dict[str, Any]:
    """Return a header of ``rescaling.merged_header`` with each input's time as recorded after the state's batch."""
    inputs = [_restored(each) for each in batch.inputs]
    return {**header, "watermark": {**header["watermark"], "inputs": inputs}}


def recorded_controls(batch: RecordedBatch) -> list[Control]:
    """Return the control rows of a batch; a drain ends the inputs by itself."""
    return [
        Control(
            number,  # type: ignore[arg-type]
            partitions=_times(recorded.max_timestamp),
            # Without a mark, since the watermark is known.
            marks=dict.fromkeys(_times(recorded.max_timestamp), NONE),
            watermarks=_times(recorded.watermark),
            statuses={None: recorded.status} if recorded.status != "finished" else {},
            processing_time=batch.processing_time,
        )
        for number, recorded in enumerate(batch.inputs, start=1)
    ]


def controls_until(batch: RecordedBatch, until: int) -> list[Control]:
    """Return the control rows of the part of a batch in which time comes to a moment, in epoch milliseconds."""
    return [
        replace(
            control,
            partitions={},
            marks=None,
            watermarks={name: min(time, until) for name, time in control.watermarks.items()},
        )
        for control in recorded_controls(batch)
    ]


def _times(time: int) -> dict[str, int]:
    return {ONE_PARTITION: time} if NONE < time < END_OF_TIME else {}


def _restored(recorded: RecordedInput) -> dict[str, Any]:
    watermark = InputWatermark()
    for partition, timestamp in _times(recorded.max_timestamp).items():
        watermark.observe(partition, timestamp, NONE)
    for partition, reached in _times(recorded.watermark).items():
        watermark.apply_watermark(partition, reached)
    if recorded.status != "active":
        watermark.set_status(None, recorded.status)
    return watermark.snapshot()


_BATCH = "batch"
_CLEANS = "cleansource"
"""The option of file sources that deletes or moves files that were read, which a replay must not do."""


@dataclass(frozen=True)
class Span:
    """The offsets of each source before and after one batch, as lines of Spark's offset log."""

    batch_id: int
    begins: Sequence[str]
    ends: Sequence[str]


@dataclass(frozen=True)
class ReplayedRows:
    """Reads one key's rows: those with its values by each input's column names, which all have Spark's hash of it."""

    spark: SparkSession
    files: Store
    inputs: tuple[BoundInput, BoundInput]
    key: tuple[Values, Values]
    key_hash: int

    def check_sources(self) -> None:
        """Check that both inputs have sources."""
        for bound in self.inputs:
            _source_of(bound)

    def read(self, spans: Sequence[Span]) -> dict[int, Sides]:
        """Return the key's rows of both inputs in successive batches, by batch."""
        pieces: defaultdict[tuple[int, int], list[pa.Table]] = defaultdict(list)
        leaves: list[_Leaf] = []
        for side, bound in enumerate(self.inputs):
            moved = [each for each in spans if each.begins[side] != each.ends[side]]
            if not moved:
                continue
            subject, source = f"input {bound.spec.name!r}", _source_of(bound)
            begin = moved[0].begins[side] if has_read(moved[0].begins[side]) else None
            self._check(source, subject, moved[0].batch_id, begin)
            static = source.between(subject, begin, [each.ends[side] for each in moved])
            if static is None:
                leaves += [
                    _Leaf(side, span.batch_id, span.begins[side], span.ends[side], self._entries(source, side, span))
                    for span in moved
                ]
            else:
                frame, numbers_of = static
                rows = self._rows(side, self._of_key(side, bound.rows_of(frame)).toArrow())
                span_numbers = pa.array(numbers_of(rows))
                for number, span in enumerate(moved):
                    mine = self._changes(
                        side, rows.filter(pc.equal(span_numbers, number)), span.begins[side], span.ends[side]
                    )
                    pieces[span.batch_id, side].append(mine)
        for leaf, rows in self._stream(leaves) if leaves else ():
            pieces[leaf.batch_id, leaf.side].append(self._changes(leaf.side, rows, leaf.begin, leaf.end))
        return {span.batch_id: self._sides(pieces, span.batch_id) for span in spans}

    def _changes(self, side: int, rows: pa.Table, begin: str, end: str) -> pa.Table:
        """Return rows of a source as the versions and deletes that they are between two offsets."""
        changes = self.inputs[side].spec.changes
        if changes is None:
            return rows
        snapshot = snapshot_of(begin, end) if changes.begins_with_snapshot else None
        return changes.from_the_beginning(changes.expanded(rows)[0], snapshot)

    def _sides(self, pieces: dict[tuple[int, int], list[pa.Table]], batch_id: int) -> Sides:
        left, right = (
            concat([bound.spec.schema.empty_table(), *pieces.get((batch_id, side), ())])
            for side, bound in enumerate(self.inputs)
        )
        return left, right

    def _check(self, source: Source, subject: str, batch_id: int, begin: str | None) -> None:
        lost = source.lost_since(self.spark, subject, begin)
        if lost:
            msg = (
                f"debug: rows that batch {batch_id} and those after it have read no longer exist: {'; '.join(lost)}; "
                f"begin with a later snapshot, at="
            )
            raise CheckpointError(msg)

    def _of_key(self, side: int, rows: DataFrame) -> DataFrame:
        """Return the rows of the key, and perhaps some of other keys with the same hash."""
        key = {name: rows[back_quoted(name)] for name in self.inputs[side].spec.key}
        condition = F.xxhash64(*key.values()) == F.lit(self.key_hash)
        for name, column in key.items():
            value = self.key[side][name]
            # Files can be skipped by their statistics for a comparison with a value, and not for one with a hash.
            if type(value) is int or (type(value) is str and value.isascii()):
                condition &= column == F.lit(value)
        return rows.where(condition)

    def _rows(self, side: int, table: pa.Table) -> pa.Table:
        spec = self.inputs[side].spec
        schema = spec.source_schema
        rows = table.rename_columns(schema.names).cast(schema)
        return having(rows, self.key[side])

    def _entries(self, source: Source, side: int, span: Span) -> list[dict[str, Any]]:
        """Return the files that a batch read of a folder, from the query's log; none for other sources."""
        if not source.has_log:
            return []
        begin, end = (
            int(json.loads(line)["logOffset"]) if has_read(line) else -1
            for line in (span.begins[side], span.ends[side])
        )
        entries = spark_checkpoint.source_entries(self.files, side)
        return [{**each, "batchId": 0} for each in entries if begin < each["batchId"] <= end]

    def _stream(self, leaves: Sequence[_Leaf]) -> list[tuple[_Leaf, pa.Table]]:
        """Return the key's rows of each leaf, read by one micro-batch."""
        frames = [self._frame(number, leaf) for number, leaf in enumerate(leaves)]
        whole = reduce(lambda one, two: one.unionByName(two, allowMissingColumns=True), frames)
        tables: list[pa.Table] = []

        def take(rows: DataFrame, _: int) -> None:
            tables.append(rows.toArrow())

        def write(rows: DataFrame, _: int) -> None:
            rows.write.parquet(taken)

        with tempfile.TemporaryDirectory(prefix="cojoin-debug-") as folder:
            store = open_store(self.spark, Path(folder).as_uri(), "temporary folder")
            taken = store.path("rows")
            interval = spark_checkpoint.compact_interval(self.spark)
            for number, leaf in enumerate(leaves):
                if leaf.entries:
                    spark_checkpoint.write_source_log(store, number, leaf.entries, 0, interval=interval)
            begins, ends = zip(*(leaf.positions for leaf in leaves), strict=True)
            plan_interrupted(self.spark, store, begins, ends)
            try:
                # With Spark Connect the function is called in another process.
                to = take if adapter_of(self.spark).runs_batches else write
                stream = whole.writeStream.foreachBatch(to).option("checkpointLocation", store.path("spark"))
                stream.queryName(f"cojoin debug {uuid.uuid4().hex[:8]}").trigger(once=True).start().awaitTermination()
                if to is write:
                    tables.append(self.spark.read.parquet(literally(taken)).toArrow())
            except PySparkException as error:
                names = " and ".join(repr(each.spec.name) for each in self.inputs)
                msg = (
                    f"debug: the rows that {names} had after batch {leaves[0].batch_id - 1} can't be read again: "
                    f"{explain(error)}; begin with a later snapshot, at="
                )
                raise CheckpointError(msg) from error
        table = concat(tables)
        pieces = []
        for number, leaf in enumerate(leaves):
            mine = table.filter(pc.equal(table.column(_BATCH), number))
            columns = [name for name in table.column_names if name.startswith(f"c{leaf.side}_")]
            pieces.append((leaf, self._rows(leaf.side, mine.select(columns))))
        return pieces

    def _frame(self, number: int, leaf: _Leaf) -> DataFrame:
        bound = self.inputs[leaf.side]
        source = _source_of(bound)
        quiet = {name: value for name, value in source.options.items() if name.lower() != _CLEANS}
        rows = self._of_key(leaf.side, bound.rows_of(replace(source, options=quiet).open()))
        # Named by position, since both inputs may have a name, and names may have dots.
        columns: list[Column] = [
            rows[back_quoted(name)].alias(f"c{leaf.side}_{at}")
            for at, name in enumerate(bound.spec.source_schema.names)
        ]
        return rows.select(F.lit(number).alias(_BATCH), *columns)


@dataclass(frozen=True)
class _Leaf:
    """The rows of one input, 0 or 1, that one batch read between two offsets: a source in the replaying stream.

    A folder has entries: the files that the batch read, all under the first number of a log.
    """

    side: int
    batch_id: int
    begin: str
    end: str
    entries: Sequence[dict[str, Any]]

    @property
    def positions(self) -> tuple[str, str]:
        """The offsets in the replaying stream, whose log of files has only this batch's."""
        if self.entries:
            return NOTHING_READ, json.dumps({"logOffset": 0})
        return (self.begin if has_read(self.begin) else NOTHING_READ), self.end


def _source_of(bound: BoundInput) -> Source:
    if bound.source is None:
        msg = (
            f"debug: input {bound.spec.name!r} is a DataFrame, whose rows can't be read again; "
            f"give cojoin.Input a source: cojoin.kafka.source, cojoin.sources.delta or files"
        )
        raise ConfigurationError(msg)
    if bound.spec.static:
        msg = (
            f"debug: input {bound.spec.name!r} is a static side, whose rows are in the state and not in batches; "
            f"read_state() and explain() show what a key's rows were joined with"
        )
        raise ConfigurationError(msg)
    return bound.source
