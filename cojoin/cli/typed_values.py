"""Reads single values of the command line; an invalid value raises argparse's error, which names the option.

A value that may be a password is never quoted.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from cojoin.cli.typed_locations import ARCHIVES, SINKS, Location
from cojoin.engine.time.durations import milliseconds
from cojoin.engine.values.types import parse_schema
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cojoin.kafka.points import Bound

__all__ = [
    "archive",
    "bound",
    "count",
    "duration",
    "duration_or_none",
    "interval",
    "key_groups",
    "names",
    "pair",
    "path",
    "positive",
    "reader",
    "schema",
    "sink",
    "suffixes",
]

_MOST_KEY_GROUPS = 32_768


def reader(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser that raises cojoin's errors as argparse's, which name the option."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ConfigurationError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def sink(text: str) -> Location:
    """Read the location of an output."""
    return Location.parse(text, SINKS)


def archive(text: str) -> Location:
    """Read the location of a topic's older records."""
    return Location.parse(text, ARCHIVES)


def bound(text: str) -> Bound:
    """Read where reading begins or ends in topics: a word, a time, an offset, or JSON by topic and partition."""
    if text.isdecimal():
        return int(text)
    if not text.startswith("{"):
        return text
    try:
        topics = json.loads(text)
    except ValueError:
        msg = f"""expected JSON such as '{{"trades": {{"0": 1200, "1": "latest"}}}}', got {text!r}"""
        raise argparse.ArgumentTypeError(msg) from None
    return {topic: _by_number(each) if isinstance(each, dict) else each for topic, each in topics.items()}


def duration(text: str) -> str:
    """Read a duration."""
    milliseconds(text, "duration")
    return text


def duration_or_none(text: str) -> str:
    """Read a duration, or the word ``none``, which stays a text, since None means that nothing was typed."""
    return text if text == "none" else duration(text)


def interval(text: str) -> str | int | None:
    """Read the interval of snapshots: a number of batches, a duration, or None for the word ``none``."""
    if text.isdecimal():
        return positive(text)
    if text == "none":
        return None
    milliseconds(text, "checkpoint_interval")
    return text


def schema(text: str) -> str:
    """Read columns as DDL."""
    parse_schema(text, what="schema")
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


def suffixes(text: str) -> tuple[str, str]:
    """Read the suffixes that distinguish equal column names, separated by a comma."""
    left, comma, right = text.partition(",")
    if not comma or left == right:
        msg = f"expected two different suffixes separated by a comma, such as ',_customer', got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return left, right


def key_groups(text: str) -> int:
    """Read the number of key groups."""
    number = positive(text)
    if number > _MOST_KEY_GROUPS:
        msg = f"expected a whole number from 1 to {_MOST_KEY_GROUPS}, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return number


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


def _by_number(partitions: dict[str, Any]) -> dict[Any, Any]:
    """Return partitions by number, since names in JSON are texts; the check of the range refuses other names."""
    return {int(number) if number.isdecimal() else number: each for number, each in partitions.items()}
