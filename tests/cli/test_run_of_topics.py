"""``cojoin run`` of two real topics: bounded, paused, drained, gone on live; and what is refused."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from confluent_kafka import Producer

from cojoin.__main__ import main
from cojoin.checkpoints.manifest import Manifest
from tests.kafka.formats.encoded import Encoder
from tests.kafka.history import fill, make_history, make_producer, record_keys, record_times
from tests.kafka.lags import committed
from tests.kafka.records import CUSTOMER_DDL, PARTITIONS, TRADE_DDL, expected_join, values
from tests.kafka.topics import assert_conserved, assert_joined

PROJECT = Path(__file__).resolve().parents[2]
LIVE_SECONDS = 240
JOB = f"""
import os
import cojoin as cj

SERVERS = os.environ["KAFKA"]
WATERMARK = cj.WatermarkStrategy.for_bounded_out_of_orderness(os.environ.get("DELAY", "5 seconds"))
SCHEMAS = {{"trades": "{TRADE_DDL}", "customers": "{CUSTOMER_DDL}"}}

def topic(name, topics, key="customer_id", **settings):
    options = {{"options": dict(each.split("=") for each in os.environ.get("OPTIONS", "").split())}}
    settings = {{"schema": SCHEMAS[name], "max_records": 600, **options, **settings}}
    source = cj.kafka.source(SERVERS, topics, **settings)
    return cj.Input(source, key=key, event_time="event_time", name=name, watermark=WATERMARK)

def joined(trades, customers):
    return cj.connect(trades, customers, key_groups=2).asof_join(suffixes=("", "_customer"))

def topics(spark, trades="typed-trades", customers="typed-customers", since="earliest", to=None):
    since = int(since) if since.isdecimal() else since
    more = {{"from_": since, "to": to}}
    return joined(topic("trades", trades, **more), topic("customers", customers, **more))

def beside_files(spark, folder, undecodable="reject"):
    schema = SCHEMAS["customers"] + ", partition long, offset long"
    files = cj.sources.files(folder, "parquet", schema=schema)
    columns = {{"key": "customer_id", "event_time": "event_time", "sequence": ["partition", "offset"]}}
    return joined(
        topic("trades", "replay-broken", undecodable=undecodable),
        cj.Input(files, name="customers", watermark=WATERMARK, **columns),
    )

def of_avro(spark, registry):
    value = {{"value": cj.kafka.avro(cj.kafka.registry(registry)), "schema": None, "group": "cli-avro-lag"}}
    who = {{"who": cj.kafka.key("long")}}
    return joined(topic("trades", "cli-avro", "who", columns=who, **value), topic("customers", "cli-avro-c", **value))
