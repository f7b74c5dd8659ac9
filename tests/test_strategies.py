"""How watermarks follow rows: every kind of strategy, and when silence is idleness."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from cojoin.errors import ConfigurationError, SchemaError
from cojoin.strategies import IdlenessTimer, WatermarkGenerator, WatermarkStrategy
from cojoin.watermarks import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS = pa.table(
    {
        "amount": [1.0, None, 2.0],
        "flag": [True, None, False],
        "millis": pa.array([7, None, 9], pa.int64()),
        "at": pa.array([7_999, None, -1], pa.timestamp("us", "UTC")),
        "naive": pa.array([1, 2, 3], pa.timestamp("us")),
    }
)
TIMES = np.array([10, 20, 30], dtype=np.int64)


def marks(strategy: WatermarkStrategy) -> list[int]:
    strategy.generator.check(ROWS.schema, "input 'trades'")
    return strategy.generator.marks(ROWS, TIMES).tolist()  # type: ignore[no-any-return]


def test_bounded_rows_are_marked_by_their_time_less_the_bound_and_a_millisecond() -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 ms")
    assert marks(strategy) == [10, 20, 30]
    assert strategy.generator.watermark(30, 0) == 24
    assert strategy.generator.watermark(NONE + 2, 0) == NONE
    assert WatermarkStrategy.for_monotonous_timestamps().generator.watermark(30, 0) == 29
    assert WatermarkStrategy.for_monotonous_timestamps() == WatermarkStrategy()
    assert not strategy.needs_clock


@pytest.mark.parametrize(
    ("column", "expected"),
    [("flag", [10, NONE, NONE]), ("millis", [7, NONE, 9]), ("at", [7, NONE, -1])],
)
def test_punctuated_rows_say_it_themselves(column: str, expected: list[int]) -> None:
    strategy = WatermarkStrategy.for_punctuated(column)
    assert marks(strategy) == expected
    assert strategy.generator.watermark(9, 0) == 9


def test_a_clock_lag_asks_no_row() -> None:
    strategy = WatermarkStrategy.for_clock_lag("30 seconds")
    assert marks(strategy) == [NONE] * 3
    assert strategy.generator.watermark(NONE, 100_000) == 70_000
    assert strategy.needs_clock


def test_none_is_none() -> None:
    strategy = WatermarkStrategy.no_watermarks()
    assert marks(strategy) == [NONE] * 3
    assert strategy.generator.watermark(5, 5) == NONE


def test_a_generator_of_ones_own_reads_the_rows() -> None:
    @dataclass(frozen=True)
    class Heartbeats(WatermarkGenerator):
        def marks(self, rows: pa.Table, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.where(rows.column("amount").is_null().to_numpy(), timestamps, NONE)

        def watermark(self, mark: int, processing_time: int) -> int:
            return mark - 1

    strategy = WatermarkStrategy.for_generator(Heartbeats())
    assert marks(strategy) == [NONE, 20, NONE]
    assert strategy.generator.watermark(20, 0) == 19


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=-1)), "zero or more"),
        (lambda: WatermarkStrategy.for_bounded_out_of_orderness("5"), "max_out_of_orderness: expected a duration"),
        (lambda: WatermarkStrategy.for_clock_lag("1 us"), "lag: expected whole milliseconds"),
        (lambda: WatermarkStrategy.for_punctuated(""), "column: expected the name of a column"),
        (lambda: WatermarkStrategy.for_generator(len), "generator: expected a WatermarkGenerator"),
        (lambda: WatermarkStrategy().with_idleness("0 seconds"), "idle timeout: expected a duration above zero"),
        (lambda: WatermarkStrategy().with_idleness("-1 ms"), "idle timeout: expected a duration of zero or more"),
        (lambda: WatermarkStrategy().with_idleness("1 s", returning="skp"), "did you mean 'skip'"),
        (lambda: WatermarkStrategy().with_idleness("1 s", even_if_silent=1), "even_if_silent: expected True or False"),
    ],
)
def test_a_value_that_can_not_be_right_is_named(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_a_punctuating_column_must_be_there_and_say_a_time() -> None:
    with pytest.raises(SchemaError, match="input 'trades' has no watermark column 'milis'; did you mean 'millis'"):
        WatermarkStrategy.for_punctuated("milis").generator.check(ROWS.schema, "input 'trades'")
    for column in ("amount", "naive"):
        with pytest.raises(SchemaError, match="expected a timestamp, a bigint of epoch milliseconds"):
            WatermarkStrategy.for_punctuated(column).generator.check(ROWS.schema, "input 'trades'")


def test_silence_counts_from_the_first_look_that_finds_it() -> None:
    timer = IdlenessTimer(10)
    timer.activity()
    assert [timer.is_idle(now) for now in (1, 6, 11, 16, 17)] == [False, False, False, False, True]
    timer.activity()
    assert [timer.is_idle(now) for now in (18, 19, 29, 30)] == [False, False, False, True]


def test_silence_survives_a_restart_and_a_pause_forgets_it() -> None:
    timer, other = IdlenessTimer(10), IdlenessTimer(10)
    timer.is_idle(0)
    other.restore(timer.snapshot())
    assert other.is_idle(11)
    other.restart()
    assert not other.is_idle(12)
