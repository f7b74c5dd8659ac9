"""A driver on one of separate hosts: ``python hosts_driver.py MASTER JOBS [ENDPOINT]``, jobs as JSON.

A job names the places: ``inputs``, ``output``, ``checkpoint``; with an endpoint some are on a server of S3's protocol.
It prints a line of JSON for each: the error with which the query was refused or ended, or what it counted.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cojoin as cj
from tests.servers.jars import s3_jars
from tests.servers.s3 import settings_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def session(master: str, executors: int = 2, conf: dict[str, Any] | None = None) -> SparkSession:
    """Start the session, and wait until its executors are there."""
    shared = {
        "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": JAVA,
        "spark.executor.extraJavaOptions": JAVA,
        "spark.driver.host": socket.gethostname(),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # as the workers write it
    }
    spark = cj.spark_session("hosts", master=master, conf=shared | (conf or {}))
    spark.sparkContext.setLogLevel("ERROR")
    deadline = time.monotonic() + 90
    while (found := spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1) < executors:
        assert time.monotonic() < deadline, f"{found} executors after 90 s"
        time.sleep(0.1)
    return spark


def inputs(folder: str, kind: str) -> cj.ConnectedInputs:
    """Connect the folder's trades with its customers, as files or as Delta tables."""

    def read(name: str, schema: str) -> cj.Input:
        path = f"{folder}/{name}"
        options = {"maxFilesPerTrigger": 2}
        source = (
            cj.sources.delta(path, options=options)
            if kind == "delta"
            else cj.sources.files(path, "parquet", schema=schema, options=options)
        )
        return cj.Input(source, key="customer_id", event_time="event_time", name=name)

    trades = read("trades", "trade_id long, customer_id string, event_time timestamp, amount double")
    return cj.connect(trades, read("customers", "customer_id string, event_time timestamp, tier string"), key_groups=4)


def start(job: dict[str, Any], trigger: cj.Trigger) -> cj.Query:
    """Start the job's query."""
    kind, _, place = job["output"].partition(":")
    others = {name: getattr(cj.sinks, kind)(other) for name, other in job.get("others", {}).items()}
    joined = inputs(job["inputs"], job.get("kind", "files")).asof_join()
    return joined.start(output=getattr(cj.sinks, kind)(place), checkpoint=job["checkpoint"], trigger=trigger, **others)


def run(spark: SparkSession, job: dict[str, Any]) -> dict[str, Any]:
    """Run the job's query to its end, and return what it counted."""
    started = time.perf_counter()
    query = start(job, cj.Trigger.available_now(drain=True))
    took = time.perf_counter() - started
    query.await_termination(progress=False)
    progress = query.progress
    assert progress is not None
    if "copy_to" in job:
        spark.read.format("delta").load(job["output"].partition(":")[2]).write.parquet(job["copy_to"])
    return {"conserved": progress.is_conserved, "drained": progress.drained, "start": took}


def run_live(job: dict[str, Any]) -> None:
    """Run the query while files come, one a second, until all are there and read; say when the first batch is done.

    With ``seconds`` all files are there, and it runs so long.
    """
    query = start(job, cj.Trigger.processing_time("1 second"))
    coming = sorted(Path(job["inputs"], "coming").glob("*"))
    end = time.monotonic() + job.get("seconds", 0)
    while query.is_active and (coming or time.monotonic() < end):
        if coming:
            coming[0].rename(Path(job["inputs"], "trades", coming.pop(0).name))
        time.sleep(1)
        if query.batches:
            tell("running")
    query.stop()
    error = query.exception()
    if error is not None:
        raise error


def tell(what: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def main(master: str, text: str, endpoint: str = "") -> None:
    of_s3 = {"spark.jars": ",".join(map(str, s3_jars()))} if endpoint else {}
    of_s3 |= {f"spark.hadoop.{name}": value for name, value in settings_for(endpoint).items()} if endpoint else {}
    spark = session(master, 0 if master.startswith("local") else 2, of_s3)
    for job in json.loads(text):
        spark.conf.set("spark.cojoin.output", "spark" if job.get("by_spark") else "direct")
        if job.get("kind") == "delta":
            make_tables(job["inputs"])
        try:
            if job.get("live"):
                run_live(job)
            said = run(spark, job)
        except cj.CojoinError as error:
            said = {"error": type(error).__name__, "message": str(error)}
        tell(json.dumps(said))
    spark.stop()


def make_tables(folder: str) -> None:
    """Make Delta tables of small files that this host alone has, as somebody does who works without the cluster."""
    program = """
import sys
import cojoin as cj
spark = cj.spark_session("tables", master="local[1]")
for name in ("trades", "customers"):
    rows = spark.read.parquet(f"{sys.argv[1]}/../inputs/{name}")
    rows.limit(9).write.format("delta").save(f"{sys.argv[1]}/{name}")
"""
    subprocess.run([sys.executable, "-c", program, folder], check=True, capture_output=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
