"""``cojoin checkpoints`` as a person types it, within the tests' session."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

import cojoin as cj
from cojoin.__main__ import main
from cojoin.checkpoints.restoration import Restoration
from cojoin.storage.local_store import LocalStore
from tests.checkpoints.lakes import asof_lake
from tests.spark.data import CUSTOMERS_DDL, TRADES_DDL, Folders, asof

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def lake(spark, tmp_path_factory):
    return asof_lake(tmp_path_factory.mktemp("typed"))


@pytest.fixture
def typed(lake, capsys):
    def typed(action: str, *options: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(["checkpoints", action, lake.checkpoint, *options]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return typed


def test_list_is_a_table(lake, typed):
    out = typed("list").splitlines()
    assert out[0] == f"{lake.checkpoint}: asof join of 'trades' with 'customers', 3 key groups"
    assert out[1] == "newest batch 1, watermark 2024-03-01 07:01:19.999"
    assert out[3].split() == (
        ["batch", "kind", "taken", "at", "(UTC)", "watermark", "(UTC)", "key", "groups", "rows", "size", "written"]
    )
    assert [line.split()[:2] for line in out[5:]] == [["0", "checkpoint"], ["1", "checkpoint"]]
    first, second = json.loads(typed("list", "--json"))
    assert (first["batch_id"], second["rows"], second["key_groups"]) == (0, 4, 3)


def test_show_has_positions_and_versions(lake, typed):
    out = typed("show", "--at", "1")
    assert "batch 1, a checkpoint taken at " in out
    assert f'  trades, parquet file:{lake.root / "trades"}: {{"logOffset":1}}' in out
    assert f"  output: delta {lake.output} at version 1, last written in batch 1" in out
    assert "1 null_key" in out
    assert out.rstrip().endswith("no query runs on the checkpoint")
    values = json.loads(typed("show", "--json", "--at", "0"))
    assert (values["sources"][1]["input"], values["outputs"]["output"]["version"], values["lease"]) == (
        "customers",
        0,
        None,
    )


def test_show_names_the_checkpoint_from_which_one_was_restored(lake, tmp_path, capsys):
    copy = str(tmp_path / "copy")
    shutil.copytree(lake.checkpoint, copy)
    Restoration("s3a://user:secret@lake/former", 7, []).write(LocalStore(copy))
    assert main(["checkpoints", "show", copy]) == 0
    assert ", run 1, restored from batch 7 of s3a://***@lake/former\n" in capsys.readouterr().out
    assert main(["checkpoints", "show", copy, "--json"]) == 0
    restored = json.loads(capsys.readouterr().out)["restored_from"]
    assert restored == {"checkpoint": "s3a://***@lake/former", "batch_id": 7}


def test_a_query_that_has_no_snapshot_yet_is_shown_all_the_same(spark, lake, tmp_path, capsys):
    for name in ("trades", "customers"):
        (tmp_path / name).mkdir()
    empty = asof(Folders(tmp_path).connect(spark, key_groups=2))
    checkpoint = str(tmp_path / "checkpoint")
    query = empty.start(
        output=cj.sinks.delta(f"{tmp_path}/out"), checkpoint=checkpoint, trigger=cj.Trigger.available_now()
    )
    query.await_termination()
    capsys.readouterr()
    assert main(["checkpoints", "show", checkpoint]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        f"{checkpoint}: asof join of 'trades' with 'customers', 2 key groups\nno batch is finished yet"
    )
    assert "no snapshots: one is taken at every --checkpoint-interval" in out
    assert main(["checkpoints", "show", checkpoint, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"batch_id": None, "newest_batch": None, "lease": None}
    assert main(["checkpoints", "progress", checkpoint]) == 0
    assert capsys.readouterr().out == "no batch is finished yet\n"
    # What was asked for by its number is not there.
    assert main(["checkpoints", "show", checkpoint, "--at", "3"]) == 2
    assert "no snapshot of batch 3 exists; it has none" in capsys.readouterr().err


@pytest.mark.slow
def test_state_is_a_summary_a_key_or_a_part(typed):
    assert "customers, versions in force" in typed("state")
    assert "    trade_id=3, customer_id=1" in typed("state", "--key", "1", "--at", "0")
    assert json.loads(typed("state", "--key", "1", "--json"))["versions"][0]["version"] == 3
    assert {row["version"] for row in json.loads(typed("state", "--name", "versions", "--json"))} == {2, 3}
    assert "the watermark" in typed("state", "--name", "trades")
    assert json.loads(typed("state", "--name", "keys", "--json"))[0] == {"customer_id": 1, "rows": 3}
    assert "--name: the state has no part 'trade'; did you mean 'trades'?" in typed("state", "--name", "trade", code=2)
    assert "--key customer_id: expected a value of the type int64, got 'x'" in typed("state", "--key", "x", code=2)
    assert "no state of batch 9; it has snapshots of batches 0, 1" in typed("state", "--at", "9", code=2)


def test_progress_is_a_row_a_batch(typed):
    lines = typed("progress").splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["0", "1"]
    assert "2024-03-01 07:01:19.999" in lines[3]
    assert "customers" in lines[3]
    (row,) = json.loads(typed("progress", "--limit", "1", "--json"))
    assert (row["batch_id"], row["inputs"][0]["rejected"]) == (1, {"late": 1, "null_key": 1})


@pytest.mark.slow
@pytest.mark.parametrize("action", ["list", "show", "progress"])
def test_what_only_reads_files_starts_no_spark(lake, typed, action):
    command = [sys.executable, "-m", "cojoin", "checkpoints", action, lake.checkpoint]
    environment = {**os.environ, "PATH": "/nowhere", "JAVA_HOME": "/nowhere"}
    for options in ([], ["--json"]):
        alone = subprocess.run([*command, *options], capture_output=True, text=True, env=environment, check=True)
        assert alone.stdout == typed(action, *options)
        assert alone.stderr == ""


@pytest.mark.parametrize("setting", ["spark.hadoop.fs.defaultFS=hdfs://lake", "spark.cojoin.storage=hadoop"])
def test_what_only_hadoop_knows_is_left_to_a_session(lake, setting):
    command = [sys.executable, "-m", "cojoin", "checkpoints", "list", lake.checkpoint, "--conf", setting]
    environment = {**os.environ, "PATH": "/nowhere", "JAVA_HOME": "/nowhere"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode
    assert "Java" in done.stderr


def test_explain_says_it(typed):
    out = typed("explain", "--input", "trades", "--row", "trade_id=6")
    assert "10.001 s behind." in " ".join(out.split())
    at = "event_time=2024-03-01T07:01:30"
    values = json.loads(typed("explain", "--input", "trades", "--row", "trade_id=6", "--row", at, "--json"))
    assert values["findings"][0]["kind"] == "buffered"
    assert "expected a key" in typed("explain", code=2)
    early = typed("explain", "--input", "trades", "--row", "event_time=0000-01-01 09:00", code=2)
    assert "--row event_time: expected a value of the type timestamp[us, tz=UTC], got '0000-01-01 09:00'" in early


def test_savepoint_then_clean_keeps_it(lake, typed):
    told = " ".join(typed("savepoint").split())
    assert "Kept the state after batch 1: 4 rows." in told
    assert f"`cojoin run JOB --restore-from {lake.checkpoint} --at 1 ...` begins a new query with it." in told
    assert json.loads(typed("list", "--json"))[1]["kind"] == "savepoint"
    assert "the query's next snapshot builds on that of batch 1" in typed("clean", "--batch", "1", code=2)
    assert "has no snapshot of batch 7; it has those of batches 0, 1" in typed("clean", "--batch", "7", code=2)
    assert typed("clean", "--keep", "1") == "Nothing to remove; kept: 0, 1.\n"
    assert "Would remove the snapshots of batches 0; kept: 1." in typed("clean", "--batch", "0", "--dry-run")
    assert len(json.loads(typed("list", "--json"))) == 2


JOB = f"""
import os
import cojoin as cj

