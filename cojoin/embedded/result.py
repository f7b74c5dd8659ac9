"""The result of a run in this process: all outputs of one reading of the inputs, by name, and the counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.engine.display import Display, display_of, html_table, html_text, text_rows, text_table
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.plan import describe_operation
from cojoin.installed_packages import check_pandas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    import pyarrow as pa

    from cojoin.engine.batch_report import BatchReport
    from cojoin.engine.functions import OutputTag
    from cojoin.engine.plan import Plan


class Outputs:
    """The part of a result or a step that returns its outputs."""

    plan: Plan
    tables: Mapping[str, pa.Table]

    @property
    def output(self) -> pa.Table:
        """The rows of the main output."""
        return self.tables[OUTPUT]

    @property
    def rejected(self) -> pa.Table:
        """The rejected rows with their reasons."""
        return self.tables[REJECTED]

    @property
    def side_outputs(self) -> dict[OutputTag, pa.Table]:
        """The rows of each side output, by its tag."""
        return {tag: self.tables[tag.tag_id] for tag in self.plan.side_outputs}

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the main output by Arrow's interface, so that any library reads it."""
        return self.output.__arrow_c_stream__(requested_schema)

    def to_pandas(self, output: Any = "output") -> pd.DataFrame:
        """Return one output as a pandas DataFrame; see ``Joined.to_pandas``.

        Args:
            output: ``"output"``, ``"rejected"``, or the ``OutputTag`` of a side output.

        Raises:
            ConfigurationError: The output does not exist.
            EnvironmentSetupError: pandas is missing or too old.
        """
        check_pandas("to_pandas()")
        from cojoin.embedded.pandas_frames import as_pandas  # noqa: PLC0415 - it imports pandas

        return as_pandas(self.tables[self.plan.output_name(output)])


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
        return f"{display_of(self._display, 'Result').text()}\n{self._rows_title()}\n{text_table(self._first_rows())}"

    def _repr_html_(self) -> str:
        rejections = html_text(self._rows_title())
        return f"{display_of(self._display, 'Result').html()}<p>{rejections}</p>{html_table(self._first_rows())}"

    def _display(self) -> Display:
        left, right = self.plan.inputs
        head = f"Result: {describe_operation(self.plan.operation)} of {left.name!r} with {right.name!r}"
        counts = ", ".join(f"{name} {table.num_rows:,}" for name, table in self.tables.items())
        return Display(head, self.report.table_rows(), [f"Rows by output: {counts}"])

    def _rows_title(self) -> str:
        count = self.output.num_rows
        return "Output:" if count <= _ROWS else f"Output, the first {_ROWS} of {count:,} rows:"

    def _first_rows(self) -> list[Sequence[str]]:
        """Return the output's names and first rows; of many columns the middle is left out."""
        rows = text_rows(self.output, _ROWS)
        if len(rows[0]) <= _COLUMNS:
            return rows
        half = _COLUMNS // 2
        return [[*row[:half], "...", *row[-half:]] for row in rows]
