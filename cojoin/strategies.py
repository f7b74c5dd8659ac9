"""How an input's watermark follows its rows, partition by partition.

A strategy looks at rows where they are packed: of each task's rows it takes one number a source partition, its *mark*,
and the largest mark ever seen makes the partition's watermark. So a watermark is the same whatever the tasks, batches
and restarts were. Kinds: bounded out-of-orderness, ascending timestamps, a fixed lag behind the clock, punctuated by a
column, none, and a user's own ``WatermarkGenerator``. (Flink: ``WatermarkStrategy``, ``WatermarkGenerator``,
``WatermarksWithIdleness``.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.durations import Duration, milliseconds
from cojoin.errors import ConfigurationError, SchemaError, did_you_mean
from cojoin.watermarks import NONE, Returning

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Idleness", "IdlenessTimer", "WatermarkGenerator", "WatermarkStrategy"]


class WatermarkGenerator(ABC):
    """Makes watermarks of marks; subclass it, as a frozen dataclass that can be pickled, for one of your own.

    >>> @dataclass(frozen=True)
    ... class Heartbeats(WatermarkGenerator):
    ...     '''Rows that carry no amount say how far their source has come.'''
    ...     def marks(self, rows, timestamps):
    ...         return np.where(rows.column("amount").is_null().to_numpy(), timestamps, NONE)
    ...     def watermark(self, mark, processing_time):
    ...         return mark
    """

    follows_clock = False
    """Whether the watermark moves with processing time even where no row comes: then ``watermark`` is also asked once a
    micro-batch for the whole input, with the mark ``NONE``."""

    def marks(self, rows: pa.Table, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give each row's mark; a row that says nothing has ``NONE``, the smallest 64-bit integer.

        Args:
            rows: Rows of the input, with all its columns.
            timestamps: Their event times in epoch milliseconds.
        """
        del rows
        return timestamps

    @abstractmethod
    def watermark(self, mark: int, processing_time: int) -> int:
        """Give a partition's watermark in epoch milliseconds.

        Args:
            mark: The largest mark seen in the partition.
            processing_time: The micro-batch's, in epoch milliseconds.
        """

    def of_source(self, time: int, processing_time: int) -> int:
        """Give a partition's watermark where its source says that all before a time has been read.

        Only a watermark that goes by the rows' event times alone can follow; any other hears nothing.

        Args:
            time: In epoch milliseconds.
            processing_time: The micro-batch's, in epoch milliseconds.
        """
        del time, processing_time
        return NONE

    def check(self, schema: pa.Schema, what: str) -> None:  # noqa: B027 - most need no column
        """Refuse an input that lacks what the generator reads.

        Args:
            schema: The input's columns.
            what: The input, for the message.

        Raises:
            SchemaError: A column is missing or has the wrong type.
        """


@dataclass(frozen=True)
class BoundedOutOfOrderness(WatermarkGenerator):
    """The largest timestamp, less the bound and one millisecond."""

    out_of_orderness_ms: int = 0

    def watermark(self, mark: int, processing_time: int) -> int:
        """Give the largest timestamp less the bound and a millisecond."""
        del processing_time
        return max(NONE, mark - self.out_of_orderness_ms - 1)

    def of_source(self, time: int, processing_time: int) -> int:
        """Give the same as for a row of that time."""
        return self.watermark(time, processing_time)


