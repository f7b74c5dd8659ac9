"""A session with its driver JVM on this host; py4j also calls what PySpark does not offer publicly."""

from __future__ import annotations

import contextlib
import json
import re
import time
from typing import TYPE_CHECKING, Any, ClassVar

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from cojoin.errors import ConfigurationError, EnvironmentSetupError
from cojoin.session.hadoop_store import HadoopStore, qualified
from cojoin.session.jvm import ExecutionListener, java_class, java_session
from cojoin.session.session_adapter import FILE_MANAGER, SessionAdapter, StreamSource
from cojoin.session.spark_errors import SPARK_ERRORS
from cojoin.session.versions import DELTA_SETTINGS, delta_package, has_delta, java_fault, no_delta, spark_version
from cojoin.storage.file_systems import FILE, direct_store
from cojoin.storage.locations import is_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from cojoin.storage.store import Store

_WITH_DELTA: set[str] = set()
"""The applications whose JVMs have Delta's classes."""

_CHECKED: set[str] = set()
"""The applications whose Java version was checked."""

_BUILD = re.compile(r"delta-spark_(?:(\d+\.\d+)_)?2\.\d+-(\d+\.\d+)")
"""The version of Spark in the name of Delta's jar, where it has one, and Delta's."""

_BUILT_FOR = {"4.0": "4.0", **{f"3.{minor}": "3.5" for minor in range(4)}}
"""The Spark of those versions of Delta whose jars' names lack it."""

_PLAIN_FILE = re.compile(r"file:(/(?!\.{1,2}(/|$))[^/]+)+")
_LOCAL_FILES = "fs.file.impl"
_LOCAL_CLASSES = frozenset({"LocalFileSystem", "RawLocalFileSystem"})

_LISTING_OPTIONS = frozenset({"path", "paths", "pathglobfilter", "modifiedbefore", "modifiedafter"})
"""Options of a reader of parquet files, in lower case, that decide which files are read, and not how."""

_PROJECT, _COLUMN = (
    f"org.apache.spark.sql.catalyst.{name}" for name in ("plans.logical.Project", "expressions.AttributeReference")
)
_RELATION, _FILES, _PARQUET = (
    f"org.apache.spark.sql.execution.datasources.{name}"
    for name in ("LogicalRelation", "HadoopFsRelation", "parquet.ParquetFileFormat")
)
"""The classes in the plan of a DataFrame of parquet files."""

# Spark 4.1 moved the classes of its offset and commit logs.
_LOGS = "org.apache.spark.sql.execution.streaming" + ("" if pyspark.__version__[:4] == "4.0." else ".checkpointing")


