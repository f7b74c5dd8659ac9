from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cojoin.engine.input_spec import InputSpec
from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.operator import Batch
from cojoin.engine.state.segments import SegmentContext, SegmentOptions
from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.time.time_axis import TimeAxis
from cojoin.engine.values import codec
from tests.engine.joins.shop import SUFFIXES, customer, take, trade
from tests.segments import MemoryStore
from tests.streams import Delivery, Streams, run, specs


@pytest.mark.parametrize(
    ("join", "kept"),
    [
        (AsofJoin(suffixes=SUFFIXES), {"versions"}),
        (AsofJoin(direction="forward", suffixes=SUFFIXES), {"waiting"}),
        (AsofJoin(direction="nearest", suffixes=SUFFIXES), {"versions", "waiting"}),
        (TemporalJoin(suffixes=SUFFIXES), {"versions"}),
    ],
)
def test_the_state_holds_just_what_the_join_keeps_and_a_restored_operator_goes_on(join: Any, kept: set[str]) -> None:
    operator, again = (join.create_operator(*specs()) for _ in range(2))
    first = [trade(1_000), trade(9_000, "z")], [customer(500, "gold"), customer(9_000, "z", "z")]
    second = [trade(9_500), trade(99_000, "z")], [customer(9_400, "silver"), customer(99_000, "z", "z")]
    take(operator, *first)
    again.restore(operator.snapshot())
    assert again.state_tables().keys() == kept
    assert again.report() == operator.report()
    assert take(again, *second) == take(operator, *second)


@pytest.mark.parametrize(
    "join",
    [
        AsofJoin(direction="forward", suffixes=SUFFIXES),
        AsofJoin(direction="nearest", suffixes=SUFFIXES),
        IntervalJoin("-1 second", "1 second", "full", suffixes=SUFFIXES),
    ],
)
def test_a_restored_operator_gives_the_same_whatever_the_order_of_the_stored_rows(join: Any) -> None:
    operator = join.create_operator(*specs())
    # All trades are kept, several of them at one time, and only their content tells which is first.
    trades = [trade(each // 6 * 1_000 + 7_000, "ab"[each % 2], amount=float(each)) for each in range(12)]
    versions = [customer(each // 6 * 2_000, "xyz"[each % 3], "ab"[each % 2]) for each in range(12)]
    take(operator, [*trades, trade(9_000, "z")], [*versions, customer(9_000, "z", "z")])
    header, tables = operator.parts()
    assert operator.report()["inputs"][0]["buffered"] == len(trades) + 1
    second = [trade(9_500), trade(99_000, "z")], [customer(9_400, "silver"), customer(99_000, "z", "z")]
    expected = by_key(take(operator, *second))
    for seed in range(5):
        rng = np.random.default_rng(seed)
        shuffled = {name: each.take(rng.permutation(each.num_rows)) for name, each in tables.items()}
        again = join.create_operator(*specs())
        again.load(header, shuffled)
        assert by_key(take(again, *second)) == expected


def by_key(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: row[0])


def test_a_left_row_is_done_when_it_comes_out_and_a_version_when_the_watermark_has_passed_it() -> None:
    operator = AsofJoin(direction="forward", suffixes=SUFFIXES).create_operator(*specs())
    take(operator, [trade(1_000), trade(9_000, "z")], [customer(500, "gold"), customer(9_000, "b", "b")])
    left, right = operator.report()["inputs"]
    assert (left["done"], left["buffered"]) == (0, 2)
    assert (right["done"], right["buffered"]) == (1, 1)


def test_a_key_comes_out_the_same_whether_its_time_came_by_and_by_or_at_once() -> None:
    left, right = [trade(each * 1_000, amount=float(each)) for each in range(9)], [customer(4_000, "gold")]
    for direction in ("backward", "forward", "nearest"):
        join = AsofJoin(direction=direction, tolerance="2 ms", suffixes=SUFFIXES)
        streams = Streams(specs(), (left, right))
        steps = [([each], right if number == 0 else []) for number, each in enumerate(left)]
        outcomes = [run(join.create_operator, streams, Delivery(each)).rows() for each in ([(left, right)], steps)]
        assert outcomes[0] == outcomes[1]
        assert len(outcomes[0]) == 9


def test_a_batch_without_anything_changes_nothing() -> None:
    operator = TemporalJoin(suffixes=SUFFIXES).create_operator(*specs())
    before = operator.snapshot()
    assert take(operator, [], []) == []
    assert operator.snapshot() == before


@pytest.mark.parametrize(
    ("dtype", "axis"),
    [
        (pa.timestamp("us", "UTC"), None),
        (pa.int64(), TimeAxis(unit="ms")),
        (pa.int64(), TimeAxis(unit="s")),
        (pa.timestamp("us"), TimeAxis(zone="America/New_York")),
    ],
)
def test_versions_in_segments_expire_by_their_times_whatever_these_are(dtype: Any, axis: TimeAxis | None) -> None:
    """After a restart the times were taken for microseconds in UTC, so versions of numbers had all expired."""
    first = 1_700_000_000

    def at(second: int) -> Any:
        if axis is not None and axis.unit is not None:
            return (first + second) * (1_000 if axis.unit == "ms" else 1)
        return (first + second) * 1_000_000

    def table(rows: list[tuple[int, int]], spec: InputSpec) -> pa.Table:
        columns = [pa.array([key for key, _ in rows]), pa.array([at(second) for _, second in rows], dtype)]
        return pa.table([*columns, pa.array([second for _, second in rows])], schema=spec.schema)

    schema = pa.schema([("id", pa.int64()), ("time", dtype), ("second", pa.int64())])
    left, right = (InputSpec(name, schema, ("id",), "time", axis=axis) for name in ("trades", "customers"))
    store, options, value, found = MemoryStore(), SegmentOptions(0), b"", []
    batches = [
        ([(3, 10)], [(1, 1), (2, 2), (3, 10)]),
        ([(1, 20)], [(4, 30)]),
        ([(2, 60)], [(4, 70)]),
        ([(4, 75)], [(4, 80)]),
    ]
    for number, batch in enumerate(batches):
        operator = AsofJoin(tolerance="30 seconds", suffixes=("", "_right")).create_operator(left, right)
        operator.segmenting = SegmentContext(store, options, 0, number)
        if value:
            operator.restore(value)
        rows = table(batch[0], left), table(batch[1], right)
        controls = []
        for side, (spec, each) in enumerate(zip((left, right), rows, strict=True), start=1):
            if each.num_rows:
                controls.append(Control(side, {ONE_PARTITION: int(spec.millis(each).max())}, each.num_rows))
        emitted = [emission.table for emission in operator.process(Batch(rows, controls))]
        found += [
            row for piece in emitted for row in zip(*(piece.column(each).to_pylist() for each in (2, 4)), strict=True)
        ]
        value = codec.encode(*operator.flush()[:2])
    assert found == [(10, 10), (20, 1), (60, None)]
