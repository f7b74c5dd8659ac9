"""The two queries of a history, as the start of a query meets them: their places, inputs and plans."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from cojoin.engine.input_spec import InputSpec
from cojoin.engine.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    def __init__(self, name: str, *, has_log: bool) -> None:
        self.name, self.has_log = name, has_log

    def identity(self, *_: Any) -> dict[str, Any]:
        return {"format": "files" if self.has_log else "rows", "location": f"/lake/{self.name}"}

    recognised = identity

    def is_known_as(self, _: Any, known: Mapping[str, Any]) -> bool:
        return {name: known.get(name) for name in self.identity()} == self.identity()

    def check(self, *, is_new: bool) -> list[str]:
        del is_new
        return []

    def lost_since(self, *_: Any) -> list[str]:
        return []

    def monitor(self, what: str) -> None:
        return None

    def look_ahead(self) -> tuple[None, list[str]]:
        return None, []

    ends_with_present_rows = True

    def newest_commit(self, *_: Any) -> None:
        return None


def _spec(name: str) -> InputSpec:
    return InputSpec(name, _SCHEMA, ("id",), "id")


_SOURCES = (_Source("left", has_log=False), _Source("right", has_log=True))


class _SmallJoin:
    """A join that is described, and executed elsewhere (``simulated_join``)."""

    def describe(self) -> dict[str, Any]:
        return {"operator": "a small join"}

    def output_schema(self, left: InputSpec, right: InputSpec) -> pa.Schema:
        del left, right
        return _SCHEMA

    def create_operator(self, *_: Any) -> Any:
        raise NotImplementedError


class _SmallPlan(Plan):
    """The plan of that join, whose rejected rows are rows as all others."""

    @property
    def outputs(self) -> dict[str, tuple[int, pa.Schema]]:
        return {"output": (1, _SCHEMA), "rejected": (2, _SCHEMA)}


def plan_of(place: Place) -> Plan:
    """Return what the workers execute; the second query has other key groups."""
    return _SmallPlan(_SmallJoin(), _spec("left"), _spec("right"), 2 if place == FIRST else 3)


def bound_inputs(session: Any) -> list[Any]:
    """Return both inputs, in a session."""
    frame = SimpleNamespace(sparkSession=session)
    return [
        SimpleNamespace(frame=frame, source=source, spec=_spec(source.name), is_streaming=True, reads_by_python=False)
        for source in _SOURCES
    ]
