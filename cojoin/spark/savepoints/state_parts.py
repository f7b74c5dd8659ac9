"""The parts of a state as a user passes them: DataFrames of the shape that ``read_state`` returns, checked.

A part is the versions, the buffered rows of an input, a state, or the timers; or it is a table of another checkpoint,
which is taken as it is. Columns are matched by name, in any order, and none may be missing: those of the input, or the
key's under the left input's names. A number may be of a narrower type than the stored one; a key's type must be the
same, since its hash decides where the key belongs.

``PartShape`` turns a part's rows into rows of the state's tables, and names their faults; the tasks use it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.inspect.key_state import BUFFERS, DOMAINS, PAIRED, STATE
from cojoin.engine.display import show_row
from cojoin.engine.state.descriptors import stored_type
from cojoin.engine.state.ttl import split_type
from cojoin.engine.time.time_axis import TimeAxis, micros_of
from cojoin.engine.values.rows import decode_rows, free_name
from cojoin.engine.values.schema_evolution import differences, evolve
from cojoin.engine.values.tables import up_to_millis
from cojoin.errors import CheckpointError, ConfigurationError, did_you_mean
from cojoin.session.arrow_types import arrow_schema
from cojoin.session.sessions import is_frame
from cojoin.spark.savepoints.state_packing import Part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.state import StateDescriptor
    from cojoin.engine.time.known_time import KnownTime

WAITS_FOR, MATCHED, DOMAIN = "__cojoin_waits_for", "__cojoin_matched", "__cojoin_domain"
TIMESTAMP = "@timestamp"
"""The columns that decide where a row belongs, and that of a timer's time."""


Kind: TypeAlias = Literal["table", "versions", "buffered", "state", "timers"]


