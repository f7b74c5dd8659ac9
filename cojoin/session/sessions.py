"""A user's session of Spark: its adapter, its checks, the settings in it that are cojoin's, and its stores.

A session has a JVM in this process or is one of Spark Connect; only ``adapter_of`` asks which. It is checked before it
is used, since the first use of an unusable one fails with an error of Java's or of the transport's.

Local files and object stores are reached without the JVM, so also from a session of Spark Connect. Hadoop's file
systems serve everything else that Spark reaches: HDFS, and object stores whose settings only Hadoop understands. A
session in this process is always asked first whether Spark reaches the directory, since Spark keeps its own files in
it. With ``spark.cojoin.storage=hadoop`` in the session's configuration, Hadoop reaches object stores, too.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from cojoin.engine.values.rows import back_quoted
from cojoin.errors import ConfigurationError
from cojoin.session.arrow_types import spark_schema
from cojoin.session.classic_session import ClassicSession
from cojoin.session.connect_session import ConnectSession
from cojoin.session.versions import spark_version
from cojoin.storage.locations import is_relative, scheme_and_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from cojoin.session.session_adapter import SessionAdapter
    from cojoin.storage.object_store_settings import Settings
    from cojoin.storage.store import Store

Arguments = ParamSpec("Arguments")
Returned_co = TypeVar("Returned_co", covariant=True)

MEMORY_SETTING = "spark.cojoin.memory"
_LEAST_MEMORY = 1 << 20
_SIZE = re.compile(r"(\d+)\s*(?:([bkmgt])b?)?")

_CONNECT = "pyspark.sql.connect"
_IN_PIPELINE = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"
"""Spark's name of the error for a call within a pipeline's function that would need the server."""


def adapter_of(spark: SparkSession) -> SessionAdapter:
    """Return the adapter of a session, of either kind; for anything else, the adapter's ``check`` raises an error."""
    return ConnectSession(spark) if _is_of_connect(spark) else ClassicSession(spark)


def active_session() -> Any:
    """Return the active session of this thread, of either kind; None without one."""
    session = SparkSession.getActiveSession()
    if session is None and f"{_CONNECT}.session" in sys.modules:
        session = sys.modules[f"{_CONNECT}.session"].SparkSession.getActiveSession()
    return session


