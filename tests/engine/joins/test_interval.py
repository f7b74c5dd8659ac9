from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from cojoin.engine.input_spec import InputSpec
from cojoin.engine.joins import IntervalJoin, interval
from cojoin.engine.local.key_group import check_conservation
from cojoin.engine.operator import Batch
from cojoin.engine.state.segments import SegmentContext, SegmentOptions
from cojoin.engine.time.control_rows import Control
from cojoin.engine.values import codec
from cojoin.engine.values.types import parse_schema
from cojoin.errors import ConfigurationError, SchemaError
from tests.engine.joins.shop import SUFFIXES, customer, joined, take, trade
from tests.segments import MemoryStore
from tests.streams import CUSTOMERS, TRADES, Rows, Streams, map_side, run, specs, static


def join(lower: str = "-2 us", upper: str = "3 us", how: Any = "inner", **options: Any) -> IntervalJoin:
    return IntervalJoin(lower, upper, how, suffixes=SUFFIXES, **options)


def pairs(how: Any, left: Rows, right: Rows, **options: Any) -> list[Any]:
    return [(row[0], row[5], row[-1]) for row in joined(join(how=how, **options), left, right)]


NEAR = [customer(7, "7"), customer(8, "8"), customer(13, "13"), customer(14, "14")]


def test_a_trade_pairs_with_every_version_between_the_bounds_exact_to_the_microsecond() -> None:
    assert pairs("inner", [trade(10)], NEAR) == [("a", 1.0, "8"), ("a", 1.0, "13")]
    assert pairs("inner", [trade(10)], NEAR, lower_inclusive=False) == [("a", 1.0, "13")]
    assert pairs("inner", [trade(10)], NEAR, upper_inclusive=False) == [("a", 1.0, "8")]
    assert pairs("inner", [trade(10)], NEAR, lower_inclusive=False, upper_inclusive=False) == []


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        (("0 us", "0 us"), ["10"]),
        (("1 us", "2 us"), ["11", "12"]),
        (("-2 us", "-1 us"), ["8", "9"]),
        ((timedelta(microseconds=-1), timedelta(microseconds=1)), ["9", "10", "11"]),
        (("interval -1 us", "- 1 us"), ["9"]),
        ((timedelta.min, timedelta.max), ["7", "8", "9", "10", "11", "12", "13"]),
        ((timedelta(1), timedelta.max), []),
        ((timedelta.min, timedelta(-1)), []),
    ],
)
def test_bounds_may_lie_on_either_side(bounds: Any, found: list[str]) -> None:
    versions = [customer(micros, str(micros)) for micros in range(7, 14)]
    assert [row[-1] for row in joined(IntervalJoin(*bounds, suffixes=SUFFIXES), [trade(10)], versions)] == found


def test_rows_of_one_instant_all_pair_and_a_key_only_with_its_own() -> None:
    left = [trade(10, amount=1.0), trade(10, amount=2.0), trade(10, "b")]
    right = [customer(10, "x"), customer(10, "y"), customer(10, "z", "c")]
    assert pairs("inner", left, right) == [("a", 1.0, "x"), ("a", 1.0, "y"), ("a", 2.0, "x"), ("a", 2.0, "y")]


def test_rows_without_a_match_come_out_once_with_nulls_for_the_other_side() -> None:
    left = [trade(10), trade(50, amount=5.0), trade(10, "b", 2.0)]
    right = [customer(10, "x"), customer(90, "y"), customer(10, "z", "c")]
    found, lefts = [("a", 1.0, "x")], [("a", 5.0, None), ("b", 2.0, None)]
    rights = [("a", None, "y"), ("c", None, "z")]
    assert pairs("inner", left, right) == found
    for how, expected in [
        ("left", found + lefts),
        ("right", found + rights),
        ("full", found + lefts + rights),
    ]:
        assert sorted(pairs(how, left, right), key=repr) == sorted(expected, key=repr)


def test_a_right_row_alone_has_its_own_key_under_the_lefts_name() -> None:
    streams = Streams(specs(composite=True), ([], [customer(10, "x")]))
    (row,) = run(join(how="full").create_operator, streams, static(streams)).rows()
    assert row[:7] == ("a", 1, None, None, None, None, None)
    assert row[-1] == "x"


