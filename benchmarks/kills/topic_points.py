"""The points of a Kafka output at which somebody dies: the driver, its JVM, or the worker that writes the batch."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from benchmarks.kills.points import Point
from cojoin.kafka.sink import topic_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cojoin.kafka.sink.topic_writer import BatchTask

__all__ = ["TOPIC_POINTS", "WORKER", "Mortal", "TopicDeed", "armed_in_worker"]

Mortal: TypeAlias = Literal["both", "JVM", "Python", "worker"]

WORKER = "in the worker"
"""The phase of the points that the worker reaches, not the driver."""

_TRANSACTIONS = "cojoin.kafka.sink.topic_transactions:TopicTransactions"
_WRITER = "cojoin.kafka.sink.topic_writer:TopicWriter"


def _of_output(arguments: tuple[Any, ...], batch: int) -> bool:
    return int(arguments[-1].batch_id) >= batch


def _of_batch(arguments: tuple[Any, ...], batch: int) -> bool:
    numbers = [number for each in arguments[1:] if isinstance(number := getattr(each, "batch_id", None), int)]
    return bool(numbers) and numbers[0] >= batch


TOPIC_POINTS: tuple[Point, ...] = (
    Point("the topic's start", "fenced, no epoch written", (f"{_TRANSACTIONS}.write_marker",), enters=True),
    Point("the topic's start", "epoch written", (f"{_TRANSACTIONS}.write_marker",)),
    Point(WORKER, "before the transaction", (f"{_TRANSACTIONS}.begin",), enters=True),
    Point(WORKER, "begun, no row sent", (f"{_TRANSACTIONS}.send",), enters=True),
    Point(WORKER, "rows sent, no marker", (f"{_TRANSACTIONS}.mark",), enters=True),
    Point(WORKER, "marker sent", (f"{_TRANSACTIONS}.mark",)),
    Point(WORKER, "all taken, before the commit", (f"{_TRANSACTIONS}.flush",)),
    Point(WORKER, "committed, nothing told", (f"{_TRANSACTIONS}.commit",)),
    Point("the batch", "before its task", (f"{_WRITER}.write",), enters=True, condition=_of_output),
    Point("the batch", "written, no manifest", (f"{_WRITER}.write",), condition=_of_output),
    Point(
        "the batch",
        "before the manifest",
        ("cojoin.checkpoints.manifest:Manifests.write",),
        enters=True,
        condition=_of_batch,
    ),
    Point(
        "a counted batch",
        "manifest written, not Spark's commit",
        ("cojoin.checkpoints.manifest:Manifests.write",),
        condition=_of_batch,
    ),
)


@dataclass(frozen=True)
class TopicDeed:
    """Kills whoever is meant; it is sent to the worker.

    Attributes:
        reached: The file that says that the point was reached; the deed is done once.
        victim: Who dies.
        driver: The driver's process, which leads its group.
        jvm: Its JVM's.
    """

    reached: str
    victim: Mortal
    driver: int
    jvm: int

    def __call__(self) -> None:
        """Do it, if it was not done."""
        reached = Path(self.reached)
        if reached.exists():
            return
        hidden = reached.with_suffix(".tmp")
        hidden.write_text(self.victim)
        hidden.rename(reached)
        with suppress(ProcessLookupError):
            if self.victim == "JVM":
                os.kill(self.jvm, signal.SIGKILL)
            elif self.victim == "Python":
                os.kill(self.driver, signal.SIGKILL)
            elif self.victim == "both":
                os.killpg(self.driver, signal.SIGKILL)
        if self.victim in {"both", "worker"}:
            # A worker has a group of its own.
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def armed_in_worker(point: Point, output: str, batch: int, deed: Callable[[], object]) -> Iterator[None]:
    """Have a deed done in the worker that writes a batch, where it reaches a point.

    Args:
        point: The point.
        output: The name of the output.
        batch: From which batch on.
        deed: What is done; it can be pickled.
    """
    original = topic_writer.for_workers

    def for_workers(task: BatchTask) -> Any:
        is_meant = task.batch is not None and task.batch.batch_id >= batch
        if not is_meant or not task.target.application.endswith(f"-{output}"):
            return original(task)

        def dying(batches: Any) -> Any:
            with point.armed(batch, deed):
                yield from task(batches)

        return original(dying)

    topic_writer.for_workers = for_workers  # type: ignore[assignment]
    try:
        yield
    finally:
        topic_writer.for_workers = original
