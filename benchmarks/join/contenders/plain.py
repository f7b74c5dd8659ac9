"""The floor: Spark alone reads both inputs, shuffles by key and writes the same rows, as any join must at least.

Its Delta table has the properties of cojoin's: Delta writes a checkpoint of its log as seldom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.join.contender import Contender, Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTENDERS = tuple(
    Contender(name, f"Spark: read, shuffle, write into {sink}; no join", __name__, sink=sink, answer=None)
    for name, sink in (("plain", "delta"), ("plain-parquet", "parquet"))
)
_PROPERTIES = {"spark.databricks.delta.properties.defaults.checkpointInterval": "100"}


def run(spark: SparkSession, job: Job) -> None:
    """Run it."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    from benchmarks.join.spark_side import open_inputs, run_to_its_end  # noqa: PLC0415

    trades, customers = open_inputs(spark, job)
    both = trades.unionByName(customers, allowMissingColumns=True)
    run_to_its_end(both.repartition(F.col("customer_id")), job)


def main() -> None:
    """Run it in a session of its own."""
    from benchmarks.join.spark_side import open_session  # noqa: PLC0415

    job = Job.of_arguments()
    run(open_session(job.name, **_PROPERTIES), job)


if __name__ == "__main__":
    main()
