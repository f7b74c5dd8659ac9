from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cojoin.engine.operator import OUTPUT, Batch, Emission, Operator
from cojoin.engine.time.control_rows import Control
from cojoin.engine.time.operator_watermark import TimePolicy
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.values.tables import concat, take_rows, up_to_millis
from tests.streams import CUSTOMERS, TRADES, Rows, Streams, map_side, specs, table

if TYPE_CHECKING:
    from collections.abc import Iterator


class Recorder(Operator):
    """Gives its due rows of the left out again, and remembers each advance."""

    def __init__(
        self,
        *,
        late: Any = ("reject", "apply"),
        holds_rows: bool = True,
        max_ahead_ms: int | None = None,
        time: TimePolicy | None = None,
        changes: dict[str, Any] | None = None,
    ) -> None:
        left, right = (replace(spec, **(changes or {})) for spec in specs((2, 0), max_ahead_ms=max_ahead_ms))
        super().__init__((left, right), late, time, holds_rows=holds_rows)
        self.advances: list[tuple[int, int, int | None]] = []

    def advance(self, due: Any, before: int, after: int, last_event: int | None) -> Iterator[Emission]:
        self.advances.append((before, after, last_event))
        for counts, rows in zip(self.counts, due, strict=True):
            counts.done += rows.num_rows
        yield Emission(OUTPUT, due[0])

    def state_tables(self) -> dict[str, pa.Table]:
        return {}

    def load_state_tables(self, tables: dict[str, pa.Table]) -> None:
        assert not tables


def trades(*millis: int) -> Rows:
    return [("a", 1, milli * 1_000, 0, 0, 1.0, None) for milli in millis]


def customers(*millis: int) -> Rows:
    return [("a", 1, milli * 1_000, 0, 0, "gold") for milli in millis]


