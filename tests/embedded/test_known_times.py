"""Joins with known times: the rows are DuckDB's, however they arrive, and depend on nothing that is known later."""

from __future__ import annotations

import random
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import cojoin as cj
from cojoin.capture.capture import capture
from cojoin.testing import check_determinism
from tests import seeds
from tests.embedded.known_times import JOINS, ORDERS, PRICES, STEP_US, TIME, by_duckdb, connected, drawn, matched
from tests.seeds import SEED, SEED_TEXT

if TYPE_CHECKING:
    from pathlib import Path


def assert_as_duckdb(seed: int) -> None:
    tables, told = drawn(seed), f"{seed=}, {SEED_TEXT}"
    for sequence, tie in (((), "0"), ("seq", "p.seq")):
        pair = connected(tables, sequence=sequence)
        for exact in (True, False):
            for limit_s in (0, 4):
                joined = pair.asof_join(tolerance=f"{limit_s} s" if limit_s else None, allow_exact_matches=exact)
                # Without a sequence it is one of the columns by which equal rows are compared.
                expected = by_duckdb(tables, tie if sequence else "p.seq", exact=exact, limit_s=limit_s)
                assert matched(joined) == expected, (told, sequence, exact, limit_s)
        for limit_s in (0, 4):
            joined = pair.temporal_join(deletes="gone", retention=f"{limit_s} s" if limit_s else None)
            order = "p.seq, p.gone" if sequence else "p.gone, p.seq"
            assert matched(joined) == by_duckdb(tables, order, limit_s=limit_s), (told, sequence, limit_s)
    pair = connected(tables, delay=f"{2 * STEP_US} microseconds")
    content = "p.loaded_at IS NOT NULL, p.loaded_at, p.seq"
    expected = by_duckdb(tables, content, known=f"p.valid_at + INTERVAL {2 * STEP_US} MICROSECONDS")
    assert matched(pair.asof_join(allow_exact_matches=False)) == expected, told


@pytest.mark.parametrize("seed", range(3))
def test_the_rows_are_those_of_duckdb(seed: int) -> None:
    assert_as_duckdb(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", seeds.drawn(range(3, 300, 33), 1))
def test_the_rows_of_300_data_sets_are_those_of_duckdb(first: int) -> None:
    for seed in range(first, first + 33):
        assert_as_duckdb(seed)


@pytest.mark.push
def test_batches_restarts_and_key_groups_change_nothing() -> None:
    check_determinism(JOINS["temporal"](connected(drawn(SEED), sequence="seq")), seeds=20, first_seed=SEED)


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINS)
def test_500_deliveries_change_nothing(name: str) -> None:
    draw = random.Random(f"{SEED} many {name}")
    for seed in draw.sample(range(1_000), 5):
        check_determinism(
            JOINS[name](connected(drawn(seed), sequence="seq")), seeds=100, first_seed=draw.randrange(1_000)
        )


@pytest.mark.parametrize("name", JOINS)
def test_what_is_known_later_changes_no_earlier_row(name: str) -> None:
    for seed in range(5):
        orders, prices = drawn(seed, nulls=False)
        until = 20 * STEP_US
        of_order, known = (table.column(at).cast(pa.int64()).to_numpy() for table, at in ((orders, 1), (prices, 2)))
        before = matched(JOINS[name](connected((orders, prices))))
        draw = np.random.default_rng([SEED, seed, 1])
        late = np.flatnonzero(known > until)
        # Other keys, event times, prices and deletes, in another order, and some of the rows twice.
        other = drawn(seed + 1_000, prices=len(late), nulls=False)[1]
        other = other.set_column(2, "loaded_at", prices.column("loaded_at").take(late))
        changed = pa.concat_tables([prices.filter(pa.array(known <= until)), other, other.slice(0, 3)])
        changed = changed.take(draw.permutation(changed.num_rows))
        after = matched(JOINS[name](connected((orders, changed))))
        early = {number for number, at in enumerate(of_order) if at <= until}
        assert {n: p for n, p in before.items() if n in early} == {n: p for n, p in after.items() if n in early}
        assert before != after or seed, SEED_TEXT


def spans(seed: int) -> tuple[pa.Table, pa.Table]:
    """Draw orders, and prices with a span of validity, some of them corrected, without an end, or never valid."""
    orders, prices = drawn(seed)
    draw = np.random.default_rng([SEED, seed, 2])
    begins = prices.column("valid_at").cast(pa.int64()).fill_null(0).to_numpy()
    until = draw.integers(0, 12, len(begins))
    ends = pa.array(begins + until * STEP_US, pa.int64(), mask=draw.random(len(begins)) < 0.3).cast(TIME)
    return orders, prices.append_column("valid_to", ends)


