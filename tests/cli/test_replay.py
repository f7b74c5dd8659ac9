"""``cojoin replay`` of two real topics: bounded, paused, drained, gone on live; and what is refused."""

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

import cojoin as cj
from cojoin.__main__ import main
from cojoin.checkpoints.manifest import Manifest
from cojoin.cli.arguments import parse_arguments
from cojoin.cli.command_secrets import secrets_of
from tests.kafka.formats.encoded import Encoder
from tests.kafka.history import fill, make_history, make_producer, record_keys, record_times
from tests.kafka.lags import committed
from tests.kafka.records import CUSTOMER_DDL, PARTITIONS, TRADE_DDL, expected_join, values
from tests.kafka.topics import assert_conserved, assert_joined

PROJECT = Path(__file__).resolve().parents[2]
LIVE_SECONDS = 240
SCHEMA_OPTIONS = ("--left-schema=", "--right-schema=", "--key=")
SCHEMAS = f"--left-schema={TRADE_DDL}", f"--right-schema={CUSTOMER_DDL}"


@pytest.fixture(scope="module")
def history():
    return make_history(2_000, 200, keys=60)


@pytest.fixture(scope="module")
def servers(broker, history):
    for topic, records in (("typed-trades", history.trades), ("typed-customers", history.customers)):
        broker.create_topic(topic, PARTITIONS)
        fill(broker.bootstrap_servers, topic, records)
    return broker.bootstrap_servers


def words(servers, folder, *more: str, topics=("typed-trades", "typed-customers")) -> list[str]:
    left, right = (f"kafka:{servers}/{topic}" for topic in topics)
    return [
        "replay",
        *(f"--left={left}", f"--right={right}", *SCHEMAS, "--left-name=trades", "--right-name=customers"),
        *("--key=customer_id", "--event-time=event_time", "--delay=5 seconds", "--suffixes=,_customer"),
        *(f"--output=delta:{folder / 'enriched'}", f"--checkpoint={folder / 'checkpoint'}", "--key-groups=2"),
        *more,
    ]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.kafka
def test_a_replay_pauses_at_its_end_goes_on_and_drains(spark, servers, history, tmp_path, capsys):
    replay = words(servers, tmp_path, "--max-records=600", "--verify")
    half = pd.Timestamp(history.nothing[0], unit="ms").isoformat() + "Z"
    assert main([*replay, f"--to={half}"]) == 0
    first = capsys.readouterr()
    assert "Paused: " in first.out
    assert "equal, row for row" in first.out
    assert "not a topic" not in first.out

    assert main([*replay, "--drain"]) == 0
    second = capsys.readouterr()
    assert "Drained: " in second.out
    assert "equal, row for row, all 2,000." in second.out
    assert_joined(spark, str(tmp_path / "enriched"), expected_join(history))
    last = assert_conserved(spark, str(tmp_path / "checkpoint"))[-1]
    assert [(each.rows_in, each.late_applied) for each in last.inputs] == [(2_000, 0), (200, 0)]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.kafka
