"""Watermark strategies as JSON values and back: with which one a checkpoint's last batch was planned.

A description is data. A user's own generator is code, of which a checkpoint keeps only the class and the text, so its
strategy is made again from the query's own, if that has the same generator.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cojoin.engine.time.idleness import Idleness
from cojoin.engine.time.watermark_strategies import (
    BoundedOutOfOrderness,
    ClockLag,
    NoWatermarks,
    Punctuated,
    WatermarkStrategy,
)
from cojoin.engine.values.arguments import duration_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.engine.time.watermark_strategies import WatermarkGenerator

__all__ = [
    "StrategyIsCodeError",
    "as_written",
    "describe_generator",
    "describe_strategy",
    "described_strategy",
    "marks_of",
]

_OWN = "own"
_GENERATORS: dict[str, Any] = {
    "bounded_out_of_orderness": BoundedOutOfOrderness,
    "clock_lag": ClockLag,
    "punctuated": Punctuated,
    "no_watermarks": NoWatermarks,
}
"""cojoin's own generators by the names that a description has; the fields of each are its arguments."""

_NAMES = {made: name for name, made in _GENERATORS.items()}


class StrategyIsCodeError(Exception):
    """The described strategy has a user's own generator, which the query no longer has; the argument is its text."""


def describe_generator(generator: WatermarkGenerator) -> dict[str, Any]:
    """Return a generator as JSON values.

    >>> describe_generator(BoundedOutOfOrderness(5000))
    {'generator': 'bounded_out_of_orderness', 'out_of_orderness_ms': 5000}
    """
    name = _NAMES.get(type(generator))
    if name is not None:
        return {"generator": name, **vars(generator)}
    kind = type(generator)
    return {"generator": _OWN, "class": f"{kind.__module__}.{kind.__qualname__}", "text": _own_text(generator)}


def describe_strategy(strategy: WatermarkStrategy) -> dict[str, Any]:
    """Return a strategy as JSON values.

    >>> describe_strategy(WatermarkStrategy.for_monotonous_timestamps().with_idleness("1 minute"))["idleness"]
    {'timeout_ms': 60000, 'returning': 'hold', 'even_if_silent': False}
    """
    idleness = strategy.idleness
    return {**describe_generator(strategy.generator), "idleness": None if idleness is None else dict(vars(idleness))}


def described_strategy(described: Mapping[str, Any], present: WatermarkStrategy) -> WatermarkStrategy:
    """Return the strategy that a description is of.

    Args:
        described: What ``describe_strategy`` returned.
        present: The query's own strategy, which gives a generator that is a user's code.

    Raises:
        StrategyIsCodeError: The generator is a user's code, and not that of the query's own strategy.

    >>> strategy = WatermarkStrategy.for_punctuated("mark").with_idleness("1 minute")
    >>> described_strategy(describe_strategy(strategy), WatermarkStrategy.no_watermarks()) == strategy
    True
    """
    values = dict(described)
    idleness = values.pop("idleness", None)
    idle = None if idleness is None else Idleness(**idleness)
    if values == describe_generator(present.generator):
        return replace(present, idleness=idle)
    name = values.pop("generator")
    if name == _OWN:
        written = f"for_generator({values['text']})"
        raise StrategyIsCodeError(written)
    return WatermarkStrategy(_GENERATORS[name](**values), idle)


def as_written(strategy: WatermarkStrategy) -> str:
    """Return the calls that make a strategy, as a user writes them.

    >>> as_written(WatermarkStrategy.for_bounded_out_of_orderness("5 s").with_idleness("60 s", even_if_silent=True))
    "for_bounded_out_of_orderness('5 seconds').with_idleness('1 minute', even_if_silent=True)"
    """
    generator, idle = strategy.generator, strategy.idleness
    if type(generator) not in _NAMES:
        made = f"for_generator({_own_text(generator)})"
    elif isinstance(generator, BoundedOutOfOrderness):
        bound = generator.out_of_orderness_ms
        made = f"for_bounded_out_of_orderness({duration_text(bound)!r})" if bound else "for_monotonous_timestamps()"
    elif isinstance(generator, ClockLag):
        made = f"for_clock_lag({duration_text(generator.lag_ms)!r})"
    else:
        made = f"for_punctuated({generator.column!r})" if isinstance(generator, Punctuated) else "no_watermarks()"
    if idle is None:
        return made
    returning = "" if idle.returning == "hold" else f", returning={idle.returning!r}"
    silent = ", even_if_silent=True" if idle.even_if_silent else ""
    return f"{made}.with_idleness({duration_text(idle.timeout_ms)!r}{returning}{silent})"


def marks_of(described: Mapping[str, Any]) -> str:
    """Return whose marks a described generator reads; those of one are of no use to another.

    Whatever the bound, marks of bounded out-of-orderness are event times. Those of a user's own are its class's.
    """
    name = str(described["generator"])
    return f"{name} {described.get('column', '')}{described.get('class', '')}"


def _own_text(generator: WatermarkGenerator) -> str:
    """Return a user's generator as a text that is the same in each process, and another one for other attributes."""
    text = repr(generator)
    if type(generator).__repr__ is object.__repr__:
        values = sorted(getattr(generator, "__dict__", {}).items())
        attributes = ", ".join(f"{name}={value!r}" for name, value in values)
        text = f"{type(generator).__qualname__.rpartition('.')[2]}({attributes})"
    return re.sub(r" at 0x[0-9a-f]+", "", text)
