"""``Joined.steps``: what each micro-batch takes, gives out and keeps, without Spark."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cojoin as cj
from cojoin.api.joined import Joined
from cojoin.embedded.steps import Stepper
from cojoin.engine.local.local_run import decode_states
from cojoin.engine.operator import Batch
from cojoin.engine.rescaling import assemble, merged_header
from cojoin.engine.time.control_rows import Control
from cojoin.engine.values import codec
from tests import streams as drawn
from tests.embedded.in_memory import as_it_is
from tests.embedded.in_memory import connect as connect_streams
from tests.embedded.stepped import CASES, FAR_FUTURE, JOINS, MORNING, Case, draw_case, rows_of
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


@pytest.mark.push
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
    (lambda s: s.restore("x"), "restore: expected the bytes that snapshot() of a harness or stepper returned, got 'x'"),
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


def at(*times: str) -> Any:
    return pd.to_datetime([f"2026-01-15 {each}" for each in times], utc=True)


class Silence(cj.KeyedCoProcessFunction):
    """Trades with their customer's tier; and a note where a customer has not traded for ten minutes."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        self.tier = ctx.get_state(cj.ValueStateDescriptor("tier", "string"))
        self.last = ctx.get_state(cj.ValueStateDescriptor("last", "bigint"))

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        self.last.update(trade.trade_id)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 600_000)
        yield trade.trade_id, self.tier.value()

    def process_element2(self, customer: Any, ctx: cj.Context) -> None:
        self.tier.update(customer.tier)

    def on_timer(self, timestamp: int, ctx: cj.Context) -> Any:
        yield self.last.value(), "silent since"


def two_customers() -> Joined:
    """Return the case of guide 05: two keys, a late row and timers."""
    trades = pd.DataFrame(
        {
            "trade_id": [1, 2, 3, 4],
            "customer": ["a", "b", "b", "a"],
            "event_time": at("09:02", "09:06", "09:04", "09:20"),
        }
    )
    customers = pd.DataFrame(
        {
            "customer": ["a", "b", "a", "b"],
            "event_time": at("09:00", "09:01", "09:07", "09:21"),
            "tier": ["silver", "gold", "basic", "silver"],
        }
    )
    shared: Any = {"key": "customer", "event_time": "event_time"}
    pair = cj.connect(cj.Input(trades, **shared, name="trades"), cj.Input(customers, **shared, name="customers"))
    return pair.process(Silence(), "trade_id bigint, what string")


