"""Joins and functions in this process beside Spark's static way: the same rows, types and orders, in 100 cases.

A run has ten cases at once, whose keys begin with the case's number.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.embedded.stepped import JOINS, UNKNOWN, Case, draw_case
from tests.seeds import SEED

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FAST = {"as-of", "function"}
PARAMETERS = [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in JOINS]


def ten_cases(name: str, seed: int) -> Case:
    """Return ten cases as one, with the settings of the first."""
    cases = [draw_case(seed + number, name) for number in range(10)]
    sides = []
    for side, key in (("trades", "id"), ("customers", "customer")):
        tables = []
        for number, case in enumerate(cases):
            table = getattr(case, side)
            place = table.column_names.index(key)
            prefixed = pc.binary_join_element_wise(f"{number}-", table.column(key), "")
            tables.append(table.set_column(place, table.schema.field(key), prefixed))
        sides.append(pa.concat_tables(tables))
    return Case(sides[0], sides[1], [], cases[0].settings)


def by_key(table: pa.Table) -> dict[Any, list[Any]]:
    """Return each key's rows in their order; a side output without the key has them sorted."""
    found = defaultdict(list)
    for row in table.to_pylist():
        found[row.get("id")].append(tuple(row.values()))
    return {key: rows if "id" in table.column_names else sorted(rows) for key, rows in found.items()}


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_same_rows_as_from_static_dataframes(
    name: str, spark: SparkSession, shuffle_partitions: Callable[[int], None]
) -> None:
    shuffle_partitions(2)
    case = ten_cases(name, SEED)
    here = JOINS[name](case.connect(case.trades, case.customers)).run()
    frames = (spark.createDataFrame(rows) for rows in (case.trades, case.customers))
    there = JOINS[name](case.connect(*frames, key_groups=3))
    main = there.to_dataframe().toArrow()
    assert main.schema.remove_metadata() == here.output.schema.remove_metadata()
    assert by_key(main) == by_key(here.output)
    assert here.output.num_rows > 20
    rejected = there.to_dataframe("rejected").toArrow()
    assert sorted(map(repr, rejected.to_pylist())) == sorted(map(repr, here.rejected.to_pylist()))
    if name == "function":
        assert by_key(there.to_dataframe(UNKNOWN).toArrow()) == by_key(here.side_outputs[UNKNOWN])
