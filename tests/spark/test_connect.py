"""What must agree between the two inputs, and what an operation on them may ask for."""

from __future__ import annotations

import threading
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

import cojoin as cj
from tests.spark.data import connect
from tests.spark.functions import EnrichTrades, Reminder
from tests.spark.refused import refused

if TYPE_CHECKING:
    from tests.spark.data import Folders

pytestmark = pytest.mark.spark


def pair_of(left: Any, right: Any, left_settings: Any = None, right_settings: Any = None, **settings: Any) -> Any:
    shared = {"key": "customer_id", "event_time": "event_time"}
    return cj.connect(
        cj.Input(left, **({"name": "trades"} | shared | (left_settings or {}))),
        cj.Input(right, **({"name": "customers"} | shared | (right_settings or {}))),
        **settings,
    )


@pytest.mark.parametrize("key_groups", [0, -1, 32_769, True, 3.5, "3"])
def test_key_groups_are_a_positive_number(two_frames: Any, key_groups: Any) -> None:
    with pytest.raises(cj.ConfigurationError) as caught:
        pair_of(*two_frames, key_groups=key_groups)
    assert str(caught.value) == f"key_groups: expected a whole number from 1 to 32768, got {key_groups!r}"


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (
            {},
            {"key": "tier"},
            (
                "the key types differ: 'customer_id' of input 'trades' is bigint, 'tier' of input "
                "'customers' is string; cast one: df.withColumn('customer_id', F.col('customer_id').cast('string'))"
            ),
        ),
        (
            {"key": "small"},
            {},
            (
                "the key types differ: 'small' of input 'trades' is int, 'customer_id' of input "
                "'customers' is bigint; cast one: df.withColumn('small', F.col('small').cast('bigint'))"
            ),
        ),
        (
            {"key": "day"},
            {},
            (
                "the key types differ: 'day' of input 'trades' is date, 'customer_id' of input "
                "'customers' is bigint; cast one to the other's type"
            ),
        ),
        (
            {"key": ["trade_id", "customer_id"]},
            {},
            (
                "key: expected as many columns of both inputs, in the same order; input 'trades' has 2 (trade_id, "
                "customer_id) and input 'customers' has 1 (customer_id)"
            ),
        ),
        (
            {"key": ()},
            {},
            (
                "key: expected as many columns of both inputs, in the same order; input 'trades' has 0 and input "
                "'customers' has 1 (customer_id)"
            ),
        ),
        ({"name": "a"}, {"name": "a"}, "both inputs are named 'a'; give each its own name="),
        ({"name": "right"}, {"name": ""}, "both inputs are named 'right'; give each its own name="),
    ],
)
def test_inputs_that_do_not_go_together_are_refused(two_frames: Any, left: Any, right: Any, message: str) -> None:
    trades = two_frames[0].selectExpr("*", "int(1) small", "date'2024-03-01' day")
    with pytest.raises(cj.ConfigurationError) as caught:
        pair_of(trades, two_frames[1], left, right)
    assert str(caught.value) == message


def test_one_stream_and_one_static_input_are_refused(spark: Any, folders: Folders) -> None:
    streams, statics = folders.frames(spark), folders.frames(spark, streaming=False)
    with pytest.raises(cj.ConfigurationError) as caught:
        connect(streams[0], statics[1])
    assert str(caught.value) == (
        "input 'trades' is a stream, input 'customers' is static; both must be of one kind: "
        "read 'customers' with spark.readStream, or 'trades' with spark.read; or have the stream on the left, and on "
        "the right a Delta table of which one version is pinned: cojoin.sources.delta(..., static=True)"
    )
    with refused("input 'customers' is a stream, input 'trades' is static"):
        connect(statics[0], streams[1])


def test_columns_that_collide_need_suffixes(spark: Any, folders: Folders) -> None:
    pair = folders.connect(spark, streaming=False)
    with pytest.raises(cj.SchemaError) as caught:
        pair.asof_join()
    assert str(caught.value) == (
        "inputs 'trades' and 'customers' both have 'position'; distinguish them with suffixes=(\"\", \"_customers\"), "
        "or rename or drop them in one input"
    )
    joined = pair.asof_join(suffixes=("", "_customer")).to_dataframe()
    assert joined.columns == [
        *("trade_id", "customer_id", "event_time", "amount", "position"),
        *("customers_event_time", "version", "tier", "position_customer"),
    ]


