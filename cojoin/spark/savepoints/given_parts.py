"""The parts of a state as a user gives them: DataFrames of the shape that ``read_state`` returns, checked.

Columns are matched by name, in any order, and all must be there: those of the input, or the key's under the left
input's names. A number may be of a narrower type than the stored one; a key's type must be the same, since its hash
decides where the key belongs. Rows are looked at later, in the tasks (``state_shapes``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.inspect.key_state import STATE
from cojoin.engine.state.ttl import split_type
from cojoin.engine.values.schema_evolution import differences
from cojoin.errors import ConfigurationError, did_you_mean
from cojoin.session.arrow_types import arrow_schema
from cojoin.session.kinds import is_frame
from cojoin.spark.savepoints.state_packing import Part
from cojoin.spark.savepoints.state_shapes import (
    DOMAIN,
    MATCHED,
    TIMESTAMP,
    WAITS_FOR,
    PartShape,
    domains,
    nullable_type,
    waits,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.state import StateDescriptor

__all__ = ["GivenParts", "StateTarget"]

_TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class StateTarget:
    """The operator that a state is written for.

    Attributes:
        inputs: The inputs of the query.
        schemas: The columns of each table of its state.
        descriptors: The states that its function declares, by name; empty for a join.
        watermark: The operator's watermark, in epoch milliseconds.
        by_clock: Whether its function sets processing-time timers.
        title: What it is, for messages, such as ``"function Watch"`` or ``"asof join"``.
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
        left = self.inputs[0]
        return pa.schema([left.schema.field(name) for name in left.key])


@dataclass(frozen=True)
class GivenParts:
    """The parts that a user gives, each checked against the operator.

    Attributes:
        target: The operator.
    """

    target: StateTarget

    def versions(self, frame: Any) -> Part:
        """Return the versions of the right input."""
        right = self.target.inputs[1]
        if "versions" not in self.target.schemas:
            which = "a function has states=" if self.target.descriptors else "it keeps none"
            msg = f"write_state: versions: the query is a {self.target.title}, which has no versions; {which}"
            raise ConfigurationError(msg)
        chosen = _chosen("versions", frame, right.schema, right.key)
        return _part(
            chosen,
            PartShape(
                "versions",
                "versions",
                "versions",
                pa.schema([]),
                right.schema,
                _places(right.schema, right.key),
                right.event_time,
                self.target.watermark,
            ),
        )

    def buffered(self, name: str, frame: Any) -> Part:
        """Return the buffered rows of an input."""
        names = [spec.name for spec in self.target.inputs]
        if name not in names:
            msg = f"write_state: buffered: the query has no input {name!r}{did_you_mean(str(name), names)}"
            raise ConfigurationError(msg)
        side = names.index(name)
        spec, what = self.target.inputs[side], f"buffered rows of {name!r}"
        allowed = waits(self.target.schemas, side)
        reason, flag = _free("waits_for", spec.schema.names), _free("matched", spec.schema.names)
        optional = pa.schema([(reason, pa.string()), (flag, pa.bool_())])
        chosen = _chosen(what, frame, spec.schema, spec.key, optional)
        there = {*frame.columns}
        columns = [chosen[each] for each in spec.schema.names]
        usual = F.lit("the watermark")
        columns.append(F.coalesce(chosen[reason], usual) if reason in there else usual)
        columns.append(chosen[flag] if flag in there else F.lit(None).cast("boolean"))
        target = spec.schema.append(pa.field(WAITS_FOR, pa.string())).append(pa.field(MATCHED, pa.bool_()))
        shape = PartShape(
            what,
            "buffered",
            str(side),
            pa.schema([]),
            target,
            _places(spec.schema, spec.key),
            spec.event_time,
            allowed=allowed,
            spreading=_places(spec.schema, spec.spreading),
            null_keys=spec.null_key == "unmatched",
        )
        return _part(chosen.with_columns(columns), shape)

    def state(self, name: str, frame: Any) -> Part:
        """Return the entries of a state."""
        known, target = self.target.descriptors, self.target
        if name not in known:
            there = f"it has {', '.join(sorted(known))}" if known else "it declares none"
            near = did_you_mean(str(name), [*known]) if known else ""
            msg = f"write_state: states: the {target.title} declares no state {name!r}{near}; {there}"
            raise ConfigurationError(msg)
        stored = known[name].stored_type()
        kind = type(known[name]).__name__.removesuffix("StateDescriptor").lower()
        plain, clock = split_type(stored)
        value, access = _free("value", target.key.names), _free("last_access", target.key.names)
        expected = target.key.append(pa.field(value, plain))
        if clock is not None:
            expected = expected.append(pa.field(access, _accesses(stored)))
        chosen = _chosen(f"state {name!r} (a {kind} state)", frame, expected, target.key.names)
        columns = [chosen[each] for each in target.key.names]
        entry = chosen[value]
        columns.append(entry if clock is None else _timed(entry, chosen[access], stored, f"@{clock}"))
        schema = target.key.append(pa.field("@value", stored))
        keys = tuple(range(len(target.key)))
        return _part(
            chosen.with_columns(columns),
            PartShape(f"state {name!r}", "state", STATE + name, pa.schema([]), schema, keys),
        )

    def timers(self, frame: Any) -> Part:
        """Return the timers."""
        target = self.target
        allowed = domains(target.schemas, by_clock=target.by_clock)
        names = target.key.names
        domain, moment, millis = (_free(each, names) for each in ("domain", "timestamp", "timestamp_ms"))
        both = pa.schema([(moment, _TIME), (millis, pa.int64())])
        chosen = _chosen("timers", frame, target.key.append(pa.field(domain, pa.string())), names, both)
        there = {*frame.columns}
        times = [chosen[millis].cast("bigint")] if millis in there else []
        times += [F.unix_millis(chosen[moment])] if moment in there else []
        if not times:
            msg = f"write_state: timers: expected a column {moment!r} or {millis!r}, got {', '.join(frame.columns)}"
            raise ConfigurationError(msg)
        columns = [*(chosen[each] for each in names), F.coalesce(*times), chosen[domain]]
        schema = target.key.append(pa.field(TIMESTAMP, pa.int64())).append(pa.field(DOMAIN, pa.string()))
        keys = tuple(range(len(names)))
        shape = PartShape("timers", "timers", "timers", pa.schema([]), schema, keys, allowed=allowed)
        return _part(chosen.with_columns(columns), shape)


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
    what: str, frame: Any, expected: pa.Schema, key: Sequence[str], optional: pa.Schema | None = None
) -> _Chosen:
    """Check a DataFrame's columns, and return those that are expected.

    Args:
        what: The part, for messages.
        frame: The DataFrame.
        expected: The columns that must be there.
        key: Those that must have the very same type.
        optional: Columns that may be there.
    """
    if not is_frame(frame):
        msg = f"write_state: {what}: expected a DataFrame as read_state gives it, got {type(frame).__name__}"
        raise ConfigurationError(msg)
    if frame.isStreaming:
        msg = f"write_state: {what}: expected a static DataFrame, got a stream; read it with spark.read"
        raise ConfigurationError(msg)
    names = list(frame.columns)
    known = [*expected.names, *(optional.names if optional is not None else ())]
    missing, unknown = (
        [each for each in expected.names if each not in names],
        [each for each in names if each not in known],
    )
    twice = [each for each in names if names.count(each) > 1]
    if missing or unknown or twice:
        found = [f"no column {missing[0]!r}"] if missing else []
        found += [f"a column {unknown[0]!r}, which is not one of it"] if unknown else []
        found += [f"the column {twice[0]!r} twice"] if twice else []
        msg = (
            f"write_state: {what}: expected the columns {', '.join(expected.names)}, got {', '.join(names)}: there is "
            f"{' and '.join(found)}"
        )
        raise ConfigurationError(msg)
    try:
        schema = arrow_schema(frame.schema)
    except (PySparkException, TypeError, ValueError) as error:
        msg = f"write_state: {what}: a column has a type that no state has: {error}"
        raise ConfigurationError(msg) from error
    wanted = [*expected, *(field for field in (optional if optional is not None else ()) if field.name in names)]
    given = pa.schema([pa.field(each.name, nullable_type(schema.field(each.name).type)) for each in wanted])
    asked = pa.schema([pa.field(each.name, nullable_type(each.type)) for each in wanted])
    different = differences(given, asked, fixed=key)
    if different:
        msg = (
            f"write_state: {what}: its columns are not those of the query: {'; '.join(different)} (from the "
            f"DataFrame to the query); cast them, nothing was written"
        )
        raise ConfigurationError(msg)
    places = {name: names.index(name) for name in known if name in names}
    numbered = frame.toDF(*(f"c{at}" for at in range(len(names))))
    return _Chosen(numbered, places, [F.col(f"c{places[name]}") for name in expected.names])


