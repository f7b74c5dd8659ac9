"""Spark's transformWithState in Python, on rows, with RocksDB: what Spark recommends for new stateful queries.

Versions and waiting trades are list states, and each call sets one timer, for its latest trade: a timer for each trade
would cost a round trip to the JVM each.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from benchmarks.join.contender import OUTPUT_COLUMNS, Contender, Job
from benchmarks.join.environments import Added

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

CONTENDERS = (
    Contender(
        "tws",
        "Spark: transformWithState on rows in Python, RocksDB",
        __name__,
        sink="delta",
        environment=Added("tws", ("protobuf==6.33.5",)),
        trades_at_most=200_000,
    ),
)
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
TRADE_DDL = "trade_id bigint, customer_id bigint, micros bigint, amount double, symbol string"
Joined = Row(*OUTPUT_COLUMNS)


class EnrichTrades(StatefulProcessor):
    """Each trade with the customer in force, once the watermark has passed it."""

    def init(self, handle: Any) -> None:
        """Get the states."""
        self._handle = handle
        self._versions = handle.getListState("versions", "micros bigint, tier string, credit double")
        self._waiting = handle.getListState("waiting", TRADE_DDL)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Keep a customer's rows of a batch; trades wait for a timer."""
        trades, versions = [], []
        for row in rows:
            if row.is_trade:
                trades.append((row.trade_id, row.customer_id, row.micros, row.amount, row.symbol))
            else:
                versions.append((row.micros, row.tier, row.credit))
        if versions:
            self._versions.appendList(versions)
        if trades:
            self._waiting.appendList(trades)
            self._handle.registerTimer(max(trade[2] for trade in trades) // 1_000)
        return iter(())

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Row]:
        """Emit the trades that the watermark has passed, and forget the versions that no trade needs any more."""
        passed = timerValues.getCurrentWatermarkInMs() * 1_000
        waiting = list(self._waiting.get())
        versions = sorted(self._versions.get())
        times = [version[0] for version in versions]
        later = [tuple(trade) for trade in waiting if trade[2] > passed]
        if later:
            self._waiting.put(later)
        else:
            self._waiting.clear()
        if in_force := max(0, bisect_right(times, passed) - 1):
            self._versions.put([tuple(version) for version in versions[in_force:]])
        for trade in waiting:
            if trade[2] <= passed:
                found = bisect_right(times, trade[2])
                yield Joined(*trade, *(versions[found - 1] if found else (None, None, None)))


def main() -> None:
    """Run it."""
    from benchmarks.join import spark_side  # noqa: PLC0415
    from benchmarks.join.contenders.transform_with_state import EnrichTrades as Processor  # noqa: PLC0415

    job = spark_side.with_an_end(Job.of_arguments())
    spark = spark_side.open_session(job.name, **{"spark.sql.streaming.stateStore.providerClass": ROCKSDB})

    def enriched() -> DataFrame:
        both = spark_side.unite(*spark_side.open_inputs(spark, job))
        groups = both.groupBy("customer_id")
        joined = groups.transformWithState(Processor(), spark_side.MICROS_DDL, "append", "eventTime")
        return spark_side.from_micros(joined)

    spark_side.run_to_its_end(enriched, job)


if __name__ == "__main__":
    main()
