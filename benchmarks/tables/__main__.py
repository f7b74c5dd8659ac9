"""A Delta table as a side of a stream, beside Spark's own stream-static join on the same data, with the same answer.

    python -m benchmarks.tables [--customers 5000000] [--changes 1000000] [--trades 5000000] [--batches 5]
                                [--contenders static spark feed] [--rounds 1] [--memory 4g] [--smoke]

Customers are a Delta table, some of them changed by a second commit, and trades are files, one for each micro-batch;
the joined rows go into a Delta table. Each contender runs in a process of its own, after a small shop to warm up, and
prints when the first joined row was there, when the last was, and the peak of its memory, JVM and workers included.
What came out is compared with what was worked out from the trades without a join. The bar is on the time of ``static``:
at most 1.5 times Spark's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.findings import Findings
from benchmarks.footprint import Footprint
from benchmarks.tables.side import CONTENDERS, Shop, make_session

BAR = 1.5
ROOT = Path(__file__).resolve().parents[2]


def run(name: str, folder: Path) -> dict[str, Any]:
    """Run a contender in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.tables.side", name, str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with Footprint(process.pid) as footprint:
        out, error = process.communicate()
    if process.returncode:
        print(error[-4000:], file=sys.stderr)
        raise SystemExit(process.returncode)
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return {**found, "peak": footprint.peak}


def main() -> None:
    """Write the shop, run the contenders in turns, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("customers", 5_000_000), ("changes", 1_000_000), ("trades", 5_000_000), ("batches", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=["static", "spark"])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--memory", default="4g", help="the driver's heap")
    parser.add_argument("--smoke", action="store_true", help="a small size, to see that it works")
    chosen = parser.parse_args()
    sizes = {name: getattr(chosen, name) for name in ("customers", "changes", "trades", "batches")}
    if chosen.smoke:
        sizes = {"customers": 20_000, "changes": 2_000, "trades": 20_000, "batches": 2}
    findings, best, least = Findings(), {}, {}
    with tempfile.TemporaryDirectory() as root:
        for number in range(chosen.rounds):
            folder = Path(root) / str(number)
            folder.mkdir()
            (folder / "shop.json").write_text(json.dumps({**sizes, "memory": chosen.memory}))
            spark = make_session("shop", chosen.memory)
            Shop(folder / "shop", **sizes).write(spark)
            spark.stop()
            for name in chosen.contenders:
                found = run(name, folder)
                told = (
                    f"first row {found['first']:.1f} s, end {found['end']:.1f} s, peak {found['peak'] / 2**30:.1f} GiB,"
                    f" {found['cpu']:.1f} CPU s"
                )
                findings.add(f"{name}: the rows are those that were worked out", told, holds=found["right"])
                best[name] = min(best.get(name, found["end"]), found["end"])
                least[name] = min(least.get(name, found["cpu"]), found["cpu"])
    if {"static", "spark"} <= best.keys():
        ratio = best["static"] / best["spark"]
        told = f"{ratio:.2f}, and {least['static'] / least['spark']:.2f} times its CPU"
        findings.add(f"static takes at most {BAR} times Spark's time", told, holds=ratio <= BAR)
    raise SystemExit(0 if findings.hold else 1)


if __name__ == "__main__":
    main()
