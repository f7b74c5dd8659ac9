"""The benchmark: ``python benchmarks/run.py [--rounds N] [--trades N] [--smoke]``.

Runs plain Spark, the as-of join and two row functions in turn, each in a process of its own, as often as asked, and
prints seconds, rows a second cold and warm, peak memory, and the ratios to plain Spark of the same round. Plain Spark
reads, shuffles by key and writes the same rows into Delta: what any join must at least do. Every result is compared
with the oracle. `rows` yields each trade as it comes in the order of time, `timers` keeps it in a state until a timer
of its own; both get a fifth of the rows, and so does a plain Spark beside them, `rows-whole` gets all. Ratios mean more
than seconds: they survive a slow or busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from generate import Size, generate

HERE = Path(__file__).parent
CONTENDERS = ("plain", "asof", "rows-whole", "plain-fifth", "rows", "timers")
FLOORS = {
    "plain": "plain",
    "asof": "plain",
    "rows-whole": "plain",
    "plain-fifth": "plain-fifth",
    "rows": "plain-fifth",
    "timers": "plain-fifth",
}


def main() -> None:
    """Parse the arguments, run the rounds, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trades", type=int, default=5_000_000, help="trades; versions are a fifth of them")
    parser.add_argument("--keys", type=int, default=10_000, help="distinct customers")
    parser.add_argument("--files", type=int, default=10, help="files an input, two of them a batch")
    parser.add_argument("--rounds", type=int, default=3, help="how often each contender runs")
    parser.add_argument("--only", choices=CONTENDERS, action="append", help="run only this contender (may be repeated)")
    parser.add_argument("--smoke", action="store_true", help="a small run, to see that everything works")
    parser.add_argument("--output", type=Path, help="where the results go as JSON")
    arguments = parser.parse_args()
    trades = 20_000 if arguments.smoke else arguments.trades
    keys = 100 if arguments.smoke else arguments.keys
    size = Size(trades, trades // 5, keys, arguments.files)
    with tempfile.TemporaryDirectory(prefix="cojoin-benchmark-") as folder:
        results = run_rounds(
            size, Path(folder), 1 if arguments.smoke else arguments.rounds, arguments.only or CONTENDERS
        )
    print(table(results))
    if arguments.output:
        report = {"machine": machine(), "size": vars(size), "results": results}
        arguments.output.write_text(json.dumps(report, indent=1))


def run_rounds(size: Size, folder: Path, rounds: int, contenders: Any) -> list[dict[str, Any]]:
    """Run the contenders in turn."""
    sizes = {name: size if FLOORS[name] == "plain" else size.fifth() for name in CONTENDERS}
    for name, each in (("whole", size), ("fifth", size.fifth())):
        (folder / name).mkdir()
        generate(each, folder / name)
    results = []
    for number in range(rounds):
        for name in contenders:
            data = folder / ("whole" if sizes[name] is size else "fifth")
            with tempfile.TemporaryDirectory(dir=folder, prefix=f"{name}-") as work:
                result = run_contender(name, data, Path(work))
            rows = sizes[name].trades + sizes[name].versions
            result |= {"round": number, "rows": rows, "trades": sizes[name].trades, "files": size.files}
            print(json.dumps(result), file=sys.stderr, flush=True)
            results.append(result)
    return results


def run_contender(name: str, data: Path, work: Path) -> dict[str, Any]:
    """Run one contender in a process of its own; its result is right if it ends well."""
    root = str(HERE.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, str(HERE)])}
    done = subprocess.run(
        [sys.executable, str(HERE / "contender.py"), name, str(data), str(work)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-8000:], file=sys.stderr)
        msg = f"contender {name} failed"
        raise SystemExit(msg)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def table(results: list[dict[str, Any]]) -> str:
    """Give medians and ranges over the rounds as text."""
    header = f"{'contender':10} {'seconds':>22} {'trades/s cold':>14} {'warm':>10} {'peak GB':>8}"
    lines = [f"{header}  time per row to plain Spark's with all rows / with the same rows"]
    floors = {(each["name"], each["round"]): each["seconds"] / each["rows"] for each in results}
    for name in CONTENDERS:
        mine = [each for each in results if each["name"] == name]
        if not mine:
            continue
        seconds = [each["seconds"] for each in mine]
        cold = statistics.median(each["trades"] / each["seconds"] for each in mine)
        warm = statistics.median(_warm_rate(each) for each in mine)
        peak = max(each["peak_bytes"] for each in mine) / 1e9
        shown = " / ".join(_ratio(mine, floors, floor) for floor in ("plain", FLOORS[name]))
        spread = f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
        lines.append(f"{name:10} {spread:>22} {cold:>14,.0f} {warm:>10,.0f} {peak:>8.2f}  {shown}")
    return "\n".join(lines)


def _ratio(mine: list[dict[str, Any]], floors: dict[tuple[str, int], float], floor: str) -> str:
    ratios = [
        each["seconds"] / each["rows"] / floors[floor, each["round"]]
        for each in mine
        if (floor, each["round"]) in floors
    ]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-"


def _warm_rate(result: dict[str, Any]) -> float:
    """Trades a second in the last batches that carry data: the first two warm the JVM up, a drain's last has none."""
    count = -(-result["files"] // 2)
    batches = result["batches"][2:count] or result["batches"]
    return float(result["trades"] / count / statistics.median(batches))


def machine() -> dict[str, Any]:
    """Say on what this ran."""
    import pyarrow as pa  # noqa: PLC0415
    import pyspark  # noqa: PLC0415

    return {
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "pyarrow": pa.__version__,
    }


if __name__ == "__main__":
    main()
