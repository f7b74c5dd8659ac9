"""Functions see their rows and timers in the declared order, and their rows come out."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine import callbacks, keyed_process
from cojoin.engine.functions import KeyedCoProcessFunction, OutputTag
from cojoin.engine.keyed_process import DueRows, KeyedCoProcess
from cojoin.engine.operator import Batch
from cojoin.engine.state import ValueStateDescriptor
from cojoin.engine.time.control_rows import Control
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.errors import CheckpointError, ConfigurationError, FunctionError, SchemaError
from tests.programs import OUTPUT, EnrichTrades, told
from tests.streams import CUSTOMERS, TRADES, Rows, Streams, map_side, specs, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cojoin.engine.keyed_process import KeyedCoProcessOperator


@pytest.mark.parametrize("chunk_rows", [1, 3, 50_000])
@pytest.mark.parametrize(
    ("by_time", "expected"),
    [
        (True, {0: [("customer", 5), ("trade", 5), ("trade", 7)], 1: [], 2: [("trade", 1), ("customer", 9)]}),
        (False, {0: [("trade", 5), ("trade", 7), ("customer", 5)], 1: [], 2: [("trade", 1), ("customer", 9)]}),
    ],
)
def test_rows_come_key_after_key_in_the_declared_order(
    monkeypatch: pytest.MonkeyPatch, chunk_rows: int, by_time: bool, expected: Any
) -> None:
    monkeypatch.setattr(keyed_process, "_CHUNK_ROWS", chunk_rows)
    due = table([trade(7, "a"), trade(1, "c"), trade(5, "a")], TRADES), table([customer(9), customer(5)], CUSTOMERS)
    codes = np.array([0, 2, 0]), np.array([2, 0])
    found = {
        code: [(("trade", "customer")[is_right], timestamp) for timestamp, is_right, _ in rows]
        for code, rows in DueRows(due, specs()).by_key([0, 1, 2], codes, by_time=by_time)
    }
    # In arrival order the left rows come first, by sequence and content: here by time.
    assert found == expected


def trade(milli: int, key: str = "a", amount: float = 1.0) -> tuple[Any, ...]:
    return (key, 1, milli * 1_000, 0, 0, amount, None)


def customer(milli: int, tier: str = "gold", key: str = "a") -> tuple[Any, ...]:
    return (key, 1, milli * 1_000, 0, 0, tier)


def operator(function: KeyedCoProcessFunction, order: Any = "event_time", **inputs: Any) -> KeyedCoProcessOperator:
    return KeyedCoProcess(function, OUTPUT, order).create_operator(*specs(**inputs))


def feed(runs: KeyedCoProcessOperator, left: Rows, right: Rows, *, now: int = 0, ends: bool = False) -> list[Any]:
    """Run a batch; give the output rows without the key."""
    (batch,) = map_side(Streams(runs.inputs, ([], [])), (left, right), 1, now)
    emissions = list(runs.process(replace(batch, end_of_input=ends)))
    return [tuple(row.values())[1:4] for each in emissions if each.kind == "output" for row in each.table.to_pylist()]


class Teller(KeyedCoProcessFunction):
    """Tells every callback; the amount of a trade, or 1, is how far ahead it sets a timer."""

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + int(value.amount))
        yield told(ctx, "trade")

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield told(ctx, "customer")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield told(ctx, "timer")


def test_in_event_time_order_rows_and_timers_come_in_one_sequence_of_time() -> None:
    left, right = [trade(12, amount=0), trade(10, amount=1)], [customer(12), customer(11)]
    assert feed(operator(Teller()), left, right, ends=True) == [
        ("trade", 10, 9),
        ("customer", 11, 10),
        ("timer", 11, 11),
        ("customer", 12, 11),
        ("trade", 12, 11),
        ("timer", 12, 12),
    ]


def test_in_event_time_order_a_timer_for_the_past_fires_after_its_rows_millisecond() -> None:
    left = [trade(10, amount=-5), trade(10, amount=-5), trade(11, amount=7)]
    assert feed(operator(Teller()), left, [], ends=True) == [
        ("trade", 10, 9),
        ("trade", 10, 9),
        ("timer", 5, 9),
        ("trade", 11, 10),
        ("timer", 18, 18),
    ]


def test_in_arrival_order_rows_see_the_watermark_before_and_timers_the_one_after() -> None:
    runs = operator(Teller(), "arrival")
    assert feed(runs, [trade(12, amount=1), trade(10, amount=0)], [customer(30)]) == [
        ("trade", 10, NONE),
        ("trade", 12, NONE),
        ("customer", 30, NONE),
        ("timer", 10, 11),
    ]
    assert feed(runs, [trade(3, amount=0)], [customer(31)]) == [("trade", 3, 11), ("customer", 31, 11)]
    assert feed(runs, [trade(20, amount=99)], []) == [
        ("trade", 20, 11),
        ("timer", 3, 19),
        ("timer", 13, 19),
    ]


def test_a_timer_fires_for_a_key_that_has_no_rows_in_the_batch() -> None:
    runs = operator(Teller())
    feed(runs, [trade(10, "quiet", 5)], [customer(10)])
    feed(runs, [trade(11, "busy", 99)], [customer(11)])
    assert ("timer", 15, 15) in feed(runs, [trade(40, "busy", 99)], [customer(40)])


def test_processing_time_is_the_batchs_own() -> None:
    class Clock(KeyedCoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield told(ctx, str(ctx.timer_service().current_processing_time()))

    assert feed(operator(Clock(), "arrival"), [trade(1)], [], now=77)[0][0] == "77"


def test_a_composite_key_is_a_row_with_the_lefts_names() -> None:
    class Keys(KeyedCoProcessFunction):
        def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield told(ctx, f"{ctx.get_current_key().customer} {ctx.get_current_key().region}")

    runs = operator(Keys(), composite=True)
    assert feed(runs, [], [customer(1)], ends=True)[0][0] == "a 1"


class Diary(KeyedCoProcessFunction):
    """Writes down what is called; its diary is shared by all copies."""

    diary: list[str] = []  # noqa: RUF012 - shared on purpose

    def open(self, ctx: Any) -> None:
        self.diary.append("open")

    def process_element1(self, value: Any, ctx: Any) -> None:
        if value.amount < 0:
            raise ValueError
        self.diary.append("row")

    def close(self) -> None:
        self.diary.append("close")


def test_a_function_is_opened_before_its_first_element_and_closed_once() -> None:
    Diary.diary.clear()
    runs = operator(Diary())
    feed(runs, [trade(1), trade(2)], [], ends=True)
    runs.close()
    runs.close()
    assert Diary.diary == ["open", "row", "row", "close"]


def test_a_function_is_closed_after_an_error_too_and_not_closed_if_never_opened() -> None:
    Diary.diary.clear()
    runs = operator(Diary())
    with pytest.raises(FunctionError):
        feed(runs, [trade(1, amount=-1)], [], ends=True)
    runs.close()
    operator(Diary()).close()
    assert Diary.diary == ["open", "close"]


def test_every_operator_has_a_function_of_its_own() -> None:
    function = EnrichTrades()
    feed(operator(function), [trade(1)], [], ends=True)
    assert not hasattr(function, "customer")


class Faulty(KeyedCoProcessFunction):
    """Goes wrong in the way that the trade's amount says."""

    def process_element1(self, value: Any, ctx: Any) -> Any:
        if value.amount == 0:
            ctx.timer_service().register_event_time_timer(5)
            return None
        return {1: 1 / 0, 2: 5}[value.amount] if value.amount != 2 else 5

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value.teir

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.nothing


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        (
            [trade(3, amount=1)],
            [],
            ["Faulty.process_element1 raised ZeroDivisionError: ", "input 'trades', key 'a', row Row(customer='a', "],
        ),
        (
            [],
            [customer(3)],
            ["Faulty.process_element2 raised AttributeError: a row has no field 'teir'", "input 'customers', key 'a'"],
        ),
        (
            [trade(3, amount=0)],
            [],
            ["Faulty.on_timer raised AttributeError", "key 'a', event_time timer 5 (1970-01-01 00:00:00.005)"],
        ),
        (
            [trade(3, amount=2)],
            [],
            [
                "Faulty.process_element1 returned a value that is not iterable ('int' object",
                "yield its rows, or return",
            ],
        ),
    ],
)
@pytest.mark.parametrize("order", ["event_time", "arrival"])
def test_an_error_names_function_callback_input_key_and_row(
    left: Rows, right: Rows, said: list[str], order: Any
) -> None:
    with pytest.raises(FunctionError) as caught:
        feed(operator(Faulty(), order), left, right, ends=True)
    for each in said:
        assert each in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


