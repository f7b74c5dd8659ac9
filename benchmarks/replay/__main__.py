"""Weeks of two Kafka topics replayed: ``python -m benchmarks.replay [--rounds N] [--kills N] [--format F] [--smoke]``.

A real broker holds three weeks of trades and versions, 4 partitions each, whose rates differ and change, of which one
is empty, one stops half way and one is silent for days; records are up to 5 seconds out of order. The contenders run in
turn, each in a process of its own: `plain` reads, decodes and writes with Spark alone, which is what any join must at
least do; `aligned` joins as of, reading by cojoin's own source; `unaligned` joins what Spark's source reads, with one
watermark a topic, and `by-partition` with one a partition; `flink` is Flink's own source and function in Java, where it
is installed (``python -m benchmarks.join --install flink-java``). Each result is compared with the oracle, row for row.
With ``--kills``, the aligned replay is also killed so often and started again. Ratios are to `plain` of the same round.
With ``--format``, the same history is replayed as JSON and in formats of a schema registry instead (``formats``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.findings import Findings
from benchmarks.replay.by_flink import missing
from benchmarks.replay.formats import FORMATS, run_formats
from benchmarks.replay.job import Measured, Replay, prepare
from benchmarks.replay.killing_a_replay import kill_and_compare, run_contender
from benchmarks.replay.process import CONTENDERS
from cojoin.engine.display import text_table
from tests.kafka.history import make_history
from tests.seeds import SEED
from tests.servers.broker import Broker

JOINS = tuple(name for name in CONTENDERS if name not in ("plain", "flink"))
MOST_BUFFERED, LEAST_THROUGHPUT, MOST_GIGABYTES = 3.0, 0.6, 3.0
HEADER = (
    "contender",
    "seconds",
    "records/s",
    "of plain's",
    "CPU s",
    "batches",
    "late trades",
    "late versions",
    "result",
    "buffered",
    "of what the bound holds",
    "peak GB",
)


def run_rounds(replay: Replay, folder: Path, rounds: int, contenders: tuple[str, ...]) -> list[dict[str, Measured]]:
    """Run the contenders in turn."""
    job = replay.write(folder)
    results = []
    for _ in range(rounds):
        measured = {}
        for name in contenders:
            with tempfile.TemporaryDirectory(dir=folder, prefix=f"{name}-") as work:
                measured[name] = run_contender(name, job, Path(work))
            print(measured[name].to_json(), file=sys.stderr, flush=True)
        results.append(measured)
    return results


def table(replay: Replay, results: list[dict[str, Measured]], contenders: tuple[str, ...]) -> str:
    """Return what was measured, medians of the rounds where there are several, as text."""
    rows: list[tuple[str, ...]] = [HEADER]
    for name in contenders:
        mine = [measured[name] for measured in results]
        seconds = statistics.median(each.seconds for each in mine)
        rate, shares = sum(replay.sizes) / seconds, throughput_shares(results, name)
        faults = [", ".join(f"{count:,} {what}" for what, count in each.faults.items()) for each in mine if each.faults]
        buffered = max((each.buffered for each in mine), key=sum)
        joins = name in JOINS
        rows.append(
            (
                name,
                f"{seconds:.1f}",
                f"{rate:,.0f}",
                f"{statistics.median(shares):.2f}" if shares else "-",
                f"{statistics.median(each.cpu_seconds for each in mine):.1f}",
                f"{len(mine[0].batches)}",
                *((f"{max(each.late[side] for each in mine):,}" if joins else "-") for side in range(2)),
                faults[0] if faults else "exact",
                f"{buffered[0]:,} + {buffered[1]:,}" if joins else "-",
                f"{buffered_share(replay, mine):.2f}" if joins else "-",
                f"{max(each.peak_bytes for each in mine) / 1e9:.2f}",
            )
        )
    return text_table(rows)


def throughput_shares(results: list[dict[str, Measured]], name: str) -> list[float]:
    """Return a contender's throughput as a share of plain Spark's, for each round that has both."""
    return [each["plain"].seconds / each[name].seconds for each in results if {"plain", name} <= set(each)]


def buffered_share(replay: Replay, mine: list[Measured]) -> float:
    """Return the largest ratio of buffered rows to what the drift bound holds, of trades or of versions."""
    return max(
        buffered / max(1, held)
        for each in mine
        for buffered, held in zip(each.buffered, replay.held_by_the_bound, strict=True)
    )


def judge(replay: Replay, results: list[dict[str, Measured]], findings: Findings, *, small: bool) -> None:
    """Hold the aligned replay against what was promised; a small one's speed is that of the start, and says nothing."""
    mine = [measured["aligned"] for measured in results if "aligned" in measured]
    if not mine:
        return
    late, faults = max(sum(each.late) for each in mine), [each.faults for each in mine if each.faults]
    findings.add("equals the oracle", str(faults[0]) if faults else "exact", holds=not faults)
    findings.add("no row is late", f"{late:,}", holds=late == 0)
    share = buffered_share(replay, mine)
    findings.add(f"buffered, of what the bound holds, at most {MOST_BUFFERED}", f"{share:.3f}", holds=share <= 3)
    peak = max(each.peak_bytes for each in mine) / 1e9
    findings.add(f"peak memory below {MOST_GIGABYTES} GB", f"{peak:.2f} GB", holds=peak < MOST_GIGABYTES)
    if (shares := throughput_shares(results, "aligned")) and not small:
        median = statistics.median(shares)
        spread = f"{median:.2f} ({min(shares):.2f} to {max(shares):.2f})"
        findings.add(
            f"throughput, of plain Spark's, at least {LEAST_THROUGHPUT}", spread, holds=median >= LEAST_THROUGHPUT
        )


