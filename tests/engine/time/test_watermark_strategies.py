"""How watermarks follow rows: every kind of strategy."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from cojoin.engine.inputs import InputSpec, watermark_marks
from cojoin.engine.time.input_watermark import InputWatermark
from cojoin.engine.time.watermark_strategies import WatermarkGenerator, WatermarkStrategy
from cojoin.engine.time.watermarks import NONE
from cojoin.errors import ConfigurationError, FunctionError, SchemaError

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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "gave None"),
        ("5", "gave '5'"),
        (2.5, "gave 2.5"),
        (float("nan"), "gave nan"),
        (float("inf"), "gave inf"),
        (True, "gave True"),
        (1 << 63, "gave 9223372036854775808"),
    ],
)
def test_a_generator_that_gives_no_watermark_is_told(given: Any, said: str) -> None:
    class Gives(WatermarkGenerator):
        follows_clock = True

        def watermark(self, mark: int, processing_time: int) -> Any:
            return given

    watermark = InputWatermark(WatermarkStrategy.for_generator(Gives()))
    for call, mark in ((lambda: watermark.observe("p", 7), 7), (lambda: watermark.tick(0), NONE)):
        with pytest.raises(FunctionError, match=rf"Gives.watermark\({mark}, 0\) {said}; expected a whole number"):
            call()


def test_a_generator_may_give_numpys_numbers_and_less_than_the_least() -> None:
    for given, expected in ((np.int64(5), 5), (5.0, 5), (-(1 << 70), NONE), (NONE, NONE)):
        generator = Given(lambda mark, now, given=given: given)
        assert generator.made(1, 2) == expected
    with pytest.raises(FunctionError, match=r"Given.watermark\(1, 2\) raised ZeroDivisionError"):
        Given(lambda mark, now: mark // 0).made(1, 2)


@pytest.mark.parametrize("marks", [None, [1], 5, np.array([1.0]), np.array([1, 2]), np.array([True]), np.array([[1]])])
def test_marks_are_one_whole_number_a_row(marks: Any) -> None:
    with pytest.raises(
        FunctionError, match=r"input 'l': Given.marks: expected a numpy array of 1 int64, one a row, got"
    ):
        watermark_marks(*one_row(lambda rows, times: marks))


def test_marks_that_fail_name_input_and_generator() -> None:
    with pytest.raises(FunctionError, match=r"input 'l': Given.marks raised KeyError: .*nope"):
        watermark_marks(*one_row(lambda rows, times: rows.column("nope")))


@dataclass(frozen=True)
class Given(WatermarkGenerator):
    """Returns what a function returns."""

    gives: Any

    def watermark(self, mark: int, processing_time: int) -> Any:
        return self.gives(mark, processing_time)

    def marks(self, rows: Any, timestamps: Any) -> Any:
        return self.gives(rows, timestamps)


def one_row(gives: Any) -> tuple[Any, ...]:
    schema = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    spec = InputSpec("l", schema, ("k",), "at", watermark=WatermarkStrategy.for_generator(Given(gives)))
    rows = pa.table([pa.array(["a"]), pa.array([7]).cast(schema.field(1).type)], schema=schema)
    return rows, spec, spec.millis(rows), 0
