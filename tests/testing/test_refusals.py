"""What a harness refuses, and what it says."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.errors import CodecError, ConfigurationError, FunctionError, SchemaError
from cojoin.testing import AsofJoin, Element, Harness, HarnessError, HarnessInput
from tests.testing.functions import CUSTOMERS, OUTPUT, TRADES, UNKNOWN, EnrichTrades, enrich


@pytest.mark.parametrize(
    ("value", "timestamp", "message"),
    [
        (("a", 7), 1, r"input 'trades': expected a row of 3 fields .*, got 2 values"),
        (("a", "x", 1.0), 1, r"input 'trades': column 'trade_id'"),
        ({"customer": "a"}, 1, r"missing \['customer_id', 'trade_id', 'amount'\], unknown \['customer'\]"),
        (("a", 7, 1.0, 5), 6, r"a timestamp was given for a row that has its event time among its columns"),
        (("a", 7, 1.0), "10:00", r"event time: expected epoch milliseconds .*got '10:00'"),
        (("a", 7, 1.0), datetime(2024, 1, 1), r"or a datetime with a zone"),  # noqa: DTZ001
        (("a", 7, 1.0), 1 << 62, r"whose microseconds have 64 bits"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(value: Any, timestamp: Any, message: str) -> None:
    harness = enrich()
    with pytest.raises(SchemaError, match=message):
        harness.process_element1(value, timestamp)
    assert harness.report().inputs[0].rows_in == 0


def test_a_timestamp_for_an_input_without_time_is_refused() -> None:
    person = HarnessInput("name string", key="name", event_time=None)
    harness = Harness(KeyedCoProcessFunction(), "text string", input1=person, input2=person, order="arrival")
    with pytest.raises(SchemaError, match="is of an input without event time"):
        harness.process_element1(("Ada",), 1)


def test_the_messages_are_those_of_a_query() -> None:
    class Returns(KeyedCoProcessFunction):
        def process_element1(self, trade: Any, ctx: Any) -> Any:
            return trade.trade_id

    harness = Harness(Returns(), OUTPUT, input1=TRADES, input2=CUSTOMERS, order="arrival")
    with pytest.raises(FunctionError, match=r"process_element1 returned a value that is not iterable"):
        harness.process_element1(("a", 1, 1.0), 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "arival"}, r"order: .*did you mean 'arrival'"),
        ({"when_all_idle": "min"}, r"when_all_idle: expected 'hold' or 'max', got 'min'"),
        ({"regressing_watermarks": "eror"}, r"regressing_watermarks: .*did you mean 'error'"),
        ({"key_groups": 0}, r"key_groups: expected one or more, got 0"),
        ({"input1": HarnessInput("a string", key="b")}, r"input 'left' has no key column 'b'"),
        (
            {"input1": HarnessInput("a string", key=())},
            r"key: expected as many columns of both inputs, .*; input 'left' has 0 and input 'customers' has 1",
        ),
        (
            {"input1": HarnessInput("a double", key="a")},
            r"key column 'a' has the type double, .*: declare 'a' as bigint",
        ),
        (
            {"input1": HarnessInput("a long", key="a")},
            r"the key types differ: 'a' of input 'left' is bigint, .* is string; cast one: declare 'a' as string",
        ),
        (
            {"input1": HarnessInput("a string, t long", key="a", event_time="t")},
            r"'t': expected a timestamp, got bigint; write time_unit='ms'$",
        ),
        ({"input1": HarnessInput("a strng", key="a")}, r"input 'left': columns.*unknown type 'strng'"),
        ({"input1": HarnessInput("a string", key="a", event_time=None)}, r"has no event time"),
        ({"input1": HarnessInput("a string", key="a", late="drop")}, r"late: expected 'reject' or 'apply'"),
        ({"input1": HarnessInput("a string", key="a", watermark="1 s")}, r"watermark: expected a WatermarkStrategy"),
        ({"input1": "a string"}, r"input1: expected a HarnessInput, got 'a string'"),
        ({"side_outputs": [UNKNOWN, UNKNOWN]}, r"two tags have the same name"),
        ({"side_outputs": None}, r"side_outputs: expected OutputTags, got None"),
        ({"input1": replace(TRADES, name="customers")}, r"both inputs are named 'customers'"),
        (
            {"input2": replace(CUSTOMERS, name="left"), "input1": replace(TRADES, name="")},
            r"both inputs are named 'left'",
        ),
        ({"input1": replace(TRADES, name=5)}, r"name: expected a text, got 5"),
        ({"input1": replace(TRADES, event_time=5)}, r"event time: expected a column's name, got 5"),
        ({"input1": replace(TRADES, key=None)}, r"key: expected the key column or columns, got None"),
        (
            {"input1": replace(TRADES, key=["amount", "amount"])},
            r"key: expected different columns, got \['amount', 'amount'\]",
        ),
        ({"key_groups": True}, r"key_groups: expected one or more, got True"),
        ({"key_groups": 1.5}, r"key_groups: expected one or more, got 1.5"),
        ({"fresh_calls": "no"}, r"fresh_calls: expected True or False, got 'no'"),
        ({"processing_time_timers": "yes"}, r"processing_time_timers: expected True, False or None, got 'yes'"),
    ],
)
def test_what_can_not_be_right_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        enrich(**options)


@pytest.mark.parametrize("value", [1.5, None, "5", True, 1 << 63, -(1 << 63) - 1, datetime(2024, 1, 1)])  # noqa: DTZ001
def test_a_time_that_is_no_whole_number_of_milliseconds_is_refused(value: Any) -> None:
    harness = enrich()
    before = harness.snapshot()
    for call in (harness.process_watermark, harness.process_watermark1, harness.process_watermark2):
        with pytest.raises(
            HarnessError, match="watermark: expected a whole number of epoch milliseconds of 64 bits, got"
        ):
            call(value)
    with pytest.raises(
        HarnessError, match=r"processing time: .* whole number of epoch milliseconds of 64 bits from 0 on"
    ):
        harness.set_processing_time(value)
    with pytest.raises(HarnessError, match="processing_time: expected a whole number"):
        enrich(processing_time=value)
    if value is not None:
        with pytest.raises(HarnessError, match="hold_left_until: expected a whole number"):
            enrich(hold_left_until=value)
    assert harness.snapshot() == before


def test_a_forgotten_timestamp_is_no_rejected_row() -> None:
    said = (
        r"input 'trades': no timestamp was given for the row .*; give it, or None to see what becomes of a row without"
    )
    for call in (
        lambda harness: harness.process_element1(("a", 7, 1.0)),
        lambda harness: harness.process_element1({"customer_id": "a", "trade_id": 7, "amount": 1.0}),
        lambda harness: harness.process_batch([("a", 7, 1.0)]),
        lambda harness: harness.process_batch([Element(("a", 7, 1.0), partition="p")]),
        lambda harness: harness.run_static([("a", 7, 1.0)]),
        lambda harness: harness.process_table1("customer_id | trade_id\na | 7"),
    ):
        harness = enrich()
        with pytest.raises(SchemaError, match=said):
            call(harness)
        assert harness.rejected == []
    harness = enrich()
    harness.process_element1(("a", 7, 1.0), None)
    harness.process_element1(("a", 7, 1.0, None))
    harness.process_table1("customer_id | trade_id | event_time\na | 7 | null")
    assert [each.reason for each in harness.rejected] == ["null_event_time"] * 3


def test_from_a_finished_input_nothing_comes() -> None:
    harness = enrich()
    harness.process_batch([Element(("a", 1, 1.0), 1, "p"), Element(("a", 2, 1.0), 2, "q")])
    harness.set_finished(1, partition="p")
    for call in (
        lambda: harness.process_element1(("a", 3, 1.0), 3, partition="p"),
        lambda: harness.process_watermark1(3, partition="p"),
        lambda: harness.set_active(1, partition="p"),
        lambda: harness.set_idle(1, partition="p"),
    ):
        with pytest.raises(HarnessError, match=r"input 'trades', partition 'p': it is finished, which is final"):
            call()
    harness.process_element1(("a", 3, 1.0), 3)
    harness.process_watermark1(4)
    assert harness.input_watermark(1, partition="q") == 4
    harness.set_finished(1)
    for call in (
        lambda: harness.process_element1(("a", 3, 1.0), 3),
        lambda: harness.process_batch([Element(("a", 3, 1.0), 3, "new")], []),
        lambda: harness.process_watermark1(5),
        lambda: harness.process_watermark(5),
        lambda: harness.set_active(1),
    ):
        with pytest.raises(HarnessError, match=r"input 'trades'.*: it is finished, which is final"):
            call()
    assert harness.report().inputs[0].rows_in == 3
    harness.process_watermark2(5)
    assert harness.current_watermark() == 5


@pytest.mark.parametrize("join", [False, True])
@pytest.mark.parametrize("key", [5, None, ("a",), ("a", "b"), b"a"])
def test_a_key_of_another_type_is_refused(join: bool, key: Any) -> None:
    harness = Harness.of(AsofJoin(), input1=TRADES, input2=CUSTOMERS) if join else enrich()
    harness.process_element1(("a", 7, 1.0), 50)
    with pytest.raises(HarnessError, match="key column 'customer_id': expected string, got"):
        harness.state(key)
    if key is not None:
        with pytest.raises(HarnessError, match="key column 'customer_id': expected string, got"):
            harness.timers(key)
    two = HarnessInput("a long, b string", key=["a", "b"])
    harness = Harness(KeyedCoProcessFunction(), "x int", input1=two, input2=two)
    assert harness.state((1, "x")) == {}
    for other in ((1,), 1, ("x", 1)):
        with pytest.raises(HarnessError, match="key"):
            harness.state(other)


def test_inputs_and_partitions_that_are_not_there_are_refused() -> None:
    harness = enrich()
    harness.process_element1(("a", 7, 1.0), 50, partition=("p", 0))
    assert harness.status(1, partition=("p", 0)) == "active"
    for number in (0, 3, "1", True, None):
        for call in (harness.buffered, harness.input_watermark, harness.set_idle, harness.set_finished):
            with pytest.raises(HarnessError, match="expected input 1 or 2, got"):
                call(number)  # type: ignore[operator]
    for look in (harness.status, harness.input_watermark):
        with pytest.raises(HarnessError, match=r"input 1 has no source partition 'q'; known are '\[\"p\", 0\]'"):
            look(1, partition="q")  # type: ignore[operator]
        with pytest.raises(HarnessError, match="input 2 has no source partition 'q'; it has none yet"):
            look(2, partition="q")  # type: ignore[operator]
    with pytest.raises(
        HarnessError, match=r"partition: expected its name, or a tuple of its columns' values such as \(3,"
    ):
        harness.process_element1(("a", 7, 1.0), 50, partition=3)  # type: ignore[arg-type]


def test_what_is_no_snapshot_is_refused() -> None:
    for data in ("text", None, 5):
        with pytest.raises(CodecError, match="restore: expected the bytes that snapshot"):
            enrich().restore(data)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="side output: expected an OutputTag or its id, got None"):
        enrich().side_output(None)  # type: ignore[arg-type]


def test_a_function_needs_an_output_type_and_to_be_an_instance() -> None:
    with pytest.raises(SchemaError, match="output_type: expected DDL"):
        Harness(EnrichTrades(), input1=TRADES, input2=CUSTOMERS)
    with pytest.raises(ConfigurationError, match="make an instance of it"):
        Harness(EnrichTrades, OUTPUT, input1=TRADES, input2=CUSTOMERS)  # type: ignore[arg-type]


def test_a_side_output_that_was_not_declared_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'unknwn' was not declared; did you mean 'unknown'"):
        enrich().side_output("unknwn")


def test_an_operation_has_its_own_output() -> None:
    with pytest.raises(
        ConfigurationError, match=r"operation: expected an instance such as AsofJoin\(\), got the class"
    ):
        Harness.of(AsofJoin, input1=TRADES, input2=CUSTOMERS)  # type: ignore[arg-type]
    for options in ({"output_type": OUTPUT}, {"order": "arrival"}, {"side_outputs": [UNKNOWN]}):
        with pytest.raises(ConfigurationError, match="an operation has its own; leave them out"):
            Harness.of(AsofJoin(), input1=TRADES, input2=CUSTOMERS, **options)
