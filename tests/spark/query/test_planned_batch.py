"""A query that has changed goes on with its checkpoint: other strategies, more columns, and what was planned before."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cojoin as cj
from cojoin.checkpoints.identity import _FORM, claim_checkpoint, describe_query, note_sources, read_query
from cojoin.engine.plan import plan_settings
from cojoin.engine.time.watermark_strategies import as_written
from cojoin.spark.query.planned_batch import Transition
from cojoin.storage.documents import to_text
from cojoin.storage.local_store import LocalStore
from tests.engine.test_plan import LEFT, PLAN
from tests.engine.time.test_watermark_strategies import Halved
from tests.spark.data import MORNING, SECOND, rows, table
from tests.spark.refused import refused
from tests.spark.saved import PAUSE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.plan import Plan
    from cojoin.storage.store import Store

pytestmark = pytest.mark.spark

OF = cj.WatermarkStrategy
DDL = "order_id bigint, customer_id bigint, event_time timestamp"
FIVE = OF.for_bounded_out_of_orderness("5 seconds")
NOTED = f"{DDL}, note string"


class DiskFullError(OSError):
    """What a sink raises."""


def fail(frame: DataFrame, batch_id: int) -> None:
    del frame, batch_id
    raise DiskFullError


def ignore(frame: DataFrame, batch_id: int) -> None:
    del frame, batch_id


def wait_until(reached: Any, seconds: float = 60.0) -> None:
    started = time.monotonic()
    while not reached():
        assert time.monotonic() - started < seconds
        time.sleep(0.05)


@dataclass
class Shop:
    """Orders and customers' versions as files, and a job that joins them."""

    spark: SparkSession
    folder: Path
    files: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, *given: tuple[Any, ...]) -> None:
        """Write a file; a row has its number, the customer, the second of its event time, and perhaps a note.

        Each file of orders has one that is rejected.
        """
        (self.folder / name).mkdir(exist_ok=True)
        self.files += 1
        if name == "orders":
            given = (*given, (100 + self.files, None, *given[0][2:]))
        time = pa.array([MORNING + row[2] * SECOND for row in given], pa.int64()).cast(pa.timestamp("us", "UTC"))
        columns = {"order_id": [row[0] for row in given], "customer_id": [row[1] for row in given], "event_time": time}
        if name == "customers":
            columns["version"] = columns.pop("order_id")
        if len(given[0]) > 3:
            columns["note"] = pa.array([row[3] for row in given], pa.string())
        pq.write_table(pa.table(columns), self.folder / name / f"{self.files:03d}.parquet")

    def joined(
        self, *, ddl: str = DDL, watermark: Any = FIVE, right: Any = None, **settings: Any
    ) -> cj.ConnectedInputs:
        customers = "customer_id bigint, event_time timestamp, version bigint"
        orders = cj.sources.files(f"{self.folder}/orders", "parquet", schema=ddl)
        source = cj.sources.files(f"{self.folder}/customers", "parquet", schema=customers)
        one = cj.Input(orders, "customer_id", "event_time", "orders", watermark=watermark, **settings)
        two = cj.Input(source, "customer_id", "event_time", "customers", watermark=watermark)
        return cj.connect(one, two, key_groups=2)

    def start(self, joined: cj.Joined, *, trigger: cj.Trigger = PAUSE, **options: Any) -> cj.Query:
        given = {"output": cj.sinks.delta(f"{self.folder}/out", options={"mergeSchema": "true"}), "rejected": ignore}
        return joined.start(**(given | {"checkpoint": f"{self.folder}/checkpoint", "trigger": trigger} | options))

    def run(self, *, how: Any = None, options: Any = None, **settings: Any) -> cj.Query:
        joined = (how or (lambda pair: pair.asof_join()))(self.joined(**settings))
        query = self.start(joined, **(options or {}))
        query.await_termination()
        return query

    def out(self, *columns: str) -> list[tuple[Any, ...]]:
        return rows(table(self.spark, self.folder / "out"), *(columns or ("order_id", "version")))


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    found = Shop(spark, tmp_path)
    found.add("customers", (1, 7, 0), (2, 7, 30))
    found.add("orders", (1, 7, 10), (2, 7, 24), (3, 7, 40))
    return found


class Stub:
    """An input of which only the name of what it was asked for counts."""

    def planned_as(self, spec: InputSpec, added: Sequence[str]) -> Any:
        return spec, tuple(added)


