"""The bounds: ``bounds.json`` has for each way what its ratio was when the bound was set, and what it may be."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Bound", "excess", "record"]

_FILE = Path(__file__).with_suffix(".json")
_ROOM = 1.5


@dataclass(frozen=True)
class Bound:
    """What a way's ratio was, and what it may be.

    Attributes:
        measured: The ratio when the bound was set.
        at_most: The bound.
    """

    measured: float
    at_most: float

    @classmethod
    def of(cls, way: str) -> Bound:
        """Return the bound of a way."""
        return cls(**json.loads(_FILE.read_text())[way])


def excess(way: str, ratios: Iterator[float], tries: int = 5) -> str:
    """Return what is wrong if no try is within the bound, else nothing; a try is made only where it is needed."""
    bound, seen = Bound.of(way), []
    for _, ratio in zip(range(tries), ratios, strict=False):
        if ratio <= bound.at_most:
            return ""
        seen.append(f"{ratio:.2f}")
    said = f"{way} took {' and '.join(seen)} times as long as its floor"
    return f"{said}; it was {bound.measured} when the bound of {bound.at_most} was set"


def record(ratios: Mapping[str, float]) -> None:
    """Write bounds with room for noise, in place of those that are there."""
    bounds = {way: Bound(round(ratio, 2), round(_ROOM * ratio, 2)) for way, ratio in ratios.items()}
    _FILE.write_text(json.dumps({way: asdict(each) for way, each in bounds.items()}, indent=1) + "\n")
