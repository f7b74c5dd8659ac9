"""The examples in the engine's docstrings run."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

from tests.test_layers import ENGINE


@pytest.mark.parametrize("module", ENGINE)
def test_the_examples_of_a_module_hold(module: str) -> None:
    assert doctest.testmod(import_module(module)).failed == 0


def test_there_are_examples() -> None:
    found = [module for module in ENGINE if ">>>" in str(import_module(module).__loader__.get_source(module))]  # type: ignore[union-attr]
    assert len(found) > 10
