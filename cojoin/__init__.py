"""Deterministic event-time joins of two keyed streams on Spark.

Two inputs are connected by their keys, and a join or a function is a method of the result::

    import cojoin as cj

    pair = cj.connect(
        cj.Input(trades, key="customer_id", event_time="event_time", name="trades"),
        cj.Input(customers, key="customer_id", event_time="event_time", name="customers"),
    )
    pair.asof_join().to_dataframe()

Names are imported at their first use, so importing the package costs little, and rows in memory are joined without
loading Spark, which need not be installed: ``pip install cojoin`` is for joins in memory, and
``pip install "cojoin[spark]"`` for those on Spark.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

import cojoin.package_files  # noqa: F401 - it notes which files are imported
from cojoin.errors import did_you_mean
from cojoin.installed_packages import check_module

if TYPE_CHECKING:
    from cojoin import kafka, plots, sinks, sources, testing, types
    from cojoin.api.connect import ConnectedInputs, connect
    from cojoin.api.frame_joins import asof_join, interval_join, temporal_join
    from cojoin.api.joined import Joined
    from cojoin.api.lateness import lateness
    from cojoin.api.write_state import write_state
    from cojoin.checkpoints.checkpoint import Snapshot
    from cojoin.checkpoints.inspect.explain import explain
    from cojoin.checkpoints.inspect.query_state import read_progress, read_state, savepoint
    from cojoin.checkpoints.inspect.rejected_rows import read_rejected
    from cojoin.comparison.diff import diff
    from cojoin.debugging.debugger import debug
    from cojoin.engine.functions import Context, KeyedCoProcessFunction, RuntimeContext
    from cojoin.engine.input import Input
    from cojoin.engine.lateness import Lateness
    from cojoin.engine.state import (
        AggregateFunction,
        AggregatingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        StateTtlConfig,
        ValueStateDescriptor,
    )
    from cojoin.engine.time.timers import TimeDomain
    from cojoin.engine.time.watermark_strategies import WatermarkGenerator, WatermarkStrategy
    from cojoin.engine.values.rows import Row
    from cojoin.errors import (
        CheckpointError,
        CodecError,
        CojoinError,
        ConfigurationError,
        EnvironmentSetupError,
        FunctionError,
        MissingRowsWarning,
        QueryFailedError,
        SchemaError,
    )
    from cojoin.session.spark_session import spark_session
    from cojoin.spark.query.query import Query
    from cojoin.spark.query.triggers import Trigger
    from cojoin.spark.savepoints.erase import erase

__all__ = [
    "AggregateFunction",
    "AggregatingStateDescriptor",
    "CheckpointError",
    "CodecError",
    "CojoinError",
    "ConfigurationError",
    "ConnectedInputs",
    "Context",
    "EnvironmentSetupError",
    "FunctionError",
    "Input",
    "Joined",
    "KeyedCoProcessFunction",
    "Lateness",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "MissingRowsWarning",
    "OutputTag",
    "Query",
    "QueryFailedError",
    "ReducingStateDescriptor",
    "Row",
    "RuntimeContext",
    "SchemaError",
    "Snapshot",
    "StateTtlConfig",
    "TimeDomain",
    "Trigger",
    "ValueStateDescriptor",
    "WatermarkGenerator",
    "WatermarkStrategy",
    "asof_join",
    "connect",
    "debug",
    "diff",
    "erase",
    "explain",
    "interval_join",
    "kafka",
    "lateness",
    "plots",
    "read_progress",
    "read_rejected",
    "read_state",
    "savepoint",
    "sinks",
    "sources",
    "spark_session",
    "temporal_join",
    "testing",
    "types",
    "write_state",
]

__version__ = "0.6.0"

_LAZY = {
    "AggregateFunction": "cojoin.engine.state",
    "AggregatingStateDescriptor": "cojoin.engine.state",
    "Snapshot": "cojoin.checkpoints.checkpoint",
    "CheckpointError": "cojoin.errors",
    "CodecError": "cojoin.errors",
    "CojoinError": "cojoin.errors",
    "ConfigurationError": "cojoin.errors",
    "ConnectedInputs": "cojoin.api.connect",
    "Context": "cojoin.engine.functions",
    "EnvironmentSetupError": "cojoin.errors",
    "FunctionError": "cojoin.errors",
    "Input": "cojoin.engine.input",
    "Joined": "cojoin.api.joined",
    "KeyedCoProcessFunction": "cojoin.engine.functions",
    "Lateness": "cojoin.engine.lateness",
    "ListStateDescriptor": "cojoin.engine.state",
    "MapStateDescriptor": "cojoin.engine.state",
    "OutputTag": "cojoin.engine.functions",
    "Query": "cojoin.spark.query.query",
    "QueryFailedError": "cojoin.errors",
    "ReducingStateDescriptor": "cojoin.engine.state",
    "MissingRowsWarning": "cojoin.errors",
    "Row": "cojoin.engine.values.rows",
    "RuntimeContext": "cojoin.engine.functions",
    "SchemaError": "cojoin.errors",
    "StateTtlConfig": "cojoin.engine.state",
    "TimeDomain": "cojoin.engine.time.timers",
    "Trigger": "cojoin.spark.query.triggers",
    "ValueStateDescriptor": "cojoin.engine.state",
    "WatermarkGenerator": "cojoin.engine.time.watermark_strategies",
    "WatermarkStrategy": "cojoin.engine.time.watermark_strategies",
    "asof_join": "cojoin.api.frame_joins",
    "connect": "cojoin.api.connect",
    "debug": "cojoin.debugging.debugger",
    "diff": "cojoin.comparison.diff",
    "erase": "cojoin.spark.savepoints.erase",
    "explain": "cojoin.checkpoints.inspect.explain",
    "interval_join": "cojoin.api.frame_joins",
    "kafka": "cojoin.kafka",
    "lateness": "cojoin.api.lateness",
    "plots": "cojoin.plots",
    "read_progress": "cojoin.checkpoints.inspect.query_state",
    "read_rejected": "cojoin.checkpoints.inspect.rejected_rows",
    "read_state": "cojoin.checkpoints.inspect.query_state",
    "savepoint": "cojoin.checkpoints.inspect.query_state",
    "sinks": "cojoin.sinks",
    "sources": "cojoin.sources",
    "spark_session": "cojoin.session.spark_session",
    "temporal_join": "cojoin.api.frame_joins",
    "testing": "cojoin.testing",
    "types": "cojoin.types",
    "write_state": "cojoin.api.write_state",
}

_FORMER = {"Checkpoint": "Snapshot"}
"""Names of release 0.5.0, and the names that they have now."""

_MODULES = {"kafka", "plots", "sinks", "sources", "testing", "types"}


def __getattr__(name: str) -> Any:
    if name in _FORMER:
        msg = f"cojoin.{name} is cojoin.{_FORMER[name]} now; the former name goes with release 0.7.0"
        warnings.warn(msg, DeprecationWarning, stacklevel=2)
        name = _FORMER[name]
    if name not in _LAZY:
        near = did_you_mean(name, __all__)
        msg = f"module 'cojoin' has no attribute {name!r}{near if 'did you mean' in near else ''}"
        raise AttributeError(msg)
    check_module(f"cojoin.{name}", _LAZY[name])
    module = import_module(_LAZY[name])
    return module if name in _MODULES else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
