"""``cojoin run`` on files and Delta tables, within the tests' session."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cojoin.__main__ import main
from cojoin.checkpoints.manifest import Manifests
from cojoin.cli.demo import _joined, admitted, compare, expected_rows, make_day
from cojoin.cli.jobs import job_text
from cojoin.session.sessions import open_store

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark

OWN = """
import os
from pathlib import Path

import cojoin as cj
import job
from tiers import Tiers

LAKE = Path(os.environ["LAKE"])
archive = cj.sinks.parquet(LAKE / "archive")
login = {"sasl.password": "hunter2"}

def count(frame, batch_id):
    (LAKE / f"rejected {batch_id}").write_text(str(frame.count()))

def tiers(prefix="", groups="1"):
    streams = cj.connect(job.TRADES, job.CUSTOMERS, key_groups=int(groups))
    return streams.process(Tiers(prefix), "trade_id long, tier string")

def streams_of_spark(spark):
    frame = job.enriched(spark).to_dataframe()
    frame.writeStream.format("noop").queryName("own").start()
    return job.enriched(spark)
"""

TIERS = """
import cojoin as cj

class Tiers(cj.KeyedCoProcessFunction):
    def __init__(self, prefix):
        self.prefix = prefix

    def open(self, ctx):
        self.tier = ctx.get_state(cj.ValueStateDescriptor("tier", "string"))

    def process_element1(self, trade, ctx):
        yield trade.trade_id, self.prefix + (self.tier.value() or "none")

    def process_element2(self, customer, ctx):
        self.tier.update(customer.tier)
        return ()
"""


@pytest.fixture
def lake(tmp_path, monkeypatch):
    """A day's files, and job files beside them."""
    make_day(200, 5).write(tmp_path)
    write_jobs(tmp_path)
    monkeypatch.setenv("LAKE", str(tmp_path))
    return tmp_path


def write_jobs(folder: Path) -> None:
    for name, text in (("job", job_text("files", "job.py")), ("own", OWN), ("tiers", TIERS)):
        (folder / f"{name}.py").write_text(text)


def words(folder: Path, *more: str, job: str = "job.py:enriched", output: str = "delta:{}/enriched") -> list[str]:
    place = output.format(folder)
    return ["run", f"{folder}/{job}", f"--output={place}", f"--checkpoint={folder / 'checkpoint'}", *more]


def assert_as_pandas_has_it(spark, folder: Path, joined_rows: int | None = None) -> None:
    """Compare the output with that of merge_asof over the files, up to the watermark of the last batch."""
    plan = _joined(folder).plan
    last = Manifests(open_store(spark, str(folder / "checkpoint"))).last()
    left, right = (admitted(pq.read_table(folder / spec.name), spec) for spec in plan.inputs)
    expected = expected_rows(plan.operation, plan.inputs, (left, right), last.report.watermark)
    found = spark.read.format("delta").load(str(folder / "enriched")).toArrow()
    assert compare(expected, found).is_equal
    assert expected.num_rows > 0
    assert joined_rows in (None, expected.num_rows)


def test_a_job_pauses_goes_on_and_drains(spark, tmp_path, monkeypatch, capsys):
    """A first half, checked where it pauses; the rest, drained and checked. The job is the file of ``cojoin init``."""
    make_day(2_000, 5).write(tmp_path)
    write_jobs(tmp_path)
    monkeypatch.setenv("LAKE", str(tmp_path))
    for name in ("trades", "customers"):
        (tmp_path / "later" / name).mkdir(parents=True)
        for file in sorted((tmp_path / name).iterdir())[3:]:
            file.rename(tmp_path / "later" / name / file.name)
    run = words(tmp_path)
    assert main(run) == 0
    first = capsys.readouterr()
    assert f"Running asof_join() of trades with customers into delta:{tmp_path}/enriched" in " ".join(first.out.split())
    assert "Paused: " in first.out
    assert "or with --drain, which ends" in " ".join(first.out.split())
    assert "Nothing is lost" in first.out
    last = first.err.splitlines()[-1]
    assert re.search(r" behind the newest record, .*\btrades \S+.*, customers \S+.*, 1 batch, 1,\d{3} rows, ", last)
    assert_as_pandas_has_it(spark, tmp_path)

    for name in ("trades", "customers"):
        for file in (tmp_path / "later" / name).iterdir():
            file.rename(tmp_path / name / file.name)
    assert main([*run, "--drain"]) == 0
    second = capsys.readouterr()
    assert "Drained" in second.out
    assert "drain=True" not in first.out + second.out
    assert_as_pandas_has_it(spark, tmp_path, 1_995)

    assert main(run) == 2
    assert "was drained" in capsys.readouterr().err


