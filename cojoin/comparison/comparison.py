"""Two versions of a join or function over the same inputs: their outputs, and the settings in which they differ.

Rows of both versions are the same row if they have the same values in the columns that identify a row: the left row's,
and in pairs the right row's time.

A function's settings are the attributes whose values have a plain text: numbers, texts, times, enum members, named
functions and classes, and lists, sets, dicts and dataclasses of these. The text of any other value may differ from run
to run, so its attribute is left out. A value is not shown if its name or its text suggests a secret; only that it has
changed is shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.joins.output_columns import output_names
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.plan import describe_operation, describe_watermark
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import ConfigurationError, SchemaError, did_you_mean
from cojoin.storage.locations import MASK, may_be_secret, without_login

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.plan import Plan


_JOINS = (AsofJoin, TemporalJoin, IntervalJoin)
_SHOWN = 8


@dataclass(frozen=True)
class ComparedOutput:
    """One output of both versions: its name in ``Plan.outputs``, and the columns that are compared, with their types.

    The identity are the columns by which a row of one version is the other version of a row; none compares whole rows.
    """

    name: str
    columns: pa.Schema
    identity: tuple[str, ...]

    @property
    def differing(self) -> pa.Schema:
        """The columns of differing rows: the row in each version, the columns that differ, and the explanation."""
        row = pa.struct([field.with_nullable(True) for field in self.columns])
        return pa.schema([("a", row), ("b", row), ("differs", pa.list_(pa.string())), ("explanation", pa.string())])


@dataclass(frozen=True)
class Comparison:
    """Two versions of a join or function, the outputs to compare, and the number of rows of each kind to explain."""

    a: Plan
    b: Plan
    outputs: tuple[ComparedOutput, ...]
    examples: int

    @classmethod
    def of(
        cls, a: Plan, b: Plan, output: Any, keys: Sequence[str] | None, columns: Sequence[str] | None, examples: int
    ) -> Comparison:
        """Return the comparison of two plans, checked; see ``cojoin.diff`` for the arguments."""
        if type(examples) is not int or examples < 0:
            msg = f"examples: expected a whole number of 0 or more, got {examples!r}"
            raise ConfigurationError(msg)
        names = {"keys": _names(keys, "keys"), "columns": _names(columns, "columns")}
        for one, other in zip(a.inputs, b.inputs, strict=True):
            check_inputs(one, other)
        if isinstance(output, str) and output == "all":
            _check_side_outputs(a, b)
            wanted = list(a.outputs)
        else:
            wanted = [a.output_name(output)]
            b.output_name(output)
        main = wanted[0]
        return cls(a, b, tuple(_compared(a, b, each, **names, is_main=each == main) for each in wanted), examples)


def _names(value: Any, argument: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else ()
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        msg = f"{argument}: expected one or more different columns, such as ['trade_id'], got {value!r}"
        raise ConfigurationError(msg)
    return names


def check_inputs(a: InputSpec, b: InputSpec) -> None:
    """Check that an input of version a and that of version b have the same columns and the same key."""
    differences = list(_schema_differences(a.schema, b.schema))
    if differences:
        msg = (
            f"input {a.name!r} of a and input {b.name!r} of b have different columns: {_listed(differences)}; diff "
            f"compares two versions over the same history, so connect both to the same inputs"
        )
        raise SchemaError(msg)
    if a.key != b.key:
        msg = (
            f"input {a.name!r} has the key {', '.join(a.key) or '()'} in a and {', '.join(b.key) or '()'} in b; diff "
            f"compares two versions with the same keys"
        )
        raise SchemaError(msg)


def _check_side_outputs(a: Plan, b: Plan) -> None:
    for which, names, others in (("a", a.outputs, b.outputs), ("b", b.outputs, a.outputs)):
        for name in names:
            if name not in others:
                msg = (
                    f"side output {name!r} is only in {which}; declare it in both, or compare one output, such as "
                    f"output='output'"
                )
                raise SchemaError(msg)


def _compared(
    a: Plan, b: Plan, name: str, *, keys: tuple[str, ...] | None, columns: tuple[str, ...] | None, is_main: bool
) -> ComparedOutput:
    one, other = a.outputs[name][1], b.outputs[name][1]
    identity = _identity(a, b, name) if keys is None else keys
    if not is_main:
        # The names are those of the first output; another has them or is compared as it is.
        columns = None
        identity = identity if set(identity) <= set(one.names) else ()
    chosen = None if columns is None else tuple(dict.fromkeys((*identity, *columns)))
    for argument, wanted in (("keys", keys if is_main else None), ("columns", columns)):
        for column in wanted or ():
            for which, schema in (("a", one), ("b", other)):
                if column not in schema.names:
                    near = did_you_mean(column, schema.names)
                    msg = f"{argument}: {_label(name)} of {which} has no column {column!r}{near}"
                    raise SchemaError(msg)
    compared = one if chosen is None else pa.schema([one.field(each) for each in chosen])
    against = other if chosen is None else pa.schema([other.field(each) for each in chosen])
    differences = list(_schema_differences(compared, against))
    if differences:
        common = [each.name for each in one if each.name in other.names and other.field(each.name).type == each.type]
        cure = _cure(common, name, identity, columns, is_main=is_main)
        msg = f"{_label(name)} has different columns in a and b: {_listed(differences)}; {cure}"
        raise SchemaError(msg)
    return ComparedOutput(name, compared, identity)


def _cure(
    common: list[str], name: str, identity: tuple[str, ...], columns: tuple[str, ...] | None, *, is_main: bool
) -> str:
    """Return the advice about an output whose columns differ, besides those in common."""
    if misfits := [each for each in identity if each not in common]:
        return f"cast {_quoted(misfits)} in one version, or identify rows by other columns, with keys=[...]"
    if not common:
        return "they have none in common"
    if columns is None:
        alone = "those that both have: " if is_main else f"it alone, by those that both have: output={name!r}, "
        return f"compare {alone}columns={common!r}"
    fitting = [each for each in columns if each in common] or common
    misfits = [each for each in columns if each not in common]
    return f"cast {_quoted(misfits)} in one version, or compare others, such as columns={fitting!r}"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _identity(a: Plan, b: Plan, name: str) -> tuple[str, ...]:
    """Return the columns of a join's output that identify a row: the left row's, and in pairs the right's time."""
    if name != OUTPUT or not isinstance(a.operation, _JOINS) or not isinstance(b.operation, _JOINS):
        return ()
    one, other = _identifying(a), _identifying(b)
    shared = tuple(column for column in one if column in other)
    return shared if set(output_names(a)[0].values()) <= set(shared) else ()


