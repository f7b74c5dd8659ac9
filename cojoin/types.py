"""The types of what cojoin's functions return and take, to annotate variables with; each is imported at its first use.

from cojoin.types import BatchReport

def on_progress(report: BatchReport) -> None:
print(report.watermark)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.installed_packages import imported

if TYPE_CHECKING:
    from cojoin.checkpoints.inspect.findings import Explanation, Finding, Wait
    from cojoin.checkpoints.inspect.key_state import KeyState, KeyTimer
    from cojoin.checkpoints.inspect.query_state import QueryState
    from cojoin.comparison.difference import Counts, Difference, Example, OutputDifference
    from cojoin.debugging.debugger import Debugger
    from cojoin.debugging.row_steps import RowStep
    from cojoin.embedded.result import Result
    from cojoin.embedded.steps import Step
    from cojoin.engine.batch_report import BatchReport, InputReport
    from cojoin.engine.joins.asof import Direction
    from cojoin.engine.state.keyed_state import AggregatingState, ListState, MapState, ReducingState, ValueState
    from cojoin.engine.time.time_axis import ClockChange, TimeUnit
    from cojoin.engine.time.timers import TimerService
    from cojoin.engine.values.arguments import Duration
    from cojoin.spark.savepoints.erase import Erasure, Remainder
    from cojoin.spark.sinks.sink import Sink
    from cojoin.spark.sources.source import Source

_MODULES = {
    "AggregatingState": "cojoin.engine.state.keyed_state",
    "BatchReport": "cojoin.engine.batch_report",
    "ClockChange": "cojoin.engine.time.time_axis",
    "Counts": "cojoin.comparison.difference",
    "Debugger": "cojoin.debugging.debugger",
    "Difference": "cojoin.comparison.difference",
    "Direction": "cojoin.engine.joins.asof",
    "Duration": "cojoin.engine.values.arguments",
    "Erasure": "cojoin.spark.savepoints.erase",
    "Example": "cojoin.comparison.difference",
    "Explanation": "cojoin.checkpoints.inspect.findings",
    "Finding": "cojoin.checkpoints.inspect.findings",
    "InputReport": "cojoin.engine.batch_report",
    "KeyState": "cojoin.checkpoints.inspect.key_state",
    "KeyTimer": "cojoin.checkpoints.inspect.key_state",
    "ListState": "cojoin.engine.state.keyed_state",
    "MapState": "cojoin.engine.state.keyed_state",
    "OutputDifference": "cojoin.comparison.difference",
    "QueryState": "cojoin.checkpoints.inspect.query_state",
    "ReducingState": "cojoin.engine.state.keyed_state",
    "Remainder": "cojoin.spark.savepoints.erase",
    "Result": "cojoin.embedded.result",
    "RowStep": "cojoin.debugging.row_steps",
    "Sink": "cojoin.spark.sinks.sink",
    "Source": "cojoin.spark.sources.source",
    "Step": "cojoin.embedded.steps",
    "TimeUnit": "cojoin.engine.time.time_axis",
    "TimerService": "cojoin.engine.time.timers",
    "ValueState": "cojoin.engine.state.keyed_state",
    "Wait": "cojoin.checkpoints.inspect.findings",
}

__all__ = [
    "AggregatingState",
    "BatchReport",
    "ClockChange",
    "Counts",
    "Debugger",
    "Difference",
    "Direction",
    "Duration",
    "Erasure",
    "Example",
    "Explanation",
    "Finding",
    "InputReport",
    "KeyState",
    "KeyTimer",
    "ListState",
    "MapState",
    "OutputDifference",
    "QueryState",
    "ReducingState",
    "Remainder",
    "Result",
    "RowStep",
    "Sink",
    "Source",
    "Step",
    "TimeUnit",
    "TimerService",
    "ValueState",
    "Wait",
]


def __getattr__(name: str) -> Any:
    return imported("cojoin.types", _MODULES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
