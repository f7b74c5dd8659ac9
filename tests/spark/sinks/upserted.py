"""Random rows of batches that are upserted, and what a table must hold of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.upsert import Upsert
from cojoin.spark.batch.written_files import FileTarget, TargetFile

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from pathlib import Path

    from cojoin.storage.parquet_files import WrittenFile

TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [("id", pa.int64()), ("zone", pa.string()), ("at", TIME), ("price", pa.float64()), ("gone", pa.bool_())]
)


def written(folder: Path, rows: pa.Table, files: int) -> list[WrittenFile]:
    """Write rows as the workers do."""
    each = max(1, -(-rows.num_rows // files))
    names = []
    for first in range(0, rows.num_rows, each):
        file = TargetFile(FileTarget(str(folder), SCHEMA))
        for batch in rows.slice(first, each).to_batches():
            file.add(batch)
        names.append(file.close())
    return names


def drawn(draw: random.Random, count: int, low: int, high: int) -> pa.Table:
    """Return rows with event times from ``low`` to before ``high``."""
    columns = {
        "id": [draw.choice([*range(8), None]) for _ in range(count)],
        "zone": [draw.choice(["a", "b", "ü", None]) for _ in range(count)],
        "at": [draw.randrange(low, high) for _ in range(count)],
        "price": [draw.choice([1.0, 2.0, float("nan"), None]) for _ in range(count)],
        "gone": [draw.choice([True, False, False, None]) for _ in range(count)],
    }
    return pa.table(columns, schema=SCHEMA)


def cut(draw: random.Random, rows: pa.Table, rule: Upsert) -> list[pa.Table]:
    """Return the rows in batches: by event time, and where a rule has an order of its own, anyhow."""
    ends = sorted(draw.sample(range(1, 100), draw.randint(0, 5)))
    times = rows.column("at").cast(pa.int64()).to_pylist()
    if rule.order_by:
        batch_of = [draw.randint(0, len(ends)) for _ in times]
    else:
        batch_of = [sum(time >= end for end in ends) for time in times]
    parts = []
    for number in range(len(ends) + 1):
        places = [place for place, each in enumerate(batch_of) if each == number]
        draw.shuffle(places)
        parts.append(rows.take(pa.array(places, pa.int64())))
    return parts


def expected(rows: pa.Table, rule: Upsert) -> list[dict[str, Any]]:
    standing = rows.take(pa.array(rule.standing(rows, ("at",)).places)).to_pylist()
    if rule.deletes is not None:
        standing = [{name: row[name] for name in SCHEMA.names if name != "gone"} for row in standing if not row["gone"]]
    return standing


def spelled(rows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(str(sorted(row.items())) for row in rows)


RULES = [
    Upsert(("id",)),
    Upsert(("id", "zone")),
    Upsert(("zone",), "first"),
    Upsert(("id",), "last", ("price",)),
    Upsert(("id",), "first", ("at", "price")),
    Upsert(("id",), deletes="gone"),
]


def ids(*values: int | None, at: int = 5, price: float = 1.0) -> pa.Table:
    columns = {"id": values, "zone": ["a"] * len(values), "at": [at] * len(values)}
    return pa.table({**columns, "price": [price] * len(values), "gone": [False] * len(values)}, schema=SCHEMA)
