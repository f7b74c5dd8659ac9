"""A local session's Python processes import the installed PySpark; its workers share what their daemon has imported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from cojoin.session import daemon

_SCRIPT = """
import json
import cojoin as cj

def told(_):
    import gc, sys, pyspark
    return [(pyspark.__file__, gc.get_freeze_count(), "pandas" in sys.modules, sys.path)]

spark = cj.spark_session(master="local[1]", conf={"spark.ui.enabled": "false", "spark.log.level": "ERROR"})
print(json.dumps(spark.sparkContext.parallelize([0], 1).mapPartitions(told).collect()[0]))
"""


@pytest.mark.parametrize(
    ("worker", "imports"), [("pyspark.worker", True), ("pyspark.sql.worker.create_data_source", False)]
)
def test_only_workers_that_execute_tasks_get_all_modules(worker: str, imports: bool) -> None:
    script = """
import sys
import pyspark.daemon
pyspark.daemon.manager = lambda: print("cojoin.spark.batch.call" in sys.modules, "cojoin.session.sealed" in sys.modules)
from cojoin.session.daemon import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script, worker], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(imports), "True"]


_ARCHIVE = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
"""The archive that Spark names in the import path of its processes."""

_SITE = Path(daemon.__file__).with_name("site")


def _answer_of_process(name: str, user_paths: list[Path], archive: Path = _ARCHIVE) -> list[str]:
    """Return the answer of a Python process with the import path that Spark gives to one of this name."""
    paths = os.pathsep.join(map(str, [archive, _SITE, *user_paths]))
    script = """
import os, sys
print("pyspark" in sys.modules, os.environ.get("COJOIN_OF_USER"))
import pyspark
print(pyspark.__file__)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, name],
        env=dict(os.environ, PYTHONPATH=paths),
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout.splitlines()


def test_the_process_of_a_source_imports_the_installed_pyspark() -> None:
    imported, file = _answer_of_process("pyspark.sql.streaming.python_streaming_source_runner", [])
    assert imported == "True None"
    assert Path(file).resolve() == Path(pyspark.__file__).resolve()


def test_other_processes_import_nothing() -> None:
    imported, file = _answer_of_process("a_job", [])
    assert imported == "False None"
    assert "pyspark.zip" in file, "the first of the import path, as without cojoin"


def test_an_archive_without_an_installed_pyspark_is_used_as_it_is(tmp_path: Path) -> None:
    archive = tmp_path / "spark" / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(_ARCHIVE.read_bytes())
    _, file = _answer_of_process("pyspark.daemon", [], archive)
    assert file.startswith(str(archive))


@pytest.mark.parametrize("name", ["pyspark.daemon", "a_job"])
def test_the_users_module_for_the_start_of_python_still_runs(tmp_path: Path, name: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nos.environ['COJOIN_OF_USER'] = str(sys.modules[__name__].__file__ == __file__)\n"
    )
    # Another installation's folder is in the path of a process that a worker starts.
    shutil.copytree(_SITE, tmp_path / "other" / "site")
    imported, _ = _answer_of_process(name, [tmp_path / "other" / "site", tmp_path])
    assert imported.endswith(" True")


_SOURCE_SCRIPT = """
import json, os
import cojoin as cj
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

class Reader(SimpleDataSourceStreamReader):
    def initialOffset(self):
        return {"rows": 0}

    def read(self, start):
        import pyspark
        import of_user
        return iter([(pyspark.__file__, of_user.NAME)] if start["rows"] == 0 else []), {"rows": 1}

    def readBetweenOffsets(self, start, end):
        return iter([])

class Source(DataSource):
    def schema(self):
        return "file string, of_user string"

    def simpleStreamReader(self, schema):
        return Reader()

spark = cj.spark_session(master="local[1]", conf={"spark.ui.enabled": "false", "spark.log.level": "ERROR"})
spark.dataSource.register(Source)
query = spark.readStream.format("Source").load().writeStream.format("memory").queryName("rows").start()
query.processAllAvailable()
print(json.dumps(list(spark.table("rows").first())))
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a session's processes start as Spark starts them")
def test_a_source_in_python_has_the_installed_pyspark_and_the_users_path(tmp_path: Path) -> None:
    (tmp_path / "of_user.py").write_text("NAME = 'mine'\n")
    paths = os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    done = subprocess.run(
        [sys.executable, "-c", _SOURCE_SCRIPT],
        env=dict(os.environ, PYTHONPATH=paths),
        capture_output=True,
        text=True,
        check=True,
    )
    file, of_user = json.loads(done.stdout.splitlines()[-1])
    assert Path(file).resolve() == Path(pyspark.__file__).resolve(), "not of an archive"
    assert of_user == "mine"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the workers are forked from Spark's own daemon")
def test_a_worker_has_the_modules_at_once_and_its_collector_leaves_them_out() -> None:
    """In a session of a process of its own, as a user's; that of the tests has Spark's daemon."""
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    found, frozen, is_there, paths = json.loads(done.stdout.splitlines()[-1])
    assert Path(found).resolve() == Path(pyspark.__file__).resolve(), "not of an archive"
    assert is_there
    assert frozen > 10_000
    installed = str(Path(pyspark.__file__).parents[1])
    archive = next(position for position, each in enumerate(paths) if each.endswith("pyspark.zip"))
    assert installed not in paths[:archive], "the path is as Spark has made it"
