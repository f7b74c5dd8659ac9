"""A checkpoint that is put back from a copy: older than the tables, with new input and other settings in between.

The query runs some batches, a copy of its checkpoint is taken, it runs on; then the copy takes the checkpoint's place
and the query starts again. What its tables hold by then was written by batches that the copy knows nothing of: the law
(``stories.py``) must hold, or the start or the batch be refused with words that help.
"""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.kills.stories import DRAIN, PAUSE, Output, Settings, Story
from benchmarks.kills.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from benchmarks.kills.places import Place

__all__ = ["CHANGES", "Copy", "choose_copies", "put_back"]

CHANGES: dict[str, tuple[Settings, Settings]] = {
    "as it was": (Settings(), Settings()),
    "a longer delay": (Settings(delay=5), Settings(delay=25)),
    "a shorter delay": (Settings(delay=25), Settings(delay=5)),
    "late trades applied": (Settings(), Settings(late="apply")),
    "late trades rejected": (Settings(late="apply"), Settings(late="reject")),
    "max_ahead lifted": (Settings(), Settings(max_ahead=None)),
    "max_ahead set": (Settings(max_ahead=None), Settings()),
    "another body, which waits": (Settings("function"), Settings("function", holds=20)),
    "another body, which does not wait": (Settings("function", holds=20), Settings("function")),
    "more files a batch": (Settings(), Settings(files_a_batch=10)),
}
"""What may change in between, by its name: the settings before and after."""

OUTPUTS: tuple[Output, ...] = ("delta", "upserted", "parquet", "partitioned", "delta", "merged")
_FIRST = 3
"""How many batches there are before the copy."""
_PATIENCE_SECONDS = 120


@dataclass(frozen=True)
class Copy:
    """A case.

    Attributes:
        age: How many batches the copy is older than the checkpoint that it replaces.
        change: What changes before the start from the copy.
        output: What the output is.
        rejected: Where rejected rows go.
        running: Whether it is taken while the query runs.
        between: How many files come that no run has seen.
        interval: A snapshot every so many batches.
    """

    age: int
    change: str = "as it was"
    output: Output = "delta"
    rejected: Output = "delta"
    running: bool = False
    between: int = 1
    interval: int | None = field(default=2)

    def told(self) -> str:
        """Return it in a line."""
        where = "while running, " if self.running else ""
        return f"{where}{self.age} batches old, {self.change}"


def choose_copies(count: int, seed: int, outputs: Sequence[Output] = OUTPUTS) -> list[Copy]:
    """Choose cases: each age, change and kind of output as often as may be.

    Args:
        count: How many.
        seed: Chooses.
        outputs: The kinds.
    """
    choice = random.Random(seed)

    def turns(values: list[object]) -> Iterator[object]:
        return itertools.cycle(choice.sample(values, len(values)))

    columns = zip(
        turns([1, 3, 1, 3, 0]),
        turns(list(CHANGES)),
        turns(list(outputs)),
        turns(["delta", "beside"]),
        turns([False, False, True]),
        turns([1, 0, 2]),
        turns([1, 2, None]),
        strict=False,
    )
    return [Copy(*values) for values in itertools.islice(columns, count)]  # type: ignore[arg-type]


def put_back(spark: SparkSession, folder: Path, seed: int, case: Copy, place: Place | None = None) -> Verdict:
    """Do it, and say what came of it; ``place`` is where the checkpoint and the tables go, the folder if not given."""
    before, after = CHANGES[case.change]
    total = _FIRST + case.age + case.between
    outputs = {"output": case.output, "rejected": case.rejected}
    story = Story(spark, folder, seed, files=total, interval=case.interval, place=place, **outputs)
    story.add(_FIRST)
    if case.running:
        story.add(case.age)
        _copy_while_running(story, before)
    else:
        _run(story, before)
        story.copy("copy")
        story.add(case.age)
        _run(story, before)
    story.add(case.between)
    newest = story.saved.manifests.batch_ids()[-1]
    story.put_back("copy")
    # A copy of a running query may hold a batch that is half done.
    oldest = max(story.saved.manifests.batch_ids(), default=-1)
    refusal = story.run(after, DRAIN)
    faults = story.conclude(refusal, exact=before.of_function == after.of_function)
    found = f"batch {oldest} of {newest}, {case.output}, rejected {case.rejected}"
    return Verdict("a copy put back", "the checkpoint", case.told(), found, refusal, faults)


def _run(story: Story, settings: Settings) -> None:
    failed = story.run(settings, PAUSE)
    assert failed is None, failed


def _copy_while_running(story: Story, settings: Settings) -> None:
    query = story.start(settings)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while query.is_active and (query.progress is None or query.progress.batch_id < _FIRST - 1):
        assert time.monotonic() < deadline, "the batch before the copy did not come"
        time.sleep(0.002)
    story.copy("copy")
    query.await_termination(progress=False)
