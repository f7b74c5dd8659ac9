"""The map side of an input: splits its rows by key group and packs them into Arrow messages.

It takes the input's columns with each row's key group, and emits ``(key_group, tag, payload)``: messages of rows with
the input's tag, and at the end of the task one control row (tag 0) for every key group, with the largest timestamp of
each source partition and the number of rows sent to that key group. So the shuffle moves a few large binary rows
whatever the inputs' schemas, and every key group receives the timestamps of every partition. It costs one sort of small
integers and one copy of the rows. ``unpack`` converts such messages to rows.

A key group is Spark's hash of the key, modulo the number of groups. Spark computes it, or a worker does
(``Grouping``), with the same result. Rows with a null key that are emitted without a match are spread by the hash of
their content.

Where rows are known to be small, Spark's Arrow batches are limited by their number of rows alone
(``counted_by_rows``): a thousand small rows take at most 4 MB, and a thousand messages of packed rows 128 MB. For its
own limit of 64 MB, Spark adds up the sizes of all columns before each row, which is a third of the JVM's work in an
as-of join. That limit remains until both inputs have had rows. It also remains if rows or the state are large, if a
Python function processes an input's rows first, or if the user has set a limit.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.input_spec import ObservedTimes, has_null_key
from cojoin.engine.key_groups import spark_xx_hashes
from cojoin.engine.time.control_rows import REPEATED, UNAVAILABLE, CompleteReading, Control
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.codec import binary_column, read_message, write_messages
from cojoin.engine.values.rows import decode_column, decode_rows, dump_json, free_name
from cojoin.errors import QueryFailedError
from cojoin.session.arrow_types import spark_schema
from cojoin.session.sealed import for_workers
from cojoin.session.sessions import adapter_of
from cojoin.spark.batch.batch_facts import batch_time, check_places

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame, SparkSession

    from cojoin.engine.input_spec import InputSpec

# Larger chunks cost less; these limits bound a map task's memory.
CHUNK_ROWS, CHUNK_BYTES = 131_072, 64 << 20


class Piece(NamedTuple):
    """Rows of one key group: the group's number, the number of rows, and their messages (``engine.values.codec``)."""

    group: int
    rows: int
    messages: Sequence[pa.Buffer]


@dataclass(frozen=True)
class Grouping:
    """Computes the key groups of an input's rows in the Python workers.

    Attributes:
        schema: The input's columns.
        key: The names of the key columns, of types that ``engine.key_groups.is_hashed`` accepts.
        key_groups: The number of key groups.
        spreading: The columns whose hash distributes rows with a null key, of types that ``is_hashed`` accepts; none if
            such rows are rejected.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    key_groups: int
    spreading: tuple[str, ...] = ()

    def groups(self, rows: pa.RecordBatch | pa.Table) -> NDArray[np.int32]:
        """Return the key group of each row; ``rows`` has the input's columns."""
        if not self.key:
            return np.zeros(rows.num_rows, dtype=np.int32)
        keys = self._columns(rows, self.key)
        hashes = spark_xx_hashes(keys)
        if self.spreading:
            is_null = has_null_key(keys, keys.column_names)
            if is_null.any():
                hashes = np.where(is_null, spark_xx_hashes(self._columns(rows, self.spreading)), hashes)
        return np.mod(hashes, self.key_groups).astype(np.int32)

    def _columns(self, rows: pa.RecordBatch | pa.Table, names: Sequence[str]) -> pa.Table:
        places = [self.schema.get_field_index(name) for name in names]
        return pa.table([rows.column(at) for at in places], names=[str(at) for at in places])


def cut(rows: pa.Table, groups: NDArray[np.int32]) -> Iterator[Piece]:
    """Yield rows by key group, the groups in ascending order."""
    order = np.argsort(groups, kind="stable")
    sorted_rows = rows.take(pa.array(order))
    present, starts = np.unique(groups[order], return_index=True)
    bounds = [*starts.tolist(), len(order)]
    for group, start, stop in zip(present.tolist(), bounds, bounds[1:], strict=False):
        yield Piece(group, stop - start, list(write_messages(sorted_rows.slice(start, stop - start))))


def chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield rows in chunks of limited rows and bytes; only a chunk of one row exceeds twice ``CHUNK_BYTES``."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for piece in _halved(batch):
            if waiting and size + piece.nbytes > 2 * CHUNK_BYTES:
                yield pa.Table.from_batches(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
            if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
                yield pa.Table.from_batches(waiting)
                waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _halved(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in pieces of limited bytes; a large row is alone in its piece, however small the others are."""
    half = batch.num_rows // 2
    if half and batch.nbytes > 2 * CHUNK_BYTES:
        yield from _halved(batch.slice(0, half))
        yield from _halved(batch.slice(half))
    elif batch.num_rows:
        yield batch


PACKED_DDL = "key_group int, tag tinyint, payload binary"
CONTROL_TAG, LOADED_TAG = 0, 3
GROUP_COLUMN, NOW_COLUMN = "__cojoin_key_group", "__cojoin_now"
MARK_COLUMN, FAULT_COLUMN, NEWEST_COLUMN = MARKER_COLUMNS = ("__cojoin_mark", "__cojoin_fault", "__cojoin_newest")
"""The columns of marker rows, which a source of cojoin's adds to its rows; they are null in ordinary rows.

- A row with a mark carries the time up to which its source partition is read, in epoch milliseconds.
- A row with a fault stands for records that give no row. The fault is the reason, a colon, and a description. All are
  rejected but ``REPEATED`` and ``UNAVAILABLE``, which are counted.
- A row with a newest time carries the largest record timestamp of its partition in the task, in epoch milliseconds.
- A row with a mark and a newest time is a mark of a partition that holds more records.
"""

READY_GROUP, READY_PAYLOAD = READY_COLUMNS = ("__cojoin_ready_group", "__cojoin_ready_payload")
"""The columns of rows that a source's task has packed: a message of rows, and the number of its key group.

In a packed row, the input's columns are null; in an ordinary row, these two are null.
"""

_PACKED_SCHEMA = pa.schema([("key_group", pa.int32()), ("tag", pa.int8()), ("payload", pa.binary())])


@dataclass(frozen=True)
class Packer:
    """Packs the rows of one input; ``mapInArrow`` calls it once per map task.

    Attributes:
        spec: The input.
        tag: 1 (left) or 2 (right).
        labels: The label of each key group, by which Spark groups (``engine.key_groups``), by the group's number.
        max_apart_ms: How far the source's record timestamps may be after its rows' event times, in milliseconds; None
            if the source has no such timestamps.
    """

    spec: InputSpec
    tag: Any
    labels: tuple[int, ...]
    max_apart_ms: int | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows and control rows as ``(key_group, tag, payload)``."""
        check_places()
        time = None if self.spec.max_ahead_ms is None else batch_time()
        seen = _Seen(time or 0)
        for chunk in chunks(batches):
            if NOW_COLUMN in chunk.column_names:
                seen.processing_time = int(chunk.column(NOW_COLUMN)[0].as_py())
            elif self.spec.max_ahead_ms is not None and time is None:
                msg = "the time of the micro-batch did not reach the workers; start the query again"
                raise QueryFailedError(msg)
            ready, others = _ready_or_not(chunk)
            if ready is not None:
                yield self._passed_on(ready, seen)
            yield from self._pack(others, seen)
        if seen.any_row:
            yield self._controls(seen)
        # Idle workers keep their memory until the next task, and a machine has several.
        pa.default_memory_pool().release_unused()

    def _passed_on(self, ready: pa.Table, seen: _Seen) -> pa.RecordBatch:
        """Return the messages that the source's task has packed, and record their rows and times."""
        groups, payloads = ready.column(READY_GROUP).to_pylist(), ready.column(READY_PAYLOAD).combine_chunks()
        batches = [read_message(payload.as_buffer(), self.spec.source_schema) for payload in payloads]
        for group, batch in zip(groups, batches, strict=True):
            seen.rows[group] += batch.num_rows
        self._observe(pa.Table.from_batches(batches), seen)
        return _packed([self.labels[group] for group in groups], self.tag, payloads)

    def _pack(self, chunk: pa.Table, seen: _Seen) -> Iterator[pa.RecordBatch]:
        chunk = self._without_markers(chunk, seen)
        if not chunk.num_rows:
            return
        groups = chunk.column(GROUP_COLUMN).to_numpy()
        schema = self.spec.source_schema
        rows = chunk.select(range(len(schema))).rename_columns(schema.names).cast(schema).combine_chunks()
        if self.spec.changes is not None:
            rows, places = self.spec.changes.expanded(rows)
            groups = groups if places is None else groups[places]
        self._observe(rows, seen)
        pieces: list[tuple[int, pa.Buffer]] = []
        for piece in cut(rows, groups):
            seen.rows[piece.group] += piece.rows
            pieces += [(self.labels[piece.group], message) for message in piece.messages]
        yield _packed([label for label, _ in pieces], self.tag, binary_column([message for _, message in pieces]))

    def _without_markers(self, chunk: pa.Table, seen: _Seen) -> pa.Table:
        """Record the marker rows of a chunk, and return its ordinary rows."""
        if MARK_COLUMN not in chunk.column_names:
            return chunk
        markers = [chunk.column(name) for name in MARKER_COLUMNS]
        if all(each.null_count == chunk.num_rows for each in markers):
            return chunk
        seen.any_row = True
        generator = self.spec.watermark.generator
        furthest = self.spec.max_ahead_ms
        for partition, mark in self._by_partition(chunk, MARK_COLUMN):
            # A mark must not be later than the latest event time that this input accepts.
            promised = mark if furthest is None else min(mark, seen.processing_time + furthest)
            made = int(generator.of_source(promised, seen.processing_time))
            if made > NONE:
                seen.source_watermarks[partition] = max(made, seen.source_watermarks.get(partition, made))
        marked = pc.is_valid(chunk.column(MARK_COLUMN))
        seen.unread.update(name for name, _ in self._by_partition(chunk.filter(marked), NEWEST_COLUMN))
        seen.newest.update(self._by_partition(chunk.filter(pc.invert(marked)), NEWEST_COLUMN))
        # The chunk's columns are named by position (Input.packed).
        named = {f"c{self.spec.schema.get_field_index(name)}": name for name in self.spec.source_order}
        is_repeated, has_nulls = (pc.equal(chunk.column(FAULT_COLUMN), each) for each in (REPEATED, UNAVAILABLE))
        repeated, nulled = chunk.filter(is_repeated), chunk.filter(has_nulls)
        faulty = chunk.filter(pc.invert(pc.or_(is_repeated, has_nulls)))
        known = [dict(zip(named.values(), each, strict=True)) for each in decode_rows(faulty.select(list(named)), str)]
        groups, error = faulty.column(GROUP_COLUMN).to_pylist(), free_name("error", self.spec.source_schema.names)
        for group, fault, row in zip(groups, faulty.column(FAULT_COLUMN).to_pylist(), known, strict=True):
            reason, _, description = fault.partition(": ")
            seen.faults[group].append((reason, dump_json({**row, error: description})))
        seen.tombstones.update(repeated.column(GROUP_COLUMN).to_pylist())
        seen.unavailable.update(nulled.column(GROUP_COLUMN).to_pylist())
        is_row = [pc.is_null(each) for each in markers]
        return chunk.filter(pc.and_(pc.and_(is_row[0], is_row[1]), is_row[2]))

    def _by_partition(self, chunk: pa.Table, sign: str) -> list[tuple[str, int]]:
        """Return the values of a marker column with the names of their source partitions."""
        signed = chunk.filter(pc.is_valid(chunk.column(sign)))
        columns = [f"c{self.spec.schema.get_field_index(name)}" for name in self.spec.partition]
        places = zip(*(decode_column(signed.column(name), str) for name in columns), strict=True)
        values = signed.column(sign).to_pylist()
        return [(json.dumps(place, default=str), value) for place, value in zip(places, values, strict=False)]

    def _observe(self, rows: pa.Table, seen: _Seen) -> None:
        seen.any_row = True
        seen.times.add(rows, self.spec, seen.processing_time)

    def _controls(self, seen: _Seen) -> pa.RecordBatch:
        shared = {"input": self.tag, "partitions": seen.times.partitions, "processing_time": seen.processing_time}
        if seen.times.marks != seen.times.partitions:
            shared["marks"] = seen.times.marks
        if seen.source_watermarks:
            shared |= {"source_watermarks": seen.source_watermarks, "unread": sorted(seen.unread)}
        if self.max_apart_ms is not None and seen.agreement(self.max_apart_ms) is not None:
            shared["agrees"] = seen.agreement(self.max_apart_ms)
        messages = []
        for group in range(len(self.labels)):
            own: dict[str, Any] = {"rows": seen.rows[group]}
            own |= {"faults": seen.faults[group]} if group in seen.faults else {}
            own |= {"tombstones": seen.tombstones[group]} if group in seen.tombstones else {}
            own |= {"unavailable": seen.unavailable[group]} if group in seen.unavailable else {}
            messages.append(json.dumps(shared | own).encode())
        return _packed(self.labels, CONTROL_TAG, binary_column(messages))


class _Seen:
    """The times, markers and row counts that a map task has seen."""

    def __init__(self, processing_time: int) -> None:
        self.processing_time = processing_time
        self.times = ObservedTimes()
        self.source_watermarks: dict[str, int] = {}
        self.newest: dict[str, int] = {}
        self.unread: set[str] = set()
        self.faults: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
        self.tombstones: Counter[int] = Counter()
        self.unavailable: Counter[int] = Counter()
        self.rows: Counter[int] = Counter()
        self.any_row = False

    def agreement(self, max_apart_ms: int) -> bool | None:
        """Return whether the record timestamps are near the rows' event times; None if no partition has both."""
        times = self.times.partitions
        both = [(newest, times[name]) for name, newest in self.newest.items() if name in times]
        return all(newest - timestamp <= max_apart_ms for newest, timestamp in both) if both else None


def key_group(keys: Sequence[Column], key_groups: int, spreading: Sequence[Column] = ()) -> Column:
    """Return the expression of a row's key group: Spark's hash of the key's values, modulo the number of groups.

    In rows with a null key, the hash of the columns ``spreading`` takes its place, if there are any. All rows
    without key columns are in group 0.
    """
    if not keys:
        return F.lit(0)
    hashed = F.xxhash64(*keys)
    if spreading:
        is_null = reduce(or_, (key.isNull() for key in keys))
        hashed = F.when(is_null, F.xxhash64(*spreading)).otherwise(hashed)
    return F.pmod(hashed, F.lit(key_groups)).cast("int")


def read_control(payload: bytes) -> Control | None:
    """Return a control message; None for the end of input."""
    message = json.loads(payload)
    if message.get("end_of_input"):
        return None
    return Control(
        message["input"],
        message["partitions"],
        message["rows"],
        message["processing_time"],
        message.get("marks"),
        faults=message.get("faults", ()),
        tombstones=message.get("tombstones", 0),
        unavailable=message.get("unavailable", 0),
        source_watermarks=message.get("source_watermarks", {}),
        agrees=message.get("agrees"),
        unread=message.get("unread", ()),
        reading=CompleteReading.read(message.get("reading")),
    )


def _ready_or_not(chunk: pa.Table) -> tuple[pa.Table | None, pa.Table]:
    """Return the packed rows, None if there are none, and the other rows."""
    if READY_PAYLOAD not in chunk.column_names:
        return None, chunk
    is_ready = pc.is_valid(chunk.column(READY_PAYLOAD))
    ready, others = chunk.filter(is_ready), chunk.filter(pc.invert(is_ready))
    return ready if ready.num_rows else None, others


def _packed(labels: Sequence[int], tag: int, payloads: pa.Array) -> pa.RecordBatch:
    tags = np.full(len(payloads), tag, dtype=np.int8)
    return pa.RecordBatch.from_arrays([pa.array(labels, pa.int32()), pa.array(tags), payloads], schema=_PACKED_SCHEMA)


@dataclass(frozen=True)
class _Unpacker:
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check_places()
        for batch in batches:
            for payload in batch.column(0):
                yield read_message(payload.as_buffer(), self.schema)


def unpack(emitted: DataFrame, kind: int, schema: pa.Schema) -> DataFrame:
    """Return the rows of an output, by its kind (of ``Plan.outputs``, or ``SNAPSHOT``), from the emitted messages."""
    payloads = emitted.where(F.col("kind") == F.lit(kind)).select("payload")
    return payloads.mapInArrow(for_workers(_Unpacker(schema)), spark_schema(schema))


_SMALL_ROW_BYTES, _SMALL_STATE_BYTES = 4096, 256 << 20
_ROWS_AT_ONCE, _NO_LIMIT = 1024, (1 << 31) - 1
_MAX_ROWS, _MAX_BYTES = "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch"


class RowSizes:
    """The sizes of rows and of the state that a run has seen so far."""

    def __init__(self) -> None:
        self._largest = (0, 0)
        self._state_bytes = 0

    def observe(self, calls: Sequence[Mapping[str, Any]]) -> None:
        """Add the statistics of a batch's calls."""
        for call in calls:
            left, right = call["row_bytes"]
            self._largest = max(left, self._largest[0]), max(right, self._largest[1])
        if calls:
            self._state_bytes = sum(call["state_bytes"] for call in calls)

    @property
    def are_small(self) -> bool:
        """Whether the next batch's Arrow batches may be limited by rows alone."""
        are_known = min(self._largest) > 0
        return are_known and max(self._largest) <= _SMALL_ROW_BYTES and self._state_bytes <= _SMALL_STATE_BYTES


@contextlib.contextmanager
def counted_by_rows(session: SparkSession) -> Iterator[None]:
    """Limit Arrow batches by rows alone in a stream's own session during the block, unless the user has set a limit."""
    rows_before = int(str(session.conf.get(_MAX_ROWS)))
    if adapter_of(session).is_set(_MAX_BYTES):
        yield
        return
    try:
        session.conf.set(_MAX_ROWS, min(rows_before, _ROWS_AT_ONCE) if rows_before > 0 else _ROWS_AT_ONCE)
        session.conf.set(_MAX_BYTES, _NO_LIMIT)
        yield
    finally:
        session.conf.set(_MAX_ROWS, rows_before)
        session.conf.unset(_MAX_BYTES)


def limits_bytes(session: SparkSession) -> bool:
    """Return whether this version of Spark limits Arrow batches by bytes at all."""
    try:
        return bool(session.conf.get(_MAX_BYTES))
    except PySparkException:
        return False


def runs_python(frame: DataFrame) -> bool:
    """Return whether the plan of a DataFrame contains a Python function; with Spark Connect, always True."""
    return adapter_of(frame.sparkSession).runs_python(frame)
