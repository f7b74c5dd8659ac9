"""Where an as-of join's time goes: ``python -m benchmarks.join.waterfall [--trades N] [--output F] [--picture F]``.

Runs the join of ``benchmarks.join`` once, from files into Delta, and cuts the run's time into steps that follow each
other: before the first batch, then of each batch Spark's choice of offsets and its planning, the map stage (reading,
packing, the shuffle's writing), the reduce stage (state, the calls, the files), the commit of the output, what else the
driver does, Spark's own commit; then the end. Stages come from Spark's event log, with the share that the JVM computed;
what Spark does around a batch from its progress; the rest from manifests. Steps of the first two batches are cold.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from benchmarks.join.contender import Job
from benchmarks.join.contenders import cojoin_joins
from benchmarks.join.generate import Size, generate
from benchmarks.join.oracle import find_faults
from benchmarks.join.result import result_files
from benchmarks.join.spark_side import open_session
from cojoin.engine.display import text_table

if TYPE_CHECKING:
    from collections.abc import Iterable

COLD_BATCHES = 2
OFFSETS, PLANNING, LOGS = "choose offsets", "plan", "Spark's logs"
MAP, REDUCE, COMMIT, DRIVER = "map stage", "reduce stage", "commit the output", "the driver's rest"
STEPS = (OFFSETS, PLANNING, MAP, REDUCE, COMMIT, DRIVER, LOGS)
COLOURS = dict(zip(STEPS, ("#c3cbd3", "#9aa5b1", "#1b6ca8", "#5aa1d6", "#e0a458", "#7a9e7e", "#52606d"), strict=True))


class _Told(StreamingQueryListener):
    """Keeps what Spark tells of each batch."""

    def __init__(self) -> None:
        self.durations: dict[int, dict[str, int]] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's names
        """Keep nothing."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Keep a batch's durations; a trigger without a batch tells of none."""
        progress = event.progress
        if "addBatch" in progress.durationMs:
            self.durations[int(progress.batchId)] = dict(progress.durationMs)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Keep nothing."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Keep nothing."""


@dataclass
class Stages:
    """What Spark's event log says of a batch: milliseconds of its map and its reduce stage, and of the JVM in them."""

    wall: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    jvm: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def read_events(lines: Iterable[str]) -> dict[int, Stages]:
    """Read an event log: the two stages of each batch's own job, told by what their tasks count."""
    batch_of: dict[int, int] = {}
    computed: dict[int, float] = defaultdict(float)
    found: dict[int, Stages] = defaultdict(Stages)
    for line in lines:
        event = json.loads(line)
        if event["Event"] == "SparkListenerJobStart":
            batch = event["Properties"].get("streaming.sql.batchId")
            batch_of |= {} if batch is None else dict.fromkeys(event["Stage IDs"], int(batch))
        elif event["Event"] == "SparkListenerTaskEnd" and "Task Metrics" in event:
            computed[event["Stage ID"]] += event["Task Metrics"]["Executor CPU Time"] / 1e6
        elif event["Event"] == "SparkListenerStageCompleted":
            stage = event["Stage Info"]
            names = {each["Name"] for each in stage["Accumulables"]}
            if stage["Stage ID"] in batch_of and "data sent to Python workers" in names:
                step = REDUCE if "time to update" in names else MAP
                stages = found[batch_of[stage["Stage ID"]]]
                stages.wall[step] += stage["Completion Time"] - stage["Submission Time"]
                stages.jvm[step] += computed[stage["Stage ID"]]
    return found


def steps_of(spark: dict[str, int], ours: dict[str, float], stages: Stages) -> dict[str, float]:
    """Cut a batch's milliseconds into steps."""
    steps = {
        OFFSETS: spark.get("latestOffset", 0),
        PLANNING: spark.get("queryPlanning", 0) + spark.get("getBatch", 0),
        MAP: stages.wall[MAP],
        REDUCE: stages.wall[REDUCE],
        COMMIT: ours.get("output", 0.0),
        LOGS: spark.get("walCommit", 0) + spark.get("commitOffsets", 0),
    }
    within = steps[MAP] + steps[REDUCE] + steps[COMMIT]
    return {**steps, DRIVER: max(0.0, spark["addBatch"] - within)}


