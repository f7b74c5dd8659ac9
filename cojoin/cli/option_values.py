"""Reads single values of the command line; an invalid value raises argparse's error, which names the option.

A value that may be a password is never quoted.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from cojoin.engine.values.arguments import milliseconds
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["count", "duration", "interval", "names", "pair", "path", "positive", "reader"]


def reader(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser that raises cojoin's errors as argparse's, which name the option."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ConfigurationError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def duration(text: str) -> str:
    """Read a duration."""
    milliseconds(text, "duration")
    return text


def interval(text: str) -> str | int | None:
    """Read the interval of snapshots: a number of batches, a duration, or None for the word ``none``."""
    if text.isdecimal():
        return positive(text)
    if text == "none":
        return None
    milliseconds(text, "checkpoint_interval")
    return text


def names(text: str) -> tuple[str, ...]:
    """Read names of columns, separated by commas."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        msg = "expected a column's name, or several separated by commas"
        raise argparse.ArgumentTypeError(msg)
    return found


def pair(text: str) -> tuple[str, str]:
    """Read a setting, ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        # The text is not quoted: it may be a password.
        msg = "expected NAME=VALUE"
        raise argparse.ArgumentTypeError(msg)
    return name.strip(), value


def path(text: str) -> str:
    """Read the path of a directory."""
    if not text.strip():
        msg = "expected the path of a directory, got none"
        raise argparse.ArgumentTypeError(msg)
    return text


def positive(text: str) -> int:
    """Read a whole number of 1 or more."""
    number = count(text)
    if number < 1:
        msg = f"expected a whole number of 1 or more, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return number


def count(text: str) -> int:
    """Read a whole number."""
    digits = text.replace(",", "").replace("_", "")
    if not digits.isdecimal():
        msg = f"expected a whole number, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(digits)
