"""Operators keep rows until they are due, account for each, and restore what they kept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from cojoin.engine.operator import OUTPUT, Batch, Emission, Operator
from cojoin.engine.time.control_rows import Control
from cojoin.engine.time.operator_watermark import TimePolicy
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.values.tables import concat, take_rows, up_to_millis
from cojoin.errors import CheckpointError, CodecError
from tests.streams import CUSTOMERS, TRADES, Rows, Streams, map_side, specs, table

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_a_restored_operator_goes_on_where_the_other_stopped() -> None:
    operator, restored = Recorder(), Recorder()
    feed(operator, trades(10, 20), customers(15))
    restored.restore(operator.snapshot())
    assert restored.report() == operator.report()
    assert restored.snapshot() == operator.snapshot()
    assert feed(restored, trades(30), customers(40)) == feed(operator, trades(30), customers(40))


def test_the_pieces_of_what_waits_do_not_add_up() -> None:
    operator = Recorder()
    for milli in range(60):
        feed(operator, trades(1_000 + milli), [])
        feed(operator, [], [])
    again = Recorder()
    again.restore(operator.snapshot())
    assert again.held_rows()[0].column("at").num_chunks == 1


def test_a_restore_needs_the_inputs_columns() -> None:
    snapshot = Recorder().snapshot()
    operator = Recorder()
    narrow = replace(operator.inputs[1], schema=pa.schema([*list(CUSTOMERS)[:-1], ("rank", pa.int64())]))
    operator.inputs = (operator.inputs[0], narrow)
    with pytest.raises(CheckpointError) as caught:
        operator.restore(snapshot)
    assert str(caught.value) == (
        "input 'customers': the checkpoint's columns can't become the query's: column 'tier' is removed; "
        "keep them as they were, or start with a new checkpoint"
    )


def test_a_restore_gives_rows_that_wait_the_columns_of_now() -> None:
    operator, again = Recorder(), Recorder()
    feed(operator, trades(10), [])
    left, right = again.inputs
    fields = [field.with_type(pa.int64()) if field.name == "part" else field for field in left.schema]
    wider = replace(left, schema=pa.schema([*reversed(fields), ("note", pa.string())]))
    again.inputs = (wider, right)
    again.restore(operator.snapshot())
    (row,) = again.held_rows()[0].to_pylist()
    assert again.held_rows()[0].schema == wider.schema
    assert (row["customer"], row["part"], row["note"]) == ("a", 0, None)
    keyed = [field.with_type(pa.large_string()) if field.name == "customer" else field for field in left.schema]
    again.inputs = (replace(left, schema=pa.schema(keyed)), right)
    with pytest.raises(
        CheckpointError, match="column 'customer', which must keep its type, changes from string to large"
    ):
        again.restore(operator.snapshot())


def test_a_state_may_come_in_parts_whose_counters_one_key_group_keeps() -> None:
    operator = Recorder()
    feed(operator, trades(10, 20), customers(30))
    feed(operator, trades(5, 40), [])
    header, tables = operator.parts()
    first, second = Recorder(), Recorder()
    first.load_parts(header, {}, keeps_counts=True)
    second.load_parts(header, tables, keeps_counts=False)
    nothing = {"rows_in": 0, "done": 0, "late_applied": 0, "rejected": {}, "buffered": 0}
    assert first.report()["inputs"] == [
        nothing | {"rows_in": 3, "done": 2, "rejected": {"late": 1}},
        nothing,
    ]
    assert second.report()["inputs"] == [
        nothing | {"rows_in": 1, "buffered": 1},
        nothing | {"rows_in": 1, "buffered": 1},
    ]
    assert (first.rows_out, second.rows_out, operator.rows_out) == (2, 0, 2)
    assert first.report()["watermark"] == second.report()["watermark"] == operator.report()["watermark"]


def test_a_state_remembers_where_its_last_snapshot_lies() -> None:
    operator, again = Recorder(), Recorder()
    assert operator.parts()[0]["saved"] is None
    operator.saved = {"version": 7}
    again.restore(operator.snapshot())
    assert again.saved == {"version": 7}
    assert again.parts()[0] == operator.parts()[0]
    header, tables = operator.parts()
    again.load({name: value for name, value in header.items() if name != "saved"}, tables)
    assert again.saved is None
    again.check_states()


def test_a_restore_that_is_refused_changes_nothing() -> None:
    operator = Recorder()
    feed(operator, trades(10), customers(10))
    before = operator.report()
    with pytest.raises(CodecError):
        operator.restore(Recorder().snapshot()[:-1])
    assert operator.report() == before


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
