"""Queries in a session of Spark Connect; ``pytest --connect tests/connect`` runs them, ``test_on_connect`` in CI.

The tests of joins, restoring and inspecting run there, too (``test_on_connect`` lists them). These are about what is
different: the batches are written by a process beside the server, and this process only starts, watches and stops them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import cojoin as cj
from tests.kafka.sink.committed import read_committed
from tests.spark.data import FIVE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.servers.broker import Broker

pytestmark = pytest.mark.connect

PROJECT = Path(__file__).parents[2]
ROWS = 300


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Trades in three commits and customers in one, as Delta tables; trade n finds the version n // 7."""
    root = tmp_path_factory.mktemp("tables")
    for part in range(3):
        trades = spark.sql(
            f"select id trade, id % 5 customer, timestamp_millis(1000 * id) event_time "
            f"from range({part * ROWS // 3}, {(part + 1) * ROWS // 3})"
        )
        trades.write.format("delta").mode("append").save(f"{root}/trades")
    customers = spark.sql(
        f"select id version, customer, timestamp_millis(7000 * id) event_time "
        f"from range({ROWS // 7 + 1}) join (select id customer from range(5))"
    )
    customers.write.format("delta").save(f"{root}/customers")
    return f"{root}/trades", f"{root}/customers"


def joined(tables: tuple[str, str], key_groups: int = 3, **options: Any) -> cj.Joined:
    left, right = (cj.sources.delta(path, options=options) for path in tables)
    shared: Any = {"key": "customer", "event_time": "event_time", "watermark": FIVE_SECONDS}
    pair = cj.connect(
        cj.Input(left, name="trades", **shared), cj.Input(right, name="customers", **shared), key_groups=key_groups
    )
    return pair.asof_join()


def found(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.trade, row.version) for row in frame.select("trade", "version").collect())