BOUND: Any = (Stub(), Stub())


def transition(files: Store, plan: Plan, trigger: cj.Trigger = PAUSE) -> Transition:
    operation = plan.operation.describe()
    described = describe_query(operation, plan.inputs, plan.output, plan.key_groups, needs_clock=plan.needs_clock)
    return Transition.of(files, plan, BOUND, read_query(files), described, trigger, is_restoring=False)


def claimed(tmp_path: Path, plan: Plan, *, planned: int, committed: int) -> Store:
    """Return a checkpoint that a query with settings has begun."""
    files = LocalStore(f"{tmp_path}/checkpoint")
    operation = plan.operation.describe()
    described = describe_query(operation, plan.inputs, plan.output, plan.key_groups, needs_clock=plan.needs_clock)
    claim_checkpoint(files, described, settings=plan_settings(plan))
    for batch_id in range(planned + 1):
        files.write(f"spark/offsets/{batch_id}", "v1")
    for batch_id in range(committed + 1):
        files.write(f"spark/commits/{batch_id}", "v1")
    return files


def test_only_a_batch_that_is_planned_runs_with_the_former_settings_and_columns(tmp_path: Path) -> None:
    files = claimed(tmp_path, PLAN, planned=3, committed=2)
    slow = replace(PLAN, left=replace(LEFT, watermark=OF.for_bounded_out_of_orderness("1 hour")))
    noted = replace(slow, left=replace(slow.left, schema=LEFT.schema.append(pa.field("note", pa.string()))))
    assert transition(files, PLAN).is_noted, "nothing has changed"
    found = transition(files, slow).planned
    assert found is not None
    assert (found.batch_id, found.plan.left, found.plan.emitted_columns) == (3, LEFT, {})
    found = transition(files, noted).planned
    assert found is not None
    assert found.inputs == ((replace(noted.left, watermark=LEFT.watermark), ("note",)), (PLAN.right, ()))
    assert found.plan.outputs["output"][1] == PLAN.output
    assert found.plan.output.names == ["id", "at", "note", "customers_event_time"]
    files.write("spark/commits/3", "v1")
    assert transition(files, noted).planned is None, "the batch is finished"
    files = claimed(tmp_path / "other", PLAN, planned=0, committed=-1)
    stored = read_query(files)
    note_sources(files, [None, None])
    files.write("query.json", to_text("query.json", _FORM, {**stored, "settings": None}))
    assert transition(files, slow).planned is None, "an earlier release has planned it, with settings that it kept not"


def test_a_generator_that_is_code_must_be_there_for_the_planned_batch(tmp_path: Path) -> None:
    own = replace(PLAN, right=replace(PLAN.right, watermark=OF.for_generator(Halved(3))))
    files = claimed(tmp_path, own, planned=3, committed=2)
    with refused(
        f"checkpoint {files.root}: batch 3 is planned and not finished: input 'customers': a batch was planned with "
        f"the watermark strategy for_generator(Halved(less=3))",
        "start the query once with the former strategy",
        kind=cj.CheckpointError,
    ):
        transition(files, PLAN)
    files.write("spark/commits/3", "v1")
    assert transition(files, PLAN).planned is None


@pytest.mark.parametrize(
    "strategy", [OF.for_clock_lag("5 seconds"), OF.for_monotonous_timestamps().with_idleness("1 day")]
)
def test_a_query_that_runs_on_has_the_clock_that_its_first_batch_gave_it(tmp_path: Path, strategy: Any) -> None:
    live = cj.Trigger.processing_time("1 second")
    timed = replace(PLAN, right=replace(PLAN.right, watermark=strategy))
    files = claimed(tmp_path, PLAN, planned=0, committed=0)
    with refused(
        f"input 'customers': watermark={as_written(strategy)}: a query that runs on needs", kind=cj.CheckpointError
    ):
        transition(files, timed, live)
    assert not transition(files, timed).plan.has_timeouts
    files = claimed(tmp_path / "timed", timed, planned=0, committed=0)
    assert transition(files, timed, live).plan.has_timeouts
    assert transition(files, PLAN, live).plan.has_timeouts, "Spark's state has its form once and for all"
    files = claimed(tmp_path / "new", PLAN, planned=-1, committed=-1)
    assert transition(files, timed, live).plan.has_timeouts, "no batch has decided it"


