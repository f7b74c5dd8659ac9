"""The libraries whose frames are rows in memory: their advice, and the columns that they export wrongly.

Code in advice calls a frame ``df``, and an Arrow table ``table``; for a DuckDB relation it is SQL for ``.project``. A
library may export a column as something other than its values, so the columns' types are checked before rows are read.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from cojoin.engine.input import Advice, Kind, kind_of
from cojoin.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pandas as pd


class _Words(NamedTuple):
    """The code of a library, as templates; ``{c}`` is the column's value, ``{n}`` its name as a Python text."""

    value: str
    change: str
    casts: Mapping[str, str]
    times: Mapping[Kind, str]
    floors: Mapping[str, tuple[str, str]]
    """For a kind of times with nanoseconds the code that rounds it down, and up."""


def _casts(code: str, *types: str) -> Mapping[str, str]:
    """Return the code of a cast to each type, given by the library's names of the types; ``{t}`` is such a name."""
    names = ("tinyint", "smallint", "int", "bigint", "string", "decimal")
    return {name: code.replace("{t}", each) for name, each in zip(names, types, strict=True)}


_PANDAS = _Words(
    value="df[{n}]",
    change="df[{n}] = {e}",
    casts=_casts(
        "{c}.astype({t})", "'Int8'", "'Int16'", "'Int32'", "'Int64'", "'string'", "pd.ArrowDtype(pa.decimal128{d})"
    ),
    times={
        "timestamp_ntz": "{c}.dt.tz_localize('UTC')",
        "bigint": "pd.to_datetime({c}, unit='ms', utc=True)",
        "int": "pd.to_datetime({c}, unit='s', utc=True)",
        "floating": "pd.to_datetime({c}.astype('float64'), unit='s', utc=True).dt.round('us')",
        "decimal": "pd.to_datetime({c}.astype('float64'), unit='s', utc=True).dt.round('us')",
        "string": "pd.to_datetime({c}, utc=True)",
        "date": "pd.to_datetime({c}, utc=True)",
        "interval": "pd.Timestamp(0, tz='UTC') + {c}",
    },
    floors={
        "timestamp": ("{c}.dt.floor('us')", "{c}.dt.ceil('us')"),
        "duration": ("{c}.dt.floor('us')", "{c}.dt.ceil('us')"),
    },
)

_POLARS = _Words(
    value="pl.col({n})",
    change="df.with_columns({e})",
    casts=_casts("{c}.cast({t})", "pl.Int8", "pl.Int16", "pl.Int32", "pl.Int64", "pl.String", "pl.Decimal{d}"),
    times={
        "timestamp_ntz": "{c}.dt.replace_time_zone('UTC')",
        "bigint": "pl.from_epoch({n}, 'ms').dt.replace_time_zone('UTC')",
        "int": "pl.from_epoch({n}, 's').dt.replace_time_zone('UTC')",
        "floating": "({c}.cast(pl.Float64) * 1_000_000).round().cast(pl.Datetime('us', 'UTC'))",
        "decimal": "({c}.cast(pl.Float64) * 1_000_000).round().cast(pl.Datetime('us', 'UTC'))",
        "string": "{c}.str.to_datetime(time_zone='UTC', strict=False)",
        "date": "{c}.cast(pl.Datetime('us')).dt.replace_time_zone('UTC')",
        "interval": "{c}.dt.total_microseconds().cast(pl.Datetime('us', 'UTC'))",
    },
    floors={
        "timestamp": ("{c}.dt.truncate('1us')", "({c} + pl.duration(nanoseconds=999)).dt.truncate('1us')"),
        "duration": ("{c}.dt.cast_time_unit('us')", "({c} + pl.duration(nanoseconds=999)).dt.cast_time_unit('us')"),
        "time": ("({c}.cast(pl.Int64) // 1000 * 1000).cast(pl.Time)", ""),
    },
)

