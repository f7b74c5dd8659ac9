"""What a harness refuses, and what it says."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from cojoin.errors import ConfigurationError, FunctionError, SchemaError
from cojoin.functions import KeyedCoProcessFunction
from cojoin.joins import AsofJoin
from cojoin.testing import Harness, HarnessInput
from tests.testing.functions import CUSTOMERS, OUTPUT, TRADES, UNKNOWN, EnrichTrades, enrich


@pytest.mark.parametrize(
    ("value", "timestamp", "message"),
    [
        (("a", 7), 1, r"input 'trades': expected a row of 3 fields .*, got 2 values"),
        (("a", "x", 1.0), 1, r"input 'trades': .*field 'trade_id'"),
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
    with pytest.raises(FunctionError, match=r"process_element1 returned what is no iterable of rows"):
        harness.process_element1(("a", 1, 1.0), 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "arival"}, r"order: .*did you mean 'arrival'"),
        ({"when_all_idle": "min"}, r"when_all_idle: expected 'hold' or 'max', got 'min'"),
        ({"regressing_watermarks": "eror"}, r"regressing_watermarks: .*did you mean 'error'"),
        ({"key_groups": 0}, r"key_groups: expected one or more, got 0"),
        ({"input1": HarnessInput("a string", key="b")}, r"input 'left' has no key column 'b'"),
        ({"input1": HarnessInput("a string", key=())}, r"key: expected one or more columns, got none"),
        ({"input1": HarnessInput("a double", key="a")}, r"key column 'a' is double, which can't be a key"),
        (
            {"input1": HarnessInput("a long", key="a")},
            r"key: expected the same types in both inputs, got int64 and str",
        ),
        (
            {"input1": HarnessInput("a string, t long", key="a", event_time="t")},
            r"'t': expected a timestamp, got int64",
        ),
        ({"input1": HarnessInput("a strng", key="a")}, r"input 'left': columns.*unknown type 'strng'"),
        ({"input1": HarnessInput("a string", key="a", event_time=None)}, r"has no event time"),
        ({"input1": HarnessInput("a string", key="a", late="drop")}, r"late: expected 'reject' or 'apply'"),
        ({"input1": HarnessInput("a string", key="a", watermark="1 s")}, r"watermark: expected a WatermarkStrategy"),
        ({"input1": "a string"}, r"input1: expected a HarnessInput, got 'a string'"),
        ({"side_outputs": [UNKNOWN, UNKNOWN]}, r"two tags have the same name"),
    ],
)
def test_what_can_not_be_right_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        enrich(**options)


def test_a_function_needs_an_output_type_and_to_be_an_instance() -> None:
    with pytest.raises(SchemaError, match="output_type: expected DDL"):
        Harness(EnrichTrades(), input1=TRADES, input2=CUSTOMERS)
    with pytest.raises(ConfigurationError, match="make an instance of it"):
        Harness(EnrichTrades, OUTPUT, input1=TRADES, input2=CUSTOMERS)  # type: ignore[arg-type]


def test_a_side_output_that_was_not_declared_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'unknwn' was not declared; did you mean 'unknown'"):
        enrich().side_output("unknwn")


def test_an_operation_has_its_own_output() -> None:
    for options in ({"output_type": OUTPUT}, {"order": "arrival"}, {"side_outputs": [UNKNOWN]}):
        with pytest.raises(ConfigurationError, match="an operation has its own; leave them out"):
            Harness.of(AsofJoin(), input1=TRADES, input2=CUSTOMERS, **options)
