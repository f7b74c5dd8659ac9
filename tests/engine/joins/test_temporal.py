from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from cojoin.engine.input_spec import InputSpec
from cojoin.engine.joins import TemporalJoin
from cojoin.engine.operator import Batch
from cojoin.engine.time.control_rows import Control
from cojoin.engine.values.types import parse_schema
from cojoin.errors import ConfigurationError, SchemaError
from tests.engine.joins.shop import SUFFIXES, customer, joined, take, trade
from tests.engine.joins.tombstones import Deleting, deleting
from tests.streams import Rows, Streams, run, specs, static, table

CUSTOMERS = InputSpec(
    "customers",
    parse_schema("id long, since timestamp, part int, offset long, closed boolean, tier string"),
    ("id",),
    "since",
    ("part",),
    ("offset",),
)
TRADES = InputSpec("trades", parse_schema("id long, at timestamp, amount double"), ("id",), "at")


def tiers(left: Rows, right: Rows, **options: Any) -> list[Any]:
    """Return the tiers of the trades of one key, where "silver" is a tombstone if ``deletes`` is given."""
    join = TemporalJoin(suffixes=SUFFIXES, **options)
    if join.deletes is None:
        return [row[-1] for row in joined(join, left, right)]
    streams = Streams(specs(), (left, right))
    return [row[-1] for row in run(deleting(join), streams, static(streams)).rows()]


def operator(**options: Any) -> Any:
    return Deleting(TemporalJoin(deletes="closed", suffixes=SUFFIXES, **options), *specs())


def test_a_trade_gets_the_version_in_force_at_its_event_time() -> None:
    trades, versions = [trade(9), trade(10), trade(25)], [customer(10, "silver"), customer(20, "gold")]
    assert tiers(trades, versions) == [None, "silver", "gold"]
    assert tiers(trades, versions, how="inner") == ["silver", "gold"]


def test_from_a_tombstones_microsecond_on_there_is_no_version_until_the_next() -> None:
    trades = [trade(19), trade(20), trade(29), trade(30)]
    versions = [customer(10, "gold"), customer(20, "silver"), customer(30, "gold")]
    assert tiers(trades, versions, deletes="closed") == ["gold", None, None, "gold"]
    assert tiers(trades, versions, deletes="closed", how="inner") == ["gold", "gold"]


def test_of_a_version_and_a_tombstone_of_one_instant_the_later_at_the_source_wins() -> None:
    first, second = customer(10, "gold", offset=1), customer(10, "silver", offset=2)
    assert tiers([trade(10)], [second, first], deletes="closed") == [None]
    assert tiers([trade(10)], [(*first[:4], 3, "gold"), second], deletes="closed") == ["gold"]


def test_the_result_has_no_deletes_column() -> None:
    schema = TemporalJoin(deletes="closed").output_schema(TRADES, CUSTOMERS)
    assert schema.names == ["id", "at", "amount", "since", "part", "offset", "tier"]


def test_a_row_whose_payload_is_null_is_a_tombstone_where_that_is_asked_for() -> None:
    """Key, event time, partition and sequence are no payload; the zone is, unless it is part of the key."""
    left, right = specs(composite=True)
    streams = Streams((left, right), ([trade(15), trade(25), trade(35)], []))
    versions = [customer(10, "gold"), customer(20, None), customer(30, "")]
    for asked, expected in [(True, ["gold", None, ""]), (False, ["gold", None, ""])]:
        join = TemporalJoin(null_payload_deletes=asked, suffixes=SUFFIXES)
        rows = run(join.create_operator, streams, static(replace(streams, rows=(streams.rows[0], versions)))).rows()
        assert [row[-1] for row in rows] == expected
        # A match with a null tier still has a time of its own.
        assert [row[7] is None for row in rows] == [False, asked, False]


def test_with_both_either_is_a_tombstone_and_the_deletes_column_is_no_payload() -> None:
    join = TemporalJoin(deletes="closed", null_payload_deletes=True)
    assert join.payload(CUSTOMERS) == ["tier"]