def test_a_topic_beside_files_is_not_aligned_and_its_broken_records_are_told(
    spark, broker, servers, history, tmp_path, capsys
):
    """The broken records are rejected, and --verify leaves them out; with --undecodable fail they end it."""
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

    replay = words(servers, tmp_path, "--verify", "--drain", topics=("replay-broken", ""))
    replay = [word for word in replay if not word.startswith(("--right=", "--right-schema="))]
    replay += [f"--right=parquet:{folder}", "--right-sequence=partition,offset"]
    assert main([*replay, "--delay=30 days"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "customers is not a topic, so the two inputs are not read in step: trades may run ahead" in out
    assert "+ rejected 2 0" in out
    assert "equal, row for row, all 2,000." in out

    other = [f"--checkpoint={tmp_path / 'other'}", f"--output=delta:{tmp_path / 'elsewhere'}", "--undecodable=fail"]
    assert main([*replay, *other]) == 2
    assert "no JSON" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.kafka
def test_a_replay_goes_on_live_until_it_is_interrupted(spark, broker, tmp_path, capsys):
    """The history, then what is written while it runs; interrupted, and drained by the same checkpoint."""
    topics = "replay-live-trades", "replay-live-customers"
    history = make_history(1_000, 100, keys=40, days=1, begin="2026-03-02")
    filled = [(topics[0], history.trades), (topics[1], history.customers)]
    for topic, records in filled:
        broker.create_topic(topic, PARTITIONS)
        fill(broker.bootstrap_servers, topic, records[records["micros"] // 1000 < history.nothing[0]])
    replay = words(broker.bootstrap_servers, tmp_path, topics=topics)
    live = [*replay, "--then-live=1 second", "--conf=spark.driver.host=127.0.0.1", "--master=local[2]", "--show=0"]
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
    assert "Stopped. The same command continues from here." in said
    assert "Paused: " in said.partition("Continuing live")[2]
    assert "behind the newest record, " in said
    assert "Nothing is lost" in said
    assert "Traceback" not in said
    assert "rror" not in said, said

    assert main([*replay, "--drain", "--verify"]) == 0
    assert "equal, row for row, all 1,000." in capsys.readouterr().out
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
    ("more", "said"),
    [
        (["--left=kafka:{}/typed-trade"], "no topic 'typed-trade'; did you mean 'typed-trades'"),
        (['--left-from={{"typed-trades": {{"9": 5}}}}'], "partition 9"),
        (["--from=5000"], "--from is beyond the end"),
        (["--left-option=maxOffsetsPerTrigger=5"], "librdkafka refuses it"),
        (["--left-option=debug=no-such-hunter2"], "option 'debug'"),
    ],
)
def test_what_the_broker_does_not_have_is_one_message_before_anything_is_written(
    spark, servers, tmp_path, capsys, more, said
):
    assert main(words(servers, tmp_path, *(word.format(servers) for word in more))) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert "Traceback" not in printed.err
    assert "hunter2" not in printed.out + printed.err
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--from=2026-03-20", "--to=2026-03-02"], "--from is after --to"),
        (["--right-from=2026-03-20", "--to=2026-03-02"], "source kafka typed-customers: --from is after --to"),
        (["--from=yesterday"], "got 'yesterday'"),
        (["--from={trades"], "expected JSON such as"),
        (["--to=earliest"], "nothing is between"),
        (["--left=delta:/lake/a", "--right=delta:/lake/b"], "expected a topic as --left, as --right, or as both"),
        (["--left=delta:/lake/a", "--left-to=5"], "--left-to applies only to a Kafka topic, and --left delta:/lake/a"),
        (["--max-drift=far"], "--max-drift"),
        (["--max-records=0"], "--max-records"),
        (["--patience=soon"], "--patience"),
        (["--left-archive=json:/lake"], "expected one of delta, parquet before the colon"),
        (["--undecodable=keep"], "invalid choice: 'keep'"),
        (["--drain", "--then-live=1 second"], "not allowed with argument"),
        (["--from=latest", "--verify"], "begins at 'latest'"),
        (["--left-option=kafka.sasl.password=hunter2"], "expected sasl.password=***"),
        (["--idleness=0 seconds"], "above zero"),
        (["--when-all-idle=max"], "--when-all-idle max needs --idleness, such as '1 minute', which is missing"),
        (["--when-all-idle=min"], "invalid choice: 'min'"),
        (["--checkpoint-interval=soon"], "--checkpoint-interval: expected"),
        (["--output-key=customer_id"], "--output-key applies only to a Kafka topic, and --output delta:"),
        (["--output-option=linger.ms=5"], "--output-option applies only to a Kafka topic"),
        (["--output=kafka:localhost:1/a,b"], "expected one topic to write to, got a, b"),
        (["--output=kafka:localhost:1/a", "--output-option=group.id=x"], "option 'group.id' can't be given"),
        (["--output=kafka:localhost:1/a", "--verify"], "--verify reads what was written, and --output kafka:"),
        (["--format=avro"], "expected --registry, such as http://localhost:8081, because its values are avro"),
        (
            ["--registry=http://localhost:1"],
            "expected --format, one of avro, protobuf, json-schema, because --registry",
        ),
        (["--format=xml"], "expected one of json, avro, protobuf, json-schema, got 'xml'"),
        (["--format=avro", "--registry=localhost:1"], "registry: expected an address such as"),
        (["--left-column=id=body"], "expected NAME=key, NAME=key:TYPE"),
        (["--left-column=id=key:struct<a:int>"], "expected a plain type"),
        (["--group=cojoin-mine"], "group"),
        (["--left=delta:/lake/a", "--left-group=mine"], "--left-group applies only to a Kafka topic"),
        (["--left=delta:/lake/a", "--left-column=id=key"], "--left-column applies only to a Kafka topic"),
    ],
)
def test_a_mistake_is_one_message_before_spark_starts(tmp_path, capsys, more, said):
    with pytest.raises(SystemExit) as ended:
        main(words("localhost:1", tmp_path, *more))
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert said in printed.err
    assert "hunter2" not in printed.err
    assert printed.out == ""


def test_what_is_typed_reaches_the_sources(tmp_path):
    typed = words("localhost:1", tmp_path, "--to=2026-03-20", "--left-from=7", "--max-drift=1 hour", "--max-records=9")
    typed += ["--patience=none", "--undecodable=fail", "--tombstones=keep", "--data-loss=skip", "--then-live=2 seconds"]
    typed += ["--left-option=sasl.password=hunter2", "--idleness=1 minute", "--when-all-idle=max"]
    arguments = parse_arguments(typed, secrets_of(typed))
    assert "hunter2" not in repr(arguments)
    left, right = (side.kafka.source() for side in arguments.sides)
    right = right.without_end()
    assert "hunter2" not in repr(arguments.sides)
    assert "hunter2" not in repr(left)
    assert (left.cluster.settings, left.cluster.patience_ms) == ({"sasl.password": "hunter2"}, None)
    assert (left.max_drift_ms, left.limit) == (3_600_000, 9)
    assert (left.undecodable, left.tombstones, left.data_loss) == ("fail", "keep", "skip")
    assert (str(left.range.from_[None, None]), left.range.is_bounded) == ("offset 7", True)
    assert (str(right.range.from_[None, None]), right.range.is_bounded) == ("earliest", False)
    assert arguments.when_all_idle == "max"
    assert arguments.trigger.is_bounded
    assert arguments.trigger.then.interval_ms == 2_000


def test_what_records_hold_is_typed(tmp_path):
    typed = words("localhost:1", tmp_path, "--format=avro", "--registry=http://ali:hunter2@localhost:1", "--group=mine")
    typed += [
        "--right-format=json",
        "--left-column=who=key:long",
        "--left-column=from=header:origin",
        "--right-group=r",
    ]
    typed += ["--left-column=sent=timestamp", "--left-column=n=header:a:b:int", "--registry-option=timeout=5"]
    arguments = parse_arguments(typed, secrets_of(typed))
    assert "hunter2" not in repr(arguments.sides)
    assert "hunter2" not in secrets_of(typed).mask("at hunter2")
    left, right = (side.kafka.source() for side in arguments.sides)
    assert left.value == cj.kafka.avro(
        cj.kafka.registry("http://ali:hunter2@localhost:1", options={"timeout": "5"}), schema=TRADE_DDL
    )
    assert left.columns == {
        "who": cj.kafka.key("long"),
        "from": cj.kafka.header("origin"),
        "sent": cj.kafka.timestamp(),
        "n": cj.kafka.header("a:b", "int"),
    }
    assert (left.group, right.group, right.value, right.schema) == ("mine", "r", None, CUSTOMER_DDL)
    without = [word for word in typed if not word.startswith("--left-schema=")]
    assert parse_arguments(without, secrets_of(without)).sides[0].kafka.source().value.schema is None


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.kafka
def test_a_replay_of_avro_with_keys_and_a_group(spark, broker, registry, tmp_path, capsys):
    """The customer is in the records' keys alone; a transaction that is open is told, and what it holds is left."""
    servers, topics, history = (
        broker.bootstrap_servers,
        ("cli-avro", "cli-avro-customers"),
        make_history(800, 100, keys=30),
    )
    turn = int(history.trades["micros"].median())
    for topic, side in zip(topics, ("trades", "customers"), strict=True):
        broker.create_topic(topic, PARTITIONS)
        encoder = Encoder.registered(registry, "avro", side, f"{topic}-value", turn)
        fill(servers, topic, getattr(history, side), encode=encoder)
    replay = [word for word in words(servers, tmp_path, topics=topics) if not word.startswith(SCHEMA_OPTIONS)]
    replay += ["--format=avro", f"--registry={registry.url}", "--left-column=who=key:long", "--left-key=who"]
    replay += ["--right-key=customer_id", "--group=cli-avro-lag"]
    open_one = Producer({"bootstrap.servers": servers, "transactional.id": "cli-open"})
    open_one.init_transactions(60)
    open_one.begin_transaction()
    open_one.produce(topics[0], b"", partition=0)
    open_one.flush(60)
    try:
        assert main([*replay, "--drain"]) == 0
    finally:
        open_one.abort_transaction(60)
    printed = capsys.readouterr()
    # Lines are wrapped where the terminal ends.
    assert "a transaction is open from offset" in " ".join((printed.err + printed.out).split())
    assert_joined(spark, str(tmp_path / "enriched"), expected_join(history))
    found = committed(servers, "cli-avro-lag", *topics)
    assert sum(max(0, each) for each in found.values()) == len(history.trades) + len(history.customers)


def test_without_confluent_kafka_it_is_said_what_to_install(tmp_path):
    program = "import sys; sys.modules['confluent_kafka'] = None\nfrom cojoin.__main__ import main\nsys.exit(main())"
    ended = subprocess.run(
        [sys.executable, "-c", program, *words("localhost:1", tmp_path)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert 'pip install "cojoin[kafka]"' in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