_ARROW_SECONDS = "pc.round(pc.multiply({c}.cast(pa.float64()), 1e6)).cast(pa.int64()).cast(pa.timestamp('us', 'UTC'))"

_ARROW = _Words(
    value="table[{n}]",
    change="table.set_column({i}, {n}, {e})",
    casts=_casts(
        "{c}.cast({t})", "pa.int8()", "pa.int16()", "pa.int32()", "pa.int64()", "pa.string()", "pa.decimal128{d}"
    ),
    times={
        "timestamp_ntz": "pc.assume_timezone({c}, 'UTC')",
        "bigint": "{c}.cast(pa.timestamp('ms', 'UTC'))",
        "int": "{c}.cast(pa.int64()).cast(pa.timestamp('s', 'UTC'))",
        "floating": _ARROW_SECONDS,
        "decimal": _ARROW_SECONDS,
        "string": "{c}.cast(pa.timestamp('us', 'UTC'))",
        "date": "pc.assume_timezone({c}.cast(pa.timestamp('us')), 'UTC')",
        "interval": "{c}.cast(pa.duration('us')).cast(pa.int64()).cast(pa.timestamp('us', 'UTC'))",
    },
    floors={
        "timestamp": ("pc.floor_temporal({c}, unit='microsecond')", "pc.ceil_temporal({c}, unit='microsecond')"),
        "duration": ("{c}.cast(pa.duration('us'), safe=False)", ""),
        "time": ("{c}.cast(pa.time64('us'), safe=False)", ""),
    },
)

_DUCKDB = _Words(
    value="{q}",
    change="* REPLACE ({e} AS {q})",
    casts=_casts("{c}::{t}", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "VARCHAR", "DECIMAL{d}"),
    times={
        "timestamp_ntz": "{c} AT TIME ZONE 'UTC'",
        "bigint": "epoch_ms({c}) AT TIME ZONE 'UTC'",
        "int": "to_timestamp({c})",
        "floating": "to_timestamp({c})",
        "decimal": "to_timestamp({c})",
        "string": "TRY_CAST({c} AS TIMESTAMPTZ)",
        "date": "{c}::TIMESTAMP AT TIME ZONE 'UTC'",
    },
    floors={
        "timestamp": (
            # Its integer division cuts, before 1970 upwards.
            "make_timestamp(epoch_ns({c}) // 1000 - (epoch_ns({c}) % 1000 < 0)::INT) AT TIME ZONE 'UTC'",
            "make_timestamp(epoch_ns({c}) // 1000 + (epoch_ns({c}) % 1000 > 0)::INT) AT TIME ZONE 'UTC'",
        ),
        "time": ("{c}::TIME", ""),
    },
)


