r"""Rows as a user's function sees them, and their decoding from Arrow.

A row is an immutable named tuple: ``trade.amount``, ``trade["amount"]``, ``trade[1]``, ``trade.as_dict()``. Nested
structs are rows too, arrays are lists, maps are dicts, and timestamps are UTC-aware datetimes (naive ones for
``timestamp_ntz``), all to the microsecond. Columns are decoded as a whole; only the tuples are built row by row (about
1 µs a row of four columns).

Spark and Delta allow texts that are not valid UTF-8. In a string each byte that is not part of a character becomes one
of U+DC80 to U+DCFF, as in Python's own ``os.fsdecode`` (PEP 383): ``cast(X'ff41' as string)`` is ``"\udcffA"``. This
mapping is one-to-one, so texts that a function takes and yields keep their bytes. In JSON such a character is written
as ``\udcff``.
"""

from __future__ import annotations

import json
import math
import re
from collections import namedtuple
from datetime import date, datetime, timedelta, timezone
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

_HALVES = re.compile("[\ud800-\udfff]")


def decode_texts(array: pa.Array) -> list[str | None]:
    r"""Return a column of texts as strings; nulls become None.

    >>> decode_texts(pa.array([b"\xffA", b"gold", None]).view(pa.string()))
    ['\udcffA', 'gold', None]
    """
    try:
        return array.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        raw = array.view(pa.large_binary() if pa.types.is_large_string(array.type) else pa.binary())
        return [None if each is None else each.decode("utf-8", "surrogateescape") for each in raw.to_pylist()]


def encode_texts(values: Sequence[str | None]) -> pa.Array:
    r"""Return strings as a column of texts; None becomes a null.

    Raises:
        UnicodeEncodeError: A string has half of a surrogate pair that does not stand for a byte.

    >>> encode_texts(["\udcffA", None]).view(pa.binary()).to_pylist()
    [b'\xffA', None]
    """
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        raw = [None if each is None else text_bytes(each) for each in values]
        return pa.array(raw, pa.binary()).view(pa.string())


def text_bytes(text: str) -> bytes:
    r"""Return a text's bytes, by which texts are ordered.

    >>> text_bytes("\udcffA")
    b'\xffA'
    """
    return text.encode("utf-8", "surrogateescape")


def dump_json(value: Any, *, indent: int | None = None, default: Callable[[Any], Any] = str) -> str:
    r"""Return readable JSON: only halves of surrogate pairs, which UTF-8 can't hold, are escaped.

    >>> print(dump_json({"name": "\udcffÅsa"}))
    {"name": "\udcffÅsa"}
    """
    # In JSON, halves of surrogate pairs occur only in strings, where an escape is valid.
    return _HALVES.sub(
        lambda half: f"\\u{ord(half.group()):04x}",
        json.dumps(value, ensure_ascii=False, indent=indent, default=default),
    )


def show_text(text: str) -> str:
    r"""Return a text that any terminal can show: each byte that is not part of a character is written as an escape.

    >>> print(show_text("\udcffA"))
    \xffA
    """
    return _HALVES.sub(lambda half: f"\\x{ord(half.group()) & 0xFF:02x}", text)


def back_quoted(name: str) -> str:
    """Return a column's name as Spark's SQL and ``col`` read it, whatever characters it has.

    >>> back_quoted("a.b"), back_quoted("a`b")
    ('`a.b`', '`a``b`')
    """
    return f"`{name.replace('`', '``')}`"


def free_name(name: str, taken: Sequence[str]) -> str:
    """Return a name with as many underscores before it as make it differ from others, in any case.

    >>> free_name("error", ["id", "Error"])
    '_error'
    """
    lowered = {each.lower() for each in taken}
    while name.lower() in lowered:
        name = f"_{name}"
    return name


