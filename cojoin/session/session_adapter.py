"""One interface over the two kinds of Spark sessions: with a JVM in this process, and of Spark Connect.

All other code uses the adapter of its session (``sessions.adapter_of``): attributes for the abilities of the session,
and methods, which both kinds implement, for everything else. No other code checks which kind a session is.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from cojoin.installed_packages import check_packages
from cojoin.storage.locations import without_login
from cojoin.storage.object_store_settings import settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.storage.object_store_settings import Settings
    from cojoin.storage.store import Store

_STORAGE = "spark.cojoin.storage"
_ENCRYPTION = "parquet.crypto.factory.class"
"""The Hadoop setting by which Spark encrypts the parquet files that it writes."""


class StreamSource(NamedTuple):
    """A source that the plan of a DataFrame reads as a stream: Spark's name of its format, such as ``"delta"``.

    The names of its options are in lower case.
    """

    format: str
    options: Mapping[str, str]


FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
"""The setting of the class by which Spark writes the files of a checkpoint."""


@contextlib.contextmanager
def changed_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set settings of a session itself during the block; a query that is started in it keeps them."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, former in before.items():
            if former is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, former)


class SessionAdapter(ABC):
    """A Spark session, of either kind."""

    runs_batches: ClassVar[bool]
    """Whether the function of ``foreachBatch`` is called in the process that starts a query."""

    has_local_properties: ClassVar[bool]
    """Whether a job's tasks can be given properties (``SparkContext.setLocalProperty``)."""

    copies_settings: ClassVar[bool]
    """Whether ``with_settings`` gives them to a copy of the session; else its other statements have them meanwhile."""

    has_listeners: ClassVar[bool]
    """Whether ``add_listener`` and ``await_listeners`` can be called."""

    shares_paths: ClassVar[bool]
    """Whether a local path is always the same directory or file for Spark as for this process."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    @property
    @abstractmethod
    def application_id(self) -> str:
        """The id of the application that the session belongs to; with Spark Connect, the session's own id."""

    @property
    @abstractmethod
    def is_stopped(self) -> bool:
        """Whether the session was stopped."""

    @property
    @abstractmethod
    def workers(self) -> str:
        """The session's workers as a message names them, such as ``"the workers of local[2]"``."""

    @abstractmethod
    def check(self, label: str) -> None:
        """Check that this is a Spark session that works; ``label`` names its owner, such as ``"input 'trades'"``.

        Raises ``ConfigurationError`` for any other object, a stopped session, or a server that does not answer or has
        another version.
        """

    @abstractmethod
    def check_delta(self) -> None:
        """Raise ``EnvironmentSetupError`` with the package if Delta can't be used.

        Without Delta's classes, the first use of a table would fail with a Java stack trace.
        """

    @abstractmethod
    def check_checkpoint(self, files: Store) -> None:
        """Raise ``ConfigurationError`` unless Spark sees the files that this process writes into a checkpoint."""

    @abstractmethod
    def is_set(self, name: str) -> bool:
        """Return whether a setting was set explicitly; PySpark's own API does not distinguish that from a default."""

    @abstractmethod
    def setting_names(self) -> list[str]:
        """Return the names of all settings that were set explicitly."""

    @abstractmethod
    def hadoop_setting(self, name: str) -> str | None:
        """Return a setting of Hadoop's, such as ``fs.s3a.endpoint``; None if it is not set.

        With Spark Connect, only the settings in Spark's own configuration are known.
        """

    @abstractmethod
    def with_settings(self, settings: Mapping[str, str]) -> AbstractContextManager[SparkSession]:
        """Return a context manager for a session that has some settings; this session's are the same after it."""

    @abstractmethod
    def parallel_tasks(self) -> int:
        """Return how many tasks run at the same time: Spark's default parallelism, usually the number of cores."""

    @abstractmethod
    def executors(self) -> frozenset[str]:
        """Return the addresses of the driver and of its registered executors; none with Spark Connect."""

    @property
    @abstractmethod
    def has_child_workers(self) -> bool:
        """Whether all Python workers are on this process's host, as its Spark's children, and so have its packages."""

    @property
    def has_other_hosts(self) -> bool:
        """Whether the workers may be on other hosts, or have other disks, than the driver."""
        master = str(self.spark.conf.get("spark.master", ""))
        return master != "local" and not master.startswith("local[")

    @abstractmethod
    def open_store(self, root: str, label: str) -> Store:
        """Return the store of the files below a directory; see ``sessions.open_store``."""

    @abstractmethod
    def local_path(self, location: str) -> str | None:
        """Return a location as a local path that every worker reaches; None where it is not local."""

    @abstractmethod
    def local_file_manager(self) -> str | None:
        """Return Spark's class that writes a checkpoint's local files with fewer programs; None for its usual one."""

    def encrypts_files(self) -> bool:
        """Return whether Spark encrypts the parquet files that it writes."""
        return bool(self.hadoop_setting(_ENCRYPTION) or self.spark.conf.get(_ENCRYPTION, None))

    @abstractmethod
    def table_location(self, table: str) -> str | None:
        """Return the folder of a table, which is a path (with a ``/``) or a table's name; None without such a table.

        With a JVM in this process, a table that does not exist yet has a folder, too.
        """

    @abstractmethod
    def plan_bytes(self, frame: DataFrame) -> int:
        """Return the size of a static DataFrame in bytes, as Spark estimates it; ``sys.maxsize`` if it is unknown."""

    @abstractmethod
    def runs_python(self, frame: DataFrame) -> bool:
        """Return whether the plan of a DataFrame may contain a Python function."""

    @abstractmethod
    def parquet_files(self, frame: DataFrame, most: int) -> list[str] | None:
        """Return the URIs of the parquet files whose rows a static DataFrame has as they are, at most so many; or None.

        It may have fewer columns than the files, and it is not cached. None with Spark Connect.
        """

    @abstractmethod
    def stream_sources(self, frame: DataFrame) -> list[StreamSource | None]:
        """Return the sources of the streams that the plan of a DataFrame reads, in order.

        Each has one line in Spark's offset log. None stands for an unknown source: one that is not of version 1 of
        Spark's data source API (``DataSource``), and every source with Spark Connect.
        """

    @abstractmethod
    def planned_metadata(self, files: Store) -> str:
        """Return the line of metadata with which Spark would plan a new query's first batch now.

        ``files`` is a directory that Spark reaches. With Spark Connect, a query is run only to produce the line, and
        its checkpoint is stored in the directory for a moment.
        """

    @abstractmethod
    def add_listener(self, awaited: Callable[[], Sequence[str]], take: Callable[[str, dict[str, Any]], None]) -> None:
        """Register an ``ExecutionListener`` of these functions, called after each action; needs ``has_listeners``."""

    @abstractmethod
    def await_listeners(self, milliseconds: int) -> None:
        """Wait until the listeners were called for all ended actions; needs ``has_listeners``.

        Raises an error where that takes longer, or the session was stopped.
        """

    def object_store_settings(self, root: str) -> Settings | None:
        """Return the settings to reach a root's object store without Hadoop; None without one, or if left to Hadoop."""
        if str(self.spark.conf.get(_STORAGE, "")).lower() == "hadoop":
            return None
        settings = settings_of(root, self.hadoop_setting)
        if settings is not None:
            check_packages(without_login(root), "spark", "obstore")
        return settings
