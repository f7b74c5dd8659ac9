"""One run of a function over all keys that notes, for each key, what it emitted and how many timers fired.

The notes tell which keys are worth a test. They also tell whether a key's rows alone make the same rows come out: if
not, the function depends on something else, and a test of one key would prove nothing.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.engine.operator import Batch
from cojoin.engine.side_outputs import OutputTag, encode_outputs
from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.rows import decode_rows
from cojoin.testing.harness_key_groups import decode_states
from cojoin.testing.json_values import row_to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cojoin.capture.recorded_history import History
    from cojoin.engine.functions import Context, RuntimeContext
    from cojoin.engine.keyed_process import KeyedCoProcess
    from cojoin.engine.operator import Emission
    from cojoin.engine.plan import Plan

__all__ = ["Notes", "observe", "run_history"]


@dataclass
class Notes:
    """What a function did for one key.

    Attributes:
        yielded: What its callbacks yielded, in order.
        timers: How many timers fired.
    """

    yielded: list[Any] = field(default_factory=list)
    timers: int = 0

    @property
    def uses_side_outputs(self) -> bool:
        """Whether a row went to a side output."""
        return any(type(each) is tuple and len(each) == 2 and isinstance(each[0], OutputTag) for each in self.yielded)

    def outputs(self, process: KeyedCoProcess) -> dict[str, list[Any]]:
        """Return the rows of each output that has any, as JSON objects; the main output is ``output``."""
        pieces = encode_outputs(self.yielded, process.output, process.side_outputs, "function")
        return {
            name or "output": [row_to_json(row, table.schema, sort_maps=True) for row in decode_rows(table)]
            for name, table in pieces
            if table.num_rows
        }


class _Observed(KeyedCoProcessFunction):
    """A user's function whose callbacks are noted by key."""

    def __init__(self, function: KeyedCoProcessFunction, notes: defaultdict[Any, Notes]) -> None:
        self._function, self._notes = function, notes

    def __deepcopy__(self, memo: dict[int, Any]) -> _Observed:
        return type(self)(copy.deepcopy(self._function, memo), self._notes)

    def open(self, ctx: RuntimeContext) -> None:
        """Open the user's function."""
        return self._function.open(ctx)

    def close(self) -> None:
        """Close the user's function."""
        return self._function.close()

    def process_element1(self, value: Any, ctx: Context) -> list[Any]:
        """Call the user's callback, and note its rows."""
        return self._noted(self._function.process_element1(value, ctx), ctx)

    def process_element2(self, value: Any, ctx: Context) -> list[Any]:
        """Call the user's callback, and note its rows."""
        return self._noted(self._function.process_element2(value, ctx), ctx)

    def on_timer(self, timestamp: int, ctx: Context) -> list[Any]:
        """Call the user's callback, and note the timer and its rows."""
        self._notes[ctx.get_current_key()].timers += 1
        return self._noted(self._function.on_timer(timestamp, ctx), ctx)

    def _noted(self, rows: Any, ctx: Context) -> list[Any]:
        given = [] if rows is None else list(rows)
        if given:
            self._notes[ctx.get_current_key()].yielded += given
        return given


def observe(history: History) -> dict[Any, Notes]:
    """Return what a function did for each key that had a timer or a row of output.

    Args:
        history: The rows; its plan's operation is a ``KeyedCoProcess``.

    Raises:
        FunctionError: The function raised an error, or returned an invalid value.
    """
    process: Any = history.plan.operation
    notes: defaultdict[Any, Notes] = defaultdict(Notes)
    # The class has the user's name, since error messages take it from there.
    kind = type(process.function)
    named = type(kind.__name__, (_Observed,), {"__module__": kind.__module__, "__qualname__": kind.__qualname__})
    observed = replace(
        process,
        function=named(process.function, notes),
        processing_time_timers=process.sets_processing_time_timers,
    )
    for _ in run_history(replace(history.plan, operation=observed), history):
        pass
    return dict(notes)


def run_history(plan: Plan, history: History) -> Iterator[Emission]:
    """Run a plan over a history in one operator, and yield what it emits."""
    operator = plan.create_operator()
    if history.state is not None:
        operator.restore(decode_states(history.state).states[0])
    try:
        for number, batch in enumerate(history.batches):
            left, right = history.of_batch(number)
            seen = {} if batch.last_event is None else {ONE_PARTITION: batch.last_event}
            controls = [
                Control(
                    1 if side == 0 else 2,
                    seen,
                    table.num_rows,
                    batch.processing_time,
                    dict.fromkeys(seen, NONE),
                    {} if watermark == NONE else {ONE_PARTITION: watermark},
                )
                for side, (table, watermark) in enumerate(zip((left, right), batch.watermarks, strict=True))
            ]
            ends = batch.last_event is not None
            yield from operator.process(Batch((left, right), controls, ends, batch.processing_time))
    finally:
        operator.close()
