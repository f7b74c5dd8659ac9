"""What a function was made with, as texts for people: the attributes whose values have a plain text, without secrets.

Plain are numbers, texts, times, enum members, named functions and classes, and lists, sets, dicts and dataclasses of
these. An attribute with any other value is left out, since its text may differ from run to run. A value is not shown if
its name or its text suggests a secret; that it has changed is shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from types import FunctionType
from typing import Any

import numpy as np

from cojoin.storage.locations import MASK, without_login
from cojoin.storage.secret_names import may_be_secret

__all__ = ["changed_arguments"]

_PLAIN = (str, int, float, Decimal, date, time, timedelta, type(None))
_MOST_CHARACTERS = 100
_BEFORE = 20
"""How much of a long text is shown before the place where two of them differ."""

_SECRET_WITHIN = re.compile(
    r"(pass|secret|token|key|cred|auth|sig)[\w.-]*[\"']?\s*[=:]|bearer |private key", re.IGNORECASE
)
"""What suggests that a text has a secret somewhere in it."""


def changed_arguments(a: Any, b: Any) -> dict[str, tuple[str, str]]:
    """Return the attributes of two functions that differ, each as text in a and in b; ``none`` where one has none.

    >>> from types import SimpleNamespace
    >>> changed_arguments(SimpleNamespace(limit=5, to="x"), SimpleNamespace(limit=6, to="x"))
    {'limit': ('5', '6')}
    >>> changed_arguments(SimpleNamespace(token="opensesame"), SimpleNamespace(token="abracadabra"))
    {'token': ('***', 'another ***')}
    """
    one, other = _attributes(a), _attributes(b)
    found = {}
    for name in dict.fromkeys((*one, *other)):
        try:
            exact = [_text(each[name], name, masks=False) if name in each else "none" for each in (one, other)]
        except RecursionError:
            continue  # a value that contains itself has no text
        if None in exact or exact[0] == exact[1]:
            continue
        shown = [_text(each[name], name, masks=True) if name in each else "none" for each in (one, other)]
        found[name] = _pair(str(shown[0]), str(shown[1]))
    return found


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
    """Return a value as text; None if it has no plain text.

    Args:
        value: The value.
        name: The name under which it is kept.
        masks: Whether secrets are masked.
    """
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
    differs = next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
    start = max(0, differs - _BEFORE)
    return _cut(one, start), _cut(other, start)


def _cut(text: str, start: int) -> str:
    stop = start + _MOST_CHARACTERS
    return f"{'...' if start else ''}{text[start:stop]}{'...' if stop < len(text) else ''}"