@pytest.mark.slow
def test_a_planned_batch_runs_as_it_was_planned_and_then_the_new_strategy_holds(shop: Shop) -> None:
    with refused("DiskFullError", kind=cj.QueryFailedError):
        shop.run(options={"rejected": fail})
    assert shop.out() == [(1, 1), (2, 1)], "the output was written, and the batch does not count"
    shop.add("orders", (4, 7, 41))
    # By its own watermark, of a minute, the batch would not have let them out: they would come a second time.
    minute = OF.for_bounded_out_of_orderness("1 minute")
    query = shop.run(watermark=minute, max_ahead="1 hour")
    assert query.progress is not None
    assert (query.progress.batch_id, query.batches) == (1, 2)
    assert [each.watermark for each in query.progress.inputs] == [
        MORNING // 1000 + second - 1 for second in (35_000, 25_000)
    ]
    assert shop.out() == [(1, 1), (2, 1)]
    shop.add("customers", (3, 7, 101))
    shop.add("orders", (5, 7, 101))
    shop.run(watermark=minute)
    assert shop.out() == [(1, 1), (2, 1), (3, 2)], "40 s is behind the newest less a minute, and 41 s is not"


@pytest.mark.slow
def test_idleness_may_come_to_a_checkpoint_and_go(shop: Shop) -> None:
    idle = FIVE.with_idleness("1 ms", even_if_silent=True)
    assert shop.run().progress.watermark == MORNING // 1000 + 24_999
    with refused(
        "input 'orders': watermark=for_bounded_out_of_orderness('5 seconds').with_idleness('1 millisecond', "
        "even_if_silent=True)",
        "Trigger.available_now() without then= (`cojoin run` without --then-live and --every), whose runs",
        kind=cj.CheckpointError,
    ):
        shop.run(watermark=idle, options={"trigger": cj.Trigger.processing_time("1 second")})
    shop.add("orders", (4, 7, 60))
    report = shop.run(watermark=idle).progress
    assert (report.batch_id, report.inputs[1].status, report.watermark) == (2, "idle", MORNING // 1000 + 54_999)
    assert shop.out() == [(1, 1), (2, 1), (3, 2)]
    shop.add("orders", (5, 7, 70))
    report = shop.run().progress
    assert (report.inputs[1].status, report.holding_input) == ("active", "customers")
    assert report.watermark == MORNING // 1000 + 54_999, "it never goes back"
    shop.run(watermark=idle)
    kept = [path.name for path in (shop.folder / "checkpoint" / "control").iterdir() if path.suffix == ".parquet"]
    assert len(kept) <= 2, kept


@pytest.mark.slow
def test_a_state_with_timeouts_serves_a_query_that_needs_none(shop: Shop) -> None:
    idle = FIVE.with_idleness("1 hour")
    shop.run(watermark=idle)
    shop.add("orders", (4, 7, 60))
    assert shop.run().progress.batch_id == 2
    shop.add("customers", (3, 7, 60))
    query = shop.start(shop.joined().asof_join(), trigger=cj.Trigger.processing_time("100 ms"))
    try:
        wait_until(lambda: query.batches == 1)
        time.sleep(1)
        assert query.batches == 1
    finally:
        query.stop()
    assert shop.out() == [(1, 1), (2, 1), (3, 2)]
    # No key group has a timeout by now, so that Spark would call none before a row comes.
    shop.run(watermark=FIVE.with_idleness("1 ms", even_if_silent=True))
    assert shop.out() == [(1, 1), (2, 1), (3, 2)]
    shop.add("orders", (5, 7, 200))
    shop.run()
    soon = FIVE.with_idleness("1 second", even_if_silent=True)
    query = shop.start(shop.joined(watermark=soon).asof_join(), trigger=cj.Trigger.processing_time("100 ms"))
    try:
        wait_until(lambda: [each.status for each in query.progress.inputs] == ["idle", "idle"])
    finally:
        query.stop()


class Noted(cj.KeyedCoProcessFunction):
    """Emits each order, and its note where the query of that day has one."""

    def __init__(self, *, has_notes: bool) -> None:
        self._has_notes = has_notes

    def process_element1(self, order: Any, ctx: cj.Context) -> Any:
        del ctx
        yield (order.order_id, order.note) if self._has_notes else (order.order_id,)

    def process_element2(self, customer: Any, ctx: cj.Context) -> None:
        pass


@pytest.mark.slow
def test_a_nightly_jobs_orders_get_a_column(spark: SparkSession, shop: Shop) -> None:
    shop.run()
    saved = cj.savepoint(spark, f"{shop.folder}/checkpoint")
    # A batch is planned with the old columns, written, and not finished; its file has the new one already.
    shop.add("orders", (4, 7, 41, "gift"), (5, 7, 90, "call"))
    shop.add("customers", (3, 7, 100))
    with refused("DiskFullError", kind=cj.QueryFailedError):
        shop.run(options={"rejected": fail})
    before = shop.out()
    assert before == [(1, 1), (2, 1), (3, 2), (4, 2)]
    with refused("input 'orders' has the column 'note' more; start(..., evolve=True)", kind=cj.CheckpointError):
        shop.run(ddl=NOTED)
    plain = {"evolve": True, "output": cj.sinks.delta(f"{shop.folder}/out")}
    with refused("output: Delta", "note"):
        shop.run(ddl=NOTED, options=plain)
    query = shop.run(ddl=NOTED, options={"evolve": True})
    assert query.batches == 1, "the planned batch alone"
    assert shop.out() == before
    shop.add("orders", (6, 7, 95, "ring"), (7, 7, 120, None))
    shop.add("customers", (4, 7, 130))
    shop.run(ddl=NOTED, options={"evolve": True})
    expected = [(1, None), (2, None), (3, None), (4, None), (5, None), (6, "ring")]
    assert [row[:2] for row in shop.out("order_id", "note")][:6] == expected
    with refused("input 'orders' has lost column 'note'", kind=cj.CheckpointError):
        shop.run(options={"evolve": True})
    # A savepoint of before begins both: the query with the column, and the one without.
    for name, ddl in (("with", NOTED), ("without", DDL)):
        given = {"checkpoint": f"{shop.folder}/{name}", "output": cj.sinks.delta(f"{shop.folder}/{name} out")}
        shop.run(ddl=ddl, options=given | {"restore_from": saved})
        found = table(spark, shop.folder / f"{name} out")
        assert [row[0] for row in rows(found, "order_id")] == [3, 4, 5, 6]
        assert ("note" in found.columns) is (name == "with")


@pytest.mark.slow
def test_two_starts_of_one_minute_take_up_a_column_once(shop: Shop) -> None:
    shop.run()
    shop.add("orders", (4, 7, 41, "gift"), (5, 7, 90, "call"))
    shop.add("customers", (3, 7, 100))
    with refused("DiskFullError", kind=cj.QueryFailedError):
        shop.run(options={"rejected": fail})
    strategies = FIVE, FIVE.with_idleness("1 hour")
    jobs = [shop.joined(ddl=NOTED, watermark=strategy).asof_join() for strategy in strategies]

    def start(job: cj.Joined) -> str:
        try:
            shop.start(job, evolve=True).await_termination()
        except (cj.CheckpointError, cj.QueryFailedError) as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(start, jobs))
    assert "" in ended, ended
    shop.add("orders", (6, 7, 95, "ring"), (7, 7, 200, None))
    shop.add("customers", (4, 7, 130))
    shop.run(ddl=NOTED, options={"evolve": True})
    found = shop.out("order_id", "version", "note")
    assert [row[:2] for row in found] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 2)]
    assert found[-1][2] == "ring"