class Library(Advice):
    """A library, with the names of one frame's columns, and the index of a pandas DataFrame."""

    def __init__(self, words: _Words, names: Sequence[Any], index: pd.Index[Any] | None = None) -> None:
        self._words, self._names, self._index = words, list(names), index

    def time(self, column: str, kind: Kind, role: str) -> str | None:
        """Return code that makes a column of a kind a ``timestamp``; None if there is none."""
        del role
        code = self._words.times.get(kind)
        return None if code is None else self._change(column, code)

    def cast(self, column: str, ddl: str) -> str:
        """Return code that casts a column to one of Spark's types."""
        name, opening, digits = ddl.partition("(")
        return self._change(column, self._words.casts[name], digits=(opening + digits).replace(",", ", "))

    def about_missing(self, column: str, role: str) -> str | None:
        """Return the cure for a column of times that may be a level of the index without a name."""
        if self._index is None or role not in {"event time", "valid from", "valid to"}:
            return None
        import pandas as pd  # noqa: PLC0415 - the index is one of pandas'

        levels = [self._index.get_level_values(place) for place in range(self._index.nlevels)]
        unnamed = [isinstance(level, pd.DatetimeIndex) and level.name is None for level in levels]
        if not any(unnamed):
            return None
        names = [level.name for level in levels]
        names[unnamed.index(True)] = column
        axis = repr(column if len(names) == 1 else names)
        return f"the index has times but no name: not a column; name it: df = df.rename_axis({axis}).reset_index()"

    def about_key(self, column: str, ddl: str) -> str | None:
        """Return the cure for a key column whose type can't be one; None if there is none."""
        if self._words is _PANDAS and kind_of(ddl) == "floating":
            return f"pandas makes floats of whole numbers with nulls: {self.cast(column, 'bigint')}"
        return super().about_key(column, ddl)

    def text(self, column: str, dtype: Any) -> str:
        """Return code that makes a column of a type that Spark lacks a column of texts."""
        if self._words is _POLARS and str(dtype) == "Object":
            return self._change(column, "pl.Series({n}, [None if each is None else str(each) for each in df[{n}]])")
        if self._words is _ARROW and not (isinstance(dtype, pa.DataType) and pa.types.is_decimal(dtype)):
            return self._change(column, "pa.array([None if each is None else str(each) for each in {c}.to_pylist()])")
        return self.cast(column, "string")

    def code(self, column: str, expression: str) -> str:
        """Return code that replaces a column by an expression of its value, ``{c}``."""
        return self._change(column, expression)

    def about_misfit(self, column: str, dtype: pa.DataType, label: str) -> str:
        """Return the cure for values that Spark's type can't hold; ``label`` introduces the code that makes texts."""
        types = pa.types
        kind = {types.is_timestamp: "timestamp", types.is_duration: "duration", types.is_time: "time"}
        known = next((name for is_kind, name in kind.items() if is_kind(dtype)), None)
        rounded = self._words.floors.get(known or "")
        if rounded is None or getattr(dtype, "unit", None) != "ns":
            if types.is_nested(dtype):
                return "round or cast it where the column is made"
            return f"{label}: {self.text(column, dtype)}"
        down, up = (each and self._change(column, each) for each in rounded)
        words = f"Spark's times have microseconds; round them down: {down}"
        if known != "timestamp":
            return words
        return (
            f"{words}. As event times, two of one microsecond are then simultaneous, so that a version up to 999 ns "
            f"younger than a row can match it; to rule that out, round those of the right up: {up}"
        )

    def _change(self, column: str, expression: str, digits: str = "") -> str:
        place = self._names.index(column) if column in self._names else 0
        named = {"n": repr(column), "q": _quoted(column), "i": place}
        value = self._words.value.format(**named)
        changed = self._words.change.format(e=expression.format(c=value, n=repr(column), d=digits), **named)
        is_level = self._index is not None and column not in self._names
        return f"df = df.reset_index(); {changed}" if is_level else changed


def _quoted(column: str) -> str:
    """Return a column's name as an SQL identifier."""
    return '"' + column.replace('"', '""') + '"'


