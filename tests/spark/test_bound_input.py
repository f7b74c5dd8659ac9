"""Errors of an input are raised at once, and the workers read files themselves where the rows are the same."""

from __future__ import annotations

import itertools
import json
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

import cojoin as cj
from cojoin.engine.input_spec import DIRECT
from cojoin.session.spark_errors import explain
from cojoin.spark.batch.packing import NOW_COLUMN
from cojoin.spark.bound_input import BoundInput
from tests.spark.data import MORNING, Folders, Streams, cut
from tests.spark.refused import refused
from tests.spark.saved import DRAIN, Saved

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

UTC = pa.timestamp("us", "UTC")
ROWS = pa.table({"id": [1], "at": pa.array([5], UTC), "day": ["monday"]})
DDL = "id bigint, at timestamp, day string"
BY_SPARK = "spark.cojoin.parquet is spark"


def reading(folder: Path, ddl: str = DDL, format: str = "parquet", **settings: Any) -> str | None:  # noqa: A002
    """Return how an input of a folder's files is read."""
    options = settings.pop("options", None)
    source = cj.sources.files(folder, format, schema=ddl, options=options)
    declared = cj.Input(source, **({"key": "id", "event_time": "at"} | settings))
    bound = BoundInput(declared, "left", 1)
    assert bound.spec.event_time in bound.frame.columns
    return bound.spec.reading


@pytest.fixture
def folder(tmp_path: Path, spark: SparkSession) -> Path:
    del spark
    (tmp_path / "in").mkdir()
    pq.write_table(ROWS, tmp_path / "in" / "0.parquet")
    return tmp_path / "in"


def test_ordinary_files_are_read_directly(folder: Path) -> None:
    assert reading(folder) == DIRECT
    assert reading(folder, format="PARQUET", options={"maxFilesPerTrigger": 1, "latestFirst": True}) == DIRECT
    assert reading(folder, f"{DDL}, tags array<string>") == DIRECT
    assert reading(folder, format="json") is None


