"""The result of a run in this process: all outputs of one reading of the inputs, and the counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from cojoin.engine.descriptions import describe_operation
from cojoin.engine.display import Display, display_of, html_text
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.values.rows import decode_column
from cojoin.engine.values.texts import show_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.engine.batch_report import BatchReport
    from cojoin.engine.plan import Plan
    from cojoin.engine.side_outputs import OutputTag

__all__ = ["Result", "as_pandas"]

_ROWS, _COLUMNS = 5, 20
"""How much of the output a result shows."""

_NULLABLE = {
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}


@dataclass(frozen=True, repr=False)
class Result:
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

    def to_pandas(self, output: Any = "main") -> pd.DataFrame:
        """Return one output as a pandas DataFrame; see ``Joined.to_pandas``.

        Args:
            output: ``"main"``, ``"rejected"``, or the ``OutputTag`` of a side output.

        Raises:
            ConfigurationError: The output does not exist.
        """
        return as_pandas(self.tables[self.plan.output_name(output)])


def _first_rows(table: pa.Table) -> pd.DataFrame:
    first = table.slice(0, _ROWS)
    try:
        frame: pd.DataFrame = as_pandas(first)
        frame.to_string()
    except Exception:  # noqa: BLE001 - what pandas can't hold is shown as text
        columns = {name: decode_column(first.column(name), str) for name in first.column_names}
        frame = pd.DataFrame({name: [show_text(str(each)) for each in column] for name, column in columns.items()})
    return frame


def as_pandas(table: pa.Table) -> pd.DataFrame:
    """Return a table as a pandas DataFrame that rounds no number: integers and booleans with nulls stay such.

    >>> as_pandas(pa.table({"id": [1, None]})).dtypes.tolist()
    [Int64Dtype()]
    """
    with_nulls = {name for name, column in zip(table.column_names, table.columns, strict=True) if column.null_count}
    others = table.drop_columns([name for name in with_nulls if table.schema.field(name).type in _NULLABLE])
    try:
        frame: pd.DataFrame = others.to_pandas(integer_object_nulls=True)
    except ValueError:
        # Python's dates end with the year 9999, and those of pandas do not.
        frame = others.to_pandas(integer_object_nulls=True, date_as_object=False)
    for place, field in enumerate(table.schema):
        if field.name in with_nulls and field.type in _NULLABLE:
            column = table.column(place).to_pandas(types_mapper=_NULLABLE.get)
            frame.insert(place, field.name, column)
    return frame
