"""The shape of one part of a state that is written: what its rows are, and which table of the state gets them.

A part is what ``read_state`` gives as one DataFrame: the versions, the buffered rows of an input, a state, or the
timers; or it is a table of another checkpoint, which is taken as it is. ``PartShape`` turns rows of the part into rows
of the state's tables, and says what is wrong with them. It is sent to the tasks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.checkpoints.inspect.key_state import BUFFERS, DOMAINS, PAIRED
from cojoin.engine.display import show_row
from cojoin.engine.state.ttl import split_type
from cojoin.engine.values.rows import decode_rows
from cojoin.engine.values.schema_evolution import evolve
from cojoin.engine.values.tables import event_micros, up_to_millis
from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DOMAIN", "MATCHED", "TIMESTAMP", "WAITS_FOR", "PartShape", "domains", "nullable_type", "waits"]

WAITS_FOR, MATCHED, DOMAIN = "__cojoin_waits_for", "__cojoin_matched", "__cojoin_domain"
TIMESTAMP = "@timestamp"
"""The columns that say where a row belongs, and that of a timer's time."""


@dataclass(frozen=True)
class PartShape:
    """What the rows of one part are.

    Attributes:
        what: The part, for messages.
        kind: ``"table"`` is a table of another checkpoint.
        table: The table that gets the rows; of versions the table of those in force, of buffered rows the input's side.
        found: The columns as the DataFrame has them, under their final names.
        target: The columns as they are stored, and those that say where a row belongs.
        keys: The positions of the key's columns.
        event_time: The event-time column of rows of an input.
        watermark: The operator's watermark, up to which versions are in force.
        allowed: For buffered rows, what they may wait for, with the table; for timers, the domains, with the table.
        spreading: The positions of the columns by which rows with a null key are spread over the key groups.
        null_keys: Whether rows may have a null key, which wait for the watermark alone.
    """

    what: str
    kind: Literal["table", "versions", "buffered", "state", "timers"]
    table: str
    found: pa.Schema
    target: pa.Schema
    keys: tuple[int, ...]
    event_time: str | None = None
    watermark: int = 0
    allowed: Mapping[str, str] = field(default_factory=dict)
    spreading: tuple[int, ...] = ()
    null_keys: bool = False

    def convert(self, rows: pa.Table) -> pa.Table:
        """Return rows of the DataFrame with the stored types, in columns of the stored names.

        Raises:
            CheckpointError: A value does not fit its type.
        """
        named = rows.rename_columns(self.target.names)
        if self.kind == "table":
            return named.cast(self.target)
        try:
            loose = pa.schema([pa.field(each.name, nullable_type(each.type)) for each in self.found])
            wide = pa.schema([pa.field(each.name, nullable_type(each.type)) for each in self.target])
            stored = evolve(named.cast(loose), wide, self.what)
            columns = [stored.column(at).cast(each.type) for at, each in enumerate(self.target)]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            msg = f"a value does not fit its type: {error}"
            raise CheckpointError(msg) from error
        return pa.Table.from_arrays(columns, names=self.target.names)

    def faults(self, rows: pa.Table) -> Counter[str]:
        """Return what is wrong with converted rows, and how many are; each text shows one of them."""
        if self.kind == "table" or not rows.num_rows:
            return Counter()
        wrong: dict[str, pa.ChunkedArray] = {}
        for at, each in enumerate(self.target):
            nulls = rows.column(at).is_null() if rows.column(at).null_count else None
            if nulls is None:
                continue
            if at in self.keys:
                lost = self._without_lonely(rows, nulls)
                wrong["a null key"] = pc.or_(wrong["a null key"], lost) if "a null key" in wrong else lost
            elif each.name == self.event_time:
                wrong["a null event time"] = nulls
            elif self.kind == "timers" and each.name == TIMESTAMP:
                wrong["no timestamp"] = nulls
            elif self.kind == "state":
                accessed = split_type(each.type)[1] is not None
                why = "a null value" + (", or not one last_access for each of it" if accessed else "")
                wrong[f"{why}; leave a key out that has no entry"] = nulls
            elif not each.nullable:
                wrong[f"a null in {each.name!r}, which is never null in the query's input"] = nulls
        if self.kind == "state" and (missing := self._without_access(rows)) is not None:
            wrong["a null last_access"] = missing
        wrong |= self._misplaced(rows)
        return Counter(
            {self._told(rows, mask, why): count for why, mask in wrong.items() if (count := pc.sum(mask).as_py())}
        )

    def _without_lonely(self, rows: pa.Table, nulls: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return which rows with a null key do not wait for their time to be emitted unmatched."""
        if not self.null_keys:
            return nulls
        held = pa.array([reason for reason, name in self.allowed.items() if name.startswith("held")], pa.string())
        return pc.and_(nulls, pc.invert(pc.is_in(rows.column(WAITS_FOR), value_set=held)))

    def _without_access(self, rows: pa.Table) -> pa.Array | None:
        """Return which rows of a state with a time-to-live lack a last access; None where it has none."""
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
        if self.kind not in ("buffered", "timers"):
            return {}
        column = rows.column(DOMAIN if self.kind == "timers" else WAITS_FOR)
        known = pc.is_in(column, value_set=pa.array([*self.allowed], pa.string()))
        name = "domain" if self.kind == "timers" else "waits_for"
        expected = " or ".join(map(repr, self.allowed)) or "none, as the function sets no timers"
        return {f"another {name} than the query has ({expected})": pc.invert(known)}

    def _told(self, rows: pa.Table, mask: pa.ChunkedArray, why: str) -> str:
        shown = [name for name in self.target.names if not name.startswith(("@", "__cojoin"))][:4]
        if self.kind == "timers":
            shown.append(DOMAIN)
        if self.kind == "buffered":
            shown.append(WAITS_FOR)
        row = decode_rows(rows.filter(mask).slice(0, 1).select(shown), beyond=str)[0].as_dict()
        return f"{self.what}: a row has {why}: {show_row({_plain(name): value for name, value in row.items()})}"

    def tables(self, rows: pa.Table) -> dict[str, pa.Table]:
        """Return converted rows without a fault, by the table of the state that gets them."""
        if self.kind == "table":
            return {self.table: rows}
        if self.kind == "state":
            return {self.table: self._without_empty(rows)}
        if self.kind == "versions":
            assert self.event_time is not None
            in_force = up_to_millis(event_micros(rows, self.event_time), self.watermark)
            # A version after the watermark has come, and waits for the watermark as it would in the query.
            return {self.table: rows.filter(pa.array(in_force)), "held2": rows.filter(pa.array(~in_force))}
        if self.kind == "timers":
            plain = rows.drop_columns([DOMAIN])
            domains = rows.column(DOMAIN)
            return {name: plain.filter(pc.equal(domains, domain)) for domain, name in self.allowed.items()}
        waits, flags = rows.column(WAITS_FOR), pc.fill_null(rows.column(MATCHED), False)
        plain = rows.drop_columns([WAITS_FOR, MATCHED])
        found = {}
        for reason, name in self.allowed.items():
            mine = pc.equal(waits, reason)
            table = plain.filter(mine)
            if name in PAIRED:
                # The flag is found by its position; no column of the input has this name.
                table = table.append_column(MATCHED, flags.filter(mine))
            found[name] = table
        return found

    def _without_empty(self, rows: pa.Table) -> pa.Table:
        """Return the rows of a state without empty lists and maps, which are no entries."""
        column = rows.column(rows.num_columns - 1)
        if not (pa.types.is_list(column.type) or pa.types.is_map(column.type)):
            return rows
        lengths = np.concatenate([np.diff(each.offsets.to_numpy()) for each in column.chunks] or [np.zeros(0)])
        return rows if lengths.all() else rows.filter(pa.array(lengths > 0))


def _plain(name: str) -> str:
    return name.removeprefix("__cojoin_")


def nullable_type(dtype: pa.DataType) -> pa.DataType:
    """Return a type whose parts may all be null; keys of maps never are.

    >>> nullable_type(pa.struct([pa.field("a", pa.int64(), nullable=False)]))
    StructType(struct<a: int64>)
    """
    if pa.types.is_struct(dtype):
        return pa.struct([pa.field(each.name, nullable_type(each.type)) for each in dtype])
    if pa.types.is_list(dtype):
        return pa.list_(nullable_type(dtype.value_type))
    if pa.types.is_map(dtype):
        return pa.map_(dtype.key_type, nullable_type(dtype.item_type))
    return dtype


def waits(tables: Mapping[str, object], side: int) -> dict[str, str]:
    """Return what buffered rows of an input may wait for, with the table that has them.

    Args:
        tables: The tables of the operator's state.
        side: 0 for the left input, 1 for the right.
    """
    return {told: name for name, (owner, told) in BUFFERS.items() if owner == side and name in tables}


def domains(tables: Mapping[str, object], *, by_clock: bool) -> dict[str, str]:
    """Return the time domains that a function's timers may have, with the table that has them."""
    return {told: name for name, told in DOMAINS.items() if name in tables and (by_clock or name == "timers")}
