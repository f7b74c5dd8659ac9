"""The public surface as text, a name with its signature a line: ``python -m tests.surface`` writes it.

``tests/surface.txt`` holds it, so that a change of the surface is seen in a review. Of a source and a sink only the
type is public (``is_opaque``): a function makes it, and a join takes it.
"""

from __future__ import annotations

import dataclasses
import inspect
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cojoin.types import Sink, Source

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FILE", "MODULES", "is_opaque", "surface"]

FILE = Path(__file__).with_name("surface.txt")
MODULES = {
    "cojoin": "cojoin",
    "cojoin.sources": "cojoin.sources",
    "cojoin.sinks": "cojoin.sinks",
    "cojoin.kafka": "cojoin.kafka",
    "cojoin.testing": "cojoin.testing",
    "cojoin.plots": "cojoin.plots",
    "cojoin.errors": "cojoin.errors",
    "cojoin.types": "cojoin.types",
}
"""The public modules, and where each is."""


def is_opaque(member: Any) -> bool:
    """Return whether a public name is the type of a source or a sink, whose members are cojoin's own."""
    return isinstance(member, type) and issubclass(member, (Source, Sink))


def surface() -> str:
    """Return every public name with its signature."""
    lines: list[str] = []
    for name, place in MODULES.items():
        module = import_module(place)
        for each in sorted(module.__all__):
            member = getattr(module, each)
            if not isinstance(member, ModuleType):
                lines += _described(f"{name}.{each}", member)
    return "\n".join(lines) + "\n"


def _described(name: str, member: Any) -> Iterator[str]:
    if not isinstance(member, type):
        yield f"{name}{_signature(member)}" if callable(member) else f"{name} = {member}"
        return
    if is_opaque(member):
        yield f"class {name}, without its members"
        return
    yield f"class {name}{'' if issubclass(member, (Enum, BaseException)) else _signature(member)}"
    attributes = {field.name for field in dataclasses.fields(member)} if dataclasses.is_dataclass(member) else set()
    for base in reversed(member.__mro__):
        if base.__module__.startswith("cojoin."):
            attributes |= {each for each in vars(base) if not each.startswith("_")}
    for each in sorted(attributes):
        found = inspect.getattr_static(member, each, None)
        function = getattr(found, "__func__", found)
        is_method = inspect.isfunction(function)
        yield f"    {each}{_signature(function) if is_method else ''}"


def _signature(function: Any) -> str:
    try:
        return str(inspect.signature(function))
    except (TypeError, ValueError):
        return ""


if __name__ == "__main__":
    FILE.write_text(surface(), "utf-8")
