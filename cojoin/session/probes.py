"""Probes of what cojoin uses of Spark and is not public: whether the installed Spark has each name, and it behaves.

``python -m cojoin.session.probes`` starts a small session, prints a line for each probe, and ends with 1 if one fails:
the first thing to do with a new version of Spark. Every private name in this folder has a probe.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.display import text_table
from cojoin.errors import EnvironmentSetupError
from cojoin.session.arrow_types import arrow_schema, spark_schema
from cojoin.session.classic_session import ClassicSession
from cojoin.session.connect_session import ConnectSession
from cojoin.session.hadoop_store import HadoopStore
from cojoin.session.jvm import java_class, java_session
from cojoin.session.launch_settings import find_spark_home
from cojoin.session.sealed import for_workers
from cojoin.session.session_adapter import FILE_MANAGER
from cojoin.session.spark_checkpoint import (
    BATCH_ID_PROPERTY,
    INITIALIZING,
    STATE_COLUMNS,
    await_sources,
    committed_batches,
    load_states,
    planned_lines,
    source_entries,
)
from cojoin.session.spark_errors import (
    SPARK_ERRORS,
    BatchInterruptedError,
    explain,
    names_missing_table,
    names_table_without_columns,
)
from cojoin.storage.local_store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame

_ALL = "4.0"
"""The oldest version that cojoin works with, which has most of these names."""

_WAIT_SECONDS = 30.0
_ERRORS = ("CONCURRENT_STREAM_LOG_UPDATE", "FOREACH_BATCH_USER_FUNCTION_ERROR", "SCHEMA_NOT_FOUND", "STREAM_FAILED")
"""The names of Spark's errors by which cojoin distinguishes failures, and which no probe raises."""

_DELTA_ERRORS = (
    "DELTA_CONCURRENT_APPEND",
    "DELTA_CONCURRENT_DELETE_READ",
    "DELTA_CONCURRENT_TRANSACTION",
    "DELTA_CONCURRENT_WRITE",
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_SCHEMA_CHANGED",
    "DELTA_SOURCE_IGNORE_DELETE",
    "DELTA_SOURCE_TABLE_IGNORE_CHANGES",
    "DELTA_TABLE_NOT_FOUND",
)
"""The same of Delta's."""


class Sample:
    """The subjects of the probes: a session, a stream of files in it, and the logs and the state of a small query."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.adapter = spark, folder, ClassicSession(spark)

    @cached_property
    def stream(self) -> DataFrame:
        """A stream of one folder of files."""
        self.spark.range(4).write.parquet(f"{self.folder}/rows")
        return self.spark.readStream.schema("id long").parquet(f"{self.folder}/rows")

    @cached_property
    def query(self) -> tuple[LocalStore, list[str]]:
        """The checkpoint of a query with state that has run one batch, and the batch's id in its tasks."""
        batches: list[str] = []

        def take(rows: DataFrame, _: int) -> None:
            batches.extend(row.batch for row in rows.collect())

        keyed = self.stream.withColumn("key_group", F.col("id") % 2).groupBy("key_group")
        states = keyed.applyInPandasWithState(
            for_workers(_remember), "batch string", "state binary", "append", "NoTimeout"
        )
        writer = states.writeStream.foreachBatch(take).option("checkpointLocation", f"{self.folder}/checkpoint/spark")
        writer.trigger(availableNow=True).start().awaitTermination()
        return LocalStore(f"{self.folder}/checkpoint"), batches


def _remember(key: Any, frames: Iterable[Any], state: Any) -> Iterator[Any]:
    """Yield the id of the task's batch, and keep the number of the key's rows."""
    rows = sum(len(frame) for frame in frames)
    state.update((str(rows).encode(),))
    batch: Any = TaskContext.get()
    import pandas as pd  # noqa: PLC0415 - in the worker

    del key
    yield pd.DataFrame({"batch": [str(batch.getLocalProperty(BATCH_ID_PROPERTY))]})


