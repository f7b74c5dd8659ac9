"""Random histories of a table of customers, as its change feed, as rows with validity and as rows that are versions.

A history is the table's whole content after each commit; everything else is worked out from it. Times are epoch
microseconds, and small, so that they tie often.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from cojoin.engine.row_changes import COMMIT, COMMITTED_AT, DELETED, EARLIEST

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

TIME = pa.timestamp("us", "UTC")
BEGIN = 1_000_000
"""The time of the first commit, in epoch microseconds."""

TIERS = ("bronze", "silver", "gold", None)
TABLE = {"customer_id": pa.int64(), "tier": pa.string(), "since": TIME}
FEED = {**TABLE, DELETED: pa.bool_(), COMMIT: pa.int64(), COMMITTED_AT: TIME}
TRADES = {"trade_id": pa.int64(), "customer_id": pa.int64(), "event_time": TIME}

_DUCKDB = duckdb.connect()

FAR = BEGIN + 3_600_000_000
"""A time that is too far ahead."""

Content = dict[int, tuple[str | None, int | None]]
"""The table after a commit: each customer's tier, and since when it says that the customer has it."""

Change = tuple[int, str | None, int | None, bool, int, int]
"""A row of the feed: customer, tier, since, whether it is deleted, the commit's version and its time."""


@dataclass(frozen=True)
class History:
    """The commits of a table, and trades at times around them.

    Attributes:
        contents: The table after each commit; the first one is the snapshot.
        times: When each was committed.
        feeds: The rows of the feed of each commit but the first, as Delta writes them.
        trades: The trades: id, customer and time.
        far: From when on a row's time is too far ahead.
    """

    contents: list[Content]
    times: list[int]
    feeds: list[list[Change]] = field(default_factory=list)
    trades: list[tuple[int, int, int]] = field(default_factory=list)
    far: int = 1 << 62

    def snapshot(self) -> list[Change]:
        """Return the feed's first rows: all that are there at the first commit."""
        return [(key, *row, False, 0, self.times[0]) for key, row in self.contents[0].items()]

    def spans(self) -> list[tuple[int, str | None, int, int | None]]:
        """Return the rows with the span in which the table had them; the first ones from the beginning of time."""
        found, open_ = [], {key: (row, EARLIEST) for key, row in self.contents[0].items()}
        for content, time in zip(self.contents[1:], self.times[1:], strict=True):
            for key in {*open_, *content}:
                if key in open_ and open_[key][0] != content.get(key):
                    row, begin = open_.pop(key)
                    found.append((key, row[0], begin, time))
                if key in content and key not in open_:
                    open_[key] = content[key], time
        return found + [(key, row[0], begin, None) for key, (row, begin) in open_.items()]


def histories(random: random.Random, commits: int = 8, keys: int = 3, *, faults: float = 0) -> History:
    """Return a random history: inserts, updates, deletes, merges, overwrites and commits that change no row.

    Args:
        random: What draws.
        commits: How many commits there are.
        keys: How many customers there are.
        faults: How likely a row's time is null or too far ahead.
    """
    history = History([_fresh(random, keys, BEGIN)], [BEGIN], far=FAR)
    for version in range(1, commits):
        time = history.times[-1] + random.choice([0, 1, 500, 1_000, 7_000])
        before = history.contents[-1]
        content, feed = _commit(random, before, keys, version, time)
        if faults:
            # The rows of one commit stay the same in its content and in its feed.
            wrong = {key: random.choice([None, FAR]) for key in content if random.random() < faults}
            wrong = {key: time for key, time in wrong.items() if content[key] != before.get(key)}
            content |= {key: (content[key][0], since) for key, since in wrong.items()}
            feed = [
                (key, tier, wrong[key], *rest) if key in wrong and not rest[0] else (key, tier, since, *rest)
                for key, tier, since, *rest in feed
            ]
        history.contents.append(content)
        history.times.append(time)
        history.feeds.append(feed)
    last = history.times[-1] + 5_000
    for number in range(random.randint(0, 14)):
        time = random.choice([*history.times, *(random.randint(BEGIN - 9_000, last) for _ in range(3))])
        history.trades.append((number, random.randrange(keys + 1), time))
    return history


