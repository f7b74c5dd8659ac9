"""The differing rows of one output in memory, as Arrow tables for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.comparison.comparison import ComparedOutput

__all__ = ["ArrowRows", "DifferingRows", "changed_columns"]


class DifferingRows(Protocol):
    """The differing rows of one output, in memory or on Spark."""

    def only_in(self, which: Literal["a", "b"]) -> Any:
        """Return the rows that only one version has, as a table or DataFrame."""

    def changed(self) -> Any:
        """Return the rows that both versions have and that differ, with the columns of ``changed_columns``."""


@dataclass(frozen=True)
class ArrowRows:
    """Differing rows in memory.

    Attributes:
        output: The output.
        rows: The rows, in the schema of ``ComparedOutput.differing``.
    """

    output: ComparedOutput
    rows: pa.Table

    def only_in(self, which: Literal["a", "b"]) -> pa.Table:
        """Return the rows that only one version has."""
        other = {"a": "b", "b": "a"}[which]
        rows = self.rows.filter(pc.is_null(self.rows.column(other)))
        columns = [_field(rows.column(which), name) for name in self.output.columns.names]
        return pa.table(columns, names=self.output.columns.names)

    def changed(self) -> pa.Table:
        """Return the rows that both versions have and that differ."""
        rows = self.rows.filter(pc.is_valid(self.rows.column("differs")))
        columns = {}
        for name, path in changed_columns(self.output):
            column = rows.column(path[0])
            columns[name] = column if len(path) == 1 else _field(column, path[1])
        return pa.table(list(columns.values()), names=list(columns))


def changed_columns(output: ComparedOutput) -> list[tuple[str, Sequence[str]]]:
    """Return the columns of changed rows: those of the identity, then each other one in a and in b, then ``differs``.

    Returns:
        Each column's name, and its path in the schema of ``ComparedOutput.differing``. A column ``tier`` becomes
        ``tier_a`` and ``tier_b``, with more underscores where such a name is taken.
    """
    kept = [name for name in output.columns.names if name in output.identity]
    others = [name for name in output.columns.names if name not in output.identity]
    line = "_"
    while True:
        names = [*kept, *(f"{name}{line}{which}" for name in others for which in "ab"), f"differs{line[1:]}"]
        if len({name.lower() for name in names}) == len(names):
            break
        line += "_"
    paths = [*(("a", name) for name in kept), *((which, name) for name in others for which in "ab"), ("differs",)]
    return list(zip(names, paths, strict=True))


def _field(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    place = column.type.get_field_index(name)
    return pa.chunked_array([pc.struct_field(chunk, [place]) for chunk in column.chunks], column.type.field(place).type)
