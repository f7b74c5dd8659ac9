"""What a diff costs, and that it is exact.

    python -m benchmarks.diff [--trades 2000000] [--rounds 3] [--seed 7] [--embedded] [--smoke]

Two versions of an as-of join of trades with versions of customers differ in one rule: which of several versions with
one event time counts. In turns one version is replayed (its output goes to Spark's ``noop`` sink, the cheapest there
is), the two versions are compared, and a version is compared with itself. Asked are: exactly the trades that pandas'
``merge_asof`` says; none for unchanged code; and at most 2.5 times the time of the replay.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

import cojoin as cj
from benchmarks.diff.history import affected_trades, write_history
from benchmarks.findings import Findings
from benchmarks.session import make_session
from cojoin.engine.display import text_table

if TYPE_CHECKING:
    from collections.abc import Callable

MOST = 2.5


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trades", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--embedded", action="store_true", help="in this process, without Spark")
    parser.add_argument("--smoke", action="store_true", help="20,000 trades, one round, no limit for the time")
    asked = parser.parse_args()
    if asked.smoke:
        asked.trades, asked.rounds = 20_000, 1
    findings = Findings()
    with tempfile.TemporaryDirectory(prefix="cojoin-diff-") as name:
        folder = Path(name)
        write_history(folder, asked.trades, asked.seed)
        if asked.embedded:
            read: Callable[[str], Any] = partial(_read, folder)
            replay: Callable[[cj.Joined], Any] = cj.Joined.run
        else:
            spark = make_session("diff", folder, memory="4g")
            read = lambda side: spark.read.parquet(str(folder / side))  # noqa: E731
            replay = lambda joined: joined.to_dataframe().write.format("noop").mode("overwrite").save()  # noqa: E731
        trades, customers = read("trades"), read("customers")
        versions = [_version(trades, customers, rule) for rule in ("first", "last")]
        measure(versions, replay, affected_trades(folder), asked.rounds, findings, timed=not asked.smoke)
    print("\n" + text_table([("asked", "measured", ""), *findings.rows]))
    raise SystemExit(not findings.hold)


def _read(folder: Path, side: str) -> Any:
    return pq.read_table(folder / side)


def _version(trades: Any, customers: Any, rule: str) -> cj.Joined:
    columns = {"key": "customer_id", "event_time": "event_time"}
    pair = cj.connect(
        cj.Input(trades, **columns, name="trades"), cj.Input(customers, **columns, name="customers", sequence=rule)
    )
    return pair.asof_join()


def measure(
    versions: list[cj.Joined],
    replay: Callable[[cj.Joined], Any],
    affected: np.ndarray,
    rounds: int,
    findings: Findings,
    *,
    timed: bool,
) -> None:
    """Replay and compare in turns, and check what is found."""
    seconds: dict[str, list[float]] = {"replay": [], "changed": [], "unchanged": []}
    if timed:
        # The first run warms the JVM up, and is not counted.
        replay(versions[0])
    for number in range(rounds):
        for name, taken in seconds.items():
            started = time.perf_counter()
            if name == "replay":
                replay(versions[number % 2])
            else:
                found = cj.diff(versions[0], versions[1] if name == "changed" else versions[0])
            taken.append(time.perf_counter() - started)
            if name == "changed":
                _check_changed(found, affected, findings)
            elif name == "unchanged":
                findings.add("unchanged: rows that differ", f"{found.counts.differing:,}", holds=found.equal)
        print({name: round(each[-1], 1) for name, each in seconds.items()}, flush=True)
    once = statistics.median(seconds["replay"])
    for name in ("changed", "unchanged"):
        ratio = statistics.median(seconds[name]) / once
        asked = f"{name}: at most {MOST} times one replay of {once:.1f} s"
        findings.add(asked, f"{ratio:.2f}", holds=ratio <= MOST or not timed)


def _check_changed(found: Any, affected: np.ndarray, findings: Findings) -> None:
    rows = found.changed
    table = rows.select(["trade_id"]) if hasattr(rows, "column_names") else rows.select("trade_id").toArrow()
    ids = np.sort(table.column("trade_id").to_numpy())
    exact = np.array_equal(ids, affected) and found.counts.differing == len(affected)
    findings.add("changed: the trades that merge_asof says", f"{len(ids):,} of {len(affected):,}", holds=exact)


if __name__ == "__main__":
    main()
