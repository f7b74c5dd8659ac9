"""Warns of rows that the run of a static DataFrame has rejected, once the user has run it.

A static DataFrame is lazy, so the number of rows that it rejects is known only after an action on it. Spark counts
them while it makes the rows (``Observation``), from the statistics of the calls, so nothing runs a second time. A
thread waits for the first action and warns as if at the line that made the DataFrame. The counts are those of that
action: one that needs a few rows, such as ``show()``, may process a part.

It costs a thread that sleeps until then, for at most ``_MOST`` DataFrames at a time.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, get_args

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.batch_report import rejections
from cojoin.engine.inputs import Reason
from cojoin.errors import MissingRowsWarning
from cojoin.spark.batch.call import STATISTICS
from cojoin.storage.session_settings import is_connect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

__all__ = ["with_rejections_told"]

_MOST = 32
_AT_EXIT_SECONDS = 0.5
"""The seconds for which the end of the process waits for the counts of an action that has just ended."""

_WAITING: set[threading.Thread] = set()


def with_rejections_told(emitted: DataFrame, names: Sequence[str], depth: int) -> DataFrame:
    """Return what the calls emit such that the first action on it warns of the rows that it has rejected.

    With Spark Connect it does not warn: its ``toPandas`` attaches what is observed to the user's DataFrame.

    Args:
        emitted: The emitted rows of ``(kind, payload)``.
        names: The inputs' names.
        depth: How many calls are between this one and the user's line.
    """
    if is_connect(emitted.sparkSession) or len(_WAITING) >= _MOST:
        return emitted
    observation, frame = Observation(), sys._getframe(depth + 1)  # noqa: SLF001 - as warnings finds the user's line
    observed = emitted.observe(observation, *_sums())
    place: dict[str, Any] = {"filename": frame.f_code.co_filename, "lineno": frame.f_lineno}
    place["registry"] = frame.f_globals.setdefault("__warningregistry__", {})
    place["module"] = frame.f_globals.get("__name__")
    thread = threading.Thread(target=_tell, args=(observation, names, place), daemon=True)
    _WAITING.add(thread)
    thread.start()
    return observed


def _sums() -> list[Column]:
    """Return the counts that Spark makes of the calls' statistics."""
    text = F.when(F.col("kind") == F.lit(STATISTICS), F.col("payload").cast("string"))
    names = ["rows_in", *(f"rejected.{reason}" for reason in get_args(Reason))]
    places = [f"inputs[{side}].{name}" for side in (0, 1) for name in names]
    return [F.sum(F.get_json_object(text, f"$.{place}").cast("bigint")).alias(place) for place in places]


def _tell(observation: Observation, names: Sequence[str], place: dict[str, Any]) -> None:
    found: dict[str, int | None] = {}
    try:
        # The session may end before any action.
        with contextlib.suppress(Exception):
            found = observation.get
        inputs = []
        for side, name in enumerate(names):
            counts = {reason: found.get(f"inputs[{side}].rejected.{reason}") for reason in get_args(Reason)}
            rejected = {reason: count for reason, count in counts.items() if count}
            inputs.append((name, found.get(f"inputs[{side}].rows_in") or 0, rejected))
        told = rejections(inputs, 'to_dataframe("rejected")')
        if told is not None:
            warnings.warn_explicit(told, MissingRowsWarning, **place)
    finally:
        _WAITING.discard(threading.current_thread())


@atexit.register
def _wait() -> None:
    until = time.monotonic() + _AT_EXIT_SECONDS
    for thread in list(_WAITING):
        thread.join(max(0.0, until - time.monotonic()))
