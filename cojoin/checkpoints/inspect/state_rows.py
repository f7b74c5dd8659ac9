"""Rows of a stored state by their values: one job over all key groups, which sends back only what was asked for.

A key lies in one key group, so a limit that each key group keeps is exact for a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.values import codec
from cojoin.engine.values.coercion import coercer
from cojoin.engine.values.entries import encode_entries
from cojoin.engine.values.rows import decode_column
from cojoin.engine.values.schema_evolution import evolve
from cojoin.engine.values.tables import concat
from cojoin.errors import CheckpointError, CodecError, ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cojoin.checkpoints.stored_state import StoredState
    from cojoin.engine.inputs import InputSpec

__all__ = ["Found", "Values", "as_key", "as_values", "find"]

_FAULT = "@fault"
"""What a worker calls what is wrong with a key group; no table of a state begins like this."""

Values = dict[str, Any]
"""Columns with the value that each must have, as Arrow takes it; None is null."""


@dataclass(frozen=True)
class Found:
    """What a table has of some values.

    Attributes:
        rows: The rows, not more than the limit.
        total: How many there are.
    """

    rows: pa.Table
    total: int


def as_values(declared: Mapping[str, Any], spec: InputSpec, what: str) -> Values:
    """Take values of an input's columns as a person gives them.

    Args:
        declared: By column.
        spec: The input.
        what: What they are, for messages, such as ``"row"``.

    Raises:
        ConfigurationError: No columns, or one that the input does not have.
        FunctionError: A value that is not of its column's type.
    """
    if not isinstance(declared, Mapping) or not declared:
        msg = f"{what}: expected a dict of column values, such as {{'{spec.key[0]}': 17}}, got {declared!r}"
        raise ConfigurationError(msg)
    names = spec.schema.names
    for name in declared:
        if name not in names:
            near = did_you_mean(str(name), names)
            msg = f"{what}: input {spec.name!r} has no column {name!r}{near}; it has {', '.join(names)}"
            raise ConfigurationError(msg)
    return {
        name: coercer(spec.schema.field(name).type, f"{what}: column {name!r}")(value)
        for name, value in declared.items()
    }


def as_key(key: Any, spec: InputSpec) -> Values:
    """Take a key as a person gives it: a value; a tuple, or a dict, where it has several columns.

    Raises:
        ConfigurationError: It has other columns than the key.
        FunctionError: A value that is not of its column's type.
    """
    names = spec.key
    if isinstance(key, Mapping):
        declared = dict(key)
    elif len(names) == 1:
        declared = {names[0]: key}
    else:
        declared = dict(zip(names, key, strict=True)) if isinstance(key, tuple) and len(key) == len(names) else {}
    if set(declared) != set(names) or any(value is None for value in declared.values()):
        shape = f"a value of {names[0]!r}" if len(names) == 1 else f"a tuple of {', '.join(names)}"
        msg = f"key: expected {shape}, got {key!r}"
        raise ConfigurationError(msg)
    return as_values({name: declared[name] for name in names}, spec, "key")


def find(state: StoredState, wanted: Mapping[str, Values], limit: int = 1_000) -> dict[str, Found]:
    """Find rows in several tables of a state at once.

    Args:
        state: The state.
        wanted: For each table, which values its rows must have; tables that are not there are passed over.
        limit: How many rows of a table are given.

    Returns:
        For each wanted table that is there what it has, also where that is nothing.

    Raises:
        CheckpointError: A key group's content is not what was written.
    """
    schemas = {name: state.tables[name].schema for name in wanted if name in state.tables}
    asked = {name: wanted[name] for name in schemas}
    if not asked:
        return {}

    opener = state.opener

    def search(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from _search(opener(batches), asked, schemas, limit)
        except (CheckpointError, CodecError) as error:
            yield pa.RecordBatch.from_pydict({"name": [_FAULT], "total": [0], "piece": [str(error).encode()]})

    pieces: dict[str, list[pa.Table]] = {name: [schema.empty_table()] for name, schema in schemas.items()}
    totals = dict.fromkeys(schemas, 0)
    for row in state.contents.mapInArrow(search, "name string, total long, piece binary").collect():
        if row.name == _FAULT:
            raise CheckpointError(bytes(row.piece).decode())
        _, tables = codec.decode(bytes(row.piece))
        pieces[row.name].append(tables[row.name])
        totals[row.name] += row.total
    return {name: Found(concat(pieces[name]).slice(0, limit), totals[name]) for name in schemas}


def _search(
    groups: Iterable[Mapping[str, pa.Table]],
    wanted: Mapping[str, Values],
    schemas: Mapping[str, pa.Schema],
    limit: int,
) -> Iterator[pa.RecordBatch]:
    for tables in groups:
        for name, values in wanted.items():
            if name not in tables or not tables[name].num_rows:
                continue
            rows = _having(evolve(tables[name], schemas[name], f"table {name!r}"), values)
            if rows.num_rows:
                piece = codec.encode({}, {name: rows.slice(0, limit).combine_chunks()})
                yield pa.RecordBatch.from_pydict({"name": [name], "total": [rows.num_rows], "piece": [piece]})


def _having(table: pa.Table, values: Values) -> pa.Table:
    for name, value in values.items():
        if not table.num_rows:
            break
        table = table.filter(_equals(table.column(name), value))
    return table


def _equals(column: pa.ChunkedArray, value: Any) -> Any:
    if value is None:
        return pc.is_null(column)
    if isinstance(value, float) and value != value:  # noqa: PLR0124 - only NaN differs from itself
        return pc.is_nan(column)
    if pa.types.is_nested(column.type):
        return pa.array([each == value for each in decode_column(column)])
    # As an array: a scalar can't be made of every text that is not UTF-8.
    return pc.equal(column, encode_entries([value], column.type)[0])
