"""PyFlink's KeyedCoProcessFunction, in both of its modes: Python in Flink's own process, or beside it.

Python's sources have no say in the order of files, so each input is put into one file before the clock starts. Flink's
local cluster starts within the timed part, as PyFlink gives no hold of it: a second or two.
"""

from __future__ import annotations

import os
import site
from typing import Any

from benchmarks.join.contender import Contender, Job, timed
from benchmarks.join.contenders.flink_java import FLINK, HEAP
from benchmarks.join.environments import Virtual

PYFLINK = Virtual("pyflink", ("apache-flink==2.3.0",), needs=(FLINK,))
CONTENDERS = tuple(
    Contender(
        f"pyflink-{mode}",
        f"PyFlink: KeyedCoProcessFunction, {mode} mode",
        __name__,
        environment=PYFLINK,
        trades_at_most=most,
    )
    for mode, most in (("thread", 500_000), ("process", 40_000))
)
SLOTS = 2
# What PyFlink brings along has no parquet.
JARS = ("flink-parquet-", "parquet-", "hadoop-client-", "snappy-java-")


def build_function() -> Any:
    """Return the function: the same as the Java one, state by state."""
    from pyflink.common import Row, Types  # noqa: PLC0415
    from pyflink.datastream import KeyedCoProcessFunction  # noqa: PLC0415
    from pyflink.datastream.state import MapStateDescriptor, ValueStateDescriptor  # noqa: PLC0415

    class EnrichTrades(KeyedCoProcessFunction):
        def open(self, runtime_context: Any) -> None:
            version, trades = Types.PICKLED_BYTE_ARRAY(), Types.PICKLED_BYTE_ARRAY()
            self.in_force = runtime_context.get_state(ValueStateDescriptor("in force", version))
            self.versions = runtime_context.get_map_state(MapStateDescriptor("versions", Types.LONG(), version))
            self.waiting = runtime_context.get_map_state(MapStateDescriptor("waiting", Types.LONG(), trades))

        def process_element1(self, trade: Any, ctx: Any) -> None:
            at = ctx.timestamp()
            same = self.waiting.get(at)
            if same is None:
                ctx.timer_service().register_event_time_timer(at)
            self.waiting.put(at, [*(same or ()), tuple(trade)])

        def process_element2(self, version: Any, ctx: Any) -> None:
            self.versions.put(ctx.timestamp(), tuple(version)[1:])
            ctx.timer_service().register_event_time_timer(ctx.timestamp())

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            version = self.versions.get(timestamp)
            if version is not None:
                self.in_force.update(version)
                self.versions.remove(timestamp)
            trades = self.waiting.get(timestamp)
            if trades is not None:
                customer = self.in_force.value() or (None, None, None)
                for trade in trades:
                    yield Row(*trade, *customer)
                self.waiting.remove(timestamp)

    return EnrichTrades()


def put_into_one_file(job: Job, side: str) -> str:
    """Put an input into one file, with event times as numbers."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    table = pa.concat_tables([pq.read_table(path) for path in job.files(side)])
    place = table.schema.get_field_index("event_time")
    table = table.set_column(place, "event_time", table.column("event_time").cast(pa.int64()))
    path = job.work / f"{side}.parquet"
    pq.write_table(table, path)
    return str(path)


def build_job(job: Job, mode: str) -> Any:
    """Connect sources, the function and the sink."""
    import sys  # noqa: PLC0415

    from pyflink.common import Configuration, Duration, Types, WatermarkStrategy  # noqa: PLC0415
    from pyflink.common.watermark_strategy import TimestampAssigner  # noqa: PLC0415
    from pyflink.datastream import StreamExecutionEnvironment  # noqa: PLC0415
    from pyflink.datastream.connectors.file_system import (  # noqa: PLC0415
        BucketAssigner,
        FileSink,
        OutputFileConfig,
    )
    from pyflink.datastream.formats.parquet import ParquetBulkWriters  # noqa: PLC0415
    from pyflink.table import DataTypes, Schema, StreamTableEnvironment, TableDescriptor  # noqa: PLC0415

    long, double, text = DataTypes.BIGINT(), DataTypes.DOUBLE(), DataTypes.STRING()
    trade = {"trade_id": long, "customer_id": long, "event_time": long, "amount": double, "symbol": text}
    customer = {"customer_id": long, "event_time": long, "tier": text, "credit": double}
    joined = {**trade, "customers_event_time": long, "tier": text, "credit": double}

    def row_type(columns: dict[str, Any]) -> Any:
        return DataTypes.ROW([DataTypes.FIELD(name, kind) for name, kind in columns.items()])

    class EventTime(TimestampAssigner):
        def __init__(self, place: int) -> None:
            self._place = place

        def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
            return value[self._place] // 1_000

    configuration = Configuration()
    configuration.set_string("python.execution-mode", mode)
    configuration.set_string("python.executable", sys.executable)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(SLOTS)

    tables = StreamTableEnvironment.create(env)

    def read(side: str, columns: dict[str, Any]) -> Any:
        path = put_into_one_file(job, side)
        declared = Schema.new_builder()
        for name, kind in columns.items():
            declared = declared.column(name, kind)
        place = TableDescriptor.for_connector("filesystem").schema(declared.build()).option("path", path)
        tables.create_temporary_table(side, place.format("parquet").build())
        times = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5)).with_timestamp_assigner(
            EventTime([*columns].index("event_time"))
        )
        rows = tables.to_data_stream(tables.from_path(side)).assign_timestamps_and_watermarks(times)
        key = [*columns].index("customer_id")
        return rows.key_by(lambda row: row[key], key_type=Types.LONG())

    kinds = {long: Types.LONG(), double: Types.DOUBLE(), text: Types.STRING()}
    names, types = [*joined], [kinds[kind] for kind in joined.values()]
    stream = read("trades", trade).connect(read("customers", customer))
    result = stream.process(build_function(), output_type=Types.ROW_NAMED(names, types))
    writers = ParquetBulkWriters.for_row_type(row_type(joined))
    sink = FileSink.for_bulk_format(str(job.out), writers)
    named = OutputFileConfig.builder().with_part_suffix(".parquet").build()
    result.sink_to(
        sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).with_output_file_config(named).build()
    )
    return env


def main() -> None:
    """Run one of the two."""
    job = Job.of_arguments()
    jars = [str(jar) for jar in sorted((FLINK.folder / "lib").glob("*.jar")) if jar.name.startswith(JARS)]
    os.environ["HADOOP_CLASSPATH"] = os.pathsep.join(jars)
    # Python inside of the JVM knows nothing of virtual environments.
    os.environ["PYTHONPATH"] = os.pathsep.join([*site.getsitepackages(), os.environ["PYTHONPATH"]])
    os.environ["JAVA_TOOL_OPTIONS"] = f"-Xmx{HEAP}"
    env = build_job(job, job.name.removeprefix("pyflink-"))
    with timed():
        env.execute("join")


if __name__ == "__main__":
    main()
