"""A clock, processes and threads that are simulated: one task runs at a time, and a seed decides which.

A task is a thread of this process that holds the baton while it runs, so the code of a driver runs unchanged. At each
simulated operation a task calls ``step``, which may hand the baton to another task. A task that sleeps or waits hands
it over, too, and where all of them wait, the clock jumps to the next moment at which one is due. Nothing ever sleeps.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

__all__ = [
    "Crash",
    "Process",
    "Scheduler",
    "SimulatedThreads",
    "SimulatedTime",
    "StuckError",
    "Task",
    "is_simulated",
    "scheduler",
]


_TASK = "simulated-task"
"""The name of the threads that execute tasks."""


class Crash(BaseException):
    """The process of the running task has ended."""


class StuckError(Exception):
    """All tasks wait for each other, or a history takes more operations than any should."""


_ONE_MOMENT = 0.17
"""For how many seconds a process may have compared and not yet written, where a store has no compare-and-swap."""


class Process:
    """A process of a simulated machine."""

    def __init__(self, name: str, host: str, pid: int) -> None:
        self.name, self.host, self.pid = name, host, pid
        self.is_dead = False
        self.paused_until = 0.0
        self.owners: set[str] = set()
        """The leases that it holds."""
        self.held: set[str] = set()
        """The leases that it has ever asked for."""
        self.started = f"{host}/pids/{pid}"
        self.state_lock_holder: Task | None = None
        self.state_lock_depth = 0
        self.epoch = 0
        """The epoch of the run that it has begun."""
        self.swapping = 0
        """How many of its tasks have compared and not yet written, on a store without compare-and-swap."""
        self.swapping_since = 0.0
        self.error: BaseException | None = None
        self.is_done = False


class _Worker:
    """A thread that runs one task after the other, each when it gets the baton."""

    def __init__(self) -> None:
        self.baton = threading.Lock()
        self.baton.acquire()
        self.job: Callable[[], None] | None = None
        threading.Thread(target=self._loop, name=_TASK, daemon=True).start()

    def _loop(self) -> None:
        while True:
            self.baton.acquire()
            assert self.job is not None
            self.job()


_idle: list[_Worker] = []


class Task:
    """Something that runs in a simulated process."""

    def __init__(self, process: Process | None, name: str, baton: threading.Lock) -> None:
        self.process, self.name, self.baton = process, name, baton
        self.wakes_at = 0.0
        self.is_due: Callable[[], bool] | None = None
        self.is_done = False


class Scheduler:
    """Decides which task runs.

    Args:
        random: The history's random numbers.
        switching: How often another task gets the baton at an operation, from 0 to 1.
        most: How many operations a history may have.
    """

    def __init__(self, random: random.Random, switching: float, most: int = 20_000) -> None:
        self.random, self.switching, self.most = random, switching, most
        self.now = 1_700_000_000.0
        self.steps = 0
        self.tasks: list[Task] = []
        self._root_baton = threading.Lock()
        self._root_baton.acquire()
        self.root = Task(None, "operator", self._root_baton)
        self.current = self.root
        self._failure: StuckError | None = None

    @property
    def process(self) -> Process:
        """The process of the running task."""
        assert self.current.process is not None
        return self.current.process

    def spawn(self, process: Process | None, name: str, target: Callable[[], None]) -> Task:
        """Start a task, which runs once it gets the baton."""
        worker = _idle.pop() if _idle else _Worker()
        task = Task(process, name, worker.baton)

        def job() -> None:
            try:
                if process is None or not process.is_dead:
                    target()
            except Crash:
                pass
            except BaseException as error:  # noqa: BLE001 - the laws look at it
                if process is not None and process.error is None:
                    process.error = error
            task.is_done = True
            self.tasks.remove(task)
            _idle.append(worker)
            self._hand_over(None)

        worker.job = job
        self.tasks.append(task)
        return task

    def step(self) -> None:
        """Let some time pass, and perhaps another task run."""
        self.steps += 1
        self.now += 0.001 + self.random.random() * 0.02
        if self.steps > self.most and self._failure is None:
            self._failure = StuckError(f"more than {self.most} operations")
        me = self.current
        if self.random.random() < self.switching or self._must_wait(me) or self._overdue(self.tasks):
            self._hand_over(me)
        self._check(me)

    def let(self, task: Task) -> None:
        """Let another task run that is ready."""
        me = self.current
        if task is not me and self._ready(task) and not task.is_done:
            self._hand_over(me, task)
        self._check(me)

    def sleep(self, seconds: float) -> None:
        """Let the running task sleep."""
        self.wait(lambda: False, seconds)

    def wait(self, is_due: Callable[[], bool], seconds: float | None = None) -> bool:
        """Let the running task wait; return whether what it waits for has happened."""
        me = self.current
        self._check(me)
        if is_due():
            return True
        me.is_due, me.wakes_at = is_due, math.inf if seconds is None else self.now + max(seconds, 0.0)
        self._hand_over(me)
        me.is_due, me.wakes_at = None, 0.0
        self._check(me)
        return is_due()

    def end(self) -> None:
        """End all tasks: called by the root once the history is over."""
        for each in list(self.tasks):
            if each.process is not None:
                each.process.is_dead = True
        while self.tasks:
            self.root.is_due, self.root.wakes_at = (lambda: not self.tasks), math.inf
            self._hand_over(self.root)
        self.root.is_due = None

    def _check(self, me: Task) -> None:
        if me.process is not None and me.process.is_dead:
            raise Crash
        if me is self.root and self._failure is not None:
            raise self._failure

    def _overdue(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the tasks that have compared long ago and not yet written, on a store without compare-and-swap.

        What waits there for others of the same moment waits longer than this.
        """
        return [
            each
            for each in tasks
            if each.process is not None
            and each.process.swapping
            and each is not self.current
            and self.now - each.process.swapping_since > _ONE_MOMENT
            and self._ready(each)
        ]

    def _must_wait(self, task: Task) -> bool:
        return task.process is not None and (task.process.is_dead or task.process.paused_until > self.now)

    def _ready(self, task: Task) -> bool:
        process = task.process
        if process is not None:
            if process.is_dead:
                return True
            if process.paused_until > self.now:
                return False
        elif self._failure is not None:
            return True
        if task.is_due is None:
            return task.wakes_at <= self.now
        return task.wakes_at <= self.now or task.is_due()

    def _hand_over(self, me: Task | None, to: Task | None = None) -> None:
        """Give the baton to a ready task, or to a given one; ``me`` gets it back later, unless it has ended."""
        if self._failure is not None and me is not self.root:
            # Nothing but the end of the history runs any more.
            for each in self.tasks:
                if each.process is not None:
                    each.process.is_dead = True
        everyone = [*self.tasks, self.root]
        ready = [each for each in everyone if self._ready(each)]
        if not ready:
            moments = [self._due_at(each) for each in everyone]
            soonest = min(moments)
            if soonest == math.inf:
                self._failure = StuckError("all tasks wait for each other")
                ready = [self.root]
            else:
                self.now = max(self.now, soonest)
                ready = [each for each in everyone if self._ready(each)]
        if to is None or to not in ready:
            ready = self._overdue(ready) or ready
            to = ready[0] if len(ready) == 1 else self.random.choice(ready)
        if to is me:
            return
        self.current = to
        to.baton.release()
        if me is not None:
            me.baton.acquire()

    @staticmethod
    def _due_at(task: Task) -> float:
        paused = 0.0 if task.process is None else task.process.paused_until
        return max(task.wakes_at, paused)


