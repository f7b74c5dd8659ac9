"""Deterministic event-time joins of two keyed streams on Spark.

    import cojoin as cj

    pair = cj.connect(
        cj.Input(trades, key="customer_id", event_time="event_time", name="trades"),
        cj.Input(customers, key="customer_id", event_time="event_time", name="customers"),
    )
    pair.asof_join().to_dataframe()

Names that need Spark are imported when they are first used: the engine and its tests run without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from cojoin.functions import Context, KeyedCoProcessFunction, RuntimeContext
from cojoin.rows import Row
from cojoin.side_outputs import OutputTag
from cojoin.state import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from cojoin.strategies import WatermarkGenerator, WatermarkStrategy
from cojoin.timers import TimeDomain

if TYPE_CHECKING:
    from cojoin import kafka
    from cojoin.checkpoints.checkpoint import Checkpoint
    from cojoin.checkpoints.explaining.explain import explain
    from cojoin.checkpoints.reading.read import read_progress, read_state, savepoint
    from cojoin.spark import sinks, sources
    from cojoin.spark.connect import ConnectedInputs, connect
    from cojoin.spark.input import Input
    from cojoin.spark.joined import Joined
    from cojoin.spark.query import Query
    from cojoin.spark.session import spark_session
    from cojoin.spark.triggers import Trigger

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
    "Query": "cojoin.spark.query",
    "Trigger": "cojoin.spark.triggers",
    "connect": "cojoin.spark.connect",
    "explain": "cojoin.checkpoints.explaining.explain",
    "kafka": "cojoin.kafka",
    "read_progress": "cojoin.checkpoints.reading.read",
    "read_state": "cojoin.checkpoints.reading.read",
    "savepoint": "cojoin.checkpoints.reading.read",
    "sinks": "cojoin.spark.sinks",
    "sources": "cojoin.spark.sources",
    "spark_session": "cojoin.spark.session",
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