def test_where_a_right_row_may_stand_alone_the_lefts_columns_are_nullable_but_for_the_key() -> None:
    left = InputSpec("l", parse_schema("k int NOT NULL, at timestamp NOT NULL, a int NOT NULL"), ("k",), "at")
    right = InputSpec("r", parse_schema("k int NOT NULL, at timestamp NOT NULL, b int NOT NULL"), ("k",), "at")
    for how, nullable in [("inner", False), ("left", False), ("right", True), ("full", True)]:
        schema = join(how=how).output_schema(left, right)
        assert [field.nullable for field in schema] == [False, nullable, nullable, True, True]
        assert schema.names == ["k", "at", "a", "r_event_time", "b"]


@pytest.mark.parametrize(
    "keys", [[True], [3], ["ß"], [b"\x00"], [pa.scalar(7, pa.date32())], [pa.scalar(5, pa.decimal128(9, 2))]]
)
def test_a_key_of_any_type_comes_from_either_side(keys: list[Any]) -> None:
    column = pa.array([each.as_py() if isinstance(each, pa.Scalar) else each for each in keys])
    times = pa.array([5], pa.timestamp("us", "UTC"))
    sides = [pa.table({"k": column, "at": times}), pa.table({"k": column, "at": times, "v": [1]})]
    left, right = (InputSpec(name, each.schema, ("k",), "at") for name, each in zip("lr", sides, strict=True))
    for rows in ([sides[0], sides[1].slice(1)], [sides[0].slice(1), sides[1]]):
        operator = IntervalJoin("0 s", "0 s", "full").create_operator(left, right)
        batch = replace(map_side(Streams(specs(), ([], [])), ([], []), 1)[0], rows=tuple(rows), end_of_input=True)
        (emission,) = operator.process(batch)
        assert emission.table.column("k").to_pylist() == column.to_pylist()


def test_a_pair_comes_out_when_the_later_row_does_and_only_once() -> None:
    operator = join("-9 ms", "9 ms", "full").create_operator(*specs())
    assert take(operator, [trade(1_000), trade(5_000, "z")], [customer(1_000, "x"), customer(4_000, "z", "z")]) == [
        ("a", 1.0, "x")
    ]
    assert take(operator, [trade(6_000, "z")], [customer(6_000, "y")]) == [("z", 1.0, "z")]
    assert take(operator, [trade(7_000, "z")], [customer(7_000, "y")]) == [("a", 1.0, "y"), ("z", 1.0, "z")]


def test_a_row_is_forgotten_as_soon_as_no_row_to_come_can_match_it() -> None:
    operator = join("-2 ms", "3 ms", "full").create_operator(*specs())
    times = [trade(90_000, "z"), customer(90_000, "z", "z")]
    assert take(operator, [trade(10_500), times[0]], [customer(10_500, "b", "b"), customer(11_000, "c", "c")]) == []
    assert operator.waiting_rows() == (1, 1)
    # The right row of 10.5 ms matches left rows up to 12.5 ms: the watermark must reach 12 ms, which needs one of 13.
    assert take(operator, [], [customer(12_999, "c", "c")]) == []
    assert take(operator, [], [customer(13_000, "c", "c")]) == [("b", None, "b")]
    assert operator.waiting_rows() == (1, 2)
    # The left row of 10.5 ms matches right rows up to 13.5 ms.
    assert take(operator, [], [customer(14_000, "c", "c")]) == [("a", 1.0, None), ("c", None, "c")]


def test_bounds_that_lie_before_keep_nothing_beyond_the_rows_own_time() -> None:
    operator = join("-9 ms", "-5 ms", "left").create_operator(*specs())
    take(operator, [trade(10_000), trade(90_000, "z")], [customer(2_000, "x"), customer(11_000, "c", "c")])
    assert operator.waiting_rows()[0] == 0
    assert operator.report()["rows_out"] == 1


def test_a_row_that_nothing_to_come_can_match_still_waits_for_its_own_time() -> None:
    left = [trade(10_000, amount=1.0), trade(8_000, amount=2.0)]
    rows = joined(join("-6 ms", "-5 ms", "left"), left, [customer(2_000, "x")])
    assert [(row[5], row[-1]) for row in rows] == [(2.0, "x"), (1.0, None)]


