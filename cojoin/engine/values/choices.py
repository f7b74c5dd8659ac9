"""Checks of arguments that must be one of a few words, or True or False; all are refused in the same words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_flag", "check_word"]


def check_word(name: str, value: Any, words: Sequence[str]) -> None:
    """Raise an error unless a value is one of some words.

    Args:
        name: The argument's name, for the message.
        value: The argument's value.
        words: The valid words, two or more.

    Raises:
        ConfigurationError: The value is none of them.

    >>> check_word("how", "inner", ["left", "inner"])
    """
    if value not in words:
        valid = f"{', '.join(map(repr, words[:-1]))} or {words[-1]!r}"
        near = did_you_mean(str(value), words)
        # The message has all valid words already.
        msg = f"{name}: expected {valid}, got {value!r}{near if near.endswith('?') else ''}"
        raise ConfigurationError(msg)


def check_flag(name: str, value: Any) -> None:
    """Raise an error unless a value is a bool; the arguments are those of ``check_word``.

    Raises:
        ConfigurationError: The value is neither True nor False.
    """
    if not isinstance(value, bool):
        msg = f"{name}: expected True or False, got {value!r}"
        raise ConfigurationError(msg)