WATERMARK = cj.WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")

def folder(name, ddl):
    source = cj.sources.files(os.environ["LAKE"] + "/" + name, "parquet", schema=ddl)
    columns = {{"key": "customer_id", "event_time": "event_time", "sequence": "position"}}
    return cj.Input(source, name=name, watermark=WATERMARK, **columns)

def enriched(spark):
    streams = cj.connect(folder("trades", "{TRADES_DDL}"), folder("customers", "{CUSTOMERS_DDL}"), key_groups=5)
    return streams.asof_join(suffixes=("", "_customer"))
"""


@pytest.mark.slow
def test_a_restore_is_a_run_from_there(spark, lake, typed, capsys, tmp_path, monkeypatch):
    """The rest of the rows comes into another table, from a state cut into other key groups; the old one is cleaned."""
    (tmp_path / "job.py").write_text(JOB)
    monkeypatch.setenv("LAKE", str(lake.root))
    run = ["run", f"{tmp_path}/job.py:enriched", f"--output=delta:{tmp_path / 'again'}", "--checkpoint-interval=1"]
    new = f"--checkpoint={tmp_path / 'new'}"
    assert main([*run, new, "--restore-from", lake.checkpoint, "--at=0", "--drain"]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert f"Beginning with the snapshot at 0 of {lake.checkpoint} ..." in " ".join(out.split())
    assert "Drained: all inputs are finished." in out
    again = spark.read.format("delta").load(str(tmp_path / "again"))
    assert sorted((row.trade_id, row.version) for row in again.collect()) == [(3, 3), (6, 4)]

    assert main([*run, "--restore-from", str(tmp_path / "nothing"), f"--checkpoint={tmp_path / 'other'}"]) == 2
    assert "the directory does not exist" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    assert "Removed the snapshots of batches 0, " in typed("clean", "--batch", "0")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list"], "the following arguments are required: PATH"),
        (["lst", "/lake/c"], "invalid choice: 'lst'"),
        (["clean", "/lake/c"], "one of the arguments --keep --batch is required"),
        (["clean", "/lake/c", "--keep", "0"], "expected a whole number of 1 or more, got '0'"),
        (["state", "/lake/c", "--at", "noon"], "expected a batch's number, or a time with its zone"),
    ],
)
def test_a_mistake_is_one_message(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["checkpoints", *words])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) <= 3


def test_what_is_no_checkpoint_is_one_message(spark, tmp_path, capsys):
    assert main(["checkpoints", "list", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "so it is not a checkpoint of cojoin's" in err
    assert "Traceback" not in err