class ClassicSession(SessionAdapter):
    """A session with its driver JVM on this host, which py4j calls."""

    runs_batches: ClassVar[bool] = True
    has_local_properties: ClassVar[bool] = True
    copies_settings: ClassVar[bool] = True
    has_listeners: ClassVar[bool] = True
    shares_paths: ClassVar[bool] = True

    @property
    def application_id(self) -> str:
        """The id of the application that the session belongs to."""
        return str(self.spark.sparkContext.applicationId)

    @property
    def is_stopped(self) -> bool:
        """Whether the session was stopped."""
        try:
            return bool(self._context.isStopped())
        except Py4JError:
            # The JVM itself has ended.
            return True

    @property
    def workers(self) -> str:
        """The session's workers as a message names them."""
        return f"the workers of {self.spark.sparkContext.master}"

    def check(self, label: str) -> None:
        """Check that the session is a ``SparkSession`` that was not stopped, on a Java that Spark supports."""
        if not isinstance(self.spark, SparkSession):
            msg = f"{label}: expected a SparkSession, got {type(self.spark).__name__}"
            raise ConfigurationError(msg)
        if self.is_stopped:
            raise stopped(label)
        self._check_java(label)

    def _check_java(self, label: str) -> None:
        """Check the Java of the driver, once; that of other hosts is not known."""
        if self.application_id in _CHECKED:
            return
        version = str(java_class(self.spark, "java.lang.System").getProperty("java.version"))
        fault = java_fault(version, f"{label}: the Java of its Spark session")
        if fault is not None:
            raise EnvironmentSetupError(fault)
        _CHECKED.add(self.application_id)

    def check_delta(self) -> None:
        """Check that the JVM has Delta's classes, built for its version of Spark."""
        if self.application_id in _WITH_DELTA:
            return
        catalog, version = DELTA_SETTINGS["spark.sql.catalog.spark_catalog"], self.spark.version
        try:
            source = self._loader().loadClass(catalog).getProtectionDomain().getCodeSource()
        except Py4JJavaError:
            if not has_delta(version):
                raise no_delta(version) from None
            package = delta_package(version)
            msg = (
                f"this Spark {version} has no Delta: expected the jars of {package}, found no {catalog}; "
                f"start the program with spark-submit --packages {package}, or, without access to a Maven repository, "
                f"with --jars and that package's jars. Make its session with cojoin.spark_session(), or with "
                f"the settings spark.sql.extensions={DELTA_SETTINGS['spark.sql.extensions']} and "
                f"spark.sql.catalog.spark_catalog={catalog}. In a plain Python program, "
                f"cojoin.spark_session() fetches the package itself"
            )
            raise EnvironmentSetupError(msg) from None
        _check_build(version, "" if source is None else str(source.getLocation()))
        _WITH_DELTA.add(self.application_id)

    def check_checkpoint(self, files: Store) -> None:
        """Do nothing: Spark's driver is on this host and reaches the same directories as this process."""

    def is_set(self, name: str) -> bool:
        """Return whether a setting was set explicitly."""
        return bool(self._java.conf().contains(name))

    def setting_names(self) -> list[str]:
        """Return the names of all settings that were set explicitly."""
        # All names in one call: with one call per name it would take a tenth of a second.
        return str(self._java.conf().getAll().keySet().mkString("\n")).splitlines()

    def hadoop_setting(self, name: str) -> str | None:
        """Return a setting of Hadoop's; None if it is not set."""
        value = self._context.hadoopConfiguration().get(name)
        return None if value is None or value == "" else str(value)

    @contextlib.contextmanager
    def with_settings(self, settings: Mapping[str, str]) -> Iterator[SparkSession]:
        """Yield a copy of the session, with the settings."""
        copy = SparkSession(self.spark.sparkContext, self._java.cloneSession())
        for name, value in settings.items():
            copy.conf.set(name, value)
        yield copy

    def parallel_tasks(self) -> int:
        """Return how many tasks run at the same time."""
        return max(1, int(self.spark.sparkContext.defaultParallelism))

    def executors(self) -> frozenset[str]:
        """Return the addresses of the driver and of the executors that it knows."""
        status = self._context.getExecutorMemoryStatus()
        return frozenset(str(status.keySet().mkString("\n")).splitlines())

    @property
    def has_child_workers(self) -> bool:
        """Whether all workers are children of this process's Spark."""
        return not self.has_other_hosts

    def open_store(self, root: str, label: str) -> Store:
        """Return the files below a directory, which Spark resolves first, unless it is a plain ``file:`` path."""
        if _PLAIN_FILE.fullmatch(root) is None:
            root = qualified(self.spark, root, label)
        is_direct = not root.startswith(FILE) or self._has_usual_files()
        store = direct_store(root, self.object_store_settings, label) if is_direct else None
        return store or HadoopStore(self.spark, root, label)

    def local_path(self, location: str) -> str | None:
        """Return a location as a path of the local file system; None if its scheme is not ``file``."""
        if _PLAIN_FILE.fullmatch(location) is not None:
            return location.removeprefix(FILE)
        path = java_class(self.spark, "org.apache.hadoop.fs.Path")(location)
        uri = path.getFileSystem(self._hadoop()).makeQualified(path).toUri()
        return str(uri.getPath()) if uri.getScheme() == "file" else None

    def local_file_manager(self) -> str | None:
        """Return the class, if this version of Spark has it, and Hadoop's settings choose nothing of their own."""
        name = f"{_LOGS}.FileSystemBasedCheckpointFileManager"
        if any(self.hadoop_setting(each) is not None for each in (FILE_MANAGER, _LOCAL_FILES)):
            return None
        try:
            self._loader().loadClass(name)
        except Py4JJavaError:
            return None
        return name

    def table_location(self, table: str) -> str | None:
        """Return the folder of a table, which need not exist; None where the catalog can't resolve its name."""
        if is_path(table):
            return table
        state = self._java.sessionState()
        try:
            if self.spark.catalog.currentCatalog() != "spark_catalog":
                # Only the catalog itself could resolve the name.
                return None
            identifier = state.sqlParser().parseTableIdentifier(table)
            catalog = state.catalog()
            if catalog.tableExists(identifier):
                location = catalog.getTableMetadata(identifier).location()
            else:
                location = catalog.defaultTablePath(identifier)
            # A Path's text has a blank for the URI's %20.
            return str(java_class(self.spark, "org.apache.hadoop.fs.Path")(location).toString())
        except SPARK_ERRORS:
            # The catalog is of another kind, or the name is wrong; opening the table then raises the error.
            return None

    def plan_bytes(self, frame: DataFrame) -> int:
        """Return the size of a static DataFrame in bytes, as Spark estimates it."""
        return int(_plans(frame).optimizedPlan().stats().sizeInBytes())

    def runs_python(self, frame: DataFrame) -> bool:
        """Return whether the plan of a DataFrame contains a Python function."""
        pattern = java_class(self.spark, "org.apache.spark.sql.catalyst.trees.TreePattern").PYTHON_UDF()
        return bool(_plans(frame).analyzed().containsPattern(pattern))

    def parquet_files(self, frame: DataFrame, most: int) -> list[str] | None:
        """Return the files, if the plan is a relation of Spark's parquet reader, and columns of it are selected."""
        level = frame.storageLevel
        if level.useMemory or level.useDisk or not self._has_usual_files():
            return None
        try:
            plan = _plans(frame).analyzed()
            while _class_of(plan) == _PROJECT:
                columns = plan.projectList()
                if any(_class_of(columns.apply(at)) != _COLUMN for at in range(columns.size())):
                    return None
                plan = plan.child()
            if _class_of(plan) != _RELATION or _class_of(plan.relation()) != _FILES:
                return None
            relation = plan.relation()
            options = str(relation.options().keySet().mkString("\n")).lower().splitlines()
            is_plain = relation.partitionSchema().isEmpty() and set(options) <= _LISTING_OPTIONS
            stored = json.loads(relation.dataSchema().json())["fields"]
            has_own_metadata = any(column["name"].lower() == "_metadata" for column in stored)
            if not is_plain or has_own_metadata or _class_of(relation.fileFormat()) != _PARQUET:
                return None
            # A plan that is made of a cached one has none.
            files = frame._jdf.inputFiles()  # noqa: SLF001 - all names at once may take many seconds
            return [str(files[at]) for at in range(len(files))] if len(files) <= most else None
        except Py4JError:
            return None

    def stream_sources(self, frame: DataFrame) -> list[StreamSource | None]:
        """Return the sources of the streams that the plan of a DataFrame reads, in order."""
        leaves = _plans(frame).analyzed().collectLeaves()
        nodes = [leaves.apply(at) for at in range(leaves.size())]
        return [_stream_source(leaf) for leaf in nodes if leaf.isStreaming()]

    def planned_metadata(self, files: Store) -> str:
        """Return the metadata line that Spark would write to the offset log for a new query's first batch now."""
        del files
        # Only Spark knows which settings a query keeps from its first batch on.
        metadata = java_class(self.spark, f"{_LOGS}.OffsetSeqMetadata")
        entry = json.loads(metadata.apply(0, int(1000 * time.time()), self._java.conf()).json())
        settings = entry["conf"].items()
        entry["conf"] = {name: self.spark.conf.get(name, value) if value is None else value for name, value in settings}
        return json.dumps(entry)

    def add_listener(self, awaited: Callable[[], Sequence[str]], take: Callable[[str, dict[str, Any]], None]) -> None:
        """Register a listener that is called after each action of the session; see ``ExecutionListener``."""
        ensure_callback_server_started(self.spark.sparkContext._gateway)  # noqa: SLF001 - as foreachBatch does
        self._java.listenerManager().register(ExecutionListener(awaited, take))

    def await_listeners(self, milliseconds: int) -> None:
        """Wait until the listeners were called for all actions that have ended."""
        self._context.listenerBus().waitUntilEmpty(milliseconds)

    @property
    def _java(self) -> Any:
        return java_session(self.spark)

    @property
    def _context(self) -> Any:
        """The JVM's ``SparkContext``."""
        return self._java.sparkContext()

    def _has_usual_files(self) -> bool:
        """Return whether one of the classes of Hadoop itself reads local files."""
        local = self.hadoop_setting(_LOCAL_FILES)
        return local is None or local.rpartition(".")[2] in _LOCAL_CLASSES

    def _loader(self) -> Any:
        """Return the class loader that has Spark's classes and those of its packages."""
        return java_class(self.spark, "java.lang.Thread").currentThread().getContextClassLoader()

    def _hadoop(self) -> Any:
        """Return Hadoop's configuration with the session's own settings."""
        return self._java.sessionState().newHadoopConf()


