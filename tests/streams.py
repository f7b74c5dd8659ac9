"""Two streams of one small shop, every way in which they may arrive, and a run of the engine over them without Spark.

``streams`` draws rows: several event times in a millisecond, ties, times before 1970, nulls, NaN and both zeros, skewed
keys. ``deliveries`` draws how they arrive without being late: each source partition out of order within its bound, the
partitions interleaved, cut into micro-batches. ``run`` is the map side, the key groups and the restarts; it asserts the
law of conservation after every batch.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import strategies as st

from cojoin.engine.input_spec import REJECTED_SCHEMA, InputSpec
from cojoin.engine.operator import Batch
from cojoin.engine.rescaling import SpilledTables
from cojoin.engine.state.segments import SegmentContext, SegmentOptions
from cojoin.engine.time.control_rows import Control
from cojoin.engine.time.watermark_strategies import BoundedOutOfOrderness, WatermarkStrategy
from cojoin.engine.values import codec
from cojoin.engine.values.tables import concat
from tests.segments import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cojoin.engine.operator import Emission, Operator

TIME = pa.timestamp("us", "UTC")
TRADES = pa.schema(
    [
        ("customer", pa.string()),
        ("region", pa.int32()),
        ("at", TIME),
        ("part", pa.int32()),
        ("offset", pa.int64()),
        ("amount", pa.float64()),
        ("tags", pa.list_(pa.string())),
    ]
)
CUSTOMERS = pa.schema(
    [
        ("id", pa.string()),
        ("zone", pa.int32()),
        ("since", TIME),
        ("part", pa.int32()),
        ("offset", pa.int64()),
        ("tier", pa.string()),
    ]
)
SCHEMAS = (TRADES, CUSTOMERS)
AT, PART = 2, 3

Rows = list[tuple[Any, ...]]
"""Rows as plain tuples; their event time is in epoch microseconds, or None."""


def specs(
    delays: tuple[int, int] = (0, 0),
    *,
    composite: bool = False,
    sequenced: bool = True,
    max_ahead_ms: int | None = None,
) -> tuple[InputSpec, InputSpec]:
    """Declare the two inputs; the right's key columns have other names than the left's."""
    width = 2 if composite else 1
    trades, customers = (
        InputSpec(
            name=name,
            schema=schema,
            key=tuple(schema.names[:width]),
            event_time=schema.names[AT],
            partition=("part",),
            sequence=("offset",) if sequenced else (),
            watermark=WatermarkStrategy(BoundedOutOfOrderness(delay)),
            max_ahead_ms=max_ahead_ms,
        )
        for name, schema, delay in zip(("trades", "customers"), SCHEMAS, delays, strict=True)
    )
    return trades, customers


def delay_of(spec: InputSpec) -> int:
    """Return an input's bound of out-of-orderness in milliseconds."""
    generator = spec.watermark.generator
    assert isinstance(generator, BoundedOutOfOrderness)
    return generator.out_of_orderness_ms


