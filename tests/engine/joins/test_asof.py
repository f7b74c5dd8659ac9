from __future__ import annotations

import datetime as dt
import pickle
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

import cojoin as cj
from cojoin.engine.joins import AsofJoin
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.operator import Batch
from cojoin.engine.time.control_rows import Control
from cojoin.engine.time.watermarks import END_OF_TIME
from cojoin.errors import CheckpointError, ConfigurationError
from tests.engine.joins.shop import SUFFIXES, customer, joined, take, trade
from tests.programs import OUTPUT, EnrichTrades
from tests.streams import CUSTOMERS, Delivery, Rows, Streams, map_side, run, specs, static, table


def tiers(left: Rows, right: Rows, **options: Any) -> list[Any]:
    """Return the tiers that the trades of one key get, in the order in which they come out."""
    return [row[-1] for row in joined(AsofJoin(suffixes=SUFFIXES, **options), left, right)]


def test_a_trade_gets_the_version_in_force_at_its_event_time() -> None:
    assert tiers([trade(5), trade(15), trade(25)], [customer(10, "silver"), customer(20, "gold")]) == [
        None,
        "silver",
        "gold",
    ]


def test_a_version_of_the_same_microsecond_is_in_force_unless_told_otherwise() -> None:
    versions = [customer(9, "silver"), customer(10, "gold")]
    assert tiers([trade(10)], versions) == ["gold"]
    assert tiers([trade(10)], versions, allow_exact_matches=False) == ["silver"]


def test_microseconds_decide_within_a_millisecond() -> None:
    assert tiers([trade(1_001)], [customer(1_000, "silver"), customer(1_002, "gold")]) == ["silver"]


def test_of_two_versions_of_one_instant_the_later_at_the_source_is_in_force() -> None:
    assert tiers([trade(10)], [customer(10, "gold", offset=2), customer(10, "silver", offset=1)]) == ["gold"]


def test_of_two_versions_with_one_sequence_their_content_decides() -> None:
    assert tiers([trade(10)], [customer(10, "silver"), customer(10, "gold")]) == ["silver"]


def test_a_version_is_in_force_for_as_long_as_the_tolerance_itself_included() -> None:
    trades, versions = [trade(10), trade(11)], [customer(5, "gold")]
    assert tiers(trades, versions, tolerance="5 us") == ["gold", None]
    assert tiers(trades, versions, tolerance=dt.timedelta.max) == ["gold", "gold"]


def test_an_inner_join_leaves_out_trades_without_a_version_and_counts_them_as_done() -> None:
    streams = Streams(specs(), ([trade(5), trade(15)], [customer(10, "gold")]))
    outcome = run(AsofJoin("inner", suffixes=SUFFIXES).create_operator, streams, static(streams))
    assert [row[-1] for row in outcome.rows()] == ["gold"]
    assert outcome.reports[0]["inputs"][0]["done"] == 2


def test_a_key_has_only_its_own_versions() -> None:
    assert tiers([trade(5), trade(5, "b")], [customer(1, "gold", "b")]) == [None, "gold"]


def test_a_late_version_is_applied_to_the_rows_to_come_and_a_late_trade_is_rejected() -> None:
    first = ([trade(10_000)], [customer(10_000, "silver")])
    second = ([trade(9_000), trade(30_000)], [customer(9_999, "late"), customer(9_998, "later")])
    third = ([], [customer(9_000, "old", "b")])
    fourth = ([trade(31_000, "b")], [])
    streams = Streams(specs(), ([], []))
    outcome = run(AsofJoin(suffixes=SUFFIXES).create_operator, streams, Delivery([first, second, third, fourth]))
    assert {row[0]: row[-1] for row in outcome.rows()} == {"a": "silver", "b": "old"}
    assert [(row[0], row[1]) for row in outcome.rejections()] == [("trades", "late")]
    assert outcome.reports[0]["inputs"][1]["late_applied"] == 3


def test_versions_are_forgotten_when_superseded_or_too_old_to_match() -> None:
    left, right = specs()
    streams = Streams((left, right), ([], []))
    for tolerance, kept in [(None, 2), ("1 ms", 1), ("0 ms", 0)]:
        operator = AsofJoin(tolerance=tolerance, suffixes=SUFFIXES).create_operator(left, right)
        versions = [
            customer(1_000, "a1"),
            customer(9_000, "a2"),
            customer(2_000, "b1", "b"),
            customer(10_000, "c", "c"),
        ]
        list(operator.process(map_side(streams, ([trade(10_000)], versions), 1)[0]))
        assert operator.details()["versions_in_force"] == kept
        assert operator.report()["inputs"][1]["buffered"] == 1


