"""The docstrings' examples run, and the package needs no Spark."""

from __future__ import annotations

import doctest
import time
from importlib import import_module
from pathlib import Path

import pytest

import cojoin.testing
from tests.testing.functions import enrich

ROOT = Path(cojoin.testing.__file__).parent
MODULES = [f"cojoin.testing.{path.stem}" for path in sorted(ROOT.glob("*.py")) if path.stem != "__init__"]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_hold(module: str) -> None:
    assert doctest.testmod(import_module(module)).failed == 0


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    assert sorted(cojoin.testing.__all__) == cojoin.testing.__all__
    kinds = [getattr(cojoin.testing, name) for name in cojoin.testing.__all__]
    assert all(kind.__doc__ for kind in kinds if isinstance(kind, type))


def test_a_call_takes_milliseconds() -> None:
    harness = enrich()
    started = time.perf_counter()
    for number in range(50):
        harness.process_element1(("a", number, 1.0), number)
    assert (time.perf_counter() - started) / 50 < 0.1