def test_a_stream_s_code_has_no_time_in_it_so_that_no_batch_compiles_it_again(
    folder: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    by_workers = cj.Input(cj.sources.files(folder, "parquet", schema=DDL), "id", "at")
    by_spark = cj.Input(spark.readStream.schema(DDL).parquet(str(folder)), "id", "at")
    for declared, has_clock in itertools.product((by_workers, by_spark), (True, False)):
        BoundInput(declared, "left", 1).packed(2, has_clock=has_clock).explain(extended=True)
        assert (NOW_COLUMN in capsys.readouterr().out) == has_clock


def test_files_of_a_static_frame_are_read_by_workers_where_spark_gives_the_same_rows(
    folder: Path, spark: SparkSession, tmp_path: Path
) -> None:
    def reads_files(frame: DataFrame, event_time: Any = "at") -> bool:
        bound = BoundInput(cj.Input(frame, "id", event_time), "left", 1)
        rows = bound.packed(2).count()
        assert rows > 0, "rows and the control rows of the key groups"
        return bound.reads_files

    rows = spark.read.parquet(str(folder))
    assert reads_files(rows)
    assert reads_files(rows.select("at", "id").select("id", "at"))
    assert reads_files(spark.read.option("pathGlobFilter", "*.parquet").schema(DDL).parquet(str(folder)))
    assert not reads_files(rows.where("id = 1"))
    assert not reads_files(rows.withColumn("id", F.col("id") + 1))
    assert not reads_files(rows.withColumnRenamed("day", "date"))
    assert not reads_files(rows, F.col("at").alias("t"))
    assert not reads_files(spark.read.option("mergeSchema", True).parquet(str(folder)))
    rows.write.partitionBy("day").parquet(f"{tmp_path}/parts")
    assert not reads_files(spark.read.parquet(f"{tmp_path}/parts"))
    with_default = StructType.fromJson(json.loads(rows.schema.json()))
    with_default.add("added", "integer", metadata={"EXISTS_DEFAULT": "5", "CURRENT_DEFAULT": "5"})
    older = spark.read.schema(with_default).parquet(str(folder))
    assert [row.added for row in older.collect()] == [5], "the default of a column that the file lacks"
    assert not reads_files(older)
    both = spark.read.parquet(str(folder), str(folder))
    assert reads_files(both)
    rows.write.json(f"{tmp_path}/texts")
    assert not reads_files(spark.read.schema(DDL).json(f"{tmp_path}/texts"))
    pq.write_table(ROWS.set_column(0, "id", pa.array(["1"])), folder / "1.parquet")
    assert not BoundInput(cj.Input(spark.read.schema(DDL).parquet(str(folder)), "id", "at"), "left", 1).reads_files
    (folder / "1.parquet").unlink()
    spark.conf.set("spark.cojoin.parquet", "spark")
    try:
        assert not reads_files(rows)
    finally:
        spark.conf.unset("spark.cojoin.parquet")
    rows.cache().count()
    try:
        assert not reads_files(rows)
        assert not reads_files(rows.select("at", "id")), "made of a cached one"
    finally:
        rows.unpersist(blocking=True)


def test_a_file_of_a_static_frame_that_is_replaced_is_an_error_without_a_word_of_checkpoints(
    folder: Path, spark: SparkSession
) -> None:
    bound = BoundInput(cj.Input(spark.read.parquet(str(folder)), "id", "at"), "left", 1)
    pq.write_table(pa.concat_tables([ROWS] * 999), folder / "0.parquet")
    with pytest.raises(PythonException) as error:
        bound.packed(2).collect()
    told = explain(error.value)
    assert "put it back as it was, and run the join again; otherwise set spark.cojoin.parquet=spark" in told
    assert "checkpoint" not in told


def test_what_is_unusual_is_read_by_spark_and_why_is_told(folder: Path, spark: SparkSession) -> None:
    assert reading(folder, options={"mergeSchema": True}) == "it has the option mergeSchema"
    assert reading(folder, event_time=F.col("at").alias("t")) == "its event time is an expression"
    assert reading(folder, f"{DDL}, `a.b` int") == "its column is named 'a.b'"
    assert (
        reading(folder, f"{DDL}, price decimal(38, 2)", key="price") == "its key 'price' is of the type decimal(38,2)"
    )
    assert str(reading(folder / "*.parquet")).startswith("its files are on no disk")
    for name, value in (
        ("spark.sql.caseSensitive", "true"),
        ("spark.sql.files.ignoreCorruptFiles", "true"),
        ("spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY"),
        ("spark.sql.parquet.int96AsTimestamp", "false"),
        ("spark.cojoin.parquet", "Spark"),
    ):
        before = spark.conf.get(name, None)
        spark.conf.set(name, value)
        try:
            assert reading(folder) == f"{name} is {value.lower() if 'cojoin' in name else value}"
        finally:
            spark.conf.unset(name) if before is None else spark.conf.set(name, before)


@pytest.mark.parametrize("name", ["spark.cojoin.parquet", "spark.cojoin.output"])
def test_a_setting_that_says_something_else_is_refused_before_the_start(
    folder: Path, spark: SparkSession, streams: Streams, tmp_path: Path, name: str
) -> None:
    saved = Saved(spark, tmp_path / "query", streams.write(tmp_path, files=1))
    spark.conf.set(name, "off")
    try:
        with refused(f"setting {name} is 'off'; expected 'spark', which leaves the work to Spark, or 'direct'"):
            _ = reading(folder) if name.endswith("parquet") else saved.start()
    finally:
        spark.conf.unset(name)
    assert not (tmp_path / "query" / "checkpoint").exists()


def test_the_files_that_are_there_are_looked_at(folder: Path) -> None:
    pq.write_table(ROWS, folder / "1.parquet", use_deprecated_int96_timestamps=True)
    assert str(reading(folder)).endswith("its column 'at' is INT96, and the file was not written by Spark")
    pq.write_table(ROWS.set_column(0, "id", [["1"]]), folder / "1.parquet")
    assert reading(folder) == "of its file 1.parquet: its column 'id' is BYTE_ARRAY (String), and bigint is expected"
    (folder / "1.parquet").write_bytes(b"PAR1")
    assert str(reading(folder)).startswith("of its file 1.parquet: it can't be opened: ")
    (folder / "1.parquet").rename(folder / "_1.parquet")
    assert reading(folder) == DIRECT
    (folder / "day=monday").mkdir()
    pq.write_table(ROWS.drop_columns("day"), folder / "day=monday" / "1.parquet")
    assert reading(folder) == "its folder 'day=monday' is a Spark partition"


def test_old_calendars_are_read_by_spark(tmp_path: Path, spark: SparkSession) -> None:
    name = "spark.sql.parquet.datetimeRebaseModeInWrite"
    before = spark.conf.get(name)
    spark.conf.set(name, "LEGACY")
    try:
        spark.sql("select 1L id, timestamp'1500-01-01 00:00:00' at").write.parquet(f"{tmp_path}/in")
    finally:
        spark.conf.set(name, str(before))
    assert str(reading(tmp_path / "in", "id bigint, at timestamp")).endswith("with dates of the Julian calendar")


@pytest.mark.slow
@pytest.mark.parametrize("first", [DIRECT, BY_SPARK])
def test_a_checkpoint_goes_on_either_way(spark: SparkSession, streams: Streams, tmp_path: Path, first: str) -> None:
    saved = Saved(spark, tmp_path, Folders(tmp_path / "in"))
    trades, customers = list(cut(streams.trades, 3)), list(cut(streams.customers, 3))
    found = []
    for number, pair in enumerate(zip(trades, customers, strict=True)):
        saved.folders.add_trades(pair[0])
        saved.folders.add_customers(pair[1])
        if (number % 2 == 0) == (first == BY_SPARK):
            spark.conf.set("spark.cojoin.parquet", "spark")
        try:
            query = saved.run(trigger=DRAIN if number == 2 else cj.Trigger.available_now())
        finally:
            spark.conf.unset("spark.cojoin.parquet")
        assert query.progress is not None
        found.append(query.progress.inputs[0].reading)
    assert found == [first, BY_SPARK if first == DIRECT else DIRECT, first]
    assert "the rows of 'trades' are read by " in repr(query.progress)
    assert saved.rows() == streams.enriched()
    saved.assert_conserved()


@pytest.mark.slow
def test_one_input_may_be_read_directly_and_the_other_not(
    spark: SparkSession, streams: Streams, tmp_path: Path
) -> None:
    folders = streams.write(tmp_path / "in", files=2)
    saved = Saved(spark, tmp_path, folders)
    old = {"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}
    for path in folders.files:
        if path.parent.name == "customers":
            written_at = path.stat().st_mtime
            pq.write_table(pq.read_table(path).replace_schema_metadata(old), path)
            os.utime(path, (written_at, written_at))
    query = saved.run(trigger=DRAIN)
    assert query.progress is not None
    trades, customers = query.progress.inputs
    assert trades.reading == DIRECT
    assert str(customers.reading).endswith("it was written by Spark with dates of the Julian calendar")
    assert saved.rows() == streams.enriched()


@pytest.mark.slow  # Two queries.
def test_a_restored_query_may_read_the_other_way(spark: SparkSession, streams: Streams, tmp_path: Path) -> None:
    folders = Folders(tmp_path / "in")
    old, new = (Saved(spark, tmp_path / name, folders) for name in ("old", "new"))
    halves = zip(cut(streams.trades, 2), cut(streams.customers, 2), strict=True)
    for saved, setting, (trades, customers) in zip((old, new), ("spark", "direct"), halves, strict=True):
        folders.add_trades(trades)
        folders.add_customers(customers)
        spark.conf.set("spark.cojoin.parquet", setting)
        try:
            if saved is old:
                saved.run()
            else:
                saved.run(trigger=DRAIN, restore_from=cj.Snapshot(old.checkpoint))
        finally:
            spark.conf.unset("spark.cojoin.parquet")
    assert sorted(old.rows() + new.rows()) == streams.enriched()


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
        (
            {"key": None},
            "input 'trades': key: expected the key column or columns, got None; key=() joins rows by time alone",
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
                "write time_unit='ms', or make it a timestamp: "
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


def test_rows_without_a_key_are_joined_by_time_alone_in_one_key_group(two_frames: Any) -> None:
    left, right = (cj.Input(side, (), "event_time", name) for side, name in zip(two_frames, "ab", strict=True))
    joined = cj.connect(left, right).asof_join(suffixes=("", "_b"))
    assert [(row.trade_id, row.tier) for row in joined.to_dataframe().collect()] == [(1, "gold")]
    assert joined.plan.key_groups == 1
    with refused("key_groups: expected None or 1 with key=(), got 8: all rows have one key, so one key group has them"):
        cj.connect(left, right, key_groups=8)


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
    with pytest.raises(cj.SchemaError, match="the input has the expression's column 'amount' already"):
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