def _identifying(plan: Plan) -> tuple[str, ...]:
    of_left, of_right = output_names(plan)
    left, time = tuple(of_left.values()), of_right.get(str(plan.right.event_time))
    return (*left, time) if isinstance(plan.operation, IntervalJoin) and time is not None else left


def _schema_differences(one: pa.Schema, other: pa.Schema) -> Iterator[str]:
    for field in one:
        if field.name not in other.names:
            yield f"{field.name!r} is only in a"
        elif field.type != (other_type := other.field(field.name).type):
            yield f"{field.name!r} is {type_to_ddl(field.type)} in a and {type_to_ddl(other_type)} in b"
    yield from (f"{field.name!r} is only in b" for field in other if field.name not in one.names)


def _listed(differences: Sequence[str]) -> str:
    more = f", and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return ", ".join(differences[:_SHOWN]) + more


def _label(name: str) -> str:
    return {OUTPUT: "the main output", REJECTED: "the rejected output"}.get(name, f"side output {name!r}")


def changed_settings(a: Plan, b: Plan) -> dict[str, tuple[str, str]]:
    """Return the settings of the operations and inputs that differ, each as text in a and in b.

    Of functions these are the attributes with which they were made; what their code does is not compared.
    """
    both = [_settings(plan) for plan in (a, b)]
    names = dict.fromkeys(name for each in both for name in each)
    pairs = {name: (both[0].get(name, "none"), both[1].get(name, "none")) for name in names}
    changed = {name: (one, other) for name, (one, other) in pairs.items() if one != other}
    if isinstance(a.operation, KeyedCoProcess) and isinstance(b.operation, KeyedCoProcess):
        of_function = changed_arguments(a.operation.function, b.operation.function)
        changed |= {f"function's {name}": pair for name, pair in of_function.items()}
    return changed


def _settings(plan: Plan) -> dict[str, str]:
    settings = {"operation": describe_operation(plan.operation)}
    for side, spec in zip(("left", "right"), plan.inputs, strict=True):
        own = {
            "name": spec.name,
            "event_time": spec.event_time or "none",
            **(
                {name: str(value) for name, value in spec.declared_axis.describe().items()}
                if spec.declared_axis
                else {}
            ),
            **({} if spec.known is None else {"known": spec.known.spelled()}),
            "partition": ", ".join(spec.partition) or "none",
            "sequence": ", ".join(spec.sequence) or "none",
            "watermark": describe_watermark(spec.watermark),
            "late": spec.late or "the default",
            "null_key": spec.null_key,
        }
        settings |= {f"{side} input's {name}": value for name, value in own.items()}
    return settings