def test_a_function_of_the_users_with_sinks_by_name(spark, lake, capsys):
    """A class of a module beside the file goes to the workers as it is here; an argument is set; a sink is named."""
    run = words(lake, "--set=prefix=the ", "--rejected=count", "--name=nightly", job="own.py:tiers", output="archive")
    assert main([*run, "--drain"]) == 0, capsys.readouterr().err
    rows = pa.Table.from_pylist(spark.read.parquet(f"{lake}/archive/*").toArrow().to_pylist())
    assert rows.num_rows == 198  # two have no event time
    tiers = set(rows["tier"].to_pylist())
    assert "the none" in tiers
    assert tiers <= {"the none", "the bronze", "the silver", "the gold", "the platinum"}
    assert len(tiers) > 2
    assert sum(int(file.read_text()) for file in lake.glob("rejected *")) == 2
    assert "Drained" in capsys.readouterr().out


@pytest.mark.slow
def test_files_that_spark_passes_over_are_noted(spark, lake, capsys):
    run = words(lake)
    assert main(run) == 0
    assert "Note: " not in "".join(capsys.readouterr())
    old = lake / "trades" / "copied.parquet"
    old.write_bytes(min((lake / "trades").iterdir()).read_bytes())
    os.utime(old, (1_000_000_000,) * 2)
    assert main(run) == 0
    # Lines are as wide as the terminal.
    printed = " ".join("".join(capsys.readouterr()).split())
    assert f"Note: input 'trades': Spark passes over 1 file of {lake}" in printed


@pytest.mark.slow
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_is_answered_at_once(lake, presses):
    """Slow: a process and a Spark of its own. A live run ends in order, or with a second Ctrl-C at once; with 130."""
    run = words(lake, "--every=1 second", "--master=local[2]", "--conf=spark.driver.host=127.0.0.1")
    process = subprocess.Popen(
        [sys.executable, "-m", "cojoin", *run],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, deadline = "", time.monotonic() + 300
        while not list((lake / "checkpoint").glob("manifest/0*0.json")):
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
            assert "Stopped. The same command continues from the checkpoint." in said
        assert "Traceback" not in said
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (('key="customer_id"', 'key="custmer_id"'), "no key column 'custmer_id'; did you mean 'customer_id'?"),
        (('asof_join(how="left")', 'asof_join(how="outer")'), "how: expected 'left' or 'inner'"),
        (('return streams.asof_join(how="left")', "return streams"), "got ConnectedInputs"),
    ],
)
def test_a_mistake_in_the_job_is_one_message_with_its_line(spark, lake, capsys, edit, told):
    text = job_text("files", "job.py")
    assert edit[0] in text
    (lake / "job.py").write_text(text.replace(*edit))
    assert main(words(lake)) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"cojoin: {lake}/job.py:enriched: ")
    assert told in err
    assert re.search(rf"\({lake}/job.py:\d+(, in enriched)?\)$", err.strip())
    assert "Traceback" not in err
    assert not (lake / "checkpoint").exists()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--output=archiv"], "--output archiv: {}/own.py has no 'archiv'; did you mean 'archive'?"),
        (["--rejected=login"], "--rejected login: expected a sink, such as cojoin.sinks.kafka(...), or a function"),
        (["--set=sufix=x"], "--set sufix: the function has no such argument"),
        (["--set=groups=none"], "it raised ValueError: invalid literal for int()"),
        (["--set=groups=0"], "key_groups: expected a whole number from 1 to 32768, got 0 ({}/own.py:17, in tiers)"),
    ],
)
def test_a_mistake_in_an_option_is_one_message(spark, lake, capsys, more, told):
    assert main(words(lake, *more, job="own.py:tiers")) == 2
    err = capsys.readouterr().err
    assert told.format(lake) in err
    assert "hunter2" not in err
    assert not (lake / "checkpoint").exists()


def test_a_stream_of_sparks_own_is_not_started_either(spark, lake, capsys):
    assert main(words(lake, job="own.py:streams_of_spark")) == 2
    assert "own.py:streams_of_spark: a query is started while the job is loaded" in capsys.readouterr().err
    assert [query.name for query in spark.streams.active if query.name == "own"] == []
