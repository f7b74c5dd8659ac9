"""A history: what an operator does with a query and what goes wrong meanwhile, made from a seed and run.

The operator adds rows to the inputs, starts drivers on two machines, takes savepoints, stops, pauses and kills drivers,
and restores snapshots into a second checkpoint. After it all, nothing goes wrong any more, each query runs twice to its
end, and the laws are checked (``laws``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cojoin.errors import CojoinError
from tests.simulation import simulated_clock
from tests.simulation.faults import Fault
from tests.simulation.plan import Action
from tests.simulation.simulated_clock import StuckError
from tests.simulation.simulated_query import FIRST, SECOND
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.plan import Plan

__all__ = ["History", "run"]

_LEAST_FAULTS = 2


@dataclass
class History:
    """What happened in a history.

    Attributes:
        plan: Its plan.
        lines: The operations in order: moment, process, operation, path, fault.
        struck: How often each fault struck at each operation.
        operations: How many operations there were.
        handed_over: How many hand-overs there were with a holder that woke later, and how each ended (``hand_overs``).
        broken: The laws that were broken.
    """

    plan: Plan
    lines: list[tuple[float, str, str, str, str]] = field(default_factory=list)
    struck: dict[tuple[str, str], int] = field(default_factory=dict)
    operations: int = 0
    handed_over: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        plan = self.plan
        head = (
            f"seed {plan.seed}: conditional writes {plan.has_conditional_writes}, loses power {plan.loses_power}, "
            f"switching {plan.switching}, retained {plan.retained}, a snapshot every {plan.cadence} batches, "
            f"Spark writes {plan.spark_writes}"
        )
        start = self.lines[0][0] if self.lines else 0.0
        lines = [
            f"  {moment - start:9.2f}s  {who:<22} {what:<16} {name:<70} {note}"
            for moment, who, what, name, note in self.lines
        ]
        return "\n".join(
            [
                head,
                f"actions: {', '.join(map(str, plan.actions))}",
                *(f"fault: {each}" for each in plan.faults),
                *lines,
                *(f"BROKEN: {each}" for each in self.broken),
            ]
        )


def run(plan: Plan) -> tuple[History, World]:  # noqa: C901, PLR0912 - the phases follow each other
    """Run a history, and return what happened; the laws are not checked yet. It needs ``seams.simulated``."""
    world = World(plan)
    running, disk = world.scheduler, world.disk
    simulated_clock._current.append(running)
    history = History(plan)
    try:
        for fault in plan.faults:
            disk.arm(fault)
        for action in plan.actions:
            world.do(action)
        world.wait_for(world.living(), 120.0)
        for attempt in range(8):
            if sum(disk.struck.values()) >= min(_LEAST_FAULTS, len(plan.faults)):
                break
            # A fault that has not struck so far strikes at any operation. A query that was drained only reads.
            for waiting in disk.armed:
                kind = waiting[0].kind if attempt < 4 else "fails"
                waiting[0], waiting[1] = Fault(kind, None, 0, waiting[0].size), running.random.randint(0, 12)
            world.do(Action("rows", 5))
            world.do(Action("drive", 0))
            world.wait_for(world.living(), 120.0)
        _heal(world)
        for place in (FIRST, SECOND):
            if place == SECOND and not disk.below(SECOND.checkpoint):
                continue
            for _ in range(1 + world.cleaned):
                world.lake.left += 3
                world.lake.right += 2
                error = world.run_cleanly(place)
                if error is not None and "its query was drained" in str(error):
                    break
                if error is not None:
                    history.broken.append(f"a query that nothing disturbs failed: {type(error).__name__}: {error}")
                    break
            try:
                world.read[place] = world.read_by(place)
            except CojoinError as error:
                history.broken.append(f"unreadable: {error}")
    except StuckError as error:
        history.broken.append(f"stuck: {error}")
    finally:
        running.end()
        simulated_clock._current.pop()
    history.lines, history.struck = disk.history, dict(disk.struck)
    history.operations = sum(disk.operations.values())
    history.handed_over = disk.hand_overs.counted()
    return history, world


def _heal(world: World) -> None:
    """Let nothing go wrong from now on, and end every process."""
    world.is_healed = True
    world.disk.disarm()
    world.disk.tell("operator: heals")
    world.wait_for(world.living(), 700.0)
    world.end_all()
    # A savepoint that was begun is taken for interrupted only after a while.
    world.scheduler.sleep(100.0)
    world.scheduler.switching = 0.0
