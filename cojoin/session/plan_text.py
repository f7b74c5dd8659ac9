"""The text of a DataFrame's plan, from which a session of Spark Connect learns what only the JVM knows otherwise."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["plan_text"]


def plan_text(frame: DataFrame, mode: str) -> str:
    """Return what ``DataFrame.explain`` prints.

    Args:
        frame: The DataFrame.
        mode: Spark's mode, such as ``"extended"`` or ``"cost"``.
    """
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        frame.explain(mode=mode)
    return said.getvalue()