def _fresh(random: random.Random, keys: int, time: int) -> Content:
    return {key: _row(random, time) for key in range(keys) if random.random() < 0.6}


def _row(random: random.Random, time: int) -> tuple[str | None, int]:
    return random.choice(TIERS), time + random.choice([-4_000, -1_000, -1, 0, 0, 1_000, 3_000])


def _commit(random: random.Random, before: Content, keys: int, version: int, time: int) -> tuple[Content, list[Change]]:
    kind, content, feed = random.choice(["merge", "merge", "overwrite", "optimize", "rename"]), dict(before), []
    at = (version, time)
    if kind == "overwrite":
        # Delta writes no changes for it: the added files are inserts, the removed ones deletes.
        content = _fresh(random, keys, time)
        feed = [(key, *row, False, *at) for key, row in content.items()]
        feed += [(key, *row, True, *at) for key, row in before.items()]
    elif kind == "merge":
        for key in range(keys):
            change = random.choice(["none", "none", "write", "delete"])
            if change == "write":
                content[key] = _row(random, time)
                feed += [(key, *before[key], True, *at)] if key in before else []
                feed.append((key, *content[key], False, *at))
            elif change == "delete" and key in content:
                feed.append((key, *content.pop(key), True, *at))
    elif kind == "rename" and before:
        old, new = random.choice(sorted(before)), random.randrange(keys)
        if new not in before:
            tier, since = content.pop(old)
            # A row that says that it was valid for longer would be late.
            content[new] = tier, max(since or 0, time - 4_000)
            feed = [(old, *before[old], True, *at), (new, *content[new], False, *at)]
    return content, feed


