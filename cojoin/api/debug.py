"""``debug``: one key of a checkpoint, taken out of a snapshot and stepped through the batches that came next."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from cojoin.api.joined import Joined
from cojoin.checkpoints.inspect.read import as_checkpoint
from cojoin.debugging.debugger import Debugger
from cojoin.debugging.loaded_key import load_key, near_keys, nothing_of
from cojoin.errors import ConfigurationError
from cojoin.session.kinds import active_session

if TYPE_CHECKING:
    from cojoin.checkpoints.checkpoint import Checkpoint, Moment
    from cojoin.storage.locations import Location

__all__ = ["debug"]


def debug(checkpoint: Location | Checkpoint, joined: Joined | None = None, *, key: Any, at: Moment = None) -> Debugger:
    """Load one key of a snapshot, to step through the batches that came next, in this process.

    The checkpoint is only read, and its query may be running. The steps have the time of the real run, and give the
    key's output rows of the real run.

    Args:
        checkpoint: The query's checkpoint directory, or a ``Checkpoint``.
        joined: The join or function that the query ran, as it was started, with sources of cojoin's; a checkpoint does
            not keep it. None only shows what the snapshot has of the key.
        key: The key: a value; a tuple where it has several columns, or a dict by the left input's columns.
        at: The snapshot: a batch's number; a datetime with a time zone, for the last snapshot at or before it; None for
            the newest, after which few batches have come.

    Returns:
        The key's ``state``, ``timers`` and ``waiting`` rows, the ``watermark``, the rows ``upcoming``, and ``steps()``.

    Raises:
        ConfigurationError: There is no Spark session, or an argument is invalid.
        FunctionError: A value of the key is not of its column's type.
        CheckpointError: It is no checkpoint, it has no such snapshot (the message lists those that it has), or
            ``joined`` is another query.

    Warns:
        UserWarning: The snapshot has nothing of the key.

    Example:
        >>> debugger = debug("/lake/_cojoin/enriched", joined, key=17, at=12)  # doctest: +SKIP
        >>> for step in debugger.steps():  # doctest: +SKIP
        ...     print(step.batch_id, step.output)
    """
    spark = active_session()
    if spark is None:
        msg = "debug: there is no Spark session to read the checkpoint; make one with cojoin.spark_session()"
        raise ConfigurationError(msg)
    bound = None
    if joined is not None:
        if not isinstance(joined, Joined):
            msg = f"debug: joined: expected the Joined that the query ran, such as pair.asof_join(), got {joined!r}"
            raise ConfigurationError(msg)
        bound = joined._spark("debug").bound  # noqa: SLF001
    loaded = load_key(spark, as_checkpoint(checkpoint, at), key)
    debugger = Debugger.of(loaded, None if joined is None else joined.plan, bound)
    if loaded.is_empty:
        warnings.warn(f"debug: {nothing_of(key, loaded.batch, near_keys(loaded))}", stacklevel=2)
    return debugger
