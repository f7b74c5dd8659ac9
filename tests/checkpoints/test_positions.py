"""What a source no longer has is told before a query goes on with it: as a loss with its size, or as an end."""

from __future__ import annotations

import json
import shutil
import uuid
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from cojoin.checkpoints.files import CheckpointFiles
from cojoin.checkpoints.outputs import open_log
from cojoin.checkpoints.positions import check_position, with_losses_accepted
from tests.kafka.topics import delete_records, fill
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

pytestmark = pytest.mark.spark

WHAT = "input 'trades'"
TOPIC = "aged-out"


@pytest.fixture(scope="module")
def aged_out(spark: SparkSession, broker: Broker) -> dict[str, str]:
    """The options of a topic of two partitions of 8 records, of whose first the broker has deleted 5."""
    broker.create_topic(TOPIC, 2)
    fill(spark, broker.bootstrap_servers, TOPIC, [str(number) for number in range(16)], [0] * 8 + [1] * 8)
    delete_records(spark, broker.bootstrap_servers, TOPIC, 5)
    return {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": TOPIC}


def position(*offsets: int, topic: str = TOPIC) -> str:
    return json.dumps({topic: {str(number): offset for number, offset in enumerate(offsets)}}, separators=(",", ":"))


@pytest.mark.kafka
def test_records_that_kafka_has_deleted_are_counted(spark: SparkSession, aged_out: dict[str, str]) -> None:
    kafka = (spark, WHAT, "kafka", TOPIC, aged_out)
    assert check_position(*kafka, position(5, 8)) == []
    assert with_losses_accepted(*kafka, position(5, 8)) == position(5, 8)
    assert check_position(*kafka, position(2, 3)) == [
        "input 'trades': topic aged-out partition 0: 3 records are gone (offsets 2 to 4)"
    ]
    assert with_losses_accepted(*kafka, position(2, 3)) == position(5, 3)
    assert check_position(*kafka, None) == check_position(*kafka, "-") == []


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("offset", "said"),
    [
        (position(8, 9), "topic aged-out partition 1 ends at offset 8, before the checkpoint's 9: the topic was made"),
        (position(8, 8, 1), "has 2 partitions and no partition 2, which the checkpoint has read"),
        (position(8, topic="trades-of-old"), "has read topic 'trades-of-old', which the source no longer names"),
        ('{"logOffset', "is not in the form of Spark's offset log; got '{\"logOffset'"),
    ],
)
def test_a_topic_that_is_another_is_refused(
    spark: SparkSession, aged_out: dict[str, str], offset: str, said: str
) -> None:
    with refused("input 'trades': ", said, kind=cj.CheckpointError):
        check_position(spark, WHAT, "kafka", TOPIC, aged_out, offset)


@pytest.mark.kafka
def test_a_topic_that_is_gone_is_refused(spark: SparkSession, aged_out: dict[str, str]) -> None:
    options = aged_out | {"subscribe": "aged-outt"}
    with refused("no longer has topic 'aged-outt'", "did you mean 'aged-out'?", kind=cj.CheckpointError):
        check_position(spark, WHAT, "kafka", "aged-outt", options, position(8, topic="aged-outt"))


