"""The examples in docstrings run."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

from tests.test_layers import ENGINE, MODULES

WITH_EXAMPLES = [module for module, path in MODULES.items() if "    >>>" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("module", [each for each in WITH_EXAMPLES if each in ENGINE])
def test_the_examples_of_a_module_of_the_engine_run(module: str) -> None:
    assert doctest.testmod(import_module(module)).failed == 0


@pytest.mark.push
def test_the_examples_of_all_other_modules_run() -> None:
    others = [module for module in WITH_EXAMPLES if module not in ENGINE]
    assert {module: result for module in others if (result := doctest.testmod(import_module(module))).failed} == {}


def test_there_are_examples() -> None:
    assert len(WITH_EXAMPLES) > 50