_current: list[Scheduler] = []


def scheduler() -> Scheduler:
    """Return the scheduler of the history that runs."""
    return _current[-1]


def is_simulated() -> bool:
    """Return whether the caller belongs to a history: threads that other tests have left behind do not."""
    current = threading.current_thread()
    return current.name == _TASK or current is threading.main_thread()


class SimulatedTime:
    """What the code uses of the module ``time``."""

    @staticmethod
    def time() -> float:
        return scheduler().now

    @staticmethod
    def monotonic() -> float:
        return scheduler().now

    @staticmethod
    def perf_counter() -> float:
        return scheduler().now

    @staticmethod
    def sleep(seconds: float) -> None:
        scheduler().sleep(seconds)


class _Thread:
    def __init__(
        self,
        target: Callable[..., None],
        args: Sequence[Any] = (),
        name: str = "thread",
        daemon: bool = True,
    ) -> None:
        del daemon
        self._target, self._args, self._name = target, args, name
        self._task: Task | None = None

    def start(self) -> None:
        running = scheduler()
        self._task = running.spawn(running.process, self._name, lambda: self._target(*self._args))

    def join(self, timeout: float | None = None) -> None:
        task = self._task
        assert task is not None
        scheduler().wait(lambda: task.is_done, timeout)


class _Lock:
    def __init__(self) -> None:
        self._holder: Task | None = None
        self._depth = 0

    def __enter__(self) -> None:
        running = scheduler()
        me = running.current
        if self._holder is not me:
            running.wait(lambda: self._holder is None)
            self._holder = me
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None


class _Event:
    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        return scheduler().wait(lambda: self._is_set, timeout)


class SimulatedThreads:
    """What the code uses of the module ``threading``."""

    Thread, Lock, RLock, Event = _Thread, _Lock, _Lock, _Event
