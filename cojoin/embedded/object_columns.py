"""The checks of pandas' object columns, whose values Arrow would partly cut or convert without a word.

Refused are times with nanoseconds, and values of several kinds at one place: times with and without a zone, dates and
times, texts and bytes, or unlike classes. A place is the column itself, or what is at the same keys of its dicts and in
its lists. It costs some Python for each value, except for texts, numbers and other kinds that pandas knows to be pure.
"""

from __future__ import annotations

from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any

import pandas as pd

from cojoin.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["check_objects"]

_PURE = {"string", "bytes", "boolean", "integer", "floating", "decimal", "complex", "empty"}


def check_objects(values: pd.Series[Any], place: str) -> None:
    """Check the values of an object column.

    Args:
        values: The column.
        place: The column, for messages, such as ``"input 'trades': column 'amount'"``.

    Raises:
        SchemaError: A value would be changed, or values are of several kinds.
    """
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
        cure = "say which zone is meant: pandas.to_datetime(column, utc=True) takes those without as UTC"
    found = f"{known}, such as {example!r}, and, in row {row!r}, {value!r} ({kind})"
    return f"{place} has values of several types: {found}; {cure}"
