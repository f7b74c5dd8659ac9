"""How a batch's time grows: ``python -m benchmarks.growth [--only rows,keys] [--quick] [--output J] [--picture P]``.

One warm Spark session joins as of, files into Delta, a query after the other; each varies one dimension of a base. A
batch's time goes from one manifest to the next, so it has everything in it; the first two batches of a query are left
out. Every result's rows are counted, those of up to a million trades compared with the oracle, outside of what is
timed. A line is fitted to each dimension, and one formula to all together. The base runs again in each dimension that
has it, and at the end: what changes there is the machine.

``--state`` adds what another program measured of large states: a JSON list of ``{"megabytes": ..., "seconds": ...}``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cojoin as cj
from benchmarks.findings import Findings, open_input
from benchmarks.growth.curves import Curve, Formula, Point, draw, table
from benchmarks.growth.shapes import BASE, DIMENSIONS, FILES_PER_BATCH, QUICK_BASE, Dimension, Shape, generate
from benchmarks.join.generate import DISORDER_SECONDS
from benchmarks.join.oracle import find_faults
from benchmarks.join.result import count_rows, result_files
from benchmarks.join.spark_side import open_session

if TYPE_CHECKING:
    from collections.abc import Sequence

HEAP = "3g"
COLD_BATCHES = 2
# Java compiles what runs often for many batches on.
WARMING_BATCHES, WARMING_TRADES, QUICK_WARMING_BATCHES = 40, 20_000, 8
COMPARED_TRADES = 1_000_000
MEDIAN_BATCHES = 5
MOST_GROWTH = 0.15


@dataclass(frozen=True)
class Batch:
    """A batch with rows: its seconds from the end of the one before, and its manifest's parts in seconds."""

    seconds: float
    execute: float
    calls: float
    output: float
    state_bytes: int


def run(shape: Shape) -> tuple[list[Batch], dict[str, int]]:
    """Join once: gives all batches with rows but the first, and what is wrong with the result."""
    with tempfile.TemporaryDirectory(prefix="cojoin-growth-") as name:
        folder = Path(name)
        generate(shape, folder / "data")
        watermark = cj.WatermarkStrategy.for_bounded_out_of_orderness(f"{DISORDER_SECONDS} seconds")
        sides = (("trades", shape.trades_ddl), ("customers", shape.customers_ddl))
        inputs = [open_input(folder / "data", side, ddl, FILES_PER_BATCH, watermark) for side, ddl in sides]
        query = (
            cj.connect(*inputs, key_groups=shape.key_groups)
            .asof_join()
            .start(
                output=cj.sinks.delta(str(folder / "out")),
                checkpoint=str(folder / "checkpoint"),
                trigger=cj.Trigger.available_now(drain=True),
            )
        )
        query.await_termination(progress=False)
        report = query.progress
        assert report is not None
        assert report.is_conserved
        return _batches(folder / "checkpoint" / "manifest", shape), _faults(folder, shape)


def _batches(manifests: Path, shape: Shape) -> list[Batch]:
    # The last one is the drain's.
    paths = sorted(manifests.glob("*.json"))[: shape.batches]
    ends = [path.stat().st_mtime_ns / 1e9 for path in paths]
    found = []
    for path, before, end in zip(paths[1:], ends, ends[1:], strict=False):
        manifest = json.loads(path.read_text())["content"]
        parts = [manifest["durations_ms"].get(part, 0.0) / 1000 for part in ("execute", "calls", "output")]
        found.append(Batch(end - before, *parts, manifest["report"]["state_bytes"]))
    assert len(found) == shape.batches - 1, f"{len(paths)} manifests of {shape.batches} batches with rows"
    return found


def _faults(folder: Path, shape: Shape) -> dict[str, int]:
    trades, files = shape.trades * shape.batches, result_files(folder / "out", "delta")
    if trades <= COMPARED_TRADES:
        return find_faults(folder / "data", files)
    off = count_rows(files) - trades
    return {"rows too many" if off > 0 else "rows too few": abs(off)} if off else {}