# Made by hand: trade 3 comes when the watermark has passed it, and customer a falls silent at 09:12.
SHOWN = [
    """
step 0: watermark 2026-01-15 09:00:59.999 (held by 'customers'), clock unknown; times are in UTC

input      rows in  done  buffered  rejected  late applied  watermark (UTC)          held by
---------  -------  ----  --------  --------  ------------  -----------------------  -------
trades           1     0         1         0             0  2026-01-15 09:01:59.999
customers        2     1         1         0             0  2026-01-15 09:00:59.999

rows of 'trades' that came in
  trade_id  customer  event_time
  --------  --------  -------------------
         1  a         2026-01-15 09:02:00

rows of 'customers' that came in
  customer  event_time           tier
  --------  -------------------  ------
  a         2026-01-15 09:00:00  silver
  b         2026-01-15 09:01:00  gold

output: no rows

rows of 'trades' that wait
  trade_id  customer  event_time
  --------  --------  -------------------
         1  a         2026-01-15 09:02:00

rows of 'customers' that wait
  customer  event_time           tier
  --------  -------------------  ----
  b         2026-01-15 09:01:00  gold

states
  customer  tier    last
  --------  ------  ----
  a         silver  null
""",
    """
step 1: watermark 2026-01-15 09:05:59.999 (held by 'trades'), clock unknown; times are in UTC

input      rows in  done  buffered  rejected  late applied  watermark (UTC)          held by
---------  -------  ----  --------  --------  ------------  -----------------------  -------
trades           2     1         1         0             0  2026-01-15 09:05:59.999
customers        3     2         1         0             0  2026-01-15 09:06:59.999

rows of 'trades' that came in
  trade_id  customer  event_time
  --------  --------  -------------------
         2  b         2026-01-15 09:06:00

rows of 'customers' that came in
  customer  event_time           tier
  --------  -------------------  -----
  a         2026-01-15 09:07:00  basic

output
  trade_id  what
  --------  ------
         1  silver

rows of 'trades' that wait
  trade_id  customer  event_time
  --------  --------  -------------------
         2  b         2026-01-15 09:06:00

rows of 'customers' that wait
  customer  event_time           tier
  --------  -------------------  -----
  a         2026-01-15 09:07:00  basic

timers
  customer  domain      timestamp
  --------  ----------  -----------------------
  a         event_time  2026-01-15 09:12:00.000

states
  customer  tier    last
  --------  ------  ----
  a         silver  1
  b         gold    null
""",
    """
step 2: watermark 2026-01-15 09:19:59.999 (held by 'trades'), clock unknown; times are in UTC

input      rows in  done  buffered  rejected    late applied  watermark (UTC)          held by
---------  -------  ----  --------  ----------  ------------  -----------------------  -------
trades           4     2         1  1 (1 late)             0  2026-01-15 09:19:59.999
customers        4     3         1  0                      0  2026-01-15 09:20:59.999

rows of 'trades' that came in
  trade_id  customer  event_time
  --------  --------  -------------------
         3  b         2026-01-15 09:04:00
         4  a         2026-01-15 09:20:00

rows of 'customers' that came in
  customer  event_time           tier
  --------  -------------------  ------
  b         2026-01-15 09:21:00  silver

output
  trade_id  what
  --------  ------------
         2  gold
         2  silent since
         1  silent since

rejected
  input   reason  watermark                event_time           row
  ------  ------  -----------------------  -------------------  ---------------------------------------------------------------------------
  trades  late    2026-01-15 09:05:59.999  2026-01-15 09:04:00  {"trade_id": 3, "customer": "b", "event_time": "2026-01-15T09:04:00+00:00"}

rows of 'trades' that wait
  trade_id  customer  event_time
  --------  --------  -------------------
         4  a         2026-01-15 09:20:00

rows of 'customers' that wait
  customer  event_time           tier
  --------  -------------------  ------
  b         2026-01-15 09:21:00  silver

states
  customer  tier   last
  --------  -----  ----
  a         basic     1
  b         gold      2
""",  # noqa: E501
    """
step 3: watermark end of time, clock unknown; times are in UTC

input      rows in  done  buffered  rejected    late applied  watermark (UTC)  held by
---------  -------  ----  --------  ----------  ------------  ---------------  --------
trades           4     3         0  1 (1 late)             0  end of time      finished
customers        4     4         0  0                      0  end of time      finished

output
  trade_id  what
  --------  ------------
         4  basic
         4  silent since

states
  customer  tier    last
  --------  ------  ----
  a         basic      4
  b         silver     2
""",
]


def test_a_case_by_hand_with_two_keys_a_late_row_and_a_timer_shows_what_the_guide_explains() -> None:
    steps = list(two_customers().steps([(1, 2), (1, 1), (2, 1)]))
    assert [f"\n{step!r}\n" for step in steps] == SHOWN


