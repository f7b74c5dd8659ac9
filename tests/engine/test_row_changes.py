"""Rows of a table as versions and deletes: what each becomes, what moves time, what is superseded, how ties fall."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.embedded.steps import Stepper
from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.engine.input_spec import InputSpec, control_of, reject_reasons
from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.plan import Plan
from cojoin.engine.row_changes import (
    COMMIT,
    COMMITTED_AT,
    DELETED,
    DELTA_FEED,
    EARLIEST,
    NEVER_ENDS,
    VALID_AT,
    ChangeFeed,
    RowChanges,
    _among,
)
from cojoin.engine.time.known_time import KnownTime
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values import codec
from tests.table_histories import FEED, TIME, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cojoin.engine.batch_report import BatchReport

SPANS = {"customer_id": pa.int64(), "tier": pa.string(), "begins": TIME, "ends": TIME}
VALID = RowChanges(VALID_AT, None, "begins", "ends")


def days(*numbers: int | None) -> Any:
    return pd.to_datetime([each and f"2026-01-{each:02}" for each in numbers], utc=True)


def tiers(*spans: tuple[int, str, int, int | None]) -> pd.DataFrame:
    ids, names, begins, ends = zip(*spans, strict=True)
    return pd.DataFrame({"id": ids, "tier": names, "begins": days(*begins), "ends": days(*ends)})


def tiers_on(customers: pd.DataFrame, *at: int) -> list[str | None]:
    trades = pd.DataFrame({"id": [7] * len(at), "time": days(*at)})
    valid = cj.Input(customers, "id", valid_from="begins", valid_to="ends", name="customers")
    joined = cj.connect(cj.Input(trades, "id", "time", "trades"), valid).temporal_join()
    assert joined.plan.output.names == ["id", "time", "tier", "begins", "ends"]
    return joined.to_arrow()["tier"].to_pylist()


def test_a_row_is_valid_from_its_begin_to_before_its_end() -> None:
    customers = tiers((7, "silver", 2, 5), (7, "gold", 5, 8), (7, "none", 20, None))
    assert tiers_on(customers, 1, 2, 4, 5, 7, 8, 19, 20) == [
        None,
        "silver",
        "silver",
        "gold",
        "gold",
        None,
        None,
        "none",
    ]


def test_a_row_that_ends_where_it_begins_was_never_valid() -> None:
    customers = tiers((7, "silver", 2, None), (7, "never", 2, 2), (8, "never", 2, 2))
    assert tiers_on(customers, 2, 9) == ["silver", "silver"]


def test_an_end_of_the_year_9999_is_none() -> None:
    table = rows(SPANS, [(7, "gold", 5, NEVER_ENDS), (8, "gold", 5, NEVER_ENDS - 1)])
    made, places = VALID.expanded(table)
    assert places is not None
    assert places.tolist() == [0, 1, 1]
    assert made[DELETED].to_pylist() == [False, False, True]


def test_an_end_neither_moves_time_nor_is_too_far_ahead() -> None:
    spec = InputSpec("customers", pa.schema([*SPANS.items()]).append(VALID.added[0]).append(VALID.added[1]),
                     ("customer_id",), VALID_AT, max_ahead_ms=10, changes=VALID)  # fmt: skip
    made, _ = VALID.expanded(rows(SPANS, [(7, "gold", 5_000, 9_000_000), (7, "late", 9_000_000, None)]))
    assert reject_reasons(made, spec, 100).tolist() == [0, 3, 0]
    assert control_of(2, made, spec, 100).partitions == {"[]": 5}


def test_a_row_that_ends_before_it_begins_is_rejected_in_a_stream() -> None:
    spec = InputSpec("customers", pa.schema([*SPANS.items()]).append(VALID.added[0]).append(VALID.added[1]),
                     ("customer_id",), VALID_AT, changes=VALID)  # fmt: skip
    made, _ = VALID.expanded(rows(SPANS, [(7, "gold", 5_000, 4_000), (7, "gold", 5_000, None), (None, "x", 5, 4)]))
    assert reject_reasons(made, spec, 0).tolist() == [4, 0, 1]


def test_rows_that_overlap_are_refused_with_an_example() -> None:
    with pytest.raises(cj.ConfigurationError, match=r"2 rows are valid while another row of the same id is.*'silver'"):
        tiers_on(tiers((7, "silver", 2, 6), (7, "gold", 5, None), (8, "a", 1, None), (8, "b", 3, 4)), 1)
    with pytest.raises(cj.ConfigurationError, match=r"1 row ends before it begins: 'ends' is before 'begins'"):
        tiers_on(tiers((7, "silver", 6, 2)), 1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "expected event_time="),
        ({"event_time": "time", "valid_from": "a", "valid_to": "b"}, "got both"),
        ({"valid_from": "a"}, "valid_to: expected the name"),
        ({"valid_to": "b"}, "valid_from: expected the name"),
    ],
)
def test_an_input_has_one_kind_of_time(given: dict[str, Any], told: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=told):
        cj.Input(pd.DataFrame(), "id", **given)


def test_a_delete_takes_effect_at_its_commit_if_the_row_is_older() -> None:
    feed = RowChanges("since", DELTA_FEED)
    given = [(1, "a", 5, True, 3, 9), (2, "a", 12, True, 3, 9), (3, "a", 5, False, 3, 9), (4, "a", None, True, 3, 9)]
    made, places = feed.expanded(rows(FEED, given))
    assert places is None
    assert made["since"].cast(pa.int64()).to_pylist() == [9, 12, 5, 9]


def test_what_a_commit_replaces_is_superseded() -> None:
    feed = RowChanges("since", DELTA_FEED)
    table = rows(FEED, [(1, "new", 5, False, 3, 9), (1, "old", 5, True, 3, 9), (1, "older", 5, True, 2, 8),
                        (2, "old", 5, True, 3, 9)])  # fmt: skip
    kept = feed.without_superseded(table, ("customer_id",))
    assert kept["tier"].to_pylist() == ["new", "older", "old"]


def test_the_snapshot_is_known_from_the_beginning_and_survives_every_form() -> None:
    feed = RowChanges(COMMITTED_AT, DELTA_FEED)
    table = rows(FEED, [(1, "a", 5, False, 3, 9), (1, "b", 5, False, 4, 10)])
    made = feed.from_the_beginning(table, 3)
    first = datetime(1900, 1, 1, tzinfo=timezone.utc)
    assert made[COMMITTED_AT].to_pylist()[0] == first
    assert made[COMMITTED_AT].cast(pa.int64()).to_pylist() == [EARLIEST, 10]
    assert made.to_pandas()[COMMITTED_AT].astype("datetime64[ns, UTC]")[0] == first
    assert feed.from_the_beginning(table, None) is table


def test_a_feed_without_commits_has_its_order_from_the_source() -> None:
    events = {"customer_id": pa.int64(), "since": TIME, DELETED: pa.bool_(), "at": TIME}
    table = rows(events, [(1, 5, False, 7), (1, 5, True, 9), (1, 12, True, 9), (1, None, True, 9)])
    own = RowChanges("since", ChangeFeed("at"))
    assert own.expanded(table)[0]["since"].cast(pa.int64()).to_pylist() == [5, 9, 12, 9]
    assert not own.deletes_move_time
    changed = RowChanges("at", ChangeFeed("at"))
    assert changed.expanded(table)[0] is table
    assert changed.deletes_move_time
    # Its first rows are known from their times on, as the others are.
    assert not changed.begins_with_the_first
    assert changed.from_the_beginning(table, 3) is table
    # Nothing says which of its events are one change.
    assert changed.without_superseded(table, ("customer_id",)) is table
    assert (changed.technical, own.technical) == ((DELETED,), (DELETED, "at"))


@pytest.mark.parametrize("feed", [None, DELTA_FEED, ChangeFeed("at")])
def test_what_is_described_is_read_again(feed: ChangeFeed | None) -> None:
    changes = RowChanges("since", feed, *(() if feed else ("begins", "ends")))
    assert RowChanges.read(json.loads(json.dumps(changes.describe())), "since", None) == changes
    assert RowChanges.read(None, "since", None) is None


def spec(**changes: Any) -> InputSpec:
    key = ("customer_id",)
    return InputSpec("customers", pa.schema([*FEED.items()]), key, COMMITTED_AT, sequence=(COMMIT,), **changes)


def test_only_the_temporal_join_takes_deletes() -> None:
    trades = InputSpec("trades", pa.schema([("customer_id", pa.int64()), ("time", TIME)]), ("customer_id",), "time")
    customers = spec(changes=RowChanges(COMMITTED_AT, DELTA_FEED))
    for join in (AsofJoin(), IntervalJoin("0 s", "1 s")):
        with pytest.raises(cj.ConfigurationError, match="use temporal_join"):
            join.output_schema(trades, customers)
    for column in ("closed", "tier", "no column"):
        with pytest.raises(cj.ConfigurationError, match=r"marks its deletes itself.*; leave deletes= out of temporal_"):
            TemporalJoin(deletes=column).output_schema(trades, replaced(customers))
    with pytest.raises(cj.ConfigurationError, match="valid from the beginning of time"):
        TemporalJoin(deletes=DELETED, retention="1 day").output_schema(trades, customers)
    with pytest.raises(cj.ConfigurationError, match="make it the right input"):
        TemporalJoin(deletes=DELETED).output_schema(replaced(customers, "left"), customers)
    names = TemporalJoin(deletes=DELETED).output_schema(trades, customers).names
    assert names == ["customer_id", "time", "tier", "since", COMMITTED_AT]


TRADE = {"trade_id": pa.int64(), "customer_id": pa.int64(), "time": TIME}
MINUTE, CLOCK = 60_000_000, 1_000_000_000
"""In microseconds; the clock's time is that of the versions' commits, more or less."""


def joined_with(
    changes: RowChanges, columns: Any, parts: list[tuple[list[Any], bool]], early: int | None = None, **settings: Any
) -> tuple[dict[int, str | None], BatchReport]:
    """Return the tier of a trade at each second, by a join with customers that come in parts, each after a restore.

    Args:
        changes: What the customers' rows are.
        columns: Their columns.
        parts: The customers' rows, as their source gives them, and whether more rows of the same commit come.
        early: When another customer's trade is that comes with the first part; None if none comes.
        settings: More of the customers' input.
    """
    schema = pa.schema([*columns.items(), *changes.added])
    key, time = ("customer_id",), changes.event_time
    customers = InputSpec(
        "customers", schema, key, time, (), (COMMIT,), max_ahead_ms=60_000, changes=changes, **settings
    )
    trades = InputSpec("trades", pa.schema([*TRADE.items()]), key, "time")
    plan = Plan(TemporalJoin(deletes=DELETED, suffixes=("", "_customer")), trades, customers, 3)
    running, asked = Stepper(plan, 2), [] if early is None else [(99, 9, early)]
    outputs = []
    for given, is_within in parts:
        made, _ = changes.expanded(rows(columns, given))
        holds = {2: NONE} if is_within else {}
        outputs.append(running.step((rows(TRADE, asked), made), processing_time=CLOCK // 1_000, holds=holds).output)
        asked = []
        kept = [
            table
            for state in running._run.states()
            for name, table in codec.decode(state)[1].items()
            if name == "rejected2"
        ]
        assert is_within or not kept, "remembered only until the commit is read"
        for table in kept:
            assert table.column_names == [*key, *changes.deciding]
            assert set(table[COMMIT].to_pylist()) == {made[COMMIT].to_pylist()[-1]}, "only of the newest commit"
        other = Stepper(plan, 3)
        other.restore(running.snapshot())
        running = other
    asked = [(second, 7, CLOCK + second * 1_000_000) for second in range(6)]
    step = running.step((rows(TRADE, asked), schema.empty_table()), end_of_input=True)
    output = pa.concat_tables([*outputs, step.output])
    return dict(zip(*(output[name].to_pylist() for name in ("trade_id", "tier")), strict=True)), step.report


S = 1_000_000
WRONG = {"none": None, "too far ahead": CLOCK + 100 * MINUTE}


@pytest.mark.parametrize("cut", [None, 1, 2])
@pytest.mark.parametrize("kind", WRONG)
def test_an_update_whose_new_state_is_rejected_leaves_the_former_one(kind: str, cut: int | None) -> None:
    """The table says so at 3 s; a commit that is read in two batches may give the new rows first, or the old ones."""
    first = [(7, "gold", CLOCK + 1 * S, False, 3, CLOCK + 1 * S), (8, "x", CLOCK, False, 3, CLOCK + 1 * S)]
    new, old = (7, "new", WRONG[kind], False, 4, CLOCK + 3 * S), (7, "gold", CLOCK + 1 * S, True, 4, CLOCK + 3 * S)
    gone = (8, "x", CLOCK, True, 4, CLOCK + 3 * S)
    whole = [(first, False), ([old, new, gone], False)]
    parts = {
        None: whole,
        1: [(first, False), ([new, gone], True), ([old], False)],
        2: [(first, False), ([old], True), ([new, gone], False)],
    }
    found, report = joined_with(RowChanges("since", DELTA_FEED), FEED, parts[cut])
    assert found == {0: None, 1: "gold", 2: "gold", 3: "gold", 4: "gold", 5: "gold"}
    customers = report.inputs[1]
    reason = "null_event_time" if kind == "none" else "too_far_ahead"
    assert (customers.unchanged, dict(customers.rejected), customers.is_conserved) == (1, {reason: 1}, True)
    assert "left 1 row of 'customers' in the former state, since the new one was rejected" in report.ending()


def test_of_many_commits_that_each_reject_a_version_only_the_newest_is_remembered() -> None:
    """A bounded run with more to read holds the time in each batch, also where one ends with a commit."""
    first = [(7, "gold", CLOCK + 1 * S, False, 3, CLOCK + 1 * S)]
    wrong = [([(7, "far", WRONG["too far ahead"], False, commit, CLOCK + 2 * S)], True) for commit in range(4, 40)]
    old = [(7, "gold", CLOCK + 1 * S, True, 39, CLOCK + 2 * S)]
    found, report = joined_with(RowChanges("since", DELTA_FEED), FEED, [(first, True), *wrong, (old, False)])
    assert found == {0: None, 1: "gold", 2: "gold", 3: "gold", 4: "gold", 5: "gold"}
    customers = report.inputs[1]
    assert (customers.unchanged, customers.rejected["too_far_ahead"], customers.is_conserved) == (1, 36, True)


def test_rejected_versions_that_an_earlier_version_kept_whole_are_restored() -> None:
    changes, schema = RowChanges("since", DELTA_FEED), pa.schema([*FEED.items()])
    customers = InputSpec("customers", schema, ("customer_id",), "since", (), (COMMIT,), changes=changes)
    trades = InputSpec("trades", pa.schema([*TRADE.items()]), ("customer_id",), "time")
    plan = Plan(TemporalJoin(deletes=DELETED, suffixes=("", "_customer")), trades, customers, 1)
    operator = plan.create_operator()
    header, tables = operator.parts()
    whole = rows(FEED, [(7, "new", None, False, 4, CLOCK)])
    operator.load(header, {**tables, "rejected2": whole})
    kept = operator.parts()[1]["rejected2"]
    assert kept.to_pylist() == [{"customer_id": 7, DELETED: False, COMMIT: 4}]
    again = plan.create_operator()
    again.load(*operator.parts())
    assert again.parts()[1]["rejected2"].equals(kept)


class Seen(KeyedCoProcessFunction):
    """Yields each customer that it sees."""

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        del ctx
        yield value.tier, value[DELETED]


def test_an_update_to_a_time_that_python_does_not_have_leaves_a_functions_former_row() -> None:
    changes = RowChanges("since", DELTA_FEED)
    schema, far = pa.schema([*FEED.items(), *changes.added]), -(10**18)
    customers = InputSpec("customers", schema, ("customer_id",), "since", (), (COMMIT,), changes=changes)
    trades = InputSpec("trades", pa.schema([*TRADE.items()]), ("customer_id",), "time")
    output = pa.schema([("tier", pa.string()), ("deleted", pa.bool_())])
    running = Stepper(Plan(KeyedCoProcess(Seen(), output, "arrival"), trades, customers, 3), 2)
    first = [(7, "gold", CLOCK + 1 * S, False, 3, CLOCK + 1 * S)]
    update = [(7, "gold", CLOCK + 1 * S, True, 4, CLOCK + 3 * S), (7, "new", far, False, 4, CLOCK + 3 * S)]
    seen = []
    for given in (first, update):
        made, _ = changes.expanded(rows(FEED, given))
        step = running.step((rows(TRADE, []), made), processing_time=CLOCK // 1_000)
        seen += step.output.to_pylist()
    assert seen == [{"tier": "gold", "deleted": False}]
    found = step.report.inputs[1]
    assert (found.unchanged, dict(found.rejected), found.is_conserved) == (1, {"time_beyond_python": 1}, True)


def test_what_was_rejected_is_replaced_and_deleted_as_the_table_says() -> None:
    first = [(7, "gold", CLOCK + 1 * S, False, 3, CLOCK + 1 * S)]
    wrong = [
        (7, "gold", CLOCK + 1 * S, True, 4, CLOCK + 2 * S),
        (7, "far", WRONG["too far ahead"], False, 4, CLOCK + 2 * S),
    ]
    deleted = [(7, "far", WRONG["too far ahead"], True, 5, CLOCK + 4 * S)]
    found, report = joined_with(RowChanges("since", DELTA_FEED), FEED, [([*first, *wrong, *deleted], False)])
    assert found == {0: None, 1: "gold", 2: "gold", 3: "gold", 4: None, 5: None}
    again = [
        (7, "far", WRONG["too far ahead"], True, 5, CLOCK + 3 * S),
        (7, "new", CLOCK + 3 * S, False, 5, CLOCK + 3 * S),
    ]
    found, report = joined_with(RowChanges("since", DELTA_FEED), FEED, [([*first, *wrong], False), (again, False)])
    assert found == {0: None, 1: "gold", 2: "gold", 3: "new", 4: "new", 5: "new"}
    assert report.inputs[1].is_conserved


def test_a_late_update_that_is_rejected_leaves_the_former_state() -> None:
    """The watermark is before 2 s; the delete of the former state, at 3 s, is not late."""
    first = [(7, "gold", CLOCK, False, 3, CLOCK), (8, "x", CLOCK + 2 * S, False, 3, CLOCK)]
    late = [(7, "gold", CLOCK, True, 4, CLOCK + 3 * S), (7, "late", CLOCK + 1 * S, False, 4, CLOCK + 3 * S)]
    parts, feed = [(first, False), (late, False)], RowChanges("since", DELTA_FEED)
    found, report = joined_with(feed, FEED, parts, early=CLOCK + 9 * S, late="reject")
    assert found == {2: "gold", 3: "gold", 4: "gold", 5: "gold", 99: None}
    customers = report.inputs[1]
    assert (customers.unchanged, dict(customers.rejected), customers.is_conserved) == (1, {"late": 1}, True)


@pytest.mark.parametrize("begin", [None, CLOCK + 100 * MINUTE])
def test_a_span_that_is_updated_to_no_begin_stays_as_it_was(begin: int | None) -> None:
    columns = {**SPANS, DELETED: pa.bool_(), COMMIT: pa.int64(), COMMITTED_AT: TIME}
    changes = RowChanges(VALID_AT, DELTA_FEED, "begins", "ends")
    first = [(7, "gold", CLOCK + 1 * S, None, False, 3, CLOCK)]
    wrong = [(7, "gold", CLOCK + 1 * S, None, True, 4, CLOCK + 3 * S), (7, "new", begin, None, False, 4, CLOCK + 3 * S)]
    found, report = joined_with(changes, columns, [(first, False), (wrong, False)])
    assert found == {0: None, 1: "gold", 2: "gold", 3: "gold", 4: "gold", 5: "gold"}
    assert report.inputs[1].unchanged == 1
    # What is deleted in another commit is deleted.
    gone = [(7, "gold", CLOCK + 1 * S, None, True, 5, CLOCK + 3 * S)]
    found, _ = joined_with(changes, columns, [(first, False), (wrong, False), (gone, False)])
    assert set(found.values()) == {None}


CUTS = {
    "nowhere": [["first", "second", "wrong"]],
    "before the second delete": [["first", "wrong"], ["second"]],
    "before the first delete": [["second", "wrong"], ["first"]],
    "before and after the rejected row": [["first"], ["wrong"], ["second"]],
    "everywhere, the rejected row first": [["wrong"], ["first"], ["second"]],
    "everywhere, the rejected row last": [["first"], ["second"], ["wrong"]],
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_span_that_a_rejected_row_replaces_is_the_same_wherever_its_commit_is_cut(cut: str) -> None:
    """The rejected row, which ends before it begins, has the begin of the first span: the second one is deleted."""
    columns = {**SPANS, DELETED: pa.bool_(), COMMIT: pa.int64(), COMMITTED_AT: TIME}
    spans = [(7, "gold", CLOCK + 1 * S, CLOCK + 2 * S), (7, "silver", CLOCK + 3 * S, None)]
    changes = {
        "first": (*spans[0], True, 4, CLOCK + 3 * S),
        "second": (*spans[1], True, 4, CLOCK + 3 * S),
        "wrong": (7, "new", CLOCK + 1 * S, CLOCK, False, 4, CLOCK + 3 * S),
    }
    parts = [[changes[name] for name in part] for part in CUTS[cut]]
    given = [([(*span, False, 3, CLOCK) for span in spans], False), *((part, True) for part in parts[:-1])]
    found, report = joined_with(
        RowChanges(VALID_AT, DELTA_FEED, "begins", "ends"), columns, [*given, (parts[-1], False)]
    )
    assert found == {0: None, 1: "gold", 2: None, 3: None, 4: None, 5: None}
    assert (report.inputs[1].unchanged, report.inputs[1].is_conserved) == (1, True)


def replaced(given: InputSpec, name: str = "customers") -> InputSpec:
    closed = given.schema.append(pa.field("closed", pa.bool_()))
    return InputSpec(name, closed, given.key, given.event_time, (), given.sequence, changes=given.changes)


@pytest.mark.parametrize("dtype", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32(), pa.int32(), pa.int64()])
def test_a_row_whose_span_has_no_begin_is_of_no_other_row(dtype: pa.DataType) -> None:
    """Of a table with validity a rejected row may lack its begin, whatever the type of its times is."""
    begins = pa.array([1, None, 2], pa.int32() if dtype in (pa.date32(), pa.int32()) else pa.int64()).cast(dtype)
    rows = pa.table({"id": pa.array([7, 7, 8], pa.int64()), "begins": begins})
    assert _among(rows, rows.slice(2), ["id", "begins"]).tolist() == [False, False, True]
    assert _among(rows, rows.slice(1, 1), ["id", "begins"]).tolist() == [False, True, False]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("cut", [None, 1])
def test_an_update_that_moves_a_time_back_is_rejected_and_counted_with_known_times(
    cut: int | None, order: tuple[int, int]
) -> None:
    known = KnownTime(COMMITTED_AT, committed_at=COMMITTED_AT)
    changes = RowChanges("since", DELTA_FEED, known=known)
    first = [(7, "gold", CLOCK + 2 * S, False, 3, CLOCK + 2 * S), (8, "x", CLOCK, False, 3, CLOCK + 2 * S)]
    commit = (4, CLOCK + 3 * S)
    change = [(7, "gold", CLOCK + 2 * S, True, *commit), (7, "silver", CLOCK + 1 * S, False, *commit)]
    change = [change[place] for place in order]
    parts = [([*first, *change], False)] if cut is None else [([*first, *change[:cut]], True), (change[cut:], False)]
    found, report = joined_with(changes, FEED, parts, known=known)
    assert found == {0: None, 1: None, **dict.fromkeys(range(2, 6), "gold")}
    assert report.inputs[1].rejected == {"moved_back": 1}
    assert report.inputs[1].unchanged == 1
    assert report.is_conserved


def test_a_delete_of_a_feed_takes_effect_at_its_commit_whatever_its_row_says() -> None:
    known = KnownTime("since", committed_at=COMMITTED_AT)
    changes = RowChanges("since", DELTA_FEED, known=known)
    first = [(7, "gold", CLOCK + 1 * S, False, 3, CLOCK + 1 * S)]
    gone = [(7, "gold", CLOCK + 1 * S, True, 4, CLOCK + 3 * S)]
    found, report = joined_with(changes, FEED, [(first, False), (gone, False)], known=known)
    assert found == {0: None, 1: "gold", 2: "gold", **dict.fromkeys(range(3, 6), None)}
    assert report.is_conserved