def _part(chosen: _Chosen, shape: PartShape) -> Part:
    frame = chosen.select()
    found = arrow_schema(frame.schema)
    named = pa.schema([pa.field(name, field.type) for name, field in zip(shape.target.names, found, strict=True)])
    return Part(frame, PartShape(**{**vars(shape), "found": named}))


def _places(schema: pa.Schema, names: Sequence[str]) -> tuple[int, ...]:
    return tuple(schema.names.index(name) for name in names)


def _free(name: str, taken: Sequence[str]) -> str:
    """Return the name that ``read_state`` gives a column beside others."""
    lowered = {each.lower() for each in taken}
    while name.lower() in lowered:
        name = f"_{name}"
    return name


def _accesses(stored: pa.DataType) -> pa.DataType:
    """Return the type of the last accesses, as ``read_state`` shows them."""
    if pa.types.is_list(stored):
        return pa.list_(_TIME)
    return pa.map_(stored.key_type, _TIME) if pa.types.is_map(stored) else _TIME


def _timed(value: Column, access: Column, stored: pa.DataType, clock: str) -> Column:
    """Return values and last accesses as the one column that a state with a time-to-live stores."""

    def both(one: Column, accessed: Column) -> Column:
        return F.struct(one.alias("@value"), F.unix_millis(accessed).alias(clock))

    # Of values and last accesses of different lengths nothing is made, which is a fault.
    if pa.types.is_list(stored):
        return F.when(F.size(value) == F.size(access), F.zip_with(value, access, both))
    if pa.types.is_map(stored):
        zipped = F.map_zip_with(value, access, lambda _, one, accessed: both(one, accessed))
        return F.when(F.size(value) == F.size(access), zipped)
    return F.when(value.isNotNull(), both(value, access))
