"""The local runner: what it keeps between batches, what a failure leaves, and the rows that it notes.

That its rows, reports and states are those of Spark is tested by its users (``tests/embedded``, ``tests/testing``,
``tests/spark/test_steps_on_spark.py``).
"""

from __future__ import annotations

import gc
from typing import Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine.input_spec import control_of
from cojoin.engine.keyed_process import KeyedCoProcessOperator
from cojoin.engine.local.kept_tables import KeptTables
from cojoin.engine.local.key_group import ConservationError, EmittedRow
from cojoin.engine.local.local_run import LocalRun, decode_states, restored_operators
from cojoin.engine.values import codec
from cojoin.errors import CojoinError, ConfigurationError, FunctionError
from cojoin.testing import HarnessError

TIME = pa.timestamp("us", "UTC")
AUDIT = cj.OutputTag("audit", "id string")
KEYS = "abcdefgh"


def rows(*values: tuple[str, int, int]) -> pa.Table:
    """Return rows of key, event time in milliseconds, and number."""
    ids, times, numbers = zip(*values, strict=True) if values else ((), (), ())
    micros = pa.array([1_000 * each for each in times], pa.int64()).cast(TIME)
    return pa.table({"id": pa.array(ids, pa.string()), "at": micros, "n": pa.array(numbers, pa.int64())})


EVENTS: list[str] = []


class Counts(cj.KeyedCoProcessFunction):
    """Counts a key's rows in a state and in an attribute; fails for the number 13, and on close where it is asked."""

    def __init__(self, *, fails_on_close: bool = False) -> None:
        self.own, self.fails_on_close = 0, fails_on_close

    def open(self, ctx: cj.RuntimeContext) -> None:
        EVENTS.append("open")
        self.seen = ctx.get_state(cj.ValueStateDescriptor("seen", "bigint"))

    def close(self) -> None:
        EVENTS.append("close")
        if self.fails_on_close:
            msg = "can't be closed"
            raise OSError(msg)

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        self.own += 1
        self.seen.update((self.seen.value() or 0) + 1)
        if trade.n == 13:
            msg = "unlucky"
            raise ValueError(msg)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5)
        yield trade.id, self.seen.value(), self.own
        yield AUDIT, (trade.id,)

    def on_timer(self, timestamp: int, ctx: cj.Context) -> Any:
        yield ctx.get_current_key(), -1, self.own


def plan_of(function: Any = None, **settings: Any) -> Any:
    columns: Any = {"key": "id", "event_time": "at"}
    pair = cj.connect(cj.Input(rows(), name="trades", **columns), cj.Input(rows(), name="customers", **columns))
    options = {"side_outputs": [AUDIT], "order": "arrival", **settings}
    return pair.process(function or Counts(), "id string, seen bigint, own bigint", **options).plan


def process(run: LocalRun, *values: tuple[str, int, int], **options: Any) -> Any:
    left, right = rows(*values), rows(*options.pop("right", ()))
    first, second = run.plan.inputs
    return run.process((left, right), [control_of(1, left, first), control_of(2, right, second)], **options)


def numbers(output: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in output.tables()["output"].to_pylist()]


@pytest.mark.parametrize("key_groups", [1, 3])
def test_states_last_and_attributes_only_where_operators_are_kept(key_groups: int) -> None:
    for keeps, own in ((False, 1), (True, 2)):
        with LocalRun(plan_of(), key_groups, keeps_operators=keeps) as run:
            assert numbers(process(run, ("a", 1, 1))) == [("a", 1, 1)]
            assert numbers(process(run, ("a", 2, 2))) == [("a", 2, own)]
            assert run.report(1).inputs[0].rows_in == 2


def test_the_function_is_closed_after_each_batch_or_in_the_end() -> None:
    for keeps, expected in ((False, ["open", "close"] * 2), (True, ["open", "close"])):
        EVENTS.clear()
        with LocalRun(plan_of(), keeps_operators=keeps) as run:
            process(run, ("a", 1, 1))
            process(run, ("a", 2, 2))
        assert expected == EVENTS


def test_a_batch_that_fails_changes_nothing() -> None:
    run = LocalRun(plan_of(), 2)
    process(run, ("a", 1, 1), ("b", 1, 1), right=[("a", 3, 0)])
    before, report, watermark = run.states(), run.report(0), run.watermark.current()
    with pytest.raises(FunctionError, match="ValueError: unlucky"):
        process(run, ("a", 9, 2), ("b", 9, 13), right=[("a", 9, 0)])
    assert (run.states(), run.report(0), run.watermark.current(), run.failed) == (before, report, watermark, False)
    assert numbers(process(run, ("a", 10, 2))) == [("a", 2, 1)]


def test_where_operators_are_kept_only_a_restore_follows_a_failure() -> None:
    with LocalRun(plan_of(), keeps_operators=True) as run:
        process(run, ("a", 1, 1))
        before = run.states()
        with pytest.raises(FunctionError, match="ValueError: unlucky"):
            process(run, ("a", 2, 13))
        assert run.failed
        run.restore(before)
        assert not run.failed
        assert numbers(process(run, ("a", 3, 2))) == [("a", 2, 1)]


def test_an_error_on_close_counts_only_where_the_batch_had_none() -> None:
    for keeps in (False, True):
        with pytest.raises(FunctionError, match="unlucky"), LocalRun(plan_of(), keeps_operators=keeps) as run:
            process(run, ("a", 1, 13))
        failing = plan_of(Counts(fails_on_close=True))
        with pytest.raises(FunctionError, match="unlucky"), LocalRun(failing, keeps_operators=keeps) as run:
            process(run, ("a", 1, 13))
        with pytest.raises(FunctionError, match="can't be closed"), LocalRun(failing, keeps_operators=keeps) as run:
            process(run, ("a", 1, 1))


