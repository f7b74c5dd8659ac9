"""A join that runs once a day over what is there, for twenty days: what comes out of each run, against an oracle.

No option is set and nothing is drained. There are days without orders, without changes, with late orders, without a
run, with two runs, and with a run that is killed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from cojoin.engine.input_spec import InputSpec, control_of
from cojoin.engine.joins import AsofJoin, TemporalJoin
from cojoin.engine.operator import OUTPUT, REJECTED, Batch, TableLoad
from cojoin.engine.row_changes import COMMITTED_AT, DELETED, DELTA_FEED, RowChanges
from cojoin.engine.time.control_rows import CompleteReading, Control
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.time.watermarks import NONE
from tests.seeds import SEED
from tests.table_histories import FEED, TABLE, TRADES

DAYS, DAY, HOUR, MINUTE = 20, 86_400_000, 3_600_000, 60_000
SKEW = MINUTE
SCHEMAS = {
    name: pa.schema(list(columns.items())) for name, columns in (("orders", TRADES), ("feed", FEED), ("plain", TABLE))
}
ORDERS = InputSpec("orders", SCHEMAS["orders"], ("customer_id",), "event_time")
SIDES: dict[str, InputSpec] = {
    "feed, commit times": InputSpec(
        "customers", SCHEMAS["feed"], ("customer_id",), COMMITTED_AT, changes=RowChanges(COMMITTED_AT, DELTA_FEED)
    ),
    "feed, a column": InputSpec(
        "customers", SCHEMAS["feed"], ("customer_id",), "since", changes=RowChanges("since", DELTA_FEED)
    ),
    "static with refresh": InputSpec(
        "customers", SCHEMAS["plain"], ("customer_id",), None, static=True, refreshes=True
    ),
    "files": InputSpec("customers", SCHEMAS["plain"], ("customer_id",), "since"),
}


@dataclass
class World:
    """What other systems write, in true time: orders, and a table of customers. Times are epoch milliseconds."""

    chance: random.Random
    orders: list[tuple[int, int, int]] = field(default_factory=list)
    versions: list[tuple[int, str, int]] = field(default_factory=list)

    def day(self, day: int, *, has_orders: bool, has_changes: bool, has_late: bool) -> None:
        begin = day * DAY
        times = [begin + self.chance.randrange(HOUR, 22 * HOUR) for _ in range(6)] if has_orders else []
        times += [begin - self.chance.randrange(2 * HOUR, 30 * HOUR) for _ in range(2)] if has_late else []
        for time in sorted(times):
            self.orders.append((len(self.orders), self.chance.randrange(3), time))
        for _ in range(2 * has_changes):
            time = max(
                begin + self.chance.randrange(2 * HOUR, 23 * HOUR), self.versions[-1][2] + 1 if self.versions else 0
            )
            self.versions.append((self.chance.randrange(3), f"tier {len(self.versions)}", time))


class Job:
    """The join and its state between runs; each run is one or two batches and, at its end, the complete reading."""

    def __init__(self, spec: InputSpec, world: World, skew: int = SKEW) -> None:
        self.spec, self.world, self.skew = spec, world, skew
        self.join = TemporalJoin(deletes=DELETED) if spec.changes else AsofJoin()
        self.state: bytes | None = None
        self.read = [0, 0]
        self.out: list[dict[str, Any]] = []
        self.rejected: list[dict[str, Any]] = []
        self.operator: Any = None
        self.batches: list[tuple[int, int, int]] = []
        """The watermark before each batch, and which orders it had."""

    def process(self, batch: Batch) -> None:
        self.operator = self.join.create_operator(ORDERS, self.spec)
        if self.state is not None:
            self.operator.restore(self.state)
        for emission in self.operator.process(batch):
            {OUTPUT: self.out, REJECTED: self.rejected}[emission.kind].extend(emission.table.to_pylist())
        report = self.operator.report()["inputs"]
        for each in report:
            assert each["rows_in"] == each["done"] + each["buffered"] + sum(each["rejected"].values())
        self.state = self.operator.snapshot()

    def rows(self, first: int, end: int) -> pa.Table:
        """Return the versions of a part of the table's history, as this input has them."""
        found = self.world.versions[first:end]
        if self.spec.changes is None:
            return table(self.spec.schema, [(key, tier, time) for key, tier, time in found])
        return table(
            self.spec.schema, [(key, tier, time, False, first + at, time) for at, (key, tier, time) in enumerate(found)]
        )

    def run(self, now: int, *, is_killed: bool = False) -> None:
        """Run over what is there: orders and versions are read in one batch, or in two."""
        orders, versions = len(self.world.orders), len(self.world.versions)
        middle = [self.world.chance.randint(done, end) for done, end in zip(self.read, (orders, versions), strict=True)]
        is_first = self.read[1] == 0
        for ends in (middle, [orders, versions]):
            left = table(ORDERS.schema, self.world.orders[self.read[0] : ends[0]])
            right = self.rows(self.read[1], ends[1])
            load = None
            if self.spec.static:
                # A refresh brings the whole table, at the start of a run.
                right, ends[1] = self.rows(0, versions), versions
                load = TableLoad(f"load-{now}-00", "id", versions, right.num_rows, batch_id=now)
                if self.read[1] == versions and not is_first:
                    right, load = right.slice(0, 0), None
            controls = [control_of(1, left, ORDERS)] if left.num_rows else []
            if right.num_rows and not self.spec.static:
                controls.append(control_of(2, right, self.spec))
            if left.num_rows or right.num_rows:
                is_snapshot = is_first and self.spec.changes is not None
                before = self.operator.watermark.current() if self.operator else NONE
                self.batches.append((before, self.read[0], ends[0]))
                holds = {2: NONE} if is_snapshot and ends[1] < versions else {}
                self.process(
                    Batch(
                        (left, right),
                        controls,
                        processing_time=now + 1,
                        load=load,
                        holds=holds,
                        snapshots={2: versions - 1} if is_snapshot else {},
                    )
                )
            self.read = list(ends)
        if not is_killed:
            self.end(now)

    def end(self, now: int) -> None:
        """Run the last batch of a run, which has no rows."""
        readings = [CompleteReading(now), CompleteReading(now)]
        if self.spec.event_time == COMMITTED_AT and self.world.versions:
            version = len(self.world.versions) - 1
            newest = self.world.versions[-1][2]
            readings[1] = CompleteReading.of_table(now, version, newest, self.skew, self.spec.max_ahead_ms)
        empty = ORDERS.schema.empty_table(), self.spec.schema.empty_table()
        controls = [Control(number, reading=each) for number, each in zip((1, 2), readings, strict=True)]
        self.process(Batch(empty, controls, processing_time=now + 2))


