from __future__ import annotations

import inspect
import re

import pytest

from cojoin import errors
from cojoin.errors import CojoinError, did_you_mean


def test_every_error_is_cojoins() -> None:
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, Exception)]
    assert all(issubclass(each, CojoinError) or each is errors.MissingRowsWarning for each in classes)


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    tree = str(errors.__doc__)
    for name in set(errors.__all__) - {"did_you_mean", "CojoinError", "MissingRowsWarning"}:
        line = next(line for line in tree.splitlines() if f"{name} " in line)
        is_nested = re.match("[│ ]", line) is not None
        assert (getattr(errors, name).__mro__[1] is errors.ConfigurationError) is is_nested


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("amuont", "; did you mean 'amount'?"),
        ("AMOUNT", "; did you mean 'amount'?"),
        ("zzz", "; valid are 'amount', 'customer_id'"),
    ],
)
def test_a_wrong_name_gets_the_nearest_or_all_valid_ones(name: str, said: str) -> None:
    assert did_you_mean(name, ["amount", "customer_id"]) == said


def test_where_nothing_is_valid_nothing_is_proposed() -> None:
    assert did_you_mean("x", []) == ""