Stand: TypeAlias = "Callable[[str], Any] | None"
"""Makes a value from the text of a time outside of the years 1 to 9999; without it, ``OverflowError`` is raised."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EPOCH_NAIVE = datetime(1970, 1, 1)  # noqa: DTZ001 - timestamp_ntz has no zone
_DAY = 86_400_000_000
_DAYS = (date.min - _EPOCH.date()).days, (date.max - _EPOCH.date()).days
_MICROS = _DAYS[0] * _DAY, (_DAYS[1] + 1) * _DAY - 1


class Row(tuple):  # type: ignore[type-arg]
    """An immutable named row; the module's docstring lists the ways to read its fields.

    A field is read only as ``row["its name"]`` if its name is not a Python identifier, is a keyword, begins with two
    underscores, or is ``as_dict`` or ``_fields``.

    >>> trade = row_class(("trade_id", "amount"))((7, 2.5))
    >>> trade.amount, trade["amount"], trade[1]
    (2.5, 2.5, 2.5)
    >>> trade
    Row(trade_id=7, amount=2.5)
    """

    __slots__ = ()
    _fields: tuple[str, ...] = ()

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, str):
            try:
                return tuple.__getitem__(self, self._fields.index(item))
            except ValueError:
                msg = f"a row has no field {item!r}; its fields are {', '.join(self._fields)}"
                raise KeyError(msg) from None
        return tuple.__getitem__(self, item)

    def __getattr__(self, name: str) -> Any:
        # Reached where the class has no descriptor of this name: for no field, or one that is read as row["its name"].
        msg = f"a row has no field {name!r}; its fields are {', '.join(self._fields)}"
        raise AttributeError(msg)

    def __repr__(self) -> str:
        return "Row(" + ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True)) + ")"

    def as_dict(self) -> dict[str, Any]:
        """Return the row as a new dict from field names to values (nested rows stay rows)."""
        return dict(zip(self._fields, self, strict=True))


@lru_cache(maxsize=1024)
def row_class(names: tuple[str, ...]) -> type[Row]:
    """Return the class of rows with these fields; it is called with one iterable of values."""
    # The getters of a named tuple are written in C, so they are the fastest.
    getters: Any = namedtuple("getters", names, rename=True)  # type: ignore[misc]  # noqa: PYI024
    # It renames some fields, to _0, _1, ..., which may be other fields' names: its getters are taken by position.
    # A row's own attributes take precedence over a field of the same name, which is read by row["its name"].
    fields = {
        name: getattr(getters, getters._fields[names.index(name)])
        for name in names
        if name.isidentifier() and not name.startswith("__") and name not in vars(Row)
    }
    return type("Row", (Row,), {"__slots__": (), "_fields": names, **fields})


def decode_rows(table: pa.Table, beyond: Stand = None) -> list[Row]:
    """Return an Arrow table as rows, in its order; ``beyond`` makes the values that Python's datetimes can't hold."""
    make = row_class(tuple(table.column_names))
    if not table.num_columns:
        return [make(()) for _ in range(table.num_rows)]
    columns = [decode_column(column.combine_chunks(), beyond) for column in table.columns]
    return list(map(make, zip(*columns, strict=True)))


def decode_column(array: pa.Array | pa.ChunkedArray, beyond: Stand = None) -> list[Any]:  # noqa: PLR0911 - one a type
    """Return an Arrow column as Python values; nulls become None.

    >>> decode_column(pa.array([[1, 2], None, []]))
    [[1, 2], None, []]
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # pyarrow keeps several chunks only beyond 2 GB of strings
            return [value for chunk in array.chunks for value in decode_column(chunk, beyond)]
    dtype = array.type
    types = pa.types
    if types.is_struct(dtype):
        return _decode_struct(array, beyond)
    if types.is_map(dtype):
        return _decode_map(array, beyond)
    if types.is_list(dtype) or types.is_large_list(dtype):
        values = decode_column(array.values, beyond)
        return _slices(array, lambda start, stop: values[start:stop])
    if types.is_timestamp(dtype):
        return _decode_timestamp(array, beyond)
    if types.is_date32(dtype):
        return _decode_date(array, beyond)
    if types.is_string(dtype) or types.is_large_string(dtype):
        return decode_texts(array)
    if array.null_count == 0 and (types.is_integer(dtype) or types.is_floating(dtype)):
        return array.to_numpy().tolist()  # type: ignore[no-any-return]
    return array.to_pylist()  # type: ignore[no-any-return]


_NO_ZONE = re.compile(r"[ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?$")


def value_of_text(text: str, dtype: pa.DataType) -> Any:
    """Return the value of a type that a text spells, as people write it; a time without a time zone is in UTC.

    Raises ``ValueError`` or ``OverflowError`` where it spells none, ``NotImplementedError`` for arrays, maps, structs.

    >>> value_of_text("2.5", pa.decimal128(5, 2)), value_of_text("2026-01-15 09:30", pa.timestamp("us", "UTC")).minute
    (Decimal('2.50'), 30)
    """
    if pa.types.is_timestamp(dtype) and dtype.tz is not None and _NO_ZONE.search(text):
        text += "Z"
    return decode_column(encode_texts([text]).cast(dtype))[0]


def beyond_python(table: pa.Table) -> NDArray[np.bool_]:
    """Return a mask of the rows that have a time, at any depth, outside of the years 1 to 9999 of Python's datetimes.

    >>> micros = pa.array([0, 1 << 60, None]).cast(pa.timestamp("us", "UTC"))
    >>> beyond_python(pa.table({"at": micros, "id": [1, 2, 3]})).tolist()
    [False, True, False]
    """
    beyond = np.zeros(table.num_rows, np.bool_)
    for column in table.columns:
        if _has_times(column.type):
            beyond |= np.concatenate([beyond[:0], *map(_beyond, column.chunks)])
    return beyond


def _has_times(dtype: pa.DataType) -> bool:
    if pa.types.is_timestamp(dtype) or pa.types.is_date32(dtype):
        return True
    return any(_has_times(dtype.field(at).type) for at in range(dtype.num_fields))


