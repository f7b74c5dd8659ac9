"""Watermark strategies: how an input's watermark follows its rows, partition by partition.

A strategy reads rows in the tasks that pack them. It reduces each task's rows to one number for each source partition,
its *mark*, and the largest mark ever seen determines the partition's watermark. So a watermark does not depend on
tasks, batches and restarts. There are bounded out-of-orderness, ascending timestamps, a fixed lag behind the clock,
punctuation by a column, no watermarks, and a user's own ``WatermarkGenerator``. (Flink: ``WatermarkStrategy``,
``WatermarkGenerator``, ``WatermarksWithIdleness``.)

A checkpoint describes the strategies that its last batch was planned with, as JSON values. A description is data. A
user's own generator is code, of which a checkpoint keeps only the class and the text, so its strategy is made again
from the query's own, if that has the same generator.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.time.watermarks import END_OF_TIME, NONE, Idleness, Returning
from cojoin.engine.values.arguments import Duration, duration_text, milliseconds
from cojoin.errors import ConfigurationError, FunctionError, SchemaError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


class WatermarkGenerator(ABC):
    """Makes watermarks from marks; subclass it as a frozen dataclass that can be pickled.

    >>> @dataclass(frozen=True)
    ... class Heartbeats(WatermarkGenerator):
    ...     '''Rows that carry no amount are marks of their source.'''
    ...     def marks(self, rows, timestamps):
    ...         return np.where(rows.column("amount").is_null().to_numpy(), timestamps, NONE)
    ...     def watermark(self, mark, processing_time):
    ...         return mark
    """

    follows_clock = False
    """Whether the watermark moves with processing time even where no row comes. If so, ``watermark`` is also called
    once a micro-batch for the whole input, with the mark ``NONE``."""

    def marks(self, rows: pa.Table, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each row's mark; ``NONE``, the smallest 64-bit integer, for a row that does not affect the watermark.

        Args:
            rows: Rows of the input, with all its columns.
            timestamps: Their event times in epoch milliseconds.
        """
        del rows
        return timestamps

    @abstractmethod
    def watermark(self, mark: int, processing_time: int) -> int:
        """Return a partition's watermark in epoch milliseconds, a whole number of 64 bits.

        Args:
            mark: The largest mark seen in the partition.
            processing_time: The micro-batch's processing time in epoch milliseconds.
        """

    def made(self, mark: int, processing_time: int) -> int:
        """Return the result of ``watermark``, after checking it.

        Raises:
            FunctionError: ``watermark`` raised an error, or did not return a whole number of 64 bits.
        """
        label = f"{type(self).__name__}.watermark({mark}, {processing_time})"
        try:
            watermark = self.watermark(mark, processing_time)
        except Exception as error:
            msg = f"{label} raised {type(error).__name__}: {error}"
            raise FunctionError(msg) from error
        try:
            fits = not isinstance(watermark, (str, bool)) and int(watermark) == watermark and watermark <= END_OF_TIME
        except (TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            msg = (
                f"{label} returned {watermark!r}; expected a whole number of epoch milliseconds, "
                f"or {NONE} for no watermark"
            )
            raise FunctionError(msg)
        return max(NONE, int(watermark))

    @property
    def takes_promises(self) -> bool:
        """Whether the watermark advances with a source's report that all rows before a time have been read."""
        return self.of_source(0, 0) > NONE

    def of_source(self, time: int, processing_time: int) -> int:
        """Return a partition's watermark where its source reports that all rows before a time have been read.

        Only a watermark that depends on the rows' event times alone can follow; any other is ``NONE`` here.

        Args:
            time: The time in epoch milliseconds.
            processing_time: The micro-batch's processing time in epoch milliseconds.
        """
        del time, processing_time
        return NONE

    def check(self, schema: pa.Schema, label: str) -> None:  # noqa: B027 - most need no column
        """Check that an input has the columns that the generator reads.

        Args:
            schema: The input's columns.
            label: The input, for the message.

        Raises:
            SchemaError: A column is missing or has the wrong type.
        """


@dataclass(frozen=True)
class BoundedOutOfOrderness(WatermarkGenerator):
    """The largest timestamp, minus the bound and one millisecond."""

    out_of_orderness_ms: int = 0

    def watermark(self, mark: int, processing_time: int) -> int:
        """Return the largest timestamp minus the bound and one millisecond."""
        del processing_time
        return max(NONE, mark - self.out_of_orderness_ms - 1)

    def of_source(self, time: int, processing_time: int) -> int:
        """Return the watermark that a row of that time makes."""
        return self.watermark(time, processing_time)


@dataclass(frozen=True)
class ClockLag(WatermarkGenerator):
    """The processing time minus a fixed lag, whatever the rows are."""

    lag_ms: int
    follows_clock = True

    def marks(self, rows: pa.Table, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ``NONE`` for each row."""
        return _nothing(rows, timestamps)

    def watermark(self, mark: int, processing_time: int) -> int:
        """Return the processing time minus the lag."""
        del mark
        return processing_time - self.lag_ms


@dataclass(frozen=True)
class Punctuated(WatermarkGenerator):
    """The watermark that a column of the rows carries."""

    column: str

    def marks(self, rows: pa.Table, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the watermark that each row carries, or ``NONE``."""
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
        """Return the largest watermark that a row carried."""
        del processing_time
        return mark

    def check(self, schema: pa.Schema, label: str) -> None:
        """Check that the input has the column, with a type that can be a watermark."""
        if self.column not in schema.names:
            msg = f"{label} has no watermark column {self.column!r}{did_you_mean(self.column, schema.names)}"
            raise SchemaError(msg)
        dtype = schema.field(self.column).type
        is_zoned = pa.types.is_timestamp(dtype) and dtype.tz is not None
        if not (is_zoned or pa.types.is_boolean(dtype) or pa.types.is_integer(dtype)):
            msg = (
                f"{label}: watermark column {self.column!r}: expected a timestamp, a bigint of epoch milliseconds, or "
                f"a boolean that marks rows whose own time it is, got {dtype}"
            )
            raise SchemaError(msg)


@dataclass(frozen=True)
class NoWatermarks(WatermarkGenerator):
    """No watermark."""

    def marks(self, rows: pa.Table, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ``NONE`` for each row."""
        return _nothing(rows, timestamps)

    def watermark(self, mark: int, processing_time: int) -> int:
        """Return ``NONE``."""
        del mark, processing_time
        return NONE


def _nothing(rows: pa.Table, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
    del rows
    return np.full(len(timestamps), NONE, dtype=np.int64)


@dataclass(frozen=True)
class WatermarkStrategy:
    """The rules by which an input's watermark follows its rows, and when a silent source no longer holds it back.

    Attributes:
        generator: Makes each source partition's watermark.
        idleness: When a silent source is idle; None is never.

    >>> WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_idleness("1 minute").idleness.timeout_ms
    60000
    """

    generator: WatermarkGenerator = field(default_factory=BoundedOutOfOrderness)
    idleness: Idleness | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.generator, WatermarkGenerator):
            msg = f"generator: expected a WatermarkGenerator, got {self.generator!r}"
            raise ConfigurationError(msg)
        if self.idleness is not None and not isinstance(self.idleness, Idleness):
            msg = f"idleness: expected an Idleness, got {self.idleness!r}; write .with_idleness('1 minute')"
            raise ConfigurationError(msg)

    @classmethod
    def for_bounded_out_of_orderness(cls, max_out_of_orderness: Duration) -> WatermarkStrategy:
        """Return a strategy for rows that are out of order by up to a bound, within each source partition.

        Args:
            max_out_of_orderness: ``"5 seconds"`` or a ``timedelta``, in whole milliseconds.

        Raises:
            ConfigurationError: It is negative, has no unit, or does not parse.
        """
        return cls(BoundedOutOfOrderness(milliseconds(max_out_of_orderness, "max_out_of_orderness")))

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy:
        """Return a strategy for ascending timestamps within each source partition."""
        return cls(BoundedOutOfOrderness())

    @classmethod
    def for_clock_lag(cls, lag: Duration) -> WatermarkStrategy:
        """Return a strategy that stays a fixed time behind the clock, whatever the rows are.

        It is for sources whose rows are known to be no later than that. The clock is each micro-batch's processing
        time, so in a replay of the past nearly every row is late.

        Args:
            lag: ``"30 seconds"`` or a ``timedelta``, in whole milliseconds.

        Raises:
            ConfigurationError: It is negative, has no unit, or does not parse.
        """
        return cls(ClockLag(milliseconds(lag, "lag")))

    @classmethod
    def for_punctuated(cls, column: str) -> WatermarkStrategy:
        """Return a strategy for rows that carry the watermark themselves; other rows do not move it.

        Args:
            column: A column of the input that holds the watermark, or null where a row carries none: a ``timestamp``
                (floored to milliseconds) or a ``bigint`` of epoch milliseconds. Or a ``boolean`` column: where it is
                true the watermark is the row's own event time.

        Raises:
            ConfigurationError: It is not a column's name.
        """
        if not isinstance(column, str) or not column:
            msg = f"column: expected the name of a column, got {column!r}"
            raise ConfigurationError(msg)
        return cls(Punctuated(column))

    @classmethod
    def no_watermarks(cls) -> WatermarkStrategy:
        """Return a strategy that makes no watermark.

        The input holds event time back forever, unless it is idle or finished.
        """
        return cls(NoWatermarks())

    @classmethod
    def for_generator(cls, generator: WatermarkGenerator) -> WatermarkStrategy:
        """Return a strategy with a user's own generator.

        Raises:
            ConfigurationError: It is not a ``WatermarkGenerator``.
        """
        return cls(generator)

    def with_idleness(
        self, timeout: Duration, *, returning: Returning = "hold", even_if_silent: bool = False
    ) -> WatermarkStrategy:
        """Return this strategy, leaving a partition out of the minimum while it is silent, and the input while all are.

        While the query runs, the silence begins with the first micro-batch without a row of the partition and ends with
        the partition's next row. It is measured by processing time. A query whose strategy has idleness also runs
        micro-batches without rows. Kafka's source reads rows of every partition that has any, so a silent partition has
        none. With files and Delta tables with partition columns, rows in files not yet read look like silence: choose a
        timeout that is longer than catching up takes.

        Runs over the available rows (``Trigger.available_now()``) read their sources to the ends, so the time between
        them counts, too: a partition without a row from one such run to the next was quiet from the moment at which
        the first looked at its source to that of the other. So ``with_idleness("20 hours")`` works in a daily job. A
        run that failed or was stopped does not count. If the clock went back, counting begins with the next run.

        An input that has never sent anything holds the watermark back, however long; Flink's is idle after the timeout.
        A topic that is still empty, or a folder whose first file is not listed yet, looks like one that is slow to
        start, and once the watermark has advanced without it, all its rows are late. Set ``even_if_silent=True`` where
        the input may well stay empty.

        Args:
            timeout: How long a partition must have been silent; more than zero.
            returning: ``"hold"`` lets a partition that returns behind the others of its input hold the watermark back
                until it has caught up; ``"skip"`` leaves it out until then, so its rows are late meanwhile. An input
                that returns from idleness as a whole always holds the watermark back.
            even_if_silent: Whether an input that has never sent anything may go idle, too, as Flink's does.

        Raises:
            ConfigurationError: The timeout is not above zero, or ``returning`` is unknown.

        >>> WatermarkStrategy.for_monotonous_timestamps().with_idleness("1 minute", even_if_silent=True).idleness
        Idleness(timeout_ms=60000, returning='hold', even_if_silent=True)
        """
        timeout_ms = milliseconds(timeout, "idle timeout")
        if timeout_ms == 0:
            msg = f"idle timeout: expected a duration above zero, got {timeout!r}"
            raise ConfigurationError(msg)
        return replace(self, idleness=Idleness(timeout_ms, returning, even_if_silent))

    @property
    def needs_clock(self) -> bool:
        """Whether the watermark moves by processing time, so that micro-batches without rows matter."""
        return self.generator.follows_clock or self.idleness is not None


_OWN = "own"
_GENERATORS: dict[str, Any] = {
    "bounded_out_of_orderness": BoundedOutOfOrderness,
    "clock_lag": ClockLag,
    "punctuated": Punctuated,
    "no_watermarks": NoWatermarks,
}
"""cojoin's own generators by the names that a description has; the fields of each are its arguments."""

_NAMES = {made: name for name, made in _GENERATORS.items()}


class StrategyIsCodeError(Exception):
    """The described strategy has a user's own generator, which the query no longer has; the argument is its text."""


def describe_generator(generator: WatermarkGenerator) -> dict[str, Any]:
    """Return a generator as JSON values.

    >>> describe_generator(BoundedOutOfOrderness(5000))
    {'generator': 'bounded_out_of_orderness', 'out_of_orderness_ms': 5000}
    """
    name = _NAMES.get(type(generator))
    if name is not None:
        return {"generator": name, **vars(generator)}
    kind = type(generator)
    return {"generator": _OWN, "class": f"{kind.__module__}.{kind.__qualname__}", "text": _own_text(generator)}


def describe_strategy(strategy: WatermarkStrategy) -> dict[str, Any]:
    """Return a strategy as JSON values.

    >>> describe_strategy(WatermarkStrategy.for_monotonous_timestamps().with_idleness("1 minute"))["idleness"]
    {'timeout_ms': 60000, 'returning': 'hold', 'even_if_silent': False}
    """
    idleness = strategy.idleness
    return {**describe_generator(strategy.generator), "idleness": None if idleness is None else dict(vars(idleness))}


def described_strategy(described: Mapping[str, Any], present: WatermarkStrategy) -> WatermarkStrategy:
    """Return the strategy that ``describe_strategy`` described; a user's own generator is taken from the present one.

    >>> strategy = WatermarkStrategy.for_punctuated("mark").with_idleness("1 minute")
    >>> described_strategy(describe_strategy(strategy), WatermarkStrategy.no_watermarks()) == strategy
    True
    """
    values = dict(described)
    idleness = values.pop("idleness", None)
    idle = None if idleness is None else Idleness(**idleness)
    if values == describe_generator(present.generator):
        return replace(present, idleness=idle)
    name = values.pop("generator")
    if name == _OWN:
        written = f"for_generator({values['text']})"
        raise StrategyIsCodeError(written)
    return WatermarkStrategy(_GENERATORS[name](**values), idle)


def as_written(strategy: WatermarkStrategy) -> str:
    """Return the calls that make a strategy, as a user writes them.

    >>> as_written(WatermarkStrategy.for_bounded_out_of_orderness("5 s").with_idleness("60 s", even_if_silent=True))
    "for_bounded_out_of_orderness('5 seconds').with_idleness('1 minute', even_if_silent=True)"
    """
    generator, idle = strategy.generator, strategy.idleness
    if type(generator) not in _NAMES:
        made = f"for_generator({_own_text(generator)})"
    elif isinstance(generator, BoundedOutOfOrderness):
        bound = 1_000 * generator.out_of_orderness_ms
        made = f"for_bounded_out_of_orderness({duration_text(bound)!r})" if bound else "for_monotonous_timestamps()"
    elif isinstance(generator, ClockLag):
        made = f"for_clock_lag({duration_text(1_000 * generator.lag_ms)!r})"
    else:
        made = f"for_punctuated({generator.column!r})" if isinstance(generator, Punctuated) else "no_watermarks()"
    if idle is None:
        return made
    returning = "" if idle.returning == "hold" else f", returning={idle.returning!r}"
    silent = ", even_if_silent=True" if idle.even_if_silent else ""
    return f"{made}.with_idleness({duration_text(1_000 * idle.timeout_ms)!r}{returning}{silent})"


def marks_of(described: Mapping[str, Any]) -> str:
    """Return the kind of marks that a described generator reads; the marks of other kinds are useless to it."""
    name = str(described["generator"])
    return f"{name} {described.get('column', '')}{described.get('class', '')}"


def _own_text(generator: WatermarkGenerator) -> str:
    """Return a user's generator as a text that is the same in each process, and another one for other attributes."""
    text = repr(generator)
    if type(generator).__repr__ is object.__repr__:
        values = sorted(getattr(generator, "__dict__", {}).items())
        attributes = ", ".join(f"{name}={value!r}" for name, value in values)
        text = f"{type(generator).__qualname__.rpartition('.')[2]}({attributes})"
    return re.sub(r" at 0x[0-9a-f]+", "", text)