def main() -> None:
    """Fill the topics, run the contenders and the kills, and end with 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trades", type=int, default=2_000_000, help="trades, over three weeks")
    parser.add_argument("--versions", type=int, default=200_000, help="versions of customers, over the same")
    parser.add_argument("--keys", type=int, default=10_000, help="distinct customers")
    parser.add_argument("--max-records", type=int, default=500_000, help="records of an input in a batch")
    parser.add_argument(
        "--heap", default="1g", help="the heap of each contender's JVM; Spark's own default if not given"
    )
    parser.add_argument("--rounds", type=int, default=1, help="how often each contender runs")
    parser.add_argument("--only", choices=CONTENDERS, action="append", help="run only this contender (may be repeated)")
    parser.add_argument(
        "--format", choices=FORMATS, action="append", help="compare this format with JSON instead (may be repeated)"
    )
    parser.add_argument("--kills", type=int, default=0, help="how often a replay is killed and started again")
    parser.add_argument("--killed", choices=JOINS, default="aligned", help="which replay is killed")
    parser.add_argument(
        "--seed",
        type=int,
        default=SEED,
        help="chooses the kills' moments; else COJOIN_SEED, or another each time",
    )
    parser.add_argument("--smoke", action="store_true", help="a small run, to see that everything works")
    parser.add_argument("--output", type=Path, help="where the results go as JSON")
    arguments = parser.parse_args()
    sizes = (20_000, 2_000) if arguments.smoke else (arguments.trades, arguments.versions)
    max_records = 5_000 if arguments.smoke else arguments.max_records
    contenders = tuple(name for name in CONTENDERS if name in (arguments.only or CONTENDERS))
    if "flink" in contenders and (why := missing()) is not None:
        print(f"flink: {why}", file=sys.stderr, flush=True)
        contenders = tuple(name for name in contenders if name != "flink")
    findings, seed = Findings(), arguments.seed
    results: list[dict[str, Measured]] = []
    with tempfile.TemporaryDirectory(prefix="cojoin-replay-") as folder, Broker() as broker:
        started = time.perf_counter()
        history = make_history(*sizes, keys=arguments.keys)
        if arguments.format:
            run_formats(
                broker,
                history,
                arguments.format,
                rounds=arguments.rounds,
                max_records=max_records,
                heap=arguments.heap,
                findings=findings,
                small=arguments.smoke,
            )
            raise SystemExit(0 if findings.hold else 1)
        replay = replace(prepare(broker, history, Path(folder), max_records), heap=arguments.heap)
        del history
        print(f"filled {sum(sizes):,} records in {time.perf_counter() - started:.1f} s", flush=True)
        if arguments.rounds:
            results = run_rounds(replay, Path(folder), arguments.rounds, contenders)
        if arguments.kills:
            print(f"seed {seed}", flush=True)
            (Path(folder) / "kills").mkdir()
            killed, last = kill_and_compare(replay, Path(folder) / "kills", arguments.kills, seed, arguments.killed)
            said = f"{killed.count} kills: {last.faults or 'exact'}, {sum(last.late)} late"
            findings.add("killed and started again", said, holds=not last.faults and killed.count == arguments.kills)
    if results:
        held = " + ".join(f"{count:,}" for count in replay.held_by_the_bound)
        print(f"\n{table(replay, results, contenders)}\n\nthe drift bound holds {held} rows", flush=True)
        judge(replay, results, findings, small=arguments.smoke)
    if arguments.output:
        runs = [{name: asdict(measured) for name, measured in each.items()} for each in results]
        arguments.output.write_text(json.dumps({"replay": asdict(replay), "rounds": runs}, indent=1))
    raise SystemExit(0 if findings.hold else 1)


if __name__ == "__main__":
    main()