def rows(schema: dict[str, pa.DataType], values: list[Any]) -> pa.Table:
    """Return tuples as a table; times are epoch microseconds."""
    columns = zip(*values, strict=True) if values else [[] for _ in schema]
    fields = [pa.field(name, dtype) for name, dtype in schema.items()]
    arrays = [
        pa.array(list(column), pa.int64()).cast(each.type) if each.type == TIME else pa.array(list(column), each.type)
        for column, each in zip(columns, fields, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def batches(random: random.Random, history: History) -> Iterator[tuple[list[Change], bool, bool]]:
    """Yield the feed as Delta's stream may give it: rows, whether they are of the snapshot, whether time is held.

    A snapshot may come in several batches; several commits may come in one. An overwrite may be cut anywhere. Time is
    held where more rows of a commit come; a run that has more to read may also hold it at the end of a commit.
    """
    snapshot = history.snapshot()
    random.shuffle(snapshot)
    cut = random.randint(0, len(snapshot))
    if random.random() < 0.5 and cut:
        yield snapshot[:cut], True, True
        snapshot = snapshot[cut:]
    waiting, first = snapshot, True
    for feed in history.feeds:
        if random.random() < 0.6:
            yield waiting, first, random.random() < 0.3
            waiting, first = [], False
        if feed and random.random() < 0.2 and len({each[0] for each in feed}) < len(feed):
            place = random.randint(1, len(feed))
            yield [*waiting, *feed[:place]], first, place < len(feed)
            waiting, first = feed[place:], False
        else:
            waiting = [*waiting, *feed]
    yield waiting, first, False


def at_commits(history: History) -> list[tuple[int, str | None]]:
    """Return each trade with the tier that the table had at its time, by DuckDB: at its commit then, or the first."""
    contents = [
        (version, key, tier) for version, content in enumerate(history.contents) for key, (tier, _) in content.items()
    ]
    return _sql(
        history,
        {"contents": ("version BIGINT, customer BIGINT, tier VARCHAR", contents)},
        """SELECT t.trade, c.tier FROM trades t LEFT JOIN contents c ON c.customer = t.customer AND c.version =
           (SELECT coalesce(max(v.version), 0) FROM commits v WHERE v.moment <= t.moment)""",
    )


def at_since(history: History) -> list[tuple[int, str | None]]:
    """Return each trade with the tier that the rows' own times give it, by DuckDB over the differences of contents.

    A row whose time is null or too far ahead says nothing, and is deleted at its commit.
    """
    contents = [
        (version, key, tier, since)
        for version, content in enumerate(history.contents)
        for key, (tier, since) in content.items()
    ]
    return _sql(
        history,
        {"contents": ("version BIGINT, customer BIGINT, tier VARCHAR, since BIGINT", contents)},
        """WITH events AS (
             SELECT n.customer, n.since AS moment, n.version, false AS dead, n.tier FROM contents n
             WHERE n.since < {far}
             UNION ALL
             SELECT o.customer, if(o.since < {far}, greatest(o.since, v.moment), v.moment), v.version, true, NULL
             FROM contents o
             JOIN commits v ON v.version = o.version + 1
             WHERE NOT EXISTS (FROM contents n WHERE n.customer = o.customer AND n.version = v.version)),
           ranked AS (
             SELECT t.trade, e.dead, e.tier, row_number() OVER (
               PARTITION BY t.trade ORDER BY e.moment DESC, e.version DESC) AS place
             FROM trades t JOIN events e ON e.customer = t.customer AND e.moment <= t.moment)
           SELECT t.trade, CASE WHEN NOT r.dead THEN r.tier END FROM trades t
           LEFT JOIN ranked r ON r.trade = t.trade AND r.place = 1""".replace("{far}", str(history.far)),
    )


def at_known(history: History) -> tuple[list[tuple[int, str | None]], int]:
    """Return each trade with the tier that was known at its time, and the number of rows that were moved back.

    By a loop over the feed: of the rows that are known the one with the greatest time of its own counts, then the one
    known last, then the one of the last commit. A row of the snapshot is known at its own time. A delete's time is that
    of its commit, or of its row.
    """
    events: list[tuple[int, tuple[int, int, int], int, str | None]] = []
    moved_back = 0

    for key, (tier, since) in history.contents[0].items():
        if since is not None and since < history.far:
            events.append((key, (since, EARLIEST, 0), since, tier))
    for version, feed in enumerate(history.feeds, start=1):
        commit = history.times[version]
        gone = {key: since for key, _, since, dead, *_ in feed if dead}
        kept = {key for key, *_, dead, _, _ in feed if not dead}
        for key, tier, since, dead, *_ in feed:
            if dead and key not in kept:
                moment = max(since, commit) if since is not None and since < history.far else commit
                events.append((key, (moment, commit, version), moment, None))
            elif not dead and since is not None and since < history.far:
                former = gone.get(key)
                if former is not None and since < former < history.far:
                    moved_back += 1
                else:
                    events.append((key, (since, commit, version), max(since, commit), tier))
    found = []
    for trade, customer, moment in history.trades:
        known = [each for each in events if each[0] == customer and each[2] <= moment]
        found.append((trade, max(known, key=lambda each: each[1])[3] if known else None))
    return sorted(found), moved_back


def _sql(history: History, tables: dict[str, tuple[str, list[Any]]], query: str) -> list[tuple[int, str | None]]:
    known = {
        "commits": ("version BIGINT, moment BIGINT", list(enumerate(history.times))),
        "trades": ("trade BIGINT, customer BIGINT, moment BIGINT", history.trades),
        **tables,
    }
    with _DUCKDB.cursor() as connection:
        for name, (columns, values) in known.items():
            types = {"BIGINT": pa.int64(), "VARCHAR": pa.string()}
            fields = [each.split() for each in columns.split(", ")]
            connection.register(name, rows({column: types[kind] for column, kind in fields}, values))
        return sorted(connection.sql(query).fetchall())
