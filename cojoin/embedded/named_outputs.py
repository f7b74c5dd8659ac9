"""The outputs of a run or of a step, by name, and their way to pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

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


_NAT = -(1 << 63)


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
    """Return a table as a pandas DataFrame that changes no value: integers and booleans with nulls stay such.

    A column with the time that pandas takes for NaT has Arrow's own type.

    >>> as_pandas(pa.table({"id": [1, None]})).dtypes.tolist()
    [Int64Dtype()]
    """
    own: dict[str, Any] = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        if column.null_count and field.type in _NULLABLE:
            own[field.name] = _NULLABLE.get
        elif any(map(_has_nat, column.chunks)):
            own[field.name] = pd.ArrowDtype
    others = table.drop_columns(list(own))
    try:
        frame: pd.DataFrame = others.to_pandas(integer_object_nulls=True)
    except ValueError:
        # Python's dates end with the year 9999, and those of pandas do not.
        frame = others.to_pandas(integer_object_nulls=True, date_as_object=False)
    for place, name in enumerate(table.column_names):
        if name in own:
            frame.insert(place, name, table.column(place).to_pandas(types_mapper=own[name]))
    return frame


def _has_nat(array: pa.Array) -> bool:
    """Return whether an array has, at any depth, the number by which pandas marks a missing time: the smallest one."""
    dtype = array.type
    if pa.types.is_struct(dtype):
        return any(map(_has_nat, array.flatten()))
    if pa.types.is_map(dtype):
        return _has_nat(array.keys) or _has_nat(array.items)
    if pa.types.is_list(dtype):
        return _has_nat(array.flatten())
    if not (pa.types.is_timestamp(dtype) or pa.types.is_duration(dtype)):
        return False
    return bool(pc.min(array.view(pa.int64())).as_py() == _NAT)
