"""What all tests share: one Spark session and one Kafka broker, both started by the first test that asks for them.

The session's time zone is deliberately not UTC: whatever turns an instant into a local time by mistake is off by hours.
"""

from __future__ import annotations

import gc
import os
import sys
import uuid
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cojoin.errors import EnvironmentSetupError
from tests.seeds import SEED, SEED_TEXT
from tests.servers import archive_options

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker
    from tests.servers.postgres import PostgresServer
    from tests.servers.registry import RegistryServer
    from tests.servers.s3 import S3Server

PROJECT = Path(__file__).resolve().parents[1]
# Every JVM of the tests lives for seconds or minutes: the quick compiler and a plain collector cost less of the cores.
# They read the same classes of Spark each time, so one in ten seconds of a short one would go into verifying those.
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
    f" -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote {archive_options('spark')}"
).rstrip()
os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OPTIONS)

SETTINGS = {
    "spark.driver.memory": "2g",
    # Many short queries: a quick compiler and a plain collector take a third off their time.
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.minBatchesToRetain": "10",
    # One session runs the plans of hundreds of tests, more than Spark's hundred classes: a twentieth off its CPU.
    "spark.sql.codegen.cache.maxEntries": "5000",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    # As ``cojoin.spark_session`` has it: half of the time of many small commits.
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
}


_GROUPS = {
    "beside": (
        "tests/benchmarks/guards/test_replay.py",
        "tests/kafka/",
        "tests/servers/",
        "tests/session/",
        "tests/sql/test_queries.py",
        "tests/storage/",
        "tests/delta/test_readers.py",
        "tests/delta/test_with_spark.py",
        "tests/simulation/test_against_spark.py",
        "tests/checkpoints/",
        "tests/releases/",
        "tests/test_notebooks.py",
        "tests/cli/test_init.py",
        "tests/cli/test_run.py",
        "tests/cli/test_run_of_topics.py",
        "tests/cli/test_checkpoints.py",
    ),
    "session": (
        "tests/spark/",
        "tests/debugging/",
        "tests/benchmarks/",
        "tests/test_readme.py",
        "tests/cli/test_diff.py",
        "tests/comparison/test_spark_difference.py",
        "tests/engine/test_key_groups.py",
        "tests/engine/values/test_types.py",
    ),
}
"""What needs a session; all else goes to whoever is free. (xdist's own groups do nothing under pytest 9.2.)"""

_OPTIONAL = (
    "hypothesis",
    "duckdb",
    "fastavro",
    "google.protobuf",
    "jsonschema",
    "confluent_kafka",
    "deltalake",
    "matplotlib",
    "obstore",
    "opentelemetry",
    "pandas",
    "polars",
    "pyspark",
)
"""Packages of single test modules."""

_UNIT = (
    "tests/api/",
    "tests/capture/",
    "tests/checkpoints/test_identity.py",
    "tests/checkpoints/test_lease.py",
    "tests/checkpoints/test_manifest.py",
    "tests/checkpoints/test_query_changes.py",
    "tests/checkpoints/test_segment_files.py",
    "tests/checkpoints/test_snapshot_row.py",
    "tests/cli/test_demo_rows.py",
    "tests/cli/test_outputs.py",
    "tests/cli/test_run_report.py",
    "tests/comparison/test_comparison.py",
    "tests/comparison/test_diff.py",
    "tests/comparison/test_row_matching.py",
    "tests/delta/test_actions.py",
    "tests/delta/test_interleavings.py",
    "tests/delta/test_table_batches.py",
    "tests/delta/test_table_checks.py",
    "tests/delta/test_table_log.py",
    "tests/delta/test_table_writer.py",
    "tests/embedded/",
    "tests/engine/",
    "tests/flink/",
    "tests/metrics/test_dashboard.py",
    "tests/peers/",
    "tests/storage/test_documents.py",
    "tests/storage/test_file_systems.py",
    "tests/storage/test_locations.py",
    "tests/storage/test_object_store_settings.py",
    "tests/storage/test_parquet_files.py",
    "tests/test_doctests.py",
    "tests/test_errors.py",
    "tests/test_installed_packages.py",
    "tests/testing/",
)
"""The files whose tests are `unit`, unless a test has one of ``_OUTSIDE``. None of them imports Spark."""

_OUTSIDE = ("spark", "kafka", "cluster", "connect", "slow", "push")

