"""Advice about a column of an unsuitable type, for messages: words, and code in the library that holds the rows.

Each piece of code replaces the column by one of the type that is needed. Tests run all of it with its own library.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Advice", "Kind", "about_pair", "kind_of"]

Kind: TypeAlias = Literal[
    "timestamp_ntz", "bigint", "int", "floating", "decimal", "string", "date", "interval", "other"
]
"""The kinds of types between which advice differs; ``int`` includes narrower integers."""

_WORDS: Mapping[Kind, str] = {
    "timestamp_ntz": "it has no time zone; say which is meant",
    "bigint": "turn epoch numbers into one, with their unit",
    "int": "turn epoch seconds into one",
    "floating": "turn epoch seconds into one",
    "decimal": "turn epoch seconds into one",
    "string": "turn texts into one",
    "date": "a date has no time of day; say which moment is meant, such as midnight in UTC",
    "interval": "a duration is not a moment; add it to one",
}

_KEYS: Mapping[Kind, str] = {
    "floating": "floats have two zeros and NaN; cast them if they are whole numbers",
    "interval": "make it a number or a text",
}

_INTEGERS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
"""The integer types, the narrower ones first, with their most digits."""

_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_MOST_DIGITS = 38


def kind_of(ddl: str) -> Kind:
    """Return the kind of a type, given by its name in Spark.

    >>> kind_of("smallint"), kind_of("decimal(10,2)"), kind_of("interval day to second"), kind_of("array<int>")
    ('int', 'decimal', 'interval', 'other')
    """
    if ddl in _INTEGERS:
        return "bigint" if ddl == "bigint" else "int"
    if ddl in ("float", "double"):
        return "floating"
    name = ddl.partition("(")[0].partition(" ")[0]
    return name if name in _WORDS else "string" if name in ("char", "varchar") else "other"  # type: ignore[return-value]


class Advice(ABC):
    """The advice in one library."""

    @abstractmethod
    def time(self, column: str, kind: Kind, role: str) -> str | None:
        """Return code that makes a column of a kind a ``timestamp``; None if there is none.

        Args:
            column: The column.
            kind: What it is.
            role: What it is to be, such as ``"event time"``.
        """

    @abstractmethod
    def cast(self, column: str, ddl: str) -> str:
        """Return code that casts a column to one of Spark's types."""

    @abstractmethod
    def constant(self, column: str) -> str:
        """Return code that adds a column which has the same text in all rows."""

    def about_missing(self, column: str, role: str) -> str | None:
        """Return what to do about a column that the rows lack; None if the library has nothing to say.

        Args:
            column: The column.
            role: What it is to be, such as ``"event time"``.
        """
        del column, role
        return None

    def about_time(self, column: str, ddl: str, role: str) -> str:
        """Return what to do about a column that is to be a ``timestamp`` and is not."""
        kind = kind_of(ddl)
        code = self.time(column, kind, role)
        if code is None:
            return "name a column with the moments, as timestamps"
        return f"{_WORDS[kind]}: {code}"

    def about_key(self, column: str, ddl: str) -> str | None:
        """Return what to do about a key column whose type can't be one; None if there is nothing to say."""
        if ddl == "void":
            return f"it has no values, and so no type; give it one: {self.cast(column, 'string')}"
        words = _KEYS.get(kind_of(ddl))
        target = "bigint" if kind_of(ddl) == "floating" else "string"
        return None if words is None else f"{words}: {self.cast(column, target)}"


def about_pair(sides: tuple[tuple[Advice, str, str], tuple[Advice, str, str]]) -> str:
    """Return how two key columns become of one type, without losing a value.

    Args:
        sides: For the left and the right its library's advice, the column, and the name of its type.
    """
    types = [ddl for _, _, ddl in sides]
    kinds = [kind_of(ddl) for ddl in types]
    if set(kinds) == {"timestamp_ntz", "other"} and "timestamp" in types:
        advice, column, ddl = sides[kinds.index("timestamp_ntz")]
        return advice.about_time(column, ddl, "key")
    target = _common(types)
    if target is None:
        return "cast one to the other's type"
    casts = [advice.cast(column, target) for advice, column, ddl in sides if ddl != target]
    return f"cast {'one' if len(casts) == 1 else 'both'}: {'; and '.join(casts)}"


def _common(types: list[str]) -> str | None:
    """Return the narrowest type that holds the values of both; None if there is none."""
    if set(types) <= {*_INTEGERS, "string"}:
        order = [*_INTEGERS, "string"]
        return max(types, key=order.index)
    wholes, scales = [], []
    for each in types:
        found = _DECIMAL.fullmatch(each)
        if found is None and each not in _INTEGERS:
            return None
        precision, scale = (_INTEGERS[each], 0) if found is None else (int(found[1]), int(found[2]))
        wholes.append(precision - scale)
        scales.append(scale)
    digits = max(wholes) + max(scales)
    return f"decimal({digits},{max(scales)})" if digits <= _MOST_DIGITS else None
