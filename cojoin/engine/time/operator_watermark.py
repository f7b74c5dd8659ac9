"""The watermarks of an operator and of its inputs, from control rows; the operator's is the minimum over active inputs.

``OperatorWatermark`` keeps the watermarks of both inputs, and whether the wait for the right input's first load is
over. ``InputWatermark`` keeps each source partition's largest timestamp, mark, watermark, status and idle time. A
*mark* is the value from which the strategy's generator computes a partition's watermark, such as the largest timestamp.
An input's watermark is the minimum over its active partitions. An input's and an operator's watermark only ever
advance. All of these are state and survive a restart. A batch costs some microseconds for each partition.

Another strategy may take over a stored state. Each partition's watermark is then the larger of the stored one and the
new strategy's. Bounded out-of-orderness computes its own from the stored largest timestamps, other strategies from new
marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cojoin.engine.time.watermark_strategies import WatermarkStrategy, describe_generator, marks_of
from cojoin.engine.time.watermarks import END_OF_TIME, NONE, AllIdle, IdlenessTimer, Status, WatermarkMerge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.engine.time.control_rows import CompleteReading, Control

HeldBy: TypeAlias = Literal["max_drift", "silence"]
"""The reason for a holding partition's watermark that is later than its rows': its source reported the watermark.