def test_a_version_is_in_force_for_as_long_as_the_retention_itself_included() -> None:
    trades, versions = [trade(10), trade(11)], [customer(5, "gold")]
    assert tiers(trades, versions, retention="5 us") == ["gold", None]
    assert tiers(trades, versions, retention="5 us", how="inner") == ["gold"]


def test_versions_and_tombstones_are_forgotten() -> None:
    versions = [customer(1_000, "gold"), customer(2_000, "silver"), customer(3_000, "gold", "b")]
    for retention, kept in [(None, ["b"]), ("9 ms", ["a", "b"]), ("7 ms", ["b"]), ("1 ms", [])]:
        running = operator(retention=retention)
        # The watermark is 9 ms: with 7 ms the tombstone of 2 ms can't matter to a trade of 10 ms or later.
        take(running, [trade(10_000)], [*versions, customer(10_000, "gold", "z")])
        assert running.state_tables()["versions"].column("id").to_pylist() == kept
        assert running.details() == {"versions_in_force": len(kept)}


def test_a_late_version_that_a_tombstone_ended_stays_ended_while_the_retention_lasts() -> None:
    for retention, tier in [("9 ms", None), (None, "late")]:
        running = operator(retention=retention)
        take(running, [trade(10_000, "z")], [customer(8_000, "silver"), customer(10_000, "gold", "z")])
        take(running, [], [customer(7_000, "late")])
        assert running.report()["inputs"][1]["late_applied"] == 1
        out = take(running, [trade(11_000), trade(99_000, "z")], [customer(99_000, "gold", "z")])
        assert ("a", 1.0, tier) in out


