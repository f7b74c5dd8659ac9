"""A query's state and progress, read while the query runs or is stopped.

Reading writes nothing and waits for nothing. The state is that after a finished batch, from a snapshot or from Spark's
own state store: buffered rows, versions in force, states by name, and timers. Columns have the inputs' own names, times
are timestamps, and internal entries are left out. Each attribute is a DataFrame over the whole state, which is read
when it is used; ``key`` returns the state of one key as Python values.

The progress is read from its table, and from the manifests that are not in the table yet. Only ``savepoint`` writes
something: one snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.checkpoint import Moment, Snapshot, open_files
from cojoin.checkpoints.identity import described_at, read_query
from cojoin.checkpoints.inspect.key_state import (
    BUFFERS,
    DOMAINS,
    PAIRED,
    REJECTED,
    STATE,
    KeyState,
    Values,
    as_key,
    find,
    key_state,
)
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.progress_rows import PROGRESS_SCHEMA, progress_rows
from cojoin.checkpoints.progress_table import newest_batch, read_progress_rows
from cojoin.checkpoints.savepoint import take_savepoint
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.checkpoints.state_table import StateTable
from cojoin.checkpoints.stored_state import StoredState, open_batch
from cojoin.engine.display import Display, format_bytes, format_time, text_table
from cojoin.engine.input_spec import InputSpec
from cojoin.engine.rescaling import key_columns
from cojoin.engine.row_changes import RowChanges
from cojoin.engine.state.ttl import split_type
from cojoin.engine.time.known_time import KnownTime
from cojoin.engine.time.time_axis import TimeAxis, is_moment
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.rows import back_quoted, free_name
from cojoin.engine.values.types import parse_schema
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.session.arrow_types import spark_schema
from cojoin.session.sessions import empty_frame, finds_session
from cojoin.session.spark_checkpoint import committed_batches
from cojoin.storage.locations import as_location

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from cojoin.checkpoints.manifest import Manifest
    from cojoin.engine.batch_report import BatchReport
    from cojoin.storage.locations import Location
    from cojoin.storage.store import Store


_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which both Spark and Python can show."""


