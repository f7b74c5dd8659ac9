"""Joins in Spark's Declarative Pipelines, run as their users do, by ``spark-pipelines``, and what is refused there."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import cojoin as cj
from cojoin.session.launch_settings import find_spark_home
from cojoin.session.versions import spark_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.connect,
    pytest.mark.skipif(spark_version() != "4.2", reason="Spark has pipelines since 4.1, and these since 4.2"),
]

PROJECT = Path(__file__).parents[2]
TRADES = "trade bigint, customer string, at timestamp"
SPAN = "customer string, tier string, __START_AT timestamp, __END_AT timestamp"
CUSTOMERS = "customer string, tier string, at timestamp"

SPEC = """
name: {name}
storage: file://{folder}/storage
database: {database}
configuration:
  spark.sql.sources.default: delta
libraries:
  - glob:
      include: {name}.py
"""

JOINED = """
from pyspark import pipelines as dp

import cojoin as cj

trades = cj.Input(
    cj.sources.files("{folder}/trades", "json", schema="{trades}"), key="customer", event_time="at", name="trades"
)
{right}
join = cj.connect(trades, customers, key_groups=2).temporal_join()
joined, rejected = join.to_dataframe(), join.to_dataframe("rejected")


@dp.table
def enriched():
    return joined


@dp.table
def refused():
    return rejected
"""

SPANS = """
customers = cj.Input(
    {source}, key="customer", valid_from="__START_AT", valid_to="__END_AT", name="customers"
)
"""

INSIDE = """
from pyspark import pipelines as dp

import cojoin as cj


@dp.table
def enriched():
    trades = cj.sources.files("{folder}/trades", "json", schema="{trades}")
    pair = cj.Input(trades, key="customer", event_time="at"), cj.Input(trades, key="customer", event_time="at")
    return cj.connect(*pair).asof_join(suffixes=("", "_right")).to_dataframe()
"""


class Project:
    """A pipeline's project, its database, and the command that runs it at a server."""

    def __init__(self, spark: SparkSession, folder: Path, address: str) -> None:
        self.spark, self.folder, self._address = spark, folder, address
        self.database = f"pipeline_{os.getpid()}_{abs(hash(folder))}"
        spark.sql(f"CREATE DATABASE {self.database}")

    def write(self, name: str, text: str) -> None:
        (self.folder / f"{name}.py").write_text(text)
        spec = SPEC.format(name=name, folder=self.folder, database=self.database)
        (self.folder / f"{name}.yml").write_text(spec)

    def run(self, name: str) -> subprocess.CompletedProcess[str]:
        command = [str(find_spark_home() / "bin" / "spark-pipelines"), "run"]
        command += ["--remote", self._address, "--spec", f"{self.folder}/{name}.yml"]
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(PROJECT)}
        # Its Python's errors come out where its progress does.
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.run(command, env=environment, check=False, timeout=600, **both)  # type: ignore[call-overload]

    def sell(self, *trades: tuple[int, str, datetime]) -> None:
        self.spark.createDataFrame([*trades], TRADES).coalesce(1).write.mode("append").json(f"{self.folder}/trades")

    def enriched(self) -> list[tuple[int, str | None]]:
        rows = self.spark.table(f"{self.database}.enriched").select("trade", "tier").collect()
        return sorted((row.trade, row.tier) for row in rows)


@pytest.fixture
def project(spark: SparkSession, connect_address: str, tmp_path: Path) -> Iterator[Project]:
    made = Project(spark, tmp_path, connect_address)
    yield made
    spark.sql(f"DROP DATABASE {made.database} CASCADE")


