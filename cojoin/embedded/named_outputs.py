"""The outputs of a run or of a step, by name, and their way to pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from cojoin.engine.operator import OUTPUT, REJECTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.engine.plan import Plan
    from cojoin.engine.side_outputs import OutputTag

__all__ = ["Outputs", "as_pandas"]

_NULLABLE = {
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}


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

    def to_pandas(self, output: Any = "main") -> pd.DataFrame:
        """Return one output as a pandas DataFrame; see ``Joined.to_pandas``.

        Args:
            output: ``"main"``, ``"rejected"``, or the ``OutputTag`` of a side output.

        Raises:
            ConfigurationError: The output does not exist.
        """
        return as_pandas(self.tables[self.plan.output_name(output)])


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
