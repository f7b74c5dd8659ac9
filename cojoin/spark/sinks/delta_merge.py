"""The upsert of a batch into a Delta table by Spark's MERGE, where the driver can't make it (``delta_upsert``).

The workers choose the rows that stay, by the same rule and code as the driver: the rows are partitioned by their keys,
and with ``order_by`` the stored rows of these keys are among them. Then one MERGE has the query's and the batch's ids,
and the batch's marker, so it takes effect once.

It does not compare the epoch of the query's lease in its transaction: that is compared right before. And with
``order_by`` it reads the stored rows before the MERGE: a greater row that another writer has committed in between is
replaced, unless the MERGE's own condition on ``order_by`` keeps it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.values.rows import back_quoted, free_name
from cojoin.errors import QueryFailedError
from cojoin.session.delta_tables import table_in_sql
from cojoin.session.sealed import for_workers
from cojoin.session.sessions import adapter_of
from cojoin.storage.locations import is_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from cojoin.engine.upsert import Upsert

_APP_ID, _APP_VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True)
class _Chooser:
    """Chooses the rows that stay of a partition that has all rows of its keys; a column marks those of the table."""

    rule: Upsert
    order: tuple[str, ...]
    mark: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = list(batches)
        if not parts:
            return
        rows = pa.Table.from_batches(parts)
        places = self.rule.standing(rows.drop_columns([self.mark]), self.order).places
        chosen = rows.take(pa.array(places))
        yield from chosen.filter(pc.invert(chosen.column(self.mark))).drop_columns([self.mark]).to_batches()


def merge(
    frame: DataFrame,
    location: str,
    rule: Upsert,
    order: Sequence[str],
    transaction: tuple[str, int],
    metadata: str,
) -> int:
    """Upsert a batch's rows into a table that exists; return how many were left out for a null in their key.

    ``transaction`` are the application's id and the batch's, by which Delta skips a batch that the table has. The table
    has all of the rows' columns, but for that of ``deletes``.

    Raises ``QueryFailedError`` where a key must not come twice.
    """
    session = frame.sparkSession
    table = session.read.format("delta").load(location) if is_path(location) else session.read.table(location)
    has_key = reduce(and_, (F.col(back_quoted(name)).isNotNull() for name in rule.key))
    rows = frame.where(has_key)
    null_keys: int = frame.where(~has_key).count()
    if rule.conflict == "error":
        _check_unique(rows, table, rule)
    mark = free_name("stored", frame.columns)
    marked = rows.withColumn(mark, F.lit(False))
    if rule.order_by:
        names = frame.columns
        keys = [back_quoted(name) for name in rule.key]
        stored = table.join(rows.select(*keys).distinct(), list(rule.key), "left_semi").select(
            *map(back_quoted, names), F.lit(True).alias(mark)
        )
        marked = marked.unionByName(stored)
    keyed = marked.repartition(*(F.col(back_quoted(name)) for name in rule.key))
    chosen = keyed.mapInArrow(for_workers(_Chooser(rule, tuple(order), mark)), frame.schema)
    name = f"cojoin_{uuid.uuid4().hex}"
    chosen.createOrReplaceTempView(name)
    settings = {_APP_ID: transaction[0], _APP_VERSION: str(transaction[1]), _METADATA: metadata}
    try:
        with adapter_of(session).with_settings(settings) as copy:
            copy.sql(_statement(table_in_sql(session, location), name, rule, frame.columns))
    finally:
        session.catalog.dropTempView(name)
    return null_keys


def _check_unique(rows: DataFrame, table: DataFrame, rule: Upsert) -> None:
    keys = [back_quoted(name) for name in rule.key]
    twice = rows.groupBy(*keys).count().where("count > 1").limit(1).collect()
    again = [] if twice else rows.select(*keys).join(table, list(rule.key), "left_semi").limit(1).collect()
    for row, where in [(row, "the batch has it twice") for row in twice] + [(row, "the table has it") for row in again]:
        key = ", ".join(f"{name}={row[name]!r}" for name in rule.key)
        msg = (
            f"a key must not come twice, by conflict='error', and {where}: {key}; nothing was written: name further "
            f'columns in upsert=, or choose conflict="last" or "first"'
        )
        raise QueryFailedError(msg)


def _statement(table: str, rows: str, rule: Upsert, columns: Sequence[str]) -> str:
    """Return the statement that upserts the rows of a view into a table."""
    quoted = [back_quoted(name) for name in columns if name != rule.deletes]
    condition = " AND ".join(f"t.{back_quoted(name)} = s.{back_quoted(name)}" for name in rule.key)
    mark = None if rule.deletes is None else f"s.{back_quoted(rule.deletes)}"
    clauses = [] if mark is None else [f"WHEN MATCHED AND {mark} THEN DELETE"]
    if rule.conflict == "last":
        newer = f" AND {_not_before(rule.order_by)}" if rule.order_by else ""
        clauses.append(f"WHEN MATCHED{newer} THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in quoted)}")
    elif rule.order_by:
        older = _not_before(rule.order_by, one="t", two="s")
        clauses.append(
            f"WHEN MATCHED AND {older} THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in quoted)}"
        )
    new = "" if mark is None else f" AND NOT coalesce({mark}, false)"
    values = ", ".join(f"s.{name}" for name in quoted)
    # The names are quoted, and the location is the user's own, who could run such a statement as well.
    clauses.append(f"WHEN NOT MATCHED{new} THEN INSERT ({', '.join(quoted)}) VALUES ({values})")  # noqa: S608
    return f"MERGE INTO {table} AS t USING {rows} AS s ON {condition} {' '.join(clauses)}"


def _not_before(columns: Sequence[str], one: str = "s", two: str = "t") -> str:
    """Return the condition that a row is not before another one by some columns, nulls first."""
    first, rest = back_quoted(columns[0]), columns[1:]
    equal = f"{one}.{first} <=> {two}.{first}" + (f" AND {_not_before(rest, one, two)}" if rest else "")
    greater = f"{one}.{first} > {two}.{first} OR ({two}.{first} IS NULL AND {one}.{first} IS NOT NULL)"
    return f"({greater} OR ({equal}))"
