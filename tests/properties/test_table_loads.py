"""A static side: each row finds the newest load before it comes out, whatever came when, and nothing is lost."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.input_spec import InputSpec
from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.operator import OUTPUT, Batch, TableLoad
from cojoin.engine.rescaling import assemble, cut, merged_header
from cojoin.engine.state.segments import SegmentContext, SegmentOptions
from cojoin.engine.time.control_rows import Control
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from tests.segments import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from cojoin.engine.operator import Operator

TIME = pa.timestamp("us", "UTC")
TRADES = pa.schema([("id", pa.int64()), ("ä b", pa.int64()), ("time", TIME)])
CUSTOMERS = pa.schema([("key.of", pa.int64()), ("since", TIME), ("tier", pa.string())])

DATABASE = duckdb.connect(config={"threads": 1})

LEFT = InputSpec("trades", TRADES, ("ä b",), "time")
JOINS = st.sampled_from([AsofJoin(), TemporalJoin(), AsofJoin("inner"), TemporalJoin("inner")])

times = st.integers(-8, 24)
keys = st.integers(1, 3)
versions = st.lists(st.tuples(keys, times, st.sampled_from(["none", "silver", "gold", None])), max_size=7)


@dataclass(frozen=True)
class Step:
    """A micro-batch: trades with their watermark, and perhaps the rows of a load."""

    trades: list[tuple[int, int]]
    load: list[tuple[int, int, str | None]] | None


def right(*, timed: bool, refreshes: bool = True) -> InputSpec:
    return InputSpec("customers", CUSTOMERS, ("key.of",), "since" if timed else None, static=True, refreshes=refreshes)


def history(data: st.DataObject) -> list[Step]:
    """Draw micro-batches; the first load comes with any of them, and no row waits for one that never comes."""
    pieces = data.draw(st.lists(st.lists(st.tuples(keys, times), max_size=4), min_size=1, max_size=6))
    loads = [data.draw(st.none() | versions) for _ in pieces]
    loads[0] = data.draw(versions)
    return [Step(trades, load) for trades, load in zip(pieces, loads, strict=True)]


def table(schema: pa.Schema, rows: list[tuple[Any, ...]], number: int) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in schema]
    columns[number] = [each * 1_000 for each in columns[number]]
    return pa.table([pa.array(each, field.type) for each, field in zip(columns, schema, strict=True)], schema=schema)


def batches(steps: list[Step]) -> list[Batch]:
    """Return the steps as batches of one key group; the last one ends the left input."""
    found, count = [], 0
    for at, step in enumerate(steps):
        rows = [(count + place, key, time) for place, (key, time) in enumerate(step.trades)]
        count += len(rows)
        largest = {"[]": max(time for _, time in step.trades)} if rows else {}
        controls = [Control(1, largest, len(rows), at + 1)] if rows else []
        loaded = step.load or []
        load = None if step.load is None else TableLoad(f"load-{at + 1}-00", "id", at, len(loaded), batch_id=at)
        sides = (table(TRADES, rows, 2), table(CUSTOMERS, loaded, 1))
        found.append(Batch(sides, controls, processing_time=at + 1, load=load))
    return [*found, Batch((TRADES.empty_table(), CUSTOMERS.empty_table()), end_of_input=True)]


def run(create: Callable[[], Operator], steps: list[Step], between: Callable[[Operator], Operator]) -> dict[int, Any]:
    """Return what came out for each trade, and check the counts after each batch."""
    operator, found = create(), {}
    for batch in batches(steps):
        for emission in operator.process(batch):
            if emission.kind == OUTPUT:
                rows = emission.table.to_pylist()
                assert not found.keys() & {row["id"] for row in rows}
                found.update({row["id"]: row["tier"] for row in rows})
        for counts in operator.report()["inputs"]:
            assert counts["rows_in"] == counts["done"] + counts["buffered"] + sum(counts["rejected"].values())
        assert operator.report()["inputs"][1]["late_applied"] == 0
        operator = between(operator)
    assert operator.report()["input_watermarks"][1]["table"]["version"] == max(
        at for at, step in enumerate(steps) if step.load is not None
    )
    return found


def expected(steps: list[Step], *, timed: bool) -> dict[int, Any]:
    """Work out when each trade comes out, and ask DuckDB what it finds in the load of that moment."""
    watermark, count, current = NONE, 0, 0
    waiting: list[tuple[int, int, int]] = []
    released: defaultdict[int, list[tuple[Any, ...]]] = defaultdict(list)
    loads: dict[int, list[tuple[Any, ...]]] = {at: [*step.load] for at, step in enumerate(steps) if step.load}
    for at, step in [*enumerate(steps), (len(steps), None)]:
        before = watermark
        if step is not None:
            current = at if step.load is not None else current
            fresh = [(count + place, key, time) for place, (key, time) in enumerate(step.trades)]
            count += len(fresh)
            waiting += [row for row in fresh if row[2] > before]
            watermark = max([before, *(time - 1 for _, time in step.trades)])
        else:
            watermark = END_OF_TIME
        released[current] += [row for row in waiting if row[2] <= watermark]
        waiting = [row for row in waiting if row[2] > watermark]
    inside = "c.since <= t.time" if timed else "true"
    answer = DATABASE.execute(
        f"""
        with trades as (from (values (0, 0, 0, 0){_values(released)}) as t(moment, id, key, time)),
        customers as (from (values (-1, 0, 0, ''){_values(loads)}) as c(moment, key, since, tier))
        select t.id, (select [tier] from customers c where c.moment = t.moment and c.key = t.key and {inside}
                      order by since desc, tier desc nulls last limit 1)
        from trades t where key > 0
        """
    ).fetchall()
    return dict(answer)


def _values(by_moment: dict[int, list[tuple[Any, ...]]]) -> str:
    """Spell rows as SQL, each after its moment."""
    rows = [(moment, *row) for moment, found in by_moment.items() for row in found]
    spelled = [", ".join("null" if each is None else repr(each) for each in row) for row in rows]
    return "".join(f", ({row})" for row in spelled)


def as_told(join: Any, found: dict[int, Any]) -> dict[int, Any]:
    return {trade: row and row[0] for trade, row in found.items() if row is not None or join.how == "left"}


def unchanged(operator: Operator) -> Operator:
    return operator


@given(st.data(), JOINS)
def test_oracle_a_row_finds_the_load_of_the_moment_at_which_it_comes_out(data: st.DataObject, join: Any) -> None:
    timed = data.draw(st.booleans())
    steps, spec = history(data), right(timed=timed)
    found = run(lambda: join.create_operator(LEFT, spec), steps, unchanged)
    assert found == as_told(join, expected(steps, timed=timed))


@given(st.data(), JOINS)
def test_it_is_the_same_when_the_state_is_stored_restored_and_divided_anew_between_batches(
    data: st.DataObject, join: Any
) -> None:
    timed = data.draw(st.booleans())
    steps, spec = history(data), right(timed=timed)

    def create() -> Operator:
        made: Operator = join.create_operator(LEFT, spec)
        return made

    def moved(operator: Operator) -> Operator:
        header, tables = operator.parts()
        new = create()
        pieces = cut(tables, (LEFT, spec), lambda rows: rows.column(0).to_numpy() * 0, 1)
        new.load_parts(merged_header([header]), assemble(pieces), keeps_counts=True)
        return new

    assert run(create, steps, moved) == as_told(join, expected(steps, timed=timed))


@given(st.data())
def test_a_refresh_empties_what_lies_in_segments(data: st.DataObject) -> None:
    join, timed = TemporalJoin(), data.draw(st.booleans())
    steps, spec, store = history(data), right(timed=timed), MemoryStore()
    number = iter(range(100))

    def create() -> Operator:
        made: Operator = join.create_operator(LEFT, spec)
        made.segmenting = SegmentContext(store, SegmentOptions(limit_bytes=1), 0, next(number))
        return made

    def stored(operator: Operator) -> Operator:
        header, tables, _ = operator.flush()
        new = create()
        new.load(header, tables)
        return new

    assert run(create, steps, stored) == as_told(join, expected(steps, timed=timed))


@given(versions, st.lists(st.tuples(keys, times), min_size=1, max_size=6))
def test_an_interval_join_takes_the_first_load_as_rows_of_a_finished_input(
    load: list[tuple[int, int, str | None]], trades: list[tuple[int, int]]
) -> None:
    join = IntervalJoin("-3 ms", "2 ms")
    operator = join.create_operator(LEFT, right(timed=True, refreshes=False))
    found = [
        (row["id"], row["tier"])
        for batch in batches([Step(trades, load)])
        for emission in operator.process(batch)
        for row in emission.table.to_pylist()
    ]
    pairs = [
        (at, tier)
        for at, (key, time) in enumerate(trades)
        for other, since, tier in load
        if key == other and -3 <= since - time <= 2
    ]
    assert sorted(found, key=str) == sorted(pairs, key=str)
