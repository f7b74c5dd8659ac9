"""What an operator keeps survives a restart, changed columns and a division into other key groups, or is refused."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from cojoin.errors import CheckpointError, CodecError
from tests.engine.test_operator import Recorder, customers, feed, trades
from tests.streams import CUSTOMERS


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
    assert again._held[0].column("at").num_chunks == 1


def test_a_restore_needs_the_inputs_columns() -> None:
    snapshot = Recorder().snapshot()
    operator = Recorder()
    narrow = replace(operator.inputs[1], schema=pa.schema([*list(CUSTOMERS)[:-1], ("rank", pa.int64())]))
    operator.inputs = (operator.inputs[0], narrow)
    with pytest.raises(CheckpointError) as caught:
        operator.restore(snapshot)
    assert str(caught.value) == (
        "input 'customers': the checkpoint's columns can't become the query's: column 'tier' is there and not here; "
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
    with pytest.raises(CheckpointError, match="column 'customer', which must keep its type, is string there and large"):
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
