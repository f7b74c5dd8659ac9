"""Warns of rows that the run of a static DataFrame has rejected, once the user has run it.

A static DataFrame is lazy, so the number of rows that it rejects is known only after an action on it. Spark counts them
beside the rows that it makes (``observe``), from the statistics of the calls, so nothing runs a second time. A listener
of the session's actions finds the counts of the first one, and warns as if at the line that made the DataFrame. The
counts are those of that action: one that needs a few rows, such as ``show()``, may process a part.

It costs one listener in a session, which the JVM calls after each action there, for a fraction of a millisecond beside
the user's thread, and a line of text for each of the last ``_MOST`` DataFrames that had no action yet.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import uuid
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, get_args
from weakref import WeakKeyDictionary

from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.batch_report import rejections
from cojoin.engine.input_spec import Reason
from cojoin.errors import MissingRowsWarning
from cojoin.session.kinds import adapter_of
from cojoin.spark.batch.call import STATISTICS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["with_rejections_told"]

_MOST = 32
_AT_EXIT_MS = 500
"""The milliseconds for which the end of the process waits for the counts of an action that has just ended."""


class _Waiting(NamedTuple):
    """A DataFrame without an action: its inputs' names, and the user's line as ``warn_explicit`` takes it."""

    names: Sequence[str]
    line: Mapping[str, Any]


class _Warner:
    """Warns of the DataFrames of one session, in the thread in which the JVM calls a listener."""

    def __init__(self) -> None:
        self.waiting: dict[str, _Waiting] = {}

    def add(self, each: _Waiting) -> str:
        """Add a DataFrame, and return the name under which its counts are found."""
        name = f"cojoin-{uuid.uuid4().hex}"
        self.waiting[name] = each
        for oldest in list(self.waiting)[:-_MOST]:
            self.waiting.pop(oldest, None)
        return name

    def awaited(self) -> list[str]:
        """Return the names under which counts are awaited."""
        return list(self.waiting)

    def take(self, name: str, counts: Mapping[str, int | None]) -> None:
        """Warn of what an action has counted."""
        each = self.waiting.pop(name, None)
        if each is not None:
            _tell(counts, each)


_WARNERS: WeakKeyDictionary[SparkSession, _Warner] = WeakKeyDictionary()


def with_rejections_told(emitted: DataFrame, names: Sequence[str], depth: int) -> DataFrame:
    """Return what the calls emit such that the first action on it warns of the rows that it has rejected.

    With Spark Connect it does not warn: its ``toPandas`` attaches what is observed to the user's DataFrame.

    Args:
        emitted: The emitted rows of ``(kind, payload)``.
        names: The inputs' names.
        depth: How many calls are between this one and the user's line.
    """
    session = emitted.sparkSession
    if not adapter_of(session).has_listeners:
        return emitted
    frame = sys._getframe(depth + 1)  # noqa: SLF001 - as warnings finds the user's line
    line = {
        "filename": frame.f_code.co_filename,
        "lineno": frame.f_lineno,
        "registry": frame.f_globals.setdefault("__warningregistry__", {}),
        "module": frame.f_globals.get("__name__"),
    }
    return emitted.observe(_warner(session).add(_Waiting(tuple(names), line)), *_sums())


def _warner(session: SparkSession) -> _Warner:
    if session not in _WARNERS:
        warner = _Warner()
        adapter_of(session).add_listener(warner.awaited, warner.take)
        _WARNERS[session] = warner
    return _WARNERS[session]


def _sums() -> list[Column]:
    """Return the counts that Spark makes of the calls' statistics."""
    text = F.when(F.col("kind") == F.lit(STATISTICS), F.col("payload").cast("string"))
    names = ["rows_in", *(f"rejected.{reason}" for reason in get_args(Reason))]
    places = [f"inputs[{side}].{name}" for side in (0, 1) for name in names]
    return [F.sum(F.get_json_object(text, f"$.{place}").cast("bigint")).alias(place) for place in places]


def _tell(found: Mapping[str, int | None], each: _Waiting) -> None:
    inputs = []
    for side, name in enumerate(each.names):
        counts = {reason: found.get(f"inputs[{side}].rejected.{reason}") for reason in get_args(Reason)}
        rejected = {reason: count for reason, count in counts.items() if count}
        inputs.append((name, found.get(f"inputs[{side}].rows_in") or 0, rejected))
    told = rejections(inputs, 'to_dataframe("rejected")')
    if told is not None:
        warnings.warn_explicit(told, MissingRowsWarning, **each.line)


@atexit.register
def _wait() -> None:
    for session, warner in list(_WARNERS.items()):
        # The session may have been stopped.
        with contextlib.suppress(Exception):
            if warner.waiting:
                adapter_of(session).await_listeners(_AT_EXIT_MS)
