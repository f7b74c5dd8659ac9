"""The columns that an input's declaration names, found among its fields and checked, whatever its rows are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.inputs import InputSpec
from cojoin.engine.row_changes import DELETED, VALID_AT, RowChanges
from cojoin.engine.state.segments import HASH
from cojoin.engine.values.advice import about_pair
from cojoin.engine.values.keys import KEYABLE, is_keyable
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import ConfigurationError, SchemaError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.engine.input import Input
    from cojoin.engine.row_changes import ChangeFeed
    from cojoin.engine.values.advice import Advice

__all__ = ["InputColumns", "check_names", "check_pair"]

_LONGEST = 100
"""The number of characters of a wrong name that a message shows."""


@dataclass(frozen=True)
class InputColumns:
    """The columns of an input's rows, of which a declaration names some.

    Attributes:
        what: The input, for messages, such as ``"input 'trades'"``.
        fields: The columns by name; timestamps with a zone are ``timestamp[us, UTC]``.
        types: How the messages name the columns' types.
        advice: What to do about columns of other types.
        default_partition: The columns that identify a source partition if the declaration names none.
        default_sequence: The columns that order the rows of a source partition if the declaration names none.
        feed: The change feed whose rows they are (``row_changes``); None where they are of none.
    """

    what: str
    fields: Mapping[str, pa.Field]
    types: Mapping[str, str]
    advice: Advice
    default_partition: tuple[str, ...] = ()
    default_sequence: tuple[str, ...] = ()
    feed: ChangeFeed | None = None

    def spec(self, declared: Input, name: str, event_time: Any, max_ahead_ms: int | None) -> InputSpec:
        """Return the input's specification.

        Args:
            declared: The user's declaration.
            name: The input's name.
            event_time: The name of the event-time column, or None.
            max_ahead_ms: How far a row may be ahead of processing time, in milliseconds; None is any distance.

        Raises:
            SchemaError: A column does not exist or has the wrong type.
        """
        partition = self._names(declared.partition, "partition") or self.default_partition
        sequence = self._names(declared.sequence, "sequence") or self.default_sequence
        time = self._time(event_time, "event time")
        changes = self._changes(declared, time)
        spec = InputSpec(
            name=name,
            schema=pa.schema([*self.fields.values(), *(changes.added if changes else ())]),
            key=self._key(declared.key),
            event_time=time if changes is None else changes.event_time,
            partition=tuple(self._find(column, "partition") for column in partition),
            sequence=tuple(self._find(column, "sequence") for column in sequence),
            watermark=declared.watermark,
            max_ahead_ms=max_ahead_ms,
            late=declared.late,
            null_key=declared.null_key,
            changes=changes,
        )
        for column in spec.partition:
            if pa.types.is_nested(self.fields[column].type):
                msg = (
                    f"{self.what}: partition column {column!r} has the type {self.types[column]}; name its parts as "
                    f"columns"
                )
                raise SchemaError(msg)
        return spec

    def _names(self, declared: Any, role: str) -> tuple[Any, ...]:
        if isinstance(declared, str):
            return (declared,)
        if isinstance(declared, (list, tuple)):
            return tuple(declared)
        msg = f"{self.what}: {role}: expected a column's name, or a list of names, got {_shown(declared)}"
        raise SchemaError(msg)

    def _find(self, column: Any, role: str) -> str:
        if not isinstance(column, str):
            msg = f"{self.what}: {role}: expected a column's name, got {_shown(column)}"
            raise SchemaError(msg)
        if column in self.fields:
            return column
        for name in self.fields:
            if name.lower() == column.lower():
                return name
        near, advised = did_you_mean(column, self.fields), self.advice.about_missing(column, role)
        cure = near if advised is None or near.endswith("?") else f"; {advised}"
        msg = f"{self.what} has no {role} column {column!r}{cure}"
        raise SchemaError(msg)

    def _key(self, declared: Any) -> tuple[str, ...]:
        key = tuple(self._find(column, "key") for column in self._names(declared, "key"))
        if not key:
            taken = {name.lower() for name in self.fields}
            names = chain(["all_rows"], (f"all_rows_{number}" for number in count(2)))
            added = next(name for name in names if name not in taken)
            msg = (
                f"{self.what}: key: expected one or more columns, got {declared!r}; to join rows by time alone, give "
                f"both inputs the same key in all rows, which a single task joins: {self.advice.constant(added)}"
            )
            raise SchemaError(msg)
        if len(set(key)) < len(key):
            msg = f"{self.what}: key: expected different columns, got {declared!r}; name each once"
            raise SchemaError(msg)
        for name in key:
            if not is_keyable(self.fields[name].type):
                advised = self.advice.about_key(name, self.types[name])
                cure = f"; {advised}" if advised else ""
                msg = (
                    f"{self.what}: key column {name!r} has the type {self.types[name]}, which can't be a key; "
                    f"valid are {KEYABLE}{cure}"
                )
                raise SchemaError(msg)
        return key

    def _changes(self, declared: Input, event_time: str | None) -> RowChanges | None:
        """Return how the rows are versions and deletes; None if each is what it is."""
        if declared.valid_from is None:
            return None if self.feed is None else RowChanges(event_time, self.feed)
        if self.feed is not None and self.feed.commit is None:
            # Ends of validity are known by the commit of their own row.
            msg = (
                f"{self.what}: valid_from: its rows are change events without commits, as Debezium's, of which each "
                f"ends the one before; name event_time= instead"
            )
            raise ConfigurationError(msg)
        valid_from, valid_to = (
            self._time(getattr(declared, role), role.replace("_", " ")) for role in ("valid_from", "valid_to")
        )
        if valid_from == valid_to:
            msg = f"{self.what}: valid_from and valid_to are one column, {valid_from!r}; expected a begin and an end"
            raise SchemaError(msg)
        changes = RowChanges(VALID_AT, self.feed, valid_from, valid_to)
        for added in changes.added:
            taken = next((name for name in self.fields if name.lower() == added.name), None)
            if taken is not None:
                whether = "whether it is a delete" if added.name == DELETED else "when it takes effect"
                msg = f"{self.what}: column {taken!r}: rows with validity get one of this name, {whether}; rename it"
                raise SchemaError(msg)
        return changes

    def _time(self, declared: Any, role: str) -> str | None:
        if declared is None:
            return None
        name = self._find(declared, role)
        dtype = self.fields[name].type
        if not pa.types.is_timestamp(dtype) or dtype.tz is None:
            spelled = self.types[name]
            cure = self.advice.about_time(name, spelled, role)
            msg = f"{self.what}: {role} column {name!r}: expected a timestamp, got {spelled}; {cure}"
            raise SchemaError(msg)
        return name


def check_names(names: Sequence[str], what: str) -> None:
    """Check that no two columns are one to Spark and Delta, and that none has a name of the state's own tables.

    Args:
        names: The names of the columns.
        what: The input, for the message.

    Raises:
        SchemaError: A name is not allowed.
    """
    seen: dict[str, str] = {}
    for name in names:
        equal = seen.get(name.lower())
        if equal is not None:
            apart = f"two columns {equal!r}" if equal == name else f"columns {equal!r} and {name!r}"
            why = "" if equal == name else ", which differ only in case: to Spark and Delta they are one"
            msg = f"{what} has {apart}{why}; rename or drop one"
            raise SchemaError(msg)
        seen[name.lower()] = name
        if name == HASH:
            msg = f"{what}: column {name!r}: the state's own tables have one of this name; rename it"
            raise SchemaError(msg)


def check_pair(left: InputSpec, right: InputSpec, advice: tuple[Advice, Advice]) -> None:
    """Check that two inputs have different names, and keys of the same types.

    Args:
        left: The left input.
        right: The right input.
        advice: For each how the message says what to do.

    Raises:
        ConfigurationError: Both have one name.
        SchemaError: The keys differ in number or type.
    """
    if left.name == right.name:
        msg = f"both inputs are named {left.name!r}; give each a name= of its own"
        raise ConfigurationError(msg)
    if len(left.key) != len(right.key):
        msg = (
            f"input {left.name!r} has {len(left.key)} key columns ({', '.join(left.key)}), "
            f"input {right.name!r} has {len(right.key)} ({', '.join(right.key)}); "
            f"give both the same number, in the same order"
        )
        raise SchemaError(msg)
    for first, second in zip(left.key, right.key, strict=True):
        types = left.schema.field(first).type, right.schema.field(second).type
        if types[0] != types[1]:
            spelled = [type_to_ddl(dtype) for dtype in types]
            msg = (
                f"the key types differ: {first!r} of input {left.name!r} is {spelled[0]}, "
                f"{second!r} of input {right.name!r} is {spelled[1]}; "
                f"{about_pair(((advice[0], first, spelled[0]), (advice[1], second, spelled[1])))}"
            )
            raise SchemaError(msg)


def _shown(value: Any) -> str:
    """Return what was given for a column's name, in a line."""
    name, text = getattr(value, "name", None), repr(value)
    kind = f"a {type(value).__name__}"
    if isinstance(name, str):
        return f"{kind}; write its name, {name!r}"
    one = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else None
    if isinstance(one, str):
        return f"{text}; write {one!r}"
    return text if len(text) <= _LONGEST and "\n" not in text else kind
