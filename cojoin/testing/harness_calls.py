"""The calls of a harness: each is a micro-batch of its own, whose events are appended to the log.

Its rows, watermarks and statuses reach the operator as rows and control rows. The output is appended in the order of
Flink's output: rejected rows, output rows, then the watermark that caused them, then the status. A change to the active
status comes first. After each call it is checked for each input that rows in = done + buffered + rejected (``runner``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.testing.events import Event, HarnessError, StatusChange, Watermark
from cojoin.testing.outcome import count_records
from cojoin.testing.runner import Call, output_watermark, prepare_call, run_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.operator import Operator
    from cojoin.engine.time.control_rows import Control
    from cojoin.testing.events import Element
    from cojoin.testing.harness_inputs import BoundInput

__all__ = ["HarnessCalls"]


class HarnessCalls:
    """The part of a harness that runs its calls."""

    log: list[Event]
    _calls: int
    _create: Callable[[], Operator]
    _emitted: Mapping[str, int]
    _ended: bool
    _failed: bool
    _fresh: bool
    _inputs: tuple[InputSpec, InputSpec]
    _now: int
    _operation: Any
    _operators: list[Operator]
    _resumed: bool
    _sides: tuple[BoundInput, BoundInput]

    def _check_ready(self) -> None:
        if self._ended:
            msg = "the inputs have ended, and nothing can follow; make a new harness"
            raise HarnessError(msg)
        if self._failed:
            msg = "the call before failed half way (fresh_calls=False); restore a snapshot, or make a new harness"
            raise HarnessError(msg)

    def _call(
        self,
        elements1: Sequence[Element] = (),
        elements2: Sequence[Element] = (),
        controls: Sequence[Control] = (),
        *,
        end: bool = False,
        now: int | None = None,
    ) -> None:
        """Run a micro-batch; if it fails and calls are fresh, the harness is unchanged."""
        self._check_ready()
        now = self._now if now is None else now
        call = Call(self._sides, (elements1, elements2), controls, now, end=end, resumed=self._resumed)
        before = self._operators[0].watermark
        prepared = prepare_call(call, before)
        was, time = before.status(), before.current()
        operators = self._operators
        if self._fresh:
            operators = [self._create() for _ in self._operators]
            for fresh, old in zip(operators, self._operators, strict=True):
                fresh.restore(old.snapshot())
        try:
            self._failed = not self._fresh
            events = run_call(call, prepared, operators, self._operation)
            self._failed = False
        finally:
            if self._fresh:
                for operator in operators:
                    operator.close()
        self._operators, self._resumed, self._now = operators, False, now
        self._calls += 1
        after = operators[0].watermark
        delay = operators[0].output_delay_ms
        moved = output_watermark(after.current(), delay)
        changes: list[Event] = [StatusChange(after.status())] if after.status() != was else []
        wakes = changes if after.status() == "active" else []
        watermarks: list[Event] = [Watermark(moved)] if moved > output_watermark(time, delay) else []
        self.log += [*wakes, *events, *watermarks, *(changes if not wakes else [])]
        self._emitted = count_records(events)