def test_a_silent_keys_version_is_forgotten_without_a_row_for_its_key_group() -> None:
    left, right = specs()
    operator = AsofJoin(tolerance="5 ms", suffixes=SUFFIXES).create_operator(left, right)
    empty = map_side(Streams((left, right), ([], [])), ([], []), 1)[0].rows
    for millis, kept in [(10, 1), (14, 1), (15, 0)]:
        # The watermark goes to a millisecond before these.
        controls = [Control(1, {"[0]": millis}), Control(2, {"[0]": millis})]
        rows = (empty[0], table([customer(9_000, "gold")], CUSTOMERS)) if millis == 10 else empty
        rows_in = [Control(2, rows=1)] if millis == 10 else []
        list(operator.process(Batch(rows, [*controls, *rows_in])))
        assert operator.details()["versions_in_force"] == kept


def test_forward_a_trade_gets_the_first_version_that_is_not_earlier() -> None:
    trades, versions = [trade(5), trade(10), trade(11), trade(25)], [customer(10, "silver"), customer(20, "gold")]
    assert tiers(trades, versions, direction="forward") == ["silver", "silver", "gold", None]
    assert tiers(trades, versions, direction="forward", allow_exact_matches=False) == ["silver", "gold", "gold", None]
    assert tiers(trades, versions, direction="forward", tolerance="5 us") == ["silver", "silver", None, None]
    assert tiers(trades, versions, direction="forward", how="inner", tolerance="9 us") == ["silver", "silver", "gold"]


def test_nearest_a_trade_gets_the_nearer_version_and_the_one_behind_at_equal_distance() -> None:
    versions = [customer(10, "silver"), customer(20, "gold")]
    trades = [trade(1), trade(14), trade(15), trade(16), trade(99)]
    assert sorted(tiers(trades, versions, direction="nearest")) == ["gold", "gold", "silver", "silver", "silver"]
    assert tiers([trade(15)], versions, direction="nearest") == ["silver"]
    assert tiers([trade(16)], versions, direction="nearest") == ["gold"]
    assert tiers([trade(15)], versions, direction="nearest", tolerance="4 us") == [None]
    assert tiers([trade(20)], versions, direction="nearest", allow_exact_matches=False) == ["silver"]


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
def test_of_versions_of_one_instant_the_last_is_in_force_from_wherever_it_is_looked_at(direction: Any) -> None:
    versions = [customer(10_000, "gold", offset=2), customer(10_000, "silver", offset=1)]
    for micros in (9_999, 10_000, 10_001):
        expected = (
            None
            if (direction == "backward") & (micros < 10_000) | (direction == "forward") & (micros > 10_000)
            else "gold"
        )
        assert tiers([trade(micros)], versions, direction=direction) == [expected]


def test_forward_a_trade_waits_until_no_earlier_version_can_come() -> None:
    operator = AsofJoin(direction="forward", suffixes=SUFFIXES).create_operator(*specs())
    assert take(operator, [trade(1_000), trade(90_000, "z")], [customer(0, "old"), customer(5_900, "gold")]) == []
    assert operator.waiting_rows() == (1, 0)
    # The watermark is 4 ms: an earlier microsecond of the fifth may still come, and does.
    assert take(operator, [], [customer(5_100, "silver"), customer(6_000, "later")]) == [("a", 1.0, "silver")]
    assert operator.waiting_rows() == (0, 0)
    assert operator.state_tables().keys() == {"waiting"}


def test_forward_without_a_version_a_trade_comes_out_when_the_tolerance_has_run_out() -> None:
    operator = AsofJoin(direction="forward", tolerance="4 ms", suffixes=SUFFIXES).create_operator(*specs())
    assert take(operator, [trade(1_500), trade(90_000, "z")], [customer(5_000, "b", "b")]) == []
    assert take(operator, [], [customer(5_999, "c", "c")]) == []
    assert take(operator, [], [customer(6_000, "a")]) == [("a", 1.0, None)]


def test_nearest_a_trade_waits_no_longer_than_a_nearer_version_could_come() -> None:
    operator = AsofJoin(direction="nearest", suffixes=SUFFIXES).create_operator(*specs())
    start = [customer(6_000, "silver"), customer(12_000, "other", "b")]
    assert take(operator, [trade(10_000), trade(90_000, "z")], start) == []
    assert operator.waiting_rows() == (1, 0)
    # One at 14 ms would be as far away as the one behind, so a watermark of 13 ms settles it.
    assert take(operator, [], [customer(13_000, "other", "b")]) == []
    assert take(operator, [], [customer(14_000, "gold")]) == [("a", 1.0, "silver")]


def test_nearest_a_version_that_is_nearer_by_a_microsecond_is_waited_for() -> None:
    operator = AsofJoin(direction="nearest", suffixes=SUFFIXES).create_operator(*specs())
    start = [customer(5_999, "silver"), customer(11_000, "other", "b")]
    assert take(operator, [trade(10_000), trade(90_000, "z")], start) == []
    assert take(operator, [], [customer(14_000, "gold")]) == []
    assert take(operator, [], [customer(15_000, "later")]) == [("a", 1.0, "gold")]


