"""Execution in this process: the operators of Spark's workers, over rows in memory, to the end of time.

It keeps all rows in memory. Nothing is late, since the only batch has no watermark before it, and ``max_ahead`` has
no effect, since nothing is ahead of the end of time. A key's output rows are in the order that Spark's static way gives
them. All rows are one key group: to split them for a second core costs a join more than that core saves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cojoin.embedded.frames import bind_frames
from cojoin.embedded.result import Result
from cojoin.engine.callbacks import UserFrames
from cojoin.engine.input_spec import controls_of
from cojoin.engine.local.local_run import LocalRun
from cojoin.engine.values.arguments import check_flag, milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cojoin.embedded.micro_batches import Arrival, Batches, Clock
    from cojoin.embedded.steps import Step
    from cojoin.engine.functions import KeyedCoProcessFunction
    from cojoin.engine.input import Input
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.operator import Sides
    from cojoin.engine.plan import Plan
    from cojoin.engine.time.control_rows import Control
    from cojoin.engine.values.arguments import Duration


@dataclass(frozen=True)
class EmbeddedExecution:
    """Executes plans over two inputs in memory, whose rows are in Spark's types.

    ``max_ahead_ms`` is how far the rows of each input may be ahead of processing time in ``steps``; None is any
    distance.
    """

    inputs: tuple[InputSpec, InputSpec]
    rows: Sides
    max_ahead_ms: tuple[int | None, int | None] = (None, None)
    is_streaming: bool = False

    @classmethod
    def of(cls, left: Input, right: Input) -> EmbeddedExecution:
        """Return the execution of two declared inputs, whose rows are read and checked."""
        inputs, rows = bind_frames(left, right)
        return cls(inputs, rows, (_max_ahead(left), _max_ahead(right)))

    @property
    def sources(self) -> tuple[str, str]:
        """The source of each input's rows, in words."""
        left, right = self.rows
        return f"{left.num_rows:,} in memory", f"{right.num_rows:,} in memory"

    def output_type(self, declared: Any) -> Any:
        """Return an output type as it is; the engine reads DDL, Arrow schemas and Spark's types."""
        return declared

    def check_function(self, function: KeyedCoProcessFunction) -> None:
        """Accept any function, since it need not leave this process."""

    def run(self, plan: Plan) -> Result:
        """Run a plan over all rows, to the end of time."""
        with UserFrames(), LocalRun(plan, keeps_operators=True) as run:
            tables = run.process(self.rows, self.controls(), end_of_input=True).tables()
        return Result(plan, tables, run.report(0, with_sizes=False))

    def controls(self) -> list[Control]:
        """Return the control rows that the rows of both inputs would send."""
        return controls_of(self.rows, self.inputs)

    def steps(
        self,
        plan: Plan,
        batches: Batches,
        *,
        arrival: Arrival,
        every: Duration | None,
        processing_time: Clock,
        drain: bool,
    ) -> Iterator[Step]:
        """Run a plan as a stream, step by step; the arguments are checked now, and ``Joined.steps`` documents them."""
        # A first join does without them.
        from cojoin.embedded.micro_batches import cut_batches, processing_times  # noqa: PLC0415
        from cojoin.embedded.steps import Stepper, run_steps  # noqa: PLC0415

        check_flag("drain", drain)
        cuts = cut_batches(self.inputs, self.rows, batches, arrival, every)
        times = processing_times(cuts, processing_time)
        left, right = (
            replace(spec, max_ahead_ms=limit) for spec, limit in zip(plan.inputs, self.max_ahead_ms, strict=True)
        )
        return run_steps(Stepper(replace(plan, left=left, right=right)), cuts, times, drain=drain)


def _max_ahead(declared: Input) -> int | None:
    return None if declared.max_ahead is None else milliseconds(declared.max_ahead, "max_ahead")
