"""Rows of a table as versions and deletes: what each becomes, what moves time, what is superseded, how ties fall."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine.inputs import InputSpec, reject_reasons
from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.observed import control_of
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
)
from tests.table_histories import FEED, TIME, rows

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
    assert RowChanges.read(json.loads(json.dumps(changes.describe())), "since") == changes
    assert RowChanges.read(None, "since") is None


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
        with pytest.raises(cj.ConfigurationError, match=r"tells its deletes itself.*; leave deletes= out of temporal_"):
            TemporalJoin(deletes=column).output_schema(trades, replaced(customers))
    with pytest.raises(cj.ConfigurationError, match="valid from the beginning of time"):
        TemporalJoin(deletes=DELETED, retention="1 day").output_schema(trades, customers)
    with pytest.raises(cj.ConfigurationError, match="make it the right input"):
        TemporalJoin(deletes=DELETED).output_schema(replaced(customers, "left"), customers)
    names = TemporalJoin(deletes=DELETED).output_schema(trades, customers).names
    assert names == ["customer_id", "time", "tier", "since", COMMITTED_AT]


def replaced(given: InputSpec, name: str = "customers") -> InputSpec:
    closed = given.schema.append(pa.field("closed", pa.bool_()))
    return InputSpec(name, closed, given.key, given.event_time, (), given.sequence, changes=given.changes)
