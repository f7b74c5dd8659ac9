"""How one set of rows differs from another, each row as often as it is there, told for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["differences"]

_SHOWN = 3


def differences(expected: Iterable[tuple[Any, ...]], got: Iterable[tuple[Any, ...]], what: str = "rows") -> list[str]:
    """Return what is missing and what is too much, as a line each; nothing where both are equal, row for row.

    >>> differences([(1, "a"), (2, "b")], [(1, "a"), (1, "a")])
    ["rows: 1 missing, such as (2, 'b')", "rows: 1 too many, such as (1, 'a')"]
    """
    wanted, found = Counter(expected), Counter(got)
    told = []
    for name, odd in (("missing", wanted - found), ("too many", found - wanted)):
        if odd:
            shown = ", ".join(map(str, list(odd)[:_SHOWN]))
            told.append(f"{what}: {odd.total():,} {name}, such as {shown}")
    return told