@pytest.mark.slow
def test_an_output_that_got_a_column_is_cut_back_to_a_savepoint_of_before(spark: SparkSession, shop: Shop) -> None:
    shop.run()
    saved = cj.savepoint(spark, f"{shop.folder}/checkpoint")
    shop.add("orders", (4, 7, 41, "gift"), (5, 7, 90, "call"))
    shop.add("customers", (3, 7, 100))
    shop.run(ddl=NOTED, options={"evolve": True})
    before = shop.out("order_id", "version", "note")
    assert [row[0] for row in before] == [1, 2, 3, 4]
    given = {"checkpoint": f"{shop.folder}/again", "restore_from": saved, "cut_back_output": True}
    shop.run(ddl=NOTED, options=given)
    assert shop.out("order_id", "version", "note") == before


@pytest.mark.slow
def test_a_functions_output_gets_a_column(shop: Shop) -> None:
    plain = lambda pair: pair.process(Noted(has_notes=False), "order_id bigint")  # noqa: E731
    noting = lambda pair: pair.process(Noted(has_notes=True), "order_id bigint, note string")  # noqa: E731
    with refused("DiskFullError", kind=cj.QueryFailedError):
        shop.run(how=plain, options={"rejected": fail})
    shop.add("orders", (4, 7, 50, "gift"))
    shop.add("customers", (3, 7, 60))
    with refused("the output has the column 'note' more; start(..., evolve=True)", kind=cj.CheckpointError):
        shop.run(how=noting, ddl=NOTED)
    shop.run(how=noting, ddl=NOTED, options={"evolve": True})
    assert shop.out("order_id", "note") == [(1, None), (2, None), (3, None)], "3 waited"
    shop.add("customers", (4, 7, 80))
    shop.add("orders", (5, 7, 81, None))
    shop.run(how=noting, ddl=NOTED, options={"evolve": True})
    assert shop.out("order_id", "note") == [(1, None), (2, None), (3, None), (4, "gift")]


