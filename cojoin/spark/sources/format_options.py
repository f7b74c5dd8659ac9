"""The options of Spark's readers and writers, as users give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cojoin.errors import ConfigurationError

__all__ = ["as_options"]


def as_options(declared: Any, what: str) -> dict[str, str]:
    """Return options in the form that Spark takes: strings by name.

    Args:
        declared: A dict from option names to strings, numbers or booleans, or None.
        what: What the options belong to, for the message, such as ``"sinks.delta"``.

    Raises:
        ConfigurationError: The options are not such a dict.

    >>> as_options({"mergeSchema": True}, "sinks.delta")
    {'mergeSchema': 'true'}
    """
    if declared is None:
        return {}
    if not isinstance(declared, Mapping) or not all(isinstance(name, str) for name in declared):
        example = f"{{{declared!r}: 'true'}}" if isinstance(declared, str) else "{'mergeSchema': 'true'}"
        msg = f"{what}: options: expected a dict of options, such as {example}, got {type(declared).__name__}"
        raise ConfigurationError(msg)
    for name, value in declared.items():
        # Values may be secrets, so messages never show them.
        if not isinstance(value, (str, bool, int, float)):
            msg = (
                f"{what}: options: option {name!r}: expected a text, a number or a boolean, "
                f"got {type(value).__name__}; leave out what shall have its default"
            )
            raise ConfigurationError(msg)
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in declared.items()}