def test_suffixes_that_do_not_help_are_refused(two_frames: Any) -> None:
    trades, customers = two_frames
    clash = trades.withColumnRenamed("trade_id", "amount_c"), customers.withColumnRenamed("tier", "amount")
    with refused("would have two columns 'amount_c'; choose other suffixes="):
        pair_of(*clash).asof_join(suffixes=("", "_c"))
    for suffixes in (("", ""), "_c", ("", 1)):
        with refused("suffixes: expected two different strings such as"):
            pair_of(*clash).asof_join(suffixes=suffixes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"how": "outer"}, "how: expected 'left' or 'inner', got 'outer'"),
        ({"tolerance": "-1 hour"}, "tolerance: expected a duration of zero or more, got '-1 hour'"),
        ({"tolerance": 3}, "tolerance: expected a duration such as '5 seconds' or a timedelta, got 3; write its unit"),
        ({"allow_exact_matches": 1}, "allow_exact_matches: expected True or False, got 1"),
    ],
)
def test_a_join_that_is_none_is_refused(two_frames: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(cj.ConfigurationError) as caught:
        pair_of(*two_frames).asof_join(**settings)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("output_type", "message"),
    [
        ("trade_id lng", "output_type=\"trade_id lng\": unknown type 'lng' at character 9; did you mean 'long'?"),
        ("trade_id", "output_type=\"trade_id\": expected the field's type after 'trade_id', got the end"),
        ("a long, A long", "output_type=\"a long, A long\": field 'A' repeats 'a' at character 8"),
        ("", "output_type: expected one or more columns, such as 'trade_id long, tier string', got none"),
        (5, "output_type: expected DDL such as 'trade_id long, tier string' or a StructType, got 5"),
        (None, "output_type: expected DDL such as 'trade_id long, tier string' or a StructType, got None"),
    ],
)
def test_an_output_type_that_does_not_parse_is_refused(two_frames: Any, output_type: Any, message: str) -> None:
    with pytest.raises(cj.SchemaError) as caught:
        pair_of(*two_frames).process(EnrichTrades(), output_type)
    assert str(caught.value).startswith(message)


def test_what_is_no_function_or_no_order_is_refused(two_frames: Any) -> None:
    pair = pair_of(*two_frames)
    with refused("; make an instance of it"):
        pair.process(EnrichTrades, "a long")
    with refused("function: expected an instance of a KeyedCoProcessFunction, got"):
        pair.process(len, "a long")
    with refused("'arival'; did you mean 'arrival'"):
        pair.process(EnrichTrades(), "a long", order="arival")


class Connected(cj.KeyedCoProcessFunction):
    """Holds what can't travel."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def test_a_function_that_can_not_travel_is_refused_with_its_attribute(two_frames: Any) -> None:
    pair = pair_of(*two_frames)
    with refused("function Connected: its attribute 'lock' (a lock) can't be sent to the workers", "make it in open()"):
        pair.process(Connected(name="x", lock=threading.Lock()), "a long")
    lock = threading.Lock()

    class Closing(cj.KeyedCoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> None:
            lock.acquire()

    with refused("function Closing can't be sent to the workers", "something that its methods name"):
        pair.process(Closing(), "a long")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"when_all_idle": "wait"}, "when_all_idle: expected 'hold' or 'max', got 'wait'"),
        ({"hold_left_until": datetime(2026, 1, 1)}, "hold_left_until: expected a datetime with a time zone"),  # noqa: DTZ001
        ({"hold_left_until": "2026-01-01"}, "hold_left_until: expected a datetime with a time zone"),
    ],
)
def test_what_time_can_not_do_is_refused(two_frames: Any, settings: dict[str, Any], message: str) -> None:
    left, right = (
        cj.Input(frame, key="customer_id", event_time="event_time", name=name)
        for frame, name in zip(two_frames, ("trades", "customers"), strict=True)
    )
    with refused(message):
        cj.connect(left, right, **settings)


def test_an_input_without_time_goes_with_functions_in_arrival_order_only(two_frames: Any) -> None:
    left, right = (
        cj.Input(frame, key="customer_id", event_time=time, name=name)
        for frame, name, time in zip(two_frames, ("trades", "customers"), (None, "event_time"), strict=True)
    )
    pair = cj.connect(left, right)
    for join in (pair.asof_join, pair.temporal_join, lambda: pair.interval_join("0 s", "1 s")):
        with refused("input 'trades'", "event_time="):
            join()
    with refused("input 'trades' has no event time; give it event_time=, or use order='arrival'"):
        pair.process(EnrichTrades(), "a long")
    assert not pair.process(EnrichTrades(), "a long", order="arrival").plan.needs_clock


def test_what_needs_the_clock_is_known_before_the_start(two_frames: Any) -> None:
    pair = pair_of(*two_frames)
    assert not pair.asof_join().plan.needs_clock
    assert not pair.process(EnrichTrades(), "a long").plan.needs_clock
    assert pair.process(Reminder(), "a long").plan.needs_clock
    assert not pair.process(Reminder(), "a long", processing_time_timers=False).plan.needs_clock


def test_an_output_type_may_be_ddl_a_struct_type_or_arrow(two_frames: Any) -> None:
    struct = StructType(
        [
            StructField("trade id", LongType(), nullable=False),
            StructField("tiers", ArrayType(StructType([StructField("a`b", StringType())]))),
        ]
    )
    pair = pair_of(*two_frames)
    from_struct = pair.process(EnrichTrades(), struct)
    from_ddl = pair.process(EnrichTrades(), "`trade id` long not null, tiers array<struct<`a``b`: string>>")
    assert from_struct.plan.output == from_ddl.plan.output
    assert pair.process(EnrichTrades(), from_ddl.plan.output).plan.output == from_ddl.plan.output
    assert from_struct.to_dataframe().schema == struct
