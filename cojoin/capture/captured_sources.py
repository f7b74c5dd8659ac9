"""Where the rows of a test come from: a join's inputs, the steps of a stream, or a query's checkpoint.

- The inputs of a join in memory are one run to the end of time, and so are inputs of Spark, of which only the rows of
  the wanted keys are collected.
- The steps of ``Joined.steps`` keep their cuts and watermarks.
- Of a checkpoint each key's state at the snapshot is taken, and the key's rows in the batches that came next, with the
  watermarks of the real run (``cojoin.debug``).
"""

from __future__ import annotations

import warnings
from os import PathLike
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from cojoin.api.joined import Joined
from cojoin.capture.recorded_history import History, history_of_run, history_of_steps
from cojoin.embedded.embedded_execution import EmbeddedExecution
from cojoin.embedded.step import Step
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from cojoin.engine.plan import Plan

__all__ = ["history_of", "is_checkpoint", "key_histories", "opened"]


def is_checkpoint(source: Any) -> bool:
    """Return whether a source is a checkpoint: its directory, or a ``Checkpoint``."""
    return isinstance(source, (str, PathLike)) or type(source).__name__ == "Checkpoint"


def opened(source: Any, joined: Joined | None) -> tuple[Any, Plan]:
    """Return a source, with steps that come lazily as a list, and what was run.

    Raises:
        ConfigurationError: It is no source of rows, or a checkpoint's join is missing.
    """
    if is_checkpoint(source):
        if not isinstance(joined, Joined):
            msg = f"joined: a checkpoint does not keep its join; give it as it was started, got {joined!r}"
            raise ConfigurationError(msg)
        return source, joined.plan
    if joined is not None:
        msg = "joined: only a checkpoint needs it; leave it out"
        raise ConfigurationError(msg)
    if isinstance(source, Joined):
        return source, source.plan
    steps = list(source) if hasattr(source, "__iter__") else []
    if not steps and isinstance(source, GeneratorType):
        msg = "capture: the steps were used already, and come once; call joined.steps(...) again"
        raise ConfigurationError(msg)
    if not steps or not all(isinstance(each, Step) for each in steps):
        msg = (
            f"capture: expected a join or function such as pair.process(...), the steps of joined.steps(...), or a "
            f"checkpoint, got {source!r}"
        )
        raise ConfigurationError(msg)
    return steps, steps[0].plan


def history_of(
    source: Joined | list[Step], keys: Sequence[tuple[Any, ...]] | None, span: tuple[datetime, datetime] | None
) -> History:
    """Return the history of a join's inputs, or of the steps of a stream.

    Args:
        source: The join, or the steps.
        keys: The keys whose rows are wanted, if these are known; other keys' rows may be in the history, too.
        span: A span of event time; other rows may be in the history, too.

    Raises:
        ConfigurationError: The rows can't be collected, or steps are missing.
    """
    plan = source.plan if isinstance(source, Joined) else source[0].plan
    names = f"the inputs {plan.left.name!r} and {plan.right.name!r}"
    if not isinstance(source, Joined):
        count = f"{len(source)} micro-batches" if len(source) > 1 else "one micro-batch"
        return history_of_steps(source, f"{count} of {names}")
    execution = source._execution  # noqa: SLF001 - what runs the join knows its rows
    if isinstance(execution, EmbeddedExecution):
        return history_of_run(plan, execution.rows, f"{names} in memory")
    from cojoin.capture.spark_rows import collect_rows  # noqa: PLC0415 - rows in memory need no Spark

    rows = collect_rows(source._spark("capture"), keys, span)  # noqa: SLF001
    return history_of_run(plan, rows, f"{names}, read by Spark")


def key_histories(source: Any, joined: Joined, keys: Sequence[Any]) -> list[History]:
    """Return the history of each key since a checkpoint's snapshot.

    Args:
        source: The checkpoint.
        joined: The join or function that the query ran.
        keys: The keys, each a value, or a tuple of several columns.

    Raises:
        ConfigurationError: The checkpoint has nothing of a key.
        CheckpointError: The checkpoint can't be read, or is that of another query.
    """
    from cojoin.api.debug import debug  # noqa: PLC0415 - rows in memory need no Spark

    found = []
    for key in keys:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", UserWarning)
            debugger = debug(source, joined, key=key[0] if len(key) == 1 else key)
        steps = list(debugger.steps())
        has_rows = any(table.num_rows for step in steps for table in step.rows)
        if not has_rows and told:
            msg = f"keys: {told[0].message}; nor had the batches that came next any row of it"
            raise ConfigurationError(msg)
        if not steps:
            msg = (
                f"keys: no batch came after the snapshot of batch {debugger.batch_id}, so there is nothing to replay; "
                f"take an older snapshot: Checkpoint(path, at=...)"
            )
            raise ConfigurationError(msg)
        state = debugger._stepper().snapshot()  # noqa: SLF001 - the key's state as a harness reads it
        batches = f"batches {steps[0].batch_id} to {steps[-1].batch_id}"
        if len(steps) == 1:
            batches = f"batch {steps[0].batch_id}"
        name = str(getattr(source, "path", source)).rstrip("/").rpartition("/")[2]
        origin = f"{batches} of the query with the checkpoint {name!r}, and its state before them"
        found.append(history_of_steps(steps, origin, state))
    return found
