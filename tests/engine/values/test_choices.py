"""Arguments that are one of a few words, or true or false."""

from __future__ import annotations

from typing import Any

import pytest

from cojoin.engine.values.choices import check_flag, check_word
from tests.spark.refused import refused


@pytest.mark.parametrize(
    ("words", "given", "told"),
    [
        (("left", "inner"), "inne", "how: expected 'left' or 'inner', got 'inne'; did you mean 'inner'?"),
        (("a", "b", "c"), None, "how: expected 'a', 'b' or 'c', got None"),
    ],
)
def test_a_word_is_one_of_those_that_there_are(words: tuple[str, ...], given: Any, told: str) -> None:
    for word in words:
        check_word("how", word, words)
    with refused(told):
        check_word("how", given, words)


@pytest.mark.parametrize("given", [1, 0, None, "true"])
def test_a_flag_is_true_or_false(given: Any) -> None:
    check_flag("drain", True)
    with refused(f"drain: expected True or False, got {given!r}"):
        check_flag("drain", given)
