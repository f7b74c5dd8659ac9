"""``connect``: two inputs with a common key, on Spark or in this process, checked before anything runs."""

from __future__ import annotations

import warnings
from datetime import datetime, timedelta, timezone
from os import PathLike
from typing import Any, get_args

from cojoin.api.connected_inputs import ConnectedInputs
from cojoin.embedded.embedded_execution import EmbeddedExecution
from cojoin.embedded.frames import is_frame
from cojoin.engine.input import Input
from cojoin.engine.time.operator_watermark import TimePolicy
from cojoin.engine.time.watermarks import AllIdle
from cojoin.engine.values.arguments import check_word
from cojoin.errors import ConfigurationError
from cojoin.installed_packages import check_packages

__all__ = ["connect", "is_of_spark", "not_an_input"]

_MOST_KEY_GROUPS = 32_768


def connect(
    left: Input,
    right: Input,
    *,
    key_groups: int | None = None,
    when_all_idle: AllIdle = "hold",
    hold_left_until: datetime | None = None,
) -> ConnectedInputs:
    """Connect two inputs by their keys; joins and functions are methods of the result.

    Both inputs must be of one kind: streaming or static, both on Spark, or both in memory. Their key columns must have
    the same types in the same order.

    Args:
        left: The first input. As-of and temporal joins look up a right row for each of its rows.
        right: The second input. As-of and temporal joins treat its rows as the versions of their keys.
        key_groups: The number of key groups into which keys are hashed, from 1 to 32,768. A key group is the unit of
            parallelism and of state. Each costs some milliseconds per micro-batch even without rows, so use a few
            per core. Results do not depend on the number. For streams None is 32, and the number can't change while a
            checkpoint is in use, except with ``restore_from``. For static inputs it is an upper bound: fewer are used
            if the inputs are small.
        when_all_idle: The operator's watermark when every input that is not finished is idle. ``"hold"`` keeps it;
            ``"max"`` advances it to the larger of the inputs' watermarks, as in Flink, which releases the last rows.
        hold_left_until: A datetime with a time zone. The operator's watermark does not advance until the right input's
            watermark has reached this time, or the right input is idle or finished. So left rows wait for the initial
            load of the right. None does not hold it.

    Returns:
        The connected inputs.

    Raises:
        ConfigurationError: The inputs do not fit together, or an argument is invalid.
        SchemaError: A column does not exist or has the wrong type, or the types of the keys differ.
        EnvironmentSetupError: A package that the inputs need is missing or too old.

    Warns:
        UserWarning: Key groups without rows would take seconds per micro-batch, or the collation of a column would be
            lost.
    """
    if key_groups is not None and (type(key_groups) is not int or not 1 <= key_groups <= _MOST_KEY_GROUPS):
        msg = f"key_groups: expected a whole number from 1 to {_MOST_KEY_GROUPS}, got {key_groups!r}"
        raise ConfigurationError(msg)
    check_word("when_all_idle", when_all_idle, get_args(AllIdle))
    time = TimePolicy(when_all_idle, _epoch_millis(hold_left_until, "hold_left_until"))
    for side, declared in (("left", left), ("right", right)):
        if not isinstance(declared, Input):
            msg = f"{side} input: expected a cojoin.Input, got {type(declared).__name__}"
            raise ConfigurationError(msg)
    if _in_memory(left, right):
        embedded = EmbeddedExecution.of(left, right)
        return ConnectedInputs(embedded, 1, time)
    check_packages("connect()", "spark")
    from cojoin.spark.binding import bind_inputs  # noqa: PLC0415 - rows in memory are joined without Spark

    execution, groups, told = bind_inputs(left, right, key_groups)
    for each in told:
        warnings.warn(each, stacklevel=2)
    return ConnectedInputs(execution, groups, time)


def _in_memory(left: Input, right: Input) -> bool:
    """Return whether both inputs are in memory.

    Raises:
        ConfigurationError: One input is in memory and the other is Spark's, or an input is neither.
    """
    kinds = {}
    for side, declared in (("left", left), ("right", right)):
        name = declared.name or side
        kinds[name] = is_frame(declared.source)
        if not kinds[name] and not is_of_spark(declared.source):
            raise ConfigurationError(not_an_input(declared.source, f"input {name!r}"))
    if len(set(kinds.values())) > 1:
        frame, other = sorted(kinds, key=lambda name: not kinds[name])
        msg = (
            f"input {frame!r} is in memory, input {other!r} is Spark's; both must be of one kind: "
            f"make {frame!r} one of Spark's with spark.createDataFrame(...), or take {other!r} into memory with "
            f"df.toArrow() if it fits"
        )
        raise ConfigurationError(msg)
    return all(kinds.values())


def is_of_spark(source: Any) -> bool:
    """Return whether a value is a DataFrame of Spark's or a source of cojoin's, without importing Spark."""
    return any(each.__module__.split(".")[0] in ("pyspark", "cojoin") for each in type(source).__mro__)


def not_an_input(source: Any, what: str) -> str:
    """Return the message for a value that can't be an input's rows.

    Args:
        source: The value.
        what: What it was given for, such as ``"input 'trades'"``.
    """
    kind = f"{type(source).__module__.partition('.')[0]}.{type(source).__name__}".removeprefix("builtins.")
    hint = ""
    if isinstance(source, (str, PathLike)):
        hint = f"; did you mean cojoin.sources.delta({source!r})?"
    elif kind == "polars.LazyFrame":
        hint = "; run it with .collect()"
    elif isinstance(source, (list, dict)):
        hint = "; make a table of it: pyarrow.Table.from_pylist(rows), or pandas.DataFrame(rows)"
    elif hasattr(source, "to_table"):
        hint = "; read it with .to_table()"
    return (
        f"{what}: expected a DataFrame of Spark's, one of cojoin.sources, or rows in memory (pandas, pyarrow, or "
        f"anything with __arrow_c_stream__), got {kind}{hint}"
    )


def _epoch_millis(moment: datetime | None, what: str) -> int | None:
    if moment is None:
        return None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        example = "datetime(2026, 1, 31, tzinfo=timezone.utc)"
        msg = f"{what}: expected a datetime with a time zone, such as {example}, got {moment!r}"
        raise ConfigurationError(msg)
    return (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)