@dataclass(frozen=True)
class PartShape:
    """The shape of one part's rows.

    Attributes:
        label: The part, for messages.
        kind: ``"table"`` is a table of another checkpoint.
        table: The table that gets the rows; of versions the table of those in force, of buffered rows the input's side.
        source: The columns as the DataFrame has them, under their final names.
        target: The columns as they are stored, and those that decide where a row belongs.
        keys: The positions of the key's columns.
        event_time: The event-time column of rows of an input.
        watermark: The operator's watermark, up to which versions are in force.
        allowed: For buffered rows, what they may wait for, with the table; for timers, the domains, with the table.
        spreading: The positions of the columns by which rows with a null key are spread over the key groups.
        null_keys: Whether rows may have a null key, which wait for the watermark alone.
        axis: The meaning of event times that are not timestamps; None for timestamps.
        known: The time from which rows of an input are known; None where that is their event time.
    """

    label: str
    kind: Kind
    table: str
    source: pa.Schema
    target: pa.Schema
    keys: tuple[int, ...]
    event_time: str | None = None
    watermark: int = 0
    allowed: Mapping[str, str] = field(default_factory=dict)
    spreading: tuple[int, ...] = ()
    null_keys: bool = False
    axis: TimeAxis | None = None
    known: KnownTime | None = None

    def convert(self, rows: pa.Table) -> pa.Table:
        """Return rows of the DataFrame with the stored types, in columns of the stored names.

        Raises:
            CheckpointError: A value does not fit its type.
        """
        named = rows.rename_columns(self.target.names)
        if self.kind == "table":
            return named.cast(self.target)
        try:
            stored = evolve(named.cast(_nullable(self.source)), _nullable(self.target), self.label)
            columns = [stored.column(at).cast(each.type) for at, each in enumerate(self.target)]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            msg = f"a value does not fit its type: {error}"
            raise CheckpointError(msg) from error
        return pa.Table.from_arrays(columns, names=self.target.names)

    def faults(self, rows: pa.Table) -> Counter[str]:
        """Return the faults of converted rows with their counts; each text shows one of the rows."""
        if self.kind == "table" or not rows.num_rows:
            return Counter()
        wrong: dict[str, pa.ChunkedArray] = {}
        times = {self.event_time: "a null event time"}
        times |= {} if self.known is None else {self.known.column: "a null known time (known_at=)"}
        for at, column in enumerate(self.target):
            if not rows.column(at).null_count:
                continue
            nulls = rows.column(at).is_null()
            if at in self.keys:
                lost = self._without_lonely(rows, nulls)
                wrong["a null key"] = pc.or_(wrong["a null key"], lost) if "a null key" in wrong else lost
            elif column.name in times:
                wrong[times[column.name]] = nulls
            elif self.kind == "timers" and column.name == TIMESTAMP:
                wrong["no timestamp"] = nulls
            elif self.kind == "state":
                accessed = split_type(column.type)[1] is not None
                why = "a null value" + (", or not one last_access for each of it" if accessed else "")
                wrong[f"{why}; leave a key out that has no entry"] = nulls
            elif not column.nullable:
                wrong[f"a null in {column.name!r}, which is never null in the query's input"] = nulls
        if self.kind == "state" and (missing := self._without_access(rows)) is not None:
            wrong["a null last_access"] = missing
        wrong |= self._misplaced(rows)
        return Counter(
            {self._fault(rows, mask, why): count for why, mask in wrong.items() if (count := pc.sum(mask).as_py())}
        )

    def _without_lonely(self, rows: pa.Table, nulls: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the mask of rows with a null key that do not wait for their time to be emitted unmatched."""
        if not self.null_keys:
            return nulls
        held = pa.array([reason for reason, name in self.allowed.items() if name.startswith("held")], pa.string())
        return pc.and_(nulls, pc.invert(pc.is_in(rows.column(WAITS_FOR), value_set=held)))

    def _without_access(self, rows: pa.Table) -> pa.Array | None:
        """Return the mask of a state's rows that lack a last access; None where it has no time-to-live."""
        column = rows.column(rows.num_columns - 1).combine_chunks()
        if split_type(column.type)[1] is None:
            return None
        if pa.types.is_struct(column.type):
            return pc.and_(column.is_valid(), column.field(1).is_null())
        parts = column.items if pa.types.is_map(column.type) else column.values
        accesses = parts.field(1)
        if not accesses.null_count:
            return None
        bounds = column.offsets.to_numpy()
        before = np.concatenate([[0], np.cumsum(accesses.is_null().to_numpy(zero_copy_only=False))])
        return pa.array(before[bounds[1:]] > before[bounds[:-1]])

    def _misplaced(self, rows: pa.Table) -> dict[str, pa.ChunkedArray]:
        """Return the masks of rows whose time, or whose place in the state, the query can't have."""
        wrong: dict[str, pa.ChunkedArray] = {}
        if self.axis is not None and self.event_time is not None:
            misfits = self.axis.misfits(rows.column(self.event_time))
            wrong["an event time without a moment (time_unit=, clock_change=)"] = pa.chunked_array([misfits])
        if self.kind not in ("buffered", "timers"):
            return wrong
        column = rows.column(DOMAIN if self.kind == "timers" else WAITS_FOR)
        known = pc.is_in(column, value_set=pa.array([*self.allowed], pa.string()))
        name = "domain" if self.kind == "timers" else "waits_for"
        expected = " or ".join(map(repr, self.allowed)) or "none, as the function sets no timers"
        return wrong | {f"another {name} than the query has ({expected})": pc.invert(known)}

    def _fault(self, rows: pa.Table, mask: pa.ChunkedArray, why: str) -> str:
        shown = [name for name in self.target.names if not name.startswith(("@", "__cojoin"))][:4]
        if self.kind == "timers":
            shown.append(DOMAIN)
        if self.kind == "buffered":
            shown.append(WAITS_FOR)
        row = decode_rows(rows.filter(mask).slice(0, 1).select(shown), beyond=str)[0].as_dict()
        plain = {name.removeprefix("__cojoin_"): value for name, value in row.items()}
        return f"{self.label}: a row has {why}: {show_row(plain)}"

    def tables(self, rows: pa.Table) -> dict[str, pa.Table]:
        """Return converted rows without a fault, by the table of the state that gets them."""
        if self.kind == "table":
            return {self.table: rows}
        if self.kind == "state":
            return {self.table: self._without_empty(rows)}
        if self.kind == "versions":
            assert self.event_time is not None
            micros = micros_of(rows, self.event_time, self.axis)
            micros = micros if self.known is None else self.known.effective(rows, micros)
            in_force = up_to_millis(micros, self.watermark)
            # A version after the watermark has come, and waits for the watermark as it would in the query.
            return {self.table: rows.filter(pa.array(in_force)), "held2": rows.filter(pa.array(~in_force))}
        if self.kind == "timers":
            plain = rows.drop_columns([DOMAIN])
            domains = rows.column(DOMAIN)
            return {name: plain.filter(pc.equal(domains, domain)) for domain, name in self.allowed.items()}
        waits, flags = rows.column(WAITS_FOR), pc.fill_null(rows.column(MATCHED), False)
        plain = rows.drop_columns([WAITS_FOR, MATCHED])
        tables = {}
        for reason, name in self.allowed.items():
            mine = pc.equal(waits, reason)
            table = plain.filter(mine)
            if name in PAIRED:
                # The flag is read by its position; no column of the input has this name.
                table = table.append_column(MATCHED, flags.filter(mine))
            tables[name] = table
        return tables

    def _without_empty(self, rows: pa.Table) -> pa.Table:
        """Return the rows of a state without empty lists and maps, which are not entries."""
        column = rows.column(rows.num_columns - 1)
        if not (pa.types.is_list(column.type) or pa.types.is_map(column.type)):
            return rows
        lengths = np.concatenate([np.diff(each.offsets.to_numpy()) for each in column.chunks] or [np.zeros(0)])
        return rows if lengths.all() else rows.filter(pa.array(lengths > 0))


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(column.name, _nullable_type(column.type)) for column in schema])


