"""What of real rows a test does not need: columns that are left out, and values that are replaced by pseudonyms.

Equal values of a masked column get equal pseudonyms, numbered in the order of the captured rows: ``name-1``,
``name-2``. No value can be computed back from its pseudonym. A masked key column is masked in both inputs alike. The
expected rows are made from the masked rows, so a test with pseudonyms holds together; but a function that compares a
masked column with a constant, or sorts by it, takes other ways than with the real rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.values.rows import decode_column
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cojoin.capture.recorded_history import History
    from cojoin.engine.input_spec import InputSpec

__all__ = ["mask_columns", "select_columns"]


def select_columns(history: History, columns: Mapping[str, Sequence[str]] | None) -> History:
    """Return a history without the columns that are not named; keys, event times and sequences are always kept.

    Args:
        history: The rows.
        columns: The columns to keep, by the input's name; an input that is not named keeps all.

    Raises:
        ConfigurationError: There is no such input or column.
        SchemaError: A join needs a column that is left out.
    """
    if columns is None:
        return history
    names = [spec.name for spec in history.plan.inputs]
    if not isinstance(columns, Mapping) or not all(map(_are_names, columns.values())):
        msg = (
            f"columns: expected lists of the columns to keep by input, such as {{{names[0]!r}: [...]}}, got "
            f"{columns!r}; an input that is not named keeps all columns"
        )
        raise ConfigurationError(msg)
    for name in columns:
        if name not in names:
            msg = f"columns: there is no input {name!r}{did_you_mean(str(name), names)}"
            raise ConfigurationError(msg)
    specs, tables = [], []
    for spec, table in zip(history.plan.inputs, history.rows, strict=True):
        kept = spec.schema.names if spec.name not in columns else list(columns[spec.name])
        for name in kept:
            if name not in spec.schema.names:
                msg = f"columns: input {spec.name!r} has no column {name!r}{did_you_mean(str(name), spec.schema.names)}"
                raise ConfigurationError(msg)
        needed = {*kept, *spec.key, *spec.source_order, spec.event_time}
        remaining = [name for name in spec.schema.names if name in needed]
        specs.append(replace(spec, schema=pa.schema([spec.schema.field(name) for name in remaining])))
        tables.append(table.select(remaining))
    plan = replace(history.plan, left=specs[0], right=specs[1])
    plan.operation.output_schema(plan.left, plan.right)
    return replace(history, plan=plan, rows=(tables[0], tables[1]))


def _are_names(given: Any) -> bool:
    # A collection, since an iterator would be used up here.
    is_list = isinstance(given, Collection) and not isinstance(given, (str, bytes, Mapping))
    return is_list and all(isinstance(name, str) for name in given)


def mask_columns(history: History, mask: Sequence[str]) -> History:
    """Return a history in which the values of some columns of both inputs are replaced by pseudonyms.

    Args:
        history: The captured rows.
        mask: The columns: texts, binary values or whole numbers. If one is a key column, the other input's key column
            in the same place is masked too.

    Raises:
        ConfigurationError: No input has such a column, or it can't be masked.
    """
    if isinstance(mask, str):
        msg = f"mask: expected a list of columns, got {mask!r}; write [{mask!r}]"
        raise ConfigurationError(msg)
    tables = list(history.rows)
    for name in dict.fromkeys(mask):
        pseudonyms: dict[Any, Any] = {}
        for side, column in _same(history.plan.inputs, name):
            spec, table = history.plan.inputs[side], tables[side]
            made = _masked(table.column(column), name, f"mask: column {column!r} of input {spec.name!r}", pseudonyms)
            tables[side] = table.set_column(table.column_names.index(column), spec.schema.field(column), made)
    return replace(history, rows=(tables[0], tables[1]))


def _same(inputs: tuple[InputSpec, InputSpec], name: str) -> list[tuple[int, str]]:
    """Return the columns of both inputs, each with the input's place, that are masked together."""
    found = {(side, name) for side, spec in enumerate(inputs) if name in spec.schema.names}
    if not found:
        known = [each for spec in inputs for each in spec.schema.names]
        msg = f"mask: neither input has a column {name!r}{did_you_mean(str(name), known)}"
        raise ConfigurationError(msg)
    for side, _ in sorted(found):
        if name in inputs[side].key:
            place = inputs[side].key.index(name)
            found |= {(0, inputs[0].key[place]), (1, inputs[1].key[place])}
    for side, column in sorted(found):
        if column == inputs[side].event_time:
            what = f"mask: {column!r} is the event time of input {inputs[side].name!r}"
            msg = f"{what}, by which its rows are sorted; leave it out"
            raise ConfigurationError(msg)
    return sorted(found)


def _masked(column: pa.ChunkedArray, name: str, what: str, pseudonyms: dict[Any, Any]) -> pa.Array:
    dtype = column.type
    make: Callable[[int], Any]
    if pa.types.is_string(dtype):
        make = f"{name}-{{}}".format
    elif pa.types.is_binary(dtype):
        make = lambda number: f"{name}-{number}".encode()  # noqa: E731
    elif pa.types.is_integer(dtype):
        make = int
    else:
        msg = f"{what} is {type_to_ddl(dtype)}; only string, binary and integer columns have pseudonyms: leave it out"
        raise ConfigurationError(msg)
    made = []
    for value in decode_column(column):
        if value is not None and value not in pseudonyms:
            pseudonyms[value] = make(len(pseudonyms) + 1)
        made.append(None if value is None else pseudonyms[value])
    try:
        return pa.array(made, dtype)
    except (pa.ArrowInvalid, OverflowError) as error:
        msg = f"{what} ({type_to_ddl(dtype)}) has more values than it has pseudonyms: {error}; choose fewer keys"
        raise ConfigurationError(msg) from error
