"""What a person may get wrong about an input: said at once, with the column and what would be right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from cojoin.spark.bound_input import BoundInput
from tests.spark.data import MORNING
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark


def bind(frame: Any, **settings: Any) -> BoundInput:
    declared = {"key": "customer_id", "event_time": "event_time", "name": "trades"} | settings
    return BoundInput(cj.Input(frame, **declared), "left", 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"key": "custmer_id"}, "input 'trades' has no key column 'custmer_id'; did you mean 'customer_id'?"),
        (
            {"key": ["trade_id", "x"]},
            ("input 'trades' has no key column 'x'; valid are 'trade_id', 'customer_id', 'event_time', 'amount'"),
        ),
        ({"key": None}, "input 'trades': key: expected a column's name, or a list of names, got None"),
        (
            {"key": []},
            (
                "input 'trades': key: expected one or more columns, got []; to join rows by time alone, give both "
                "inputs the same key in all rows, which a single task joins: df.withColumn('all_rows', F.lit('all'))"
            ),
        ),
        (
            {"key": ["trade_id", "TRADE_ID"]},
            "input 'trades': key: expected different columns, got ['trade_id', 'TRADE_ID']; name each once",
        ),
        ({"key": ["trade_id", 3]}, "input 'trades': key: expected a column's name, got 3"),
        (
            {"key": "amount"},
            (
                "input 'trades': key column 'amount' has the type double, which can't be a key; valid are "
                "boolean, tinyint, smallint, int, bigint, string, binary, date, timestamp, timestamp_ntz, decimal; "
                "floats have two zeros and NaN; cast them if they are whole numbers: "
                "df.withColumn('amount', F.col('amount').cast('bigint'))"
            ),
        ),
        (
            {"event_time": "event_tim"},
            "input 'trades' has no event time column 'event_tim'; did you mean 'event_time'?",
        ),
        ({"event_time": 5}, "input 'trades': event time: expected a column's name, got 5"),
        (
            {"late": "aply"},
            "input 'trades': late: expected 'reject' or 'apply', got 'aply'; did you mean 'apply'?",
        ),
        (
            {"watermark": cj.WatermarkStrategy.for_punctuated("amout")},
            "input 'trades' has no watermark column 'amout'; did you mean 'amount'?",
        ),
        (
            {"event_time": "trade_id"},
            (
                "input 'trades': event time column 'trade_id': expected a timestamp, got bigint; "
                "turn epoch numbers into one, with their unit: "
                "event_time=F.timestamp_micros(F.try_multiply('trade_id', F.lit(1000))).alias('trade_id_utc')"
            ),
        ),
        (
            {"event_time": "amount"},
            (
                "input 'trades': event time column 'amount': expected a timestamp, got double; turn epoch seconds into "
                "one: event_time=F.col('amount').try_cast('timestamp').alias('amount_utc')"
            ),
        ),
        (
            {"partition": "partiton"},
            (
                "input 'trades' has no partition column 'partiton'; valid are 'trade_id', "
                "'customer_id', 'event_time', 'amount'"
            ),
        ),
        ({"sequence": 5}, "input 'trades': sequence: expected a column's name, or a list of names, got 5"),
        (
            {"watermark": "5 seconds"},
            (
                "input 'trades': watermark: expected a WatermarkStrategy, such as "
                "WatermarkStrategy.for_bounded_out_of_orderness(\"5 seconds\"), got '5 seconds'"
            ),
        ),
        ({"max_ahead": "-1 day"}, "input 'trades': max_ahead: expected a duration of zero or more, got '-1 day'"),
        (
            {"max_ahead": 3600},
            (
                "input 'trades': max_ahead: expected a duration such as '5 seconds' or a timedelta, got "
                "3600; write its unit"
            ),
        ),
        ({"name": 5}, "input: name: expected a text, got 5"),
    ],
)
def test_a_mistake_is_refused_in_words(two_frames: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(cj.ConfigurationError) as caught:
        bind(two_frames[0], **settings)
    assert str(caught.value) == message


def test_rows_are_joined_by_time_alone_after_the_cure_for_no_key(two_frames: Any) -> None:
    with pytest.raises(cj.SchemaError) as caught:
        bind(two_frames[0], key=[])
    code = str(caught.value).rpartition(": ")[2]
    sides = (eval(code, {"df": frame, "F": F}) for frame in two_frames)
    left, right = (cj.Input(side, "all_rows", "event_time", name) for side, name in zip(sides, "ab", strict=True))
    rows = cj.connect(left, right).asof_join(suffixes=("", "_b")).to_dataframe().collect()
    assert [(row.trade_id, row.tier) for row in rows] == [(1, "gold")]


def test_columns_are_found_whatever_their_case(two_frames: Any) -> None:
    spec = bind(two_frames[0], key="Customer_ID", event_time="EVENT_TIME").spec
    assert (spec.key, spec.event_time) == (("customer_id",), "event_time")


def test_an_event_time_may_be_an_expression_or_none(two_frames: Any) -> None:
    millis = F.unix_millis("event_time")
    for made, name in ((F.timestamp_millis(millis).alias("at"), "at"), (F.timestamp_millis(millis), "event_time")):
        frame = two_frames[0] if name == "at" else two_frames[0].withColumnRenamed("event_time", "when")
        expression = made if name == "at" else F.timestamp_millis(F.unix_millis("when"))
        bound = bind(frame, event_time=expression)
        assert (bound.spec.event_time, bound.spec.schema.names[-1]) == (name, name)
    assert bind(two_frames[0], event_time=None).spec.event_time is None
    with pytest.raises(cj.SchemaError, match="input 'trades': event time: the expression does not fit its columns"):
        bind(two_frames[0], event_time=F.timestamp_millis("nothing"))
    with pytest.raises(cj.SchemaError, match="the expression's column 'amount' is there already"):
        bind(two_frames[0], event_time=F.current_timestamp().alias("amount"))


def test_a_negative_delay_is_refused() -> None:
    with pytest.raises(cj.ConfigurationError) as caught:
        cj.WatermarkStrategy.for_bounded_out_of_orderness("-5 seconds")
    assert str(caught.value) == "max_out_of_orderness: expected a duration of zero or more, got '-5 seconds'"


AS_MORNING = {
    "timestamp_ntz": ("timestamp_ntz'2024-03-01 08:00:00.000001'", MORNING + 1),
    "bigint": (f"{MORNING // 1000}L", MORNING),
    "int": (f"{MORNING // 1_000_000}", MORNING),
    "double": (f"{MORNING // 1_000_000}.5D", MORNING + 500_000),
    "decimal(20,9)": (f"cast({MORNING // 1_000_000}.000001999 as decimal(20,9))", MORNING + 1),
    "string": ("'2024-03-01 08:00:00+01:00'", MORNING),
    "date": ("date'2024-03-01'", MORNING - 7 * 3_600_000_000),
    "interval day to second": (f"make_dt_interval(0, 0, 0, {MORNING // 1_000_000})", MORNING),
}
"""The morning in Berlin as each type, and what the cure makes of it; a date is at midnight in UTC."""

UNFIT = {
    "bigint": "9223372036854775807L",
    "double": "double('NaN')",
    "decimal(20,9)": "cast(99999999999.9 as decimal(20,9))",
    "string": "'soon'",
}
"""What no moment is, and what ends no query."""


def test_the_cure_for_an_event_time_of_another_type_gives_the_moment_in_any_session_zone(spark: Any) -> None:
    for kind, (value, micros) in AS_MORNING.items():
        frame = spark.sql(f"select 1L customer_id, {value} at union all select 2L, {UNFIT.get(kind, 'null')}")
        with pytest.raises(cj.SchemaError, match="'at': expected a timestamp, got ") as caught:
            bind(frame, event_time="at")
        code = str(caught.value).rpartition(": ")[2]
        assert code.startswith("event_time=")
        bound = bind(frame, event_time=eval(code.removeprefix("event_time=")))
        made = bound.frame.select("customer_id", F.unix_micros(str(bound.spec.event_time)).alias("at")).collect()
        found = {row.customer_id: row.at for row in made}
        assert found[1] == micros, kind
        assert kind == "decimal(20,9)" or found[2] is None, kind


def test_a_begin_of_validity_of_another_type_is_made_one_by_its_own_name(spark: Any) -> None:
    frame = spark.sql("select 1L customer_id, '2024-03-01 08:00:00+01:00' since, null::timestamp until")
    with pytest.raises(cj.SchemaError, match="valid from column 'since': expected a timestamp, got string") as caught:
        bind(frame, event_time=..., valid_from="since", valid_to="until")
    made = eval(str(caught.value).rpartition(": ")[2], {"df": frame, "F": F})
    assert bind(made, event_time=..., valid_from="since", valid_to="until").spec.changes.valid_from == "since"


def test_a_cure_beside_a_column_named_event_time_has_a_name_of_its_own(two_frames: Any) -> None:
    frame = two_frames[0].withColumn("event_time", two_frames[0].event_time.cast("string"))
    with pytest.raises(cj.SchemaError) as caught:
        bind(frame)
    code = str(caught.value).rpartition(": ")[2]
    assert code == "event_time=F.try_to_timestamp('event_time').alias('event_time_utc')"
    assert bind(frame, event_time=eval(code.removeprefix("event_time="))).spec.event_time == "event_time_utc"


def test_an_event_time_of_a_type_without_moments_is_refused(two_frames: Any) -> None:
    frame = two_frames[0].withColumn("event_time", F.lit(True))
    with refused("expected a timestamp, got boolean; name a column with the moments, as timestamps"):
        bind(frame)


def test_columns_that_cannot_travel_are_refused(spark: Any, two_frames: Any) -> None:
    twice = two_frames[0].select("*", two_frames[0].amount)
    with refused("input 'trades' has two columns 'amount'; rename or drop one"):
        bind(twice)
    odd = two_frames[0].selectExpr("*", "make_interval(1) extra")
    with refused("column 'extra' has the type interval", "; cast it to string, or drop it"):
        bind(odd)


def test_names_with_dots_and_backticks_are_columns_like_any_other(spark: Any) -> None:
    frame: DataFrame = spark.sql("select 1L `a.key`, timestamp_millis(5) `the ``time``` , 'x' `b c`")
    pair = cj.connect(
        cj.Input(frame, key="a.key", event_time="the `time`", name="trades"),
        cj.Input(frame.withColumnRenamed("b c", "d"), key="a.key", event_time="the `time`", name="customers"),
        key_groups=2,
    )
    joined = pair.asof_join().to_dataframe()
    assert joined.columns == ["a.key", "the `time`", "b c", "customers_event_time", "d"]
    assert [tuple(row)[2:5:2] for row in joined.collect()] == [("x", "x")]
