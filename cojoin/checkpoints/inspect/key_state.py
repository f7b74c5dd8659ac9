"""The state of one key as Python values, and the search for rows of a stored state by their values.

A search is one job over all key groups, which returns only the matching rows. A key belongs to one key group, so a
limit for each key group is exact for a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.display import format_time, show_row, show_value
from cojoin.engine.keyed_state_backend import entry_of
from cojoin.engine.rescaling import key_columns
from cojoin.engine.values import codec
from cojoin.engine.values.encoding import coercer, encode_entries
from cojoin.engine.values.keys import key_shape, key_values
from cojoin.engine.values.rows import Row, decode_column, decode_rows
from cojoin.engine.values.schema_evolution import evolve
from cojoin.engine.values.tables import concat
from cojoin.errors import CheckpointError, CodecError, ConfigurationError, did_you_mean
from cojoin.session.sealed import for_workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cojoin.checkpoints.inspect.query_state import QueryState
    from cojoin.checkpoints.stored_state import OpenContent, StoredState
    from cojoin.engine.input_spec import InputSpec


BUFFERS: Mapping[str, tuple[int, str]] = {
    "held1": (0, "the watermark"),
    "waiting": (0, "a later version"),
    "left": (0, "rows to pair with"),
    "held2": (1, "the watermark"),
    "right": (1, "rows to pair with"),
}
"""The tables of buffered rows, each with the side of its input and the event that its rows wait for."""

REJECTED: Mapping[str, int] = {"rejected1": 0, "rejected2": 1}
"""The tables of rejected rows that replace others of a half-read commit, each with the side of its input."""

DOMAINS: Mapping[str, Literal["event_time", "processing_time"]] = {
    "timers": "event_time",
    "processing_timers": "processing_time",
}
"""The tables of timers, each with its time domain."""

PAIRED = frozenset({"left", "right"})
"""The tables whose last column is true for rows that have matched."""

STATE = "state:"
"""The prefix of the tables of a function's states; their last column is the value."""

_SHOWN = 20


class KeyTimer(NamedTuple):
    """A registered timer."""

    domain: str
    """``"event_time"`` or ``"processing_time"``."""

    timestamp: int
    """The time at which it fires, in epoch milliseconds."""


@dataclass(frozen=True)
class KeyState:
    """The whole state of a key after a batch.

    Attributes:
        key: The key's values, by the column names of the left input.
        batch_id: The batch.
        watermark: The operator's watermark, in epoch milliseconds.
        buffered: The buffered rows of each input, by the input's name.
        versions: The rows of the right input that later rows can match.
        states: A function's states by name: the value, list, dict or accumulator; only those that the key has.
        timers: A function's timers, the earliest first.
        left_out: The tables of which only some rows are included, each with its total number of rows.
    """

    key: Mapping[str, Any]
    batch_id: int
    watermark: int
    buffered: Mapping[str, Sequence[Row]]
    versions: Sequence[Row] = ()
    states: Mapping[str, Any] = field(default_factory=dict)
    timers: Sequence[KeyTimer] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether the key has any state."""
        return bool(any(self.buffered.values()) or self.versions or self.states or self.timers)

    def __str__(self) -> str:
        key = show_row(self.key) or "()"
        lines = [f"key {key} after batch {self.batch_id}, watermark {format_time(self.watermark)}"]
        for name, rows in self.buffered.items():
            if rows:
                lines += [f"  {name} that wait", *_listed([show_row(row.as_dict()) for row in rows])]
        if self.versions:
            lines += ["  versions in force", *_listed([show_row(row.as_dict()) for row in self.versions])]
        if self.states:
            lines += ["  states", *(f"    {name}: {show_value(value)}" for name, value in self.states.items())]
        if self.timers:
            lines += [
                "  timers",
                *_listed([f"{each.domain.replace('_', ' ')} {format_time(each.timestamp)}" for each in self.timers]),
            ]
        if not self:
            lines.append("  it has nothing")
        lines += [f"  (not all of the {count:,} rows of {name} are shown)" for name, count in self.left_out.items()]
        return "\n".join(lines)

    __repr__ = __str__

    def as_dict(self) -> dict[str, Any]:
        """Return the key's state as plain Python values, for JSON."""
        return {
            "key": dict(self.key),
            "batch_id": self.batch_id,
            "watermark": self.watermark,
            "buffered": {name: [plain(row) for row in rows] for name, rows in self.buffered.items()},
            "versions": [plain(row) for row in self.versions],
            "states": {name: plain(value) for name, value in self.states.items()},
            "timers": [timer._asdict() for timer in self.timers],
            "left_out": dict(self.left_out),
        }


def key_state(state: QueryState, key: Values, rows_of: Mapping[str, MatchingRows]) -> KeyState:
    """Return the state of a key, by the column names of the left input, from the rows of the stored tables."""
    buffered: dict[str, list[Row]] = {spec.name: [] for spec in state.inputs}
    for name, (side, _) in BUFFERS.items():
        if name in rows_of:
            rows = rows_of[name].rows
            # The last column of an interval join's rows says whether they have matched.
            shown = rows.select(rows.column_names[:-1]) if name in PAIRED else rows
            buffered[state.inputs[side].name] += decode_rows(shown, beyond=str)
    timers = [
        KeyTimer(domain, timestamp)
        for name, domain in DOMAINS.items()
        if name in rows_of
        for timestamp in rows_of[name].rows.column(rows_of[name].rows.num_columns - 1).to_pylist()
    ]
    states = {
        name.removeprefix(STATE): entry_of(kept.rows)
        for name, kept in rows_of.items()
        if name.startswith(STATE) and kept.rows.num_rows
    }
    versions = decode_rows(rows_of["versions"].rows, beyond=str) if "versions" in rows_of else []
    left_out = {name: kept.total for name, kept in rows_of.items() if kept.total > kept.rows.num_rows}
    return KeyState(
        key,
        state.batch_id,
        state.watermark,
        buffered,
        versions,
        states,
        sorted(timers, key=lambda timer: (timer.timestamp, timer.domain)),
        left_out,
    )