def table(rows: Rows, schema: pa.Schema) -> pa.Table:
    """Turn tuples into a table."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [
        pa.array(column, pa.int64() if each.type == TIME else each.type)
        for column, each in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(
        [array.cast(each.type) for array, each in zip(arrays, schema, strict=True)], schema=schema
    )


@dataclass(frozen=True)
class Streams:
    """What two inputs hold, and how they are declared."""

    inputs: tuple[InputSpec, InputSpec]
    rows: tuple[Rows, Rows]

    def __repr__(self) -> str:
        delays = tuple(delay_of(spec) for spec in self.inputs)
        left = self.inputs[0]
        kind = f"composite={len(left.key) > 1}, sequenced={bool(left.sequence)}, max_ahead_ms={left.max_ahead_ms}"
        return f"Streams(specs({delays}, {kind}), {self.rows})"

    def key(self, side: int, row: tuple[Any, ...]) -> tuple[Any, ...]:
        return row[: len(self.inputs[side].key)]

    def watermark(self) -> int:
        """Where all rows together take the operator's watermark."""
        return min(self._input_watermark(side) for side in (0, 1))

    def _input_watermark(self, side: int) -> int:
        largest: dict[int, int] = {}
        for row in self.rows[side]:
            largest[row[PART]] = max(largest.get(row[PART], row[AT] // 1_000), row[AT] // 1_000)
        delay = delay_of(self.inputs[side])
        return min((each - delay - 1 for each in largest.values()), default=-(1 << 63))

    def last_event(self) -> int:
        return max((row[AT] // 1_000 for side in (0, 1) for row in self.rows[side]), default=-(1 << 63))


BASES = (-21_000, 0, 1_700_000_000_000_000)
MICROS = st.builds(lambda milli, micro: milli * 1_000 + micro, st.integers(0, 40), st.sampled_from([0, 0, 1, 999]))
KEYS = st.sampled_from(["a", "a", "a", "b", "", "ß"])
AMOUNTS = st.sampled_from([None, float("nan"), -1.5, -1.0, -0.0, 0.0])
TAGS = st.sampled_from([None, [], ["x"], [None, "x"]])
TIERS = st.sampled_from([None, "", "gold", "silver"])


@st.composite
def streams(draw: Callable[[Any], Any], size: int = 12) -> Streams:
    """Draw two inputs, all of whose rows are admitted."""
    base = draw(st.sampled_from(BASES))
    micros = MICROS.map(lambda each: each + base)
    start = (KEYS, st.integers(1, 2), micros, st.integers(0, 1), st.integers(0, 3))
    trades = draw(st.lists(st.tuples(*start, AMOUNTS, TAGS), max_size=size))
    customers = draw(st.lists(st.tuples(*start, TIERS), max_size=size))
    delays = draw(st.tuples(*[st.sampled_from([0, 3, 11])] * 2))
    return Streams(specs(delays, composite=draw(st.booleans()), sequenced=draw(st.booleans())), (trades, customers))


@dataclass(frozen=True)
class Delivery:
    """How two inputs arrive.

    Attributes:
        batches: The rows of both inputs, micro-batch by micro-batch.
        key_groups: How many operators share the keys.
        restarts: After which batches every operator is replaced by a new one, restored from its snapshot.
        drains_apart: Whether the end of input comes in a batch of its own.
        segment_bytes: How much of a table stays in the state value; None is all of it, and no segments.
    """

    batches: list[tuple[Rows, Rows]]
    key_groups: int = 1
    restarts: frozenset[int] = frozenset()
    drains_apart: bool = True
    segment_bytes: int | None = None


@st.composite
def deliveries(draw: Callable[[Any], Any], streams: Streams) -> Delivery:
    """Draw a delivery without late rows: all partitions speak in the first batch, then keep their bounds."""
    queues = []
    for side in (0, 1):
        delay = delay_of(streams.inputs[side])
        for part in (0, 1):
            rows = [row for row in streams.rows[side] if row[PART] == part]
            jitters = draw(st.lists(st.integers(0, delay), min_size=len(rows), max_size=len(rows)))
            arrivals = sorted(zip(rows, jitters, strict=True), key=lambda each: each[0][AT] // 1_000 + each[1])
            queues.append([(side, row) for row, _ in arrivals])
    arrived = [queue.pop(0) for queue in queues if queue]
    turns = draw(st.permutations([number for number, queue in enumerate(queues) for _ in queue]))
    rest = [queues[number].pop(0) for number in turns]
    cuts = [*sorted(draw(st.sets(st.integers(0, len(rest)), max_size=5))), len(rest)]
    pieces = [arrived + rest[: cuts[0]], *(rest[start:stop] for start, stop in pairwise(cuts))]
    batches = [tuple([row for side, row in piece if side == wanted] for wanted in (0, 1)) for piece in pieces]
    restarts = draw(st.sets(st.integers(0, len(batches)), max_size=3))
    key_groups, apart = draw(st.sampled_from([1, 1, 3])), draw(st.booleans())
    return Delivery(batches, key_groups, frozenset(restarts), apart, draw(st.sampled_from([None, 0, 150])))


@dataclass
class Outcome:
    """What a run gave out, all key groups together."""

    output: list[pa.Table] = field(default_factory=list)
    rejected: list[pa.Table] = field(default_factory=list)
    beside: dict[str, list[pa.Table]] = field(default_factory=lambda: defaultdict(list))
    reports: list[dict[str, Any]] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """How many rows each table at rest and each input's buffer has in the end, without those expired in segments."""

    def take(self, emission: Emission) -> None:
        tables = {"output": self.output, "rejected": self.rejected}.get(emission.kind)
        (self.beside[emission.kind] if tables is None else tables).append(emission.table)

    def rows(self, tag: str | None = None) -> Rows:
        tables = self.output if tag is None else self.beside[tag]
        return [tuple(row.values()) for each in tables for row in each.to_pylist()]

    def rejections(self) -> Rows:
        """Return the rejected rows without the event time, which may be none that Python can show."""
        tables = concat([REJECTED_SCHEMA.empty_table(), *self.rejected]).drop_columns(["event_time"])
        return [tuple(row.values()) for row in tables.to_pylist()]

    def total(self, detail: str) -> int:
        return sum(report["details"][detail] for report in self.reports)


SLICES = 1 << 11
"""The memory of operators with segments, in bytes: due rows in files are taken a few at a time."""


def run(
    create: Callable[[InputSpec, InputSpec], Operator],
    streams: Streams,
    delivery: Delivery,
    *,
    drain: bool = True,
    now: int = 0,
) -> Outcome:
    """Run operators over a delivery as Spark would, and assert conservation after every batch."""
    operators = [create(*streams.inputs) for _ in range(delivery.key_groups)]
    store, limit = MemoryStore(), delivery.segment_bytes
    options = None if limit is None else SegmentOptions(limit, memory_bytes=SLICES)
    outcome = Outcome()
    batches: list[tuple[Rows, Rows]] = [*delivery.batches, *([([], [])] if delivery.drains_apart else [])]
    for number, rows in enumerate(batches):
        ends = drain and number == len(batches) - 1
        for group, batch in enumerate(map_side(streams, rows, delivery.key_groups, now)):
            operators[group].segmenting = options and SegmentContext(store, options, group, number)
            for emission in operators[group].process(replace(batch, end_of_input=ends)):
                outcome.take(emission)
        values = [codec.encode(*operator.flush()[:2]) for operator in operators]
        outcome.reports = [operator.report() for operator in operators]
        assert_conserved(outcome.reports)
        if number in delivery.restarts:
            # From the state values, that name segments, or from snapshots, that are whole; these also piece by piece.
            saved = values if number % 3 == 1 else [operator.snapshot() for operator in operators]
            for operator in operators:
                operator.close()
            operators = [create(*streams.inputs) for _ in saved]
            for operator, state in zip(operators, saved, strict=True):
                operator.segmenting = options and SegmentContext(store, options, batch_id=number)
                restore(operator, state, options.slice_bytes if options and number % 3 == 2 else None)
    for operator in operators:
        for name, kept in operator.segmented_tables().items():
            outcome.kept[name] += kept.read_all().num_rows
        for side, rows in enumerate(operator.held_rows(), start=1):
            outcome.kept[f"held{side}"] += rows.num_rows
        operator.close()
    return outcome


def restore(operator: Operator, state: bytes, most_bytes: int | None) -> None:
    """Restore an operator, with a number of bytes from pieces of a few rows, which lie in files if they have more."""
    if most_bytes is None:
        operator.restore(state)
        return
    header, tables = codec.decode(state)
    pieces = SpilledTables(operator.inputs, most_bytes, MemoryStore)
    for name, table in tables.items():
        for start in range(0, max(1, table.num_rows), 2):
            pieces.add({name: table.slice(start, 2)})
    operator.load_spilled(header, pieces, keeps_counts=True)


def static(streams: Streams) -> Delivery:
    """Deliver everything in one batch that is also the last."""
    return Delivery([streams.rows], drains_apart=False)


def map_side(streams: Streams, rows: tuple[Rows, Rows], key_groups: int, now: int = 0) -> list[Batch]:
    """Cut a micro-batch by key group; every group hears of every partition, from two tasks an input."""
    cut: list[tuple[Rows, Rows]] = [([], []) for _ in range(key_groups)]
    controls: list[list[Control]] = [[] for _ in range(key_groups)]
    for side in (0, 1):
        for task in (rows[side][::2], rows[side][1::2]):
            sent = [0] * key_groups
            for row in task:
                group = zlib.crc32(repr(streams.key(side, row)).encode()) % key_groups
                cut[group][side].append(row)
                sent[group] += 1
            for group, count in enumerate(sent):
                if task:
                    number = 2 if side else 1
                    controls[group].append(Control(number, _seen(streams.inputs[side], task, now), count, now))
    return [
        Batch((table(left, TRADES), table(right, CUSTOMERS)), heard)
        for (left, right), heard in zip(cut, controls, strict=True)
    ]


def _seen(spec: InputSpec, rows: Sequence[tuple[Any, ...]], now: int) -> dict[str, int]:
    largest: dict[str, int] = defaultdict(lambda: -(1 << 63))
    for row in rows:
        if row[AT] is None or (spec.max_ahead_ms is not None and row[AT] // 1_000 > now + spec.max_ahead_ms):
            continue
        partition = f"[{row[PART]}]"
        largest[partition] = max(largest[partition], row[AT] // 1_000)
    return dict(largest)


def assert_conserved(reports: Sequence[dict[str, Any]]) -> None:
    """Assert the law of conservation, for each key group and input."""
    for report in reports:
        for counts in report["inputs"]:
            assert counts["rows_in"] == counts["done"] + counts["buffered"] + sum(counts["rejected"].values())