def test_nearest_the_version_behind_a_waiting_trade_is_kept_although_a_newer_one_is_in_force() -> None:
    join = AsofJoin(direction="nearest", allow_exact_matches=False, suffixes=SUFFIXES)
    operator = join.create_operator(*specs())
    start = [customer(6_000, "silver"), customer(10_000, "exact"), customer(11_000, "other", "b")]
    assert take(operator, [trade(10_000), trade(90_000, "z")], start) == []
    assert operator.details()["versions_in_force"] == 2
    again = join.create_operator(*specs())
    again.restore(operator.snapshot())
    assert take(again, [], [customer(20_000, "other", "b")]) == [("a", 1.0, "silver")]
    assert [row["tier"] for row in again.state_tables()["versions"].to_pylist()] == ["exact", "other"]


def test_trades_come_out_in_the_order_in_which_their_matches_became_final() -> None:
    trades = [trade(1_000, amount=1.0), trade(2_000, amount=2.0), trade(3_000, amount=3.0)]
    versions = [customer(2_000, "gold"), customer(9_000, "late")]
    streams = Streams(specs(), (trades, versions))
    join = AsofJoin(direction="nearest", suffixes=SUFFIXES)
    rows = run(join.create_operator, streams, static(streams)).rows()
    assert [(row[5], row[-1]) for row in rows] == [(1.0, "gold"), (2.0, "gold"), (3.0, "gold")]
    forward = AsofJoin(direction="forward", tolerance="3 ms", suffixes=SUFFIXES)
    rows = run(forward.create_operator, streams, static(streams)).rows()
    assert [(row[5], row[-1]) for row in rows] == [(1.0, "gold"), (2.0, "gold"), (3.0, None)]
    forward = AsofJoin(direction="forward", allow_exact_matches=False, tolerance="6 ms", suffixes=SUFFIXES)
    rows = run(forward.create_operator, streams, static(streams)).rows()
    # The second's tolerance ends at 8 ms, before the third's match at 9 ms.
    assert [(row[5], row[-1]) for row in rows] == [(1.0, "gold"), (2.0, None), (3.0, "late")]


def test_a_later_trade_comes_out_before_one_whose_match_is_certain_later() -> None:
    trades = [trade(10_000, amount=1.0), trade(11_000, amount=2.0)]
    versions = [customer(1_000, "far"), customer(10_000, "near")]
    rows = joined(AsofJoin(direction="nearest", allow_exact_matches=False, suffixes=SUFFIXES), trades, versions)
    # A version at 18 ms would be nearer to the first; none could be nearer to the second than the one it has.
    assert [(row[5], row[-1]) for row in rows] == [(2.0, "near"), (1.0, "far")]


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
@pytest.mark.parametrize("tolerance", [None, "1 ms", dt.timedelta.max])
def test_times_at_the_ends_of_64_bits_wrap_nowhere(direction: Any, tolerance: Any) -> None:
    first, last = -(1 << 63), (1 << 63) - 1
    operator = AsofJoin(direction=direction, tolerance=tolerance, suffixes=SUFFIXES).create_operator(*specs())
    out = take(operator, [trade(first, amount=1.0), trade(0, amount=2.0)], [customer(first + 1, "first")])
    streams = Streams(operator.inputs, ([], []))
    end = map_side(streams, ([trade(last, amount=3.0)], [customer(last - 1, "last")]), 1)[0]
    for emission in operator.process(replace(end, end_of_input=True)):
        columns = emission.table.select(["amount", "tier"]).to_pydict()
        out += [("a", *row) for row in zip(columns["amount"], columns["tier"], strict=True)]
    near = tolerance != "1 ms"
    expected = {
        "backward": {1.0: None, 2.0: "first" if near else None, 3.0: "last"},
        # From the middle the last is nearer by a microsecond or two.
        "nearest": {1.0: "first", 2.0: "last" if near else None, 3.0: "last"},
        "forward": {1.0: "first", 2.0: "last" if near else None, 3.0: None},
    }
    assert {amount: tier for _, amount, tier in out} == expected[direction]
    assert operator.report()["inputs"][0]["done"] == 3


def test_a_row_comes_out_as_long_after_its_own_time_as_the_tolerance_lets_it() -> None:
    def delay(**options: Any) -> int:
        return AsofJoin(suffixes=SUFFIXES, **options).create_operator(*specs()).output_delay_ms

    assert delay(tolerance="5 ms") == 0
    assert delay(direction="forward", tolerance="5 ms") == 5
    assert delay(direction="nearest", tolerance="4001 us") == 5
    assert delay(direction="forward") == END_OF_TIME