def test_each_attribute_of_a_step_of_the_case_by_hand() -> None:
    _, second, third, drained = two_customers().steps([(1, 2), (1, 1), (2, 1)])
    minute = 60_000
    nine = int(at("09:00")[0].timestamp() * 1_000)
    assert (second.batch_id, second.processing_time) == (1, 0)
    assert [rows["trade_id"].to_pylist() for rows in second.rows[:1]] == [[2]]
    assert second.output.to_pylist() == [{"trade_id": 1, "what": "silver"}]
    assert [len(rows) for rows in second.waiting] == [1, 1]
    assert second.watermark == nine + 6 * minute - 1
    assert second.input_watermarks == (nine + 6 * minute - 1, nine + 7 * minute - 1)
    assert second.timers.to_pylist() == [{"customer": "a", "domain": "event_time", "timestamp": at("09:12")[0]}]
    assert second.state.to_pylist() == [
        {"customer": "a", "tier": "silver", "last": 1},
        {"customer": "b", "tier": "gold", "last": None},
    ]
    assert third.rejected["reason"].to_pylist() == ["late"]
    assert third.to_pandas("rejected").watermark.tolist() == [second.watermark]
    assert (drained.watermark, drained.report.drained) == ((1 << 63) - 1, True)
    assert drained.timers.num_rows == 0
    assert all(step.report.is_conserved for step in (second, third, drained))


def test_without_a_drain_rows_and_timers_wait() -> None:
    steps = list(two_customers().steps([(1, 2), (1, 1), (2, 1)], drain=False))
    assert len(steps) == 3
    assert [len(rows) for rows in steps[-1].waiting] == [1, 1]
    assert not steps[-1].report.drained


STREAM_JOINS: Any = [
    lambda pair: pair.asof_join(suffixes=("", "_customer")),
    lambda pair: pair.asof_join("inner", tolerance="5 ms", suffixes=("", "_customer")),
    lambda pair: pair.asof_join(direction="nearest", suffixes=("", "_customer")),
    lambda pair: pair.asof_join(direction="forward", tolerance="7 ms", suffixes=("", "_customer")),
    lambda pair: pair.temporal_join(retention="9 ms", suffixes=("", "_customer")),
    lambda pair: pair.interval_join("-4 ms", "3 ms", suffixes=("", "_customer")),
    lambda pair: pair.interval_join("-4 ms", "3 ms", "full", suffixes=("", "_customer")),
    lambda pair: pair.process(Timed(), "what string, amount double", side_outputs=LATE_TIERS),
]

LATE_TIERS = cj.OutputTag("tiers", "tier string")


class Timed(cj.KeyedCoProcessFunction):
    """Trades, a timer for each, and the tiers beside."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        self.tier = ctx.get_state(cj.ValueStateDescriptor("tier", "string"))

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 4)
        yield self.tier.value(), trade.amount

    def process_element2(self, customer: Any, ctx: cj.Context) -> Any:
        self.tier.update(customer.tier)
        yield LATE_TIERS, (customer.tier,)

    def on_timer(self, timestamp: int, ctx: cj.Context) -> Any:
        yield "timer", float(timestamp)


@given(st.data(), drawn.streams(), st.sampled_from(STREAM_JOINS))
def test_if_no_row_is_late_all_steps_together_give_what_a_run_to_the_end_of_time_gives(
    data: st.DataObject, streams: drawn.Streams, join: Any
) -> None:
    delivery = data.draw(drawn.deliveries(streams))
    arrived = tuple([row for batch in delivery.batches for row in batch[side]] for side in (0, 1))
    joined = join(connect_streams(drawn.Streams(streams.inputs, arrived), (as_it_is, as_it_is)))
    cuts = [(len(left), len(right)) for left, right in delivery.batches]
    steps, run = list(joined.steps(cuts)), joined.run()
    assert len(steps) == len(cuts) + 1
    for name, expected in run.tables.items():
        assert rows_of(pa.concat_tables(step.tables[name] for step in steps)) == rows_of(expected)
    last = steps[-1].report
    for mine, whole in zip(last.inputs, run.report.inputs, strict=True):
        assert (mine.rows_in, mine.done, mine.buffered, mine.rejected) == (whole.rows_in, whole.done, 0, {})


@pytest.mark.push
@pytest.mark.parametrize("name", JOINS)
@pytest.mark.parametrize("number", range(3))
def test_late_rows_come_out_as_the_operators_themselves_give_them(name: str, number: int) -> None:
    """The engine's own way, with two map tasks an input and three key groups, beside steps with the same cuts."""
    case = draw_case(SEED + number, name, batches=4)
    joined = JOINS[name](case.connect(case.trades, case.customers))
    left, right = (replace(spec, max_ahead_ms=86_400_000) for spec in joined.plan.inputs)
    plan, groups = replace(joined.plan, left=left, right=right), 3
    operators = [plan.create_operator() for _ in range(groups)]
    steps = list(joined.steps(case.cuts, processing_time=NOW))
    for step, rows in zip(steps, [*case.batches(), None], strict=True):
        found: dict[str, list[pa.Table]] = {kind: [schema.empty_table()] for kind, (_, schema) in plan.outputs.items()}
        for group, operator in enumerate(operators):
            for emission in operator.process(part(plan, rows, group, groups)):
                found[emission.kind].append(emission.table)
            operator.close()
        for kind, tables in found.items():
            assert rows_of(pa.concat_tables(tables)) == rows_of(step.tables[kind]), (step, kind)
        reports = [operator.report() for operator in operators]
        assert {report["watermark"] for report in reports} == {step.watermark}
        for side, each in enumerate(step.report.inputs):
            for counter in ("rows_in", "done", "buffered", "late_applied"):
                assert sum(report["inputs"][side][counter] for report in reports) == getattr(each, counter)
        fresh = [plan.create_operator() for _ in range(groups)]
        for operator, old in zip(fresh, operators, strict=True):
            operator.restore(old.snapshot())
        operators = fresh


