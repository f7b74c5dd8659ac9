"""What people get wrong with the public API: refused before anything starts, in words that hold the cure.

A row is a call, the error's class, and words that its message must hold. A call gets ``Things``.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from cojoin.session.classic_session import ClassicSession
from tests.spark.functions import EnrichTrades

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark


class Misspells(cj.KeyedCoProcessFunction):
    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        yield (trade.idd,)


class YieldsText(cj.KeyedCoProcessFunction):
    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        yield (trade.k,)


NOW = cj.Trigger.available_now()


@dataclass
class Things:
    """What the calls need.

    Attributes:
        spark: The session.
        folder: A folder of the test's own.
        left: A static DataFrame: id, k, ts, v.
        right: A static DataFrame: k, ts, w.
    """

    spark: SparkSession
    folder: Path
    left: DataFrame
    right: DataFrame

    def input(self, frame: Any = None, **settings: Any) -> cj.Input:
        shared = {"key": "k", "event_time": "ts", "name": "trades"} | settings
        return cj.Input(self.left if frame is None else frame, **shared)

    def pair(self, left: Any = None, right: Any = None, **settings: Any) -> cj.ConnectedInputs:
        other = cj.Input(self.right if right is None else right, key="k", event_time="ts", name="customers")
        return cj.connect(self.input(left), other, **settings)

    def streams(self) -> list[Any]:
        read = self.folder / "in"
        return [cj.sources.files(read, "parquet", schema=each.schema) for each in (self.left, self.right)]

    def stream(self) -> cj.Joined:
        return self.pair(*self.streams()).asof_join()

    def start(self, **settings: Any) -> cj.Query:
        shared: dict[str, Any] = {"output": cj.sinks.delta(self.folder / "out"), "trigger": NOW}
        return self.stream().start(**(shared | {"checkpoint": self.folder / "checkpoint"} | settings))


@pytest.fixture(scope="module")
def things(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Things:
    left = spark.range(1).select("id", F.lit("a").alias("k"), F.current_timestamp().alias("ts"), F.lit(1.0).alias("v"))
    folder = tmp_path_factory.mktemp("misuses")
    (folder / "in").mkdir()
    return Things(spark, folder, left, left.select("k", "ts", F.lit("x").alias("w")))


REFUSED: list[tuple[str, Callable[[Things], Any], type[Exception], str]] = [
    # Sources.
    ("pandas", lambda t: t.pair(pd.DataFrame({"k": [1]})), cj.ConfigurationError,
     ("input 'trades' is in memory, input 'customers' is Spark's; both must be of one kind: make 'trades' one of "
      "Spark's with spark.createDataFrame(...), or take 'customers' into memory with df.toArrow() if it fits")),
    ("arrow", lambda t: t.pair(right=pa.table({"k": [1]})), cj.ConfigurationError,
     "input 'customers' is in memory, input 'trades' is Spark's; both must be of one kind: make 'customers' one of"),
    ("a text", lambda t: t.pair("/lake/trades"), cj.ConfigurationError,
     "got str; did you mean cojoin.sources.delta('/lake/trades')?"),
    ("a path", lambda t: t.pair(Path("/lake")), cj.ConfigurationError, "did you mean cojoin.sources.delta("),
    ("nothing", lambda t: cj.connect(cj.Input(None, "k", "ts"), t.input()), cj.ConfigurationError,  # type: ignore[arg-type]
     ("input 'left': expected a DataFrame of Spark's, one of cojoin.sources, or rows in memory (pandas, pyarrow, or "
      "anything with __arrow_c_stream__), got NoneType")),
    ("no input", lambda t: cj.connect(t.left, t.right), cj.ConfigurationError,  # type: ignore[arg-type]
     "left input: expected a cojoin.Input, got DataFrame"),
    ("a column twice but for case", lambda t: t.pair(t.left.withColumnRenamed("v", "ID")), cj.SchemaError,
     "input 'trades' has columns 'id' and 'ID', which differ only in case: to Spark and Delta they are one; rename"),
    ("a list of nothing", lambda t: t.pair(t.left.withColumn("v", F.array())), cj.SchemaError,
     "input 'trades': column 'v' has the type array<void>, which has no Arrow form; cast it to string, or drop it"),
    ("a column twice", lambda t: t.pair(t.left.select("*", "v")), cj.SchemaError,
     "input 'trades' has two columns 'v'; rename or drop one"),
    ("format", lambda _: cj.sources.files("/x", "parqet", schema="a int"), cj.ConfigurationError,
     "sources.files: format: expected a format of files, got 'parqet'; did you mean 'parquet'?"),
    ("swapped", lambda _: cj.sources.files("parquet", "/x", schema="a int"), cj.ConfigurationError,
     "sources.files: expected the path, then the format; got them as ('parquet', '/x')"),
    ("files of delta", lambda _: cj.sources.files("/x", "delta", schema="a int"), cj.ConfigurationError,
     "expected a format of files, got 'delta': use cojoin.sources.delta('/x')"),
    ("no schema", lambda _: cj.sources.files("/x", "csv"), cj.ConfigurationError, "files '/x': expected schema="),
    ("schema", lambda _: cj.sources.files("/x", "csv", schema=3), cj.SchemaError, "schema: expected DDL such as"),  # type: ignore[arg-type]
    ("no path", lambda _: cj.sources.files(None, "csv", schema="a int"), cj.ConfigurationError,  # type: ignore[arg-type]
     "sources.files: expected a path as a text or a pathlib.Path, got None"),
    ("parquet source", lambda _: cj.sources.parquet("/x"), AttributeError,
     "has no attribute 'parquet'; read a folder of files with cojoin.sources.files(path, 'parquet', schema=...)"),
    ("source", lambda _: cj.sources.dleta("x"), AttributeError, "did you mean 'delta'?"),
    ("source options", lambda _: cj.sources.delta("/x", options="mergeSchema"), cj.ConfigurationError,  # type: ignore[arg-type]
     "sources.delta '/x': options: expected a dict of options, such as {'mergeSchema': 'true'}, got str"),
    ("source option", lambda _: cj.sources.delta("/x", options={"a": None}), cj.ConfigurationError,
     "option 'a': expected a text, a number or a boolean, got NoneType"),
    ("source location", lambda _: cj.sources.delta(3), cj.ConfigurationError,  # type: ignore[arg-type]
     "sources.delta: expected a path or a table's name as a text or a pathlib.Path, got 3"),
    ("a URL by pathlib", lambda _: cj.sources.delta(Path("s3://lake/trades")), cj.ConfigurationError,
     "pathlib drops a slash of a URL: got 's3:/lake/trades'; give the URL as a text"),
    # Keys, times, joins.
    ("collated key", lambda t: t.pair(t.left.withColumn("k", F.expr("k collate UTF8_LCASE"))), cj.SchemaError,
     ("key column 'k' has the collation UTF8_LCASE, and cojoin compares texts by their bytes; choose which are equal: "
     "F.lower(F.collate('k', 'UTF8_BINARY')), or F.collate('k', 'UTF8_BINARY') to keep all different")),
    ("collated partition", lambda t: cj.connect(
        t.input(t.left.withColumn("v", F.expr("'p' collate UNICODE_CI")), partition="v"), t.input(t.right)
    ), cj.SchemaError, "partition column 'v' has the collation UNICODE_CI"),
    ("nested partition", lambda t: cj.connect(
        t.input(t.left.withColumn("v", F.array("id")), partition="v"), t.input(t.right)
    ), cj.SchemaError, "partition column 'v' has the type array<bigint>; name its parts as columns"),
    ("key of floats", lambda t: cj.connect(t.input(key="v"), t.input(t.right)), cj.SchemaError,
     "key column 'v' has the type double, which can't be a key"),
    ("key in a set", lambda t: cj.connect(t.input(key={"k"}), t.input(t.right)), cj.SchemaError,
     "key: expected a column's name, or a list of names, got {'k'}"),
    ("key groups", lambda t: t.pair(key_groups="32"), cj.ConfigurationError, "key_groups: expected a whole number"),
    ("how", lambda t: t.pair().asof_join(how="outer"), cj.ConfigurationError, "'outer'"),  # type: ignore[arg-type]
    ("how in a list", lambda t: t.pair().asof_join(how=["left"]), cj.ConfigurationError, "['left']"),  # type: ignore[arg-type]
    ("direction", lambda t: t.pair().asof_join(direction=None), cj.ConfigurationError, "direction"),  # type: ignore[arg-type]
    ("tolerance", lambda t: t.pair().asof_join(tolerance=5), cj.ConfigurationError, "write its unit"),  # type: ignore[arg-type]
    ("suffixes", lambda t: t.pair().asof_join(suffixes="_x"), cj.ConfigurationError, "suffixes"),  # type: ignore[arg-type]
    ("deletes", lambda t: t.pair().temporal_join(deletes=3), cj.ConfigurationError, "deletes"),  # type: ignore[arg-type]
    ("bounds", lambda t: t.pair().interval_join("1 hour", "-1 hour"), cj.ConfigurationError, "lower"),
    ("bound", lambda t: t.pair().interval_join(None, "1 hour"), cj.ConfigurationError, "lower"),  # type: ignore[arg-type]
    # Functions.
    ("key of ours", lambda t: cj.connect(
        t.input(t.left.withColumnRenamed("k", "@timestamp"), key="@timestamp"), t.input(t.right, name="customers")
    ).process(EnrichTrades(), "a int"), cj.SchemaError, "input 'trades': key column '@timestamp': the states' tables"),
    ("column of ours", lambda t: t.pair(t.left.withColumnRenamed("v", "@hash")), cj.SchemaError,
     "input 'trades': column '@hash': the state's own tables have one of this name; rename it"),
    ("a class", lambda t: t.pair().process(EnrichTrades, "a int"), cj.ConfigurationError, "make an instance of it"),  # type: ignore[arg-type]
    ("no output type", lambda t: t.pair().process(EnrichTrades(), None), cj.SchemaError,  # type: ignore[arg-type]
     "output_type: expected DDL such as"),
    ("order", lambda t: t.pair().process(EnrichTrades(), "a int", order="event-time"), cj.ConfigurationError,  # type: ignore[arg-type]
     "event_time"),
    ("tags", lambda t: t.pair().process(EnrichTrades(), "a int", side_outputs="late"), cj.ConfigurationError,  # type: ignore[arg-type]
     "side_outputs: expected OutputTags, got 'late'"),
    ("no tags", lambda t: t.pair().process(EnrichTrades(), "a int", side_outputs=3), cj.ConfigurationError,  # type: ignore[arg-type]
     "side_outputs: expected OutputTags, got 3"),
    ("output", lambda t: t.pair().asof_join().to_dataframe("late"), cj.ConfigurationError,  # type: ignore[arg-type]
     "output: expected 'output' or 'rejected', got 'late'"),
    ("outputs", lambda t: t.pair().asof_join().to_dataframe(["main"]), cj.ConfigurationError,  # type: ignore[arg-type]
     "output: expected 'output' or 'rejected', got ['main']"),
    # Starts.
    ("static start", lambda t: t.pair().asof_join().start(output=cj.sinks.delta("/x"), checkpoint="/c", trigger=NOW),
     cj.ConfigurationError, "use to_dataframe(), or read them with spark.readStream"),
    ("no sink", lambda t: t.start(output=None), cj.ConfigurationError, "output: expected cojoin.sinks.delta(...)"),
    ("a path as a sink", lambda t: t.start(output=t.folder), cj.ConfigurationError, "did you mean cojoin.sinks.delta("),
    ("no checkpoint", lambda t: t.start(checkpoint=" "), cj.ConfigurationError,
     "checkpoint: expected the path of a directory as a text or a pathlib.Path, got ' '"),
    ("trigger", lambda t: t.start(trigger="10 seconds"), cj.ConfigurationError, "trigger: expected Trigger.available_"),
    ("trigger class", lambda _: cj.Trigger("x"), cj.ConfigurationError, "Trigger.processing_time('10 seconds')"),  # type: ignore[arg-type]
    ("interval", lambda _: cj.Trigger.processing_time(10), cj.ConfigurationError, "write its unit"),  # type: ignore[arg-type]
    ("drain", lambda _: cj.Trigger.available_now(drain="yes"), cj.ConfigurationError, "drain: expected True or False"),  # type: ignore[arg-type]
    ("side outputs", lambda t: t.start(side_outputs=[1]), cj.ConfigurationError, "side_outputs: expected a dict"),
    ("name", lambda t: t.start(name=3), cj.ConfigurationError, "name: expected a text or None, got 3"),
    ("snapshots", lambda t: t.start(retained_checkpoints=0), cj.ConfigurationError, "retained_checkpoints: expected"),
    ("cadence", lambda t: t.start(checkpoint_interval=0), cj.ConfigurationError, "checkpoint_interval"),
    ("restore", lambda t: t.start(restore_from="/x"), cj.ConfigurationError, "restore_from: expected a cojoin.Snap"),
    ("a switch", lambda t: t.start(cut_back_output="no"), cj.ConfigurationError,
     "cut_back_output: expected True or False, got 'no'"),
    ("partition by", lambda _: cj.sinks.delta("/x", partition_by=3), cj.ConfigurationError,  # type: ignore[arg-type]
     "sinks.delta: partition_by: expected a column's name, or a list of distinct names, got 3"),
    ("partition by none", lambda t: t.start(output=cj.sinks.delta(t.folder / "o", partition_by="dya")),
     cj.ConfigurationError, "output: sinks.delta: partition_by: the output has no column 'dya'; valid are 'id', 'k'"),
    ("partition by twice", lambda _: cj.sinks.delta("/x", partition_by=["a", "A"]), cj.ConfigurationError,
     "or a list of distinct names, got ['a', 'A']"),
    ("partition by all", lambda t: t.start(
        output=cj.sinks.delta(t.folder / "o", partition_by=["id", "K", "ts", "v", "customers_event_time", "w"])
    ), cj.ConfigurationError, "output: sinks.delta: partition_by: expected to leave columns for the files"),
    (
        "json sink",
        lambda _: cj.sinks.json("/x"),
        AttributeError,
        "it has delta, kafka, parquet and sql, and for any other",
    ),
    ("a name of ours", lambda _: cj.conect, AttributeError, "no attribute 'conect'; did you mean 'connect'"),
    ("sink options", lambda _: cj.sinks.delta("/x", options="mergeSchema"), cj.ConfigurationError,  # type: ignore[arg-type]
     "sinks.delta: options: expected a dict of options, such as {'mergeSchema': 'true'}, got str"),
    ("sink location", lambda _: cj.sinks.delta(None), cj.ConfigurationError,  # type: ignore[arg-type]
     "sinks.delta: expected a path or a table's name as a text or a pathlib.Path, got None"),
    ("sink path", lambda _: cj.sinks.parquet(b"/x"), cj.ConfigurationError, "sinks.parquet: expected a path as a text"),  # type: ignore[arg-type]
    # Checkpoints.
    ("state of nothing", lambda t: cj.read_state(t.spark, t.folder / "none"), cj.CheckpointError, "checkpoint"),
    ("state of a number", lambda t: cj.read_state(t.spark, 3), cj.ConfigurationError,  # type: ignore[arg-type]
     "checkpoint: expected the path of a query's checkpoint directory as a text or a pathlib.Path, got 3"),
    ("swapped session", lambda t: cj.read_state("/x", t.spark), cj.ConfigurationError,  # type: ignore[arg-type]
     "expected the path of a query's checkpoint directory"),
    ("no session", lambda _: cj.read_progress(None, "/x"), cj.ConfigurationError,  # type: ignore[arg-type]
     "spark: expected a SparkSession, got NoneType"),
    ("moment", lambda _: cj.Snapshot("/x", at="yesterday"), cj.ConfigurationError, "at: expected a batch's number"),  # type: ignore[arg-type]
    ("explain nothing", lambda t: cj.explain(t.spark, 3), cj.ConfigurationError, "checkpoint: expected the path"),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "words"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED])
def test_a_misuse_is_refused_before_anything_starts(
    things: Things, call: Callable[[Things], Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind) as caught:
        call(things)
    assert words in str(caught.value)
    assert not (things.folder / "checkpoint").exists()


def test_a_wait_takes_seconds(things: Things, tmp_path: Path) -> None:
    query = things.start(checkpoint=tmp_path / "checkpoint")
    for timeout in ("5", -1, True, float("nan")):
        with pytest.raises(cj.ConfigurationError, match="await_termination: timeout: expected seconds as a number"):
            query.await_termination(timeout)  # type: ignore[arg-type]
    assert query.await_termination(60)


def test_the_frames_of_a_stopped_session_are_told_from_others(things: Things, monkeypatch: pytest.MonkeyPatch) -> None:
    # As after stop(); the tests' own session is to go on.
    monkeypatch.setattr(ClassicSession, "is_stopped", property(lambda _: True))
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    with pytest.raises(
        cj.ConfigurationError, match="input 'trades': its Spark session was stopped; make a new one with"
    ):
        things.pair()
    with pytest.raises(cj.ConfigurationError, match="spark: its Spark session was stopped"):
        cj.read_state(things.spark, "/x")


def test_paths_may_be_those_of_pathlib(things: Things) -> None:
    assert cj.Snapshot(Path("/lake/cp")) == cj.Snapshot("/lake/cp")
    assert cj.sources.delta(Path("trades")).location == "./trades"
    assert cj.sinks.delta(Path("/lake/out")) == cj.sinks.delta("/lake/out")
    assert cj.sinks.parquet(Path("/lake/out")) == cj.sinks.parquet("/lake/out")
    files = cj.sources.files(Path("/lake/trades"), "parquet", schema=things.right.schema)
    assert files.schema == "k string NOT NULL, ts timestamp NOT NULL, w string NOT NULL"


def test_very_many_key_groups_are_warned_of_and_few_are_not(things: Things) -> None:
    with pytest.warns(
        UserWarning, match=r"key_groups=10000: each micro-batch will take 8 to 20 seconds on 2 cores however few"
    ) as told:
        things.pair(*things.streams(), key_groups=10_000)
    assert Path(told[0].filename).name == Path(__file__).name
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        things.pair(*things.streams(), key_groups=1_000)


def test_small_static_inputs_have_few_key_groups_however_many_are_named(things: Things) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        joined = things.pair(key_groups=10_000).asof_join()
    assert joined.plan.key_groups == 1
    assert [row.w for row in joined.to_dataframe().collect()] == ["x"]


def test_a_collation_that_is_only_carried_is_told_and_its_texts_are_kept(things: Things) -> None:
    carried = things.left.withColumn("v", F.expr("array('Ab' collate UTF8_LCASE)"))
    with pytest.warns(UserWarning, match="input 'trades': column 'v' has the collation UTF8_LCASE, which results and"):
        joined = things.pair(carried).asof_join().to_dataframe()
    assert [(row.v, row.w) for row in joined.collect()] == [(["Ab"], "x")]


@pytest.mark.parametrize(
    ("function", "said", "where"),
    [
        (Misspells(), "Misspells.process_element1 raised AttributeError: a row has no field 'idd'", 1),
        (YieldsText(), "YieldsText.process_element1: output field 'id': expected bigint, got 'a' (str)", 0),
    ],
)
def test_a_static_function_that_fails_names_the_users_line(
    things: Things, function: cj.KeyedCoProcessFunction, said: str, where: int
) -> None:
    with pytest.raises(PythonException) as caught:
        things.pair().process(function, "id bigint").to_dataframe().collect()
    told = str(caught.value)
    assert said in told
    assert f"{__file__}:{type(function).process_element1.__code__.co_firstlineno + where}" in told
    # The way through our own code is of no use to its author.
    assert told.count("/cojoin/spark/") <= 2
    # The line that raises it again, and no frame of the call.
    assert told.count("/cojoin/engine/callbacks.py") <= 1
