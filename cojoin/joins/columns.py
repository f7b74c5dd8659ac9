"""The columns of a join's result, the same rule for every join.

The left's columns as they are (so the key comes once, under the left's name), then the right's without its key. The
right's event time, where its name is taken, becomes ``<right's name>_event_time``; any other equal names need
``suffixes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from cojoin.errors import ConfigurationError, SchemaError

if TYPE_CHECKING:
    from cojoin.inputs import InputSpec

__all__ = ["Suffixes", "joined_schema"]

Suffixes: TypeAlias = tuple[str, str]
"""What is appended to a name that both inputs have, left and right, such as ``("", "_customer")``."""


def joined_schema(left: InputSpec, right: InputSpec, suffixes: Suffixes | None) -> pa.Schema:
    """Give the result's columns; the right's are nullable, since a row may have no match.

    Raises:
        SchemaError: Names that collide, with what would tell them apart.
    """
    _check(suffixes)
    payload = [field for field in right.schema if field.name not in right.key]
    taken = {name.lower() for name in left.schema.names}
    keys = {name.lower() for name in left.key}
    renamed = {}
    for field in payload:
        if field.name == right.event_time and field.name.lower() in taken:
            renamed[field.name] = f"{right.name}_event_time"
    equal = {field.name.lower() for field in payload if field.name not in renamed} & taken
    if equal and suffixes is None:
        shown = ", ".join(repr(field.name) for field in payload if field.name.lower() in equal)
        msg = (
            f"inputs {left.name!r} and {right.name!r} both have {shown}; "
            f'tell them apart with suffixes=("", "_{right.name}"), or rename or drop them in one input'
        )
        raise SchemaError(msg)
    left_suffix, right_suffix = suffixes or ("", "")
    fields = [
        field.with_name(field.name + left_suffix) if field.name.lower() in equal - keys else field
        for field in left.schema
    ]
    for field in payload:
        suffix = right_suffix if field.name.lower() in equal else ""
        fields.append(pa.field(renamed.get(field.name, field.name + suffix), field.type, nullable=True))
    _refuse_duplicates(fields, left, right)
    return pa.schema(fields)


def _check(suffixes: Suffixes | None) -> None:
    if suffixes is None:
        return
    pair = isinstance(suffixes, (tuple, list)) and len(suffixes) == 2
    if not pair or not all(isinstance(suffix, str) for suffix in suffixes) or suffixes[0] == suffixes[1]:
        msg = f'suffixes: expected two different strings such as ("", "_customer"), got {suffixes!r}'
        raise ConfigurationError(msg)


def _refuse_duplicates(fields: list[pa.Field], left: InputSpec, right: InputSpec) -> None:
    seen: set[str] = set()
    for field in fields:
        if field.name.lower() in seen:
            msg = (
                f"the join of inputs {left.name!r} and {right.name!r} would have two columns {field.name!r}; "
                f"choose other suffixes=, another name= for the input, or rename the column"
            )
            raise SchemaError(msg)
        seen.add(field.name.lower())
