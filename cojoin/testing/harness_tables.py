"""Text tables: the rows of a test, written as readable text.

    customer_id | event_time   | tier
    ------------+--------------+-----
    a           | 10:00:00.500 | gold

A line of ``-`` and ``+`` may follow the header. Blank lines are ignored. The column's type determines how a cell is
read:

- ``null`` is null in every column;
- numbers, decimals and booleans are spelled as in Python and Spark: ``2.50``, ``nan``, ``inf``, ``true``, ``false``;
- a timestamp is ``2024-05-01 10:00:00.5``, in UTC, or a time of the day 1970-01-01: ``10:00``, ``10:00:00.500``;
- a date is ``2024-05-01``; a binary value is its hexadecimal digits;
- a string is the bare text, or a JSON string ``"..."`` if it is empty, equals ``null``, contains ``|``, or begins or
  ends with a space.

Arrays, maps and structs can't be written as cells; leave their columns out.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.values.rows import Row, row_class, value_of_text
from cojoin.engine.values.types import as_schema
from cojoin.errors import SchemaError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

_CELL = re.compile(r'\s*(?:"(?:[^"\\]|\\.)*"|[^|"](?:[^|])*?)?\s*(?:\||$)')
_RULE = re.compile(r"[-+\s|]+")
_OF_DAY = re.compile(r"\d\d:")
_DAY_ZERO = "1970-01-01"
_WORDS = {"true": True, "false": False}


def parse_table(text: str, schema: Any) -> list[Row]:
    """Read the rows of a text table.

    Args:
        text: A header with column names, in any order, and one line per row.
        schema: The types of the columns, as DDL, a ``StructType`` or an Arrow schema.

    Returns:
        Rows with the columns of the header.

    Raises:
        SchemaError: A column is unknown or named twice, a line has the wrong number of cells, or a cell does not fit
            its type.

    >>> parse_table('''
    ...     trade_id | amount | at
    ...     ---------+--------+-------------
    ...     7        | 2.50   | 10:00:00.500
    ... ''', "trade_id long, amount decimal(5,2), at timestamp_ntz")[0].amount
    Decimal('2.50')
    """
    columns = as_schema(schema, "schema")
    lines = _lines(text)
    names = header_of(text)
    for name in names:
        if name not in columns.names:
            msg = f"table: unknown column {name!r}{did_you_mean(name, columns.names)}"
            raise SchemaError(msg)
    if len(set(names)) < len(names):
        msg = f"table: a column stands twice in the header: {', '.join(names)}"
        raise SchemaError(msg)
    fields = [columns.field(name) for name in names]
    make = row_class(tuple(names))
    body = lines[2:] if len(lines) > 1 and _RULE.fullmatch(lines[1]) else lines[1:]
    return [make(_read_line(line, fields)) for line in body]


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


def header_of(text: str) -> list[str]:
    """Return the column names in a table's header."""
    lines = _lines(text)
    if not lines:
        msg = "table: expected a header with the names of columns, got no text"
        raise SchemaError(msg)
    return _cut(lines[0])


def _cut(line: str) -> list[str]:
    """Return the cells of a line: the parts between the bars that are not inside a string."""
    cells, position = [], 0
    while True:
        match = _CELL.match(line, position)
        if match is None:
            msg = f"table: a string does not end, or something follows it: {line.strip()}"
            raise SchemaError(msg)
        cell = match.group()
        cells.append(cell.removesuffix("|").strip())
        position = match.end()
        if not cell.endswith("|"):
            return cells


def _read_line(line: str, fields: Sequence[pa.Field]) -> list[Any]:
    texts = _cut(line)
    if len(texts) != len(fields):
        msg = f"table: expected {len(fields)} cells, got {len(texts)}: {line.strip()}"
        raise SchemaError(msg)
    return [_read_cell(cell, field) for cell, field in zip(texts, fields, strict=True)]


def _read_cell(cell: str, field: pa.Field) -> Any:
    dtype, types, text = field.type, pa.types, cell
    if cell == "null":
        return None
    try:
        if types.is_string(dtype):
            return json.loads(cell) if cell.startswith('"') else _bare(cell)
        if types.is_boolean(dtype):
            return _WORDS[cell]
        if types.is_floating(dtype):
            return float(cell)
        if types.is_binary(dtype):
            return bytes.fromhex(cell)
        if types.is_timestamp(dtype):
            text = f"{_DAY_ZERO} {cell}" if _OF_DAY.match(cell) else cell
        elif not types.is_date(dtype):
            # As Python spells numbers, and Arrow does not.
            text = cell.replace("_", "").removeprefix("+")
        return value_of_text(text, dtype)
    except NotImplementedError:
        msg = f"table: a {dtype} has no cells; leave its column out"
    except (ValueError, OverflowError, KeyError):
        msg = f"table: column {field.name!r}: {cell!r} is not a value of {dtype}"
    raise SchemaError(msg)


def _bare(cell: str) -> str:
    if not cell:
        raise ValueError(cell)
    return cell
