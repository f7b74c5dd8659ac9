"""Archives of the classes that a JVM of the tests loads at its start, which it then need not read and parse again.

``python -m tests.servers.class_archives`` makes them next to the interpreter: one of a Spark session that has run a
join, one of a Kafka broker. A session with a short query then takes a sixth less CPU. A JVM with another class path
than the archive's ignores it. (Java's application class data sharing, JEP 350.)
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.servers import QUIET, archive

PROJECT = Path(__file__).parents[2]


def _dump_options(name: str) -> str:
    return f"-XX:ArchiveClassesAtExit={archive(name)} {QUIET}"


def run_session() -> None:
    """Run a join from Delta into Delta in a session whose JVM writes its archive when it ends."""
    import cojoin as cj
    from tests.conftest import JAVA_OPTIONS, SETTINGS
    from tests.servers.jars import kafka_settings

    settings = SETTINGS | kafka_settings()
    settings["spark.driver.extraJavaOptions"] = f"{JAVA_OPTIONS} {_dump_options('spark')}"
    with tempfile.TemporaryDirectory() as folder:
        spark = cj.spark_session("archive", master="local[2]", conf=settings)
        sides = []
        for name in ("trades", "customers"):
            table = f"{folder}/{name}"
            rows = spark.range(100).selectExpr(
                "id % 5 AS id", "timestamp_seconds(id * 60) AS time", f"'x' AS {name}_tier"
            )
            rows.write.format("delta").save(table)
            sides.append(cj.Input(cj.sources.delta(table), key="id", event_time="time", name=name))
        query = (
            cj.connect(*sides)
            .asof_join()
            .start(
                output=cj.sinks.delta(f"{folder}/enriched"),
                checkpoint=f"{folder}/checkpoint",
                trigger=cj.Trigger.available_now(drain=True),
            )
        )
        query.await_termination()
        spark.read.format("delta").load(f"{folder}/enriched").toPandas()
        process = spark.sparkContext._gateway.proc
        spark.stop()
        process.stdin.close()
        process.wait()


def run_broker() -> None:
    """Start and stop a broker that writes its archive when it ends."""
    from tests.servers.broker import Broker

    with Broker(options=_dump_options("kafka").split()) as broker:
        broker.create_topic("archive", 1)
        broker.stop(seconds=120)


def main() -> None:
    """Make both archives; without one, tests take longer and show the same."""
    writers = {"spark": run_session, "kafka": run_broker}
    if len(sys.argv) > 1:
        writers[sys.argv[1]]()
        return
    running = []
    for name in writers:
        # A JVM can't write the archive that it reads.
        archive(name).unlink(missing_ok=True)
        running.append(subprocess.Popen([sys.executable, "-m", "tests.servers.class_archives", name], cwd=PROJECT))
    for process in running:
        process.wait()


if __name__ == "__main__":
    main()
