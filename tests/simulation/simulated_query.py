"""The two queries of a history, as the start of a query meets them: their places, inputs and plans."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa

from cojoin.engine.time.watermark_strategies import WatermarkStrategy

__all__ = ["FIRST", "SECOND", "Place", "bound_inputs", "plan_of"]


class Place(NamedTuple):
    """A query's checkpoint and outputs."""

    checkpoint: str
    output: str


FIRST, SECOND = Place("/lake/first", "/lake/output of first"), Place("/lake/second", "/lake/output of second")

_SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.string())])


class _Source:
    """One of the inputs' sources."""

    begins_with_snapshot = False
    is_in_python = False

    def __init__(self, name: str, *, has_log: bool) -> None:
        self._name, self.has_log = name, has_log

    def identity(self, *_: Any) -> dict[str, Any]:
        return {"format": "files" if self.has_log else "rows", "location": f"/lake/{self._name}"}

    recognised = identity

    def check(self, *, is_new: bool) -> None:
        del is_new

    def lost_since(self, *_: Any) -> list[str]:
        return []

    def span(self) -> None:
        return None

    def monitor(self, what: str) -> None:
        return None

    def held_back(self) -> list[str]:
        return []

    ends_with_what_is_there = True

    def newest_commit(self, *_: Any) -> None:
        return None


def _spec(name: str) -> Any:
    return SimpleNamespace(
        name=name,
        schema=_SCHEMA,
        key=("id",),
        event_time="id",
        partition=(),
        sequence=(),
        watermark=WatermarkStrategy(),
        late=None,
        null_key="reject",
        max_ahead_ms=None,
        changes=None,
        static=False,
    )


_SPECS = (_spec("left"), _spec("right"))
_SOURCES = (_Source("left", has_log=False), _Source("right", has_log=True))


def plan_of(place: Place) -> Any:
    """Return what the workers execute; the second query has other key groups."""
    return SimpleNamespace(
        operation=SimpleNamespace(describe=lambda: {"operator": "a small join"}),
        inputs=_SPECS,
        output=_SCHEMA,
        outputs={"output": (1, _SCHEMA), "rejected": (2, _SCHEMA)},
        side_outputs=(),
        key_groups=2 if place == FIRST else 3,
        needs_clock=False,
        follows_clock=False,
        time="as the slower input",
    )


def bound_inputs(session: Any) -> list[Any]:
    """Return both inputs, in a session."""
    frame = SimpleNamespace(sparkSession=session)
    return [
        SimpleNamespace(frame=frame, source=source, spec=spec, is_streaming=True)
        for source, spec in zip(_SOURCES, _SPECS, strict=True)
    ]
