from __future__ import annotations

import datetime as dt
import pickle
from typing import Any

import pytest

from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.joins import AsofJoin
from cojoin.process import KeyedCoProcess
from cojoin.watermarks import END_OF_TIME
from tests.programs import OUTPUT, EnrichTrades
from tests.streams import Delivery, Rows, Streams, map_side, run, specs, static

SUFFIXES = ("", "_customer")


def trade(micros: int, key: str = "a", amount: float | None = 1.0) -> tuple[Any, ...]:
    return (key, 1, micros, 0, 0, amount, None)


def customer(micros: int, tier: str, key: str = "a", offset: int = 0) -> tuple[Any, ...]:
    return (key, 1, micros, 0, offset, tier)


def tiers(left: Rows, right: Rows, **options: Any) -> list[Any]:
    """Give the tiers that the trades of one key get, in the order of their event times."""
    streams = Streams(specs(), (left, right))
    return [
        row[-1] for row in run(AsofJoin(suffixes=SUFFIXES, **options).create_operator, streams, static(streams)).rows()
    ]


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