- *max_drift*: in this micro-batch. Kafka's is ``max_drift`` before the time up to which all partitions are read.
- *silence*: in an earlier micro-batch. Since then the source has reported none, as in a live query.
"""

_STATUS_PRECEDENCE: tuple[Status, ...] = ("active", "idle", "finished")
"""The statuses by precedence: of several statuses of one partition, the first in this order counts."""


class InputWatermark:
    """The watermark of one input; ``all_idle`` is what it does when all of the input's partitions are idle.

    >>> watermark = InputWatermark(WatermarkStrategy.for_bounded_out_of_orderness("10 ms"))
    >>> watermark.observe("p", 1337)
    >>> watermark.current()
    1326
    """

    def __init__(self, strategy: WatermarkStrategy | None = None, all_idle: AllIdle = "hold") -> None:
        self._strategy = strategy or WatermarkStrategy()
        idleness = self._strategy.idleness
        self._idleness = idleness
        self._merge = WatermarkMerge(all_idle=all_idle, returning=idleness.returning if idleness else "hold")
        self._largest: dict[str, int] = {}
        self._marks: dict[str, int] = {}
        self._timers: dict[str, IdlenessTimer] = {}
        self._silence = IdlenessTimer(idleness.timeout_ms) if idleness and idleness.even_if_silent else None
        self._declared: Status | None = None
        self._idle_without_partitions = False
        self._held: int | None = None
        self._clock = NONE
        self._processing_time = 0
        self._is_changed = False
        self._given: dict[str, int] = {}
        self.promised = NONE
        """The watermark that the newest complete reading of a table has promised; ``NONE`` where none has."""
        self.promise: dict[str, int] | None = None
        """The newest reading with a promise, as JSON values."""
        self._asked_at = NONE
        self.source_agrees: bool | None = None
        """Whether the source's own times, as Kafka's, are near the newest rows' event times; None before any row."""

    @property
    def finished(self) -> bool:
        """Whether no more rows will come."""
        return self.status() == "finished"

    def fold(self, controls: Sequence[Control]) -> None:
        """Apply all controls of this input in a micro-batch; the order of the controls does not matter.

        They are applied in this order: (1) complete readings, which are older than all rows of the batch; (2) observed
        rows, which make an idle partition active; (3) watermarks that were computed elsewhere, which a partition that
        is idle may ignore (``Returning``); (4) statuses. If a partition has several statuses, the
        first of active, idle, finished counts.
        """
        self._given = {}
        readings = [control.reading for control in controls if control.reading is not None]
        for reading in sorted(readings, key=attrgetter("asked_at")):
            self.take_reading(reading)
        judged = [control.agrees for control in controls if control.agrees is not None]
        if judged:
            self.source_agrees = all(judged)
        for partition, (timestamp, mark) in sorted(_observations(controls).items()):
            self.observe(partition, timestamp, mark)
        for control in controls:
            self._apply_source_watermarks(control)
        statuses = [(name, status) for control in controls for name, status in control.statuses.items()]
        statuses.sort(key=lambda named: _STATUS_PRECEDENCE.index(named[1]), reverse=True)
        for name, status in dict(statuses).items():
            self.set_status(name, status)

    def _apply_source_watermarks(self, control: Control) -> None:
        """Apply a control's watermarks that do not come from rows."""
        for partition, watermark in control.watermarks.items():
            self.apply_watermark(partition, watermark)
        if self.source_agrees:
            for partition, watermark in control.source_watermarks.items():
                self.apply_watermark(partition, watermark)
                self._given[partition] = max(watermark, self._given.get(partition, NONE))
        else:
            for partition in control.unread:
                self.register(partition)

    def observe(self, partition: str, max_timestamp: int, mark: int | None = None) -> None:
        """Apply the largest timestamp and mark of a partition's rows; without a mark, the timestamp is the mark."""
        mark = max_timestamp if mark is None else mark
        self._largest[partition] = max(self._largest.get(partition, NONE), max_timestamp)
        self._marks[partition] = max(self._marks.get(partition, NONE), mark)
        self._wake(partition)
        if mark > NONE:
            self._merge.update(partition, self._watermark_for(partition))

    def apply_watermark(self, partition: str, watermark: int) -> None:
        """Apply a partition's watermark, computed elsewhere, in epoch milliseconds.

        A lower one does not change the watermark, but ends an idle status that was declared for the whole input.
        """
        if self._declared == "idle":
            self._declared = None
        self._merge.update(partition, watermark)

    def take_reading(self, reading: CompleteReading) -> None:
        """Apply a complete reading: a table's promise, and each partition's quiet time since the previous reading.

        A promise is about all of the input's partitions, so each counts as active.
        """
        promised = NONE if reading.up_to is None else self._of_source(reading.up_to + 1)
        is_older, self._asked_at = reading.asked_at < self._asked_at, reading.asked_at
        if promised > NONE:
            self.promised = max(self.promised, promised)
            if not is_older:
                self.promise = reading.as_dict()
            for partition in self._merge.statuses():
                self._wake(partition)
            self._declared = None if self._declared == "idle" else self._declared
        if self._idleness is None:
            return
        if is_older:
            # The clock went back, or this run's checkpoint was taken over: quiet time counts from the next reading on.
            for timer in self._known_timers():
                timer.quiet_since = None
            return
        for partition, status in self._merge.statuses().items():
            if self._timer(partition).is_idle_at_reading(reading.asked_at) and status == "active":
                self._merge.set_status(partition, "idle")
        if self._silence is not None and promised == NONE and not self._merge.statuses():
            self._idle_without_partitions |= self._silence.is_idle_at_reading(reading.asked_at)

    def _of_source(self, time: int) -> int:
        return max(NONE, int(self._strategy.generator.of_source(time, self._processing_time)))

    def set_status(self, partition: str | None, status: Status) -> None:
        """Make a partition active, idle or finished; None is the whole input."""
        if partition is None:
            self._declared = None if status == "active" else status
            return
        self._merge.set_status(partition, status)

    def remove(self, partition: str) -> None:
        """Forget a partition that no longer exists; an unknown one is ignored."""
        self._merge.remove(partition)
        for known in (self._largest, self._marks, self._timers):
            known.pop(partition, None)

    def register(self, partition: str) -> None:
        """Add a partition known to have more rows: it holds the watermark back until it has a watermark."""
        self._merge.register(partition)

    def begin(self, processing_time: int) -> None:
        """Set a micro-batch's processing time, in epoch milliseconds, before anything is folded."""
        self._processing_time = processing_time
        if self._is_changed:
            # Not in restore(): late rows and due timers of the first batch are decided by the stored watermark.
            self._is_changed = False
            for partition, mark in self._marks.items():
                if mark > NONE:
                    self._merge.raise_watermark(partition, self._watermark_for(partition))

    def hold(self, until: int | None) -> None:
        """Limit the input's watermark to epoch milliseconds; None ends the limit. The watermark never goes back."""
        reached = self.current()
        self._held = None if until is None else max(reached, until)

    def tick(self, processing_time: int) -> None:
        """Advance the clock, clock-driven watermarks and idle times; once a batch, before rows are admitted."""
        self._processing_time = processing_time
        if self._strategy.generator.follows_clock:
            self._clock = max(self._clock, self._strategy.generator.made(NONE, processing_time))
        if self._idleness is None:
            return
        statuses = self._merge.statuses()
        for partition, status in statuses.items():
            if status == "active" and self._timer(partition).is_idle(processing_time):
                self._merge.set_status(partition, "idle")
        if self._silence is not None:
            self._idle_without_partitions = not statuses and (
                self._idle_without_partitions or self._silence.is_idle(processing_time)
            )

    def resume(self) -> None:
        """Restart all idleness timers, because the query did not run and could not receive anything."""
        for timer in self._known_timers():
            timer.restart()

    def current(self) -> int:
        """Return the watermark: ``NONE`` before the input has one, ``END_OF_TIME`` once the input is finished.

        Otherwise it is the largest of the partitions' merged watermark, the clock's and the promised one, but at most
        the limit of ``hold``. The merged watermark is the minimum over the active partitions; if all are idle and
        ``all_idle`` is ``"max"``, the maximum over all that are not finished.
        """
        if self.finished:
            return END_OF_TIME
        reached = max(self._merge.current(), self._clock, self.promised)
        return reached if self._held is None else min(reached, self._held)

    def status(self) -> Status:
        """Return the input's status; an input whose watermark is limited is never idle, since it has more rows."""
        if self._declared == "finished":
            return "finished"
        status: Status = self._declared or ("idle" if self._idle_without_partitions else self._merge.status())
        return "active" if status == "idle" and self._held is not None else status

    def max_timestamp(self) -> int:
        """Return the largest timestamp seen, or ``NONE``."""
        return max(self._largest.values(), default=NONE)

    def holding_partition(self) -> str | None:
        """Return the active partition with the smallest watermark, which holds the input back; None without one."""
        return self._merge.holding()

    def held_by(self) -> HeldBy | None:
        """Return why the holding partition's watermark is later than its rows'; None where it follows from its rows."""
        holding = self.holding_partition()
        if holding is None or not self.source_agrees:
            return None
        reached = self._merge.watermarks()[holding]
        if self._marks.get(holding, NONE) > NONE and reached <= self._watermark_for(holding):
            return None
        return "max_drift" if self._given.get(holding) == reached else "silence"

    def partitions(self) -> dict[str, int]:
        """Return each partition's watermark in epoch milliseconds."""
        return self._merge.watermarks()

    def statuses(self) -> dict[str, Status]:
        """Return each partition's status."""
        return self._merge.statuses()

    def quiet_since(self) -> int | None:
        """Return the complete reading's moment since which an idle input has had no row; None where that is unknown.

        It is unknown where a partition has had rows since the last complete reading, as in a live run.
        """
        timers = list(self._timers.values()) or self._known_timers()
        known = [timer.quiet_since for timer in timers if timer.quiet_since is not None]
        return max(known) if known and len(known) == len(timers) and self.status() == "idle" else None

    def _known_timers(self) -> list[IdlenessTimer]:
        return [*self._timers.values(), *([self._silence] if self._silence else [])]

    def _timer(self, partition: str) -> IdlenessTimer:
        assert self._idleness is not None
        return self._timers.setdefault(partition, IdlenessTimer(self._idleness.timeout_ms))

    def _wake(self, partition: str) -> None:
        self._declared = None if self._declared == "idle" else self._declared
        self._idle_without_partitions = False
        if self._merge.status_of(partition) == "idle":
            self._merge.set_status(partition, "active")
        else:
            self._merge.register(partition)
        if self._idleness is not None:
            self._timer(partition).activity()

    def _watermark_for(self, partition: str) -> int:
        return self._strategy.generator.made(self._marks[partition], self._processing_time)

    def snapshot(self) -> dict[str, Any]:
        """Return what survives a restart, as JSON values."""
        quiet = {name: timer.quiet_since for name, timer in self._timers.items() if timer.quiet_since is not None}
        never_spoke = None if self._silence is None else self._silence.quiet_since
        return {
            "merge": self._merge.snapshot(),
            "largest": dict(self._largest),
            "marks": dict(self._marks),
            "generator": describe_generator(self._strategy.generator),
            "silent_since": {name: timer.snapshot() for name, timer in self._timers.items()},
            "never_spoke": [self._idle_without_partitions, self._silence.snapshot() if self._silence else None],
            "declared": self._declared,
            "clock": self._clock,
            "source_agrees": self.source_agrees,
            **({} if self._held is None else {"held": self._held}),
            # Left out where unset, as in the states of earlier releases.
            **({"quiet_since": quiet} if quiet else {}),
            **({} if never_spoke is None else {"never_spoke_since": never_spoke}),
            **({} if self.promise is None else {"promised": [self.promised, self.promise]}),
            **({} if self._asked_at == NONE else {"asked_at": self._asked_at}),
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Restore what ``snapshot`` returned, also that of an input watermark with another strategy."""
        self._merge.restore(snapshot["merge"])
        self._largest = dict(snapshot["largest"])
        self._restore_marks(snapshot["marks"], snapshot.get("generator"))
        self._timers = {}
        quiet = snapshot.get("quiet_since", {})
        self._idle_without_partitions, silence = snapshot["never_spoke"]
        for name, since in snapshot["silent_since"].items():
            if self._idleness is not None:
                self._timer(name).restore(since, quiet.get(name))
            elif self._merge.status_of(name) == "idle":
                # It was idle only by the former strategy's idleness.
                self._merge.set_status(name, "active")
        if self._silence is not None:
            self._silence.restore(silence, snapshot.get("never_spoke_since"))
        else:
            self._idle_without_partitions = False
        self._declared, self._clock = snapshot["declared"], snapshot["clock"]
        self.source_agrees = snapshot.get("source_agrees")
        self._held = snapshot.get("held")
        self.promised, self.promise = snapshot.get("promised", (NONE, None))
        self._asked_at = snapshot.get("asked_at", NONE)

    def _restore_marks(self, marks: Mapping[str, int], former: Mapping[str, Any] | None) -> None:
        """Restore marks that fit the strategy; ``former`` describes their generator, and is None in old states."""
        own = describe_generator(self._strategy.generator)
        self._marks, self._is_changed = dict(marks), former != own
        if own["generator"] == "bounded_out_of_orderness":
            self._marks = dict(self._largest) if former != own else self._marks
        elif (former is None and own["generator"] in {"punctuated", "own"}) or (
            former and marks_of(former) != marks_of(own)
        ):
            # The former generator's marks are useless to this one; each partition keeps its stored watermark.
            self._marks = {}


def _observations(controls: Sequence[Control]) -> dict[str, tuple[int, int]]:
    """Return each partition's largest timestamp and mark, over all tasks."""
    observed: dict[str, tuple[int, int]] = {}
    for control in controls:
        for partition, timestamp in control.partitions.items():
            largest, mark = observed.get(partition, (NONE, NONE))
            newest = timestamp if control.marks is None else control.marks[partition]
            observed[partition] = max(largest, timestamp), max(mark, newest)
    return observed


@dataclass(frozen=True)
class TimePolicy:
    """The rules by which an operator combines its inputs' watermarks, beyond their minimum.

    Attributes:
        when_all_idle: What the watermark does when every input that is not finished is idle, and what an input's own
            watermark does when all its partitions are idle.
        hold_left_until: The operator's watermark does not advance until the right input's watermark has reached this
            time, in epoch milliseconds, or the right input is idle or finished. So left rows wait for the right input's
            first load. With None, they don't wait. Once the watermark has advanced, the setting has no effect.
    """

    when_all_idle: AllIdle = "hold"
    hold_left_until: int | None = None


class OperatorWatermark:
    """The operator's watermark: the minimum over its two inputs, which never goes back."""

    def __init__(self, strategies: Sequence[WatermarkStrategy], policy: TimePolicy | None = None) -> None:
        self._policy = policy or TimePolicy()
        self.inputs = tuple(InputWatermark(strategy, self._policy.when_all_idle) for strategy in strategies)
        self._merge = WatermarkMerge(all_idle=self._policy.when_all_idle)
        self._released = self._policy.hold_left_until is None

    def fold(self, controls: Sequence[Control]) -> None:
        """Apply all controls of a micro-batch; neither their order nor the number of map tasks matters."""
        for number, watermark in enumerate(self.inputs, start=1):
            watermark.fold([control for control in controls if control.input == number])

    def hold(self, holds: Mapping[int, int]) -> None:
        """Limit the inputs' watermarks in this micro-batch, by input number, before anything is folded."""
        for number, watermark in enumerate(self.inputs, start=1):
            watermark.hold(holds.get(number))

    def begin(self, processing_time: int) -> None:
        """Set a micro-batch's processing time, in epoch milliseconds, before anything is folded."""
        for watermark in self.inputs:
            watermark.begin(processing_time)

    def tick(self, processing_time: int) -> None:
        """Advance the clock, once a micro-batch, after ``fold`` and before rows are admitted."""
        for watermark in self.inputs:
            watermark.tick(processing_time)

    def resume(self) -> None:
        """Restart all idleness timers, because the query did not run."""
        for watermark in self.inputs:
            watermark.resume()

    def finish(self) -> None:
        """Finish all inputs, so that the watermark becomes ``END_OF_TIME``."""
        for watermark in self.inputs:
            watermark.set_status(None, "finished")

    def current(self) -> int:
        """Return the operator's watermark in epoch milliseconds; ``NONE`` while an input has none or is awaited."""
        for name, watermark in zip("12", self.inputs, strict=True):
            self._merge.update(name, watermark.current())
            self._merge.set_status(name, watermark.status())
        if not self._released:
            right, until = self.inputs[1], self._policy.hold_left_until
            self._released = right.status() != "active" or right.current() >= until  # type: ignore[operator]
        return self._merge.current() if self._released else NONE

    def status(self) -> Status:
        """Return the status of both inputs together: idle or finished only when both are."""
        self.current()
        return self._merge.status()

    def max_timestamp(self) -> int:
        """Return the largest timestamp seen in any input, in epoch milliseconds, or ``NONE``."""
        return max(each.max_timestamp() for each in self.inputs)

    def holding_input(self) -> int | None:
        """Return which input holds the watermark back: 1 or 2, the first if both do; None where none is active."""
        self.current()
        if not self._released:
            return 2
        holding = self._merge.holding()
        return None if holding is None else int(holding)

    def snapshot(self) -> dict[str, Any]:
        """Return what survives a restart, as JSON values."""
        self.current()
        return {
            "merge": self._merge.snapshot(),
            "released": self._released,
            "inputs": [each.snapshot() for each in self.inputs],
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Restore what ``snapshot`` returned."""
        self._merge.restore(snapshot["merge"])
        # Removing the option ends the wait; once released, the watermark is not held again.
        self._released = self._policy.hold_left_until is None or bool(snapshot["released"])
        for watermark, state in zip(self.inputs, snapshot["inputs"], strict=True):
            watermark.restore(state)
