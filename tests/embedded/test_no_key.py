"""Joins of inputs without a key, in memory: the rows of a join by a key that all rows have, and of pandas."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.capture.capture import capture
from cojoin.engine.joins import AsofJoin
from cojoin.engine.operator import REJECTED
from cojoin.testing import Harness, HarnessInput, check_determinism
from tests.seeds import SEED, SEED_TEXT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cojoin.api.connect import ConnectedInputs
    from cojoin.api.joined import Joined

TIME = pa.timestamp("us", "UTC")
JOINS: dict[str, Callable[[ConnectedInputs], Joined]] = {
    "asof": lambda pair: pair.asof_join(),
    "nearest": lambda pair: pair.asof_join(direction="nearest", tolerance="3 seconds"),
    "temporal": lambda pair: pair.temporal_join(deletes="gone"),
    "interval": lambda pair: pair.interval_join("-3 seconds", "2 seconds", how="full"),
}


def drawn_rows(draw: random.Random, nulls: float) -> tuple[pa.Table, pa.Table]:
    """Return rows of both sides; some have no event time."""

    def times(count: int) -> pa.Array:
        micros = [None if draw.random() < nulls else 500_000 * draw.randrange(80) for _ in range(count)]
        return pa.array(micros, pa.int64()).cast(TIME)

    gone = [draw.random() < 0.2 for _ in range(30)]
    return (
        pa.table({"time": times(40), "trade": range(40)}),
        pa.table({"time": times(30), "version": range(30), "gone": gone}),
    )


def connected(rows: tuple[pa.Table, pa.Table], key: str | tuple[str, ...] = ()) -> ConnectedInputs:
    bound = cj.WatermarkStrategy.for_bounded_out_of_orderness("40 seconds")
    left, right = (
        cj.Input(table, key, "time", name, watermark=bound) for table, name in zip(rows, ("l", "r"), strict=True)
    )
    return cj.connect(left, right)


@pytest.mark.parametrize("name", JOINS)
@pytest.mark.parametrize("number", range(2))
def test_the_rows_are_those_of_a_key_that_all_rows_have(name: str, number: int) -> None:
    draw = random.Random(f"{SEED} {name} {number}")
    rows = drawn_rows(draw, 0.1)
    keyed = tuple(table.append_column("key", pa.array(["all"] * table.num_rows)) for table in rows)
    joined, expected = JOINS[name](connected(rows)), JOINS[name](connected(keyed, "key"))
    wanted = expected.to_arrow().drop_columns("key")
    assert joined.to_arrow() == wanted, SEED_TEXT
    lefts, rights = (sorted(draw.choices(range(table.num_rows + 1), k=7)) for table in rows)
    bounds = [(0, 0), *zip(lefts, rights, strict=True), (rows[0].num_rows, rows[1].num_rows)]
    cuts = [(two[0] - one[0], two[1] - one[1]) for one, two in pairwise(bounds)]
    for one, other in zip(joined.steps(cuts), expected.steps(cuts), strict=True):
        tables = [(one.state, other.state), *zip(one.waiting, other.waiting, strict=True)]
        tables += [(table, other.tables[output]) for output, table in one.tables.items() if output != REJECTED]
        for found, keyed_rows in tables:
            assert found == keyed_rows.drop_columns({"key"} & {*keyed_rows.column_names}), SEED_TEXT


def test_the_rows_are_those_of_pandas() -> None:
    rows = drawn_rows(random.Random(SEED), 0.0)
    left, right = (table.to_pandas().sort_values(["time"], kind="stable") for table in rows)
    expected = pd.merge_asof(left, right, on="time")
    found = connected(rows).asof_join().to_arrow().to_pandas().sort_values(["time", "trade"])
    assert found.version.isna().tolist() == expected.sort_values(["time", "trade"]).version.isna().tolist()
    assert found.version.dropna().tolist() == expected.sort_values(["time", "trade"]).version.dropna().tolist()


def test_nothing_but_time_decides() -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")  # It sends functions to processes.
    assert check_determinism(connected(drawn_rows(random.Random(SEED), 0.1)).asof_join(), seeds=10).seeds == 10


def test_two_versions_are_compared() -> None:
    pair = connected(drawn_rows(random.Random(SEED), 0.0))
    assert cj.diff(pair.asof_join(), pair.asof_join()).equal
    text = str(cj.diff(pair.asof_join(), pair.asof_join(tolerance="1 ms")))
    assert "'r' has rows" in text
    assert " of :" not in text


def test_a_harness_runs_a_join_by_time_alone() -> None:
    trades, customers = HarnessInput("trade long", (), name="trades"), HarnessInput("tier string", (), name="customers")
    harness = Harness.of(AsofJoin(), input1=trades, input2=customers)
    harness.process_element2(("gold",), 1_000)
    harness.process_element1((7,), 1_200)
    harness.process_watermark(1_500)
    assert [(row.trade, row.tier) for row in harness.output] == [(7, "gold")]
    assert [row.tier for row in harness.state(())["versions"]] == ["gold"]
    assert harness.timers() == []


def test_a_picture_has_one_key(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from cojoin import plots

    axes = plots.plot_timeline(connected(drawn_rows(random.Random(SEED), 0.0)).asof_join(), ())
    axes.figure.savefig(tmp_path / "timeline.png")
    with pytest.raises(cj.ConfigurationError, match=r"keys: expected \(\), since the inputs have no key, got 7"):
        plots.plot_timeline(connected(drawn_rows(random.Random(SEED), 0.0)).asof_join(), 7)


class _Function(cj.KeyedCoProcessFunction):
    pass


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (
            lambda pair, _: pair.process(_Function(), "n long"),
            "process: inputs 'l' and 'r' have no key .*; give both inputs a key column, such as one with",
        ),
        (
            lambda pair, folder: capture(pair.asof_join(), folder / "test_joins.py"),
            r"capture: a test is made of the rows of a few keys, and inputs 'l' and 'r' have no key \(key=\(\)\)",
        ),
        (
            lambda pair, _: cj.connect(
                cj.Input(pair._execution.rows[0], "trade", "time", "l"),
                cj.Input(pair._execution.rows[1], (), "time", "r"),
            ),
            r"key: expected as many columns of both inputs, .*; input 'l' has 1 \(trade\) and input 'r' has 0",
        ),
        (
            lambda pair, _: cj.connect(
                *(cj.Input(rows, None, "time", name) for rows, name in zip(pair._execution.rows, "lr", strict=True))
            ),
            r"input 'l': key: expected the key column or columns, got None; key=\(\) joins rows by time alone",
        ),
    ],
)
def test_what_needs_a_key_is_refused(use: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(cj.ConfigurationError, match=told):
        use(connected(drawn_rows(random.Random(SEED), 0.0)), tmp_path)


def test_an_input_shows_that_it_has_no_key() -> None:
    assert "key none" in str(cj.Input(pa.table({}), (), None))
