"""``cojoin diff`` as a person and a CI run it: jobs in files and modules, its exit codes, and what it says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from cojoin.__main__ import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JOB = """
import pandas as pd
import cojoin as cj
from scoring import FACTOR, Score

at = lambda *hours: pd.to_datetime([f"2026-01-15 {hour:02}:00" for hour in hours], utc=True)
trades = pd.DataFrame({"customer": [7, 7], "time": at(9, 10), "trade": [1, 2]})
tiers = pd.DataFrame({"customer": [7, 7], "time": at(8, 10), "tier": ["silver", "gold"]})
pair = cj.connect(cj.Input(trades, "customer", "time", "trades"), cj.Input(tiers, "customer", "time", "tiers"))
joined = pair.asof_join()
no_join = 5

def scores():
    return pair.process(Score(), "customer long, trade long, score long")

def strict(suffix="x"):
    return pair.asof_join(allow_exact_matches=False)

def broken():
    raise ValueError("no such day")

def refused():
    return pair.asof_join(how="outer")

def needs(left, right):
    return joined

def on_spark(spark):
    frames = [spark.createDataFrame(each) for each in (trades, tiers)]
    names = ("trades", "tiers")
    inputs = [cj.Input(frame, "customer", "time", name) for frame, name in zip(frames, names)]
    return cj.connect(*inputs, key_groups=2).process(Score(), "customer long, trade long, score long")
"""

SCORING = """
import cojoin as cj

FACTOR = {factor}

class Score(cj.KeyedCoProcessFunction):
    def process_element1(self, row, ctx):
        yield row.customer, row.trade, row.trade * FACTOR

    def process_element2(self, row, ctx):
        return ()
"""


@pytest.fixture
def versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """Two folders with versions of one job, whose modules have the same names; the second is the current one."""
    folders = tmp_path / "main", tmp_path / "branch"
    for factor, folder in enumerate(folders, start=1):
        folder.mkdir()
        (folder / "job.py").write_text(JOB)
        (folder / "scoring.py").write_text(SCORING.format(factor=factor))
    monkeypatch.chdir(folders[1])
    path, modules = list(sys.path), set(sys.modules)
    yield folders
    assert sys.path == path
    assert not {"job", "scoring"} & (set(sys.modules) - modules)


def typed(capsys: Any, *words: str) -> tuple[int, str, str]:
    try:
        code = main(["diff", *words])
    except SystemExit as ended:
        code = int(ended.code or 0)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_equal_versions_end_with_0(versions: Any, capsys: Any) -> None:
    code, out, _ = typed(capsys, "../main/job.py:joined", "job:joined")
    assert code == 0
    assert "a is ../main/job.py:joined, b is job:joined." in out
    assert "No difference: both versions have the same 2 rows." in out


def test_versions_that_differ_end_with_1(versions: Any, capsys: Any, tmp_path: Path) -> None:
    code, out, _ = typed(capsys, "job:joined", "job:strict", "--write", str(tmp_path / "rows"), "--examples", "1")
    assert code == 1
    assert "operation: asof_join() in a, asof_join(allow_exact_matches=False) in b" in out
    assert "Example 1: output, changed: customer=7, time=2026-01-15 10:00:00, trade=2" in out
    written = pq.read_table(tmp_path / "rows" / "output" / "changed")
    assert written.column("trade").to_pylist() == [2]
    code, _, err = typed(capsys, "job:joined", "job:strict", "--write", str(tmp_path / "rows"))
    assert code == 2
    assert "it is a file or a directory that is not empty" in err


def test_each_version_has_the_modules_beside_it(versions: Any, capsys: Any) -> None:
    code, out, _ = typed(capsys, "../main/job.py:scores", "job.py:scores", "--keys", "trade", "--output", "output")
    assert code == 1
    assert "Columns of 'output' that changed: score (2)." in out
    assert "  score: 1 in a, 2 in b" in out


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("job:joind", "job.py has no 'joind'; did you mean 'joined'"),
        ("job:broken", "job:broken: it raised ValueError: no such day ("),
        ("job:refused", "job:refused: how: expected"),
        (
            "job:no_join",
            "job:no_join: expected a join, such as pair.asof_join(), or a function",
        ),
        ("job:needs", "a function with at most one argument without a default, which gets the Spark session"),
        ("nowhere:joined", "loading it raised ModuleNotFoundError: No module named 'nowhere'"),
        ("nowhere.py:joined", "nowhere.py:joined: the file 'nowhere.py' does not exist"),
        ("job", "argument JOB_B: expected MODULE:NAME or FILE.py:NAME"),
    ],
)
def test_mistakes_end_with_2(versions: Any, capsys: Any, job: str, said: str) -> None:
    code, _, err = typed(capsys, "job:joined", job)
    assert code == 2
    assert said in err


def test_an_argument_is_set_in_both_versions(versions: Any, capsys: Any) -> None:
    code, out, _ = typed(capsys, "../main/job.py:strict", "job.py:strict", "--set", "suffix=y")
    assert (code, "both versions have the same 2 rows" in out) == (0, True)
    code, _, err = typed(capsys, "../main/job.py:strict", "job.py:strict", "--set", "sufix=y")
    assert (code, "--set sufix: the function has no such argument; did you mean 'suffix'?" in err) == (2, True)


@pytest.mark.slow  # Two jobs; what a job is and what differs is seen without Spark.
@pytest.mark.spark
def test_jobs_on_spark_get_a_session(spark: Any, versions: Any, capsys: Any) -> None:
    code, out, _ = typed(capsys, "../main/job.py:on_spark", "job.py:on_spark", "--keys", "trade")
    assert code == 1
    assert "Columns of 'output' that changed: score (2)." in out


@pytest.mark.slow  # Two jobs.
@pytest.mark.spark
def test_rows_are_written_to_this_machine_whatever_sparks_default_file_system_is(
    spark: Any, versions: Any, capsys: Any, tmp_path: Path
) -> None:
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    before = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", "nowhere://cluster")
    try:
        words = ("../main/job.py:on_spark", "job.py:on_spark", "--keys", "trade", "--write", str(tmp_path / "my rows"))
        code, _, err = typed(capsys, *words)
    finally:
        hadoop.set("fs.defaultFS", before)
    assert code == 1, err
    assert sorted(pq.read_table(tmp_path / "my rows" / "output" / "changed").column("trade").to_pylist()) == [1, 2]