@pytest.mark.slow
def test_a_tables_column_is_taken_up_by_a_job_that_reads_it_and_its_changes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Both inputs are Delta tables, one with its changes; the batch that is planned was read before the columns."""
    feed = "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    at = "timestamp_micros({})"

    def add(name: str, *given: tuple[Any, ...]) -> None:
        values = ", ".join(
            f"({', '.join([f'{row[0]}L', f'{row[1]}L', at.format(MORNING + row[2] * SECOND), *map(repr, row[3:])])})"
            for row in given
        )
        spark.sql(f"INSERT INTO delta.`{tmp_path}/{name}` VALUES {values}")

    for name, first in (("orders", "order_id"), ("customers", "version")):
        columns = f"{first} bigint, customer_id bigint, event_time timestamp"
        spark.sql(f"CREATE TABLE delta.`{tmp_path}/{name}` ({columns}) USING delta {feed}")

    def run(**options: Any) -> cj.Query:
        orders, customers = (
            cj.Input(cj.sources.delta(f"{tmp_path}/{name}", changes=changes), "customer_id", "event_time", name, **more)
            for name, changes, more in (("orders", False, {"watermark": FIVE}), ("customers", True, {}))
        )
        out = cj.sinks.delta(f"{tmp_path}/out", options={"mergeSchema": "true"})
        joined = cj.connect(orders, customers, key_groups=2).temporal_join()
        given: dict[str, Any] = {"output": out, "rejected": ignore, "trigger": PAUSE}
        query = joined.start(**(given | {"checkpoint": f"{tmp_path}/checkpoint"} | options))
        query.await_termination()
        return query

    add("customers", (1, 7, 0), (2, 7, 30), (3, 7, 35))
    add("orders", (1, 7, 10), (2, 7, 34), (3, 7, 40))
    run()
    add("customers", (4, 7, 50))
    add("orders", (4, 7, 41), (5, 7, 60))
    spark.sql(f"INSERT INTO delta.`{tmp_path}/orders` VALUES (100L, NULL, {at.format(MORNING)})")
    with refused("DiskFullError", kind=cj.QueryFailedError):
        run(rejected=fail)
    before = rows(table(spark, tmp_path / "out"), "order_id", "version")
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/orders` ADD COLUMN (note string)")
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/customers` ADD COLUMN (tier string AFTER version)")
    with refused(
        "input 'orders' has the column 'note' more", "'customers' has the column 'tier' more", kind=cj.CheckpointError
    ):
        run()
    run(evolve=True)
    assert rows(table(spark, tmp_path / "out"), "order_id", "version") == before
    spark.sql(
        f"INSERT INTO delta.`{tmp_path}/customers` (version, tier, customer_id, event_time) "
        f"VALUES (5L, 'gold', 7L, {at.format(MORNING + 70 * SECOND)})"
    )
    add("orders", (6, 7, 71, "ring"), (7, 7, 90, "late"))
    spark.sql(
        f"INSERT INTO delta.`{tmp_path}/customers` (version, tier, customer_id, event_time) "
        f"VALUES (6L, 'silver', 7L, {at.format(MORNING + 80 * SECOND)})"
    )
    run(evolve=True)
    found = rows(table(spark, tmp_path / "out"), "order_id", "version", "note", "tier")
    assert found == [
        (1, 1, None, None),
        (2, 2, None, None),
        (3, 3, None, None),
        (4, 3, None, None),
        (5, 4, None, None),
        (6, 5, "ring", "gold"),
    ]