@dataclass(frozen=True)
class Probe:
    """Something of Spark that is not public; names that stand or fall together are separated by commas.

    ``since`` is the first version of Spark that cojoin works with and that has it; ``instead`` is empty where nothing
    public can replace it. ``works`` returns whether it exists and behaves; any error means that it does not.
    """

    name: str
    needed_by: str
    since: str
    instead: str
    works: Callable[[Sample], bool]

    def failure(self, sample: Sample) -> str | None:
        """Return why it does not work; None if it does."""
        try:
            return None if self.works(sample) else "it exists, and does something else"
        except SPARK_ERRORS as error:
            return explain(error)
        except Exception as error:  # noqa: BLE001 - whatever is missing raises its own error
            return f"{type(error).__name__}: {error}".partition("\n")[0]


def _session(sample: Sample) -> bool:
    return str(java_session(sample.spark).sparkContext().applicationId()) == sample.adapter.application_id


def _classes(sample: Sample) -> bool:
    return bool(java_class(sample.spark, "java.lang.Long").parseLong("17") == 17)


def _copies(sample: Sample) -> bool:
    name = "spark.sql.caseSensitive"
    with sample.adapter.with_settings({name: "true"}) as copy:
        return (str(copy.conf.get(name)), str(sample.spark.conf.get(name))) == ("true", "false")


def _sizes(sample: Sample) -> bool:
    return 0 < sample.adapter.plan_bytes(sample.spark.range(9)) < sys.maxsize


def _patterns(sample: Sample) -> bool:
    runs = sample.spark.range(1).mapInArrow(for_workers(_same), "id long")
    return sample.adapter.runs_python(runs) and not sample.adapter.runs_python(sample.spark.range(1))


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _leaves(sample: Sample) -> bool:
    (source,) = sample.adapter.stream_sources(sample.stream)
    return source is not None and source.options["path"] == f"{sample.folder}/rows"


def _relations(sample: Sample) -> bool:
    sample.spark.range(4).write.parquet(f"{sample.folder}/static")
    rows = sample.spark.read.parquet(f"{sample.folder}/static")
    files, none = (sample.adapter.parquet_files(each, 99) for each in (rows.select("id"), rows.where("id > 1")))
    return files is not None and len(files) > 0 and none is None


def _plan_texts(sample: Sample) -> bool:
    # The texts of plans are the same in both kinds of sessions.
    texts = ConnectSession(sample.spark)
    return texts.plan_bytes(sample.spark.range(9)) < sys.maxsize and texts.stream_sources(sample.stream) == [None]


def _settings(sample: Sample) -> bool:
    unset = "spark.sql.autoBroadcastJoinThreshold"
    return sample.adapter.is_set("spark.app.id") and not sample.adapter.is_set(unset)


def _catalog(sample: Sample) -> bool:
    return str(sample.adapter.table_location("cojoin_probe")).endswith("/cojoin_probe")


def _hadoop(sample: Sample) -> bool:
    store = HadoopStore(sample.spark, f"{sample.folder}/hadoop")
    store.write_bytes("file", b"content")
    path = sample.adapter.local_path(str(sample.folder))
    return store.read_bytes("file") == b"content" and path == str(sample.folder) and not sample.adapter.encrypts_files()


def _executors(sample: Sample) -> bool:
    return len(sample.adapter.executors()) > 0 and not sample.adapter.is_stopped


def _listeners(sample: Sample) -> bool:
    observed, done = {}, threading.Event()

    def take(name: str, counts: dict[str, Any]) -> None:
        observed[name] = counts
        done.set()

    sample.adapter.add_listener(lambda: ["probe"], take)
    sample.spark.range(3).observe("probe", F.count(F.lit(1)).alias("rows")).collect()
    done.wait(_WAIT_SECONDS)
    sample.adapter.await_listeners(int(1000 * _WAIT_SECONDS))
    return observed == {"probe": {"rows": 3}}


def _file_manager(sample: Sample) -> bool:
    manager = sample.adapter.local_file_manager()
    assert manager is not None
    with sample.adapter.with_settings({FILE_MANAGER: manager}) as copy:
        stream = copy.readStream.format("rate").load().writeStream.format("memory").queryName("cojoin_probe")
        query = stream.option("checkpointLocation", f"{sample.folder}/managed").start()
        try:
            await_sources(query)
            return query.isActive and not str(query.status["message"]).startswith(INITIALIZING)
        finally:
            query.stop()


