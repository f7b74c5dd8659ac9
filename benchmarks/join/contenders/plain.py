"""The floor: Spark alone reads both inputs, shuffles by key and writes the same rows, as any join must at least.

Static rows are also sorted by key and time, as Spark's own joins of sorted rows do first. The Delta table has the
properties of cojoin's: Delta writes a checkpoint of its log as seldom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.join.contender import Contender, Job, timed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONTENDERS = (
    *(
        Contender(name, f"Spark: read, shuffle, write into {sink}; no join", __name__, sink=sink, answer=None)
        for name, sink in (("plain", "delta"), ("plain-parquet", "parquet"))
    ),
    Contender(
        "plain-from-delta",
        "Spark: read Delta tables, shuffle, write into delta; no join",
        __name__,
        sink="delta",
        source="delta",
        answer=None,
    ),
    Contender("plain-static", "Spark: read, shuffle, sort, write; no join", __name__, answer=None, static=True),
)
_PROPERTIES = {"spark.databricks.delta.properties.defaults.checkpointInterval": "100"}


def run(spark: SparkSession, job: Job) -> None:
    """Run it."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    from benchmarks.join.spark_side import as_tables, open_inputs, read_inputs, run_to_its_end  # noqa: PLC0415

    if job.name == "plain-static":
        trades, customers = read_inputs(spark, job)
        with timed():
            both = trades.unionByName(customers, allowMissingColumns=True).repartition(F.col("customer_id"))
            both.sortWithinPartitions("customer_id", "event_time").write.parquet(str(job.out))
        return

    tables = as_tables(job) if job.name == "plain-from-delta" else None

    def shuffled() -> DataFrame:
        trades, customers = open_inputs(spark, job, tables)
        return trades.unionByName(customers, allowMissingColumns=True).repartition(F.col("customer_id"))

    run_to_its_end(shuffled, job)


def main() -> None:
    """Run it in a session of its own."""
    from benchmarks.join.spark_side import open_session  # noqa: PLC0415

    job = Job.of_arguments()
    run(open_session(job.name, **_PROPERTIES), job)


if __name__ == "__main__":
    main()
