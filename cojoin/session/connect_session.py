"""A session of Spark Connect, whose JVM is a server's: it is asked by SQL, by texts of plans, and by files.

The server may be on another host, and calls the function of ``foreachBatch`` in a process next to itself.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.session.classic_session import stopped
from cojoin.session.session_adapter import SessionAdapter, changed_settings
from cojoin.session.spark_errors import first_line, names_missing_table
from cojoin.storage.file_systems import direct_store
from cojoin.storage.locations import is_path, literally, without_login

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.session.session_adapter import StreamSource
    from cojoin.storage.store import Store

_CHECKED: set[str] = set()
"""The sessions whose servers were asked for their version."""

_TASKS: dict[str, int] = {}
"""The number of tasks that run at the same time, by session."""

_SIZE, _UNITS = re.compile(r"Statistics\(sizeInBytes=([\d.E+]+) ([KMGTPE]?)i?B"), ("", *"KMGTPE")
"""The size of a plan in its text, and the units of 1024 bytes."""

_STREAM = re.compile(r"^[\s:+\-|~]*Streaming\w*Relation\w*", re.MULTILINE)


def plan_text(frame: DataFrame, mode: str) -> str:
    """Return what ``DataFrame.explain`` prints in a mode such as ``"extended"`` or ``"cost"``."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        frame.explain(mode=mode)
    return printed.getvalue()


