"""Finds rows of a stored state by their values: one job over all key groups, which returns only the matching rows.

A key belongs to one key group, so a limit for each key group is exact for a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.values import codec
from cojoin.engine.values.encoding import coercer, encode_entries
from cojoin.engine.values.rows import decode_column
from cojoin.engine.values.schema_evolution import evolve
from cojoin.engine.values.tables import concat
from cojoin.errors import CheckpointError, CodecError, ConfigurationError, did_you_mean
from cojoin.session.sealed import for_workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cojoin.checkpoints.stored_state import StoredState
    from cojoin.engine.input_spec import InputSpec

__all__ = ["Found", "Values", "as_key", "as_values", "find", "having"]

_FAULT = "@fault"
"""The name under which a task returns an error in place of a table; no table of a state begins with ``@``."""

Values = dict[str, Any]
"""The value that each column must have, as Arrow takes it; None is null."""


@dataclass(frozen=True)
class Found:
    """The rows of a table that have given values.

    Attributes:
        rows: The rows, up to the limit.
        total: How many rows there are in all.
    """

    rows: pa.Table
    total: int


def as_values(declared: Mapping[str, Any], spec: InputSpec, what: str) -> Values:
    """Return a user's values of an input's columns, coerced to the columns' types.

    Args:
        declared: The user's values, by column.
        spec: The input.
        what: What the values are, for messages, such as ``"row"``.

    Raises:
        ConfigurationError: There are no columns, or one that the input does not have.
        FunctionError: A value is not of its column's type.
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
    """Return a user's key as values by column.

    Args:
        key: A value; where the key has several columns, a tuple. A dict by column is allowed in both cases.
        spec: The input whose column names are used.

    Raises:
        ConfigurationError: The key has other columns than those of the input, or a null.
        FunctionError: A value is not of its column's type.
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


def find(
    state: StoredState, wanted: Mapping[str, Values], limit: int | None = 1_000, *, key_group: int | None = None
) -> dict[str, Found]:
    """Return the rows that have given values, from several tables of a state at once.

    Args:
        state: The state.
        wanted: For each table, the values that its rows must have; tables that the state does not have are skipped.
        limit: The most rows of a table to return; None returns all.
        key_group: The key group to which all wanted rows belong, in a snapshot, so that only its content is read; None
            reads all.

    Returns:
        The rows found, for each wanted table of the state; without rows where nothing was found.

    Raises:
        CheckpointError: A key group's content, or a segment, is damaged or missing.
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
    contents = state.contents if key_group is None else state.contents.where(F.col("key_group") == key_group)
    for row in contents.mapInArrow(for_workers(search), "name string, total long, piece binary").collect():
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
    limit: int | None,
) -> Iterator[pa.RecordBatch]:
    for tables in groups:
        for name, values in wanted.items():
            if name not in tables or not tables[name].num_rows:
                continue
            rows = having(evolve(tables[name], schemas[name], f"table {name!r}"), values)
            if rows.num_rows:
                piece = codec.encode({}, {name: rows.slice(0, limit).combine_chunks()})
                yield pa.RecordBatch.from_pydict({"name": [name], "total": [rows.num_rows], "piece": [piece]})


def having(table: pa.Table, values: Values) -> pa.Table:
    """Return the rows of a table that have given values."""
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
    # As an array: pyarrow can't make a scalar of every text that is not valid UTF-8.
    return pc.equal(column, encode_entries([value], column.type)[0])