def test_the_states_of_any_number_of_key_groups_can_be_restored_into_another() -> None:
    first = LocalRun(plan_of(), 3)
    process(first, *((key, 1, 1) for key in KEYS), right=[("a", 1, 1)])
    for key_groups in (1, 2, 5):
        run = LocalRun(plan_of(), key_groups)
        run.restore(first.states(), checks_states=True)
        assert len(run.operators) == len(run.states()) == key_groups
        found = numbers(process(run, *((key, 2, 2) for key in KEYS)))
        assert sorted(row[:2] for row in found if row[1] > 0) == [(key, 2) for key in KEYS]
        report = run.report(1)
        assert (report.inputs[0].rows_in, report.inputs[0].done, report.is_conserved) == (16, 16, True)


def test_rows_are_noted_with_output_time_and_key_in_the_order_of_the_callbacks() -> None:
    run = LocalRun(plan_of(), notes_rows=True)
    (group,) = process(run, ("b", 2, 1), ("a", 1, 1), right=[("a", 1, 1)]).groups
    found = list(group.rows())
    assert [row.output for row in found] == ["output", "audit"] * 2
    assert {row._replace(value=tuple(row.value)[:2]) for row in found} == {
        EmittedRow("output", ("a", 1), 1, ("a",)),
        EmittedRow("audit", ("a",), 1, ("a",)),
        EmittedRow("output", ("b", 1), 2, ("b",)),
        EmittedRow("audit", ("b",), 2, ("b",)),
    }
    (group,) = process(run, ("a", 9, 1), right=[("c", 9, 1)]).groups
    assert [(row.timestamp, row.key, row.value.seen) for row in group.rows() if row.output == "output"] == [
        (9, ("a",), 2),
        (6, ("a",), -1),
        (7, ("b",), -1),
    ]
    assert [each.reason for each in group.rejected()] == []


def test_rejected_rows_are_apart() -> None:
    run = LocalRun(plan_of(order="event_time", side_outputs=[AUDIT]), notes_rows=True)
    process(run, ("a", 9, 1), right=[("a", 9, 1)])
    (group,) = process(run, ("a", 3, 1)).groups
    assert [(each.input, each.reason, each.timestamp, each.watermark) for each in group.rejected()] == [
        ("trades", "late", 3, 8)
    ]
    assert list(group.rows()) == []


def content(run: LocalRun) -> list[Any]:
    """Return what the states hold, however their tables are cut into chunks."""
    decoded = [codec.decode(state) for state in run.states()]
    return [(header, {name: table.to_pylist() for name, table in tables.items()}) for header, tables in decoded]


@pytest.mark.parametrize("keeps", [False, True])
def test_inspecting_operators_changes_nothing(keeps: bool) -> None:
    with LocalRun(plan_of(), keeps_operators=keeps) as run:
        process(run, ("a", 1, 1), ("b", 2, 1))
        before = content(run)
        kept = KeptTables(run.operators)
        assert kept.state.to_pylist() == [{"id": "a", "seen": 1}, {"id": "b", "seen": 1}]
        assert kept.timers["id"].to_pylist() == ["a", "b"]
        assert content(run) == before
        assert numbers(process(run, ("a", 3, 1)))[0][:2] == ("a", 2)


def test_a_row_that_is_lost_is_no_error_of_the_test_kit(monkeypatch: pytest.MonkeyPatch) -> None:
    admit = KeyedCoProcessOperator._admit

    def loses(self: Any, *arguments: Any) -> Any:
        admitted, rejected = admit(self, *arguments)
        return admitted.slice(0, 0), rejected

    monkeypatch.setattr(KeyedCoProcessOperator, "_admit", loses)
    message = r"input 'trades': rows were lost, or counted twice: 1 in, but 0 done \+ 0 buffered \+ 0 rejected"
    with pytest.raises(ConservationError, match=message) as caught:
        process(LocalRun(plan_of()), ("a", 1, 1))
    assert isinstance(caught.value, CojoinError)
    assert not isinstance(caught.value, HarnessError)
    columns: Any = {"key": "id", "event_time": "at"}
    table = rows(("a", 1, 1))
    pair = cj.connect(cj.Input(table, name="trades", **columns), cj.Input(table, name="customers", **columns))
    joined = pair.process(Counts(), "id string, seen bigint, own bigint", side_outputs=[AUDIT])
    for run in (lambda: list(joined.steps()), joined.run):
        with pytest.raises(ConservationError):
            run()


def test_garbage_is_collected_again_after_a_failure() -> None:
    assert gc.isenabled()
    with pytest.raises(FunctionError):
        process(LocalRun(plan_of()), ("a", 1, 13))
    assert gc.isenabled()


def test_a_snapshot_becomes_operators_again() -> None:
    columns: Any = {"key": "id", "event_time": "at"}
    table = rows(("a", 1, 1), ("b", 4, 2))
    pair = cj.connect(cj.Input(table, name="trades", **columns), cj.Input(table, name="customers", **columns))
    joined = pair.asof_join(suffixes=("", "_customer"))
    step = next(iter(joined.steps(drain=False)))
    (operator,) = restored_operators(joined.plan, step.snapshot)
    assert operator.watermark.current() == step.watermark == 3
    assert [operator.snapshot()] == decode_states(step.snapshot).states


@pytest.mark.parametrize("key_groups", [0, True, "2", None])
def test_a_number_of_key_groups_that_is_none_is_refused(key_groups: Any) -> None:
    with pytest.raises(ConfigurationError, match="key_groups: expected a whole number above zero"):
        LocalRun(plan_of(), key_groups)
