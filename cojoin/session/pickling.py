"""Checks that a user's function can be pickled, as it must be to reach the workers. Checkpoints contain no pickle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.serializers import CloudPickleSerializer

from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from cojoin.engine.functions import KeyedCoProcessFunction

__all__ = ["check_picklable", "pickling_error"]


def check_picklable(function: KeyedCoProcessFunction) -> None:
    """Check that a function can be sent to the workers.

    Raises:
        ConfigurationError: The function can't be pickled; the message names the attribute at fault, if it is one.
    """
    error = pickling_error(function)
    if error is None:
        return
    name = type(function).__name__
    for attribute, value in vars(function).items():
        reason = pickling_error(value)
        if reason is not None:
            msg = (
                f"function {name}: its attribute {attribute!r} (a {type(value).__name__}) can't be sent to the workers"
                f": {reason}; make it in open(), which runs there, and close it in close()"
            )
            raise ConfigurationError(msg)
    msg = (
        f"function {name} can't be sent to the workers: {error}; something that its methods name can't be pickled: "
        f"make it in open(), which runs there"
    )
    raise ConfigurationError(msg)


def pickling_error(value: Any) -> str | None:
    """Return why a value can't be sent to the workers; None if it can."""
    try:
        CloudPickleSerializer().dumps(value)
    except Exception as error:  # noqa: BLE001 - pickling runs the value's own code
        return str(error.__cause__ or error)
    return None