class ConnectSession(SessionAdapter):
    """A session of Spark Connect."""

    runs_batches: ClassVar[bool] = False
    has_local_properties: ClassVar[bool] = False
    copies_settings: ClassVar[bool] = False
    has_listeners: ClassVar[bool] = False
    shares_paths: ClassVar[bool] = False

    @property
    def application_id(self) -> str:
        """The session's own id."""
        session: Any = self.spark
        return str(session.session_id)

    @property
    def is_stopped(self) -> bool:
        """Whether the session was stopped."""
        session: Any = self.spark
        return bool(session.is_stopped)

    @property
    def workers(self) -> str:
        """The session's workers as a message names them."""
        return "the Spark Connect server's workers"

    def check(self, label: str) -> None:
        """Check that the server answers, and that it is of this process's version."""
        if self.is_stopped:
            raise stopped(label)
        if self.application_id in _CHECKED:
            return
        try:
            server = str(self.spark.version)
        except PySparkException as error:
            msg = (
                f"{label}: its Spark Connect server does not answer: {first_line(error)}; see that it runs, and "
                f"connect again"
            )
            raise ConfigurationError(msg) from error
        client = pyspark.__version__
        if server.split(".")[:2] != client.split(".")[:2]:
            msg = (
                f"{label}: its Spark Connect server is of version {server}, and PySpark in this process of version "
                f"{client}; install pyspark=={server}, since functions are sent to the server as they are in this "
                f"process"
            )
            raise ConfigurationError(msg)
        _CHECKED.add(self.application_id)

    def check_delta(self) -> None:
        """Do nothing: the server has the classes, and reports itself what it lacks."""

    def check_checkpoint(self, files: Store) -> None:
        """Check that the server sees the files that this process writes into a checkpoint.

        A process next to the server writes the batches. It would start from an empty directory on the server's side.
        """
        name, text = f"server-check-{uuid.uuid4().hex}", uuid.uuid4().hex
        files.write(name, text)
        try:
            seen: Any = self.spark.read.text(literally(files.path(name))).first()
            reason = "it finds no such file"
        except PySparkException as error:
            seen, reason = None, first_line(error)
        finally:
            files.delete(name)
        if seen is None or seen[0] != text:
            msg = (
                f"{files.named}: the Spark Connect server does not see the files that this process writes "
                f"to it: {reason}. Choose a directory that both reach by the same path: on an object store, or on a "
                f"file system that they share"
            )
            raise ConfigurationError(msg)

    def is_set(self, name: str) -> bool:
        """Return whether a setting was set explicitly."""
        return name in self.setting_names()

    def setting_names(self) -> list[str]:
        """Return the names of all settings that were set explicitly."""
        return [row.key for row in self.spark.sql("SET").collect()]

    def hadoop_setting(self, name: str) -> str | None:
        """Return a setting of Hadoop's that Spark's own configuration sets; None if it is not set."""
        value = self.spark.conf.get(f"spark.hadoop.{name}", None)
        return None if value is None or value == "" else str(value)

    @contextlib.contextmanager
    def with_settings(self, settings: Mapping[str, str]) -> Iterator[SparkSession]:
        """Yield the session itself with the settings, which are put back afterwards."""
        with changed_settings(self.spark, settings):
            yield self.spark

    def parallel_tasks(self) -> int:
        """Return how many tasks run at the same time."""
        if self.application_id not in _TASKS:
            # Spark Connect does not expose it, but a range has that many partitions.
            tasks = self.spark.range(0, 1 << 20).select(F.spark_partition_id().alias("task"))
            _TASKS[self.application_id] = max(1, int(tasks.distinct().count()))
        return _TASKS[self.application_id]

    def executors(self) -> frozenset[str]:
        """Return nothing: they are not known."""
        return frozenset()

    @property
    def has_child_workers(self) -> bool:
        """False: they are the server's."""
        return False

    def open_store(self, root: str, label: str) -> Store:
        """Return the files below a directory, which this process reaches without Spark."""
        store = direct_store(root, self.object_store_settings, label)
        if store is None:
            msg = (
                f"{label} {without_login(root)!r}: a session of Spark Connect can't reach it; expected a "
                f"local path that the server shares, or an object store's whose settings are in Spark's configuration: "
                f"s3a:// for S3, abfss:// for Azure, gs:// for Google"
            )
            raise CheckpointError(msg)
        return store

    def local_path(self, location: str) -> str | None:
        """Return None: whether a path is the same folder to the server is not known."""
        del location
        return None

    def local_file_manager(self) -> str | None:
        """Return None: the classes of the server are not known."""
        return None

    def table_location(self, table: str) -> str | None:
        """Return the folder of a Delta table; None where no table has the name."""
        if is_path(table):
            return table
        try:
            row = self.spark.sql(f"DESCRIBE DETAIL {table}").select("location").first()
        except PySparkException as error:
            if names_missing_table(error):
                return None
            raise
        return None if row is None else str(row[0])

    def plan_bytes(self, frame: DataFrame) -> int:
        """Return the size of a static DataFrame in bytes according to the text of its plan."""
        size = _SIZE.search(plan_text(frame, "cost"))
        return sys.maxsize if size is None else int(float(size[1]) * 1024 ** _UNITS.index(size[2] or ""))

    def runs_python(self, frame: DataFrame) -> bool:
        """Return True: it is assumed."""
        del frame
        return True

    def parquet_files(self, frame: DataFrame, most: int) -> list[str] | None:
        """Return None: the workers may be where the server is."""
        del frame, most
        return None

    def stream_sources(self, frame: DataFrame) -> list[StreamSource | None]:
        """Return None for each stream in the text of the plan."""
        text = plan_text(frame, "extended")
        analyzed = text.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]
        return [None] * len(_STREAM.findall(analyzed))

    def planned_metadata(self, files: Store) -> str:
        """Return the line of metadata that Spark plans in a query made for this alone."""
        name = f"control/shown-{uuid.uuid4().hex}"
        rows = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        writer = rows.writeStream.format("noop").option("checkpointLocation", files.path(name))
        query = writer.trigger(once=True).start()
        try:
            query.awaitTermination()
            line = (files.read(f"{name}/offsets/0") or "").split("\n")[1]
        finally:
            files.delete_directory(name)
        return json.dumps({**json.loads(line), "batchTimestampMs": int(1000 * time.time())})

    def add_listener(self, awaited: object, take: object) -> NoReturn:
        """Refuse it: the JVM is a server's."""
        raise NotImplementedError

    def await_listeners(self, milliseconds: int) -> NoReturn:
        """Refuse it: the session has no listeners."""
        raise NotImplementedError