def test_the_cases_that_run_on_spark_have_everything_that_goes_wrong() -> None:
    reasons: Counter[str] = Counter()
    late_applied = side_rows = 0
    for name, _, seed in CASES:
        case = draw_case(seed, name)
        for step in JOINS[name](case.connect(case.trades, case.customers)).steps(case.cuts, processing_time=NOW):
            reasons.update(step.rejected["reason"].to_pylist())
            side_rows += sum(table.num_rows for table in step.side_outputs.values())
        late_applied += sum(each.late_applied for each in step.report.inputs)
    assert len(CASES) == 30
    assert all(reasons[reason] >= 20 for reason in ("null_key", "null_event_time", "too_far_ahead", "late")), reasons
    assert min(late_applied, side_rows) >= 20


def part(plan: Any, rows: Any, group: int, groups: int) -> Batch:
    """Return one key group's part of a batch, as two map tasks an input would send it; None is the end of input."""
    if rows is None:
        nothing = (plan.left.schema.empty_table(), plan.right.schema.empty_table())
        return Batch(nothing, end_of_input=True, processing_time=NOW)
    parts, controls = [], []
    for number, (spec, whole) in enumerate(zip(plan.inputs, rows, strict=True), start=1):
        mine = [zlib.crc32(repr(key).encode()) % groups == group for key in whole[spec.key[0]].to_pylist()]
        parts.append(whole.filter(pa.array(mine, pa.bool_())))
        for task in (0, 1):
            largest: dict[str, int] = {}
            for row in whole.to_pylist()[task::2]:
                moment = row[spec.event_time]
                if moment is not None and moment.year < 2100:
                    place = f"[{row['part']}]" if spec.partition else "[]"
                    largest[place] = max(largest.get(place, 0), int(moment.timestamp() * 1_000_000) // 1_000)
            if whole.num_rows > task:
                controls.append(Control(number, largest, sum(mine[task::2]), NOW))  # type: ignore[arg-type]
    return Batch((parts[0], parts[1]), controls, processing_time=NOW)


def test_max_ahead_counts_only_with_a_known_clock() -> None:
    rows = pa.table({"id": ["a"], "at": pa.array([FAR_FUTURE]).cast(pa.timestamp("us", "UTC"))})
    settings: Any = {"key": "id", "event_time": "at"}
    for limit, clock, reasons in [
        ("1 day", None, []),
        ("1 day", 0, []),
        ("1 day", NOW, ["too_far_ahead"]),
        (None, NOW, []),
        ("1 day", FAR_FUTURE // 1_000 - 86_400_000, []),
        ("1 day", datetime.fromtimestamp(NOW / 1_000, timezone.utc), ["too_far_ahead"]),
    ]:
        left, right = (cj.Input(rows, name=name, max_ahead=limit, **settings) for name in ("trades", "customers"))
        joined = cj.connect(left, right).asof_join(suffixes=("", "_customer"))
        first, _ = joined.steps(processing_time=clock)
        assert first.rejected["reason"].to_pylist() == 2 * reasons, (limit, clock)
        assert (first.watermark == -(1 << 63)) == bool(reasons)


def test_a_silent_input_becomes_idle_by_the_clock_that_is_given() -> None:
    trades = pd.DataFrame({"id": ["a"] * 4, "at": at("09:00", "09:01", "09:02", "09:03")})
    customers = pd.DataFrame({"id": ["a"], "at": at("09:00")})
    strategy = cj.WatermarkStrategy().with_idleness("1 minute")
    settings: Any = {"key": "id", "event_time": "at", "watermark": strategy}
    pair = cj.connect(cj.Input(trades, name="trades", **settings), cj.Input(customers, name="customers", **settings))
    joined = pair.asof_join(suffixes=("", "_customer"))
    cuts = [(1, 1), (1, 0), (1, 0), (1, 0)]
    minutes = [NOW, NOW + 10_000, NOW + 50_000, NOW + 80_000]
    by_clock = list(joined.steps(cuts, processing_time=minutes))
    assert [step.report.inputs[1].status for step in by_clock] == ["active"] * 3 + ["idle", "finished"]
    assert [step.processing_time for step in by_clock] == [*minutes, minutes[-1]]
    assert {step.report.inputs[1].status for step in joined.steps(cuts, drain=False)} == {"active"}


def test_arrival_times_are_the_clock() -> None:
    rows = pd.DataFrame({"id": ["a"] * 3, "at": at("09:00", "09:01", "09:02"), "seen": at("09:10", "09:12", "09:25")})
    left, right = (cj.Input(rows, key="id", event_time="at", name=name) for name in ("trades", "customers"))
    joined = cj.connect(left, right).asof_join(suffixes=("", "_customer"))
    times = [step.processing_time for step in joined.steps(arrival="seen", every="10 minutes")]
    assert times == [int(each.timestamp() * 1_000) for each in at("09:20", "09:30", "09:30")]
    assert [step.processing_time for step in joined.steps(every="10 minutes")] == [0, 0]


RAN: list[int] = []


class Recorded(cj.KeyedCoProcessFunction):
    """Writes down each trade, and fails at trade 99."""

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        RAN.append(trade.trade)
        if trade.trade == 99:
            msg = "no price"
            raise LookupError(msg)
        yield (trade.trade,)


def recorded(trades: list[int]) -> Joined:
    left = pa.table({"trade": trades, "id": ["a"] * len(trades)})
    right = pa.table({"id": pa.array([], pa.string())})
    settings: Any = {"key": "id", "event_time": None}
    pair = cj.connect(cj.Input(left, name="trades", **settings), cj.Input(right, name="customers", **settings))
    return pair.process(Recorded(), "trade bigint", order="arrival")


def test_a_step_runs_when_it_is_asked_for() -> None:
    RAN.clear()
    steps = recorded([1, 2, 3]).steps(3)
    assert not RAN
    assert next(steps).output.to_pylist() == [{"trade": 1}]
    assert RAN == [1]
    next(steps)
    assert RAN == [1, 2]


def test_a_failing_function_shows_its_own_line() -> None:
    steps = recorded([1, 99]).steps(2)
    next(steps)
    with pytest.raises(cj.FunctionError, match="no price") as caught:
        next(steps)
    assert caught.traceback[-1].name == "process_element1"


def test_wrong_arguments_are_refused_at_the_call() -> None:
    joined = recorded([1, 2])
    with pytest.raises(cj.ConfigurationError, match="batches: they take 1 row of input 'trades', which has 2"):
        joined.steps([(1, 0)])
    with pytest.raises(cj.ConfigurationError, match="processing_time: expected one time for each of the 2 batches"):
        joined.steps(2, processing_time=[1])
    with pytest.raises(cj.ConfigurationError, match="drain: expected True or False, got 'yes'"):
        joined.steps(2, drain="yes")  # type: ignore[arg-type]


def test_steps_are_not_for_inputs_of_spark() -> None:
    joined = Joined(recorded([1]).plan, object())  # type: ignore[arg-type]
    with pytest.raises(cj.ConfigurationError, match=r"steps\(\) runs in this process, and inputs 'trades' and"):
        joined.steps()


def test_long_tables_and_values_are_cut_and_say_so_and_html_is_escaped() -> None:
    ids = [f"<{number}>" for number in range(14)]
    rows = pa.table(
        {"id": ids, "at": pa.array([MORNING] * 14).cast(pa.timestamp("us", "UTC")), "note": ["x\ny" * 60] * 14}
    )
    left, right = (cj.Input(rows, key="id", event_time="at", name=name) for name in ("a<b", "customers"))
    (step,) = cj.connect(left, right).asof_join(suffixes=("", "_customer")).steps(drain=False)
    text, html = repr(step), step._repr_html_()
    assert text.count("... and 4 more") == 4
    assert "x\\nyx\\ny" in text
    assert all(len(line) < 200 for line in text.splitlines())
    assert "(and 4 more)" in html
    assert "&lt;9&gt;" in html
    assert "a&lt;b" in html
    assert "<9>" not in html
    assert not re.search(r"\d{13}", text + html)


class Last(cj.KeyedCoProcessFunction):
    """Keeps each key's last time, and a timer an hour after it."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        self.last = ctx.get_state(cj.ValueStateDescriptor("last", "bigint"))

    def process_element1(self, trade: Any, ctx: cj.Context) -> None:
        self.last.update(trade.number)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 3_600_000)


def test_of_many_kept_rows_those_that_the_step_has_changed_are_shown_first() -> None:
    keys = [f"k{number:02}" for number in range(20)]
    late = {"id": ["k17", "k03", "new"], "number": [100, 101, 102], "at": at("09:30", "09:30", "09:30")}
    first = {"id": keys, "number": range(20), "at": at("09:00").repeat(20)}
    trades = pd.concat([pd.DataFrame(first), pd.DataFrame(late)])
    customers = pd.DataFrame({"id": ["k00"], "at": at("10:00")})
    pair = cj.connect(cj.Input(trades, "id", "at", "trades"), cj.Input(customers, "id", "at", "customers"))
    steps = list(pair.process(Last(), "x int", order="arrival").steps([(20, 1), (3, 0)], drain=False))
    for step, shown in ((steps[0], keys[:10]), (steps[1], ["k03", "k17", "new", *keys[:3], *keys[4:8]])):
        assert _first_columns(repr(step), "states") == shown
    assert "states; the 3 that this step has added or changed come first\n" in repr(steps[1])
    assert "timers; the 3 that this step has added or changed come first\n" in repr(steps[1])
    assert "states; the 3 that this step has added or changed come first (and 11 more)<" in steps[1]._repr_html_()


def _first_columns(text: str, title: str) -> list[str]:
    lines = text[text.index(f"\n{title}") :].splitlines()[4:14]
    return [line.split()[0] for line in lines]


def test_a_step_shows_no_bare_milliseconds() -> None:
    for name, join in JOINS.items():
        case = draw_case(SEED, name)
        for step in join(case.connect(case.trades, case.customers)).steps(case.cuts, processing_time=NOW):
            if name not in ("function", "clock", "function in arrival"):  # these yield a number
                assert not re.search(r"\b\d{13}\b", repr(step) + step._repr_html_()), repr(step)
            assert "2026-01-15 09:" in repr(step)