def _metadata(sample: Sample) -> bool:
    files, _ = sample.query
    lines = planned_lines(files, 0)[1], sample.adapter.planned_metadata(files)
    logged, planned = map(json.loads, lines)
    return bool(logged.keys() == planned.keys() and logged["conf"].keys() == planned["conf"].keys())


def _logs(sample: Sample) -> bool:
    files, _ = sample.query
    read = source_entries(files, 0)
    return committed_batches(files) == [0] and bool(read) and all(each["batchId"] == 0 for each in read)


def _state(sample: Sample) -> bool:
    files, _ = sample.query
    states = load_states(sample.spark, files, 0).selectExpr(*STATE_COLUMNS).collect()
    return sorted((row.label, bytes(row.content)) for row in states) == [(0, b"2"), (1, b"2")]


def _batch_id(sample: Sample) -> bool:
    return set(sample.query[1]) == {"0"}


def _errors(sample: Sample) -> bool:
    missing = _raised(lambda: sample.spark.table("cojoin_no_such_table"))
    return names_missing_table(missing) and _has_errors(sample, "error/error-conditions.json", _ERRORS)


def _interruption(sample: Sample) -> bool:
    begun, ends = threading.Event(), threading.Event()

    def fail(*_: Any) -> None:
        begun.set()
        ends.wait(_WAIT_SECONDS)
        raise BatchInterruptedError

    writer = sample.stream.writeStream.foreachBatch(fail)
    query = writer.option("checkpointLocation", f"{sample.folder}/interrupted").start()
    begun.wait(_WAIT_SECONDS)
    stop = threading.Thread(target=query.stop, daemon=True)
    stop.start()
    while query.isActive:
        time.sleep(0.02)
    ends.set()
    stop.join()
    return query.exception() is None


def _deltas_errors(sample: Sample) -> bool:
    try:
        sample.adapter.check_delta()
    except EnvironmentSetupError:
        return True
    stream = _raised(lambda: sample.spark.readStream.format("delta").load(f"{sample.folder}/no_such_table"))
    return names_table_without_columns(stream) and _has_errors(sample, "error/delta-error-classes.json", _DELTA_ERRORS)


def _raised(call: Callable[[], Any]) -> BaseException:
    error: BaseException = ValueError("it raises no error")
    try:
        call()
    except SPARK_ERRORS as raised:
        error = raised
    return error


def _has_errors(sample: Sample, file: str, names: Iterable[str]) -> bool:
    """Return whether a file with the texts of errors, in the jars, has some by their names."""
    place = java_class(sample.spark, "java.lang.Thread").currentThread().getContextClassLoader().getResource(file)
    known = json.loads(java_class(sample.spark, "org.apache.commons.io.IOUtils").toString(place, "UTF-8"))
    return all(name in known for name in names)


def _pickles(_: Sample) -> bool:
    factor = 7
    times = cloudpickle.loads(cloudpickle.dumps(lambda value: factor * value))
    return bool(times(6) == 42) and "cojoin.session.sealed" in cloudpickle.list_registry_pickle_by_value()


def _types(_: Sample) -> bool:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us"))])
    return bool(arrow_schema(spark_schema(schema)) == schema)


def _launcher(_: Sample) -> bool:
    home = find_spark_home()
    source = inspect.getsource(importlib.import_module("pyspark.java_gateway"))
    reads = all(name in source for name in ("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"))
    return reads and (home / "bin" / "spark-submit").is_file() and (home / "jars").is_dir()


def _workers(_: Sample) -> bool:
    daemon, worker = (importlib.import_module(f"pyspark.{name}") for name in ("daemon", "worker"))
    return callable(daemon.manager) and callable(worker.main)


def _connect(_: Sample) -> bool:
    return importlib.util.find_spec("pyspark.sql.connect.session") is not None


