"""The keys that a user names, as values of the key's columns, and a key as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.engine.values.coercion import coercer
from cojoin.engine.values.rows import Row
from cojoin.engine.values.texts import dump_json
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import ConfigurationError, FunctionError, did_you_mean
from cojoin.testing.json_values import value_to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cojoin.engine.inputs import InputSpec

__all__ = ["key_text", "named_keys", "places_of_keys"]

_SHOWN, _COMPARED = 5, 10_000


def named_keys(keys: Iterable[Any], spec: InputSpec) -> list[tuple[Any, ...]]:
    """Return the keys that a user names as tuples of values, each key once.

    Args:
        keys: The value of the key column for each key; a tuple if there are several columns.
        spec: An input whose key columns these are.

    Raises:
        ConfigurationError: There is no key, or one does not fit the key's columns.
    """
    if isinstance(keys, (str, bytes, dict)) or not hasattr(keys, "__iter__"):
        msg = f"keys: expected a list of keys, got {keys!r}; write keys=[{keys!r}]"
        raise ConfigurationError(msg)
    found = [_key(each, spec) for each in keys]
    if not found:
        msg = "keys: expected one or more keys, got none; leave keys= out to have some chosen by what they cover"
        raise ConfigurationError(msg)
    return list(dict.fromkeys(found))


def _key(key: Any, spec: InputSpec) -> tuple[Any, ...]:
    fields = [spec.schema.field(name) for name in spec.key]
    values = (key,) if len(fields) == 1 and not isinstance(key, Row) else key
    if not isinstance(values, (tuple, list)) or len(values) != len(fields):
        msg = f"keys: expected a tuple of {', '.join(spec.key)} for each key, got {key!r}"
        raise ConfigurationError(msg)
    made = []
    for field, value in zip(fields, values, strict=True):
        try:
            fits = value is not None
            made.append(coercer(field.type, "")(value))
        except FunctionError:
            fits = False
        if not fits:
            kind = type_to_ddl(field.type)
            msg = f"keys: key column {field.name!r}: expected {kind}, got {value!r} ({type(value).__name__})"
            raise ConfigurationError(msg)
    return tuple(made)


def places_of_keys(wanted: Sequence[tuple[Any, ...]], known: Sequence[tuple[Any, ...]], where: str) -> list[int]:
    """Return the places of keys among those that have rows.

    Args:
        wanted: The keys.
        known: The keys that have rows.
        where: Where these rows are, for the message.

    Raises:
        ConfigurationError: A key has no rows.
    """
    places = {key: place for place, key in enumerate(known)}
    missing = [key for key in wanted if key not in places]
    if missing:
        texts = [_shown(key) for key in missing[:_SHOWN]]
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        near = ""
        if known and len(known[0]) == 1 and isinstance(missing[0][0], str) and len(known) <= _COMPARED:
            near = did_you_mean(missing[0][0], [str(key[0]) for key in known])
        near = near if "did you mean" in near else ""
        there = f"they have {len(known):,}, such as {', '.join(_shown(key) for key in known[:_SHOWN])}"
        msg = (
            f"keys: {where} have no rows of key{'s' if len(missing) > 1 else ''} {', '.join(texts)}{more}; "
            f"{there if known else 'they have no rows at all'}{near}"
        )
        raise ConfigurationError(msg)
    return [places[key] for key in wanted]


def key_text(key: tuple[Any, ...], spec: InputSpec) -> str:
    """Return a key as text, different for different keys of one input.

    A text is its own, and other values are as in the file of captured rows. Several columns are a JSON list.
    """
    values = [value_to_json(value, spec.schema.field(name).type) for value, name in zip(key, spec.key, strict=True)]
    if len(values) > 1:
        return dump_json(values)
    plain = isinstance(values[0], str) and values[0] and not values[0].startswith('"')
    return values[0] if plain else dump_json(values[0])


def _shown(key: tuple[Any, ...]) -> str:
    return repr(key[0] if len(key) == 1 else key)
