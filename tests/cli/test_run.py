"""``cojoin run`` on files and Delta tables, within the tests' session."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cojoin.__main__ import main
from cojoin.cli.day import make_day
from tests.kafka.history import make_producer

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    """Half a day's files: trades as parquet, and the rest of them to come later."""
    folder = tmp_path_factory.mktemp("lake")
    made = make_day(2_000, 5)
    made.write(folder)
    for name in ("trades", "customers"):
        (folder / "later" / name).mkdir(parents=True)
        for file in sorted((folder / name).iterdir())[3:]:
            file.rename(folder / "later" / name / file.name)
    return folder


def words(folder, **other: str) -> list[str]:
    given = {
        "left": f"parquet:{folder / 'trades'}",
        "right": f"parquet:{folder / 'customers'}",
        "key": "customer_id",
        "event-time": "event_time",
        "delay": "5 seconds",
        "output": f"delta:{folder / 'enriched'}",
        "checkpoint": str(folder / "checkpoint"),
        "key-groups": "2",
    }
    return ["run", *(f"--{name}={value}" for name, value in {**given, **other}.items())]


def test_a_job_pauses_goes_on_and_drains(spark, day, capsys):
    """A first half, checked where it pauses; the rest, drained and checked."""
    run = words(day)
    assert main([*run, "--verify"]) == 0
    first = capsys.readouterr()
    assert "Paused: " in first.out
    assert "equal, row for row" in first.out
    assert "or with --drain, which ends" in " ".join(first.out.split())
    assert "Some joined rows:" in first.out
    last = first.err.splitlines()[-1]
    assert re.search(r" behind the newest record, .*\btrades \S+.*, customers \S+.*, 1 batch, 1,\d{3} rows, ", last)

    for name in ("trades", "customers"):
        for file in (day / "later" / name).iterdir():
            file.rename(day / name / file.name)
    assert main([*run, "--verify", "--drain", "--show=0"]) == 0
    second = capsys.readouterr()
    assert "equal, row for row, all 1,995." in second.out
    assert "Some joined rows" not in second.out
    assert "Drained" in second.out

    assert main(run) == 2
    assert "was drained" in capsys.readouterr().err


@pytest.mark.slow
def test_files_that_spark_passes_over_are_noted(spark, tmp_path, capsys):
    make_day(200, 5).write(tmp_path)
    run = [*words(tmp_path), "--show=0"]
    assert main(run) == 0
    assert "Note: " not in "".join(capsys.readouterr())
    old = tmp_path / "trades" / "copied.parquet"
    old.write_bytes(min((tmp_path / "trades").iterdir()).read_bytes())
    os.utime(old, (1_000_000_000,) * 2)
    assert main(run) == 0
    # Lines are as wide as the terminal.
    told = " ".join("".join(capsys.readouterr()).split())
    assert f"Note: input 'trades': Spark passes over 1 file of {tmp_path}" in told


@pytest.mark.slow
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_is_answered_at_once(tmp_path, presses):
    """Slow: a process and a Spark of its own. A live run ends in order, or with a second Ctrl-C at once; with 130."""
    make_day(200, 5).write(tmp_path)
    run = [*words(tmp_path), "--every=1 second", "--show=0", "--master=local[2]", "--conf=spark.driver.host=127.0.0.1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "cojoin", *run],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, deadline = "", time.monotonic() + 300
        while not list((tmp_path / "checkpoint").glob("manifest/0*0.json")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        # As a terminal does it: all processes of the group hear of it.
        os.killpg(process.pid, signal.SIGINT)
        pressed = time.monotonic()
        while "Stopping after the work in progress." not in said:
            said += os.read(process.stdout.fileno(), 65_536).decode()
        assert time.monotonic() - pressed < 10
        if presses == 2:
            os.kill(process.pid, signal.SIGINT)
            pressed = time.monotonic()
        assert process.wait(120) == 130
        said += process.stdout.read().decode()
        if presses == 2:
            assert time.monotonic() - pressed < 10
            assert "Stopped at once." in said
        else:
            assert "Stopped. The same command continues from here." in said
        assert "Traceback" not in said
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


@pytest.mark.slow
def test_a_difference_is_shown_and_ends_with_1(spark, day, tmp_path, capsys):
    """A delta source whose output was tampered with."""
    lake = tmp_path / "lake"
    rows = pa.table({"customer_id": [1, 1], "event_time": pa.array([1_000_000, 2_000_000], pa.timestamp("us", "UTC"))})
    (tmp_path / "flat").mkdir()
    pq.write_table(rows.append_column("amount", pa.array([1.0, 2.0])), tmp_path / "flat" / "rows.parquet")
    spark.read.parquet(str(tmp_path / "flat")).write.format("delta").save(str(lake))
    given = {"left": f"delta:{lake}", "right": f"delta:{lake}", "suffixes": ",_then", "tolerance": "1 hour"}
    run = [*words(tmp_path, **given, delay="0 seconds"), "--left-name=trades", "--right-name=customers", "--verify"]
    assert main(run) == 0
    assert "equal, row for row, all 1." in capsys.readouterr().out

    output = spark.read.format("delta").load(str(tmp_path / "enriched"))
    output.limit(1).write.format("delta").mode("append").save(str(tmp_path / "enriched"))
    assert main(run) == 1
    assert "NOT EQUAL; it gives 1 rows, the output has 2." in capsys.readouterr().out


@pytest.mark.kafka
@pytest.mark.slow
def test_a_topic_joins_a_folder(spark, broker, tmp_path, capsys):
    """Customers from Kafka, whose columns carry topic, partition and offset; trades from files."""
    broker.create_topic("run-customers", 2)
    made = make_day(500, 6)
    made.write(tmp_path)
    failed = []
    producer = make_producer(broker.bootstrap_servers, failed)
    for row in (
        spark.read.parquet(str(tmp_path / "customers")).selectExpr("customer_id", "to_json(struct(*))").collect()
    ):
        producer.produce("run-customers", row[1], partition=row.customer_id % 2)
    assert (producer.flush(60), failed) == (0, [])
    right = f"kafka:{broker.bootstrap_servers}/run-customers"
    schema = "customer_id long, event_time timestamp, tier string, credit_limit double"
    run = [*words(tmp_path, right=right), f"--right-schema={schema}", "--drain", "--verify"]
    assert main([*run, "--right-option=client.id=the-run", "--right-from=earliest", "--delay=1 day"]) == 0
    printed = capsys.readouterr().out
    assert "equal, row for row" in printed
    assert "run_customers_event_time" in printed


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"key": "custmer_id"}, "no key column 'custmer_id'; did you mean 'customer_id'?"),
        ({"left": "parquet:/no/such/folder"}, "parquet:/no/such/folder: no schema can be read from there"),
        ({"left": "json:/no/such/folder"}, "json files don't contain their schema"),
    ],
)
def test_a_mistake_in_the_sources_is_one_message(spark, day, tmp_path, capsys, other, said):
    run = words(day, **{"checkpoint": str(tmp_path / "checkpoint"), **other})
    assert main(run) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