def table(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [[] for _ in schema]
    return pa.table(
        [
            pa.array([each * 1_000 for each in column] if pa.types.is_timestamp(of.type) else column, of.type)
            for column, of in zip(columns, schema, strict=True)
        ],
        schema=schema,
    )


def truth(world: World, orders: list[tuple[int, int, int]], first: int) -> dict[int, str | None]:
    """Return each order's tier by pandas; of a feed of commits the first versions hold from the beginning of time."""
    if not orders:
        return {}
    left = pd.DataFrame(orders, columns=["id", "key", "at"]).sort_values("at", kind="stable")
    right = pd.DataFrame(world.versions, columns=["key", "tier", "at"])
    right.loc[: first - 1, "at"] = -(10**15)
    found = pd.merge_asof(left, right.sort_values("at", kind="stable"), on="at", by="key")
    return {int(row.id): row.tier if isinstance(row.tier, str) else None for row in found.itertuples()}


SITUATIONS = ["all", "no orders", "no changes", "late orders", "skipped", "two at once", "killed"]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_twenty_days(side: str, situation: str) -> None:
    chance = random.Random(f"{SEED} {side} {situation}")
    world = World(chance)
    job, spec = Job(SIDES[side], world), SIDES[side]
    is_feed, by_commit = spec.changes is not None, spec.event_time == COMMITTED_AT
    promised, first = NONE, 0
    known: dict[int, str | None] = {}
    for day in range(DAYS):
        odd = chance.random() < 0.4 and day > 0
        world.day(
            day,
            has_orders=not (odd and situation in ("all", "no orders")),
            has_changes=day == 0 or not (chance.random() < 0.5 and situation in ("all", "no changes")),
            has_late=odd and situation in ("all", "late orders"),
        )
        if odd and situation in ("all", "skipped") and day < DAYS - 1:
            continue
        is_killed = odd and situation in ("all", "killed") and day < DAYS - 1
        now = (day + 1) * DAY
        job.run(now, is_killed=is_killed)
        first = first or len(world.versions) * (by_commit and is_feed)
        if odd and situation == "two at once":
            # Another run at the same time finds nothing to read, and has its own complete reading.
            job.run(now + chance.randrange(5))
            job.end(now)
        # What the stated meaning promises, worked out apart from the engine.
        late = {
            order for before, begin, end in job.batches for order, _, time in world.orders[begin:end] if time <= before
        }
        newest = max(time for _, _, time in world.orders)
        if by_commit:
            promised = promised if is_killed else max(promised, now - SKEW, world.versions[-1][2])
            right = max(promised, world.versions[-1][2] - 1)
        else:
            right = 10**15 if spec.static else max(time for _, _, time in world.versions) - 1
        until = min(newest - 1, right)
        if is_killed and by_commit and first == len(world.versions) and promised == NONE:
            until = min(until, job.operator.watermark.current())
        due = [each for each in world.orders if each[0] not in late and each[2] <= until]
        assert job.operator.watermark.current() == until, f"seed {SEED}, day {day}"
        if spec.static:
            # Each order has the tier that was loaded when it came out.
            expected = {order: tiers(world).get(key) for order, key, _ in due if order not in known}
            known |= expected
        elif situation == "all" or day == DAYS - 1:
            known = truth(world, due, first)
        if spec.static or situation == "all" or day == DAYS - 1:
            assert {each["trade_id"]: each["tier"] for each in job.out} == known, f"seed {SEED}, day {day}"
        assert sorted(each["trade_id"] for each in job.out) == [order for order, *_ in due], f"seed {SEED}, day {day}"
    assert len(late) == len(job.rejected)
    assert {each["reason"] for each in job.rejected} <= {"late"}
    if by_commit:
        # All but the newest order are out.
        assert len(known) >= len(world.orders) - len(late) - 1


def tiers(world: World) -> dict[int, str]:
    """Return the present tier of each customer; of several rows of one key, the last in the order of its content."""
    found: dict[int, tuple[str, int]] = {}
    for key, tier, time in world.versions:
        found[key] = max(found.get(key, ("", 0)), (tier, time))
    return {key: tier for key, (tier, _) in found.items()}


def test_a_feed_that_does_not_change_for_days_still_lets_each_days_orders_out() -> None:
    """The situation as users meet it, in its plainest form."""
    world = World(random.Random(SEED))
    job = Job(SIDES["feed, commit times"], world)
    for day in range(5):
        world.day(day, has_orders=True, has_changes=day == 0, has_late=False)
        job.run((day + 1) * DAY)
        assert len(job.out) == len(world.orders) - 1, f"day {day}: all but the newest order"


def test_idleness_of_a_day_lets_a_daily_job_go_on() -> None:
    """A table with a column of event time that changes once: a day later it is quiet."""
    world = World(random.Random(SEED))
    idle = WatermarkStrategy.for_monotonous_timestamps().with_idleness("1 day")
    for side in ("files", "feed, a column"):
        spec = SIDES[side]
        job = Job(InputSpec(**{**vars(spec), "watermark": idle}), world := World(random.Random(SEED)))
        for day in range(4):
            world.day(day, has_orders=True, has_changes=day == 0, has_late=False)
            job.run((day + 1) * DAY)
            told = job.operator.report()["input_watermarks"][1]
            if day:
                assert len(job.out) == len(world.orders) - 1, f"{side}, day {day}"
                assert (told["status"], told["quiet_since"]) == ("idle", DAY)


def test_a_commit_of_a_slow_clock_is_late_counted_and_named() -> None:
    world = World(random.Random(SEED))
    job = Job(SIDES["feed, commit times"], world)
    world.day(0, has_orders=True, has_changes=True, has_late=False)
    job.run(DAY)
    world.orders += [(len(world.orders), 1, DAY + HOUR), (len(world.orders) + 1, 1, DAY + 2 * HOUR)]
    world.versions.append((1, "in time", DAY + MINUTE))
    job.run(2 * DAY)
    assert job.operator.report()["inputs"][1]["late_applied"] == 0
    world.versions.append((1, "two minutes slow", 2 * DAY - 2 * MINUTE))
    job.run(2 * DAY + 1)
    counted = job.operator.report()["inputs"][1]
    assert (counted["late_applied"], "late_commits" in counted) == (0, False), "no order has come so far"
    world.versions.append((1, "very slow", DAY + 30 * MINUTE))
    job.run(3 * DAY)
    counted = job.operator.report()["inputs"][1]
    assert (counted["late_applied"], counted["late_commits"]) == (1, 1)
    assert counted["late_commit"] == [len(world.versions) - 1, DAY + 30 * MINUTE]
