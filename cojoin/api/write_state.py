"""``write_state`` writes an initial state for a query from DataFrames, in the shape that ``read_state`` returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cojoin.api.joined import Joined
from cojoin.checkpoints.inspect.query_state import QueryState, read_state
from cojoin.errors import ConfigurationError
from cojoin.session.sessions import check_session, finds_session
from cojoin.spark.savepoints.state_writing import StateParts, write_parts
from cojoin.storage.locations import as_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.checkpoint import Snapshot
    from cojoin.spark.savepoints.new_savepoint import WatermarkLike
    from cojoin.storage.locations import Location


@finds_session
def write_state(
    spark: SparkSession,
    checkpoint: Location,
    joined: Joined,
    *,
    versions: DataFrame | None = None,
    buffered: Mapping[str, DataFrame] | None = None,
    states: Mapping[str, DataFrame | None] | None = None,
    timers: DataFrame | None = None,
    watermark: WatermarkLike = None,
    from_existing: QueryState | Snapshot | Location | None = None,
) -> Snapshot:
    """Write a state as a savepoint, with which a query begins: ``start(restore_from=...)``.

    The parts are DataFrames in the shape of ``read_state``'s, which may come from anywhere: a table of customers, a
    former job, a backup. The query reads its sources from their beginning, unless the state follows an existing one.

    Args:
        spark: The session; if it is left out, the active one.
        checkpoint: An empty directory for the savepoint. No query runs on it; each has its own ``checkpoint``.
        joined: The join or function that begins with the state, with sources of cojoin's. Its number of key groups may
            differ from that of the query.
        versions: The rows of the right input that are in force, for an as-of or temporal join: all columns of the
            input. Those after the watermark wait for it, as they would in the query.
        buffered: The rows of an input that wait, by its name: all columns of the input, and where they do not wait for
            the watermark ``waits_for``, in interval joins ``matched``.
        states: A function's states by name: the key's columns under the left input's names, ``value``, and with a
            time-to-live ``last_access``. ``value`` is the value, the list, the map, or the accumulator. None in place
            of a DataFrame leaves out a state of the existing one.
        timers: A function's timers: the key's columns, ``domain`` (``"event_time"`` or ``"processing_time"``), and
            ``timestamp`` or ``timestamp_ms``.
        watermark: The time up to which the inputs are complete, included: a datetime with a time zone or epoch
            milliseconds, or a dict of these by input. Rows up to it are late. None takes that of the existing
            state, or sets none.
        from_existing: The state of a checkpoint to follow: what ``read_state`` returned, a ``Snapshot`` or a path.
            Source positions, watermarks, counters and outputs are taken from it, and every part that is not given.

    Returns:
        The savepoint.

    Raises:
        ConfigurationError: An argument is invalid: a part that the query does not have, a column that is missing,
            unknown or of another type, a watermark that goes back.
        CheckpointError: The directory is in use; or rows do not fit: a null key or event time, a key that comes twice
            in a state, a timer of an unknown domain. Nothing was written.
        FunctionError: The function's ``open`` raised an error.

    Example:
        >>> customers = spark.read.table("customers")  # doctest: +SKIP
        >>> begin = write_state(spark, "/lake/_cojoin/begin", joined, versions=customers)  # doctest: +SKIP
        >>> query = joined.start(output=cojoin.sinks.delta("/lake/enriched"), checkpoint="/lake/_cojoin/enriched",
        ...                      trigger=cojoin.Trigger.available_now(), restore_from=begin)  # doctest: +SKIP
    """
    check_session(spark, "spark")
    location = as_location(checkpoint, "checkpoint", expected="the path of an empty directory")
    if not isinstance(joined, Joined):
        msg = f"write_state: joined: expected a join or function over two inputs, got {joined!r}"
        raise ConfigurationError(msg)
    execution = joined._spark("write_state")  # noqa: SLF001
    if not execution.is_streaming:
        msg = "write_state: joined: expected inputs that are streams, since a static run begins with no state"
        raise ConfigurationError(msg)
    if from_existing is not None and not isinstance(from_existing, QueryState):
        from_existing = read_state(spark, from_existing)
    for name, tables in (("buffered", buffered), ("states", states)):
        if tables is not None and not isinstance(tables, Mapping):
            msg = f"write_state: {name}: expected a dict from name to DataFrame, got {type(tables).__name__}"
            raise ConfigurationError(msg)
    # Of a join, read_state returns no versions or states; of a function, no versions.
    parts = StateParts(versions, buffered or {}, states or {}, _timers(joined, timers), watermark, from_existing)
    return write_parts(spark, location, joined.plan, execution.bound, parts)


def _timers(joined: Joined, timers: Any) -> Any:
    """Return the timers; the empty ones that ``read_state`` returns for a join become None."""
    is_join = joined.plan.operation.describe()["operator"] != "process"
    if timers is None or not is_join:
        return timers
    if hasattr(timers, "isEmpty") and not timers.isStreaming and timers.isEmpty():
        return None
    msg = "write_state: timers: a join has no timers; a function has"
    raise ConfigurationError(msg)