PROBES = (
    Probe("SparkSession._jsparkSession", "everything that asks the JVM", _ALL, "", _session),
    Probe("py4j: JavaClass, JavaObject._gateway_client", "calls of the JVM's classes", _ALL, "", _classes),
    Probe("SparkSession(context, java session)", "time travel with its own setting", _ALL, "", _copies),
    Probe("DataFrame._jdf, QueryExecution", "the size of static inputs", _ALL, "the text of explain", _sizes),
    Probe("catalyst.trees.TreePattern", "limits of Arrow batches by rows alone", _ALL, "to limit by bytes", _patterns),
    Probe("leaves of plans: sourceName, dataSource", "a user's own stream of a Delta table", _ALL, "", _leaves),
    Probe(
        "plans: Project, LogicalRelation, HadoopFsRelation",
        "static files read by workers",
        _ALL,
        "Spark reads them",
        _relations,
    ),
    Probe("the text of explain", "the same with Spark Connect", _ALL, "", _plan_texts),
    Probe("SparkSession.conf of the JVM", "whether a setting is the user's", _ALL, "conf.getAll, slower", _settings),
    Probe("SessionState: sqlParser, catalog", "where a new table will lie", _ALL, "", _catalog),
    Probe("SessionState.newHadoopConf, Hadoop's Path", "HDFS, and paths of workers", _ALL, "", _hadoop),
    Probe("SparkContext of the JVM: isStopped, getExecutorMemoryStatus", "checks of hosts", _ALL, "", _executors),
    Probe(
        "QueryExecutionListener, SparkContext._gateway, pyspark.java_gateway.ensure_callback_server_started",
        "the warning of rejected rows in static joins",
        _ALL,
        "no warning",
        _listeners,
    ),
    Probe(
        "FileSystemBasedCheckpointFileManager, StreamingQuery.status",
        "local checkpoints that are written with fewer programs",
        _ALL,
        "28 milliseconds a file more",
        _file_manager,
    ),
    Probe("OffsetSeqMetadata", "planning a restored query's first batch", _ALL, "a query that shows it", _metadata),
    Probe("logs: offsets, commits, sources", "manifests, restore, drain", _ALL, "", _logs),
    Probe("state store: key.*, value.groupState.state", "savepoints and read_state", _ALL, "", _state),
    Probe("task property streaming.sql.batchId", "the id of a call's batch", _ALL, "a local property", _batch_id),
    Probe("names of errors", "errors distinguished", _ALL, "", _errors),
    Probe("the text of an interruption", "a stop in the midst of a batch", _ALL, "a thousand lines", _interruption),
    Probe("names of Delta's errors, where it has Delta", "Delta's errors distinguished", _ALL, "", _deltas_errors),
    Probe(
        "pyspark.cloudpickle",
        "functions for the workers",
        _ALL,
        "the package cloudpickle",
        _pickles,
    ),
    Probe(
        "pyspark.sql.pandas.types: to_arrow_schema, from_arrow_schema",
        "schemas of Arrow and Spark",
        _ALL,
        "a table of types",
        _types,
    ),
    Probe(
        "PYSPARK_SUBMIT_ARGS, spark-submit",
        "jars and settings of a session",
        _ALL,
        "SPARK_HOME",
        _launcher,
    ),
    Probe("pyspark.daemon.manager, pyspark.worker", "workers that start at once", _ALL, "a second more", _workers),
    Probe("pyspark.sql.connect (a module's name)", "which kind a session is", _ALL, "", _connect),
)
"""All that is used of Spark and is not public."""


def run_probes(spark: SparkSession) -> dict[str, str | None]:
    """Return why each probe fails, by its name; None where it works. The session needs a JVM in this process."""
    with tempfile.TemporaryDirectory(prefix="cojoin-probes-") as folder:
        sample = Sample(spark, Path(folder))
        return {probe.name: probe.failure(sample) for probe in PROBES}


def main() -> int:
    """Run the probes in a new session, print a line for each, and return 1 if one fails."""
    # Spark would use the python3 on PATH, which may lack the packages of this interpreter.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.master("local[2]").appName("cojoin probes")
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR"}
    spark: SparkSession = builder.config(map=settings).getOrCreate()
    try:
        failures = run_probes(spark)
    finally:
        with contextlib.suppress(Exception):
            spark.stop()
    header = ["name", "works", "needed by", "since", "replaced by"]
    rows = [
        [probe.name, "yes" if failures[probe.name] is None else "NO", probe.needed_by, probe.since, probe.instead]
        for probe in PROBES
    ]
    failed = [f"{name}: {why}" for name, why in failures.items() if why is not None]
    sys.stdout.write("\n".join([f"PySpark {pyspark.__version__}", "", text_table([header, *rows]), "", *failed]) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    # The workers import the functions of this module by its name.
    sys.exit(importlib.import_module("cojoin.session.probes").main())
