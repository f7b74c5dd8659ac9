"""A function in which something breaks, once: its executor, the shuffle's files, or its own speed.

Executors import it. It breaks in a task that has given out rows of another key group already, so half a file is there;
the shuffle's files go in the first task that can remove them, while others still have to fetch them.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pyspark import TaskContext

import cojoin as cj

if TYPE_CHECKING:
    from collections.abc import Iterator

Break: TypeAlias = Literal["executor", "fetch", "speculation"]

SLOW_SECONDS = 240
"""Longer than everything else: who waits for it has not speculated."""

_calls: dict[int, int] = {}


class BreakingTrades(cj.KeyedCoProcessFunction):
    """Gives each trade the tier in force; at a trade, the first time that it sees it, something breaks."""

    def __init__(self, what: Break, fuse: str, at_trade: int) -> None:
        self._what, self._fuse, self._at_trade = what, fuse, at_trade

    def open(self, ctx: cj.RuntimeContext) -> None:
        self.tier = ctx.get_state(cj.ValueStateDescriptor("tier", "string"))
        _calls[_attempt()] = _calls.get(_attempt(), 0) + 1

    def process_element1(self, trade: cj.Row, ctx: cj.Context) -> Iterator[Any]:
        is_time = self._what == "fetch" or _calls[_attempt()] > 1
        if trade.trade_id >= self._at_trade and is_time and _light(self._fuse):
            _BREAKS[self._what]()
        yield trade.trade_id, trade.customer_id, trade.event_time, trade.amount, self.tier.value()

    def process_element2(self, customer: cj.Row, ctx: cj.Context) -> None:
        self.tier.update(customer.tier)


def kill_executor() -> None:
    """Kill the JVM whose worker this is."""
    daemon = os.getppid()
    jvm = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    assert "CoarseGrainedExecutorBackend" in Path(f"/proc/{jvm}/cmdline").read_text()
    os.kill(jvm, signal.SIGKILL)
    time.sleep(60)


def lose_shuffle_files() -> None:
    """Remove what this executor keeps for others to fetch, and for its own next tasks."""
    folders = [Path(each) for each in os.environ["SPARK_LOCAL_DIRS"].split(",")]
    files = [path for folder in folders for path in folder.rglob("shuffle_*")]
    assert files, folders
    for path in files:
        path.unlink(missing_ok=True)


def _stand_still() -> None:
    time.sleep(SLOW_SECONDS)


_BREAKS = {"executor": kill_executor, "fetch": lose_shuffle_files, "speculation": _stand_still}


def _attempt() -> int:
    context = TaskContext.get()
    return -1 if context is None else context.taskAttemptId()


def _light(fuse: str) -> bool:
    """Return whether this is the first to come here."""
    try:
        os.close(os.open(fuse, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
