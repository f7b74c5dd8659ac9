"""The kinds of Spark's sessions and DataFrames: those with a JVM in this process, and those of Spark Connect."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from cojoin.session.classic_session import ClassicSession
from cojoin.session.connect_session import ConnectSession

if TYPE_CHECKING:
    from cojoin.session.session_adapter import SessionAdapter

__all__ = ["active_session", "adapter_of", "is_frame"]

_CONNECT = "pyspark.sql.connect"


def adapter_of(spark: SparkSession) -> SessionAdapter:
    """Return the adapter of a session.

    Args:
        spark: The session, of either kind; for anything else, the adapter's ``check`` raises an error.
    """
    return ConnectSession(spark) if _is_of_connect(spark) else ClassicSession(spark)


def active_session() -> Any:
    """Return the active session of this thread, of either kind; None if there is none."""
    found = SparkSession.getActiveSession()
    if found is None and f"{_CONNECT}.session" in sys.modules:
        found = sys.modules[f"{_CONNECT}.session"].SparkSession.getActiveSession()
    return found


def is_frame(value: Any) -> bool:
    """Return whether a value is a DataFrame of Spark's, of either kind."""
    return isinstance(value, DataFrame) or _is_of_connect(value)


def _is_of_connect(value: Any) -> bool:
    return type(value).__module__.startswith(_CONNECT)