def _plans(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution()  # noqa: SLF001 - PySpark has no public way to a plan


def _class_of(thing: Any) -> str:
    return str(thing.getClass().getName())


def _stream_source(leaf: Any) -> StreamSource | None:
    """Return the source of a leaf of an analysed plan; None if the leaf has no ``DataSource``."""
    try:
        name, entries, options = str(leaf.sourceName()), leaf.dataSource().options().iterator(), {}
        while entries.hasNext():
            option = entries.next()
            options[str(option._1()).lower()] = str(option._2())  # noqa: SLF001 - Scala's names
    except Py4JError:
        return None
    return StreamSource(name, options)


def stopped(label: str) -> ConfigurationError:
    """Return the error for a session that was stopped."""
    return ConfigurationError(
        f"{label}: its Spark session was stopped; make a new one with cojoin.spark_session(), and new DataFrames in it"
    )


def _check_build(version: str, jar: str) -> None:
    """Check by the name of Delta's jar that it is built for this version of Spark; an unknown name is accepted."""
    names = _BUILD.search(jar)
    built = None if names is None else names[1] or _BUILT_FOR.get(names[2])
    if built is None or built == spark_version(version):
        return
    if not has_delta(version):
        raise no_delta(version)
    msg = (
        f"Delta's jar {jar.rpartition('/')[2]} is built for Spark {built}, and this session is of Spark {version}; "
        f"start the session with the package {delta_package(version)} instead of this jar"
    )
    raise EnvironmentSetupError(msg)
