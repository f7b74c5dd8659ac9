"""``python -m benchmarks.join [--trades N] [--keys N] [--rounds N] [--only NAME ...] [--output JSON] [--picture PNG]``.

Ends with 1 if a contender failed or its result is wrong. One that is not installed is reported, and does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.join.environments import InstallError
from benchmarks.join.picture import draw
from benchmarks.join.registry import BY_NAME, CONTENDERS, FLOORS
from benchmarks.join.rounds import run_rounds, sizes_of
from benchmarks.join.table import figures, table
from cojoin.engine.display import text_table
from cojoin.session.versions import delta_package, has_delta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.join.contender import Contender
    from benchmarks.join.table import Figures

SMOKE = (20_000, 100)


def main() -> None:
    """Do what the arguments say."""
    # Whoever ends this ends the contender that runs, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    arguments = _arguments()
    if arguments.list:
        print(_list())
    elif arguments.install:
        raise SystemExit(_install(arguments.install))
    else:
        raise SystemExit(_measure(arguments))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trades", type=int, default=5_000_000, help="trades; versions are a fifth of them")
    parser.add_argument("--keys", type=int, default=10_000, help="distinct customers")
    parser.add_argument("--rounds", type=int, default=3, help="how often each contender runs")
    parser.add_argument("--only", nargs="+", choices=[*BY_NAME], help="run only these; add a floor to get ratios")
    parser.add_argument("--whole", action="store_true", help="give slow contenders all trades, too")
    parser.add_argument("--smoke", action="store_true", help="a small run, to see that everything works")
    parser.add_argument("--output", type=Path, help="where the results go as JSON")
    parser.add_argument("--picture", type=Path, help="where the picture goes as PNG")
    parser.add_argument("--folder", type=Path, help="where data and results are kept while it runs")
    parser.add_argument("--list", action="store_true", help="show the contenders, and which are installed")
    parser.add_argument("--install", metavar="NAME", help="make a contender's environment, or 'all'")
    return parser.parse_args()


def _measure(arguments: argparse.Namespace) -> int:
    trades, keys = SMOKE if arguments.smoke else (arguments.trades, arguments.keys)
    rounds = 1 if arguments.smoke else arguments.rounds
    chosen = [each for each in CONTENDERS if each.name in (arguments.only or BY_NAME)]
    missing = _missing(chosen)
    there = [each for each in chosen if each.name not in missing]
    sizes = sizes_of(there, trades, keys, whole=arguments.whole)
    with tempfile.TemporaryDirectory(prefix="cojoin-benchmark-", dir=arguments.folder) as folder:
        runs = run_rounds(there, sizes, rounds, Path(folder))
    rows = figures(chosen, runs, missing)
    print(table(rows))
    if arguments.output:
        report = {"machine": _machine(), "keys": keys, "contenders": [_described(each) for each in rows]}
        report["runs"] = [each.as_dict() for each in runs]
        arguments.output.write_text(json.dumps(report, indent=1))
    if arguments.picture:
        draw(rows, f"{trades:,} trades, {trades // 5:,} versions, {keys:,} keys, 2 cores", arguments.picture)
    return 0 if all(run.is_exact for run in runs) else 1


def _missing(contenders: Sequence[Contender]) -> dict[str, str]:
    reasons = {each.name: each.environment.missing() for each in contenders if each.environment is not None}
    return {name: reason for name, reason in reasons.items() if reason}


def _list() -> str:
    missing = _missing(CONTENDERS)
    rows = [("contender", "what", "sink", "at most", "floor", "installed")]
    for each in CONTENDERS:
        most = f"{each.trades_at_most:,}" if each.trades_at_most else "-"
        floor = "-" if each.name in FLOORS else each.floor
        rows.append((each.name, each.about, each.sink, most, floor, missing.get(each.name, "yes")))
    return text_table(rows)


def _install(name: str) -> int:
    """Make one environment or all; what can't be had is said, and the rest goes on."""
    wanted = {each.environment.name: each.environment for each in CONTENDERS if each.environment is not None}
    if name != "all":
        own = BY_NAME[name].environment if name in BY_NAME else wanted.get(name)
        if own is None:
            known = ", ".join(wanted)
            print(f"{name}: nothing to install" if name in BY_NAME else f"no contender {name!r}; there are {known}")
            return 0 if name in BY_NAME else 2
        wanted = {own.name: own}
    failed = 0
    for environment in wanted.values():
        print(f"{environment.name}: {', '.join(environment.pins)}", flush=True)
        try:
            environment.install()
        except InstallError as error:
            failed = 1
            print(f"{environment.name} could not be installed:\n{error}", file=sys.stderr)
    return failed


def _described(row: Figures) -> dict[str, Any]:
    contender, environment = row.contender, row.contender.environment
    return {
        "name": contender.name,
        "about": contender.about,
        "sink": contender.sink,
        "pins": list(environment.pins) if environment else [],
        "trades": row.trades,
        "seconds": row.seconds,
        "trades_a_second": row.rate,
        "trades_a_second_warm": row.warm_rate,
        "times_the_floor": row.ratios,
        "cpu_seconds": row.cpu_seconds,
        "peak_bytes": row.peak_bytes,
        "problem": row.problem,
    }


def _machine() -> dict[str, Any]:
    packages = {name: version(name) for name in ("cojoin", "pyspark", "deltalake", "pyarrow", "pandas", "numpy")}
    about = {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}
    return {**about, **packages, "delta": delta_package() if has_delta() else None}


if __name__ == "__main__":
    main()