"""


@pytest.fixture(scope="module")
def history():
    return make_history(2_000, 200, keys=60)


@pytest.fixture(scope="module")
def servers(broker, history):
    for topic, records in (("typed-trades", history.trades), ("typed-customers", history.customers)):
        broker.create_topic(topic, PARTITIONS)
        fill(broker.bootstrap_servers, topic, records)
    return broker.bootstrap_servers


@pytest.fixture
def words(servers, tmp_path, monkeypatch):
    monkeypatch.setenv("KAFKA", servers)
    (tmp_path / "job.py").write_text(JOB)

    def words(job: str, *more: str) -> list[str]:
        places = f"--output=delta:{tmp_path / 'enriched'}", f"--checkpoint={tmp_path / 'checkpoint'}"
        return ["run", f"{tmp_path / 'job.py'}:{job}", *places, *more]

    return words


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.kafka
def test_a_history_pauses_at_its_end_goes_on_and_drains(spark, words, history, tmp_path, capsys):
    half = pd.Timestamp(history.nothing[0], unit="ms").isoformat() + "Z"
    assert main(words("topics", f"--set=to={half}")) == 0
    first = capsys.readouterr()
    assert "Paused: " in first.out
    assert "not a topic" not in first.out
    expected = expected_join(history)
    written = spark.read.format("delta").load(str(tmp_path / "enriched")).select("trade_id", "version_id").collect()
    pairs = set(zip(expected["trade_id"].to_pylist(), expected["version_id"].to_pylist(), strict=True))
    assert 500 < len(written) < 2_000
    assert {tuple(row) for row in written} <= pairs

    assert main(words("topics", "--drain")) == 0
    second = capsys.readouterr()
    assert "Drained: " in second.out
    assert_joined(spark, str(tmp_path / "enriched"), expected)
    last = assert_conserved(spark, str(tmp_path / "checkpoint"))[-1]
    assert [(each.rows_in, each.late_applied) for each in last.inputs] == [(2_000, 0), (200, 0)]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.kafka
def test_a_topic_beside_files_is_not_aligned_and_its_broken_records_are_told(
    spark, broker, servers, words, history, tmp_path, monkeypatch, capsys
):
    """The broken records are rejected; with ``undecodable="fail"`` they end the query."""
    broker.create_topic("replay-broken", PARTITIONS)
    fill(servers, "replay-broken", history.trades)
    failed = []
    producer = make_producer(servers, failed)
    producer.produce("replay-broken", b"no JSON", b"17", 0, timestamp=history.end - 1)
    producer.produce("replay-broken", None, b"17", 1, timestamp=history.end - 1)
    assert (producer.flush(60), failed) == (0, [])
    customers = history.customers.assign(event_time=pd.to_datetime(history.customers["micros"], unit="us", utc=True))
    folder = tmp_path / "customers"
    folder.mkdir()
    customers.drop(columns="micros").to_parquet(folder / "all.parquet", coerce_timestamps="us")
    monkeypatch.setenv("DELAY", "30 days")
    job = ["beside_files", f"--set=folder={folder}", "--drain"]
    assert main(words(*job)) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "customers is not a topic, so the two inputs are not read in step: trades may run ahead" in out
    assert "+ rejected 2 0" in out
    assert_joined(spark, str(tmp_path / "enriched"), expected_join(history))

    other = [f"--checkpoint={tmp_path / 'other'}", f"--output=delta:{tmp_path / 'elsewhere'}"]
    assert main([*words(*job, "--set=undecodable=fail"), *other]) == 2
    assert "no JSON" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.kafka
def test_a_history_goes_on_live_until_it_is_interrupted(spark, broker, words, tmp_path, capsys):
    """The history, then what is written while it runs; interrupted, and drained by the same checkpoint."""
    topics = "replay-live-trades", "replay-live-customers"
    history = make_history(1_000, 100, keys=40, days=1, begin="2026-03-02")
    filled = [(topics[0], history.trades), (topics[1], history.customers)]
    for topic, records in filled:
        broker.create_topic(topic, PARTITIONS)
        fill(broker.bootstrap_servers, topic, records[records["micros"] // 1000 < history.nothing[0]])
    run = words(
        "topics", *(f"--set={name}={topic}" for name, topic in zip(("trades", "customers"), topics, strict=True))
    )
    live = [*run, "--then-live=1 second", "--conf=spark.driver.host=127.0.0.1", "--master=local[2]"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "cojoin", *live],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said = read_until(process, "Continuing live")
        assert "Caught up: " in said
        assert "--drain" not in said
        assert "drain=True" not in said
        for topic, records in filled:
            write(broker.bootstrap_servers, topic, records[records["micros"] // 1000 >= history.nothing[0]])
        deadline = time.monotonic() + LIVE_SECONDS
        while rows_read(tmp_path) < 1_100:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        # As a terminal does it: all processes of the group hear of it.
        os.killpg(process.pid, signal.SIGINT)
        said += read_until(process, None)
        assert process.wait(60) == 130, said
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert "Stopped. The same command continues from the checkpoint." in said
    assert "Paused: " in said.partition("Continuing live")[2]
    assert "behind the newest record, " in said
    assert "Nothing is lost" in said
    assert "Traceback" not in said
    assert "rror" not in said, said

    assert main([*run, "--drain"]) == 0
    capsys.readouterr()
    assert_joined(spark, str(tmp_path / "enriched"), expected_join(history))


def rows_read(folder: Path) -> int:
    newest = max((folder / "checkpoint" / "manifest").glob("[0-9]*.json"))
    content = json.loads(newest.read_text("utf-8"))["content"]
    return sum(each.rows_in for each in Manifest.from_dict(content).report.inputs)


def write(servers, topic, records) -> None:
    """Write further records, behind those that are there."""
    failed = []
    producer = make_producer(servers, failed)
    for value, key, partition, at in zip(
        values(records), record_keys(records), records["partition"].tolist(), record_times(records), strict=True
    ):
        producer.produce(topic, value, key, partition, timestamp=at)
    assert (producer.flush(60), failed) == (0, [])


def read_until(process: subprocess.Popen[bytes], text: str | None) -> str:
    """Read what a process says, until it has said something, or has ended."""
    said, deadline = b"", time.monotonic() + LIVE_SECONDS
    while text is None or text.encode() not in said:
        assert time.monotonic() < deadline, said.decode()
        if select.select([process.stdout], [], [], 1)[0]:
            some = os.read(process.stdout.fileno(), 65_536)
            if not some:
                break
            said += some
    assert text is None or text.encode() in said, said.decode()
    return said.decode()


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.parametrize(
    ("more", "options", "told"),
    [
        (["--set=trades=typed-trade"], "", "topic 'typed-trade' does not exist; did you mean 'typed-"),
        (["--set=since=5000"], "", "from_ is beyond the end"),
        (["--set=since=yesterday"], "", "got 'yesterday'"),
        (["--set=since=2026-03-20", "--set=to=2026-03-02"], "", "from_ is after to"),
        ([], "maxOffsetsPerTrigger=5", "librdkafka refuses it"),
        ([], "debug=no-such sasl.password=hunter2", "option 'debug'"),
    ],
)
def test_what_the_broker_does_not_have_is_one_message_before_anything_is_written(
    spark, words, tmp_path, monkeypatch, capsys, more, options, told
):
    monkeypatch.setenv("OPTIONS", options)
    assert main(words("topics", *more)) == 2
    printed = capsys.readouterr()
    assert told in printed.err
    assert "Traceback" not in printed.err
    assert "hunter2" not in printed.out + printed.err
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.kafka
def test_avro_with_keys_and_a_group(spark, broker, registry, words, tmp_path, capsys):
    """The customer is in the records' keys alone; a transaction that is open is told, and what it holds is left."""
    servers, history = broker.bootstrap_servers, make_history(800, 100, keys=30)
    topics = "cli-avro", "cli-avro-c"
    turn = int(history.trades["micros"].median())
    for topic, side in zip(topics, ("trades", "customers"), strict=True):
        broker.create_topic(topic, PARTITIONS)
        encoder = Encoder.registered(registry, "avro", side, f"{topic}-value", turn)
        fill(servers, topic, getattr(history, side), encode=encoder)
    open_one = Producer({"bootstrap.servers": servers, "transactional.id": "cli-open"})
    open_one.init_transactions(60)
    open_one.begin_transaction()
    open_one.produce(topics[0], b"", partition=0)
    open_one.flush(60)
    try:
        assert main(words("of_avro", f"--set=registry={registry.url}", "--drain")) == 0
    finally:
        open_one.abort_transaction(60)
    printed = capsys.readouterr()
    # Lines are wrapped where the terminal ends.
    assert "a transaction is open from offset" in " ".join((printed.err + printed.out).split())
    assert_joined(spark, str(tmp_path / "enriched"), expected_join(history))
    found = committed(servers, "cli-avro-lag", *topics)
    assert sum(max(0, each) for each in found.values()) == len(history.trades) + len(history.customers)
