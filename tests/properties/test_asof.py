"""The as-of join is a function of the rows alone, and agrees with every oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.joins import AsofJoin
from tests.oracles import brute_force, by_key, duckdb_asof_join, joined_rows, pandas_merge_asof
from tests.streams import Streams, deliveries, run, static, streams

if TYPE_CHECKING:
    from cojoin.inputs import InputSpec
    from cojoin.joins import AsofJoinOperator

JOINS = st.builds(
    AsofJoin,
    how=st.sampled_from(["left", "inner"]),
    tolerance=st.sampled_from([None, "0 ms", "1 us", "4 ms", "20 ms"]),
    allow_exact_matches=st.booleans(),
    suffixes=st.just(("", "_customer")),
)


def expected(join: AsofJoin, streams: Streams, oracle: Any) -> dict[Any, list[str]]:
    tolerance = join.describe()["tolerance_us"]
    matches = oracle(streams, tolerance, exact=join.allow_exact_matches)
    rows = joined_rows(streams, matches, join.how)
    return {key: [repr(row) for row in mine] for key, mine in rows.items()}


def actual(streams: Streams, rows: list[Any]) -> dict[Any, list[str]]:
    micros = [tuple(_micros(value) for value in row) for row in rows]
    return by_key(micros, len(streams.inputs[0].key))


def _micros(value: Any) -> Any:
    from datetime import datetime, timedelta, timezone

    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)
    return value


@given(st.data(), streams(), JOINS)
def test_oracle_however_the_rows_arrive_each_key_gives_the_rows_of_a_scan_over_all_pairs(
    data: st.DataObject, streams: Streams, join: AsofJoin
) -> None:
    outcome = run(join.create_operator, streams, data.draw(deliveries(streams)))
    assert actual(streams, outcome.rows()) == expected(join, streams, brute_force)
    assert not outcome.rejected


@pytest.mark.parametrize("oracle", [pandas_merge_asof, duckdb_asof_join])
@given(streams(), JOINS)
def test_oracle_a_static_join_is_that_of_pandas_and_of_duckdb(oracle: Any, streams: Streams, join: AsofJoin) -> None:
    outcome = run(join.create_operator, streams, static(streams))
    assert actual(streams, outcome.rows()) == expected(join, streams, oracle)


@given(st.data(), streams())
def test_a_pause_forgets_no_version_that_a_later_row_may_match(data: st.DataObject, streams: Streams) -> None:
    """Between any two batches an operator keeps one version of a key at most, yet the result is that of all of them."""
    join = AsofJoin(suffixes=("", "_customer"))
    created: list[AsofJoinOperator] = []

    def create(left: InputSpec, right: InputSpec) -> AsofJoinOperator:
        created.append(join.create_operator(left, right))
        return created[-1]

    outcome = run(create, streams, data.draw(deliveries(streams)))
    assert actual(streams, outcome.rows()) == expected(join, streams, brute_force)
    keys = {streams.key(1, row) for row in streams.rows[1]}
    assert all(operator.details()["versions_in_force"] <= len(keys) for operator in created)