def plain(value: Any) -> Any:
    """Return a value with all its rows, nested ones too, as dicts."""
    if isinstance(value, Row):
        return {name: plain(item) for name, item in value.as_dict().items()}
    if isinstance(value, dict):
        # JSON can't have keys of other types.
        named = {key if isinstance(key, (str, int, bool)) else show_value(key): item for key, item in value.items()}
        return {key: plain(item) for key, item in named.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def _listed(texts: Sequence[str]) -> list[str]:
    more = [f"    ... and {len(texts) - _SHOWN:,} more"] if len(texts) > _SHOWN else []
    return [*(f"    {text}" for text in texts[:_SHOWN]), *more]


_FAULT = "@fault"
"""The name under which a task returns an error in place of a table; no table of a state begins with ``@``."""

Values = dict[str, Any]
"""The value that each column must have, as Arrow takes it; None is null."""


@dataclass(frozen=True)
class MatchingRows:
    """The rows of a table that have given values, up to a limit, and the number of all such rows."""

    rows: pa.Table
    total: int


def as_values(declared: Mapping[str, Any], spec: InputSpec, subject: str) -> Values:
    """Return a user's values of an input's columns, coerced to the columns' types; ``subject`` names them in messages.

    Raises ``ConfigurationError`` without columns, or for one that the input lacks, and ``FunctionError`` for a value of
    another type.
    """
    if not isinstance(declared, Mapping) or not declared:
        msg = f"{subject}: expected a dict of column values, such as {{'{spec.schema.names[0]}': 17}}, got {declared!r}"
        raise ConfigurationError(msg)
    names = spec.schema.names
    for name in declared:
        if name not in names:
            near = did_you_mean(str(name), names)
            msg = f"{subject}: input {spec.name!r} has no column {name!r}{near}; it has {', '.join(names)}"
            raise ConfigurationError(msg)
    return {
        name: coercer(spec.schema.field(name).type, f"{subject}: column {name!r}")(value)
        for name, value in declared.items()
    }


def as_key(key: Any, spec: InputSpec) -> Values:
    """Return a user's key as values by column: a value, a tuple where the key has several columns or none, or a dict.

    Raises ``ConfigurationError`` for other columns than those of the key, or a null, and ``FunctionError`` for a value
    of another type.
    """
    values = key_values(key, spec.key)
    if values is None or any(value is None for value in values):
        msg = f"key: expected {key_shape(spec.key)}, got {key!r}"
        raise ConfigurationError(msg)
    return as_values(dict(zip(spec.key, values, strict=True)), spec, "key") if values else {}


def find(
    state: StoredState,
    wanted: Mapping[str, Values],
    inputs: tuple[InputSpec, InputSpec],
    limit: int | None = 1_000,
    *,
    key_group: int | None = None,
) -> dict[str, MatchingRows]:
    """Return the rows that have the wanted values, from several tables of a state at once; other tables are skipped.

    Where the values name a key, only the key's rows of segments are read, else all rows, file by file. ``limit`` is for
    each table; None: all rows. ``key_group`` is the one to which all wanted rows belong, in a snapshot, so that only
    its content is read. Raises ``CheckpointError`` where a content or a segment is damaged or missing.
    """
    schemas = {name: state.tables[name].schema for name in wanted if name in state.tables}
    if not schemas:
        return {}
    keys = {name: _key_of(wanted[name], schema, key_columns(name, inputs)) for name, schema in schemas.items()}
    opener = state.opener

    def search(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from _search(opener(batches), wanted, keys, schemas, limit)
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
    return {name: MatchingRows(concat(pieces[name]).slice(0, limit), totals[name]) for name in schemas}


def _key_of(values: Values, schema: pa.Schema, columns: Sequence[str]) -> pa.Table | None:
    """Return the key among values of a table's columns; None where they do not name one."""
    if not columns or any(values.get(name) is None for name in columns):
        return None
    return pa.table({name: encode_entries([values[name]], schema.field(name).type) for name in columns})


def _search(
    groups: Iterable[OpenContent],
    wanted: Mapping[str, Values],
    keys: Mapping[str, pa.Table | None],
    schemas: Mapping[str, pa.Schema],
    limit: int | None,
) -> Iterator[pa.RecordBatch]:
    for content in groups:
        for name, schema in schemas.items():
            for piece in content.pieces(name, keys[name]):
                rows = having(evolve(piece, schema, f"table {name!r}"), wanted[name])
                if rows.num_rows:
                    encoded = codec.encode({}, {name: rows.slice(0, limit).combine_chunks()})
                    yield pa.RecordBatch.from_pydict({"name": [name], "total": [rows.num_rows], "piece": [encoded]})


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
