"""A table's history gives the same joined rows as a feed, as rows with validity and as versions: those of DuckDB.

Each history is delivered in other batches, to other numbers of key groups, and through a restored state.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cojoin.embedded.steps import Stepper
from cojoin.engine.input_spec import InputSpec
from cojoin.engine.joins import TemporalJoin
from cojoin.engine.plan import Plan
from cojoin.engine.row_changes import COMMIT, COMMITTED_AT, DELETED, DELTA_FEED, EARLIEST, VALID_AT, RowChanges
from cojoin.engine.time.known_time import KnownTime
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values import codec
from tests.seeds import SEED
from tests.table_histories import (
    BEGIN,
    FEED,
    TIME,
    TRADES,
    History,
    at_commits,
    at_known,
    at_since,
    batches,
    histories,
    rows,
)

HISTORIES = int(os.environ.get("COJOIN_HISTORIES", "500"))
# Histories are drawn and run some 15 a second: every run has fifty of them, the slow circle draws two more parts.
DRAWN = random.Random(f"{SEED} parts").sample(range(1, 10), 2)
PARTS = [
    0,
    *(
        pytest.param(part, marks=[pytest.mark.slow, *([] if part in DRAWN else [pytest.mark.more])])
        for part in range(1, 10)
    ),
]
LEFT = InputSpec("trades", pa.schema(list(TRADES.items())), ("customer_id",), "event_time")
SPANS = {"customer_id": pa.int64(), "tier": pa.string(), "begins": TIME, "ends": TIME}
VERSIONS = {"customer_id": pa.int64(), "moment": TIME, "place": pa.int64(), "tier": pa.string(), "closed": pa.bool_()}
FEED_SCHEMA = pa.schema(list(FEED.items()))


def feed_input(event_time: str, known: KnownTime | None = None) -> InputSpec:
    changes = RowChanges(event_time, DELTA_FEED, known=known)
    bound = WatermarkStrategy.for_bounded_out_of_orderness("0 ms" if event_time == COMMITTED_AT else "10 ms")
    key = ("customer_id",)
    return InputSpec(
        "customers", FEED_SCHEMA, key, event_time, (), (COMMIT,), bound, 60_000, changes=changes, known=known
    )


def stepper(draw: random.Random, right: InputSpec) -> Stepper:
    join = TemporalJoin(deletes=right.deletes or "closed", suffixes=("", "_customer"))
    return Stepper(Plan(join, LEFT, right, 4), draw.randint(1, 3))


def restored(draw: random.Random, running: Stepper) -> Stepper:
    """Return the stepper, sometimes one with other key groups that goes on with its state."""
    if draw.random() < 0.8:
        return running
    other = Stepper(running.plan, draw.randint(1, 3))
    other.restore(running.snapshot())
    return other


def joined(
    draw: random.Random, history: History, event_time: str, known: KnownTime | None = None
) -> list[tuple[int, str | None]]:
    """Return each trade with its tier, by a run over the feed."""
    right, parts = feed_input(event_time, known), []
    for changes, has_snapshot, is_within in batches(draw, history):
        # Spark's driver holds the feed's time inside a snapshot and inside a commit.
        told = {"holds": {2: NONE} if is_within else {}, "snapshots": {2: 0} if has_snapshot else None}
        told["processing_time"] = BEGIN // 1_000
        parts.append((rows(FEED, changes), told))
    return run(draw, history, right, parts)


def run(
    draw: random.Random, history: History, right: InputSpec, parts: list[tuple[pa.Table, dict[str, Any]]]
) -> list[tuple[int, str | None]]:
    """Return each trade with its tier; the trades come in order, some with each part of the customers."""
    running = stepper(draw, right)
    trades, found = sorted(history.trades, key=lambda each: each[2]), []
    for customers, told in parts:
        running = restored(draw, running)
        count = draw.randint(0, 4)
        step = running.step((rows(TRADES, trades[:count]), expanded(right, customers)), **told)
        trades = trades[count:]
        found.append(step.output)
        for state in running._run.states():
            rejected = codec.decode(state)[1].get("rejected2")
            assert rejected is None or pc.count_distinct(rejected[COMMIT]).as_py() == 1, "only of the newest commit"
    ended = (rows(TRADES, trades), right.schema.empty_table())
    found.append(running.step(ended, end_of_input=True).output)
    table = pa.concat_tables(found)
    return sorted(zip(table["trade_id"].to_pylist(), table["tier"].to_pylist(), strict=True))


def pieces(draw: random.Random, values: list[Any]) -> list[list[Any]]:
    """Return values in their order, cut anywhere."""
    cuts = sorted(draw.randint(0, len(values)) for _ in range(3))
    return [values[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(values)], strict=True)]


def spans_input(*, is_feed: bool) -> InputSpec:
    columns = {**SPANS, **({DELETED: pa.bool_(), COMMIT: pa.int64(), COMMITTED_AT: TIME} if is_feed else {})}
    changes = RowChanges(VALID_AT, DELTA_FEED if is_feed else None, "begins", "ends")
    schema = pa.schema([*columns.items(), *changes.added])
    sequence = (COMMIT,) if is_feed else ()
    return InputSpec("customers", schema, ("customer_id",), VALID_AT, sequence=sequence, changes=changes)


def merged(history: History) -> list[list[Any]]:
    """Return the feed of a table of spans that a MERGE keeps up to date with the history: a list for each commit."""
    commits: list[list[Any]] = [
        [(key, row[0], EARLIEST, None, False, 0, BEGIN) for key, row in history.contents[0].items()]
    ]
    since = dict.fromkeys(history.contents[0], EARLIEST)
    for version, time in enumerate(history.times[1:], start=1):
        before, content, feed = history.contents[version - 1], history.contents[version], []
        for key in {*before, *content}:
            if before.get(key) == content.get(key):
                continue
            if key in before:
                old = (key, before[key][0], since.pop(key))
                feed += [(*old, None, True, version, time), (*old, time, False, version, time)]
            if key in content:
                since[key] = time
                feed.append((key, content[key][0], time, None, False, version, time))
        commits.append(feed)
    return commits


def expanded(spec: InputSpec, table: pa.Table) -> pa.Table:
    """Return rows as the map side sends them."""
    return table if spec.changes is None else spec.changes.expanded(table)[0]


@pytest.mark.parametrize("part", PARTS)
def test_a_feed_at_its_commits_times_is_the_table_as_of_each_trade(part: int) -> None:
    for number in range(part, HISTORIES, 10):
        draw = random.Random(f"{SEED} {number}")
        history = histories(draw)
        assert joined(draw, history, COMMITTED_AT) == at_commits(history), f"history {number}, seed {SEED}"


@pytest.mark.parametrize("part", PARTS)
def test_a_feed_at_a_columns_time_is_what_its_rows_say(part: int) -> None:
    for number in range(part, HISTORIES, 10):
        draw = random.Random(f"{SEED} {number}")
        history = histories(draw)
        assert joined(draw, history, "since") == at_since(history), f"history {number}, seed {SEED}"


@pytest.mark.parametrize("part", PARTS)
def test_a_feed_with_commits_as_known_times_has_no_hindsight(part: int) -> None:
    known, moved = KnownTime(COMMITTED_AT, committed_at=COMMITTED_AT), 0
    for number in range(part, HISTORIES, 10):
        draw = random.Random(f"{SEED} {number} known")
        history = histories(draw, faults=draw.choice([0, 0.3]))
        expected, moved_back = at_known(history)
        moved += moved_back
        assert joined(draw, history, "since", known) == expected, f"history {number}, seed {SEED}"
    assert moved


@pytest.mark.parametrize("part", PARTS)
def test_rows_with_validity_and_rows_as_versions_give_what_the_feed_gives(part: int) -> None:
    for number in range(part, HISTORIES, 10):
        draw = random.Random(f"{SEED} {number}")
        history = histories(draw)
        wanted, told = at_commits(history), f"history {number}, seed {SEED}"
        spans = sorted(history.spans(), key=lambda each: each[2])
        parts = [(rows(SPANS, piece), {}) for piece in pieces(draw, spans)]
        assert run(draw, history, spans_input(is_feed=False), parts) == wanted, told
        versions = [(key, begin, 1, tier, False) for key, tier, begin, _ in spans]
        versions += [(key, end, 0, None, True) for key, _, begin, end in spans if end is not None and end > begin]
        # A span of no length leaves no trace, and of two versions of one instant the longer one counts.
        versions = [each for each in versions if each[4] or not _is_empty(spans, each)]
        parts = [(rows(VERSIONS, piece), {}) for piece in pieces(draw, sorted(versions, key=lambda each: each[1]))]
        schema = pa.schema([*VERSIONS.items()])
        right = InputSpec("customers", schema, ("customer_id",), "moment", sequence=("place",))
        assert run(draw, history, right, parts) == wanted, told


@pytest.mark.parametrize("part", PARTS)
def test_a_row_that_is_updated_to_no_time_or_one_too_far_ahead_keeps_its_former_state(part: int) -> None:
    for number in range(part, HISTORIES, 10):
        draw = random.Random(f"{SEED} {number}")
        history = histories(draw, faults=0.3)
        assert joined(draw, history, "since") == at_since(history), f"history {number}, seed {SEED}"


def _is_empty(spans: list[Any], version: Any) -> bool:
    return all(
        span[2] == span[3] for span in spans if (span[0], span[2], span[1]) == (version[0], version[1], version[3])
    )


@pytest.mark.parametrize("part", PARTS)
def test_the_feed_of_rows_with_validity_gives_what_the_feed_gives(part: int) -> None:
    for number in range(part, HISTORIES, 10):
        draw = random.Random(f"{SEED} {number}")
        history = histories(draw)
        feed, right = merged(history), spans_input(is_feed=True)
        columns = {name: right.schema.field(name).type for name in right.source_schema.names}
        parts = [(rows(columns, [row for commit in piece for row in commit]), {}) for piece in pieces(draw, feed)]
        assert run(draw, history, right, parts) == at_commits(history), f"history {number}, seed {SEED}"
