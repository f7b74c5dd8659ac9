"""The stepper: micro-batches of a plan in fresh operators, its snapshots, and states that come from elsewhere."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.embedded.stepper import Stepper
from cojoin.engine.local.group_states import decode_states
from cojoin.engine.rescaling import assemble, merged_header
from cojoin.engine.time.control_rows import Control
from cojoin.engine.values import codec
from tests.embedded.stepped import JOINS, MORNING, Case, draw_case, rows_of
from tests.seeds import SEED

NOW = MORNING // 1_000 + 60_000
TIME = pa.timestamp("us", "UTC")


def planned(case: Case, name: str) -> Any:
    """Return a plan with the limits that a stream on Spark has."""
    plan = JOINS[name](case.connect(case.trades, case.customers)).plan
    left, right = (replace(spec, max_ahead_ms=86_400_000) for spec in plan.inputs)
    return replace(plan, left=left, right=right)


def run(stepper: Stepper, batches: Any, start: int = 0) -> list[Any]:
    """Run the batches from one on, and the drain."""
    steps = [stepper.step(rows, processing_time=NOW + number) for number, rows in enumerate(batches)][start:]
    return [*steps, drained(stepper)]


def drained(stepper: Stepper) -> Any:
    left, right = (spec.schema.empty_table() for spec in stepper.plan.inputs)
    return stepper.step((left, right), end_of_input=True)


def content(step: Any) -> Any:
    """Return what a step has, in an order that does not depend on key groups."""
    report = replace(step.report, state_bytes=0, state_bytes_by_key_group={})
    return (
        report,
        {name: rows_of(table) for name, table in step.tables.items()},
        [rows_of(table) for table in (*step.waiting, step.timers, step.state)],
    )


@pytest.mark.parametrize("name", JOINS)
def test_key_groups_and_a_restore_after_any_step_change_nothing(name: str) -> None:
    case = draw_case(SEED, name, batches=4)
    plan, batches = planned(case, name), case.batches()
    expected = [content(step) for step in run(Stepper(plan), batches)]
    assert [content(step) for step in run(Stepper(plan, key_groups=3), batches)] == expected
    steps, taken = [], None
    for number, rows in enumerate([*batches, None]):
        stepper = Stepper(plan, key_groups=1 + number % 3)
        if taken is not None:
            stepper.restore(taken, resumed=False)
            assert (stepper.batch_id, stepper.processing_time) == (number - 1, NOW + number - 1)
        step = drained(stepper) if rows is None else stepper.step(rows, processing_time=NOW + number)
        steps.append(content(step))
        taken = step.snapshot if number % 2 else stepper.snapshot()
    assert steps == expected


@pytest.mark.parametrize("name", JOINS)
def test_the_state_of_one_key_goes_on_as_it_would_among_all(name: str) -> None:
    case = draw_case(SEED + 1, name, batches=4)
    plan, batches = planned(case, name), case.batches()
    whole = Stepper(plan, key_groups=2)
    for number, rows in enumerate(batches[:2]):
        step = whole.step(rows, processing_time=NOW + number)
    headers, tables = zip(*map(codec.decode, decode_states(step.snapshot).states), strict=True)
    one = Stepper(plan)
    parts = {name: of_key(table, "a") for name, table in assemble(tables).items()}
    one.restore_parts(merged_header(headers), parts, batch_id=1, keeps_counts=False, resumed=False)
    assert (one.batch_id, one.processing_time) == (1, NOW + 1)
    for rows in (*batches[2:], None):
        if rows is None:
            expected, found = drained(whole), drained(one)
        else:
            mine = (of_key(rows[0], "a"), of_key(rows[1], "a"))
            told = [Control(number, _largest(plan, rows, number - 1), 0, NOW + 9) for number in (1, 2)]  # type: ignore[arg-type]
            expected = whole.step(rows, processing_time=NOW + 9, controls=told)
            found = one.step(mine, processing_time=NOW + 9, controls=told)
        assert (found.watermark, found.batch_id) == (expected.watermark, expected.batch_id)
        for table, whole_table in [
            (found.output, expected.output),
            *zip(found.waiting, expected.waiting, strict=True),
            (found.timers, expected.timers),
            (found.state, expected.state),
        ]:
            assert rows_of(table) == rows_of(of_key(whole_table, "a"))


def of_key(table: pa.Table, key: str) -> pa.Table:
    """Return the rows that have a text among their values: the keys' letters are nowhere else."""
    return table.filter(pa.array([key in row.values() for row in table.to_pylist()], pa.bool_()))


