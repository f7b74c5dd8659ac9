"""The interval join is a function of the rows alone, and agrees with every oracle, for every kind of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.joins import IntervalJoin
from tests.oracles import (
    duckdb_interval_join,
    interval_join,
    interval_moment,
    result_by_key,
    rows_in_order,
    spelled,
)
from tests.streams import Streams, deliveries, run, static, streams

BOUNDS = st.sampled_from([-20_000, -4_000, -1_001, -1, 0, 0, 1, 999, 3_000, 20_000])


@st.composite
def joins(draw: Any) -> IntervalJoin:
    """Draw joins; bounds that no pair could meet are included."""
    lower, upper = sorted([draw(BOUNDS), draw(BOUNDS)])
    inclusive = draw(st.booleans()), draw(st.booleans())
    if upper - lower < 2 - sum(inclusive):
        inclusive = True, True
    return IntervalJoin(
        timedelta(microseconds=lower),
        timedelta(microseconds=upper),
        draw(st.sampled_from(["inner", "left", "right", "full"])),
        *inclusive,
        suffixes=("", "_customer"),
    )


def parts(join: IntervalJoin) -> tuple[tuple[int, int], tuple[bool, bool]]:
    lower, upper = (each // timedelta(microseconds=1) for each in (join.lower, join.upper))  # type: ignore[operator]
    return (lower, upper), (join.lower_inclusive, join.upper_inclusive)


def expected(join: IntervalJoin, streams: Streams, oracle: Any) -> Any:
    bounds, inclusive = parts(join)
    pairs = oracle(streams, bounds, inclusive, join.how)
    return spelled(rows_in_order(streams, pairs, lambda *pair: interval_moment(streams, bounds, inclusive, pair)))


@given(st.data(), streams(), joins())
def test_oracle_however_the_rows_arrive_each_key_gives_the_rows_of_a_scan_over_all_pairs(
    data: st.DataObject, streams: Streams, join: IntervalJoin
) -> None:
    outcome = run(join.create_operator, streams, data.draw(deliveries(streams)))
    assert result_by_key(streams, outcome.rows()) == expected(join, streams, interval_join)
    assert not outcome.rejected


@given(streams(), joins())
def test_oracle_a_static_join_is_that_of_duckdb(streams: Streams, join: IntervalJoin) -> None:
    outcome = run(join.create_operator, streams, static(streams))
    assert result_by_key(streams, outcome.rows()) == expected(join, streams, duckdb_interval_join)


@given(st.data(), streams(), joins())
def test_a_pause_gives_what_is_certain_and_keeps_just_the_rows_that_may_still_match(
    data: st.DataObject, streams: Streams, join: IntervalJoin
) -> None:
    outcome = run(join.create_operator, streams, data.draw(deliveries(streams)), drain=False)
    (bounds, inclusive), watermark = parts(join), streams.watermark()
    pairs = interval_join(streams, bounds, inclusive, join.how)
    assert len(outcome.rows()) == sum(interval_moment(streams, bounds, inclusive, pair) <= watermark for pair in pairs)
    for side in (0, 1):
        ends = [
            interval_moment(streams, bounds, inclusive, (number, None) if side == 0 else (None, number))
            for number in range(len(streams.rows[side]))
        ]
        counts = [report["inputs"][side] for report in outcome.reports]
        there = outcome.kept[("left", "right")[side]] + outcome.kept[f"held{side + 1}"]
        # Rows of segments that have ended are done once they are read or compacted.
        ended_in_segments = sum(each["buffered"] for each in counts) - there
        assert ended_in_segments >= 0
        assert sum(each["done"] for each in counts) + ended_in_segments == sum(end <= watermark for end in ends)
