"""A static DataFrame lacks rows that were rejected: told by its first action, at the line that made it, with counts."""

from __future__ import annotations

import threading
import time
import warnings
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from tests.spark.data import Folders, asof, customers, trades

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def told(caught: list[warnings.WarningMessage], seconds: float) -> list[warnings.WarningMessage]:
    """Return the warnings of rejected rows, once there is one; Spark tells of an action a moment after its end."""
    until = time.monotonic() + seconds
    while True:
        # PySpark may warn of other things.
        found = [each for each in caught if each.category is cj.MissingRowsWarning]
        if found or time.monotonic() > until:
            return found
        time.sleep(0.05)


def test_the_first_action_on_a_static_dataframe_tells_what_it_has_rejected(spark: SparkSession, tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.add_trades(trades([(1, 1, 10), (2, None, 10), (3, None, 11), (4, 1, None)]))
    folders.add_customers(customers([(1, 1, 5)]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        joined = asof(folders.connect(spark, streaming=False))
        frame = joined.to_dataframe()
        line = frame_line()
        assert told(caught, 0.2) == []
        assert frame.count() == 1
        (warning,) = told(caught, 30)
        assert (warning.filename, warning.lineno) == (__file__, line - 1)
        assert str(warning.message) == (
            "3 of 4 rows of 'trades' were rejected (1 whose event time is null, 2 whose key is null), so the result "
            'lacks them; to_dataframe("rejected") returns them with their reasons'
        )
        caught.clear()
        # Neither again, nor to who asks for them.
        assert frame.union(frame).count() == 2
        assert joined.to_dataframe("rejected").count() == 3
        assert told(caught, 0.3) == []


@pytest.mark.slow
def test_dataframes_without_an_action_cost_no_thread(spark: SparkSession, tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.add_trades(trades([(1, 1, 10), (2, None, 10)]))
    folders.add_customers(customers([(1, 1, 5)]))
    joined = asof(folders.connect(spark, streaming=False))
    joined.to_dataframe()
    before = threading.active_count()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frames = [joined.to_dataframe() for _ in range(40)]
        assert threading.active_count() == before
        # The oldest are given up for new ones.
        assert frames[0].count() == frames[-1].filter("true").count() == 1
        assert len(told(caught, 30)) == 1


def frame_line() -> int:
    """Return the number of the caller's line."""
    import sys

    return sys._getframe(1).f_lineno