_LONG = (
    "tests/test_on_connect.py",
    "tests/versions/",
    "tests/cluster/",
    "tests/simulation/test_simulation.py",
    "tests/simulation/test_simulated_batches.py",
    "tests/test_unit_circle.py",
    "tests/cli/test_demo.py",
)
"""Tests that take a minute each, or many. At the end, one of them would run alone."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave other files out of the unit circle's own run, so that it does not import what they need."""
    if config.option.markexpr != "unit" or not collection_path.is_relative_to(PROJECT / "tests"):
        return None
    place = collection_path.relative_to(PROJECT).as_posix() + "/" * collection_path.is_dir()
    return None if any(place.startswith(each) or each.startswith(place) for each in _UNIT) else True


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of the unit circle."""
    if item.nodeid.startswith(_UNIT) and not any(item.get_closest_marker(name) for name in _OUTSIDE):
        item.add_marker("unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long tests before the others that need no session; the groups, which are larger, come first anyway."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG))


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over what has been imported and collected: nothing of it will be garbage."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Have the collector look at everything again, since libraries of C++ report at the exit what it has not freed."""
    gc.unfreeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Have ``--connect`` run the tests in a session of Spark Connect, at a server of its own."""
    parser.addoption("--connect", action="store_true", help="run in a session of Spark Connect (see tests/connect)")


def pytest_configure(config: pytest.Config) -> None:
    """Draw Hypothesis's examples from the run's seed, unless its own option gives another.

    In the unit circle's own run, importing Spark is an error.
    """
    is_unit = config.option.markexpr == "unit"
    if is_unit:
        sys.modules.update(dict.fromkeys(("pyspark", "py4j", "delta")))  # type: ignore[arg-type]
    try:
        import hypothesis.core
        from hypothesis import HealthCheck, settings
    except ImportError:
        return
    # Where the environment has CI, Hypothesis would draw the same examples each time: here the run's seed decides.
    # Long enough to find what random streams find, short enough for every push; a search by night sets another profile.
    settings.register_profile(
        "push", max_examples=30, deadline=None, derandomize=False, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.register_profile("unit", parent=settings.get_profile("push"), max_examples=10)
    settings.register_profile("night", parent=settings.get_profile("push"), max_examples=3_000)
    settings.load_profile(os.environ.get("COJOIN_HYPOTHESIS_PROFILE", "unit" if is_unit else "push"))
    if config.getoption("hypothesis_seed") is None:
        hypothesis.core.global_force_seed = SEED


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Skip a module whose tests need a package that is not installed: the engine's tests need pytest alone."""
    report = yield
    for package in _OPTIONAL:
        if report.failed and f"No module named '{package}" in str(report.longrepr):
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), 0, f"Skipped: {package} is not installed")
            # Half of it is imported; a test that imports it, too, must meet the same error.
            sys.modules.pop(".".join(collector.path.relative_to(PROJECT).with_suffix("").parts), None)
    return report


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Print the seed and the versions at the top of a run."""
    names = ("pyspark", "pandas", "pyarrow", "numpy", "obstore")
    versions = ", ".join(f"{name} {version(name)}" for name in names if find_spec(name))
    return [f"seed: {SEED_TEXT}", f"versions: {versions}"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Print the seed under each failure, too; where a fixture lacks Java or a download, one line says so instead."""
    report = yield
    if report.failed:
        report.sections.append(("seed", f"{SEED_TEXT} draws the same again"))
    if report.failed and call.when == "setup" and call.excinfo.errisinstance(EnvironmentSetupError):
        report.longrepr, report.sections = str(call.excinfo.value), []
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of one Spark session in one process; there are two, so that both cores have one."""
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class SessionScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return next((group for group, paths in _GROUPS.items() if path.startswith(paths)), nodeid)

    return SessionScheduling(config, log)


@pytest.fixture(scope="session")
def connect_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server."""
    from tests.servers.connect import connect_server

    with connect_server(tmp_path_factory.mktemp("server"), SETTINGS) as address:
        yield address


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of all tests, with Delta and Kafka: a Python process can hold only one."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from pyspark.sql import SparkSession

    if request.config.getoption("connect"):
        remote = SparkSession.builder.remote(request.getfixturevalue("connect_address")).getOrCreate()
        yield remote
        remote.stop()
        return

    from cojoin.session.versions import check_java
    from tests.servers.jars import kafka_settings, s3_jars

    check_java()
    # Python workers take these from the environment: the interpreter that has the dependencies, and the tests' modules,
    # which they must find even when pytest was called from another folder.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = SETTINGS | kafka_settings()
    settings["spark.jars"] = ",".join([settings["spark.jars"], *map(str, s3_jars())])
    settings["spark.sql.warehouse.dir"] = str(tmp_path_factory.mktemp("warehouse"))
    session = SparkSession.builder.master("local[2]").appName("cojoin-tests").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def shuffle_partitions(spark: SparkSession) -> Iterator[Callable[[int], None]]:
    """Set Spark's shuffle partitions for one test."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    yield lambda count: spark.conf.set(name, count)
    spark.conf.set(name, before)


@pytest.fixture
def bucket(spark: SparkSession) -> Iterator[S3Server]:
    """A server of S3's protocol with a bucket of its own, which the session of all tests reaches."""
    from tests.servers.jars import s3_jars
    from tests.servers.s3 import S3Server

    if not s3_jars():
        pytest.skip("the jars for s3a:// are those of Spark 4.2")
    with S3Server(f"bucket-{uuid.uuid4().hex}") as server:
        configuration = spark._jsc.hadoopConfiguration()
        for name, value in server.settings().items():
            configuration.set(name, value)
        yield server


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """The PostgreSQL server of all tests; each test creates databases of its own."""
    from tests.servers.postgres import postgres_server

    with postgres_server(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """The Kafka broker of all tests; each test makes topics of its own. Some log in, so it is guarded."""
    from cojoin.session.versions import spark_version
    from tests.servers.broker import Broker

    if spark_version() != "4.2":
        pytest.skip("cojoin.kafka needs PySpark 4.2")
    with Broker(guarded=True) as running:
        yield running


@pytest.fixture(scope="session")
def registry() -> Iterator[RegistryServer]:
    """The schema registry of all tests; each test has subjects of its own."""
    from tests.servers.registry import RegistryServer

    with RegistryServer() as running:
        yield running