def test_an_applied_late_trade_gets_what_is_there_or_comes() -> None:
    left, right = specs()
    join = AsofJoin(direction="forward", suffixes=SUFFIXES)
    operator = join.create_operator(replace(left, late="apply"), right)
    take(operator, [trade(9_000, "z")], [customer(9_000, "silver")])
    assert take(operator, [trade(3_000), trade(99_000, "z")], [customer(5_000, "late"), customer(9_000, "b", "b")]) == [
        ("a", 1.0, "late")
    ]
    assert operator.report()["inputs"][0]["late_applied"] == 1


def test_after_a_drain_nothing_waits() -> None:
    streams = Streams(specs((5, 5)), ([trade(10_000)], [customer(10_000, "gold")]))
    outcome = run(AsofJoin(suffixes=SUFFIXES).create_operator, streams, static(streams))
    assert outcome.reports[0]["watermark"] == END_OF_TIME
    assert [each["buffered"] for each in outcome.reports[0]["inputs"]] == [0, 0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"how": "outer"}, "how: expected 'left' or 'inner', got 'outer'"),
        ({"how": "lefft"}, "did you mean 'left'"),
        ({"tolerance": 5}, "tolerance: expected a duration"),
        ({"allow_exact_matches": 1}, "allow_exact_matches: expected True or False, got 1"),
        ({"direction": "forwards"}, "direction: expected 'backward', 'forward' or 'nearest', got 'forwards'; did you"),
    ],
)
def test_a_join_that_cannot_be_is_refused_before_it_starts(options: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        AsofJoin(**options)


def test_a_join_travels_to_the_workers() -> None:
    join = AsofJoin("inner", tolerance="5 ms")
    assert pickle.loads(pickle.dumps(join)) == join
    assert join.describe()["tolerance_us"] == 5_000


def test_another_operators_state_is_refused() -> None:
    left, right = specs()
    snapshot = KeyedCoProcess(EnrichTrades(), OUTPUT).create_operator(left, right).snapshot()
    with pytest.raises(CheckpointError, match="written by KeyedCoProcessOperator, the query runs AsofJoinOperator"):
        AsofJoin(suffixes=SUFFIXES).create_operator(left, right).restore(snapshot)


def in_memory(left: pd.DataFrame, right: pd.DataFrame, **options: Any) -> list[Any]:
    """Return the values of the right that our join gives the left's rows, by their times."""
    sides = (cj.Input(left, "k", "t", "trades"), cj.Input(right, "k", "t", "customers"))
    joined = cj.connect(*sides).asof_join(suffixes=("", "_right"), **options).to_arrow()
    return [row["v"] for row in sorted(joined.to_pylist(), key=lambda row: row["t"])]


def in_pandas(left: pd.DataFrame, right: pd.DataFrame, **options: Any) -> list[Any]:
    found = pd.merge_asof(left, right, on="t", by="k", **options)["v"]
    return [None if pd.isna(each) else int(each) for each in found]


def frame(times: list[Any], values: list[int] | None = None, keys: list[Any] | None = None) -> pd.DataFrame:
    rows = {"t": pd.to_datetime(times, unit="s", utc=True), "k": keys or ["a"] * len(times)}
    return pd.DataFrame(rows if values is None else {**rows, "v": values})


def test_where_the_join_differs_from_merge_asof_is_what_the_module_says() -> None:
    ascending, descending = frame([5, 5], [1, 2]), frame([5, 5], [2, 1])
    # Of one time the last as given backward, the first as given forward; here the last by content, whatever was given.
    assert [in_pandas(frame([9]), each) for each in (ascending, descending)] == [[2], [1]]
    assert [in_pandas(frame([1]), each, direction="forward") for each in (ascending, descending)] == [[1], [2]]
    for right in (ascending, descending):
        assert in_memory(frame([9]), right) == in_memory(frame([1]), right, direction="forward") == [2]
        assert in_memory(frame([1]), right, direction="nearest") == [2]
    # At equal distance both take the preceding one.
    around = frame([5, 15], [1, 2])
    assert in_pandas(frame([10]), around, direction="nearest") == [1]
    assert in_memory(frame([10]), around, direction="nearest") == [1]
    # Null keys match each other there, and are rejected here.
    nobody = (frame([9, 10], keys=["a", None]), frame([5, 6], [1, 2], ["a", None]))
    assert (in_pandas(*nobody), in_memory(*nobody)) == ([1, 2], [1])
    # Null times and rows that are not sorted are refused there.
    timeless, unsorted = frame([9, None]), frame([9, 7])
    with pytest.raises(ValueError, match="Merge keys contain null values on left side"):
        in_pandas(timeless, around)
    with pytest.raises(ValueError, match="left keys must be sorted"):
        in_pandas(unsorted, around)
    assert in_memory(timeless, around) == [1]
    assert in_memory(unsorted, around) == [1, 1]
