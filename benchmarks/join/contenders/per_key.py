"""applyInPandasWithState by hand, as its users write it: a group for each customer, versions and trades in its state.

A trade waits until Spark's watermark has passed it, which a timeout of the group's makes sure of. One call of the
function is one customer's in one micro-batch, so what a trade costs depends on how many a customer has in a batch.
"""

from __future__ import annotations

import pickle
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from benchmarks.join.contender import OUTPUT_COLUMNS, Contender, Job

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from pyspark.sql import DataFrame

CONTENDERS = (
    Contender(
        "per-key",
        "Spark: applyInPandasWithState by hand, a group a customer",
        __name__,
        sink="delta",
        trades_at_most=40_000,
    ),
)
TRADE = ("trade_id", "customer_id", "micros", "amount", "symbol")
VERSION = ("micros", "tier", "credit")


def enrich(key: tuple[int], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG001
    """Take a customer's rows of a batch and give the trades that the watermark has passed."""
    import pandas as pd  # noqa: PLC0415

    versions, waiting = pickle.loads(state.get[0]) if state.exists else ([], [])
    for frame in frames:
        is_trade = frame["is_trade"].to_numpy()
        waiting += zip(*(frame.loc[is_trade, name].tolist() for name in TRADE), strict=True)
        versions += zip(*(frame.loc[~is_trade, name].tolist() for name in VERSION), strict=True)
    passed = state.getCurrentWatermarkMs() * 1_000
    versions.sort()
    times = [version[0] for version in versions]
    due = [trade for trade in waiting if trade[2] <= passed]
    waiting = [trade for trade in waiting if trade[2] > passed]
    joined = []
    for trade in due:
        found = bisect_right(times, trade[2])
        joined.append((*trade, *(versions[found - 1] if found else (None, None, None))))
    in_force = max(0, bisect_right(times, passed) - 1)
    state.update((pickle.dumps((versions[in_force:], waiting)),))
    if waiting:
        # The watermark must be later than a timeout for it to happen.
        state.setTimeoutTimestamp(max(passed // 1_000, min(trade[2] for trade in waiting) // 1_000) + 1)
    if joined:
        result = pd.DataFrame(joined, columns=list(OUTPUT_COLUMNS))
        yield result.astype({"customers_event_time": "Int64"})


def main() -> None:
    """Run it."""
    from benchmarks.join import spark_side  # noqa: PLC0415

    job = spark_side.with_an_end(Job.of_arguments())
    spark = spark_side.open_session(job.name)
    # The library pickles functions of a script by value, but not those of a module that workers can import.
    from benchmarks.join.contenders.per_key import enrich as function  # noqa: PLC0415

    def enriched() -> DataFrame:
        both = spark_side.unite(*spark_side.open_inputs(spark, job))
        joined = both.groupBy("customer_id").applyInPandasWithState(
            function, spark_side.MICROS_DDL, "state binary", "append", "EventTimeTimeout"
        )
        return spark_side.from_micros(joined)

    spark_side.run_to_its_end(enriched, job)


if __name__ == "__main__":
    main()