def test_a_span_ends_for_whoever_knows_its_row() -> None:
    query = """SELECT o.n, arg_max(
            p, (p.valid_at, p.loaded_at, p.seq, p.price, p.gone, p.valid_to IS NOT NULL, p.valid_to)
        ) FILTER (p.valid_at IS NOT NULL) AS p, o.at
        FROM orders o LEFT JOIN prices p ON o.id = p.id AND p.loaded_at <= o.at AND p.valid_at <= o.at
        WHERE o.at IS NOT NULL GROUP BY ALL"""
    ended = 0
    for seed in range(10):
        orders, prices = spans(seed)
        with duckdb.connect() as connection:
            connection.register("orders", orders).register("prices", prices)
            rows = connection.sql(query).fetchall()
        is_over = {n: p is not None and p["valid_to"] is not None and p["valid_to"] <= at for n, p, at in rows}
        expected = {n: None if p is None or is_over[n] else p["price"] for n, p, _ in rows}
        ended += sum(is_over.values())
        right = cj.Input(prices, "id", name="prices", valid_from="valid_at", valid_to="valid_to", known_at="loaded_at")
        joined = cj.connect(cj.Input(orders, "id", "at", "orders"), right).temporal_join()
        assert matched(joined) == expected, f"{seed=}, {SEED_TEXT}"
        steps = joined.steps(every="7 seconds") if not seed else ()
        assert all(step.report.is_conserved for step in steps)
    assert ended > 20


def test_a_late_correction_is_on_time_and_an_earlier_match_stays() -> None:
    orders = pa.table([[1, 1, 1], [10, 20, 30], [0, 1, 2]], names=ORDERS)
    prices = pa.table([[1, 1, 1], [5, 9, 5], [6, 9, 25], [0] * 3, [50, 90, 55], [False, True, False]], names=PRICES)
    tables = tuple(
        table.set_column(place, name, pc.multiply(table.column(name), 1_000_000).cast(TIME))
        for table, place, name in ((orders, 1, "at"), (prices, 1, "valid_at"))
    )
    prices = tables[1].set_column(2, "loaded_at", pc.multiply(prices.column(2), 1_000_000).cast(TIME))
    pair = connected((tables[0], prices))
    # The correction of 5, known at 25, is older than the row of 9.
    assert matched(pair.asof_join()) == {0: 90, 1: 90, 2: 90}
    # It revives no key that was deleted at 9.
    assert matched(pair.temporal_join(deletes="gone")) == {0: None, 1: None, 2: None}
    result = pair.temporal_join(deletes="gone").run()
    assert result.report.inputs[1].late_applied == 0
    assert result.report.details["versions_in_force"] == 1


def test_of_a_day_of_corrections_one_version_a_key_is_kept() -> None:
    """Each version is corrected three times, up to two hours later: what waits is bounded by what is in flight."""
    draw, keys, hours = np.random.default_rng(SEED), 20, 24
    valid = np.repeat(np.arange(keys * hours) // keys * 3_600, 4)
    loaded = valid + np.tile([1, 1_800, 3_600, 7_200], keys * hours) + draw.integers(0, 60, len(valid))
    prices = pa.table(
        [
            np.repeat(np.tile(np.arange(keys), hours), 4),
            pa.array(valid * 1_000_000).cast(TIME),
            pa.array(loaded * 1_000_000).cast(TIME),
            np.zeros(len(valid), dtype=np.int64),
            np.arange(len(valid)),
            np.zeros(len(valid), dtype=bool),
        ],
        names=PRICES,
    )
    prices = prices.take(np.argsort(loaded, kind="stable"))
    at = np.sort(draw.integers(0, hours * 3_600, 500))
    orders = pa.table([draw.integers(0, keys, 500), pa.array(at * 1_000_000).cast(TIME), np.arange(500)], names=ORDERS)
    pair = cj.connect(
        cj.Input(orders, "id", "at", "orders"),
        cj.Input(prices, "id", "valid_at", "prices", known_at="loaded_at"),
    )
    joined = pair.asof_join()
    steps = joined.steps(arrival=("at", "loaded_at"), every="10 minutes")
    kept = [step.report.details["versions_in_force"] for step in steps]
    waiting = [step.report.inputs[1].buffered for step in joined.steps(arrival=("at", "loaded_at"), every="10 minutes")]
    assert max(kept) == keys
    # Those of one step, since the watermark follows the known times.
    assert max(waiting) <= keys * 4
    assert matched(joined) == by_duckdb((orders, prices), "p.seq")


@pytest.mark.push
def test_the_tools_show_when_a_version_was_known(tmp_path: Path) -> None:
    orders = pa.table([[1, 1], [at(605), at(700)], [0, 1]], names=ORDERS)
    prices = pa.table([[1, 1], [at(540), at(600)], [at(542), at(620)], [0, 0], [10, 12], [False, False]], names=PRICES)
    pair = connected((orders, prices))
    assert "valid_at, known at loaded_at" in pair._repr_html_()
    found = cj.diff(connected((orders, prices), delay="0 s").asof_join(), pair.asof_join())
    assert found.changed.num_rows == 1
    assert "right input's known: after 0 seconds in a, at loaded_at in b" in str(found)
    axes = cj.plots.plot_timeline(pair.asof_join(), 1)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["orders", "prices", "prices, event time"]
    labels = [entry.get_text() for entry in axes.get_legend().get_texts()]
    assert {"when it was known", "prices, at its event time"} <= set(labels)
    made = capture(pair.asof_join(), tmp_path / "test_prices.py", keys=[1])
    assert "known_at='loaded_at'" in made.path.read_text("utf-8").replace('"', "'")
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", str(made.path)], check=False, capture_output=True)
    assert run.returncode == 0, run.stdout.decode()


def at(minutes: int) -> datetime:
    return datetime(2026, 1, 15, tzinfo=timezone.utc) + timedelta(minutes=minutes)