def _nullable_type(dtype: pa.DataType) -> pa.DataType:
    """Return a type whose parts may all be null; keys of maps never are.

    >>> _nullable_type(pa.struct([pa.field("a", pa.int64(), nullable=False)]))
    StructType(struct<a: int64>)
    """
    if pa.types.is_struct(dtype):
        return pa.struct([pa.field(each.name, _nullable_type(each.type)) for each in dtype])
    if pa.types.is_list(dtype):
        return pa.list_(_nullable_type(dtype.value_type))
    if pa.types.is_map(dtype):
        return pa.map_(dtype.key_type, _nullable_type(dtype.item_type))
    return dtype


def waits(tables: Mapping[str, object], side: int) -> dict[str, str]:
    """Return the events for which buffered rows of an input (0 is the left) may wait, with the table that has them."""
    return {event: name for name, (owner, event) in BUFFERS.items() if owner == side and name in tables}


def domains(tables: Mapping[str, object], *, by_clock: bool) -> dict[str, str]:
    """Return the time domains that a function's timers may have, with the table that has them."""
    return {domain: name for name, domain in DOMAINS.items() if name in tables and (by_clock or name == "timers")}


_TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class StateTarget:
    """The operator that a state is written for: the columns of its tables, and the states that its function declares.

    The watermark is in epoch milliseconds. ``by_clock`` means that the function sets processing-time timers. ``title``
    names the operator in messages, such as ``"function Watch"`` or ``"asof join"``.
    """

    inputs: tuple[InputSpec, InputSpec]
    schemas: Mapping[str, pa.Schema]
    descriptors: Mapping[str, StateDescriptor]
    watermark: int
    by_clock: bool
    title: str

    @property
    def key(self) -> pa.Schema:
        """The key columns of states and timers, under the left input's names."""
        return self.inputs[0].key_schema


