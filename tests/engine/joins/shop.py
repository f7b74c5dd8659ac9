"""Rows of one small shop, for the tests of all joins."""

from __future__ import annotations

from typing import Any

from tests.streams import Rows, Streams, map_side, run, specs, static

SUFFIXES = ("", "_customer")


def trade(micros: int, key: str = "a", amount: float | None = 1.0) -> tuple[Any, ...]:
    return (key, 1, micros, 0, 0, amount, None)


def customer(micros: int, tier: str | None, key: str = "a", offset: int = 0) -> tuple[Any, ...]:
    return (key, 1, micros, 0, offset, tier)


def joined(join: Any, left: Rows, right: Rows) -> Rows:
    """Return the result of a static join."""
    streams = Streams(specs(), (left, right))
    return run(join.create_operator, streams, static(streams)).rows()


def take(operator: Any, left: Rows, right: Rows) -> list[Any]:
    """Let an operator take a micro-batch, and give the rows that come out at once, their times left out."""
    streams = Streams(operator.inputs, ([], []))
    emissions = operator.process(map_side(streams, (left, right), 1)[0])
    tables = [each.table.select(["customer", "amount", "tier"]) for each in emissions if each.kind == "output"]
    return [tuple(row.values()) for each in tables for row in each.to_pylist()]