def test_a_row_that_has_matched_is_not_padded_after_a_restart() -> None:
    operator = join("-9 ms", "9 ms", "full").create_operator(*specs())
    take(operator, [trade(1_000), trade(5_000, "z")], [customer(1_000, "x"), customer(4_000, "z", "z")])
    again = join("-9 ms", "9 ms", "full").create_operator(*specs())
    again.restore(operator.snapshot())
    tables = again.state_tables()
    assert [tables[side].column("@matched").to_pylist() for side in ("left", "right")] == [[True], [True]]
    assert tables["left"].column("customer").to_pylist() == ["a"]
    out = take(again, [trade(90_000, "z")], [customer(90_000, "z", "z")])
    assert ("a", 1.0, None) not in out
    assert ("a", None, "x") not in out


def test_a_row_keeps_whether_it_has_matched_when_others_come_between() -> None:
    operator = join("-9 ms", "9 ms", "left").create_operator(*specs())
    out = take(
        operator,
        [trade(1_000), trade(1_000, "b"), trade(5_000, "z")],
        [customer(1_000, "x", "b"), customer(5_000, "z", "z")],
    )
    out += take(operator, [trade(5_500, amount=2.0), trade(7_000, "z")], [customer(7_000, "z", "z")])
    out += take(operator, [trade(90_000, "z")], [customer(90_000, "z", "z")])
    assert [row for row in out if row[0] != "z"] == [("b", 1.0, "x"), ("a", 1.0, None), ("a", 2.0, None)]


def test_the_flag_in_the_state_has_a_name_of_its_own() -> None:
    schema = parse_schema("k int, at timestamp, `@Matched` boolean, `_@matched` int")
    left = InputSpec("l", schema, ("k",), "at")
    right = InputSpec("r", parse_schema("k int, at timestamp"), ("k",), "at")
    operator = join().create_operator(left, right)
    assert operator.state_tables()["left"].column_names == [*schema.names, "__@matched"]
    again = join().create_operator(left, right)
    again.restore(operator.snapshot())
    assert again.waiting_rows() == (0, 0)


def test_late_rows_are_rejected_or_if_applied_joined_with_what_is_still_kept_and_padded_at_once() -> None:
    left, right = specs()
    for late, expected in [(None, []), ("apply", [("a", 2.0, "x"), ("b", 3.0, None)])]:
        operator = join("-2 ms", "6 ms", "left").create_operator(replace(left, late=late), right)
        start = [customer(8_000, "x"), customer(8_000, "q", "q"), customer(10_000, "z", "z")]
        take(operator, [trade(10_000, "z", 1.0)], start)
        assert take(operator, [trade(7_000, amount=2.0), trade(1_000, "b", 3.0)], []) == expected
        counts = operator.report()["inputs"][0]
        assert (counts["rejected"], counts["late_applied"]) == (({"late": 2}, 0) if late is None else ({}, 2))


def test_a_result_beyond_one_piece_comes_in_pieces_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval, "_ROWS_AT_ONCE", 4)
    left, right = [trade(10, amount=float(each)) for each in range(3)], [customer(10, str(each)) for each in range(3)]
    streams = Streams(specs(), (left, right))
    outcome = run(join().create_operator, streams, static(streams))
    assert [each.num_rows for each in outcome.output] == [4, 4, 1]
    assert [(row[5], row[-1]) for row in outcome.rows()] == [(x, y) for x in (0.0, 1.0, 2.0) for y in "012"]


ALL = [(amount, tier) for amount in (1.0, 2.0, 3.0) for tier in ("first", "last")]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        (("-1 ms", "1 ms"), [(1.0, "first"), (2.0, None), (3.0, "last")]),
        (("1 ms", "2 ms"), [(1.0, None), (2.0, None), (3.0, None)]),
        ((timedelta.min, timedelta.max), ALL),
    ],
)
def test_times_at_the_ends_of_64_bits_wrap_nowhere(bounds: Any, expected: list[Any]) -> None:
    first, last = -(1 << 63), (1 << 63) - 1
    operator = IntervalJoin(*bounds, "left", suffixes=SUFFIXES).create_operator(*specs())
    found = [row[1:] for row in take(operator, [trade(first), trade(0, amount=2.0)], [customer(first, "first")])]
    end = map_side(Streams(operator.inputs, ([], [])), ([trade(last, amount=3.0)], [customer(last, "last")]), 1)[0]
    for emission in operator.process(replace(end, end_of_input=True)):
        columns = emission.table.select(["amount", "tier"]).to_pydict()
        found += zip(columns["amount"], columns["tier"], strict=True)
    assert sorted(found, key=repr) == expected
    assert [each["buffered"] for each in operator.report()["inputs"]] == [0, 0]


