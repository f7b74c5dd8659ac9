"""Watermarks follow rows as their strategy says, also after another strategy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from cojoin.engine.input_spec import InputSpec, watermark_marks
from cojoin.engine.time.operator_watermark import InputWatermark
from cojoin.engine.time.watermark_strategies import (
    StrategyIsCodeError,
    WatermarkGenerator,
    WatermarkStrategy,
    as_written,
    describe_strategy,
    described_strategy,
)
from cojoin.engine.time.watermarks import NONE
from cojoin.errors import ConfigurationError, FunctionError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable

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
        (None, "returned None"),
        ("5", "returned '5'"),
        (2.5, "returned 2.5"),
        (float("nan"), "returned nan"),
        (float("inf"), "returned inf"),
        (True, "returned True"),
        (1 << 63, "returned 9223372036854775808"),
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


@dataclass(frozen=True)
class Halved(WatermarkGenerator):
    """Marks that are no times: half of the event time, so that another strategy must not read them."""

    less: int = 0

    def marks(self, rows: pa.Table, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
        del rows
        return timestamps // 2

    def watermark(self, mark: int, processing_time: int) -> int:
        del processing_time
        return 2 * mark - self.less


class Bare(WatermarkGenerator):
    """Has attributes, and no text of its own."""

    def __init__(self, less: int) -> None:
        self.less = less

    def watermark(self, mark: int, processing_time: int) -> int:
        del processing_time
        return mark - self.less


class Plain(WatermarkGenerator):
    def watermark(self, mark: int, processing_time: int) -> int:
        del processing_time
        return mark - 7


OF = WatermarkStrategy
STRATEGIES: dict[str, WatermarkStrategy] = {
    "for_bounded_out_of_orderness('100 milliseconds')": OF.for_bounded_out_of_orderness("100 ms"),
    "for_bounded_out_of_orderness('5 milliseconds')": OF.for_bounded_out_of_orderness("5 ms"),
    "for_monotonous_timestamps()": OF.for_monotonous_timestamps(),
    "for_clock_lag('50 milliseconds')": OF.for_clock_lag("50 ms"),
    "for_punctuated('mark')": OF.for_punctuated("mark"),
    "for_punctuated('other')": OF.for_punctuated("other"),
    "no_watermarks()": OF.no_watermarks(),
    "for_generator(Halved(less=30))": OF.for_generator(Halved(30)),
    "for_generator(Halved(less=3))": OF.for_generator(Halved(3)),
    "for_generator(Plain)": OF.for_generator(Plain()),
}

BEFORE, AFTER = [(1_000, 900, 300), (1_100, 1_050, None)], [(1_200, None, 1_010), (1_110, 1_060, 400)]
"""Rows before and after the change: event time, and the watermarks that two columns carry."""

EXPECTED: dict[str, Callable[[list[Any], list[Any], int], int]] = {
    # Of the rows seen so far, of those seen since the change, and of the clock.
    "for_bounded_out_of_orderness('100 milliseconds')": lambda rows, _, __: max(row[0] for row in rows) - 101,
    "for_bounded_out_of_orderness('5 milliseconds')": lambda rows, _, __: max(row[0] for row in rows) - 6,
    "for_monotonous_timestamps()": lambda rows, _, __: max(row[0] for row in rows) - 1,
    "for_clock_lag('50 milliseconds')": lambda _, __, now: now - 50,
    "for_punctuated('mark')": lambda _, since, __: max([row[1] for row in since if row[1]], default=NONE),
    "for_punctuated('other')": lambda _, since, __: max([row[2] for row in since if row[2]], default=NONE),
    "no_watermarks()": lambda _, __, ___: NONE,
    "for_generator(Halved(less=30))": lambda rows, _, __: max(row[0] for row in rows) - 30,
    "for_generator(Halved(less=3))": lambda rows, _, __: max(row[0] for row in rows) - 3,
    "for_generator(Plain)": lambda _, since, __: max([row[0] for row in since], default=NONE + 7) - 7,
}


def feed(watermark: InputWatermark, rows: list[Any], now: int, strategy: WatermarkStrategy) -> None:
    """Pass a batch's rows as a map task would observe them."""
    watermark.begin(now)
    if rows:
        table = pa.table(dict(zip(("at", "mark", "other"), map(list, zip(*rows, strict=True)), strict=True)))
        marks = strategy.generator.marks(table, table.column("at").to_numpy().astype(np.int64))
        watermark.observe("p", max(row[0] for row in rows), int(marks.max()))
    watermark.tick(now)


@pytest.mark.parametrize(("former", "now_is"), list(permutations(STRATEGIES, 2)))
def test_each_strategy_follows_each_other(former: str, now_is: str) -> None:
    one = InputWatermark(STRATEGIES[former])
    feed(one, BEFORE, 1_080, STRATEGIES[former])
    stored = one.current()
    two = InputWatermark(STRATEGIES[now_is])
    two.restore(json.loads(json.dumps(one.snapshot())))
    assert two.current() == stored, "a batch begins with the watermark that was stored"
    # Halved's marks are its own, whatever it subtracts; all others but times begin anew.
    keeps = former.split("(less", maxsplit=1)[0] == now_is.split("(less", maxsplit=1)[0] and "Halved" in now_is
    for rows, now in (([], 1_090), (AFTER, 1_095)):
        feed(two, rows, now, STRATEGIES[now_is])
        seen, since = BEFORE + rows, rows
        if "Halved" in now_is and not keeps:
            seen = since or [(NONE, None, None)]
        assert two.current() == max(stored, EXPECTED[now_is](seen, since, now)), (rows, now)
        again = InputWatermark(STRATEGIES[now_is])
        again.restore(two.snapshot())
        assert again.snapshot() == two.snapshot()


