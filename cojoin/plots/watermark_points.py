"""Progress as points for a picture: a query's progress table, in whatever form, or reports, as one list of points.

A watermark is None where there is none: before the first one, and after the end of all inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa

from cojoin.embedded.libraries import is_pandas
from cojoin.engine.batch_report import BatchReport
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.errors import ConfigurationError

__all__ = ["InputPoint", "Point", "read_points"]

_COLUMNS = ("batch_id", "processing_time", "watermark", "holding_input", "inputs")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class InputPoint:
    """An input after a batch; times are epoch milliseconds, None where there is none."""

    name: str
    watermark: int | None
    max_timestamp: int | None
    waiting: int
    status: str


@dataclass(frozen=True)
class Point:
    """A batch; times are epoch milliseconds, None where there is none."""

    batch_id: int
    processing_time: int | None
    watermark: int | None
    holding_input: str | None
    inputs: tuple[InputPoint, InputPoint]


def read_points(progress: Any) -> list[Point]:
    """Return the batches of a progress, by number.

    Args:
        progress: What ``read_progress`` returns, as a DataFrame of Spark's or as its pandas or Arrow form; or a report,
            or several reports or steps.

    Raises:
        ConfigurationError: It is none of these, or has no batch.
    """
    if isinstance(progress, BatchReport) or isinstance(getattr(progress, "report", None), BatchReport):
        points = [_of_report(progress)]
    elif isinstance(progress, pa.Table) or is_pandas(progress) or hasattr(progress, "toArrow"):
        points = [_of_row(row) for row in _rows(progress)]
    elif isinstance(progress, Iterable) and not isinstance(progress, (str, bytes, Mapping)):
        points = [_of_report(each) for each in progress]
    else:
        raise ConfigurationError(_unknown(progress))
    if not points:
        msg = "plot_watermarks: the progress has no batch yet; wait for the first one"
        raise ConfigurationError(msg)
    return sorted(points, key=lambda point: point.batch_id)


def _rows(progress: Any) -> list[Mapping[str, Any]]:
    if hasattr(progress, "toArrow"):
        names = progress.columns
        _check_columns(names)
        progress = progress.select(*_COLUMNS).toArrow()
    if isinstance(progress, pa.Table):
        _check_columns(progress.column_names)
        return progress.select(list(_COLUMNS)).to_pylist()  # type: ignore[no-any-return]
    _check_columns(list(progress.columns))
    return [dict(zip(_COLUMNS, row, strict=True)) for row in progress[list(_COLUMNS)].itertuples(index=False)]


def _check_columns(names: Iterable[str]) -> None:
    missing = [name for name in _COLUMNS if name not in set(names)]
    if missing:
        msg = (
            f"plot_watermarks: expected the columns of cojoin.read_progress, {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing; give its result as it is, before a select"
        )
        raise ConfigurationError(msg)


def _of_row(row: Mapping[str, Any]) -> Point:
    inputs = [each.asDict() if hasattr(each, "asDict") else each for each in row["inputs"]]
    left, right = (
        InputPoint(
            str(each["name"]),
            _millis(each["watermark"]),
            _millis(each["max_timestamp"]),
            int(each["buffered"]),
            str(each["status"]),
        )
        for each in inputs
    )
    holding = row["holding_input"]
    return Point(
        int(row["batch_id"]),
        _millis(row["processing_time"]),
        _millis(row["watermark"]),
        holding if isinstance(holding, str) else None,
        (left, right),
    )


def _of_report(given: Any) -> Point:
    report = given if isinstance(given, BatchReport) else getattr(given, "report", None)
    if not isinstance(report, BatchReport):
        raise ConfigurationError(_unknown(given))
    left, right = (
        InputPoint(each.name, _known(each.watermark), _known(each.max_timestamp), each.buffered, each.status)
        for each in report.inputs
    )
    clock = report.processing_time or None
    return Point(report.batch_id, clock, _known(report.watermark), report.holding_input, (left, right))


def _known(millis: int) -> int | None:
    return None if millis in (NONE, END_OF_TIME) else millis


def _millis(value: Any) -> int | None:
    """Return a time of a progress table in epoch milliseconds; pandas and Spark give times without a zone as well."""
    if value is None or value != value:  # noqa: PLR0124 - pandas' NaT is unequal to itself
        return None
    if isinstance(value, np.datetime64):
        return int(value.astype("datetime64[ms]").astype(np.int64))
    # A pandas Timestamp is a datetime, too.
    moment = value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
    return int((moment - _EPOCH) // timedelta(milliseconds=1))


def _unknown(value: Any) -> str:
    return (
        f"plot_watermarks: expected the result of cojoin.read_progress(spark, checkpoint), or a list of reports or "
        f"steps, got {type(value).__name__}"
    )