@dataclass(frozen=True)
class ClockLag(WatermarkGenerator):
    """The clock, less a fixed lag; rows say nothing."""

    lag_ms: int
    follows_clock = True

    def marks(self, rows: pa.Table, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give no mark."""
        return _nothing(rows, timestamps)

    def watermark(self, mark: int, processing_time: int) -> int:
        """Give the processing time less the lag."""
        del mark
        return processing_time - self.lag_ms


@dataclass(frozen=True)
class Punctuated(WatermarkGenerator):
    """What a column of the rows says."""

    column: str

    def marks(self, rows: pa.Table, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the watermark that each row carries."""
        values = rows.column(self.column).combine_chunks()
        if pa.types.is_boolean(values.type):
            return np.where(values.fill_null(False).to_numpy(zero_copy_only=False), timestamps, NONE)
        if pa.types.is_timestamp(values.type):
            micros = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
            marks: NDArray[np.int64] = np.floor_divide(micros.fill_null(0).to_numpy(zero_copy_only=False), 1_000)
        else:
            marks = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return np.where(pc.is_valid(values).to_numpy(zero_copy_only=False), marks, NONE)

    def watermark(self, mark: int, processing_time: int) -> int:
        """Give the largest watermark that a row carried."""
        del processing_time
        return mark

    def check(self, schema: pa.Schema, what: str) -> None:
        """Refuse an input whose column is missing, or says no time.

        Raises:
            SchemaError: As it says.
        """
        if self.column not in schema.names:
            msg = f"{what} has no watermark column {self.column!r}{did_you_mean(self.column, schema.names)}"
            raise SchemaError(msg)
        dtype = schema.field(self.column).type
        is_zoned = pa.types.is_timestamp(dtype) and dtype.tz is not None
        if not (is_zoned or pa.types.is_boolean(dtype) or pa.types.is_integer(dtype)):
            msg = (
                f"{what}: watermark column {self.column!r}: expected a timestamp, a bigint of epoch milliseconds, or a "
                f"boolean that marks rows whose own time it is, got {dtype}"
            )
            raise SchemaError(msg)


@dataclass(frozen=True)
class NoWatermarks(WatermarkGenerator):
    """None, ever."""

    def marks(self, rows: pa.Table, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give no mark."""
        return _nothing(rows, timestamps)

    def watermark(self, mark: int, processing_time: int) -> int:
        """Give none."""
        del mark, processing_time
        return NONE


def _nothing(rows: pa.Table, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
    del rows
    return np.full(len(timestamps), NONE, dtype=np.int64)


@dataclass(frozen=True)
class Idleness:
    """When a silent partition, or a whole input, no longer holds time back.

    Attributes:
        timeout_ms: How long it must have been silent.
        returning: What becomes of one that returns behind the others.
        even_if_silent: Whether an input that has never spoken may go idle, too.
    """

    timeout_ms: int
    returning: Returning = "hold"
    even_if_silent: bool = False


@dataclass(frozen=True)
class WatermarkStrategy:
    """How an input's watermark follows its rows, and when a silent source no longer holds time back.

    Attributes:
        generator: Makes each source partition's watermark.
        idleness: When silence is idleness; None is never.

    >>> WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_idleness("1 minute").idleness.timeout_ms
    60000
    """

    generator: WatermarkGenerator = field(default_factory=BoundedOutOfOrderness)
    idleness: Idleness | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.generator, WatermarkGenerator):
            msg = f"generator: expected a WatermarkGenerator, got {self.generator!r}"
            raise ConfigurationError(msg)

    @classmethod
    def for_bounded_out_of_orderness(cls, max_out_of_orderness: Duration) -> WatermarkStrategy:
        """Let rows come out of order by up to a bound, within each source partition.

        Args:
            max_out_of_orderness: ``"5 seconds"`` or a ``timedelta``, in whole milliseconds.

        Raises:
            ConfigurationError: It is negative, has no unit, or does not parse.
        """
        return cls(BoundedOutOfOrderness(milliseconds(max_out_of_orderness, "max_out_of_orderness")))

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy:
        """Expect ascending timestamps within each source partition."""
        return cls(BoundedOutOfOrderness())

    @classmethod
    def for_clock_lag(cls, lag: Duration) -> WatermarkStrategy:
        """Stay a fixed time behind the clock, whatever the rows say: for sources known to be no later than that.

        The clock is each micro-batch's processing time. In a replay of the past nearly every row is late.

        Args:
            lag: ``"30 seconds"`` or a ``timedelta``, in whole milliseconds.

        Raises:
            ConfigurationError: It is negative, has no unit, or does not parse.
        """
        return cls(ClockLag(milliseconds(lag, "lag")))

    @classmethod
    def for_punctuated(cls, column: str) -> WatermarkStrategy:
        """Let the rows themselves say how far time has come; rows that say nothing move nothing.

        Args:
            column: A column of the input that is null where a row says nothing, else the watermark: a ``timestamp``
                (floored to milliseconds) or a ``bigint`` of epoch milliseconds. Or a ``boolean`` column: where it is
                true the watermark is the row's own event time.

        Raises:
            ConfigurationError: It is no name.
        """
        if not isinstance(column, str) or not column:
            msg = f"column: expected the name of a column, got {column!r}"
            raise ConfigurationError(msg)
        return cls(Punctuated(column))

    @classmethod
    def no_watermarks(cls) -> WatermarkStrategy:
        """Make no watermark: the input holds event time for ever, unless it is idle or finished."""
        return cls(NoWatermarks())

    @classmethod
    def for_generator(cls, generator: WatermarkGenerator) -> WatermarkStrategy:
        """Use a generator of your own.

        Raises:
            ConfigurationError: It is no ``WatermarkGenerator``.
        """
        return cls(generator)

    def with_idleness(
        self, timeout: Duration, *, returning: Returning = "hold", even_if_silent: bool = False
    ) -> WatermarkStrategy:
        """Leave a source partition out of the minimum while it is silent, and the input while all of them are.

        Time counts from the first micro-batch without a row of the partition, by processing time, and only while the
        query runs; it ends with the partition's next row. A query whose strategy has idleness runs micro-batches
        without rows, too. Kafka's source takes rows of every partition that has any, so a silent one has none; of files
        and Delta tables with partition columns, rows in files not yet read look like silence: choose a timeout that is
        longer than catching up takes.

        Args:
            timeout: How long a partition must have been silent; more than zero.
            returning: ``"hold"`` lets a partition that returns behind the others hold time until it has caught up;
                ``"skip"`` leaves it out until then, so its rows are late meanwhile.
            even_if_silent: Whether an input that has never spoken may go idle, too.

        Raises:
            ConfigurationError: The timeout is not above zero, or ``returning`` is unknown.
        """
        timeout_ms = milliseconds(timeout, "idle timeout")
        if timeout_ms == 0:
            msg = f"idle timeout: expected a duration above zero, got {timeout!r}"
            raise ConfigurationError(msg)
        if returning not in get_args(Returning):
            near = did_you_mean(str(returning), get_args(Returning))
            msg = f"returning: expected 'hold' or 'skip', got {returning!r}{near}"
            raise ConfigurationError(msg)
        if not isinstance(even_if_silent, bool):
            msg = f"even_if_silent: expected True or False, got {even_if_silent!r}"
            raise ConfigurationError(msg)
        return replace(self, idleness=Idleness(timeout_ms, returning, even_if_silent))

    @property
    def needs_clock(self) -> bool:
        """Whether the watermark moves by processing time, so that micro-batches without rows matter."""
        return self.generator.follows_clock or self.idleness is not None


class IdlenessTimer:
    """Tells when a channel that is looked at every now and then has been silent for too long.

    The countdown starts at the first look that finds it silent and ends in idleness at the first later look that is
    more than the timeout away; between two looks nobody knows. (Flink: ``WatermarksWithIdleness.IdlenessTimer``.)

    Args:
        timeout_ms: How long the silence must last.

    >>> timer = IdlenessTimer(10)
    >>> timer.is_idle(0), timer.is_idle(10), timer.is_idle(11)
    (False, False, True)
    """

    def __init__(self, timeout_ms: int) -> None:
        self._timeout = timeout_ms
        self._spoke = False
        self._silent_since: int | None = None

    def activity(self) -> None:
        """Hear it speak."""
        self._spoke = True

    def is_idle(self, now: int) -> bool:
        """Look at it, at a processing time in milliseconds that never goes back."""
        if self._spoke:
            self.restart()
        elif self._silent_since is None:
            self._silent_since = now
        else:
            return now - self._silent_since > self._timeout
        return False

    def restart(self) -> None:
        """Forget the silence so far, as after a pause in which nobody could have heard anything."""
        self._spoke, self._silent_since = False, None

    def snapshot(self) -> int | None:
        """Give since when it has been silent."""
        return self._silent_since

    def restore(self, silent_since: Any) -> None:
        """Take what ``snapshot`` gave."""
        self._spoke, self._silent_since = False, silent_since