def day(number: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(days=number)


SPANS_OF = [
    ("ann", "silver", day(1), day(10)),
    ("ann", "gold", day(10), None),
    ("bob", "none", day(5), day(8)),
    ("eve", "none", day(40), None),
]
SOLD = [(1, "ann", day(9)), (2, "ann", day(10)), (3, "bob", day(7)), (4, "bob", day(8)), (5, "cid", day(9))]
LATE = (9, "bob", day(6))
LATER = [(6, "ann", day(20)), (7, "bob", day(11)), (8, "ann", day(60))]


def by_sql(spans: list[Any], trades: list[Any]) -> list[tuple[int, str | None]]:
    """Return each trade's tier by SQL: the span that holds its time."""
    found = duckdb.connect()
    found.execute("CREATE TABLE spans (customer text, tier text, begins timestamptz, ends timestamptz)")
    found.execute("CREATE TABLE trades (trade bigint, customer text, sold timestamptz)")
    found.executemany("INSERT INTO spans VALUES (?, ?, ?, ?)", spans)
    found.executemany("INSERT INTO trades VALUES (?, ?, ?)", trades)
    return found.sql(
        "SELECT trade, tier FROM trades LEFT JOIN spans ON trades.customer = spans.customer "
        "AND begins <= sold AND (ends IS NULL OR sold < ends) ORDER BY trade"
    ).fetchall()


@contextmanager
def in_a_function(spark: Any) -> Iterator[None]:
    """Let a pipeline analyse what follows as the body of one of its functions, as ``spark-pipelines`` does."""
    from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph

    graph = create_dataflow_graph(spark, default_catalog=None, default_database=None, sql_conf={})
    with add_pipeline_analysis_context(spark, graph, "enriched"):
        yield


REFUSED = r"Spark forbids .*ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION.* at the level of the module"


def test_in_a_pipelines_function_the_cause_is_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(tmp_path, "trades").mkdir()
    trades = cj.sources.files(f"{tmp_path}/trades", "json", schema=TRADES)
    frame = spark.createDataFrame([(1, "ann", day(1))], TRADES)
    with in_a_function(spark):
        # Whether the server was asked for its version before, or not.
        for known in (set(), {spark.session_id}):  # type: ignore[attr-defined]
            monkeypatch.setattr("cojoin.session.connect_session._CHECKED", known)
            for source in (trades, frame):
                left, right = (cj.Input(source, key="customer", event_time="at", name=name) for name in ("a", "b"))
                with pytest.raises(cj.ConfigurationError, match=REFUSED) as refused:
                    cj.connect(left, right)
                assert "does not answer" not in str(refused.value)
                assert "can't be read" not in str(refused.value)


@pytest.mark.slow
def test_spans_of_a_table_are_joined_over_several_runs(project: Project) -> None:
    project.spark.createDataFrame(SPANS_OF, SPAN).write.saveAsTable(f"{project.database}.history", format="delta")
    source = f'cj.sources.delta("{project.database}.history")'
    right = SPANS.format(source=source)
    project.write("joins", JOINED.format(folder=project.folder, trades=TRADES, right=right))
    sold: list[tuple[int, str, datetime]] = []
    # Each run leaves the trades at and after the watermark: first the trades' own, then that of the spans.
    for arrived, watermark in ((SOLD, day(10)), (LATER, day(40))):
        project.sell(*arrived)
        sold += arrived
        ran = project.run("joins")
        assert ran.returncode == 0, ran.stdout[-4000:]
        assert project.enriched() == by_sql(SPANS_OF, [each for each in sold if each[2] < watermark])
        project.sell(LATE)
    assert project.run("joins").returncode == 0
    assert [row.reason for row in project.spark.table(f"{project.database}.refused").collect()] == ["late"] * 2


@pytest.mark.slow
def test_a_join_within_the_function_says_what_works(project: Project) -> None:
    project.sell(*SOLD)
    project.write("inside", INSIDE.format(folder=project.folder, trades=TRADES))
    ran = project.run("inside")
    assert ran.returncode != 0
    assert "cojoin.errors.ConfigurationError: " in ran.stdout
    assert "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION" in ran.stdout.partition("cojoin.errors.ConfigurationError")[2]