class Growth:
    """The session, and what was measured in it of each shape."""

    def __init__(self, base: Shape) -> None:
        self.base = base
        self.findings = Findings()
        self.batches: dict[Shape, list[Batch]] = defaultdict(list)
        conf = {"spark.driver.memory": HEAP}
        self._spark = open_session("growth", **conf)

    def stop(self) -> None:
        """Stop the session."""
        self._spark.stop()

    def warm_up(self, batches: int) -> None:
        """Let the session run until it is as fast as it gets."""
        trades = min(self.base.trades, WARMING_TRADES)
        self.measure(replace(self.base, trades=trades, batches=batches), "warming up")
        self.batches.clear()

    def measure(self, shape: Shape, what: str) -> list[Batch]:
        """Run a shape; gives its warm batches, and none where it failed: the others still count."""
        started = time.perf_counter()
        try:
            batches, faults = run(shape)
        except Exception as error:  # noqa: BLE001 - a point that the machine is too small for is a finding, too
            self.findings.add(what, " ".join(str(error).split())[:200], holds=False)
            return []
        # The first of all is not among them.
        warm = batches[COLD_BATCHES - 1 :]
        self.batches[shape] += warm
        verdict = ", ".join(f"{rows:,} {fault}" for fault, rows in faults.items()) or "right"
        taken = time.perf_counter() - started
        self.findings.add(what, f"{_seconds(warm):.2f} s a batch, {taken:.0f} s in all, {verdict}", holds=not faults)
        return warm

    def curve(self, name: str, dimension: Dimension, values: Sequence[float]) -> Curve:
        """Measure a dimension."""
        if dimension.field == "batches":
            points = self._over_time(name, dimension, values)
        else:
            points = []
            for value in values:
                warm = self.measure(dimension.shape(self.base, value), f"{name} {value:,}")
                if warm:
                    points.append(_point(value, warm))
        return Curve.of(name, dimension.axis, points, dimension.units(self.base), dimension.unit)

    def medians(self) -> dict[Shape, float]:
        """Return each shape's time of a batch."""
        return {shape: _seconds(found) for shape, found in self.batches.items() if found}

    def _over_time(self, name: str, dimension: Dimension, values: Sequence[float]) -> list[Point]:
        """Run one query, and give the median of the batches up to each of the numbers."""
        shape = dimension.shape(self.base, int(max(values)))
        warm = self.measure(shape, f"{name} {shape.batches}")
        if not warm:
            return []
        ends = [int(value) - COLD_BATCHES for value in values]
        windows = [warm[max(0, end - MEDIAN_BATCHES) : end] for end in ends]
        points = [_point(value, window) for value, window in zip(values, windows, strict=True)]
        growth = points[-1].seconds / points[0].seconds - 1
        asked = f"batch {values[-1]} takes no longer than batch {values[0]}"
        self.findings.add(asked, f"{growth:+.0%}", holds=growth < MOST_GROWTH)
        return points


def _seconds(batches: Sequence[Batch]) -> float:
    return statistics.median(each.seconds for each in batches)


def _point(value: float, batches: Sequence[Batch]) -> Point:
    seconds = [each.seconds for each in batches]
    parts = {
        part: statistics.median(getattr(each, part) for each in batches) for part in ("execute", "calls", "output")
    }
    state = batches[-1].state_bytes / 1e6
    return Point(value, _seconds(batches), min(seconds), max(seconds), **parts, state_megabytes=state)


def main() -> None:
    """Measure, print, and end with 1 if a result is wrong, a point failed, or batches get slower."""
    arguments = _arguments()
    growth = Growth(QUICK_BASE if arguments.quick else BASE)
    started = time.perf_counter()
    growth.warm_up(QUICK_WARMING_BATCHES if arguments.quick else WARMING_BATCHES)
    growth.measure(growth.base, "base")
    curves = []
    for name in arguments.only:
        dimension = DIMENSIONS[name]
        curves.append(growth.curve(name, dimension, dimension.quick if arguments.quick else dimension.values))
    again = growth.measure(growth.base, "base again")
    drift = _seconds(again) / growth.medians()[growth.base] - 1 if again else None
    growth.stop()
    if arguments.state:
        measured = json.loads(arguments.state.read_text())
        points = [Point(each["megabytes"], each["seconds"], state_megabytes=each["megabytes"]) for each in measured]
        curves.append(Curve.of("state", "MB of state", points, 1 / 1000, "GB of state"))
    print(f"\n{table(curves)}")
    together = Formula.of(growth.medians()) if len(arguments.only) == len(DIMENSIONS) else None
    if together:
        print(together)
    if drift is not None:
        print(f"at the end the base took {drift:+.0%} of its median")
    print(f"all took {time.perf_counter() - started:.0f} s")
    if arguments.output:
        report = {"machine": _machine(), "base": asdict(growth.base), "together": together and asdict(together)}
        report |= {"drift": drift, "findings": growth.findings.rows}
        arguments.output.write_text(json.dumps(report | {"curves": [asdict(each) for each in curves]}, indent=1))
    if arguments.picture:
        base = growth.base
        title = f"A batch of {base.trades:,} trades, {base.keys:,} keys, {base.key_groups} key groups, varied; 2 cores"
        draw([each for each in curves if each.points], title, arguments.picture)
    raise SystemExit(0 if growth.findings.hold else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=_names, default=list(DIMENSIONS), help=f"some of {','.join(DIMENSIONS)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything works")
    parser.add_argument("--state", type=Path, help="points of large states that were measured elsewhere")
    parser.add_argument("--output", type=Path, help="where the results go as JSON")
    parser.add_argument("--picture", type=Path, help="where the picture goes as PNG")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(DIMENSIONS):
        msg = f"no dimension {', '.join(sorted(unknown))}; there are {', '.join(DIMENSIONS)}"
        raise argparse.ArgumentTypeError(msg)
    return names


def _machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}


if __name__ == "__main__":
    main()
