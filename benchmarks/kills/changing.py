"""A batch that fails between two of its commits, and settings that change before it is run again.

The query is stopped by an error at a point of its second batch or a later one; then it is started with another
watermark delay, another bound or policy, or another body of its function. The law (``stories.py``) must hold, or the
start or the batch be refused with words that help; and what is refused must go on with the settings that it had.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

from benchmarks.kills.kill_points import FAILURES
from benchmarks.kills.putting_back import CHANGES
from benchmarks.kills.stories import DRAIN, PAUSE, Output, Story
from benchmarks.kills.verdicts import Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from benchmarks.kills.points import Point

__all__ = ["change_settings", "choose_changes"]

_FILES = 4


class MachineDownError(Exception):
    """What stops the batch."""


def choose_changes(count: int, seed: int) -> list[tuple[Point, str, Output]]:
    """Choose points, what changes, and where the output goes: each as often as may be.

    Args:
        count: How many.
        seed: Chooses.
    """
    choice = random.Random(seed)
    points, changes = choice.sample(FAILURES, len(FAILURES)), choice.sample(list(CHANGES), len(CHANGES))
    outputs: list[Output] = ["delta", "delta", "parquet", "partitioned"]
    turns = zip(itertools.cycle(points), itertools.cycle(changes), itertools.cycle(outputs), strict=False)
    return list(itertools.islice(turns, count))


def change_settings(
    spark: SparkSession, folder: Path, seed: int, point: Point, change: str, output: Output = "delta"
) -> Verdict:
    """Do it, and say what came of it."""
    before, after = CHANGES[change]
    batch = random.Random(seed).randrange(1, _FILES - 1)
    story = Story(spark, folder, seed, files=_FILES, output=output)
    story.add(_FILES)

    def fail() -> None:
        msg = "the machine went down"
        raise MachineDownError(msg)

    with point.armed(batch, fail):
        stopped = story.run(before, PAUSE)
    faults = [] if stopped is not None and "machine went down" in stopped else [f"the point was not met: {stopped}"]
    refusal = story.run(after, DRAIN)
    faults += story.conclude(refusal, exact=before.of_function == after.of_function)
    if refusal is not None:
        # Refused for what was changed, so as it was it must go on.
        again = story.run(before, DRAIN)
        faults += [f"with its own settings: {again}"] if again else story.conclude(None, exact=before.keeps_time)
    return Verdict(
        "settings changed", "the query", f"{point.name}, {change}", f"batch {batch}, {output}", refusal, faults
    )
