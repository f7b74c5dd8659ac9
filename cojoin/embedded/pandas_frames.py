"""DataFrames of pandas: their columns as Arrow's, and a table as one of them. No value is changed either way.

The levels of an index that have names become columns, the others are dropped. Columns of texts are ``object`` in pandas
2 and ``str`` since pandas 3. The values of ``object`` columns are checked one by one, since Arrow would cut or convert
some in silence. Refused are times with nanoseconds, and values of several kinds at one place: times with and without a
zone, dates and times, texts and bytes, or unlike classes. A place is the column itself, or what is at the same keys of
its dicts and in its lists. It costs a copy of the rows, and some Python for each value of such a column, except for
texts, numbers and other kinds that pandas knows to be pure.

Only what meets a DataFrame of pandas' imports this module, which takes half a second.
"""

from __future__ import annotations

from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.input import check_names
from cojoin.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from cojoin.embedded.libraries import Library

_PURE = {"string", "bytes", "boolean", "integer", "floating", "decimal", "complex", "empty"}


def _check_objects(values: pd.Series[Any], place: str) -> None:
    """Refuse an object column with a value that would be changed, or with values of several kinds."""
    if pd.api.types.infer_dtype(values, skipna=True) in _PURE:
        return
    seen: dict[tuple[Any, ...], tuple[str, Any]] = {}
    for row, value in values.items():
        for path, leaf in _leaves(value, ()):
            if getattr(leaf, "nanosecond", 0) or (isinstance(leaf, pd.Timedelta) and leaf.value % 1_000):
                msg = f"{place}, row {row!r}: {leaf!r} has nanoseconds, and Spark's times have microseconds; round it"
                raise SchemaError(msg)
            kind = _kind(leaf)
            known, example = seen.setdefault(path, (kind, leaf))
            if kind != known and {kind, known} != {"int", "float"}:
                raise SchemaError(_several(place, row, (known, example), (kind, leaf)))


def _leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the values in lists and dicts, each with its place; nulls are left out."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, (*path, name))
    elif isinstance(value, (list, tuple)) or hasattr(value, "__array__"):
        for item in value:
            yield from _leaves(item, (*path, "[]"))
    elif value is not None and value is not pd.NA and value is not pd.NaT and value == value:  # noqa: PLR0124 - NaN
        yield path, value


def _kind(value: Any) -> str:
    if isinstance(value, datetime):
        return "times without a zone" if value.tzinfo is None else "times with a zone"
    if isinstance(value, time):
        return "times of day" if value.tzinfo is None else "times of day with a zone"
    return "dates" if isinstance(value, date) else type(value).__name__


def _several(place: str, row: Any, first: tuple[str, Any], other: tuple[str, Any]) -> str:
    (known, example), (kind, value) = first, other
    cure = "give all one type, such as with .astype(str)"
    if "times with" in known and "times with" in kind:
        cure = "choose one zone: pandas.to_datetime(column, utc=True) takes those without as UTC"
    kinds = f"{known}, such as {example!r}, and, in row {row!r}, {value!r} ({kind})"
    return f"{place} has values of several types: {kinds}; {cure}"


_NULLABLE = {
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}

_NAT = -(1 << 63)


def pandas_columns(
    frame: pd.DataFrame, label: str, library: Library, names: Sequence[str] | None = None, *, shared: bool = False
) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Yield a DataFrame's columns by their names; all of them, or only those in ``names``.

    With ``shared`` some columns share the frame's memory, so it must not be changed while they are in use.
    """
    if names is None or not set(names) <= set(frame.columns):
        frame = with_levels(frame, label)
    for name in frame.columns if names is None else names:
        column = frame[name] if shared else frame[name].copy()
        yield name, _pandas_column(column, f"{label}: column {name!r}", library)


def with_levels(frame: pd.DataFrame, label: str) -> pd.DataFrame:
    """Return a DataFrame whose columns are its named index levels and its columns, and check their names."""
    unnamed = [place for place, name in enumerate(frame.index.names) if name is None]
    if len(unnamed) < frame.index.nlevels:
        try:
            frame = frame.set_axis(frame.index.droplevel(unnamed), axis="index").reset_index()
        except ValueError as error:
            msg = f"{label}: its index has the name of a column: {error}; use .reset_index(drop=True)"
            raise SchemaError(msg) from error
    level_names(frame, label)
    return frame


def level_names(frame: pd.DataFrame, label: str) -> list[str]:
    """Return the names of a DataFrame's named index levels, and then of its columns.

    Raises:
        SchemaError: A name is not a text, or is not allowed.
    """
    names = [*(name for name in frame.index.names if name is not None), *frame.columns]
    for name in names:
        if not isinstance(name, str):
            msg = f"{label}: column {name!r}: expected a text as its name; rename it, such as with .rename(columns=str)"
            raise SchemaError(msg)
    check_names(names, label)
    return names


def _pandas_column(values: pd.Series[Any], place: str, library: Library) -> pa.ChunkedArray:
    name = str(values.name)
    if isinstance(values.dtype, pd.SparseDtype):
        dense = library.code(name, "{c}.sparse.to_dense()")
        msg = f"{place} has pandas' type {values.dtype}, which Arrow does not have; fill its gaps: {dense}"
        raise SchemaError(msg)
    if values.dtype == object:
        _check_objects(values, place)
    elif isinstance(values.dtype, pd.CategoricalDtype) and values.cat.categories.dtype == object:
        _check_objects(values.cat.categories.to_series(), place)
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


def pick(frame: pd.DataFrame, names: Sequence[str], places: NDArray[np.int64]) -> pd.DataFrame:
    """Return columns of rows by their places, missing rows for -1.

    Where some are missing, integers and booleans become pandas' nullable ones.
    """
    has_gaps = bool((places < 0).any())
    columns = {}
    for name in names:
        values, dtype = frame[name].array, frame[name].dtype
        if has_gaps and isinstance(dtype, np.dtype) and dtype.kind in "iub":
            values = pd.array(values, dtype=_nullable(dtype))
        columns[name] = values.take(places, allow_fill=has_gaps)
    # The columns were made for this, so each stays where it is.
    picked: pd.DataFrame = pd.DataFrame(columns, index=pd.RangeIndex(len(places)), copy=False)
    return picked


def _nullable(dtype: np.dtype[Any]) -> str:
    name = dtype.newbyteorder("=").name
    return "boolean" if name == "bool" else name.replace("int", "Int").replace("u", "U")


def append_columns(
    rows: pd.DataFrame, names: Sequence[str], added: pd.DataFrame, renamed: Sequence[str]
) -> pd.DataFrame:
    """Return rows with other columns next to theirs.

    Args:
        rows: The rows, whose index the result has.
        names: The new names of its named index levels, and then of its columns.
        added: The other columns, in the same order of rows.
        renamed: Their new names.
    """
    # In place: ``set_axis`` copies the columns, which were made for this.
    added.index = rows.index
    joined: pd.DataFrame = pd.concat([rows, added], axis="columns")
    left = iter(names)
    levels = [name if name is None else next(left) for name in rows.index.names]
    joined.columns = pd.Index([*left, *renamed])
    joined.index = joined.index.set_names(levels)
    return joined


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
