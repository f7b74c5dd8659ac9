"""The result of a run in this process: all outputs of one reading of the inputs, and the counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from cojoin.embedded.named_outputs import Outputs, as_pandas
from cojoin.engine.descriptions import describe_operation
from cojoin.engine.display import Display, display_of, html_text
from cojoin.engine.values.rows import decode_column
from cojoin.engine.values.texts import show_text

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        rows: str = _first_rows(self.output).to_string(index=False, max_cols=_COLUMNS)
        return f"{display_of(self._display, 'Result').text()}\n{self._rows_said()}\n{rows}"

    def _repr_html_(self) -> str:
        rows: str = _first_rows(self.output).to_html(index=False, border=0, max_cols=_COLUMNS)
        return f"{display_of(self._display, 'Result').html()}<p>{html_text(self._rows_said())}</p>{rows}"

    def _display(self) -> Display:
        left, right = self.plan.inputs
        head = f"Result: {describe_operation(self.plan.operation)} of {left.name!r} with {right.name!r}"
        counts = ", ".join(f"{name} {table.num_rows:,}" for name, table in self.tables.items())
        return Display(head, self.report.table_rows(), [f"Rows by output: {counts}"])

    def _rows_said(self) -> str:
        count = self.output.num_rows
        return "Output:" if count <= _ROWS else f"Output, the first {_ROWS} of {count:,} rows:"


def _first_rows(table: pa.Table) -> pd.DataFrame:
    first = table.slice(0, _ROWS)
    try:
        frame: pd.DataFrame = as_pandas(first)
        frame.to_string()
    except Exception:  # noqa: BLE001 - what pandas can't hold is shown as text
        columns = {name: decode_column(first.column(name), str) for name in first.column_names}
        frame = pd.DataFrame({name: [show_text(str(each)) for each in column] for name, column in columns.items()})
    return frame
