"""The errors that cojoin raises, as a tree.

CojoinError
├── ConfigurationError       found before a query starts; nothing was read or written
│   ├── SchemaError          a type, schema or column that does not parse, exist or agree
│   ├── CheckpointError      a checkpoint that can't be used by this query
│   └── EnvironmentSetupError    Java, or a package, is missing or too old
├── FunctionError            a user's function raised an error, or returned an invalid value
├── CodecError               state bytes that can't be read
└── QueryFailedError         a running query ended with an error

Each message says what was expected, what was found, where, and what to do. ``MissingRowsWarning`` is the category of
the warnings that rows are missing from a result.
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
    "MissingRowsWarning",
    "QueryFailedError",
    "SchemaError",
    "did_you_mean",
]


class CojoinError(Exception):
    """The root of all errors that cojoin raises."""


class ConfigurationError(CojoinError, ValueError):
    """A configuration that is rejected before the query starts."""


class SchemaError(ConfigurationError):
    """A type, schema or column that does not parse, exist or agree with another."""


class CheckpointError(ConfigurationError):
    """A checkpoint that can't be used by this query.

    Operator action: read in the message what differs; start with a new checkpoint, or with the query that wrote this
    one.
    """


class EnvironmentSetupError(ConfigurationError):
    """Something that must be installed on the machine is missing or too old."""


class FunctionError(CojoinError, RuntimeError):
    """A user's function raised an error, or returned a value that does not fit its declared output or state.

    A static run and the harness raise it. A query that was started raises ``QueryFailedError`` with its message.

    Operator action: fix the function and start the query again; it resumes after the last good batch.
    """


class MissingRowsWarning(UserWarning):
    """Rows of an input were rejected or can't match, or its source passes over them, so a result lacks them.

    Each message says of which input, why and how many, and where they are. To have none of them:
    ``warnings.simplefilter("ignore", cojoin.MissingRowsWarning)``.
    """


class CodecError(CojoinError, ValueError):
    """State bytes that are truncated, damaged, or written by a newer version.

    Operator action: start with the version of cojoin that wrote them, or restore an older checkpoint.
    """


class QueryFailedError(CojoinError, RuntimeError):
    """A running query ended with an error; the message is that of the cause."""


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return the end of an error message that suggests the valid names nearest to a wrong one.

    Args:
        name: The wrong name.
        candidates: The valid names.

    Returns:
        ``"; did you mean 'a' or 'b'?"``, or the list of all valid names where none is near; empty where there are none.

    >>> did_you_mean("custmer_id", ["customer_id", "amount"])
    "; did you mean 'customer_id'?"
    """
    valid = list(candidates)
    lowered = {candidate.lower(): candidate for candidate in valid}
    near = [lowered[match] for match in difflib.get_close_matches(name.lower(), list(lowered), n=3, cutoff=0.6)]
    if near:
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return f"; valid are {', '.join(map(repr, valid))}" if valid else ""
