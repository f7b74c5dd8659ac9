"""The check that an output's columns fit an existing Delta table: Delta itself reports a misfit only at the first rows.

By path, Delta appends columns of the table's own types, and integers of up to 32 bits to wider ones of these. By name,
Spark casts to the table's types what it can cast. A column that the table lacks is refused, unless Delta merges
schemas. One that the output lacks becomes null, where the table allows that. Names are compared without their case.
Values are not checked here, such as a null in a column that is NOT NULL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    IntegerType,
    MapType,
    NullType,
    NumericType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cojoin.engine.values.rows import back_quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructField

__all__ = ["misfits"]

_SMALL = (ByteType, ShortType, IntegerType)
"""The integers that Parquet stores as 32 bits, the narrower ones first."""

_TIMES = (DateType, TimestampType, TimestampNTZType)
_FILLED = ("CURRENT_DEFAULT", "delta.generationExpression", "delta.identity.start")
"""The metadata of a column for which Delta makes a value."""


def misfits(table: StructType, output: StructType, where: str, *, casts: bool, merges: bool) -> Iterator[str]:
    """Yield what in an output does not fit a table, each with what to do.

    Args:
        table: The table's columns.
        output: The output's columns.
        where: The table, as SQL names it.
        casts: Whether Spark casts the output to the table's types, as it does for a table by name.
        merges: Whether Delta adds missing columns, and widens types.
    """
    there = {field.name.lower(): field for field in table.fields}
    missing = [field for field in output.fields if field.name.lower() not in there]
    if missing and not merges:
        added = ", ".join(f"{back_quoted(field.name)} {field.dataType.simpleString()}" for field in missing)
        names = f"column{'s' * (len(missing) > 1)} {', '.join(repr(field.name) for field in missing)}"
        yield (
            f'the table has no {names}: give the sink options={{"mergeSchema": "true"}}, or run: '
            f"ALTER TABLE {where} ADD COLUMNS ({added})"
        )
    for field in output.fields:
        found = there.pop(field.name.lower(), None)
        if found is not None and not _fits(found.dataType, field.dataType, casts=casts, merges=merges):
            yield (
                f"column {field.name!r} is {found.dataType.simpleString()} in the table and "
                f"{field.dataType.simpleString()} in the output: cast it before the join, or write to another table"
            )
    for field in there.values():
        if not field.nullable and not _is_filled(field):
            name = back_quoted(field.name)
            yield (
                f"column {field.name!r} of the table is NOT NULL, and the output has none of the name: "
                f"ALTER TABLE {where} ALTER COLUMN {name} DROP NOT NULL"
            )


def _is_filled(field: StructField) -> bool:
    return any(mark in field.metadata for mark in _FILLED)


def _fits(table: DataType, output: DataType, *, casts: bool, merges: bool) -> bool:
    if isinstance(output, NullType):
        return True
    if isinstance(table, StructType) and isinstance(output, StructType):
        return not any(misfits(table, output, "", casts=casts, merges=merges))
    if isinstance(table, ArrayType) and isinstance(output, ArrayType):
        return _fits(table.elementType, output.elementType, casts=casts, merges=merges)
    if isinstance(table, MapType) and isinstance(output, MapType):
        pairs = ((table.keyType, output.keyType), (table.valueType, output.valueType))
        return all(_fits(*pair, casts=casts, merges=merges) for pair in pairs)
    return _is_like(table, output) or _widens(table, output, merges=merges) or (casts and _is_cast(table, output))


def _is_like(table: DataType, output: DataType) -> bool:
    return table == output or (isinstance(table, StringType) and isinstance(output, StringType))


def _widens(table: DataType, output: DataType, *, merges: bool) -> bool:
    """Return whether both are integers that Delta takes for one, or numbers that it may widen."""
    if merges and isinstance(table, NumericType) and isinstance(output, NumericType):
        return True
    if not isinstance(table, _SMALL) or not isinstance(output, _SMALL):
        return False
    return _SMALL.index(type(output)) <= _SMALL.index(type(table))


def _is_cast(table: DataType, output: DataType) -> bool:
    """Return whether Spark can cast the output's type to the table's; single values may still fail."""
    nested = (StructType, ArrayType, MapType)
    if isinstance(table, StringType):
        return True
    if isinstance(table, nested) or isinstance(output, nested):
        return False
    numbers = (NumericType, BooleanType)
    if isinstance(output, (StringType, *numbers)) and isinstance(table, (BinaryType, TimestampType, *numbers)):
        return True
    if isinstance(output, TimestampType) and isinstance(table, numbers):
        return True
    return isinstance(output, StringType) or (isinstance(table, _TIMES) and isinstance(output, _TIMES))
