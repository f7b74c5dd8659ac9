"""The result of a run in this process: all outputs of one reading of the inputs, and the counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cojoin.embedded.named_outputs import Outputs
from cojoin.embedded.row_texts import text_rows
from cojoin.engine.descriptions import describe_operation
from cojoin.engine.display import Display, display_of, html_table, html_text
from cojoin.engine.formats import text_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from cojoin.engine.batch_report import BatchReport
    from cojoin.engine.plan import Plan

__all__ = ["Result"]

_ROWS, _COLUMNS = 5, 20
"""How much of the output a result shows."""


@dataclass(frozen=True, repr=False)
class Result(Outputs):
    """All outputs of one run in this process.

    Attributes:
        plan: What was run.
        tables: Each output's rows by its name: ``"output"``, ``"rejected"`` and the side outputs' tag ids.
        report: The counts and watermarks at the end, as in a query's progress; ``print(result.report.table())``.
    """

    plan: Plan
    tables: Mapping[str, pa.Table]
    report: BatchReport

    def __repr__(self) -> str:
        return f"{display_of(self._display, 'Result').text()}\n{self._rows_said()}\n{text_table(self._first_rows())}"

    def _repr_html_(self) -> str:
        said = html_text(self._rows_said())
        return f"{display_of(self._display, 'Result').html()}<p>{said}</p>{html_table(self._first_rows())}"

    def _display(self) -> Display:
        left, right = self.plan.inputs
        head = f"Result: {describe_operation(self.plan.operation)} of {left.name!r} with {right.name!r}"
        counts = ", ".join(f"{name} {table.num_rows:,}" for name, table in self.tables.items())
        return Display(head, self.report.table_rows(), [f"Rows by output: {counts}"])

    def _rows_said(self) -> str:
        count = self.output.num_rows
        return "Output:" if count <= _ROWS else f"Output, the first {_ROWS} of {count:,} rows:"

    def _first_rows(self) -> list[Sequence[str]]:
        """Return the output's names and first rows; of many columns the middle is left out."""
        rows = text_rows(self.output, _ROWS)
        if len(rows[0]) <= _COLUMNS:
            return rows
        half = _COLUMNS // 2
        return [[*row[:half], "...", *row[-half:]] for row in rows]