def test_a_quiet_partition_has_the_new_bound_too_and_is_not_woken() -> None:
    strategy = OF.for_bounded_out_of_orderness("100 ms").with_idleness("10 ms")
    one = InputWatermark(strategy)
    one.observe("a", 1_000)
    one.observe("b", 2_000)
    one.tick(0)
    one.tick(1)
    one.observe("b", 2_000)
    one.tick(12)
    assert (one.statuses(), one.current()) == ({"a": "idle", "b": "active"}, 1_899)
    two = InputWatermark(OF.for_monotonous_timestamps().with_idleness("10 ms"))
    two.restore(one.snapshot())
    two.begin(13)
    assert (two.statuses(), two.partitions()) == ({"a": "idle", "b": "active"}, {"a": 999, "b": 1_999})


def test_a_timestamp_of_no_partition_makes_none() -> None:
    """A state that was written for a query has the largest timestamp of its rows, and no partitions."""
    stored = InputWatermark(OF.for_bounded_out_of_orderness("100 ms")).snapshot() | {"largest": {"[]": 1_000}}
    two = InputWatermark(OF.for_monotonous_timestamps())
    two.restore(stored)
    two.begin(0)
    assert (two.current(), two.partitions(), two.max_timestamp()) == (NONE, {}, 1_000)


def test_without_idleness_what_was_idle_by_it_holds_time_again() -> None:
    one = InputWatermark(OF.for_monotonous_timestamps().with_idleness("10 ms", even_if_silent=True))
    one.tick(0)
    one.tick(11)
    assert one.status() == "idle"
    two = InputWatermark(OF.for_monotonous_timestamps())
    two.restore(one.snapshot())
    assert two.status() == "active"
    one.observe("a", 5)
    one.tick(12)
    one.tick(13)
    one.tick(24)
    assert one.status() == "idle"
    two = InputWatermark(OF.for_monotonous_timestamps())
    two.restore(one.snapshot())
    assert (two.status(), two.current(), two.holding_partition()) == ("active", 4, "a")
    three = InputWatermark(OF.for_monotonous_timestamps().with_idleness("1 s"))
    three.restore(one.snapshot())
    assert three.status() == "idle", "a longer silence wakes nobody"


def test_a_partition_that_was_left_out_takes_part_once_the_strategy_holds() -> None:
    one = InputWatermark(OF.for_monotonous_timestamps().with_idleness("10 ms", returning="skip"))
    one.observe("a", 100)
    one.observe("b", 50)
    for now in (0, 1, 12):
        one.observe("a", 100 + now)
        one.tick(now)
    assert one.current() == 111
    one.observe("b", 60)
    one.observe("a", 200)
    assert one.current() == 199
    two = InputWatermark(OF.for_monotonous_timestamps().with_idleness("10 ms"))
    two.restore(one.snapshot())
    two.observe("a", 400)
    assert (two.current(), two.holding_partition()) == (199, "b")


def test_a_state_of_an_earlier_release_does_not_say_whose_its_marks_are() -> None:
    one = InputWatermark(OF.for_bounded_out_of_orderness("100 ms"))
    feed(one, BEFORE, 0, OF.for_bounded_out_of_orderness("100 ms"))
    stored = {name: value for name, value in one.snapshot().items() if name != "generator"}
    two = InputWatermark(OF.for_punctuated("mark"))
    two.restore(stored)
    feed(two, [(1_200, 1_010, None)], 0, OF.for_punctuated("mark"))
    assert two.current() == 1_010, "and not the largest event time, which was the mark"
    two = InputWatermark(OF.for_monotonous_timestamps())
    two.restore(stored)
    two.begin(0)
    assert two.current() == 1_099


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_a_description_is_data_and_gives_the_strategy_again(name: str) -> None:
    for strategy in (STRATEGIES[name], STRATEGIES[name].with_idleness("1 minute", returning="skip")):
        described = json.loads(json.dumps(describe_strategy(strategy)))
        if "generator(" in name:
            assert described_strategy(described, strategy) == strategy
            with pytest.raises(StrategyIsCodeError):
                described_strategy(described, OF.no_watermarks())
        else:
            assert described_strategy(described, OF.no_watermarks()) == strategy
    with pytest.raises(StrategyIsCodeError, match=r"Bare\(less=3\)"):
        described_strategy(describe_strategy(OF.for_generator(Bare(3))), OF.for_generator(Bare(4)))
    assert as_written(STRATEGIES[name]).startswith(name.removesuffix(")"))
    assert as_written(strategy).endswith(".with_idleness('1 minute', returning='skip')")
