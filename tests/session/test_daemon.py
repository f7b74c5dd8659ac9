"""The workers of a local session share what the daemon has imported, from the folder of the installed PySpark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from cojoin.session.daemon import installed_folders


def test_only_archives_of_an_installed_pyspark_have_a_folder(tmp_path: Path) -> None:
    archive = tmp_path / "site-packages" / "pyspark" / "python" / "lib" / "pyspark.zip"
    paths = ["", "/opt/spark/python/lib/pyspark.zip", str(archive), f"{archive.parent}/py4j-0.10.9.9-src.zip"]
    assert installed_folders(paths) == []
    archive.parent.mkdir(parents=True)
    (tmp_path / "site-packages" / "pyspark" / "daemon.py").touch()
    assert installed_folders(paths) == [f"{tmp_path}/site-packages"]


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
    (installed,) = installed_folders(paths)
    archive = next(position for position, each in enumerate(paths) if each.endswith("pyspark.zip"))
    assert installed not in paths[:archive], "the path is as Spark has made it"
