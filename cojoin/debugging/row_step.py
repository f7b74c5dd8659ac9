"""One row, one timer or one advance of the watermark of a replayed batch, with what it did."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from cojoin.engine.formats import format_time, show_row, show_value
from cojoin.engine.operator import OUTPUT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.checkpoints.inspect.key_state import KeyTimer
    from cojoin.engine.values.rows import Row

__all__ = ["RowStep"]


@dataclass(frozen=True, repr=False)
class RowStep:
    """What one row, one timer or one advance of the watermark did; ``Debugger.steps(by="row")`` yields it.

    Attributes:
        batch_id: The real query's batch.
        kind: ``"row"``: a row was given to the function, or to the join; ``"timer"``: a timer fired; ``"rejected"``: a
            row was not admitted; ``"watermark"``: a join's watermark advanced.
        timestamp: The event time of the row, or the time of the timer, in epoch milliseconds; None without one.
        watermark: The operator's watermark that the function saw, or the join's after it, in epoch milliseconds.
        input: The name of the row's input.
        row: The row.
        domain: The timer's time domain, ``"event_time"`` or ``"processing_time"``.
        reason: Why the row was rejected, such as ``"late"``.
        outputs: The rows that came out, by output: ``"output"``, or a side output's tag id.
        state: A function's states of the key afterwards, by name.
        versions: In as-of and temporal joins, the rows of the right input that later rows can match, afterwards.
        timers: The key's timers afterwards.
        waiting: In a join, the rows of each input that wait afterwards, by the input's name.
    """

    batch_id: int
    kind: Literal["row", "timer", "rejected", "watermark"]
    timestamp: int | None
    watermark: int
    input: str | None = None
    row: Row | None = None
    domain: str | None = None
    reason: str | None = None
    outputs: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    versions: Sequence[Row] = ()
    timers: Sequence[KeyTimer] = ()
    waiting: Mapping[str, Sequence[Row]] = field(default_factory=dict)

    @property
    def output(self) -> list[Row]:
        """The rows of the main output."""
        return list(self.outputs.get(OUTPUT, ()))

    def __repr__(self) -> str:
        lines = [f"batch {self.batch_id}: {self._cause()} (watermark {format_time(self.watermark)})"]
        for name, rows in self.outputs.items():
            lines += [f"  {name}: {show_row(row.as_dict())}" for row in rows]
        for name, value in self.state.items():
            lines.append(f"  state {name}: {show_value(value)}")
        lines += [f"  version in force: {show_row(row.as_dict())}" for row in self.versions]
        for name, rows in self.waiting.items():
            lines += [f"  {name} that waits: {show_row(row.as_dict())}" for row in rows]
        timers = ", ".join(f"{each.domain.replace('_', ' ')} {format_time(each.timestamp)}" for each in self.timers)
        return "\n".join([*lines, *([f"  timers: {timers}"] if timers else [])])

    def _repr_html_(self) -> str:
        """Return the step as HTML, for notebooks."""
        return f"<pre>{html.escape(repr(self))}</pre>"

    def _cause(self) -> str:
        when = "" if self.timestamp is None else f" at {format_time(self.timestamp)}"
        if self.kind == "watermark":
            return "the watermark advanced"
        if self.kind == "timer":
            return f"{str(self.domain).replace('_', ' ')} timer{when}"
        row = "" if self.row is None else f": {show_row(self.row.as_dict())}"
        why = f" was rejected as {self.reason}" if self.kind == "rejected" else ""
        return f"row of {self.input!r}{when}{why}{row}"