@dataclass(frozen=True, eq=False)
class QueryState:
    """A query's state after one batch; ``read_state`` returns it.

    Attributes:
        path: The checkpoint's directory, as the caller wrote it.
        batch_id: The batch.
        origin: Where the state is read from: a ``"snapshot"``, or Spark's own ``"state store"``.
        inputs: The left and the right input, as the checkpoint describes them.
        query: The checkpoint's description of the query.
        report: The batch's counts and watermarks; None where they are no longer known.
        stored: The state as it is stored.
    """

    path: str
    batch_id: int
    origin: Literal["snapshot", "state store"]
    inputs: tuple[InputSpec, InputSpec]
    query: Mapping[str, Any]
    report: BatchReport | None
    stored: StoredState

    @property
    def taken_at(self) -> datetime | None:
        """The batch's processing time, in UTC; None where it is not known."""
        millis = max((int(header["processing_time"]) for header in self.stored.headers), default=0)
        return datetime.fromtimestamp(millis / 1000, tz=timezone.utc) if millis else None

    @property
    def watermark(self) -> int:
        """The operator's watermark, in epoch milliseconds; ``-2**63`` before the first one."""
        if not self.stored.headers:
            return NONE
        # The same in every key group.
        watermark = self.stored.headers[0]["watermark"]
        return int(watermark["merge"]["current"]) if watermark["released"] else NONE

    @cached_property
    def buffered(self) -> dict[str, DataFrame]:
        """The buffered rows of each input, by name: its columns, ``waits_for``, and in interval joins ``matched``."""
        by_name: dict[str, DataFrame] = {}
        for side, spec in enumerate(self.inputs):
            names = [name for name, (owner, _) in BUFFERS.items() if owner == side and name in self.stored.tables]
            frames = [self._waiting(name, paired=bool(PAIRED & {*names})) for name in names]
            by_name[spec.name] = reduce(_together, frames)
        return by_name

    @cached_property
    def versions(self) -> DataFrame | None:
        """The rows of the right input that later rows can match, in as-of and temporal joins; None in others."""
        return self.stored.rows("versions") if "versions" in self.stored.tables else None

    @cached_property
    def states(self) -> dict[str, DataFrame]:
        """A function's states by name: the key's columns, ``value``, and with a time-to-live ``last_access``."""
        names = [name for name in self.stored.tables if name.startswith(STATE)]
        return {name.removeprefix(STATE): self._state(name) for name in names}

    @cached_property
    def timers(self) -> DataFrame:
        """A function's timers: the key's columns, ``domain``, ``timestamp``, ``timestamp_ms``; empty for a join.

        Where a timestamp can't represent the time, ``timestamp`` is null, and only ``timestamp_ms`` has the time.
        """
        domains = [name for name in DOMAINS if name in self.stored.tables]
        if domains:
            return reduce(_together, [self._timers(name) for name in domains])
        empty = empty_frame(self.stored.contents.sparkSession, self.inputs[0].key_schema)
        none: list[Column] = [F.lit(None).cast(dtype) for dtype in ("string", "timestamp", "bigint")]
        added = zip(("domain", "timestamp", "timestamp_ms"), none, strict=True)
        return empty.select("*", *(column.alias(free_name(name, empty.columns)) for name, column in added))

    def key(self, value: Any) -> KeyState:
        """Return the whole state of a key.

        Args:
            value: The key; a tuple where it has several columns.

        Raises:
            ConfigurationError: The value has other columns than the key.
            FunctionError: A value is not of its column's type.
            CheckpointError: The state is damaged.

        Example:
            ``print(read_state(spark, "/lake/_cojoin/enriched").key(17))``
        """
        wanted = {name: self.key_values(name, value) for name in self.stored.tables}
        return key_state(self, as_key(value, self.inputs[0]), find(self.stored, wanted, self.inputs))

    def key_values(self, table: str, key: Any) -> Values:
        """Return a key as values by the column names of a stored table."""
        names = key_columns(table, self.inputs)
        values = as_key(key, self.inputs[0]).values()
        return dict(zip(names, values, strict=True))

    def largest_keys(self, limit: int = 10) -> DataFrame:
        """Return the keys with the most rows, in all tables together, in descending order of rows."""
        columns = list(self.inputs[0].key)
        every = reduce(_together, [self._keys(name) for name in self.stored.tables])
        counted = every.groupBy(*map(back_quoted, columns)).agg(F.count(F.lit(1)).alias("rows"))
        return counted.orderBy(F.desc("rows"), *map(back_quoted, columns)).limit(limit)

    def tables(self) -> list[tuple[str, int, int]]:
        """Return a readable name, the number of rows and their bytes, for each table.

        Rows of segments that have expired, and were neither read nor compacted since, are counted.
        """
        return [(self.part_name(name), each.rows, each.bytes) for name, each in self.stored.tables.items()]

    def part_name(self, name: str) -> str:
        """Return a readable name of a stored table."""
        if name in BUFFERS:
            side, waits_for = BUFFERS[name]
            return f"{self.inputs[side].name}, waiting for {waits_for}"
        if name == "versions":
            return f"{self.inputs[1].name}, versions in force"
        if name in REJECTED:
            return f"{self.inputs[REJECTED[name]].name}, rejected of a commit that is half read"
        if name in DOMAINS:
            return f"timers, {DOMAINS[name].replace('_', ' ')}"
        return f"state {name.removeprefix(STATE)!r}"

    def _headline(self) -> list[str]:
        when = "" if self.taken_at is None else f", {self.taken_at:%Y-%m-%d %H:%M:%S} UTC"
        left, right = (spec.name for spec in self.inputs)
        operator = str(self.query["operator"])
        operation = f"{self.query['function']} of" if operator == "process" else f"{operator.replace('_', ' ')} of"
        holding = None if self.report is None else self.report.holding_input
        watermark = format_time(self.watermark) + ("" if holding is None else f", held back by {holding!r}")
        return [
            f"State of {self.path} after batch {self.batch_id}{when}, from {_ORIGINS[self.origin]}",
            f"{operation} {left!r} with {right!r}, {len(self.stored.headers)} key groups; watermark {watermark}",
        ]

    def _largest_groups(self) -> str:
        sizes = {} if self.report is None else dict(self.report.state_bytes_by_key_group)
        largest = sorted(sizes.items(), key=lambda item: (-item[1], int(item[0])))[:3]
        shown = ", ".join(f"{group} ({format_bytes(size)})" for group, size in largest)
        return f"largest key groups: {shown}" if shown else ""

    def __str__(self) -> str:
        return "\n".join(filter(None, [*self._headline(), "", text_table(self._sizes()), self._largest_groups()]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        groups = self._largest_groups()
        return Display("\n".join(self._headline()), self._sizes(), [groups] if groups else []).html()

    def _sizes(self) -> list[Sequence[str]]:
        sizes = ((name, f"{count:,}", f"{size:,}") for name, count, size in self.tables())
        return [("holds", "rows", "bytes"), *sizes]

    def _waiting(self, name: str, *, paired: bool) -> DataFrame:
        names, flag = self.stored.tables[name].schema.names, F.lit(None).cast("boolean")
        if name in PAIRED:
            names, flag = names[:-1], F.col(f"c{len(names) - 1}")
        added = {"waits_for": F.lit(BUFFERS[name][1]), **({"matched": flag} if paired else {})}
        return _select(self.stored.numbered(name), names, added)

    def _state(self, name: str) -> DataFrame:
        schema = self.stored.tables[name].schema
        keys, stored = schema.names[:-1], schema.field(-1).type
        frame = self.stored.numbered(name)
        column = F.col(f"c{len(keys)}")
        if split_type(stored)[1] is None:
            return _select(frame, keys, {"value": column})
        values, accesses = _split(column, stored)
        return _select(frame, keys, {"value": values, "last_access": accesses})

    def _timers(self, name: str) -> DataFrame:
        keys = self.stored.tables[name].schema.names[:-1]
        millis = F.col(f"c{len(keys)}")
        added = {"domain": F.lit(DOMAINS[name]), "timestamp": _moment(millis), "timestamp_ms": millis}
        return _select(self.stored.numbered(name), keys, added)

    def _keys(self, name: str) -> DataFrame:
        names = self.stored.tables[name].schema.names
        positions = [names.index(column) for column in key_columns(name, self.inputs)]
        return self.stored.numbered(name).select(
            *(F.col(f"c{position}").alias(key) for position, key in zip(positions, self.inputs[0].key, strict=True))
        )


_ORIGINS = {"snapshot": "a snapshot", "state store": "Spark's own state store"}


def _select(numbered: DataFrame, names: Sequence[str], added: Mapping[str, Column]) -> DataFrame:
    """Return the columns under their original names, and added columns under names that are still free."""
    columns = [F.col(f"c{position}").alias(name) for position, name in enumerate(names)]
    return numbered.select(*columns, *(column.alias(free_name(name, names)) for name, column in added.items()))


def _together(one: DataFrame, two: DataFrame) -> DataFrame:
    return one.union(two) if one.columns == two.columns else one.unionByName(two, allowMissingColumns=True)


def _moment(millis: Column) -> Column:
    return F.when(millis.between(_FIRST_MS, _LAST_MS), F.timestamp_millis(millis))


def _split(column: Column, stored: pa.DataType) -> tuple[Column, Column]:
    """Split the stored column of a state with a time-to-live into values and times of last access."""
    value, access = "@value", f"@{split_type(stored)[1]}"
    if pa.types.is_list(stored):
        return (
            F.transform(column, lambda item: item.getField(value)),
            F.transform(column, lambda item: _moment(item.getField(access))),
        )
    if pa.types.is_map(stored):
        return (
            F.transform_values(column, lambda _, item: item.getField(value)),
            F.transform_values(column, lambda _, item: _moment(item.getField(access))),
        )
    return column.getField(value), _moment(column.getField(access))


_EXPECTED = "the path of a query's checkpoint directory"


@finds_session
def read_state(spark: SparkSession, checkpoint: Location | Snapshot, at: Moment = None) -> QueryState:
    """Read a query's state after a batch.

    Args:
        spark: The session; if it is left out, the active one.
        checkpoint: The query's checkpoint directory, or a ``Snapshot``.
        at: A batch's number; a datetime with a time zone, for the last batch at or before it; None for the newest.

    Raises:
        ConfigurationError: The path or the moment is invalid.
        CheckpointError: The directory is not a checkpoint, or no longer has the state at that moment; the message lists
            the batches that it has.

    Example:
        ``read_state(spark, "/lake/_cojoin/enriched").buffered["trades"].show()``
    """
    checkpoint = as_snapshot(checkpoint, at)
    files = open_files(spark, checkpoint.path)
    snapshots = Snapshots(files)
    saved, committed = snapshots.batch_ids(), committed_batches(files)
    wanted = checkpoint.at
    if isinstance(wanted, datetime):
        batch_id = _last_before(files, snapshots, wanted)
    elif wanted is None:
        batch_id = max([*committed[-1:], *saved[-1:]], default=None)
    else:
        batch_id = wanted if wanted in {*committed, *saved} else None
    if batch_id is None:
        raise _unknown(files, wanted)
    if batch_id in saved:
        return _of_snapshot(spark, files, checkpoint.path, batch_id)
    try:
        return _of_store(spark, files, checkpoint.path, batch_id)
    except CheckpointError:
        # The newest state was asked for, rather than this batch; a snapshot is kept for longer.
        if wanted is None and saved:
            return _of_snapshot(spark, files, checkpoint.path, saved[-1])
        raise


@finds_session
def read_progress(spark: SparkSession, checkpoint: Location | Snapshot) -> DataFrame:
    """Read a query's progress: counts, watermarks and sizes, one row for each batch, the newest last.

    Args:
        spark: The session; if it is left out, the active one.
        checkpoint: The query's checkpoint directory, or a ``Snapshot``, whose ``at`` leaves out later batches.

    Raises:
        CheckpointError: The directory is not a checkpoint.

    Example:
        ``read_progress(spark, path).select("batch_id", "watermark", "holding_input").show()``
    """
    checkpoint = as_snapshot(checkpoint, None)
    files = open_files(spark, checkpoint.path)
    rows = read_progress_rows(files)
    # With Spark Connect, a table without rows needs its schema given.
    schema = spark_schema(PROGRESS_SCHEMA)
    if rows is None:
        table = spark.read.format("delta").load(files.path("progress"))
        # The table is opened before the manifests are listed, as in ``read_progress_rows``.
        unwritten = progress_rows(Manifests(files).read_after(newest_batch(table)))
        progress = table.unionByName(spark.createDataFrame(unwritten, schema), allowMissingColumns=True)
    else:
        progress = spark.createDataFrame(rows, schema)
    if isinstance(checkpoint.at, datetime):
        progress = progress.where(F.col("processing_time") <= F.lit(checkpoint.at))
    elif checkpoint.at is not None:
        progress = progress.where(F.col("batch_id") <= checkpoint.at)
    return progress.orderBy("batch_id")


@finds_session
def savepoint(spark: SparkSession, checkpoint: Location | Snapshot) -> Snapshot:
    """Write a savepoint of the state after a query's last finished batch, while the query runs or is stopped.

    Args:
        spark: The session; if it is left out, the active one.
        checkpoint: The query's checkpoint directory.

    Returns:
        The checkpoint at that batch, for ``read_state`` and ``start(restore_from=...)``; it is kept until a user
        removes it.

    Raises:
        ConfigurationError: A ``Snapshot`` with a moment is given.
        CheckpointError: The directory is not a checkpoint, no batch is finished yet, or the query was drained.
    """
    checkpoint = as_snapshot(checkpoint, None)
    if checkpoint.at is not None:
        msg = f"savepoint: expected a path, since it is taken of the last batch; got at={checkpoint.at!r}"
        raise ConfigurationError(msg)
    return take_savepoint(spark, open_files(spark, checkpoint.path))


def as_snapshot(checkpoint: Location | Snapshot, at: Moment) -> Snapshot:
    """Return the checkpoint of a path or a ``Snapshot``, and a moment; ``ConfigurationError`` where two are given."""
    if not isinstance(checkpoint, Snapshot):
        return Snapshot(as_location(checkpoint, "checkpoint", expected=_EXPECTED), at)
    if at is None:
        return checkpoint
    if checkpoint.at is not None:
        msg = f"at: expected one moment, got at={at!r} for {checkpoint!r}; leave one of them out"
        raise ConfigurationError(msg)
    return Snapshot(checkpoint.path, at)


def stored_inputs(query: Mapping[str, Any]) -> tuple[InputSpec, InputSpec]:
    """Return the inputs as a checkpoint describes them; watermark strategies are not stored."""
    left, right = map(_stored_input, query["inputs"])
    return left, right


def _stored_input(stored: Mapping[str, Any]) -> InputSpec:
    """Return one input as a checkpoint describes it."""
    schema, axis = parse_schema(stored["columns"], label=f"input {stored['name']!r}"), TimeAxis.read(stored)
    known, event_time = KnownTime.read(stored, schema, axis), stored["event_time"]
    changes = RowChanges.read(stored.get("changes"), event_time, axis, known)
    # Of event times that are timestamps the axis is that of the known times alone.
    is_timed = event_time in schema.names and is_moment(schema.field(event_time).type)
    return InputSpec(
        stored["name"],
        schema,
        tuple(stored["key"]),
        event_time,
        tuple(stored["partition"]),
        tuple(stored["sequence"]),
        static=bool(stored.get("static")),
        changes=changes,
        axis=None if changes is not None or is_timed else axis,
        known=known,
    )


def state_manifest(files: Store, state: QueryState) -> Manifest:
    """Return the manifest, with source offsets and outputs, of the batch after which a state is.

    Raises ``CheckpointError`` where it no longer exists.
    """
    if state.origin == "snapshot":
        snapshot = Snapshots(files).read(state.batch_id)
        manifest = None if snapshot is None else snapshot.manifest
    else:
        manifest = Manifests(files).at_or_before(state.batch_id)
    if manifest is None:
        msg = f"{files.named}: the manifest of batch {state.batch_id} was removed; read a newer state"
        raise CheckpointError(msg)
    return manifest


def _of_snapshot(spark: SparkSession, files: Store, path: str, batch_id: int) -> QueryState:
    snapshot = Snapshots(files).read(batch_id)
    if snapshot is None:
        raise _unknown(files, batch_id)
    # Its rows are read when a user asks for them, and the query may remove the snapshot until then.
    stored = StoredState.of_snapshot(StateTable(spark, files).pinned(snapshot), snapshot)
    query = described_at(read_query(files), batch_id)
    return QueryState(path, batch_id, "snapshot", stored_inputs(query), query, snapshot.manifest.report, stored)


def _of_store(spark: SparkSession, files: Store, path: str, batch_id: int) -> QueryState:
    stored, query = open_batch(spark, files, batch_id), described_at(read_query(files), batch_id)
    last = Manifests(files).at_or_before(batch_id)
    report = None if last is None else last.report
    return QueryState(path, batch_id, "state store", stored_inputs(query), query, report, stored)


def _last_before(files: Store, snapshots: Snapshots, moment: datetime) -> int | None:
    earlier = [each.batch_id for each in snapshots.all() if each.taken_at <= moment]
    committed, manifests = {*committed_batches(files)}, Manifests(files)
    # Newest first, because most requests are for a recent moment.
    for batch_id in reversed([each for each in manifests.batch_ids() if each in committed]):
        manifest = manifests.read(batch_id)
        if manifest is not None and manifest.report.processing_time <= 1000 * moment.timestamp():
            return max([batch_id, *earlier])
    return max(earlier, default=None)


def _unknown(files: Store, wanted: Moment) -> CheckpointError:
    saved, committed = Snapshots(files).batch_ids(), committed_batches(files)
    if not saved and not committed:
        msg = f"{files.named}: no batch is finished yet, so it has no state to read"
        return CheckpointError(msg)
    states = [f"snapshots of batches {', '.join(map(str, saved))}"] if saved else []
    if committed:
        states.append(f"in Spark's own state store batches {committed[0]} to {committed[-1]} at the most")
    moment = f"at or before {wanted.isoformat()}" if isinstance(wanted, datetime) else f"of batch {wanted}"
    msg = f"{files.named} has no state {moment}; it has {' and '.join(states)}"
    return CheckpointError(msg)
