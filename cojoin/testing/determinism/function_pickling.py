"""The way of a user's function into another process of this machine: cloudpickle, PySpark's own where it is installed.

Only a process that ``check_determinism`` has started reads it, from a pipe that only its parent holds. Everything else
in cojoin reads no pickled bytes.
"""

from __future__ import annotations

from typing import Any

from cojoin.errors import EnvironmentSetupError
from cojoin.installed_packages import is_installed

__all__ = ["dumps", "loads"]


def dumps(value: Any) -> bytes:
    """Return a value as bytes; classes and functions of ``__main__`` by their code, as Spark sends them to workers.

    Raises:
        EnvironmentSetupError: Neither PySpark nor cloudpickle is installed.
    """
    return bytes(_cloudpickle().dumps(value))


def loads(pickled: bytes) -> Any:
    """Return the value of bytes of ``dumps``, which this process's parent has made."""
    return _cloudpickle().loads(pickled)


def _cloudpickle() -> Any:
    # Imported here since other checks and the harness never load Spark by themselves.
    if is_installed("pyspark"):
        from pyspark import cloudpickle  # noqa: PLC0415
    elif is_installed("cloudpickle"):
        import cloudpickle  # noqa: PLC0415
    else:
        msg = (
            "check_determinism also runs the function in other processes: expected the package cloudpickle, or "
            "pyspark, which has its own, found none; run: pip install cloudpickle"
        )
        raise EnvironmentSetupError(msg)
    return cloudpickle
