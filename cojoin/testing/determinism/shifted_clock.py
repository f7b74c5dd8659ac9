"""A clock that can be shifted or stopped, in a process that runs nothing but a check of determinism.

``install`` replaces the functions of ``time``, and ``now``, ``utcnow`` and ``today`` of ``datetime``, from which pandas
takes its time too. A class of Python's own refuses new attributes, so they are put into its dictionary; an interpreter
that refuses this too keeps ``datetime`` as it is. The clocks of other libraries written in C, such as
``numpy.datetime64("now")``, are not shifted; they differ when a run is repeated.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Clock", "install", "set_clock"]

_TIME, _MONOTONIC, _PERFORMANCE = time.time, time.monotonic, time.perf_counter
_LOCAL, _UTC, _TEXT, _FORMAT = time.localtime, time.gmtime, time.ctime, time.strftime
_URANDOM = os.urandom
_NANOS = 1_000_000_000
_SEED = 7


@dataclass(frozen=True)
class Clock:
    """What a run sees of the clock and of chance.

    Attributes:
        at: The time at which the run begins, in epoch seconds; None is the time as it is.
        stands_still: Whether the clock does not go on from there.
        seeds_random: Whether ``random``, ``numpy.random`` and ``os.urandom`` begin with the same seed.
    """

    at: int | None = None
    stands_still: bool = False
    seeds_random: bool = False


_current = Clock()
_shift = 0.0


def set_clock(clock: Clock) -> None:
    """Set what the next run sees."""
    global _current, _shift
    _current, _shift = clock, 0.0 if clock.at is None else clock.at - _TIME()
    os.urandom = random.randbytes if clock.seeds_random else _URANDOM
    if clock.seeds_random:
        random.seed(_SEED)
        np.random.seed(_SEED)  # noqa: NPY002 - the generator that functions use without saying so


def install() -> None:
    """Replace the clocks of this process by ones that ``set_clock`` moves; modules imported before may keep theirs."""
    replaced: dict[str, Callable[..., Any]] = {
        "time": _now,
        "time_ns": lambda: round(_now() * _NANOS),
        "monotonic": lambda: _ticks(_MONOTONIC),
        "monotonic_ns": lambda: round(_ticks(_MONOTONIC) * _NANOS),
        "perf_counter": lambda: _ticks(_PERFORMANCE),
        "perf_counter_ns": lambda: round(_ticks(_PERFORMANCE) * _NANOS),
        "localtime": lambda seconds=None: _LOCAL(_now() if seconds is None else seconds),
        "gmtime": lambda seconds=None: _UTC(_now() if seconds is None else seconds),
        "ctime": lambda seconds=None: _TEXT(_now() if seconds is None else seconds),
        "strftime": lambda pattern, moment=None: _FORMAT(pattern, _LOCAL(_now()) if moment is None else moment),
    }
    for name, function in replaced.items():
        setattr(time, name, function)
    attributes: Any = gc.get_referents(datetime.__dict__)[0]
    with suppress(TypeError, AttributeError):
        attributes["now"] = classmethod(lambda cls, tz=None: cls.fromtimestamp(_now(), tz))
        attributes["utcnow"] = classmethod(lambda cls: cls.fromtimestamp(_now(), timezone.utc).replace(tzinfo=None))
        attributes["today"] = classmethod(lambda cls: cls.fromtimestamp(_now()))
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))


def _now() -> float:
    if _current.stands_still and _current.at is not None:
        return float(_current.at)
    return _TIME() + _shift


def _ticks(real: Callable[[], float]) -> float:
    return 1.0 if _current.stands_still else real()
