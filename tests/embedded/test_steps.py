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
from cojoin.engine.operator import Batch
from cojoin.engine.time.control_rows import Control
from tests import streams as drawn
from tests.embedded.in_memory import as_it_is
from tests.embedded.in_memory import connect as connect_streams
from tests.embedded.stepped import CASES, FAR_FUTURE, JOINS, MORNING, draw_case, rows_of
from tests.seeds import SEED


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


NOW = MORNING // 1_000 + 60_000


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
