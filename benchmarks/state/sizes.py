"""How long a batch takes as the state grows: 1 % of the keys are touched in each, whatever their number.

    python -m benchmarks.state.sizes [--megabytes 10 100 1000] [--without] [--batches 9] [--smoke]

An as-of join has a version of a kilobyte of each customer in force; a few large batches bring them. Then batches come
in which one customer in a hundred has a new version and a trade. Told is the median of the seconds between the starts
of such batches, after two that warm up, and what it is to that of the smallest state; with ``--without`` also where
all state stays in Spark's own store. Every output is compared with pandas in the same run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import pairwise
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
from benchmarks.session import make_session
from cojoin.checkpoints.manifest import Manifests
from cojoin.engine.display import text_table
from cojoin.session.sessions import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY_GROUPS = 32
PROFILE_BYTES, NUMBER_BYTES = 1_000, 12
FILL_BYTES = 125_000_000
WARM_BATCHES = 2
TOUCHED = 100
"""One key of so many is touched in a batch."""

HOUR_US, START_US, SPREAD_US = 3_600_000_000, 1_768_435_200_000_000, 200_000_000
PROFILES_DDL = "customer_id bigint, event_time timestamp, profile string"
TRADES_DDL = "trade_id bigint, customer_id bigint, event_time timestamp"
_TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Measured:
    """What a run took."""

    megabytes: int
    in_segments: bool
    seconds: list[float]
    state_mb: float
    written_mb: float
    fill_seconds: float

    @property
    def median(self) -> float:
        """The middle batch."""
        return statistics.median(self.seconds)


def measure(spark: SparkSession, folder: Path, megabytes: int, batches: int, *, in_segments: bool) -> Measured:
    """Run the join over a state of some size."""
    data = folder / f"data-{megabytes}"
    fills = -(-megabytes * 1_000_000 // FILL_BYTES)
    if not data.exists():
        _write(data, megabytes * 1_000_000 // PROFILE_BYTES, fills, WARM_BATCHES + batches + 1)
    work = folder / f"run-{megabytes}-{'segments' if in_segments else 'whole'}"
    watermark = cj.WatermarkStrategy.for_bounded_out_of_orderness("0 seconds")
    sides = (("trades", TRADES_DDL), ("customers", PROFILES_DDL))
    pair = cj.connect(*(open_input(data, name, ddl, 1, watermark) for name, ddl in sides), key_groups=KEY_GROUPS)
    joined = pair.asof_join()
    if not in_segments:
        joined._plan = replace(joined.plan, segments=None)  # noqa: SLF001 - no user needs a setting for it
    query = joined.start(
        output=cj.sinks.delta(str(work / "out")),
        checkpoint=str(work / "checkpoint"),
        trigger=cj.Trigger.available_now(drain=True),
        checkpoint_interval=None,
    )
    query.await_termination(progress=False)
    manifests = Manifests(open_store(spark, str(work / "checkpoint")))
    reports = [manifest.report for number in manifests.batch_ids() if (manifest := manifests.read(number))]
    seconds = [(after.processing_time - before.processing_time) / 1000 for before, after in pairwise(reports)]
    first, last = fills + WARM_BATCHES, fills + WARM_BATCHES + batches
    written = statistics.mean(each.segment_bytes_written for each in reports[first:last])
    assert all(each.is_conserved for each in reports)
    _check(spark, data, work)
    fill = sum(seconds[:fills])
    return Measured(megabytes, in_segments, seconds[first:last], reports[last].state_bytes / 1e6, written / 1e6, fill)


def _write(folder: Path, keys: int, fills: int, later: int) -> None:
    """Write files of all customers, then of a few of them; a file of each input is a batch."""
    rng = np.random.default_rng(5)
    letters = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
    version = trade = 0
    filled = np.array_split(np.arange(keys), fills)
    for number in range(fills + later):
        few = rng.choice(keys, max(1, keys // TOUCHED), replace=False)
        customers = filled[number] if number < fills else few
        first = START_US + number * HOUR_US
        length = PROFILE_BYTES - NUMBER_BYTES
        text = letters[rng.integers(0, 64, len(customers) * length, np.uint8)].tobytes().decode()
        profiles = [
            f"{version + at:0{NUMBER_BYTES}d}{text[at * length : (at + 1) * length]}" for at in range(len(customers))
        ]
        times = first + np.arange(len(customers)) * (SPREAD_US // len(customers))
        _write_file(folder / "customers", number, {"customer_id": customers, "event_time": times, "profile": profiles})
        traded = few if number >= fills else few[:1]
        # Most trades are after their customers' versions; the last ends the batch's time.
        times = first + SPREAD_US // 2 + np.arange(len(traded)) * (SPREAD_US // 2 // len(traded))
        ids = trade + np.arange(len(traded))
        _write_file(folder / "trades", number, {"trade_id": ids, "customer_id": traded, "event_time": times})
        version, trade = version + len(customers), trade + len(traded)


def _write_file(folder: Path, number: int, columns: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: pa.array(values) for name, values in columns.items()}
    arrays["event_time"] = arrays["event_time"].cast(_TIME)
    path = folder / f"{number:04d}.parquet"
    pq.write_table(pa.table(arrays), path, compression="none", use_dictionary=False)
    # Spark takes files by their time of modification.
    os.utime(path, (1_700_000_000 + number,) * 2)


def _check(spark: SparkSession, data: Path, work: Path) -> None:
    """Compare each trade's version with pandas'."""
    trades, versions = (_read(data / name) for name in ("trades", "customers"))
    wanted = pd.merge_asof(trades, versions, on="event_time", by="customer_id")
    # Of a profile its version's number and its length tell enough.
    shown = (F.substring("profile", 1, NUMBER_BYTES), F.length("profile"))
    got = spark.read.format("delta").load(str(work / "out")).select("trade_id", *shown).collect()
    pairs = [(None, None) if pd.isna(each) else (each, PROFILE_BYTES) for each in wanted.profile]
    told = differences(((one, *two) for one, two in zip(wanted.trade_id, pairs, strict=True)), map(tuple, got))
    assert not told, told[0]


def _read(folder: Path) -> pd.DataFrame:
    pieces = []
    for path in sorted(folder.glob("*.parquet")):
        frame = pq.read_table(path).to_pandas()
        if "profile" in frame:
            frame["profile"] = frame["profile"].str[:NUMBER_BYTES]
        pieces.append(frame)
    return pd.concat(pieces).sort_values("event_time", kind="stable")


def main() -> None:
    """Measure, print, and end with 1 if a batch takes more than twice as long as with the smallest state."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 100, 1_000])
    parser.add_argument("--without", action="store_true", help="also measure with all state in Spark's own store")
    parser.add_argument("--batches", type=int, default=9, help="how many batches are measured")
    parser.add_argument("--smoke", action="store_true", help="small sizes, to see that everything works")
    typed = parser.parse_args()
    sizes, batches = ([1, 2], 2) if typed.smoke else (typed.megabytes, typed.batches)
    findings, found = Findings(), list[Measured]()
    with tempfile.TemporaryDirectory(prefix="cojoin-state-sizes-") as name:
        spark = make_session("state sizes", Path(name), memory="6g")
        for megabytes in sizes:
            for in_segments in (True, False) if typed.without else (True,):
                started = time.perf_counter()
                found.append(measure(spark, Path(name), megabytes, batches, in_segments=in_segments))
                last = found[-1]
                print(f"{last}: {time.perf_counter() - started:.0f} s in all", flush=True)
        spark.stop()
    rows: list[tuple[str, ...]] = [
        (
            "state in",
            "MB",
            "MB of state",
            "seconds a batch",
            "from",
            "to",
            "to the least",
            "MB written a batch",
            "fill s",
        )
    ]
    for each in found:
        least = next(other for other in found if other.in_segments == each.in_segments)
        ratio = each.median / least.median
        where = "segments" if each.in_segments else "Spark"
        times = f"{each.median:.2f}", f"{min(each.seconds):.2f}", f"{max(each.seconds):.2f}", f"{ratio:.2f}"
        sizes_mb = f"{each.megabytes:,}", f"{each.state_mb:,.0f}"
        rows.append((where, *sizes_mb, *times, f"{each.written_mb:,.1f}", f"{each.fill_seconds:.0f}"))
        if each.in_segments and not typed.smoke:
            asked = f"a batch with {each.megabytes:,} MB takes at most twice as long as with {least.megabytes:,} MB"
            findings.add(asked, f"{ratio:.2f} times", holds=ratio <= 2)
    print(f"\n{text_table(rows)}")
    raise SystemExit(0 if findings.hold else 1)


if __name__ == "__main__":
    main()
