"""What is written of a large state, and of a small part of it: the first measure of ``checkpoint_cost.py``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from benchmarks.differences import differences
from benchmarks.findings import Findings, open_input
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.engine.display import text_table
from cojoin.session.sessions import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cojoin.checkpoints.snapshots import SnapshotIndex
    from cojoin.storage.store import Store

__all__ = ["measure_what_is_written"]

KEY_GROUPS, TOUCHED = 64, 3
PROFILE_BYTES = 1_000
QUIET_BATCHES = 5
START_US, SPREAD_US = 1_768_435_200_000_000, 200_000_000
PROFILES_DDL = "customer_id bigint, event_time timestamp, profile string"
ORDERS_DDL = "trade_id bigint, customer_id bigint, event_time timestamp"
_TIME = pa.timestamp("us", "UTC")


def measure_what_is_written(spark: SparkSession, folder: Path, megabytes: int, findings: Findings) -> None:
    """Touch a few key groups of a large state."""
    keys = megabytes * 1_000_000 // PROFILE_BYTES
    group = F.pmod(F.xxhash64("id"), F.lit(KEY_GROUPS))
    touched = [row.id for row in spark.range(keys).where(group < TOUCHED).collect()]
    trades, versions = _write_profiles(folder, keys, touched)
    watermark = cj.WatermarkStrategy.for_bounded_out_of_orderness("0 seconds")
    sides = (("trades", ORDERS_DDL), ("customers", PROFILES_DDL))
    pair = cj.connect(*(open_input(folder, name, ddl, 1, watermark) for name, ddl in sides), key_groups=KEY_GROUPS)
    query = pair.asof_join().start(
        output=cj.sinks.delta(str(folder / "out")),
        checkpoint=str(folder / "checkpoint"),
        trigger=cj.Trigger.available_now(drain=True),
        checkpoint_interval=1,
        retained_checkpoints=10 + QUIET_BATCHES,
    )
    query.await_termination(progress=False)
    files = open_store(spark, str(folder / "checkpoint"))
    whole, *rest = Snapshots(files).all()[1:]
    table: list[tuple[str, ...]] = [
        ("batch", "key groups written", "MB of state", "MB written", "share", "MB of files", "seconds")
    ]
    table += [_told(files, each) for each in (whole, *rest)]
    print(text_table(table), flush=True)
    share = max(each.written_bytes / each.state_bytes for each in rest)
    on_disk = max(_file_bytes(files, each) for each in rest) / _file_bytes(files, whole)
    size = whole.state_bytes / 1e6
    asked = f"a checkpoint of {size:,.0f} MB, {TOUCHED} of {KEY_GROUPS} key groups touched, writes < 10 %"
    findings.add(asked, f"{share:.1%} of the contents, {on_disk:.1%} of the files", holds=max(share, on_disk) < 0.1)
    wanted = pd.merge_asof(trades, versions, on="event_time", by="customer_id")
    got = spark.read.format("delta").load(str(folder / "out")).select("trade_id", "profile").collect()
    profiles = [None if pd.isna(each) else each for each in wanted.profile]
    told = differences(zip(wanted.trade_id, profiles, strict=True), map(tuple, got))
    findings.add("its output equals pandas'", told[0] if told else f"{len(got):,} rows", holds=not told)


def _write_profiles(folder: Path, keys: int, touched: list[int]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Write all versions as a first file, a second that moves time past them, and then files of a few customers."""
    rng = np.random.default_rng(3)
    letters = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)

    def profiles(count: int) -> list[str]:
        text = letters[rng.integers(0, 64, count * PROFILE_BYTES, np.uint8)].tobytes().decode()
        return [text[at : at + PROFILE_BYTES] for at in range(0, len(text), PROFILE_BYTES)]

    all_trades, all_versions = [], []
    for number in range(2 + QUIET_BATCHES):
        customers = np.arange(keys) if number == 0 else rng.choice(touched, max(1, len(touched) // 20), replace=False)
        # Upward, so nothing is late, and each file moves time past all of those before, but not past all of its own.
        first = START_US + number * 3_600_000_000
        times = first + np.arange(len(customers)) * (SPREAD_US // len(customers))
        versions = pd.DataFrame({"customer_id": customers, "event_time": times, "profile": profiles(len(customers))})
        traded = rng.choice(touched, 200)
        ids = np.arange(200) + 200 * number
        trades = pd.DataFrame({"trade_id": ids, "customer_id": traded, "event_time": first + np.arange(200) * 500_000})
        _write_file(versions, folder / "customers", number)
        _write_file(trades, folder / "trades", number)
        all_trades.append(trades)
        all_versions.append(versions)
    return pd.concat(all_trades), pd.concat(all_versions)


def _write_file(rows: pd.DataFrame, folder: Path, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    columns = pa.Table.from_pandas(rows, preserve_index=False)
    at = columns.schema.get_field_index("event_time")
    path = folder / f"{number:04d}.parquet"
    pq.write_table(columns.set_column(at, "event_time", columns.column(at).cast(_TIME)), path)


def _told(files: Store, snapshot: SnapshotIndex) -> tuple[str, ...]:
    manifest = Manifests(files).read(snapshot.batch_id)
    seconds = 0.0 if manifest is None else manifest.durations_ms["snapshot"] / 1000
    groups = len(snapshot.content_batch_ids.get(str(snapshot.batch_id), []))
    share = snapshot.written_bytes / snapshot.state_bytes
    sizes = f"{snapshot.state_bytes / 1e6:,.1f}", f"{snapshot.written_bytes / 1e6:,.1f}", f"{share:.1%}"
    disk = f"{_file_bytes(files, snapshot) / 1e6:,.1f}"
    return (f"{snapshot.batch_id}", f"{groups}", *sizes, disk, f"{seconds:.2f}")


def _file_bytes(files: Store, snapshot: SnapshotIndex) -> int:
    return files.size(f"state/batch_id={snapshot.batch_id}")