def _beyond(array: pa.Array) -> NDArray[np.bool_]:
    """Return which values of a column have a time, at any depth, that Python's datetimes can't hold."""
    dtype, types = array.type, pa.types
    beyond: NDArray[np.bool_] = np.zeros(len(array), np.bool_)
    if not _has_times(dtype) or not len(array):
        return beyond
    if types.is_struct(dtype):
        for child in array.flatten():
            beyond |= _beyond(child)
    elif types.is_timestamp(dtype) or types.is_date32(dtype):
        first, last = _DAYS if types.is_date32(dtype) else _MICROS
        numbers = array.view(pa.int32()) if types.is_date32(dtype) else _micros_of(array)
        values = numbers.fill_null(0).to_numpy()
        beyond = (values < first) | (values > last)
    else:
        inner = _beyond(array.keys) | _beyond(array.items) if types.is_map(dtype) else _beyond(array.values)
        if inner.any():
            count, offsets = np.concatenate([[0], np.cumsum(inner)]), array.offsets.to_numpy()
            beyond = (count[offsets[1:]] > count[offsets[:-1]]) & array.is_valid().to_numpy(zero_copy_only=False)
    return beyond


def _micros_of(array: pa.Array) -> pa.Array:
    return array.cast(pa.timestamp("us", array.type.tz)).view(pa.int64())


def _decode_timestamp(array: pa.Array, beyond: Stand) -> list[Any]:
    epoch = _EPOCH if array.type.tz else _EPOCH_NAIVE
    micros = _micros_of(array).fill_null(0).to_numpy()
    try:
        # numpy makes timedeltas sooner than Python does; the smallest number it takes for none.
        values: list[Any] = [epoch + since for since in micros.view("m8[us]").tolist()]
    except (OverflowError, TypeError) as error:
        if beyond is None:
            msg = "a time is beyond the years 1 to 9999 of Python's datetimes"
            raise OverflowError(msg) from error
        values = [_moment(epoch, timedelta(microseconds=value), beyond) for value in micros.tolist()]
    return _with_nulls(array, values)


def _decode_date(array: pa.Array, beyond: Stand) -> list[Any]:
    try:
        return array.to_pylist()  # type: ignore[no-any-return]
    except OverflowError:
        if beyond is None:
            raise
        days = array.cast(pa.int32()).fill_null(0).to_numpy().tolist()
        return _with_nulls(array, [_day(value, beyond) for value in days])


def _moment(epoch: datetime, since: timedelta, beyond: Callable[[str], Any]) -> Any:
    try:
        return epoch + since
    except OverflowError:
        return beyond(f"{since.days} days and {since.seconds} seconds since 1970")


def _day(since: int, beyond: Callable[[str], Any]) -> Any:
    try:
        return (_EPOCH_NAIVE + timedelta(since)).date()
    except OverflowError:
        return beyond(f"{since} days and 0 seconds since 1970")


def _decode_struct(array: pa.StructArray, beyond: Stand) -> list[Any]:
    names = tuple(field.name for field in array.type)
    columns = [decode_column(column, beyond) for column in array.flatten()]
    make = row_class(names)
    rows: list[Any] = list(map(make, zip(*columns, strict=True))) if columns else [make(()) for _ in range(len(array))]
    return _with_nulls(array, rows)


def _decode_map(array: pa.MapArray, beyond: Stand) -> list[Any]:
    keys, values = decode_column(array.keys, beyond), decode_column(array.items, beyond)
    if needs_freezing(array.type.key_type):
        keys = [hashable(key) for key in keys]
    return _slices(array, lambda start, stop: dict(zip(keys[start:stop], values[start:stop], strict=True)))


def needs_freezing(dtype: pa.DataType) -> bool:
    """Return whether ``hashable`` changes values of a type."""
    return bool(pa.types.is_nested(dtype) or pa.types.is_floating(dtype))


def hashable(value: Any) -> Any:
    """Return a value in the form that it has as a key of a map: lists become tuples, and each NaN the same object."""
    if isinstance(value, list):
        return tuple(map(hashable, value))
    if isinstance(value, float):
        return value if value == value else math.nan  # noqa: PLR0124 - NaN
    return type(value)(map(hashable, value)) if isinstance(value, tuple) else value


def _slices(array: pa.Array, take: Callable[[int, int], Any]) -> list[Any]:
    # The children of a sliced array are not sliced; its offsets point into them.
    offsets = array.offsets.to_numpy().tolist()
    return _with_nulls(array, [take(start, stop) for start, stop in pairwise(offsets)])


def _with_nulls(array: pa.Array, values: list[Any]) -> list[Any]:
    if array.null_count:
        for position in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[position] = None
    return values


def describe_columns(schema: pa.Schema) -> str:
    """Return columns and their types as text for an error message."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def describe_row(row: Sequence[Any] | None, limit: int = 500) -> str:
    """Return a row as text for an error message, truncated where it is long."""
    text = repr(row)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"
