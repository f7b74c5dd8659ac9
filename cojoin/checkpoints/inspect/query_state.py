"""A query's state for inspection: buffered rows, versions in force, states by name, and timers.

Columns have the inputs' own names, times are timestamps, and internal entries are left out. Each attribute is a
DataFrame over the whole state, which is read when it is used; ``key`` returns the state of one key as Python values.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.inspect.key_state import BUFFERS, DOMAINS, PAIRED, REJECTED, STATE, KeyState, key_state
from cojoin.checkpoints.inspect.state_rows import Values, as_key, find
from cojoin.engine.display import format_bytes, format_time, text_table
from cojoin.engine.rescaling import key_columns
from cojoin.engine.state.ttl import split_type
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.rows import back_quoted
from cojoin.session.arrow_types import spark_schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from cojoin.checkpoints.stored_state import StoredState
    from cojoin.engine.batch_report import BatchReport
    from cojoin.engine.input_spec import InputSpec

__all__ = ["QueryState"]

_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which both Spark and Python can show."""


@dataclass(frozen=True, eq=False)
class QueryState:
    """A query's state after one batch; ``read_state`` returns it.

    Attributes:
        path: The checkpoint's directory, as the caller wrote it.
        batch_id: The batch.
        origin: Where the state is read from: a ``"snapshot"``, or Spark's own ``"state store"``.
        inputs: The left and the right input, as the checkpoint describes them.
        query: The checkpoint's description of the query.
        report: The batch's counts and watermarks; None where they are no longer known.
        stored: The state as it is stored.
    """

    path: str
    batch_id: int
    origin: Literal["snapshot", "state store"]
    inputs: tuple[InputSpec, InputSpec]
    query: Mapping[str, Any]
    report: BatchReport | None
    stored: StoredState

    @property
    def taken_at(self) -> datetime | None:
        """The batch's processing time, in UTC; None where it is not known."""
        millis = max((int(header["processing_time"]) for header in self.stored.headers), default=0)
        return datetime.fromtimestamp(millis / 1000, tz=timezone.utc) if millis else None

    @property
    def watermark(self) -> int:
        """The operator's watermark, in epoch milliseconds; ``-2**63`` where there is none yet."""
        if not self.stored.headers:
            return NONE
        # The same in every key group.
        watermark = self.stored.headers[0]["watermark"]
        return int(watermark["merge"]["current"]) if watermark["released"] else NONE

    @cached_property
    def buffered(self) -> dict[str, DataFrame]:
        """The buffered rows of each input, by name: its columns, ``waits_for``, and in interval joins ``matched``."""
        found: dict[str, DataFrame] = {}
        for side, spec in enumerate(self.inputs):
            names = [name for name, (owner, _) in BUFFERS.items() if owner == side and name in self.stored.tables]
            frames = [self._waiting(name, paired=bool(PAIRED & {*names})) for name in names]
            found[spec.name] = reduce(_together, frames)
        return found

    @cached_property
    def versions(self) -> DataFrame | None:
        """The rows of the right input that later rows can match, in as-of and temporal joins; None in others."""
        return self.stored.rows("versions") if "versions" in self.stored.tables else None

    @cached_property
    def states(self) -> dict[str, DataFrame]:
        """A function's states by name: the key's columns, ``value``, and with a time-to-live ``last_access``."""
        names = [name for name in self.stored.tables if name.startswith(STATE)]
        return {name.removeprefix(STATE): self._state(name) for name in names}

    @cached_property
    def timers(self) -> DataFrame:
        """A function's timers: the key's columns, ``domain``, ``timestamp``, ``timestamp_ms``; empty for a join.

        Where a timestamp can't represent the time, ``timestamp`` is null, and only ``timestamp_ms`` has the time.
        """
        there = [name for name in DOMAINS if name in self.stored.tables]
        if there:
            return reduce(_together, [self._timers(name) for name in there])
        keys = self.inputs[0].keys(self.inputs[0].schema.empty_table())
        empty = self.stored.contents.sparkSession.createDataFrame([], spark_schema(keys.schema))
        none: list[Column] = [F.lit(None).cast(dtype) for dtype in ("string", "timestamp", "bigint")]
        return _add(empty, dict(zip(("domain", "timestamp", "timestamp_ms"), none, strict=True)))

    def key(self, value: Any) -> KeyState:
        """Return the whole state of a key.

        Args:
            value: The key; a tuple where it has several columns.

        Raises:
            ConfigurationError: The value has other columns than the key.
            FunctionError: A value is not of its column's type.
            CheckpointError: The state is damaged.

        Example:
            ``print(read_state(spark, "/lake/_cojoin/enriched").key(17))``
        """
        wanted = {name: self.key_values(name, value) for name in self.stored.tables}
        return key_state(self, as_key(value, self.inputs[0]), find(self.stored, wanted))

    def key_values(self, table: str, key: Any) -> Values:
        """Return a key as values by the column names of a stored table."""
        names = key_columns(table, self.inputs)
        values = as_key(key, self.inputs[0]).values()
        return dict(zip(names, values, strict=True))

    def largest_keys(self, limit: int = 10) -> DataFrame:
        """Return the keys with the most rows, in all tables together, in descending order of rows."""
        columns = list(self.inputs[0].key)
        every = reduce(_together, [self._keys(name) for name in self.stored.tables])
        counted = every.groupBy(*map(back_quoted, columns)).agg(F.count(F.lit(1)).alias("rows"))
        return counted.orderBy(F.desc("rows"), *map(back_quoted, columns)).limit(limit)

    def tables(self) -> list[tuple[str, int, int]]:
        """Return a readable name, the number of rows and their bytes in memory, for each table."""
        return [(self.part_name(name), each.rows, each.bytes) for name, each in self.stored.tables.items()]

    def part_name(self, name: str) -> str:
        """Return a readable name of a stored table."""
        if name in BUFFERS:
            side, waits_for = BUFFERS[name]
            return f"{self.inputs[side].name}, waiting for {waits_for}"
        if name == "versions":
            return f"{self.inputs[1].name}, versions in force"
        if name in REJECTED:
            return f"{self.inputs[REJECTED[name]].name}, rejected of a commit that is half read"
        if name in DOMAINS:
            return f"timers, {DOMAINS[name].replace('_', ' ')}"
        return f"state {name.removeprefix(STATE)!r}"

    def _headline(self) -> list[str]:
        when = "" if self.taken_at is None else f", {self.taken_at:%Y-%m-%d %H:%M:%S} UTC"
        left, right = (spec.name for spec in self.inputs)
        operator = str(self.query["operator"])
        what = f"{self.query['function']} of" if operator == "process" else f"{operator.replace('_', ' ')} of"
        holding = None if self.report is None else self.report.holding_input
        watermark = format_time(self.watermark) + ("" if holding is None else f", held back by {holding!r}")
        return [
            f"State of {self.path} after batch {self.batch_id}{when}, from {_ORIGINS[self.origin]}",
            f"{what} {left!r} with {right!r}, {len(self.stored.headers)} key groups; watermark {watermark}",
        ]

    def _largest_groups(self) -> str:
        sizes = {} if self.report is None else dict(self.report.state_bytes_by_key_group)
        largest = sorted(sizes.items(), key=lambda item: (-item[1], int(item[0])))[:3]
        shown = ", ".join(f"{group} ({format_bytes(size)})" for group, size in largest)
        return f"largest key groups: {shown}" if shown else ""

    def __str__(self) -> str:
        rows = [("holds", "rows", "bytes"), *((name, f"{count:,}", f"{size:,}") for name, count, size in self.tables())]
        return "\n".join(filter(None, [*self._headline(), "", text_table(rows), self._largest_groups()]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the summary as HTML, for notebooks."""
        cells = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{count:,}</td><td>{size:,}</td></tr>"
            for name, count, size in self.tables()
        )
        head = "<br>".join(map(html.escape, self._headline()))
        return (
            f"<p>{head}</p><table><thead><tr><th>holds</th><th>rows</th><th>bytes</th></tr></thead>"
            f"<tbody>{cells}</tbody></table><p>{html.escape(self._largest_groups())}</p>"
        )

    def _waiting(self, name: str, *, paired: bool) -> DataFrame:
        names = self.stored.tables[name].schema.names
        frame, flag = self.stored.rows(name), F.lit(None).cast("boolean")
        if name in PAIRED:
            names = names[:-1]
            frame = frame.toDF(*_numbered(len(names) + 1))
            flag = F.col(f"c{len(names)}")
        else:
            frame = frame.toDF(*_numbered(len(names)))
        added = {"waits_for": F.lit(BUFFERS[name][1]), **({"matched": flag} if paired else {})}
        return _select(frame, names, added)

    def _state(self, name: str) -> DataFrame:
        schema = self.stored.tables[name].schema
        keys, stored = schema.names[:-1], schema.field(-1).type
        frame = self.stored.rows(name).toDF(*_numbered(len(schema)))
        column = F.col(f"c{len(keys)}")
        if split_type(stored)[1] is None:
            return _select(frame, keys, {"value": column})
        values, accesses = _split(column, stored)
        return _select(frame, keys, {"value": values, "last_access": accesses})

    def _timers(self, name: str) -> DataFrame:
        keys = self.stored.tables[name].schema.names[:-1]
        frame = self.stored.rows(name).toDF(*_numbered(len(keys) + 1))
        millis = F.col(f"c{len(keys)}")
        return _select(
            frame, keys, {"domain": F.lit(DOMAINS[name]), "timestamp": _moment(millis), "timestamp_ms": millis}
        )

    def _keys(self, name: str) -> DataFrame:
        names = self.stored.tables[name].schema.names
        places = [names.index(column) for column in key_columns(name, self.inputs)]
        frame = self.stored.rows(name).toDF(*_numbered(len(names)))
        return frame.select(
            *(F.col(f"c{place}").alias(key) for place, key in zip(places, self.inputs[0].key, strict=True))
        )


_ORIGINS = {"snapshot": "a snapshot", "state store": "Spark's own state store"}


def _numbered(count: int) -> list[str]:
    # Named by position: the original names may have dots, or differ only in case.
    return [f"c{position}" for position in range(count)]


def _select(numbered: DataFrame, names: Sequence[str], added: Mapping[str, Column]) -> DataFrame:
    """Return the columns under their original names, and added columns under names that are still free."""
    columns = [F.col(f"c{position}").alias(name) for position, name in enumerate(names)]
    return numbered.select(*columns, *(column.alias(_free(name, names)) for name, column in added.items()))


def _add(frame: DataFrame, added: Mapping[str, Column]) -> DataFrame:
    return frame.select("*", *(column.alias(_free(name, frame.columns)) for name, column in added.items()))


def _free(name: str, taken: Sequence[str]) -> str:
    lowered = {each.lower() for each in taken}
    while name.lower() in lowered:
        name = f"_{name}"
    return name


def _together(one: DataFrame, two: DataFrame) -> DataFrame:
    return one.union(two) if one.columns == two.columns else one.unionByName(two, allowMissingColumns=True)


def _moment(millis: Column) -> Column:
    return F.when(millis.between(_FIRST_MS, _LAST_MS), F.timestamp_millis(millis))


def _split(column: Column, stored: pa.DataType) -> tuple[Column, Column]:
    """Split the stored column of a state with a time-to-live into values and times of last access."""
    value, access = "@value", f"@{split_type(stored)[1]}"
    if pa.types.is_list(stored):
        return (
            F.transform(column, lambda each: each.getField(value)),
            F.transform(column, lambda each: _moment(each.getField(access))),
        )
    if pa.types.is_map(stored):
        return (
            F.transform_values(column, lambda _, each: each.getField(value)),
            F.transform_values(column, lambda _, each: _moment(each.getField(access))),
        )
    return column.getField(value), _moment(column.getField(access))