def test_an_input_may_be_empty_for_ever() -> None:
    assert pairs("full", [], []) == []
    assert pairs("full", [trade(10)], []) == [("a", 1.0, None)]
    operator = join(how="full").create_operator(*specs())
    assert take(operator, [], []) == []
    assert operator.state_tables()["right"].schema.names == [*CUSTOMERS.names, "@matched"]


@pytest.mark.parametrize(
    ("bounds", "delay"), [(("-5 ms", "1 ms"), 5), (("-1 ms", "4001 us"), 5), (("2 ms", "3 ms"), 3), (("0 s", "0 s"), 0)]
)
def test_a_row_may_come_out_later_than_its_own_time_by_the_larger_bound(bounds: tuple[str, str], delay: int) -> None:
    assert join(*bounds).create_operator(*specs()).output_delay_ms == delay


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"how": "outer"}, "how: expected 'inner', 'left', 'right' or 'full', got 'outer'"),
        ({"how": "fulll"}, "did you mean 'full'"),
        ({"lower": 5}, "lower: expected a duration"),
        ({"upper": "5 parsecs"}, "upper: unknown unit 'parsecs'"),
        ({"lower": "--5 s"}, "lower: expected a duration"),
        ({"lower": "1 us", "upper": "-1 us"}, "lower: expected no more than upper, got lower='1 us', upper='-1 us'"),
        ({"lower": "1 us", "upper": "1 us", "upper_inclusive": False}, "no time is between '1 us' and '1 us'"),
        (
            {"lower": "1 us", "upper": "2 us", "lower_inclusive": False, "upper_inclusive": False},
            "no time is between '1 us' and '2 us'",
        ),
        ({"lower_inclusive": 0}, "lower_inclusive: expected True or False, got 0"),
        ({"upper_inclusive": "no"}, "upper_inclusive: expected True or False, got 'no'"),
    ],
)
def test_a_join_that_cannot_be_is_refused_before_it_starts(options: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        join(**options)


def test_both_inputs_need_event_time() -> None:
    left, right = specs()
    with pytest.raises(SchemaError, match="input 'trades' has no event time"):
        join().output_schema(replace(left, event_time=None), right)


def test_a_join_travels_to_the_workers_and_says_what_it_is() -> None:
    made = join("-5 ms", "1 s", "full", upper_inclusive=False)
    assert pickle.loads(pickle.dumps(made)) == made
    assert made.describe() == {"operator": "interval_join", "how": "full", "lower_us": -5_000, "upper_us": 999_999}


def test_rows_that_end_in_segments_are_counted_as_done_at_a_drain_without_any_due_row() -> None:
    operator, store = join("-9 ms", "9 ms").create_operator(*specs()), MemoryStore()
    operator.segmenting = SegmentContext(store, SegmentOptions(0))
    take(operator, [trade(1_000), trade(5_000, "b")], [customer(1_000, "x"), customer(5_000, "y", "c")])
    none = TRADES.empty_table(), CUSTOMERS.empty_table()
    # Another key group's rows move the watermark, and no row waits for it any more.
    partitions = [each["partitions"] for each in operator.report()["input_watermarks"]]
    later = [Control(1, dict.fromkeys(partitions[0], 7)), Control(2, dict.fromkeys(partitions[1], 7))]
    for batch in (Batch(none, later), Batch(none), Batch(none, end_of_input=True)):
        operator.flush()
        assert not list(operator.process(batch))
        check_conservation(operator)
    assert operator.waiting_rows() == (0, 0)
    assert [each["done"] for each in operator.report()["inputs"]] == [2, 2]


def test_a_state_with_segments_is_refused_by_an_earlier_release() -> None:
    operator, store = join("-9 ms", "9 ms").create_operator(*specs()), MemoryStore()
    for limit, version in ((1 << 20, 2), (0, 3)):
        operator.segmenting = SegmentContext(store, SegmentOptions(limit))
        take(operator, [trade(1_000 + version)], [customer(1_000 + version, "x")])
        # Release 0.6 reads format 2, and says of a newer one that it must be upgraded.
        assert codec.encode(*operator.flush()[:2])[6] == version
    assert store.files
