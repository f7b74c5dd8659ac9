"""Every notebook's source runs from top to bottom, and what is shown in the repository was made from it.

The sources run in the session of all tests, for a kernel and a Spark each take long; ``notebooks/build.py`` has them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import jupytext
import matplotlib as mpl
import pytest

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
SOURCES = sorted(FOLDER.glob("[0-9]*.py"))


def execute(source, names):
    for number, cell in enumerate(jupytext.read(source).cells):
        if cell.cell_type == "code":
            exec(compile(cell.source, f"{source.name}, cell {number}", "exec"), names)


def needs_spark(source):
    return "spark_session(" in source.read_text("utf-8")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", [each for each in SOURCES if not needs_spark(each)], ids=lambda path: path.stem)
def test_a_notebook_without_spark_runs(source, monkeypatch):
    mpl.use("agg")
    monkeypatch.chdir(FOLDER)
    execute(source, {"__name__": "__main__", "display": print})


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", [each for each in SOURCES if needs_spark(each)], ids=lambda path: path.stem)
def test_a_notebook_runs(source, spark, monkeypatch, request):
    mpl.use("agg")
    if '"KAFKA"' in source.read_text("utf-8"):
        monkeypatch.setenv("KAFKA", request.getfixturevalue("broker").bootstrap_servers)
    monkeypatch.chdir(FOLDER)
    files = spark._jvm.org.apache.hadoop.fs.FileSystem.getLocal(spark._jsc.hadoopConfiguration())
    before, change = files.getWorkingDirectory(), os.chdir

    def change_both(folder):
        change(folder)
        files.setWorkingDirectory(spark._jvm.org.apache.hadoop.fs.Path(str(Path(folder).resolve())))

    # A notebook's Spark starts where its kernel is; this one runs already.
    monkeypatch.setattr(os, "chdir", change_both)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    shown = []
    names = {"__name__": "__main__", "display": shown.append}
    try:
        execute(source, names)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
        files.setWorkingDirectory(before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_is_made_from_its_source(source):
    made, shown = jupytext.read(source), jupytext.read(source.with_suffix(".ipynb"))
    assert [(cell.cell_type, cell.source) for cell in shown.cells] == [
        (cell.cell_type, cell.source) for cell in made.cells
    ]
    text = source.with_suffix(".ipynb").read_text("utf-8")
    assert "/tmp/" not in text
    assert "/home/" not in text


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_shows_tables_and_pictures_and_no_error(source):
    cells = json.loads(source.with_suffix(".ipynb").read_text("utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert {"text/html", "image/png"} <= {kind for output in outputs for kind in output.get("data", {})}
    assert not [output for output in outputs if output["output_type"] == "error"]