@pytest.mark.kafka
def test_a_broker_that_does_not_answer_is_told_without_secrets(spark: SparkSession) -> None:
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.default.api.timeout.ms": "1500",
        "kafka.request.timeout.ms": "1000",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "hunter2",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required password='pass';",
    }
    with pytest.raises(cj.CheckpointError) as caught:
        check_position(spark, WHAT, "kafka", TOPIC, options, position(1))
    message = str(caught.value)
    assert message.startswith("input 'trades': 127.0.0.1:1 does not tell its topics' offsets: ")
    assert "hunter2" not in message
    assert "pass" not in message
    assert caught.value.__cause__ is None


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of the versions 0 to 3, a row each but for the last, which removes the row of the first."""
    folder = tmp_path_factory.mktemp("positions") / "trades"
    for trade_id in range(3):
        spark.range(trade_id, trade_id + 1, 1, 1).write.format("delta").mode("append").save(str(folder))
    spark.sql(f"DELETE FROM delta.`{folder}` WHERE id = 0")
    return folder


def at(spark: SparkSession, table: Path, version: int, *, in_snapshot: bool = False, table_id: str = "") -> str:
    table_id = table_id or open_log(spark, str(table)).unsafeVolatileSnapshot().metadata().id()
    position = {"sourceVersion": 1, "reservoirId": table_id, "reservoirVersion": version, "index": -1}
    return json.dumps(position | {"isStartingVersion": in_snapshot}, separators=(",", ":"))


def test_commits_that_are_gone_from_a_log_are_a_loss(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    folder = copied(table, tmp_path)
    delta = (spark, WHAT, "delta", str(folder), {})
    assert check_position(*delta, at(spark, folder, 0)) == []
    assert check_position(*delta, at(spark, folder, 4)) == [], "the version to come"
    assert check_position(*delta, at(spark, folder, 1, in_snapshot=True)) == []
    open_log(spark, str(folder)).checkpoint()
    for version in range(2):
        (folder / "_delta_log" / f"{version:020d}.json").unlink()
    assert check_position(*delta, at(spark, folder, 1)) == [
        f"input 'trades': Delta table {folder}: version 1 is gone from the log"
    ]
    assert check_position(*delta, at(spark, folder, 0)) == [
        f"input 'trades': Delta table {folder}: versions 0 to 1 are gone from the log"
    ]
    assert check_position(*delta, at(spark, folder, 2)) == []
    with refused("has read a part of its version 0, and its commits are gone", kind=cj.CheckpointError):
        check_position(*delta, at(spark, folder, 0, in_snapshot=True))

    # Delta's own source takes the position: it goes on with what is there.
    moved = with_losses_accepted(*delta, at(spark, folder, 0))
    assert moved == at(spark, folder, 2)
    files = CheckpointFiles(spark, f"{tmp_path}/checkpoint")
    files.write("metadata", json.dumps({"id": str(uuid.uuid4())}))
    # Twice: at the start of a checkpoint's only batch, Delta's source would look for what came before it.
    for batch_id in range(2):
        files.write(f"offsets/{batch_id}", f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":5,"conf":{{}}}}\n{moved}')
        files.write(f"commits/{batch_id}", 'v1\n{"nextBatchWatermarkMs":0}')
    stream = spark.readStream.format("delta").option("skipChangeCommits", "true").load(str(folder))
    found: list[int] = []
    writer = stream.writeStream.foreachBatch(lambda frame, _: found.extend(row.id for row in frame.collect()))
    writer.option("checkpointLocation", files.root).trigger(availableNow=True).start().awaitTermination()
    assert found == [2]


def test_a_snapshot_whose_files_are_gone_can_not_be_finished(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    folder = copied(table, tmp_path)
    current = {file.rpartition("/")[2] for file in spark.read.format("delta").load(str(folder)).inputFiles()}
    for file in folder.glob("*.parquet"):
        if file.name not in current:
            file.unlink()
    with refused("has read a part of its version 1, and 1 of its 2 files are gone", kind=cj.CheckpointError):
        check_position(spark, WHAT, "delta", str(folder), {}, at(spark, folder, 1, in_snapshot=True))
    assert check_position(spark, WHAT, "delta", str(folder), {}, at(spark, folder, 3, in_snapshot=True)) == []


def test_a_table_that_is_another_is_refused(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    with refused("has read a table of the id 0b8e up to version 2", "replaced by another", kind=cj.CheckpointError):
        check_position(spark, WHAT, "delta", str(table), {}, at(spark, table, 2, table_id="0b8e"))
    with refused("up to version 5; got id ", ", version 3: it was replaced", kind=cj.CheckpointError):
        check_position(spark, WHAT, "delta", str(table), {}, at(spark, table, 5))
    with refused("there is no such table", kind=cj.CheckpointError):
        check_position(spark, WHAT, "delta", f"{tmp_path}/none", {}, at(spark, table, 1))


def test_of_files_nothing_need_be_there(spark: SparkSession) -> None:
    assert check_position(spark, WHAT, "parquet", "/nowhere", {}, '{"logOffset":3}') == []
    assert with_losses_accepted(spark, WHAT, "parquet", "/nowhere", {}, '{"logOffset":3}') == '{"logOffset":3}'


def copied(table: Path, tmp_path: Path) -> Path:
    return shutil.copytree(table, tmp_path / "trades")