def _largest(plan: Any, rows: Any, side: int) -> dict[str, int]:
    spec, largest = plan.inputs[side], {}
    for row in rows[side].to_pylist():
        if row[spec.event_time] is not None and row[spec.event_time].year < 2100:
            place = f"[{row['part']}]" if spec.partition else "[]"
            largest[place] = max(largest.get(place, 0), int(row[spec.event_time].timestamp() * 1_000_000) // 1_000)
    return largest


ROWS = pa.table({"id": ["a", "b"], "at": pa.array([MORNING, MORNING + 1]).cast(TIME), "note": ["x", "y"]})


def joined(operation: Any = None) -> cj.Joined:
    settings: Any = {"key": "id", "event_time": "at"}
    pair = cj.connect(cj.Input(ROWS, name="trades", **settings), cj.Input(ROWS, name="customers", **settings))
    return pair.asof_join(suffixes=("", "_customer")) if operation is None else operation(pair)


class Kept(cj.KeyedCoProcessFunction):
    """Has states of every kind with a time-to-live, and an attribute."""

    def __init__(self) -> None:
        self.rows = 0

    def open(self, ctx: cj.RuntimeContext) -> None:
        ttl = cj.StateTtlConfig("10 seconds")
        self.value = ctx.get_state(cj.ValueStateDescriptor("id", "string", ttl=ttl))
        self.items = ctx.get_list_state(cj.ListStateDescriptor("items", "bigint", ttl=ttl))
        self.map = ctx.get_map_state(cj.MapStateDescriptor("map", "string", "bigint", ttl=ttl))
        self.total = ctx.get_reducing_state(cj.ReducingStateDescriptor("total", lambda a, b: a + b, "bigint"))

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        self.rows += 1
        self.value.update(trade.note)
        self.items.add(self.rows)
        self.map.put(trade.note, self.rows)
        self.total.add(self.rows)
        if trade.note == "bad":
            msg = "a bad note"
            raise LookupError(msg)
        yield (self.rows,)


def kept() -> cj.Joined:
    return joined(lambda pair: pair.process(Kept(), "rows bigint", order="arrival"))


NOTHING = ROWS.slice(0, 0)


def test_states_are_shown_without_their_last_accesses_until_they_expire() -> None:
    stepper = Stepper(kept().plan)
    step = stepper.step((ROWS.slice(0, 1), NOTHING), processing_time=20_000)
    first = {"id": "a", "state:id": "x", "items": [1], "map": [("x", 1)], "total": 1}
    assert step.state.to_pylist() == [first]
    step = stepper.step((ROWS.slice(1, 1), NOTHING), processing_time=29_999)
    # A new operator in each step: the attribute begins again.
    assert step.output.to_pylist() == [{"rows": 1}]
    second = {"id": "b", "state:id": "y", "items": [1], "map": [("y", 1)], "total": 1}
    assert step.state.to_pylist() == [first, second]
    assert step.state.schema.field("items").type == pa.list_(pa.int64())
    # No row comes, so the function is not opened, and what has expired is still stored.
    step = stepper.step((NOTHING, NOTHING), processing_time=30_000)
    assert step.state.to_pylist() == [{**first, "state:id": None, "items": None, "map": None}, second]


def test_a_step_that_fails_changes_nothing() -> None:
    stepper = Stepper(kept().plan)
    stepper.step((ROWS, NOTHING), processing_time=5_000)
    before = stepper.snapshot()
    bad = ROWS.set_column(2, "note", pa.array(["x", "bad"]))
    with pytest.raises(cj.FunctionError, match="a bad note"):
        stepper.step((bad, NOTHING), processing_time=6_000)
    assert (stepper.snapshot(), stepper.batch_id, stepper.processing_time) == (before, 0, 5_000)
    assert stepper.step((ROWS, NOTHING), processing_time=5_000).report.inputs[0].rows_in == 4


def test_the_function_may_change_between_steps() -> None:
    class Doubled(Kept):
        def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
            yield (2 * self.total.get(),)

    stepper = Stepper(kept().plan)
    taken = stepper.step((ROWS, NOTHING)).snapshot
    changed = joined(lambda pair: pair.process(Doubled(), "rows bigint", order="arrival")).plan
    other = Stepper(changed)
    other.restore(taken)
    assert other.step((ROWS, NOTHING)).output.to_pylist() == [{"rows": 2}, {"rows": 4}]


def test_states_that_the_function_no_longer_declares_are_refused() -> None:
    class Forgetful(cj.KeyedCoProcessFunction):
        pass

    taken = Stepper(kept().plan)
    snapshot = taken.step((ROWS, NOTHING)).snapshot
    other = Stepper(joined(lambda pair: pair.process(Forgetful(), "rows bigint", order="arrival")).plan)
    with pytest.raises(cj.CheckpointError, match="which open no longer declares"):
        other.restore(snapshot)
    assert other.batch_id == -1
    with pytest.raises(cj.CheckpointError, match="written by KeyedCoProcessOperator, the query runs AsofJoinOperator"):
        Stepper(joined().plan).restore(snapshot)


def test_controls_that_are_given_stand_for_what_is_observed() -> None:
    stepper = Stepper(joined().plan, key_groups=2)
    told = [Control(1, {"[]": NOW}, 77), Control(2, {"[]": NOW}, faults=[("undecodable", "{}")])]
    step = stepper.step((ROWS, ROWS), controls=told)
    assert (step.watermark, step.output.num_rows) == (NOW - 1, 2)
    assert step.rejected["reason"].to_pylist() == ["undecodable"]
    assert [each.rows_in for each in step.report.inputs] == [2, 3]
    # What is told of one input says nothing of the other, and rows alone do not move time.
    step = Stepper(joined().plan).step((ROWS, ROWS), controls=told[:1])
    assert step.watermark == -(1 << 63)
    assert [each.rows_in for each in step.report.inputs] == [2, 2]


def test_a_hold_limits_the_watermark_of_its_step() -> None:
    stepper = Stepper(joined().plan)
    assert stepper.step((ROWS, ROWS), holds={1: MORNING // 1_000 - 50}).watermark == MORNING // 1_000 - 50
    assert stepper.step((NOTHING, NOTHING)).watermark == MORNING // 1_000 - 1


def test_rows_are_cast_to_their_input_s_columns() -> None:
    other = pa.table({"note": ["x"], "at": pa.array([MORNING * 1_000]).cast(pa.timestamp("ns", "UTC")), "id": ["a"]})
    step = Stepper(joined().plan).step((other, NOTHING))
    assert step.rows[0].schema == ROWS.schema


REFUSED = [
    (lambda s: s.step((ROWS.drop_columns(["at"]), ROWS)), "input 'trades': expected one column 'at', got 0"),
    (
        lambda s: s.step((ROWS, ROWS.append_column("at", ROWS["at"]))),
        "input 'customers': expected one column 'at', got 2",
    ),
    (lambda s: s.step((ROWS, ROWS.set_column(1, "at", pa.array(["x", "y"])))), "its rows can't be cast to its columns"),
    (lambda s: s.step((ROWS.to_pandas(), ROWS)), "input 'trades': expected a pyarrow Table, got DataFrame"),
    (
        lambda s: s.step((ROWS, ROWS), processing_time=NOW - 1),
        "processing_time: it goes back, from 2026-01-15 09:01:00",
    ),
    (lambda s: s.step((ROWS, ROWS), processing_time=-1), "processing_time: expected a whole number of epoch millis"),
    (lambda s: s.step((ROWS, ROWS), processing_time=1.5), "got 1.5 (float)"),
    (lambda s: (drained(s), s.step((NOTHING, NOTHING))), "step: the inputs have ended, and nothing can follow"),
    (lambda s: s.restore("x"), "restore: expected the bytes that a harness's snapshot() or a stepper's gave, got 'x'"),
    (lambda s: s.restore(decode_states(s.snapshot()).states[0]), "got the state of a single operator"),
    (lambda s: Stepper(s.plan, 0), "key_groups: expected a whole number above zero, got 0"),
]


@pytest.mark.parametrize(("misuse", "message"), REFUSED, ids=range(len(REFUSED)))
def test_misuse_is_refused(misuse: Any, message: str) -> None:
    stepper = Stepper(joined().plan)
    stepper.step((ROWS, ROWS), processing_time=NOW)
    with pytest.raises(cj.CojoinError, match=re.escape(message)):
        misuse(stepper)


def test_after_a_drain_a_restored_stepper_has_ended_too() -> None:
    stepper = Stepper(joined().plan)
    stepper.step((ROWS, ROWS))
    taken = drained(stepper).snapshot
    other = Stepper(joined().plan)
    other.restore(taken)
    with pytest.raises(cj.ConfigurationError, match="the inputs have ended"):
        other.step((NOTHING, NOTHING))