class OptionalSession(Protocol[Arguments, Returned_co]):
    """A function whose first argument, the session, may be left out."""

    @overload
    def __call__(self, spark: SparkSession, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned_co: ...

    @overload
    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned_co: ...


def finds_session(
    function: Callable[Concatenate[SparkSession, Arguments], Returned_co],
) -> OptionalSession[Arguments, Returned_co]:
    """Return a function that takes the active session where it is called without one.

    The new function raises ``ConfigurationError`` if it is called without a session and none is active.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Returned_co:
        # A session that is None, or in another place, is refused by the function itself.
        is_named = "spark" in kwargs or any(isinstance(value, SparkSession) or _is_of_connect(value) for value in args)
        if is_named or (args and args[0] is None):
            return function(*args, **kwargs)
        session = active_session()
        if session is None and args and hasattr(args[0], "steps"):
            msg = (
                f"{function.__name__}: expected a checkpoint's path, got {type(args[0]).__name__}; of rows in memory "
                f"joined.steps(...) and cojoin.plots.plot_timeline(joined, keys=...) show why"
            )
            raise ConfigurationError(msg)
        if session is None:
            msg = (
                f"{function.__name__}: no Spark session is active in this thread; make one, such as "
                f"cojoin.spark_session(), or name it: {function.__name__}(spark, ...)"
            )
            raise ConfigurationError(msg)
        return function(session, *args, **kwargs)

    return call


def is_frame(value: Any) -> bool:
    """Return whether a value is a DataFrame of Spark's, of either kind."""
    return isinstance(value, DataFrame) or _is_of_connect(value)


def _is_of_connect(value: Any) -> bool:
    return type(value).__module__.startswith(_CONNECT)


def open_store(spark: SparkSession, root: str, label: str = "checkpoint") -> Store:
    """Return the files below a directory, ``label`` for messages; ``CheckpointError`` where nothing reaches it.

    A path without a scheme is on Spark's default file system, and with Spark Connect on the local one.
    """
    return adapter_of(spark).open_store(root, label)


def places_of(spark: SparkSession, uris: Iterable[str]) -> dict[str, Settings]:
    """Return the settings by which tasks reach files' object stores without the JVM, by place such as ``s3a://lake``.

    They may hold credentials: they travel with the tasks, and are never written to a file. Places that only Hadoop
    reaches, and those outside object stores, are left out. The URIs are as Spark writes them.
    """
    adapter = adapter_of(spark)
    places = sorted({scheme_and_place(uri) for uri in uris})
    settings = {place: adapter.object_store_settings(place) for place in places}
    return {place: each for place, each in settings.items() if each is not None}


def check_session(session: Any, label: str) -> None:
    """Check that a value is a running Spark session that cojoin works with; ``label`` says what it belongs to.

    Raises ``ConfigurationError`` where it is not, or where its Spark Connect server can't be reached or has another
    version than this process's PySpark; ``EnvironmentSetupError`` where cojoin does not work with that PySpark.
    """
    spark_version()
    adapter_of(session).check(label)


def check_full(session: Any, role: str, path: str | None) -> None:
    """Raise ``ConfigurationError`` for a relative path that would be another folder to a server than to this process.

    ``role`` says what the path belongs to. In a session that shares this process's paths, any path is right.
    """
    if path is not None and not adapter_of(session).shares_paths and is_relative(path):
        msg = (
            f"{role}: expected a full path, got {path!r}: with Spark Connect, a relative one is another folder for the "
            f"server than for this process, for which it is {str(Path(path).absolute())!r}"
        )
        raise ConfigurationError(msg)


@contextmanager
def pipeline_refusals(label: str) -> Iterator[None]:
    """Translate the error with which Spark refuses a join within a function of a declarative pipeline.

    ``label`` is the call, such as ``"connect()"``. Raises ``ConfigurationError`` where it was made within such a
    function.
    """
    try:
        yield
    except (PySparkException, ConfigurationError) as error:
        if _IN_PIPELINE not in f"{error}{error.__cause__ or ''}":
            raise
        msg = (
            f"{label} within a function of a Spark Declarative Pipeline: Spark forbids whatever looks at columns in it "
            f"({_IN_PIPELINE}); make the join at the level of the module, outside of the function, and return it in "
            f"the function: joined = cj.connect(...).asof_join().to_dataframe(); its sources are files with schema=, "
            f"or tables that exist before the pipeline runs, and not datasets of the same pipeline"
        )
        raise ConfigurationError(msg) from error


def empty_frame(spark: SparkSession, schema: pa.Schema) -> DataFrame:
    """Return a DataFrame without rows, whose columns can be null.

    ``createDataFrame`` would make its session the active one, and the session of a batch is a copy of the user's.
    """
    fields = spark_schema(schema).fields
    return spark.range(0).selectExpr(
        *(f"CAST(NULL AS {each.dataType.simpleString()}) AS {back_quoted(each.name)}" for each in fields)
    )


def is_left_to_spark(session: SparkSession, name: str) -> bool:
    """Return whether a setting such as ``spark.cojoin.parquet`` leaves to Spark what workers would do themselves.

    Its values are ``spark`` and ``direct``, the default; others raise ``ConfigurationError``.
    """
    value = str(session.conf.get(name, "")).lower()
    if value not in {"", "direct", "spark"}:
        msg = (
            f"the session's setting {name} is {value!r}; expected 'spark', which leaves the work to Spark, or 'direct'"
        )
        raise ConfigurationError(msg)
    return value == "spark"


def task_memory(session: SparkSession) -> int | None:
    """Return the bytes that a task may use for rows that it reads from its state's files and merges; None: the default.

    It is the session's setting ``spark.cojoin.memory``, such as ``512m``, or half of what
    ``spark.executor.pyspark.memory`` leaves to each core. Raises ``ConfigurationError`` for a setting that is not a
    size, or below a megabyte.
    """
    value = session.conf.get(MEMORY_SETTING, "")
    if not value:
        of_workers = _size(str(session.conf.get("spark.executor.pyspark.memory", "")), "m")
        cores = int(session.conf.get("spark.executor.cores", "1") or 1)
        return None if of_workers is None else max(_LEAST_MEMORY, of_workers // (2 * cores))
    size = _size(str(value), "b")
    if size is None or size < _LEAST_MEMORY:
        msg = f"the session's setting {MEMORY_SETTING} is {value!r}; expected a size of at least 1m, such as '512m'"
        raise ConfigurationError(msg)
    return size


def _size(text: str, unit: str) -> int | None:
    """Return a size as Spark's settings have it, in bytes; None where the text is none. ``unit`` is that of a number.

    >>> _size("512m", "b"), _size("2 GB", "b"), _size("1", "m"), _size("much", "b")
    (536870912, 2147483648, 1048576, None)
    """
    matched = _SIZE.fullmatch(text.strip().lower())
    if matched is None:
        return None
    return int(matched[1]) << 10 * "bkmgt".index(matched[2] or unit)