EXPECTED = [(trade, trade // 7) for trade in range(ROWS)]
WAITING = 11
"""The trades after a pause: the newest customer is of second 294, so the watermark is at 289."""


def paused(tables: tuple[str, str], folder: Path, **options: Any) -> cj.Query:
    """Return a query that has paused, which writes to ``folder``."""
    query = joined(tables).start(
        output=cj.sinks.delta(f"{folder}/out"),
        checkpoint=f"{folder}/checkpoint",
        trigger=cj.Trigger.available_now(),
        **options,
    )
    query.await_termination()
    return query


@pytest.mark.slow
def test_a_query_in_batches_is_exact_watched_and_drained(
    spark: SparkSession, tables: tuple[str, str], tmp_path: Path
) -> None:
    query = joined(tables, maxFilesPerTrigger=1).start(
        output=cj.sinks.delta(f"{tmp_path}/out"),
        checkpoint=f"{tmp_path}/checkpoint",
        trigger=cj.Trigger.available_now(drain=True),
    )
    query.await_termination()
    assert found(spark.read.format("delta").load(f"{tmp_path}/out")) == EXPECTED
    report = query.progress
    assert report is not None
    assert report.is_conserved
    assert query.batches == report.batch_id + 1 > 3
    progress = cj.read_progress(spark, f"{tmp_path}/checkpoint").select("batch_id", "rows_out").collect()
    assert [row.batch_id for row in progress] == [*range(query.batches)]
    assert progress[-1].rows_out == ROWS


def test_it_pauses_and_what_waits_is_in_its_savepoint(
    spark: SparkSession, tables: tuple[str, str], tmp_path: Path
) -> None:
    place = f"{tmp_path}/checkpoint"
    reports: list[Any] = []
    query = paused(tables, tmp_path, on_progress=reports.append)
    # They are told in this process, which has started the query.
    assert [each.batch_id for each in reports] == [*range(query.batches)]
    assert reports[-1] == query.progress
    assert query.stop(savepoint=True) is not None
    assert cj.read_state(spark, place).buffered["trades"].count() == WAITING
    assert "held by 'customers'" in str(cj.explain(spark, place, input="trades", row={"trade": ROWS - 1}))


@pytest.mark.slow
def test_a_savepoint_is_restored_into_other_key_groups(
    spark: SparkSession, tables: tuple[str, str], tmp_path: Path
) -> None:
    restored = joined(tables, 7).start(
        output=cj.sinks.delta(f"{tmp_path}/rest"),
        checkpoint=f"{tmp_path}/restored",
        trigger=cj.Trigger.available_now(drain=True),
        restore_from=paused(tables, tmp_path).stop(savepoint=True),
    )
    restored.await_termination()
    parts = [found(spark.read.format("delta").load(f"{tmp_path}/{name}")) for name in ("out", "rest")]
    assert (len(parts[1]), sorted(parts[0] + parts[1])) == (WAITING, EXPECTED)


class CountTrades(cj.KeyedCoProcessFunction):
    """Counts a key's trades, and emits the count when a timer fires."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        self.count = ctx.get_state(cj.ValueStateDescriptor("count", "bigint"))

    def process_element1(self, trade: Any, ctx: cj.Context) -> None:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(10_000_000)

    def process_element2(self, customer: Any, ctx: cj.Context) -> None:
        if customer.version < 0:
            raise ValueError(customer.version)

    def on_timer(self, timestamp: int, ctx: cj.OnTimerContext) -> Any:
        yield ctx.get_current_key(), self.count.value()


def functions(tables: tuple[str, str], function: cj.KeyedCoProcessFunction) -> Any:
    left, right = (cj.sources.delta(path) for path in tables)
    shared: Any = {"key": "customer", "event_time": "event_time"}
    return cj.connect(cj.Input(left, **shared), cj.Input(right, **shared), key_groups=3).process(
        function, output_type="customer bigint, count bigint"
    )


@pytest.mark.slow
def test_a_function_has_state_and_timers(spark: SparkSession, tables: tuple[str, str], tmp_path: Path) -> None:
    query = functions(tables, CountTrades()).start(
        output=cj.sinks.parquet(f"{tmp_path}/out"),
        checkpoint=f"{tmp_path}/checkpoint",
        trigger=cj.Trigger.available_now(drain=True),
    )
    query.await_termination()
    rows = spark.read.parquet(f"{tmp_path}/out").collect()
    assert sorted((row.customer, row["count"]) for row in rows) == [(each, ROWS // 5) for each in range(5)]


@pytest.mark.slow  # A broker, and two processes beside the server.
def test_rows_go_into_a_topic_once(tables: tuple[str, str], broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("from-connect", 2)
    output = cj.sinks.kafka(broker.bootstrap_servers, "from-connect", key="customer")
    options: Any = {"output": output, "checkpoint": f"{tmp_path}/checkpoint"}
    for trigger in (cj.Trigger.available_now(), cj.Trigger.available_now(drain=True)):
        joined(tables, maxFilesPerTrigger=1).start(trigger=trigger, **options).await_termination(progress=False)
    rows = [each.json for each in read_committed(broker.bootstrap_servers, "from-connect")]
    assert sorted((row["trade"], row["version"]) for row in rows) == EXPECTED


@pytest.mark.slow
def test_paths_may_have_blanks_and_brackets_and_relative_ones_are_refused(
    spark: SparkSession, tables: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, folder, drain = f"{tmp_path}/ä [b] {{c}} 5%", f"{tmp_path}/out [1]", cj.Trigger.available_now(drain=True)
    query = joined(tables).start(output=cj.sinks.parquet(folder), checkpoint=place, trigger=drain)
    query.await_termination()
    files = [f"{each}" for each in Path(folder).rglob("*.parquet")]
    assert sum(pq.read_metadata(file).num_rows for file in files) == ROWS
    monkeypatch.chdir(tmp_path)
    with pytest.raises(cj.ConfigurationError, match=r"output: expected a full path, got 'out'.*another folder for the"):
        joined(tables).start(output=cj.sinks.parquet("out"), checkpoint=f"{tmp_path}/c", trigger=drain)
    with pytest.raises(cj.ConfigurationError, match=r"input 'trades': expected a full path, got './trades'"):
        joined(("./trades", tables[1])).start(output=print, checkpoint=f"{tmp_path}/c", trigger=drain)
    with pytest.raises(
        cj.ConfigurationError, match=r"input 'trades': delta .*can't be read: the Delta table does not exist"
    ):
        joined((f"{tmp_path}/none", tables[1])).start(output=print, checkpoint=f"{tmp_path}/c", trigger=drain)


@pytest.mark.slow
def test_spark_has_no_state_below_a_path_that_it_encodes(tables: tuple[str, str], tmp_path: Path) -> None:
    query = joined(tables).start(
        output=cj.sinks.delta(f"{tmp_path}/out"),
        checkpoint=f"{tmp_path}/my checkpoint",
        trigger=cj.Trigger.available_now(),
    )
    query.await_termination()
    with pytest.raises(cj.CheckpointError, match=r"finds nothing below a path with ' '"):
        query.stop(savepoint=True)


@pytest.mark.slow
def test_the_lease_names_the_newest_batch_that_counts(tables: tuple[str, str], tmp_path: Path) -> None:
    place = f"{tmp_path}/checkpoint"

    def run() -> None:
        query = joined(tables).start(
            output=cj.sinks.delta(f"{tmp_path}/out"), checkpoint=place, trigger=cj.Trigger.available_now()
        )
        query.await_termination()

    run()
    newest = max(Path(place, "manifest").glob("*.json"))
    newest.unlink()
    with pytest.raises(cj.CheckpointError, match="this file is gone"):
        run()


@dataclass
class _Broken:
    reason: str

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        raise RuntimeError(self.reason)


@pytest.mark.slow
def test_an_error_beside_the_server_has_its_message(tables: tuple[str, str], tmp_path: Path) -> None:
    query = joined(tables).start(
        output=_Broken("the warehouse is closed"),
        checkpoint=f"{tmp_path}/checkpoint",
        trigger=cj.Trigger.available_now(),
    )
    with pytest.raises(cj.QueryFailedError, match=r"batch 0: output to .*: RuntimeError: the warehouse is closed"):
        query.await_termination()


def test_what_can_not_be_sent_to_the_server_is_refused(tables: tuple[str, str], tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(cj.ConfigurationError, match=r"can't be sent to the Spark Connect server.*lock"):
        joined(tables).start(
            output=lambda *_: lock.acquire(),
            checkpoint=f"{tmp_path}/checkpoint",
            trigger=cj.Trigger.available_now(),
        )


@pytest.mark.slow
def test_a_second_query_on_the_checkpoint_is_refused_and_a_stopped_one_goes_on(
    spark: SparkSession, tables: tuple[str, str], tmp_path: Path
) -> None:
    def start(trigger: cj.Trigger) -> Any:
        return joined(tables).start(
            output=cj.sinks.delta(f"{tmp_path}/out"), checkpoint=f"{tmp_path}/checkpoint", trigger=trigger
        )

    first = start(cj.Trigger.processing_time())
    with pytest.raises(cj.CheckpointError, match="another query runs on it"):
        start(cj.Trigger.available_now())
    first.stop()
    start(cj.Trigger.available_now(drain=True)).await_termination()
    assert found(spark.read.format("delta").load(f"{tmp_path}/out")) == EXPECTED


CLIENT = """
import sys
from pyspark.sql import SparkSession
SparkSession.builder.remote(sys.argv[1]).getOrCreate()
from tests.connect import test_queries as here
import cojoin as cj
trigger = cj.Trigger.processing_time()
root = sys.argv[4]
query = here.joined((sys.argv[2], sys.argv[3]), maxFilesPerTrigger=1).start(
    output=cj.sinks.delta(f"{root}/out"), checkpoint=f"{root}/checkpoint", trigger=trigger
)
print("started", flush=True)
query.await_termination()
"""


@pytest.mark.slow
def test_a_killed_client_leaves_a_query_that_the_next_start_fences_off(
    spark: SparkSession, connect_address: str, tables: tuple[str, str], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", CLIENT, connect_address, *tables, str(tmp_path)]
    client = subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=PROJECT, env=os.environ | {"PYTHONPATH": str(PROJECT)}
    )
    assert client.stdout is not None
    assert client.stdout.readline() == b"started\n"
    client.kill()
    client.wait()
    # The client's query still runs at the server, in a session of its own.
    joined(tables).start(
        output=cj.sinks.delta(f"{tmp_path}/out"),
        checkpoint=f"{tmp_path}/checkpoint",
        trigger=cj.Trigger.available_now(drain=True),
    ).await_termination()
    assert found(spark.read.format("delta").load(f"{tmp_path}/out")) == EXPECTED
