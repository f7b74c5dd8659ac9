"""Which row of a key stays: against DuckDB's window functions, in any order of the rows, and the arguments."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine import upsert
from cojoin.engine.upsert import KeySet, Upsert
from tests.seeds import SEED, SEED_TEXT

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("zone", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("offset", pa.int32()),
        ("price", pa.float64()),
        ("note", pa.string()),
        ("gone", pa.bool_()),
    ]
)


def rows_of(draw: random.Random, count: int) -> pa.Table:
    """Return rows whose keys, times and contents tie often."""
    columns = {
        "id": [draw.choice([1, 2, 3, 4, None]) for _ in range(count)],
        "zone": [draw.choice(["a", "b", None]) for _ in range(count)],
        "at": [draw.choice([10, 20, 30, None]) for _ in range(count)],
        "offset": [draw.choice([1, 2, None]) for _ in range(count)],
        "price": [draw.choice([1.0, 2.5, float("nan"), None]) for _ in range(count)],
        "note": [draw.choice(["x", "y", "", None]) for _ in range(count)],
        "gone": [draw.choice([True, False, None]) for _ in range(count)],
    }
    return pa.table(columns, schema=SCHEMA)


def by_duckdb(connection: Any, rows: pa.Table, rule: Upsert, order: tuple[str, ...]) -> list[Any]:
    ranked = [*(rule.order_by or order), *rows.column_names]
    way = "DESC NULLS LAST" if rule.conflict == "last" else "ASC NULLS FIRST"
    by = ", ".join(f'"{name}" {way}' for name in ranked)
    keys = ", ".join(f'"{name}"' for name in rule.key)
    present = " AND ".join(f'"{name}" IS NOT NULL' for name in rule.key)
    connection.register("rows", rows)
    found: list[Any] = connection.execute(
        f"SELECT * FROM rows WHERE {present} QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY {by}) = 1"
    ).fetchall()
    return found


def spelled(rows: Any) -> list[str]:
    return sorted(map(str, rows))


@pytest.mark.push
def test_the_row_of_a_key_that_stays_is_duckdbs_in_any_order_of_the_rows() -> None:
    with duckdb.connect() as connection:
        for number in range(100):
            check_rule(connection, random.Random(f"{SEED} {number}"))


def check_rule(connection: Any, draw: random.Random) -> None:
    rows = rows_of(draw, draw.randint(0, 40))
    order = draw.choice([("at",), ("at", "offset")])
    order_by = draw.choice([(), ("offset",), ("price", "at")])
    rule = Upsert(draw.choice([("id",), ("id", "zone")]), draw.choice(["last", "first"]), order_by)
    standing = rule.standing(rows, order)
    found = rows.take(pa.array(standing.places))
    connection.register("found", found)
    mine = connection.execute("SELECT * FROM found").fetchall()
    assert spelled(mine) == spelled(by_duckdb(connection, rows, rule, order)), SEED_TEXT
    assert len(standing.places) + standing.null_keys + standing.superseded == rows.num_rows
    shuffled = rows.take(pa.array(draw.sample(range(rows.num_rows), rows.num_rows), pa.int64()))
    again = shuffled.take(pa.array(rule.standing(shuffled, order).places))
    assert spelled(again.to_pylist()) == spelled(found.to_pylist()), SEED_TEXT


def test_keys_are_told_apart_where_their_hashes_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upsert, "key_hashes", lambda keys: np.full(keys.num_rows, 7, dtype=np.uint64))
    keys = KeySet(pa.table({"id": [5, 3, 9]}))
    assert keys.find(pa.table({"id": [9, 4, None, 5, 9]})).tolist() == [2, -1, -1, 0, 2]
    assert KeySet(pa.table({"id": pa.array([], pa.int64())})).find(pa.table({"id": [1]})).tolist() == [-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": 7}, r"sinks.delta: upsert: expected a column's name, or a list of distinct names, got 7"),
        ({"key": ["id", "ID"]}, "a list of distinct names"),
        ({"key": (), "order_by": "at"}, "order_by: it is for upserts; name the columns of the key"),
        ({"key": (), "deletes": "gone"}, "deletes: it is for upserts"),
        ({"key": (), "conflict": "first"}, "conflict: it is for upserts"),
        ({"key": "id", "conflict": "newest"}, "conflict: expected 'last', 'first' or 'error', got 'newest'"),
        ({"key": "id", "deletes": True}, "deletes: expected the name of a boolean column, or None, got True"),
        ({"key": "id", "deletes": "gone", "order_by": "at"}, "it does not go with order_by="),
        ({"key": "id", "deletes": "gone", "conflict": "first"}, "it does not go with conflict='first'"),
        ({"key": "id", "order_by": "at", "conflict": "error"}, "order_by: it does not go with conflict='error'"),
    ],
)
def test_arguments_that_are_no_rule_are_refused(arguments: dict[str, Any], message: str) -> None:
    given = {"conflict": "last", "order_by": None, "deletes": None} | arguments
    with pytest.raises(cj.ConfigurationError, match=message):
        Upsert.of(**given, sink="sinks.delta")


@pytest.mark.parametrize(
    ("rule", "order", "message"),
    [
        (Upsert(("idd",)), ("at",), "output: upsert: the output has no column 'idd'; did you mean 'id'"),
        (Upsert(("id",), order_by=("when",)), ("at",), "output: order_by: the output has no column 'when'"),
        (Upsert(("id",), deletes="removed"), ("at",), "output: deletes: the output has no column 'removed'"),
        (Upsert(("price",)), ("at",), "upsert: column 'price' is double, and a key's columns are boolean, tinyint"),
        (Upsert(("id",), deletes="note"), ("at",), "deletes: expected a boolean column that is not of the key"),
        (
            Upsert(
                tuple(SCHEMA.names[:4] + SCHEMA.names[5:]),
            ),
            ("at",),
            None,
        ),
        (Upsert(("id",)), None, r"expected the columns by which rows of one key are compared, such as order_by="),
        (Upsert(("id",), "first"), None, "are emitted in event-time order, and only if late left rows are not applied"),
        (Upsert(("id",), "error"), None, None),
        (Upsert(("ID",), order_by=("AT",)), None, None),
    ],
)
def test_a_rule_is_compared_with_the_outputs_columns(
    rule: Upsert, order: tuple[str, ...] | None, message: str | None
) -> None:
    if message is None:
        names = {name.lower(): name for name in SCHEMA.names}
        assert rule.within(SCHEMA, order, "output").key == tuple(names[name.lower()] for name in rule.key)
        return
    with pytest.raises(cj.ConfigurationError, match=message):
        rule.within(SCHEMA, order, "output")


def test_an_output_of_the_key_alone_has_nothing_to_update() -> None:
    schema = pa.schema([("id", pa.int64()), ("gone", pa.bool_())])
    with pytest.raises(cj.ConfigurationError, match="the output has no columns besides the key"):
        Upsert(("id",), deletes="gone").within(schema, ("id",), "output")