@pytest.mark.parametrize("callback", ["open", "close"])
def test_an_error_in_open_or_close_names_it(callback: str) -> None:
    def fail(*args: Any) -> None:
        msg = "no such file"
        raise OSError(msg)

    function = type("Broken", (EnrichTrades,), {callback: fail})()
    with pytest.raises(FunctionError, match=f"Broken.{callback} raised OSError: no such file"):  # noqa: PT012 - either
        runs = operator(function)
        feed(runs, [], [customer(1)], ends=True)
        runs.close()


def test_a_mistyped_state_is_an_error_of_its_schema() -> None:
    class Mistyped(KeyedCoProcessFunction):
        def open(self, ctx: Any) -> None:
            ctx.get_state(ValueStateDescriptor("customer", "tier strng"))

    with pytest.raises(SchemaError, match="state 'customer'=\"tier strng\": unknown type 'strng'"):
        feed(operator(Mistyped()), [trade(1)], [], ends=True)


class Restless(KeyedCoProcessFunction):
    """Sets its timer anew, some milliseconds later each time."""

    def __init__(self, step: int) -> None:
        self.step = step

    def process_element1(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(timestamp + self.step)
        yield told(ctx, "beat")


@pytest.mark.parametrize("order", ["event_time", "arrival"])
def test_a_sweep_that_does_not_go_forward_stops_with_the_functions_name_and_the_key(order: Any) -> None:
    runs = operator(Restless(0), order)
    feed(runs, [trade(1)], [customer(1)])
    with pytest.raises(FunctionError, match=r"Restless.on_timer raised FunctionError: .*set 10,000 timers.*key 'a'"):
        feed(runs, [trade(20_000)], [customer(20_000)])


@pytest.mark.parametrize("order", ["event_time", "arrival"])
@pytest.mark.parametrize("ends", [False, True])
def test_a_heartbeat_goes_on_after_hours_of_downtime(order: Any, ends: bool) -> None:
    hours = 3 * 3_600_000
    before = operator(Restless(1_000), order)
    feed(before, [trade(1)], [customer(1)])
    runs = operator(Restless(1_000), order)
    runs.restore(before.snapshot())
    beats = [at for _, at, _ in feed(runs, [trade(hours, "b")], [customer(hours)], ends=ends)]
    assert beats[:10_800] == list(range(1, hours, 1_000))
    waiting = 1 if order == "event_time" else 2
    assert runs.details() == {"timers": 0 if ends else waiting, "timers_not_fired": 2 if ends else 0}


@pytest.mark.parametrize("order", ["event_time", "arrival"])
def test_at_the_end_of_time_a_heartbeat_ends_however_it_came(order: Any) -> None:
    """Inputs that are finished one by one, or a watermark at the end of time, end time as a drain does."""
    for controls in (
        [Control(1, statuses={None: "finished"}), Control(2, statuses={None: "finished"})],
        [Control(1, watermarks={"[0]": END_OF_TIME}), Control(2, watermarks={"[0]": END_OF_TIME})],
    ):
        runs = operator(Restless(1_000), order)
        feed(runs, [trade(1), trade(2_500, "b")], [customer(1)])
        nothing = tuple(spec.schema.empty_table() for spec in runs.inputs)
        found = list(runs.process(Batch(nothing, controls)))  # type: ignore[arg-type]
        assert sum(each.table.num_rows for each in found) == 4
        assert runs.details()["timers_not_fired"] == 2


@pytest.mark.parametrize("order", ["event_time", "arrival"])
def test_a_timer_at_the_beginning_of_time_waits_for_the_first_watermark(order: Any) -> None:
    class Earliest(KeyedCoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> None:
            ctx.timer_service().register_event_time_timer(-(1 << 63))

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            yield told(ctx, "timer")

    runs = operator(Earliest(), order)
    assert feed(runs, [trade(1)], []) == []
    assert feed(runs, [], []) == []
    assert runs.details()["timers"] == (order == "arrival")
    again = operator(Earliest(), order)
    again.restore(runs.snapshot())
    fired = feed(again, [trade(9, "b")], [customer(5)])
    assert [each[:2] for each in fired] == [("timer", NONE)] * (1 if order == "event_time" else 2)


def test_many_rows_come_out_in_pieces() -> None:
    class Wide(KeyedCoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> list[Any]:
            return [("a", "", 0, 0, "")] * 30_000

    runs = operator(Wide())
    (batch,) = map_side(Streams(runs.inputs, ([], [])), ([trade(1, key) for key in "abcd"], []), 1)
    tables = [each.table.num_rows for each in runs.process(replace(batch, end_of_input=True))]
    assert tables == [60_000, 60_000]


def test_a_key_is_kept_by_its_columns() -> None:
    runs = operator(EnrichTrades())
    feed(runs, [], [customer(1)])
    snapshot = runs.snapshot()
    wider = KeyedCoProcess(EnrichTrades(), OUTPUT).create_operator(*specs(composite=True))
    with pytest.raises(CheckpointError, match="EnrichTrades: the checkpoint's states have the key customer string"):
        wider.restore(snapshot)


class Remembers(KeyedCoProcessFunction):
    """Declares some value states."""

    def __init__(self, **states: str) -> None:
        self.states = states

    def open(self, ctx: Any) -> None:
        self.handles = [ctx.get_state(ValueStateDescriptor(name, dtype)) for name, dtype in self.states.items()]

    def process_element2(self, customer: Any, ctx: Any) -> None:
        for handle in self.handles:
            handle.update(1)


def test_stored_states_can_be_checked_before_any_row_comes() -> None:
    old = operator(Remembers(visits="int", gone="int"))
    old.check_states()
    feed(old, [trade(9)], [customer(1), customer(9)])
    snapshot = old.snapshot()
    new = operator(Remembers(visits="long", gone="int", added="int"))
    new.restore(snapshot)
    new.check_states()
    assert new.state_backend.state_of("a") == {"visits": 1, "gone": 1}
    differ = "state 'visits': the checkpoint and the function differ in its type: it changes from int to string"
    for changed, said in (
        (
            Remembers(visits="string", gone="int"),
            f"{differ}; declare the stored type, or give the new state another name",
        ),
        (Remembers(visits="int"), "the checkpoint holds the state 'gone', which open no longer declares; declare it, "),
        (
            Remembers(),
            "the checkpoint holds the states 'visits', 'gone', which open no longer declares; declare them, ",
        ),
    ):
        refused = operator(changed)
        refused.restore(snapshot)
        with pytest.raises(CheckpointError) as caught:
            refused.check_states()
        assert str(caught.value).startswith(f"Remembers: {said}")


def test_callbacks_may_be_left_out() -> None:
    assert feed(operator(KeyedCoProcessFunction()), [trade(1)], [customer(1)], ends=True) == []


class Wrong(KeyedCoProcessFunction):
    """Yields a wrong row from one callback, after many right ones."""

    def __init__(self, callback: str, row: Any) -> None:
        self.callback, self.row = callback, row

    def _rows(self, ctx: Any, callback: str) -> Iterator[Any]:
        yield told(ctx, "right")
        yield self.row if callback == self.callback and ctx.timestamp() == 13 else told(ctx, "right")

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1)
        ctx.timer_service().register_processing_time_timer(13)
        yield from self._rows(ctx, "process_element1")

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield from self._rows(ctx, "process_element2")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield from self._rows(ctx, f"on_timer of {ctx.time_domain().value}")


@pytest.mark.parametrize("piece", [1, 3, 50_000])
@pytest.mark.parametrize("order", ["event_time", "arrival"])
@pytest.mark.parametrize(
    ("callback", "where"),
    [
        ("process_element1", "input 'trades', key 'b', row Row\\(.*amount=1.0.*\\)"),
        ("process_element2", "input 'customers', key 'b', row Row\\(.*tier='gold'.*\\)"),
        ("on_timer of event_time", "key 'b', event_time timer 13 \\(1970-01-01 00:00:00.013\\)"),
        ("on_timer of processing_time", "key 'a', processing_time timer 13 \\(1970-01-01 00:00:00.013\\)"),
    ],
)
@pytest.mark.parametrize(
    ("row", "said"),
    [
        ((1, "w", 2, 3, "s"), "output field 'key': expected string, got 1 \\(int\\); in the row .*"),
        (("a",), "expected a row of 5 fields .*"),
        ((OutputTag("beside", "x int"), (1,)), "yielded to the side output 'beside', which was not declared.*"),
    ],
)
def test_a_wrong_row_is_told_with_the_callback_and_the_element_that_yielded_it(
    monkeypatch: pytest.MonkeyPatch, piece: int, order: Any, callback: str, where: str, row: Any, said: str
) -> None:
    monkeypatch.setattr(callbacks, "_PIECE_ROWS", piece)
    left = [trade(time, key) for key, time in (("a", 10), ("a", 11), ("b", 12), ("b", 13))]
    right = [customer(time, key=key) for key, time in (("a", 10), ("b", 13))]
    name = callback.partition(" ")[0]
    place = f"{name} is written in .*test_keyed_process.py:\\d+$"
    with pytest.raises(FunctionError, match=f"^Wrong.{name}: {said}; {where}; {place}"):
        feed(operator(Wrong(callback, row), order), left, right, now=20, ends=True)


FAR = 10**18
"""Microseconds from 1970 to the year 33658."""


@pytest.mark.parametrize("order", ["event_time", "arrival"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_row_with_a_time_that_python_does_not_have_is_rejected_and_ends_nothing(order: Any, side: int) -> None:
    runs = operator(Teller(), order)
    sides: list[Any] = [[trade(10, amount=99)], [customer(10)]]
    sides[side] += [("a", 1, FAR, 0, 0, *sides[side][0][5:]), ("a", 1, -FAR, 0, 1, *sides[side][0][5:])]
    (batch,) = map_side(Streams(runs.inputs, ([], [])), (sides[0], sides[1]), 1, 0)
    emissions = list(runs.process(replace(batch, end_of_input=True)))
    (rejected,) = [each.table for each in emissions if each.kind == "rejected"]
    assert rejected.column("reason").to_pylist() == ["time_beyond_python"] * 2
    assert rejected.column("input").to_pylist() == [runs.inputs[side].name] * 2
    told_times = "".join(rejected.column("row").to_pylist())
    assert '"11574074 days and 6400 seconds since 1970"' in told_times
    assert '"-11574075 days and 80000 seconds since 1970"' in told_times
    assert sum(each.table.num_rows for each in emissions if each.kind == "output") >= 2
    for at, counts in enumerate(runs.counts):
        assert counts.rejected == ({"time_beyond_python": 2} if at == side else {})
        assert counts.rows_in == counts.done + sum(counts.rejected.values())


def test_buffered_rows_of_earlier_releases_are_rejected_when_they_are_due() -> None:
    runs = operator(Teller())
    runs.shows_rows = False  # as before 0.6.0
    assert feed(runs, [trade(10, amount=99), ("a", 1, FAR, 0, 0, 1.0, None)], []) == []
    restored = operator(Teller())
    restored.restore(runs.snapshot())
    (batch,) = map_side(Streams(restored.inputs, ([], [])), ([], []), 1, 0)
    emissions = list(restored.process(replace(batch, end_of_input=True)))
    assert [each.kind for each in emissions] == ["rejected", "output"]
    assert restored.counts[0].as_dict()["rejected"] == {"time_beyond_python": 1}
    assert restored.counts[0].rows_in == 2


def test_a_key_with_a_time_that_python_does_not_have_is_rejected() -> None:
    for dtype in (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
        number = pa.int32() if dtype == pa.date32() else pa.int64()
        far = 3_000_000 if dtype == pa.date32() else 3_000_000 * 86_400_000_000
        days = pa.array([0, far, None], number).cast(dtype)
        times = pa.array([1, 2, 3]).cast(pa.timestamp("us", "UTC"))
        tables = [pa.table({"day": each, "number": [7, 8, 9], "at": times}) for each in (days, days.take([0, 0, 0]))]
        inputs = [
            cj.Input(table, key=["day", "number"], event_time="at", name=name)
            for table, name in zip(tables, ("trades", "customers"), strict=True)
        ]
        result = cj.connect(*inputs).process(Counter(), "x int")
        with pytest.warns(cj.MissingRowsWarning, match="time beyond the years 1 to 9999") as told_of:
            assert result.to_arrow().to_pylist() == [{"x": 1}] * 4
        assert len(told_of) == 1
        assert len(list(result.steps())) > 0


class Counter(KeyedCoProcessFunction):
    """Yields a one for each row."""

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield (1,)

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield (1,)


@pytest.mark.parametrize(
    ("function", "order", "said"),
    [
        (EnrichTrades, "event_time", "expected an instance of a KeyedCoProcessFunction.*; make an instance of it"),
        (print, "event_time", "expected an instance"),
        (EnrichTrades(), "arival", "order: expected 'event_time' or 'arrival', got 'arival'; did you mean 'arrival'"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_it_starts(function: Any, order: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        KeyedCoProcess(function, OUTPUT, order)


def test_a_run_describes_itself() -> None:
    process = KeyedCoProcess(EnrichTrades(), OUTPUT)
    assert process.describe() == {
        "operator": "process",
        "function": "EnrichTrades",
        "order": "event_time",
        "side_outputs": {},
    }
    assert process.output_schema(*specs()) == OUTPUT
