"""What can go wrong, as a tree.

CojoinError
├── ConfigurationError       known before a query starts; nothing was read or written
│   ├── SchemaError          a type, schema or column that does not parse, exist or agree
│   ├── CheckpointError      a checkpoint that can't be used by this query
│   └── EnvironmentSetupError    Java, or a package, is missing or too old
├── FunctionError            a user's function raised, or returned what it must not
├── CodecError               state bytes that can't be read
└── QueryFailedError         a running query ended with an error

A message says what was expected, what was got, where, and what to do.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "CheckpointError",
    "CodecError",
    "CojoinError",
    "ConfigurationError",
    "EnvironmentSetupError",
    "FunctionError",
    "QueryFailedError",
    "SchemaError",
    "did_you_mean",
]


class CojoinError(Exception):
    """The root of all errors that cojoin raises."""


class ConfigurationError(CojoinError, ValueError):
    """A query that can't be right, refused before it starts."""


class SchemaError(ConfigurationError):
    """A type, schema or column that does not parse, exist or agree with another."""


class CheckpointError(ConfigurationError):
    """A checkpoint that can't be used by this query.

    Operator action: read the message's difference; start with a new checkpoint, or with the query that wrote this one.
    """


class EnvironmentSetupError(ConfigurationError):
    """Something that must be on the machine is missing or too old."""


class FunctionError(CojoinError, RuntimeError):
    """A user's function raised, or returned what does not fit its declared output or state.

    Operator action: mend the function and start the query again; it goes on from the last good batch.
    """


class CodecError(CojoinError, ValueError):
    """State bytes that are truncated, damaged, or written by a newer version.

    Operator action: start with the version of cojoin that wrote them, or restore an older checkpoint.
    """


class QueryFailedError(CojoinError, RuntimeError):
    """A running query ended with an error; its message is the cause's own."""


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return the end of a message that proposes the names nearest to a wrong one.

    Args:
        name: What was written.
        candidates: What would have been valid.

    Returns:
        ``"; did you mean 'a' or 'b'?"``, or the whole list where nothing is near.

    >>> did_you_mean("custmer_id", ["customer_id", "amount"])
    "; did you mean 'customer_id'?"
    """
    valid = list(candidates)
    lowered = {candidate.lower(): candidate for candidate in valid}
    near = [lowered[match] for match in difflib.get_close_matches(name.lower(), list(lowered), n=3, cutoff=0.6)]
    if near:
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return f"; valid are {', '.join(map(repr, valid))}" if valid else ""
