"""One step of a stream without Spark: what came in, what came out, and what is kept after it.

A step keeps the state after it as bytes, from which its tables are made when they are asked for. So a step costs what
the state costs, and a list of many steps that many times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from cojoin.embedded.named_outputs import Outputs
from cojoin.embedded.step_texts import step_html, step_text
from cojoin.engine.local.group_states import restored_operators
from cojoin.engine.local.kept_tables import KeptTables

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from cojoin.engine.batch_report import BatchReport
    from cojoin.engine.operator import Sides
    from cojoin.engine.plan import Plan

__all__ = ["Step"]


@dataclass(frozen=True, repr=False, eq=False)
class Step(Outputs):
    """One micro-batch of ``Joined.steps``; in a notebook it shows itself as tables.

    Attributes:
        plan: What is run.
        rows: The rows of the left and of the right input that came in this step, as Arrow tables.
        tables: Each output's rows of this step by its name: ``"output"``, ``"rejected"`` and the side outputs' tag ids.
        report: The counts and watermarks after the step, as in a query's progress; ``print(step.report.table())``.
        snapshot: All that is kept after the step, for ``Stepper.restore``.
        before: All that was kept before the step; with it the step shows first what has changed.
    """

    plan: Plan
    rows: Sides
    tables: Mapping[str, pa.Table]
    report: BatchReport
    snapshot: bytes = field(repr=False)
    before: bytes = field(repr=False)

    @property
    def batch_id(self) -> int:
        """The step's number, from 0 on."""
        return self.report.batch_id

    @property
    def processing_time(self) -> int:
        """The step's processing time in epoch milliseconds; 0 if it is unknown."""
        return self.report.processing_time

    @property
    def watermark(self) -> int:
        """The operator's watermark after the step, in epoch milliseconds; ``-2**63`` while there is none.

        After the step that ends the inputs it is ``2**63 - 1``.
        """
        return self.report.watermark

    @property
    def input_watermarks(self) -> tuple[int, int]:
        """The watermarks of the left and of the right input after the step, as ``watermark``."""
        left, right = self.report.inputs
        return left.watermark, right.watermark

    @cached_property
    def waiting(self) -> Sides:
        """The rows of the left and of the right input that wait for the watermark or for a match, in total order."""
        return self._kept.waiting

    @cached_property
    def timers(self) -> pa.Table:
        """The timers that wait, by time: the key columns, ``domain``, and ``timestamp`` in UTC to the millisecond."""
        return self._kept.timers

    @cached_property
    def state(self) -> pa.Table:
        """What is kept of each key, besides waiting rows and timers.

        For a function a row for each key that has a state: the key columns, and a column for each state. For as-of and
        temporal joins the versions in force, with the right input's columns. For interval joins nothing.
        """
        return self._kept.state

    @cached_property
    def _kept(self) -> KeptTables:
        return KeptTables(restored_operators(self.plan, self.snapshot))

    @cached_property
    def _kept_before(self) -> KeptTables:
        return KeptTables(restored_operators(self.plan, self.before))

    def __repr__(self) -> str:
        return step_text(self)

    def _repr_html_(self) -> str:
        return step_html(self)