@dataclass(frozen=True)
class GivenParts:
    """Makes parts of a user's DataFrames, each checked against the operator."""

    target: StateTarget

    def versions(self, frame: Any) -> Part:
        """Return the versions of the right input."""
        right = self.target.inputs[1]
        if "versions" not in self.target.schemas:
            which = "a function has states=" if self.target.descriptors else "it keeps none"
            msg = f"write_state: versions: the query is a {self.target.title}, which has no versions; {which}"
            raise ConfigurationError(msg)
        chosen = _chosen("versions", frame, right.schema, right.key)
        keys, until = _places(right.schema, right.key), self.target.watermark
        times: Any = {"event_time": right.event_time, "axis": right.axis, "known": right.known, "watermark": until}
        return _part(chosen, "versions", "versions", "versions", right.schema, keys, **times)

    def buffered(self, name: str, frame: Any) -> Part:
        """Return the buffered rows of an input."""
        names = [spec.name for spec in self.target.inputs]
        if name not in names:
            msg = f"write_state: buffered: the query has no input {name!r}{did_you_mean(str(name), names)}"
            raise ConfigurationError(msg)
        side = names.index(name)
        spec, label = self.target.inputs[side], f"buffered rows of {name!r}"
        allowed = waits(self.target.schemas, side)
        reason, flag = free_name("waits_for", spec.schema.names), free_name("matched", spec.schema.names)
        optional = pa.schema([(reason, pa.string()), (flag, pa.bool_())])
        chosen = _chosen(label, frame, spec.schema, spec.key, optional)
        present = {*frame.columns}
        columns = [chosen[each] for each in spec.schema.names]
        usual = F.lit("the watermark")
        columns.append(F.coalesce(chosen[reason], usual) if reason in present else usual)
        columns.append(chosen[flag] if flag in present else F.lit(None).cast("boolean"))
        target = spec.schema.append(pa.field(WAITS_FOR, pa.string())).append(pa.field(MATCHED, pa.bool_()))
        return _part(
            chosen.with_columns(columns),
            label,
            "buffered",
            str(side),
            target,
            _places(spec.schema, spec.key),
            event_time=spec.event_time,
            axis=spec.axis,
            known=spec.known,
            allowed=allowed,
            spreading=_places(spec.schema, spec.spreading),
            null_keys=spec.null_key == "unmatched",
        )

    def state(self, name: str, frame: Any) -> Part:
        """Return the entries of a state."""
        known, target = self.target.descriptors, self.target
        if name not in known:
            declared = f"it has {', '.join(sorted(known))}" if known else "it declares none"
            near = did_you_mean(str(name), [*known]) if known else ""
            msg = f"write_state: states: the {target.title} declares no state {name!r}{near}; {declared}"
            raise ConfigurationError(msg)
        stored = stored_type(known[name])
        kind = type(known[name]).__name__.removesuffix("StateDescriptor").lower()
        plain, clock = split_type(stored)
        value, access = free_name("value", target.key.names), free_name("last_access", target.key.names)
        expected = target.key.append(pa.field(value, plain))
        if clock is not None:
            expected = expected.append(pa.field(access, _accesses(stored)))
        chosen = _chosen(f"state {name!r} (a {kind} state)", frame, expected, target.key.names)
        entry = chosen[value] if clock is None else _timed(chosen[value], chosen[access], stored, f"@{clock}")
        whole = chosen.with_columns([*(chosen[each] for each in target.key.names), entry])
        schema = target.key.append(pa.field("@value", stored))
        return _part(whole, f"state {name!r}", "state", STATE + name, schema, tuple(range(len(target.key))))

    def timers(self, frame: Any) -> Part:
        """Return the timers."""
        target = self.target
        allowed = domains(target.schemas, by_clock=target.by_clock)
        names = target.key.names
        domain, moment, millis = (free_name(each, names) for each in ("domain", "timestamp", "timestamp_ms"))
        both = pa.schema([(moment, _TIME), (millis, pa.int64())])
        chosen = _chosen("timers", frame, target.key.append(pa.field(domain, pa.string())), names, both)
        present = {*frame.columns}
        times = [chosen[millis].cast("bigint")] if millis in present else []
        times += [F.unix_millis(chosen[moment])] if moment in present else []
        if not times:
            msg = f"write_state: timers: expected a column {moment!r} or {millis!r}, got {', '.join(frame.columns)}"
            raise ConfigurationError(msg)
        columns = [*(chosen[each] for each in names), F.coalesce(*times), chosen[domain]]
        schema = target.key.append(pa.field(TIMESTAMP, pa.int64())).append(pa.field(DOMAIN, pa.string()))
        whole, keys = chosen.with_columns(columns), tuple(range(len(names)))
        return _part(whole, "timers", "timers", "timers", schema, keys, allowed=allowed)


