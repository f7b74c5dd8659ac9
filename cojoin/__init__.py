"""Deterministic event-time joins of two keyed streams on Spark.

    import cojoin as cj

    pair = cj.connect(
        cj.Input(trades, key="customer_id", event_time="event_time", name="trades"),
        cj.Input(customers, key="customer_id", event_time="event_time", name="customers"),
    )
    pair.asof_join().to_dataframe()

Names that need Spark are imported at their first use, so the engine and its tests run without Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cojoin.engine.functions import Context, KeyedCoProcessFunction, RuntimeContext
from cojoin.engine.side_outputs import OutputTag
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
    QueryFailedError,
    SchemaError,
    did_you_mean,
)

if TYPE_CHECKING:
    from cojoin import kafka
    from cojoin.checkpoints.checkpoint import Checkpoint
    from cojoin.checkpoints.inspect.explain import explain
    from cojoin.checkpoints.inspect.read import read_progress, read_state, savepoint
    from cojoin.spark.connect import ConnectedInputs, connect
    from cojoin.spark.input import Input
    from cojoin.spark.joined import Joined
    from cojoin.spark.query.query import Query
    from cojoin.spark.query.triggers import Trigger
    from cojoin.spark.session.spark_session import spark_session
    from cojoin.spark.sinks import sinks
    from cojoin.spark.sources import sources

__all__ = [
    "AggregateFunction",
    "AggregatingStateDescriptor",
    "Checkpoint",
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
    "ListStateDescriptor",
    "MapStateDescriptor",
    "OutputTag",
    "Query",
    "QueryFailedError",
    "ReducingStateDescriptor",
    "Row",
    "RuntimeContext",
    "SchemaError",
    "StateTtlConfig",
    "TimeDomain",
    "Trigger",
    "ValueStateDescriptor",
    "WatermarkGenerator",
    "WatermarkStrategy",
    "connect",
    "explain",
    "kafka",
    "read_progress",
    "read_state",
    "savepoint",
    "sinks",
    "sources",
    "spark_session",
]

__version__ = "0.5.0"

_LAZY = {
    "Checkpoint": "cojoin.checkpoints.checkpoint",
    "ConnectedInputs": "cojoin.spark.connect",
    "Input": "cojoin.spark.input",
    "Joined": "cojoin.spark.joined",
    "Query": "cojoin.spark.query.query",
    "Trigger": "cojoin.spark.query.triggers",
    "connect": "cojoin.spark.connect",
    "explain": "cojoin.checkpoints.inspect.explain",
    "kafka": "cojoin.kafka",
    "read_progress": "cojoin.checkpoints.inspect.read",
    "read_state": "cojoin.checkpoints.inspect.read",
    "savepoint": "cojoin.checkpoints.inspect.read",
    "sinks": "cojoin.spark.sinks.sinks",
    "sources": "cojoin.spark.sources.sources",
    "spark_session": "cojoin.spark.session.spark_session",
}

_MODULES = {"kafka", "sinks", "sources"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        near = did_you_mean(name, __all__)
        msg = f"module 'cojoin' has no attribute {name!r}{near if 'did you mean' in near else ''}"
        raise AttributeError(msg)
    module = import_module(_LAZY[name])
    return module if name in _MODULES else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
