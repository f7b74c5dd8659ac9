"""Arguments that are one of a few words, or true or false: refused in the same words wherever they are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_flag", "check_word"]


def check_word(name: str, value: Any, words: Sequence[str]) -> None:
    """Refuse what is none of some words.

    Args:
        name: The argument, for the message.
        value: What was given for it.
        words: What it may be, two or more.

    Raises:
        ConfigurationError: It is none of them.

    >>> check_word("how", "inner", ["left", "inner"])
    """
    if value not in words:
        valid = f"{', '.join(map(repr, words[:-1]))} or {words[-1]!r}"
        msg = f"{name}: expected {valid}, got {value!r}{did_you_mean(str(value), words)}"
        raise ConfigurationError(msg)


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither true nor false; the arguments are those of ``check_word``.

    Raises:
        ConfigurationError: It is neither.
    """
    if not isinstance(value, bool):
        msg = f"{name}: expected True or False, got {value!r}"
        raise ConfigurationError(msg)
