"""Topics whose times or offsets mislead, replayed: ``python -m benchmarks.replay.hard_topics [--seeds N] [--smoke]``.

A real broker holds three weeks of trades and versions, as they are hard to replay: written by transactions, of which
some were aborted; compacted, with holes; with records and stamps of the year 2100; with nearly all in one partition and
a millisecond that holds more than a batch may; and all of that at once. Each is replayed up to a time in its middle and
then to its end, in slices, and compared with pandas, row for row. Nothing may be late, and no batch too large.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.findings import Findings
from benchmarks.session import make_session
from cojoin.engine.display import text_table
from tests.kafka.hard_replay import Outcome, replay_hard
from tests.kafka.hard_topics import KINDS
from tests.servers.broker import Broker

HEADER = ("topics", "seed", "trades + versions", "too far ahead", "late", "batches", "largest", "seconds", "result")
ALL = "all at once"


def table(outcomes: dict[tuple[str, int], Outcome]) -> str:
    """Return what was measured as text."""
    rows: list[tuple[str, ...]] = [HEADER]
    for (kind, seed), each in outcomes.items():
        rows.append(
            (
                kind,
                f"{seed}",
                " + ".join(f"{count:,}" for count in each.rows),
                " + ".join(f"{count:,}" for count in each.too_far),
                f"{each.late:,}",
                f"{each.batches:,}",
                f"{each.largest:,}",
                f"{each.seconds:.1f}",
                "; ".join(each.faults) or "exact",
            )
        )
    return text_table(rows)


def main() -> None:
    """Replay each kind of topic with each seed, and end with 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trades", type=int, default=20_000, help="trades; there are a tenth as many versions")
    parser.add_argument("--max-records", type=int, default=2_000, help="records of an input in a batch")
    parser.add_argument("--seeds", type=int, default=3, help="with how many seeds each kind is replayed")
    parser.add_argument("--seed", type=int, help="the first of them; another one each time if not given")
    parser.add_argument("--only", choices=[*KINDS, ALL], action="append", help="only these topics (may be repeated)")
    parser.add_argument("--smoke", action="store_true", help="a small run, to see that everything works")
    parser.add_argument("--output", type=Path, help="where the results go as JSON")
    arguments = parser.parse_args()
    first = random.randrange(10_000) if arguments.seed is None else arguments.seed
    trades, limit = (2_000, 700) if arguments.smoke else (arguments.trades, arguments.max_records)
    findings, outcomes = Findings(), {}
    with tempfile.TemporaryDirectory(prefix="cojoin-hard-topics-") as folder, Broker() as broker:
        spark = make_session("hard topics", Path(folder), kafka=True)
        for seed in range(first, first + arguments.seeds):
            for kind in arguments.only or [*KINDS, ALL]:
                work = Path(folder) / f"{kind.replace(' ', '-')}-{seed}"
                work.mkdir()
                kinds = KINDS if kind == ALL else [kind]
                servers = broker.bootstrap_servers
                found = replay_hard(spark, servers, work, kinds, seed=seed, trades=trades, limit=limit)
                outcomes[kind, seed] = found
                findings.add(f"{kind}, seed {seed}", "; ".join(found.faults) or "exact", holds=not found.faults)
                said = f"{found.largest:,} of {limit:,} records"
                findings.add(f"{kind}, seed {seed}, largest batch", said, holds=found.largest <= limit)
        spark.stop()
    print(f"\n{table(outcomes)}", flush=True)
    if arguments.output:
        results = [{"topics": kind, "seed": seed} | asdict(each) for (kind, seed), each in outcomes.items()]
        arguments.output.write_text(json.dumps(results, indent=1))
    raise SystemExit(0 if findings.hold else 1)


if __name__ == "__main__":
    main()
