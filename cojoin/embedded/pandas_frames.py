"""DataFrames of pandas: their columns as Arrow's, and a table as one of them. No value is changed either way.

The levels of an index that have names become columns, the others are dropped. Columns of texts are ``object`` in pandas
2 and ``str`` since pandas 3; the values of ``object`` columns are checked one by one (``object_columns``). It costs a
copy of the rows.

Only what meets a DataFrame of pandas' imports this module, which takes half a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.embedded.object_columns import check_objects
from cojoin.engine.input_columns import check_names
from cojoin.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cojoin.embedded.libraries import Library

__all__ = ["as_pandas", "pandas_columns"]

_NULLABLE = {
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}

_NAT = -(1 << 63)


def pandas_columns(frame: pd.DataFrame, what: str, library: Library) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Yield a DataFrame's columns, by their names.

    Args:
        frame: The rows.
        what: The input, for messages, such as ``"input 'trades'"``.
        library: Its library, for advice.

    Raises:
        SchemaError: A column has a name or a type that is not allowed.
    """
    unnamed = [place for place, name in enumerate(frame.index.names) if name is None]
    if len(unnamed) < frame.index.nlevels:
        try:
            frame = frame.set_axis(frame.index.droplevel(unnamed), axis="index").reset_index()
        except ValueError as error:
            msg = f"{what}: its index has the name of a column: {error}; use .reset_index(drop=True)"
            raise SchemaError(msg) from error
    for name in frame.columns:
        if not isinstance(name, str):
            msg = f"{what}: column {name!r}: expected a text as its name; rename it, such as with .rename(columns=str)"
            raise SchemaError(msg)
    check_names(list(frame.columns), what)
    # A copy, since the frame may be changed after the inputs are connected, and some columns would share its memory.
    frame = frame.copy()
    for name in frame.columns:
        yield name, _pandas_column(frame[name], f"{what}: column {name!r}", library)


def _pandas_column(values: pd.Series[Any], place: str, library: Library) -> pa.ChunkedArray:
    name = str(values.name)
    if isinstance(values.dtype, pd.SparseDtype):
        dense = library.code(name, "{c}.sparse.to_dense()")
        msg = f"{place} has pandas' type {values.dtype}, which Arrow does not have; fill its gaps: {dense}"
        raise SchemaError(msg)
    if values.dtype == object:
        check_objects(values, place)
    elif isinstance(values.dtype, pd.CategoricalDtype) and values.cat.categories.dtype == object:
        check_objects(values.cat.categories.to_series(), place)
    try:
        made = pa.array(values, from_pandas=True)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        texts = library.text(name, values.dtype)
        msg = f"{place} ({values.dtype}) can't become an Arrow column: {error}; give all its values one type: {texts}"
        raise SchemaError(msg) from error
    return made if isinstance(made, pa.ChunkedArray) else pa.chunked_array([made])


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
