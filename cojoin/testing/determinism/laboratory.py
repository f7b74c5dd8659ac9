"""Runs in this process and in others, and the comparison of two of them.

The other processes have hash seeds of their own and clocks that can be shifted. Each is started when it is first asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from cojoin.testing.determinism.delivery_runner import DeliveryRunner
from cojoin.testing.determinism.shifted_clock import Clock
from cojoin.testing.determinism.worker_process import WorkerProcess, pickle_plan

if TYPE_CHECKING:
    from collections.abc import Collection
    from concurrent.futures import Future

    from typing_extensions import Self

    from cojoin.engine.operator import Sides
    from cojoin.engine.plan import Plan
    from cojoin.testing.determinism.deliveries import Delivery
    from cojoin.testing.determinism.delivery_runner import RunOutput

__all__ = ["HASH_SEEDS", "Contrast", "Laboratory", "Run", "Seen"]

HASH_SEEDS = (1, 2, 3)
"""The hash seeds of the other processes."""


@dataclass(frozen=True)
class Run:
    """A run: a delivery, and where it takes place.

    Attributes:
        delivery: How the rows arrive.
        hash_seed: The hash seed of the process; None is this process, whose clock is not shifted.
        clock: The clock in another process.
    """

    delivery: Delivery
    hash_seed: int | None = None
    clock: Clock = field(default_factory=Clock)


@dataclass(frozen=True)
class Contrast:
    """Two runs that must emit the same, and the only key that is compared, if it is not all keys."""

    first: Run
    second: Run
    key: str | None = None

    def of_rows(self, kept: Collection[int], last_events: tuple[int, int]) -> Contrast:
        """Return the contrast with some of the rows."""
        first, second = (
            replace(run, delivery=run.delivery.of_rows(kept, last_events)) for run in (self.first, self.second)
        )
        return Contrast(first, second, self.key)

    @property
    def rows(self) -> list[int]:
        """The rows of either run."""
        return sorted({*self.first.delivery.rows, *self.second.delivery.rows})


class Seen(NamedTuple):
    """A contrast whose runs differ, and what they emitted."""

    contrast: Contrast
    first: RunOutput
    second: RunOutput


class Laboratory:
    """Runs deliveries of one plan; ``close`` ends its processes.

    Args:
        plan: The operation and its inputs.
        rows: The rows of both inputs.

    Raises:
        ConfigurationError: The function can't be pickled.
    """

    def __init__(self, plan: Plan, rows: Sides) -> None:
        self.runner = DeliveryRunner(plan, rows)
        self._pickled = pickle_plan(self.runner.plan)
        self._in_time = getattr(plan.operation, "order", "event_time") == "event_time"
        self._workers: dict[int, WorkerProcess] = {}

    def worker(self, hash_seed: int) -> WorkerProcess:
        """Return the process with a hash seed, after starting it if need be."""
        if hash_seed not in self._workers:
            self._workers[hash_seed] = WorkerProcess(self._pickled, self.runner.tables, hash_seed)
        return self._workers[hash_seed]

    def ask(self, run: Run) -> Future[RunOutput]:
        """Ask another process for a run."""
        assert run.hash_seed is not None
        return self.worker(run.hash_seed).ask(run.delivery, run.clock)

    def run(self, run: Run) -> RunOutput:
        """Return what a run emits."""
        if run.hash_seed is None:
            return self.runner.run(run.delivery)
        return self.worker(run.hash_seed).run(run.delivery, run.clock)

    def compare(self, contrast: Contrast) -> Seen | None:
        """Run both runs; return what they emitted if it differs, else None."""
        first, second = self.run(contrast.first), self.run(contrast.second)
        if contrast.key is not None:
            first, second = first.of_key(contrast.key), second.of_key(contrast.key)
        differs = self.differs(contrast.first, first, contrast.second, second)
        return Seen(contrast, first, second) if differs else None

    def differs(self, first: Run, first_output: RunOutput, second: Run, second_output: RunOutput) -> bool:
        """Return whether the outputs of two runs differ.

        A key's rows must come in one order, except that in arrival order they follow the delivery.
        """
        ordered = self._in_time or first.delivery == second.delivery
        return first_output.differs(second_output, ordered=ordered)

    def close(self) -> None:
        """End the other processes."""
        for worker in self._workers.values():
            worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