def feed(
    operator: Operator,
    left: Rows,
    right: Rows,
    *,
    now: int = 0,
    ends: bool = False,
    holds: dict[int, int] | None = None,
) -> dict[str, list[int]]:
    """Run a batch; return the milliseconds of what comes out."""
    (batch,) = map_side(Streams(operator.inputs, ([], [])), (left, right), 1, now)
    out: dict[str, list[int]] = {"output": [], "rejected": []}
    for emission in operator.process(replace(batch, end_of_input=ends, holds=holds or {})):
        column = "at" if emission.kind == "output" else "event_time"
        out[emission.kind] += [micros // 1_000 for micros in emission.table.column(column).cast(pa.int64()).to_pylist()]
    return out


def test_a_row_waits_until_the_watermark_reaches_it_and_comes_out_in_that_batch() -> None:
    operator = Recorder()
    assert feed(operator, trades(10, 12), []) == {"output": [], "rejected": []}
    assert feed(operator, trades(20), customers(11)) == {"output": [10], "rejected": []}
    assert operator.report()["watermark"] == 10
    assert [each["buffered"] for each in operator.report()["inputs"]] == [2, 1]


def test_a_row_is_late_by_the_watermark_before_its_batch_not_after() -> None:
    operator = Recorder()
    feed(operator, trades(20), customers(30))
    assert operator.report()["watermark"] == 17
    assert feed(operator, trades(17, 18, 40), customers(17)) == {"output": [20, 18], "rejected": [17]}
    assert operator.report()["inputs"][1]["late_applied"] == 1


def test_rows_that_are_known_to_be_unread_are_not_late() -> None:
    """As of a table's history, whose files are read in another order than that of time; over a restart, too."""
    operator = Recorder()
    assert feed(operator, trades(90, 80), customers(99), holds={1: 9, 2: NONE}) == {"output": [], "rejected": []}
    restarted = Recorder()
    restarted.restore(operator.snapshot())
    assert restarted.report()["watermark"] == NONE
    assert feed(restarted, trades(10, 30), [], holds={1: 29}) == {"output": [10], "rejected": []}
    assert feed(restarted, trades(40, 50), customers(15)) == {"output": [80, 30, 40, 50], "rejected": []}
    assert feed(restarted, trades(85), []) == {"output": [], "rejected": [85]}, "from then on as ever"


def test_an_input_may_choose_what_becomes_of_its_late_rows() -> None:
    for late, expected in (("apply", {"output": [5], "rejected": []}), ("reject", {"output": [], "rejected": [5]})):
        operator = Recorder(changes={"late": late})
        feed(operator, trades(20), customers(30))
        assert feed(operator, trades(5), []) == expected


def test_rows_without_time_are_due_at_once_and_never_late() -> None:
    operator = Recorder(changes={"event_time": None}, holds_rows=False)
    rows = table([("a", 1, None, 0, 0, 1.0, None)], TRADES)
    (emission,) = operator.process(Batch((rows, CUSTOMERS.empty_table()), [Control(1, rows=1)]))
    assert emission.table.equals(rows)
    assert operator.report()["inputs"][0]["done"] == 1


def test_time_may_wait_for_the_rights_first_load() -> None:
    operator = Recorder(time=TimePolicy(hold_left_until=50))
    feed(operator, trades(20), customers(30))
    assert (operator.report()["watermark"], operator.report()["holding_input"]) == (NONE, 2)
    assert feed(operator, [], customers(51))["output"] == []
    assert operator.report()["watermark"] == 17


def test_a_query_that_holds_no_rows_takes_them_at_once() -> None:
    operator = Recorder(late=("apply", "apply"), holds_rows=False)
    assert feed(operator, trades(99), []) == {"output": [99], "rejected": []}


def test_the_end_of_input_first_takes_the_watermark_where_the_rows_took_it() -> None:
    operator = Recorder()
    assert feed(operator, trades(10, 20), customers(30), ends=True)["output"] == [10, 20]
    assert operator.advances == [(NONE, 17, None), (17, END_OF_TIME, 30)]
    assert {each["status"] for each in operator.report()["input_watermarks"]} == {"finished"}


def test_after_the_end_every_row_is_late() -> None:
    operator = Recorder()
    feed(operator, [], [], ends=True)
    assert feed(operator, trades(10), [])["rejected"] == [10]


def test_a_poisoned_timestamp_is_rejected_and_moves_no_time_even_with_a_null_key() -> None:
    operator = Recorder(max_ahead_ms=10)
    poisoned = [("a", 1, 10**18, 0, 0, 1.0, None), (None, 1, 10**18, 0, 0, 1.0, None)]
    out = feed(operator, trades(20) + poisoned, customers(20), now=15)
    assert out["rejected"] == [10**15, 10**15]
    assert operator.report()["watermark"] == 17
    assert operator.report()["inputs"][0]["rejected"] == {"too_far_ahead": 2}


def test_processing_time_is_the_batchs_own_even_where_the_clock_went_back() -> None:
    operator = Recorder()
    for now in (100, 90):
        feed(operator, trades(1), [], now=now)
        assert operator.processing_time == now
    feed(operator, trades(1), [])
    assert operator.processing_time == 90


def test_rows_are_counted_as_the_map_side_sent_them() -> None:
    operator = Recorder()
    empty = (TRADES.empty_table(), CUSTOMERS.empty_table())
    list(operator.process(Batch(empty, [Control(1, {}, rows=0), Control(2, {"p": 5}, rows=0)])))
    assert [each["rows_in"] for each in operator.report()["inputs"]] == [0, 0]


def test_concat_leaves_out_empty_tables_but_keeps_their_schema() -> None:
    empty, full = TRADES.empty_table(), pa.table({"a": [1]})
    assert concat([empty]).schema == TRADES
    assert concat([full.slice(0, 0), full, full]).num_rows == 2
    assert concat([full.slice(0, 0), full]) is full


def test_a_time_is_up_to_a_millisecond_until_its_last_microsecond_and_no_limit_is_passed() -> None:
    first, last = -(1 << 63), (1 << 63) - 1
    micros = np.array([first, -1_001, -1_000, -1, 0, 999, 1_000, last])
    for millis in (first, first // 1_000 - 1, first // 1_000, -2, -1, 0, 1, last // 1_000, last):
        assert up_to_millis(micros, millis).tolist() == [each // 1_000 <= millis for each in micros.tolist()]


def test_rows_are_taken_of_any_chunks() -> None:
    chunked = pa.concat_tables([pa.table({"a": ["x", "y"]}), pa.table({"a": ["z"]})])
    assert take_rows(chunked, np.array([2, 0])).column("a").to_pylist() == ["z", "x"]


def test_what_a_source_gives_that_is_no_row_is_counted_and_told() -> None:
    operator = Recorder()
    empty = (TRADES.empty_table(), CUSTOMERS.empty_table())
    faults = [("undecodable", '{"offset": 7}'), ("tombstone", '{"offset": 8}')]
    (emission,) = operator.process(Batch(empty, [Control(2, faults=faults)]))
    assert emission.kind == "rejected"
    assert emission.table.select(["input", "reason", "watermark", "event_time", "row"]).to_pylist() == [
        {"input": "customers", "reason": reason, "watermark": None, "event_time": None, "row": known}
        for reason, known in faults
    ]
    report = operator.report()["inputs"][1]
    assert (report["rows_in"], report["rejected"]) == (2, {"undecodable": 1, "tombstone": 1})