_PLAIN = (str, int, float, Decimal, date, time, timedelta, type(None))
_MOST_CHARACTERS = 100
_BEFORE = 20
"""The most characters of a long text that are shown before its difference from another one."""

_SECRET_WITHIN = re.compile(
    r"(pass|secret|token|key|cred|auth|sig)[\w.-]*[\"']?\s*[=:]|bearer |private key", re.IGNORECASE
)
"""Matches texts that may have a secret in them."""


def changed_arguments(a: Any, b: Any) -> dict[str, tuple[str, str]]:
    """Return the attributes of two functions that differ, each as text in a and in b; ``none`` where one has none.

    >>> from types import SimpleNamespace
    >>> changed_arguments(SimpleNamespace(limit=5, to="x"), SimpleNamespace(limit=6, to="x"))
    {'limit': ('5', '6')}
    >>> changed_arguments(SimpleNamespace(token="opensesame"), SimpleNamespace(token="abracadabra"))
    {'token': ('***', 'another ***')}
    """
    one, other = _attributes(a), _attributes(b)
    changed = {}
    for name in dict.fromkeys((*one, *other)):
        try:
            exact = [_text(each[name], name, masks=False) if name in each else "none" for each in (one, other)]
        except RecursionError:
            continue  # a value that contains itself has no text
        if None in exact or exact[0] == exact[1]:
            continue
        shown = [_text(each[name], name, masks=True) if name in each else "none" for each in (one, other)]
        changed[name] = _pair(str(shown[0]), str(shown[1]))
    return changed


def _attributes(function: Any) -> dict[str, Any]:
    """Return the attributes of an object; of a dataclass without the fields that its ``repr`` leaves out."""
    hidden = {field.name for field in fields(function) if not field.repr} if is_dataclass(function) else set()
    slots = [name for kind in type(function).__mro__ for name in _slots(kind) if hasattr(function, name)]
    own = {**{name: getattr(function, name) for name in slots}, **getattr(function, "__dict__", {})}
    return {name: value for name, value in own.items() if name not in hidden}


def _slots(kind: type) -> tuple[str, ...]:
    names = vars(kind).get("__slots__", ())
    named = (names,) if isinstance(names, str) else tuple(names)
    return tuple(name for name in named if name not in ("__dict__", "__weakref__"))


def _text(value: Any, name: str, *, masks: bool) -> str | None:
    """Return a value as text, masked if its name or text suggests a secret; None if it has no plain text."""
    value = value.item() if isinstance(value, np.generic) else value
    text = _plain(value, masks=masks)
    if text is None or not masks:
        return text
    is_secret = value is not None and (may_be_secret(name) or _SECRET_WITHIN.search(text) is not None)
    return MASK if is_secret else without_login(text)


def _plain(value: Any, *, masks: bool) -> str | None:  # noqa: PLR0911 - one for each kind
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, FunctionType) or (isinstance(value, type) and not is_dataclass(value)):
        return None if "<" in value.__qualname__ else f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, _PLAIN):
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _named(type(value).__name__ + "({})", "{}={}", _attributes(value).items(), masks=masks)
    if isinstance(value, Mapping):
        items = [(key, item) for key, item in value.items() if _plain(key, masks=False) is not None]
        return None if len(items) < len(value) else _named("{{{}}}", "{!r}: {}", items, masks=masks)
    shape = next((shape for kind, shape in _SHAPES.items() if isinstance(value, kind)), None)
    if shape is None:
        return None
    parts = [_text(each, "", masks=masks) for each in value]
    known = [each for each in parts if each is not None]
    in_order = sorted(known) if isinstance(value, (set, frozenset)) else known
    return None if len(known) < len(parts) else shape.format(", ".join(in_order))


_SHAPES = {list: "[{}]", tuple: "({})", set: "{{{}}}", frozenset: "{{{}}}"}


def _named(shape: str, item: str, values: Any, *, masks: bool) -> str | None:
    parts = [(name, _text(each, str(name), masks=masks)) for name, each in values]
    if any(text is None for _, text in parts):
        return None
    return shape.format(", ".join(item.format(name, text) for name, text in parts))


def _pair(one: str, other: str) -> tuple[str, str]:
    if one == other:
        return one, f"another {other}"
    if max(len(one), len(other)) <= _MOST_CHARACTERS:
        return one, other
    differs = next((position for position, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
    start = max(0, differs - _BEFORE)
    return _cut(one, start), _cut(other, start)


def _cut(text: str, start: int) -> str:
    stop = start + _MOST_CHARACTERS
    return f"{'...' if start else ''}{text[start:stop]}{'...' if stop < len(text) else ''}"