def test_a_late_trade_is_rejected() -> None:
    running = operator()
    take(running, [trade(10_000)], [customer(10_000, "gold")])
    assert take(running, [trade(9_000)], []) == []
    assert running.report()["inputs"][0]["rejected"] == {"late": 1}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"how": "full"}, "how: expected 'left' or 'inner', got 'full'"),
        ({"how": "iner"}, "did you mean 'inner'"),
        ({"deletes": True}, "deletes: expected the name of a boolean column of the right input, got True"),
        ({"deletes": ""}, "deletes: expected the name"),
        ({"null_payload_deletes": "yes"}, "null_payload_deletes: expected True or False, got 'yes'"),
        ({"retention": 5}, "retention: expected a duration"),
    ],
)
def test_a_join_that_cannot_be_is_refused_before_it_starts(options: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        TemporalJoin(**options)


@pytest.mark.parametrize(
    ("right", "options", "said"),
    [
        (CUSTOMERS, {"deletes": "close"}, "input 'customers' has no column 'close'; did you mean 'closed'"),
        (CUSTOMERS, {"deletes": "tier"}, "expected a boolean column, got 'tier' of input 'customers', which is string"),
        (
            replace(CUSTOMERS, key=("closed",)),
            {"deletes": "closed"},
            "expected a column outside the key of input 'customers', got 'closed'",
        ),
        (
            InputSpec("changes", parse_schema("id long, since timestamp, gone boolean"), ("id",), "since"),
            {"deletes": "gone", "null_payload_deletes": True},
            "input 'changes' has no columns but its key",
        ),
        (replace(CUSTOMERS, event_time=None), {}, "input 'customers' has no event time"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_before_it_starts(right: InputSpec, options: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        TemporalJoin(**options).output_schema(TRADES, right)


def test_a_join_travels_to_the_workers_and_says_what_it_is() -> None:
    join = TemporalJoin("inner", deletes="closed", retention="5 ms")
    assert pickle.loads(pickle.dumps(join)) == join
    assert join.describe() == {
        "operator": "temporal_join",
        "how": "inner",
        "deletes": "closed",
        "null_payload_deletes": False,
        "retention_us": 5_000,
    }


UNORDERED = InputSpec(
    "customers", parse_schema("id long, since timestamp, tier string, closed boolean"), ("id",), "since"
)
PARTED = replace(UNORDERED, schema=parse_schema("id long, since timestamp, p int, tier string, closed boolean"))


def in_force(versions: Rows, right: InputSpec = UNORDERED, **options: Any) -> Any:
    """Return the tier that a trade of microsecond 10 gets, whatever the order in which the versions came."""
    join = TemporalJoin(**({"deletes": "closed"} | options))
    found = set()
    for rows in (versions, versions[::-1]):
        tables = (table([(7, 10, 1.0)], TRADES.schema), table(rows, right.schema))
        operator = join.create_operator(TRADES, right)
        emitted = [each.table for each in operator.process(Batch(tables, end_of_input=True))]
        found |= {row["tier"] for each in emitted for row in each.to_pylist()}
    assert len(found) == 1, f"it depends on the order of arrival: {found}"
    return found.pop()


def test_a_tombstone_that_nothing_orders_comes_after_a_version_of_its_microsecond() -> None:
    """By their content alone, nulls come first, and with them the tombstone."""
    assert in_force([(7, 10, None, True), (7, 10, "gold", False)]) is None
    assert in_force([(7, 10, None, True), (7, 10, "gold", None)]) is None
    assert in_force([(7, 10, None, None), (7, 10, "gold", None)], deletes=None, null_payload_deletes=True) is None
    assert in_force([(7, 10, None, True), (7, 10, "gold", False), (7, 10, "silver", False)]) is None
    # Another microsecond is another matter, in the same millisecond, too.
    assert in_force([(7, 9, None, True), (7, 10, "gold", False)]) == "gold"


def test_a_sequence_orders_tombstones_and_partitions_alone_do_not() -> None:
    first, second = (7, 10, 1, None, True), (7, 10, 2, "gold", False)
    assert in_force([first, second], replace(PARTED, sequence=("p",))) == "gold"
    assert in_force([first, second], replace(PARTED, partition=("p",))) is None
    # What ties in the sequence, too, is ordered by nothing.
    assert in_force([first, (*second[:2], 1, *second[3:])], replace(PARTED, sequence=("p",))) is None
    assert in_force([first, (*second[:2], 1, *second[3:])], replace(PARTED, partition=("tier",), sequence=("p",))) == (
        "gold"
    )


@pytest.mark.parametrize("retention", [None, "1 day"])
def test_a_state_of_an_earlier_release_keeps_the_order_it_was_written_with(retention: Any) -> None:
    """By content, the version of microsecond 10 is in force: a tombstone that comes late is ordered as the others."""
    join = TemporalJoin(deletes="closed", retention=retention)
    version, tombstone = (7, 10_000, "gold", False), (7, 10_000, None, True)

    def state(rows: Rows) -> Any:
        operator = join.create_operator(TRADES, UNORDERED)
        list(operator.process(batch(rows, [])))
        return operator.parts()

    def batch(right: Rows, left: Rows) -> Batch:
        tables = (table(left, TRADES.schema), table(right, UNORDERED.schema))
        controls = [Control(side, {"": 12 if left else 11}, rows=tables[side - 1].num_rows) for side in (1, 2)]
        return Batch(tables, controls)

    for is_old, expected in [(True, "gold"), (False, None)]:
        header, tables = state([version, (8, 10_000, "gold", False)])
        assert header["deletes"] == "last"
        if is_old:
            del header["deletes"]
        operator = join.create_operator(TRADES, UNORDERED)
        operator.load_parts(header, tables, keeps_counts=True)
        for _ in range(2):
            again = join.create_operator(TRADES, UNORDERED)
            again.load(*operator.parts())
            operator = again
        emitted = list(operator.process(batch([tombstone], [(7, 11_500, 1.0)])))
        assert [row["tier"] for each in emitted for row in each.table.to_pylist()] == [expected]