def is_pandas(source: Any) -> bool:
    """Return whether a value is a DataFrame of pandas', without importing pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(source, pandas.DataFrame)


def is_polars(source: Any) -> bool:
    """Return whether a value is a DataFrame of Polars, without importing Polars."""
    polars = sys.modules.get("polars")
    return polars is not None and isinstance(source, polars.DataFrame)


def library_of(source: Any, label: str) -> Library:
    """Return the library of rows in memory, unless it would export a column as something other than its values."""
    if is_pandas(source):
        return Library(_PANDAS, list(source.columns), source.index)
    root = type(source).__module__.partition(".")[0]
    if root == "polars" and hasattr(source, "schema"):
        library = Library(_POLARS, list(source.schema))
        for name, dtype in source.schema.items():
            _check_polars(name, dtype, library, label)
        return library
    if root in {"duckdb", "_duckdb"} and hasattr(source, "types"):
        library = Library(_DUCKDB, source.columns)
        for name, dtype in zip(source.columns, source.types, strict=True):
            _check_duckdb(name, dtype, library, label)
        return library
    schema = getattr(source, "schema", None)
    return Library(_ARROW, schema.names if isinstance(schema, pa.Schema) else ())


_OF_POLARS = {
    "Object": "whose values are Python's objects: Polars would hand over their addresses in memory",
    "Int128": "which Arrow does not have",
    "UInt128": "which Arrow does not have",
}

_OF_DUCKDB = {
    "bit": "which DuckDB hands over as its internal bytes",
    "time with time zone": "whose offsets DuckDB does not hand over",
    "uhugeint": "whose 39 digits Arrow's decimals can't hold",
    "bignum": "which DuckDB hands over as its internal bytes",
    "varint": "which DuckDB hands over as its internal bytes",
    "variant": "which DuckDB hands over as its internal bytes",
    "interval": "of months, days and time, which Spark does not have",
    "union": "which Spark does not have",
}


def _check_polars(name: str, dtype: Any, library: Library, label: str) -> None:
    for part in _parts_of_polars(dtype):
        why = _OF_POLARS.get(str(part))
        if why is None:
            continue
        if part is not dtype:
            raise _refused(name, dtype, why, "cast its values where the column is made", label)
        others = [] if str(part) == "Object" else [library.cast(name, each) for each in ("bigint", "decimal(38,0)")]
        raise _refused(name, dtype, why, f"cast it: {', or '.join([*others, library.text(name, part)])}", label)


def _parts_of_polars(dtype: Any) -> Iterator[Any]:
    yield dtype
    inner = getattr(dtype, "inner", None)
    if inner is not None:
        yield from _parts_of_polars(inner)
    for field in getattr(dtype, "fields", None) or ():
        yield from _parts_of_polars(field.dtype)


def _check_duckdb(name: str, dtype: Any, library: Library, label: str) -> None:
    for part in _parts_of_duckdb(dtype):
        why = _OF_DUCKDB.get(_id(part))
        if why is not None:
            raise _refused(name, dtype, why, f"cast it: {library.cast(name, 'string')}", label)


def _id(dtype: Any) -> str:
    # A relation's types have the attribute id; in older versions of DuckDB the type's text is its id.
    return str(getattr(dtype, "id", dtype)).lower()


def _parts_of_duckdb(dtype: Any) -> Iterator[Any]:
    yield dtype
    if _id(dtype) in {"list", "array", "struct", "map"}:
        for _, child in dtype.children:
            if not isinstance(child, int):
                yield from _parts_of_duckdb(child)


def _refused(name: str, dtype: Any, why: str, cure: str, label: str) -> SchemaError:
    return SchemaError(f"{label}: column {name!r} has the type {dtype}, {why}; {cure}")


def value_faults(column: pa.ChunkedArray) -> str | None:
    """Return the fault of a column's decimals and times of day, such as DuckDB's 24:00:00, at any depth, or None."""
    try:
        for chunk in column.chunks:
            for leaf in _checked(chunk):
                leaf.validate(full=True)
    except pa.ArrowInvalid as error:
        return str(error)
    return None


def _checked(array: pa.Array) -> Iterator[pa.Array]:
    types, dtype = pa.types, array.type
    if isinstance(dtype, pa.BaseExtensionType):
        yield from _checked(array.storage)
    elif types.is_decimal(dtype) or types.is_time(dtype):
        yield array
    elif types.is_dictionary(dtype):
        yield from _checked(array.dictionary)
    elif types.is_struct(dtype):
        for child in array.flatten():
            yield from _checked(child)
    elif types.is_map(dtype):
        # The children of a slice are those of the whole.
        start, stop = array.offsets[0].as_py(), array.offsets[-1].as_py()
        for child in (array.keys, array.items):
            yield from _checked(child.slice(start, stop - start))
    elif types.is_list(dtype) or types.is_large_list(dtype) or types.is_fixed_size_list(dtype):
        yield from _checked(array.flatten())
