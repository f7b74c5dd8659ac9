"""Kinds of damage to a JSON document; each takes the text and a generator of random numbers.

Set ``COJOIN_SEED`` to what a failure shows, and the same is drawn.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import cojoin as cj
from tests.seeds import SEED

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

__all__ = ["DAMAGES", "SEED", "changed", "told_of"]


def flipped(text: str, drawn: random.Random) -> str:
    at = drawn.randrange(len(text))
    return text[:at] + chr(ord(text[at]) ^ 1 << drawn.randrange(7)) + text[at + 1 :]


def raised(text: str, drawn: random.Random) -> str:
    document = json.loads(text)
    return json.dumps({**document, "format": document.get("format", 0) + 9})


def changed(text: str, drawn: random.Random) -> str:
    """Change a value by hand, however deep it lies, and leave the checksum."""
    document = json.loads(text)
    held, name = drawn.choice([*leaves(document.get("content", document))])
    value = held[name]
    if isinstance(value, bool):
        held[name] = not value
    elif isinstance(value, (int, float)):
        held[name] = value + 2
    else:
        held[name] = f"{value}2" if value else "2"
    return json.dumps(document)


def removed(text: str, drawn: random.Random) -> str:
    document = json.loads(text)
    held = drawn.choice([document, document.get("content", document)])
    del held[drawn.choice([*held])]
    return json.dumps(document)


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    for name in value if isinstance(value, dict) else range(len(value)):
        if isinstance(value[name], (dict, list)) and value[name]:
            yield from leaves(value[name])
        else:
            yield value, name


DAMAGES: dict[str, Callable[[str, random.Random], str]] = {
    "empty": lambda text, drawn: "",
    "cut": lambda text, drawn: text[: drawn.randrange(1, len(text))],
    "flipped": flipped,
    "a list": lambda text, drawn: "[1, 2]",
    "a number": lambda text, drawn: "7",
    "another's": lambda text, drawn: '{"format": 1, "version": "3.1"}',
    "raised": raised,
    "changed": changed,
    "removed": removed,
}


def told_of(read: Callable[[], Any]) -> tuple[Any, str | None]:
    """Return what is read, and the words of a refusal; any other error goes on."""
    try:
        return read(), None
    except cj.CheckpointError as error:
        return None, str(error)
