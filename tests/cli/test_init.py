"""``cojoin init`` writes a file that runs as it is where its data is: here tables and topics; files in ``test_run``."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from cojoin.__main__ import main
from cojoin.cli.demo import make_day
from cojoin.cli.jobs import job_text, loaded
from cojoin.cli.options import parse_arguments, secrets_of
from tests.kafka.history import make_producer
from tests.kafka.sink.committed import read_committed


@pytest.mark.parametrize("kind", ["files", "delta", "kafka"])
def test_a_file_is_written_once_and_can_be_loaded(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["init", f"--{kind}"] if kind != "files" else ["init"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert (tmp_path / "job.py").read_text() == job_text(kind, "job.py")
    with loaded(("job.py", "enriched")) as module:
        assert callable(module.enriched)
    # The commands that it prints and has are accepted.
    for text in (out, module.__doc__):
        command = next(line for line in text.splitlines() if "cojoin run" in line).split()[1:]
        assert parse_arguments(command, secrets_of(command)).job == ("job.py", "enriched")
    assert main(words) == 2
    assert "cojoin: job.py: it can't be written: it exists; choose another name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["job"], "job: expected the name of a Python file, such as job.py"),
        (["my-job.py"], "my-job.py: expected the name of a Python file"),
        (["no/such/job.py"], "no/such/job.py: it can't be written: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_written(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", *words]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.spark
@pytest.mark.slow
def test_the_file_for_delta_tables_runs(spark, tmp_path, monkeypatch, capsys):
    make_day(300, 5).write(tmp_path / "files")
    for name in ("trades", "customers"):
        spark.read.parquet(f"{tmp_path}/files/{name}").write.format("delta").save(f"{tmp_path}/{name}")
    monkeypatch.setenv("LAKE", str(tmp_path))
    file = tmp_path / "job.py"
    assert main(["init", "--delta", str(file)]) == 0
    run = ["run", f"{file}:enriched", f"--output=parquet:{tmp_path}/out", f"--checkpoint={tmp_path}/checkpoint"]
    assert main([*run, "--drain"]) == 0, capsys.readouterr().err
    assert spark.read.parquet(f"{tmp_path}/out/*").count() == 300 - rejected(tmp_path)


def rejected(folder):
    trades = pq.read_table(folder / "files" / "trades").to_pandas()
    return int((trades["customer_id"].isna() | trades["event_time"].isna()).sum())


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.kafka
def test_the_file_for_topics_runs_into_a_topic(spark, broker, tmp_path, monkeypatch, capsys):
    servers = broker.bootstrap_servers
    failed: list = []
    producer = make_producer(servers, failed)
    make_day(500, 6).write(tmp_path / "files")
    text = job_text("kafka", "job.py").replace('"enriched", key', '"init-enriched", key')
    broker.create_topic("init-enriched", 1)
    for name in ("trades", "customers"):
        broker.create_topic(f"init-{name}", 2)
        text = text.replace(f'topic("{name}"', f'topic("init-{name}"')
        rows = spark.read.parquet(f"{tmp_path}/files/{name}").selectExpr("to_json(struct(*), map('timeZone', 'UTC'))")
        for number, row in enumerate(rows.collect()):
            producer.produce(f"init-{name}", row[0], partition=number % 2)
    assert (producer.flush(60), failed) == (0, [])
    (tmp_path / "job.py").write_text(text)
    monkeypatch.setenv("KAFKA", servers)
    run = ["run", f"{tmp_path}/job.py:enriched", "--output=enriched_topic", f"--checkpoint={tmp_path}/checkpoint"]
    assert main([*run, "--drain", "--set=since=2020-01-01"]) == 0, capsys.readouterr().err
    values = [record.json for record in read_committed(servers, "init-enriched")]
    assert len({value["trade_id"] for value in values}) == len(values) == 500 - rejected(tmp_path)
