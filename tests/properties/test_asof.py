"""The as-of join is a function of the rows alone, and agrees with every oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.joins import AsofJoin
from tests.oracles import (
    asof_moment,
    brute_force,
    brute_force_directed,
    duckdb_asof_join,
    joined_rows,
    pandas_merge_asof,
    pandas_merge_asof_directed,
    result_by_key,
    rows_in_order,
    spelled,
)
from tests.streams import Streams, deliveries, run, static, streams

if TYPE_CHECKING:
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.joins import AsofJoinOperator

JOINS = st.builds(
    AsofJoin,
    how=st.sampled_from(["left", "inner"]),
    tolerance=st.sampled_from([None, "0 ms", "1 us", "4 ms", "20 ms"]),
    allow_exact_matches=st.booleans(),
    suffixes=st.just(("", "_customer")),
)
DIRECTED = st.builds(replace, JOINS, direction=st.sampled_from(["forward", "nearest"]))


def expected(join: AsofJoin, streams: Streams, oracle: Any) -> dict[Any, list[str]]:
    tolerance = join.describe()["tolerance_us"]
    matches = oracle(streams, tolerance, exact=join.allow_exact_matches)
    return spelled(joined_rows(streams, matches, join.how))


def expected_directed(join: AsofJoin, streams: Streams, oracle: Any) -> dict[Any, list[str]]:
    tolerance = join.describe()["tolerance_us"]
    matches = oracle(streams, tolerance, exact=join.allow_exact_matches, direction=join.direction)
    pairs = [(left, right) for left, right in enumerate(matches) if join.how == "left" or right is not None]
    return spelled(rows_in_order(streams, pairs, lambda *pair: asof_moment(streams, tolerance, join.direction, *pair)))


@given(st.data(), streams(), JOINS)
def test_oracle_however_the_rows_arrive_each_key_gives_the_rows_of_a_scan_over_all_pairs(
    data: st.DataObject, streams: Streams, join: AsofJoin
) -> None:
    outcome = run(join.create_operator, streams, data.draw(deliveries(streams)))
    assert result_by_key(streams, outcome.rows()) == expected(join, streams, brute_force)
    assert not outcome.rejected


@pytest.mark.parametrize("oracle", [pandas_merge_asof, duckdb_asof_join])
@given(streams(), JOINS)
def test_oracle_a_static_join_is_that_of_pandas_and_of_duckdb(oracle: Any, streams: Streams, join: AsofJoin) -> None:
    outcome = run(join.create_operator, streams, static(streams))
    assert result_by_key(streams, outcome.rows()) == expected(join, streams, oracle)


@given(st.data(), streams())
def test_a_pause_forgets_no_version_that_a_later_row_may_match(data: st.DataObject, streams: Streams) -> None:
    """Between any two batches an operator keeps one version of a key at most, yet the result is that of all of them."""
    join = AsofJoin(suffixes=("", "_customer"))
    created: list[AsofJoinOperator] = []

    def create(left: InputSpec, right: InputSpec) -> AsofJoinOperator:
        created.append(join.create_operator(left, right))
        return created[-1]

    outcome = run(create, streams, data.draw(deliveries(streams)))
    assert result_by_key(streams, outcome.rows()) == expected(join, streams, brute_force)
    keys = {streams.key(1, row) for row in streams.rows[1]}
    assert all(operator.details()["versions_in_force"] <= len(keys) for operator in created)


@given(st.data(), streams(), DIRECTED)
def test_oracle_looking_ahead_each_key_gives_the_rows_of_a_scan_over_all_pairs_when_they_are_certain(
    data: st.DataObject, streams: Streams, join: AsofJoin
) -> None:
    outcome = run(join.create_operator, streams, data.draw(deliveries(streams)))
    assert result_by_key(streams, outcome.rows()) == expected_directed(join, streams, brute_force_directed)
    assert not outcome.rejected


@given(streams(), DIRECTED | JOINS)
def test_oracle_in_every_direction_a_static_join_is_that_of_pandas(streams: Streams, join: AsofJoin) -> None:
    outcome = run(join.create_operator, streams, static(streams))
    assert result_by_key(streams, outcome.rows()) == expected_directed(join, streams, pandas_merge_asof_directed)


@given(st.data(), streams(), DIRECTED)
def test_a_pause_gives_what_is_certain_and_keeps_what_is_not(
    data: st.DataObject, streams: Streams, join: AsofJoin
) -> None:
    """Without a drain just those rows have come out whose moment the watermark has reached."""
    outcome = run(join.create_operator, streams, data.draw(deliveries(streams)), drain=False)
    watermark = streams.watermark()
    tolerance = join.describe()["tolerance_us"]
    matches = brute_force_directed(streams, tolerance, exact=join.allow_exact_matches, direction=join.direction)
    moments = [asof_moment(streams, tolerance, join.direction, *pair) for pair in enumerate(matches)]
    certain = [each <= watermark for each in moments]
    assert sum(report["inputs"][0]["done"] for report in outcome.reports) == sum(certain)
    assert len(outcome.rows()) == sum(
        each and (join.how == "left" or match is not None) for each, match in zip(certain, matches, strict=True)
    )