def draw(batches: dict[int, dict[str, float]], path: Path) -> None:
    """Draw a bar a batch, its steps one after the other."""
    import matplotlib as mpl  # noqa: PLC0415 - only who wants a picture needs it

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(10, 1.6 + 0.4 * len(batches)), layout="constrained")
    for row, steps in enumerate(batches.values()):
        left = 0.0
        for step in STEPS:
            axes.barh(row, steps[step] / 1000, left=left, color=COLOURS[step], label=step if not row else None)
            left += steps[step] / 1000
        axes.annotate(f"{left:.1f} s", (left, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(batches)), [f"batch {number}" for number in batches])
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    axes.set_title("where an as-of join's batches spend their time", loc="left", fontsize=11)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def table(batches: dict[int, dict[str, float]], stages: dict[int, Stages]) -> str:
    """Return the steps of each cold batch, of the warm ones' median, and of the drain."""
    last = max(batches)
    warm = [number for number in batches if COLD_BATCHES <= number < last]
    columns = {f"batch {number}": [number] for number in range(min(COLD_BATCHES, last))}
    columns |= {f"warm ({len(warm)})": warm, "drain": [last]}
    rows = [("step, ms", *columns)]
    for step in STEPS:
        rows.append((step, *(_median(batches[each][step] for each in numbers) for numbers in columns.values())))
        if step in {MAP, REDUCE}:
            told = (_median(stages[each].jvm[step] for each in numbers) for numbers in columns.values())
            rows.append((f"  the JVM's own, of {step.split()[0]} tasks", *told))
    rows.append(("all", *(_median(sum(batches[each].values()) for each in ids) for ids in columns.values())))
    return text_table(rows)


def _median(values: Iterable[float]) -> str:
    known = list(values)
    return f"{statistics.median(known):,.0f}" if known else "-"


def main() -> None:
    """Run the join and show where its time went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trades", type=int, default=5_000_000, help="trades; versions are a fifth of them")
    parser.add_argument("--keys", type=int, default=10_000, help="distinct customers")
    parser.add_argument("--output", type=Path, help="where the steps go as JSON")
    parser.add_argument("--picture", type=Path, help="where the picture goes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cojoin-waterfall-") as name:
        folder = Path(name)
        generate(Size(arguments.trades, arguments.trades // 5, arguments.keys, 10), folder / "data")
        for each in ("events", "work"):
            (folder / each).mkdir()
        log = {"enabled": "true", "dir": (folder / "events").as_uri(), "rolling.enabled": "false", "compress": "false"}
        spark = open_session("waterfall", **{f"spark.eventLog.{setting}": value for setting, value in log.items()})
        told, job = _Told(), Job("asof", "delta", folder / "data", folder / "work")
        spark.streams.addListener(told)
        started = time.perf_counter()
        cojoin_joins.run(spark, job)
        seconds = time.perf_counter() - started
        faults = find_faults(job.data, result_files(job.out, job.sink))
        assert not faults, faults
        spark.stop()
        (events,) = (folder / "events").iterdir()
        stages = read_events(events.read_text().splitlines())
        manifests = sorted((job.work / "checkpoint" / "manifest").glob("*.json"))
        ours = [json.loads(path.read_text())["content"]["durations_ms"] for path in manifests]
    batches = {each: steps_of(told.durations[each], ours[each], stages[each]) for each in range(len(ours))}
    outside = seconds - sum(sum(steps.values()) for steps in batches.values()) / 1000
    print(table(batches, stages))
    print(f"\n{seconds:.1f} s in all, of which {outside:.1f} s lie before, between and after the batches")
    if arguments.output:
        arguments.output.write_text(json.dumps({"seconds": seconds, "batches": batches}, indent=1))
    if arguments.picture:
        draw(batches, arguments.picture)


if __name__ == "__main__":
    main()
