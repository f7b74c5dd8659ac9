"""Joins and functions in this process: the rows, types and orders of every oracle, from every form of rows."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.embedded.in_memory import FORMS, connect, rows_of
from tests.oracles import (
    Simulation,
    brute_force_directed,
    by_key,
    duckdb_interval_join,
    pandas_merge_asof_directed,
    result_by_key,
    temporal_join,
)
from tests.programs import OUTPUT, EnrichTrades, Heartbeat, Ledger, Sessions
from tests.properties import test_asof, test_interval, test_random_functions, test_temporal
from tests.streams import Streams, run, static, streams

if TYPE_CHECKING:
    from cojoin.engine.functions import KeyedCoProcessFunction
    from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin

pytestmark = pytest.mark.filterwarnings("ignore:.*the reader gave no rows")

BOTH_FORMS = st.tuples(FORMS, FORMS)
PROGRAMS = st.sampled_from([EnrichTrades(), Ledger(), Sessions(), Heartbeat()])


@pytest.mark.parametrize("oracle", [brute_force_directed, pandas_merge_asof_directed])
@given(streams(), test_asof.DIRECTED | test_asof.JOINS, BOTH_FORMS)
def test_oracle_asof(oracle: Any, streams: Streams, join: AsofJoin, forms: Any) -> None:
    joined = connect(streams, forms).asof_join(
        join.how,
        direction=join.direction,
        tolerance=join.tolerance,
        allow_exact_matches=join.allow_exact_matches,
        suffixes=join.suffixes,
    )
    result = joined.run()
    assert result_by_key(streams, rows_of(result.output)) == test_asof.expected_directed(join, streams, oracle)
    assert result.output.schema == join.output_schema(*joined.plan.inputs)
    assert result.rejected.num_rows == 0
    assert result.report.is_conserved
    assert result.report.drained


@given(streams(), test_temporal.JOINS, BOTH_FORMS)
def test_oracle_temporal(streams: Streams, join: TemporalJoin, forms: Any) -> None:
    pair = connect(streams, forms, closed=join.deletes is not None)
    joined = pair.temporal_join(
        join.how,
        deletes=join.deletes,
        null_payload_deletes=join.null_payload_deletes,
        retention=join.retention,
        suffixes=join.suffixes,
    )
    matches = temporal_join(streams, join.describe()["retention_us"], test_temporal.deleted_by(join, streams))
    found = result_by_key(streams, rows_of(joined.to_arrow()))
    assert found == test_temporal.expected(join, streams, matches)


@given(streams(), test_interval.joins(), BOTH_FORMS)
def test_oracle_interval(streams: Streams, join: IntervalJoin, forms: Any) -> None:
    joined = connect(streams, forms).interval_join(
        join.lower,
        join.upper,
        join.how,
        lower_inclusive=join.lower_inclusive,
        upper_inclusive=join.upper_inclusive,
        suffixes=join.suffixes,
    )
    expected = test_interval.expected(join, streams, duckdb_interval_join)
    assert result_by_key(streams, rows_of(joined.to_arrow())) == expected


@given(streams(), PROGRAMS, BOTH_FORMS)
def test_oracle_a_function_sees_what_the_simulation_sees(
    streams: Streams, function: KeyedCoProcessFunction, forms: Any
) -> None:
    result = connect(streams, forms).process(function, OUTPUT).run()
    simulated = Simulation(function, streams).run()
    assert by_key(rows_of(result.output)) == by_key(simulated.rows)
    assert result.report.details.get("timers_not_fired", 0) == simulated.not_fired


@given(streams(), test_random_functions.PROGRAMS, BOTH_FORMS)
def test_a_function_with_timers_and_side_outputs_gives_what_the_static_operator_gives(
    streams: Streams, program: Any, forms: Any
) -> None:
    tag = test_random_functions.BESIDE
    joined = connect(streams, forms).process(program, test_random_functions.OUTPUT, side_outputs=tag)
    result, operator = joined.run(), run(joined.plan.operation.create_operator, streams, static(streams))
    assert by_key(rows_of(result.output)) == by_key(operator.rows())
    assert by_key(rows_of(result.side_outputs[tag])) == by_key(operator.rows("beside"))


def test_rows_without_a_key_or_a_time_are_rejected_with_the_reason() -> None:
    rows = pa.table({"k": [1, None, 1], "t": pa.array([1, 2, None], pa.timestamp("us", "UTC")), "v": [1, 2, 3]})
    other = rows.slice(0, 1).rename_columns(["k", "t", "w"])
    result = connect_tables(rows, other).asof_join().run()
    assert result.rejected.select(["input", "reason"]).to_pylist() == [
        {"input": "left", "reason": "null_key"},
        {"input": "left", "reason": "null_event_time"},
    ]
    assert result.report.inputs[0].rejected == {"null_key": 1, "null_event_time": 1}
    assert result.report.is_conserved


def connect_tables(left: Any, right: Any, **settings: Any) -> Any:
    import cojoin as cj

    columns: Any = {"key": "k", "event_time": "t"} | settings
    return cj.connect(cj.Input(left, **columns), cj.Input(right, **columns))


@pytest.mark.parametrize("method", ["run", "to_arrow", "to_pandas"])
def test_rows_that_are_missing_from_a_result_are_told_once_at_the_users_line(method: str) -> None:
    """With input, reason, count and the call that returns them: a left join's result is shorter than its left."""
    import cojoin as cj

    times = pa.array([1, 2, None, None], pa.timestamp("us", "UTC"))
    rows = pa.table({"k": [1, None, 1, None], "t": times, "v": [1, 2, 3, 4]})
    joined = connect_tables(rows, rows.slice(0, 1).rename_columns(["k", "t", "w"])).asof_join()
    where = "run().rejected" if method == "run" else f'{method}("rejected")'
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        getattr(joined, method)()
        joined.to_arrow()
    (warning,) = caught
    assert (warning.category, warning.filename) == (cj.MissingRowsWarning, __file__)
    assert str(warning.message) == (
        "3 of 4 rows of 'left' were rejected (2 whose event time is null, 1 whose key is null), so the result lacks "
        f"them; {where} returns them with their reasons"
    )


def test_who_asks_for_the_rejected_rows_is_not_told_of_them() -> None:
    rows = pa.table({"k": pa.array([None], pa.int64()), "t": pa.array([1], pa.timestamp("us", "UTC")), "v": [1]})
    joined = connect_tables(rows, rows.rename_columns(["k", "t", "w"])).asof_join()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (joined.to_arrow("rejected").num_rows, len(joined.to_pandas("rejected"))) == (2, 2)
