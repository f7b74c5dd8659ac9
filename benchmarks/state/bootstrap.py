"""How long it takes to bring a state along: ``cojoin.write_state`` of many keys, and the start of a query with it.

    python -m benchmarks.state.bootstrap [--keys 5000000] [--key-groups 32] [--smoke]

- *versions*: customers of a parquet table become the versions of an as-of join; a query then begins with them, and
  joins one trade with each thousandth customer.
- *states*: the same customers become a value state with a time-to-live and a timer each.
- *identity*: the state of versions is read and written once more.

Each time, the rows of the written state are compared with what was given. Beside the seconds stands what Spark needs to
shuffle and write the same rows as parquet, for what the machine does besides.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from benchmarks.findings import Findings, open_input
from benchmarks.session import make_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["measure"]

MINUTES = 5.0
DDL = {
    "trades": "trade_id bigint, customer_id bigint, event_time timestamp",
    "customers": "customer_id bigint, event_time timestamp, tier string, credit double",
}
BEGIN = 1_768_435_200
"""The event time of the first version, in epoch seconds."""


class Remember(cj.KeyedCoProcessFunction):
    """Keeps a customer's tier for a month, and looks at it once."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        month = cj.StateTtlConfig("30 days", time_domain="event_time")
        self.tier = ctx.get_state(cj.ValueStateDescriptor("tier", "tier string, credit double", ttl=month))

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        tier = self.tier.value()
        yield trade.trade_id, tier and tier.tier


def measure(spark: SparkSession, folder: Path, keys: int, key_groups: int, findings: Findings) -> None:
    """Write states of so many keys, and begin with one."""
    customers = spark.range(keys).select(
        F.col("id").alias("customer_id"),
        F.timestamp_seconds(BEGIN + F.col("id") % 60).alias("event_time"),
        F.concat(F.lit("tier-"), F.col("id") % 1_000).alias("tier"),
        (F.col("id") * 0.5).alias("credit"),
    )
    customers.write.parquet(str(folder / "given"))
    given = spark.read.parquet(str(folder / "given"))
    trades = spark.range(0, keys, 1_000).selectExpr(
        "id AS trade_id", "id AS customer_id", f"timestamp_seconds({BEGIN} + 3600) AS event_time"
    )
    trades.write.parquet(str(folder / "trades"))
    (folder / "customers").mkdir()
    watermark = cj.WatermarkStrategy.for_bounded_out_of_orderness("0 seconds")
    pair = cj.connect(
        *(open_input(folder, name, ddl, 1_000, watermark) for name, ddl in DDL.items()), key_groups=key_groups
    )
    join, function = pair.asof_join(), pair.process(Remember(), "trade_id bigint, tier string")
    beside = _seconds(lambda: given.repartition(key_groups, "customer_id").write.parquet(str(folder / "beside")))
    until = {"trades": (BEGIN + 60) * 1000, "customers": (BEGIN + 60) * 1000}
    asked = f"{keys:,} keys in at most {MINUTES:.0f} minutes"

    def told(seconds: float) -> str:
        return f"{seconds:.1f} s, {keys / seconds:,.0f} keys a second; shuffled and written as parquet: {beside:.1f} s"

    taken = _seconds(lambda: cj.write_state(spark, folder / "versions", join, versions=given, watermark=until))
    state = cj.read_state(spark, folder / "versions")
    assert state.versions is not None
    _compare(state.versions, given)
    findings.add(f"versions: {asked}", told(taken), holds=taken <= 60 * MINUTES)
    entries = given.selectExpr("customer_id", "struct(tier, credit) AS value", "event_time AS last_access")
    timers = given.selectExpr("customer_id", "'event_time' AS domain", "event_time + INTERVAL 1 DAY AS timestamp")
    taken = _seconds(
        lambda: cj.write_state(
            spark, folder / "states", function, states={"tier": entries}, timers=timers, watermark=until
        )
    )
    written = cj.read_state(spark, folder / "states")
    _compare(written.states["tier"], entries)
    _compare(written.timers.select("customer_id", "domain", "timestamp"), timers)
    findings.add(f"states and timers: {asked}", told(taken), holds=taken <= 60 * MINUTES)
    taken = _seconds(lambda: cj.write_state(spark, folder / "again", join, from_existing=state))
    again = cj.read_state(spark, folder / "again")
    assert again.versions is not None
    _compare(again.versions, given)
    findings.add(f"read and written: {asked}", told(taken), holds=taken <= 60 * MINUTES)
    taken = _seconds(lambda: _begin(join, folder))
    joined = spark.read.format("delta").load(str(folder / "out"))
    right = joined.where("tier = concat('tier-', customer_id % 1000)").count()
    findings.add(
        f"a query begins with {keys:,} versions and joins {trades.count():,} trades",
        f"{taken:.1f} s",
        holds=right == joined.count() == trades.count(),
    )


def _begin(join: cj.Joined, folder: Path) -> None:
    query = join.start(
        output=cj.sinks.delta(folder / "out"),
        checkpoint=folder / "checkpoint",
        trigger=cj.Trigger.available_now(drain=True),
        restore_from=cj.Snapshot(str(folder / "versions")),
        checkpoint_interval=None,
    )
    query.await_termination(progress=False)


def _seconds(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _compare(found: DataFrame, given: DataFrame) -> None:
    """Compare rows by their count and a sum of their hashes, which does not depend on their order."""
    totals = [
        each.select(F.xxhash64(*each.columns).cast("decimal(38,0)").alias("hash")).agg(F.count("hash"), F.sum("hash"))
        for each in (found, given.select(found.columns))
    ]
    assert totals[0].collect() == totals[1].collect()


def main() -> None:
    """Run the measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--key-groups", type=int, default=32)
    parser.add_argument("--smoke", action="store_true", help="a small size, to see that it works")
    chosen = parser.parse_args()
    findings = Findings()
    with tempfile.TemporaryDirectory(prefix="cojoin-bootstrap-") as root:
        spark = make_session("bootstrap", Path(root), memory="4g")
        keys, groups = (5_000, 4) if chosen.smoke else (chosen.keys, chosen.key_groups)
        measure(spark, Path(root), keys, groups, findings)
        spark.stop()
    raise SystemExit(0 if findings.hold else 1)


if __name__ == "__main__":
    main()
