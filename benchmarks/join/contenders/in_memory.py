"""The physical limit: pandas, Polars and DuckDB, all rows in memory at once; no streams, no state, no recovery."""

from __future__ import annotations

from benchmarks.join.contender import OUTPUT_COLUMNS, Contender, Job, timed
from benchmarks.join.environments import Virtual

CORES = 2
CONTENDERS = (
    Contender("pandas", "pandas: merge_asof in memory", __name__),
    Contender("polars", "Polars: join_asof in memory", __name__, environment=Virtual("polars", ("polars==2.1.0",))),
    Contender("duckdb", "DuckDB: ASOF JOIN in memory", __name__, environment=Virtual("duckdb", ("duckdb==2.0.0",))),
)


def run_pandas(job: Job) -> None:
    """Read, sort, join, write."""
    import pandas as pd  # noqa: PLC0415

    with timed():
        trades = pd.read_parquet(job.data / "trades").sort_values("event_time", kind="stable")
        customers = pd.read_parquet(job.data / "customers").sort_values("event_time", kind="stable")
        customers = customers.rename(columns={"event_time": "customers_event_time"})
        joined = pd.merge_asof(
            trades, customers, left_on="event_time", right_on="customers_event_time", by="customer_id"
        )
        joined.to_parquet(job.out / "joined.parquet", index=False)


def run_polars(job: Job) -> None:
    """Read, sort, join, write, on two threads."""
    import os  # noqa: PLC0415

    os.environ["POLARS_MAX_THREADS"] = str(CORES)
    import polars as pl  # noqa: PLC0415

    with timed():
        trades = pl.read_parquet(job.data / "trades" / "*.parquet").sort("event_time")
        customers = pl.read_parquet(job.data / "customers" / "*.parquet").sort("event_time")
        customers = customers.with_columns(customers_event_time=pl.col("event_time"))
        joined = trades.join_asof(customers, on="event_time", by="customer_id")
        joined.select(OUTPUT_COLUMNS).write_parquet(job.out / "joined.parquet")


def run_duckdb(job: Job) -> None:
    """Join in SQL, from files to files, on two threads."""
    import duckdb  # noqa: PLC0415

    connection = duckdb.connect(config={"threads": CORES})
    with timed():
        connection.execute(f"""
            COPY (
                SELECT t.*, c.event_time AS customers_event_time, c.tier, c.credit
                FROM '{job.data}/trades/*.parquet' AS t
                ASOF LEFT JOIN '{job.data}/customers/*.parquet' AS c
                ON t.customer_id = c.customer_id AND t.event_time >= c.event_time
            ) TO '{job.out}/joined.parquet' (FORMAT parquet)
        """)


def main() -> None:
    """Run one of them."""
    job = Job.of_arguments()
    job.out.mkdir()
    {"pandas": run_pandas, "polars": run_polars, "duckdb": run_duckdb}[job.name](job)


if __name__ == "__main__":
    main()