class _Chosen:
    """Some columns of a DataFrame, by their exact names, with the columns that are made of them."""

    def __init__(self, frame: DataFrame, places: Mapping[str, int], columns: Sequence[Column]) -> None:
        # Named by position: names may have dots, or differ only in case.
        self._frame, self._places, self.columns = frame, places, columns

    def __getitem__(self, name: str) -> Column:
        return F.col(f"c{self._places[name]}")

    def with_columns(self, columns: Sequence[Column]) -> _Chosen:
        return _Chosen(self._frame, self._places, columns)

    def select(self) -> DataFrame:
        return self._frame.select(*(column.alias(f"c{at}") for at, column in enumerate(self.columns)))


def _chosen(
    label: str, frame: Any, expected: pa.Schema, key: Sequence[str], optional: pa.Schema | None = None
) -> _Chosen:
    """Check a DataFrame's columns, and return those that are expected.

    Those of the key must have the very same type; the optional ones may be missing.
    """
    if not is_frame(frame):
        msg = f"write_state: {label}: expected a DataFrame as read_state gives it, got {type(frame).__name__}"
        raise ConfigurationError(msg)
    if frame.isStreaming:
        msg = f"write_state: {label}: expected a static DataFrame, got a stream; read it with spark.read"
        raise ConfigurationError(msg)
    names = list(frame.columns)
    optional = pa.schema([]) if optional is None else optional
    known = [*expected.names, *optional.names]
    missing = [each for each in expected.names if each not in names]
    unknown = [each for each in names if each not in known]
    twice = [each for each in names if names.count(each) > 1]
    if missing or unknown or twice:
        deviations = [f"no column {missing[0]!r}"] if missing else []
        deviations += [f"a column {unknown[0]!r}, which is not one of it"] if unknown else []
        deviations += [f"the column {twice[0]!r} twice"] if twice else []
        msg = (
            f"write_state: {label}: expected the columns {', '.join(expected.names)}, got {', '.join(names)}: there is "
            f"{' and '.join(deviations)}"
        )
        raise ConfigurationError(msg)
    try:
        schema = arrow_schema(frame.schema)
    except (PySparkException, TypeError, ValueError) as error:
        msg = f"write_state: {label}: a column has a type that no state has: {error}"
        raise ConfigurationError(msg) from error
    wanted = [*expected, *(column for column in optional if column.name in names)]
    present = _nullable(pa.schema([schema.field(column.name) for column in wanted]))
    different = differences(present, _nullable(pa.schema(wanted)), fixed=key)
    if different:
        msg = (
            f"write_state: {label}: its columns are not those of the query: {'; '.join(different)} (from the "
            f"DataFrame to the query); cast them, nothing was written"
        )
        raise ConfigurationError(msg)
    places = {name: names.index(name) for name in known if name in names}
    numbered = frame.toDF(*(f"c{at}" for at in range(len(names))))
    return _Chosen(numbered, places, [F.col(f"c{places[name]}") for name in expected.names])


def _part(
    chosen: _Chosen, label: str, kind: Kind, table: str, target: pa.Schema, keys: tuple[int, ...], **others: Any
) -> Part:
    frame = chosen.select()
    types = [column.type for column in arrow_schema(frame.schema)]
    source = pa.schema([*zip(target.names, types, strict=True)])
    return Part(frame, PartShape(label, kind, table, source, target, keys, **others))


def _places(schema: pa.Schema, names: Sequence[str]) -> tuple[int, ...]:
    return tuple(schema.names.index(name) for name in names)


def _accesses(stored: pa.DataType) -> pa.DataType:
    """Return the type of the last accesses, as ``read_state`` shows them."""
    if pa.types.is_list(stored):
        return pa.list_(_TIME)
    return pa.map_(stored.key_type, _TIME) if pa.types.is_map(stored) else _TIME


def _timed(value: Column, access: Column, stored: pa.DataType, clock: str) -> Column:
    """Return values and last accesses as the one column that a state with a time-to-live stores."""

    def both(one: Column, accessed: Column) -> Column:
        return F.struct(one.alias("@value"), F.unix_millis(accessed).alias(clock))

    # Values and last accesses of different lengths give null, which is a fault.
    if pa.types.is_list(stored):
        return F.when(F.size(value) == F.size(access), F.zip_with(value, access, both))
    if pa.types.is_map(stored):
        zipped = F.map_zip_with(value, access, lambda _, one, accessed: both(one, accessed))
        return F.when(F.size(value) == F.size(access), zipped)
    return F.when(value.isNotNull(), both(value, access))
