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
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.output_tables import read_rows
from cojoin.engine.upsert import already_stored
from cojoin.engine.values.rows import back_quoted
from cojoin.errors import QueryFailedError
from cojoin.session.delta_tables import table_in_sql
from cojoin.session.sealed import for_workers
from cojoin.session.sessions import adapter_of
from cojoin.session.spark_errors import SPARK_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from cojoin.engine.upsert import Upsert

_STORED = "stored"
"""The column that marks rows of the table; the others are c0, c1, and so on."""

_BY_ANOTHER = "a key of the batch that another writer has committed meanwhile"
"""The key in the error where a MERGE by ``conflict="error"`` meets one, after a look at the table that met none."""

_APP_ID, _APP_VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


def no_merge(why: str) -> str:
    """Return the message about upserts that a session of Spark Connect can't write; ``why`` is why Spark must write."""
    return (
        f"only Spark's MERGE can write these upserts ({why}), and with Spark Connect its settings would hold for all "
        f"statements of the session: write to a plain table, or run the query in an ordinary session"
    )


@dataclass(frozen=True)
class _Chooser:
    """Chooses the rows that stay of a partition that has all rows of its keys; a column marks those of the table."""

    rule: Upsert
    order: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = list(batches)
        if not parts:
            return
        rows = pa.Table.from_batches(parts)
        places = self.rule.standing(rows.drop_columns([_STORED]), self.order).places
        chosen = rows.take(pa.array(places))
        yield from chosen.filter(pc.invert(chosen.column(_STORED))).drop_columns([_STORED]).to_batches()


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
    table = read_rows(session, "delta", location)
    # Spark's mapInArrow takes no names with a dot.
    safe = {name: f"c{at}" for at, name in enumerate(frame.columns)}
    deletes = None if rule.deletes is None else safe[rule.deletes]
    renamed = replace(
        rule,
        key=tuple(safe[name] for name in rule.key),
        order_by=tuple(safe[name] for name in rule.order_by),
        deletes=deletes,
    )
    whole = frame.toDF(*safe.values())
    has_key = reduce(and_, (F.col(name).isNotNull() for name in renamed.key))
    rows = whole.where(has_key)
    null_keys: int = whole.where(~has_key).count()
    stored = table.select(*(F.col(back_quoted(name)).alias(safe[name]) for name in safe if name != rule.deletes))
    if rule.conflict == "error":
        _check_unique(rows, stored, rule, renamed.key)
    marked = rows.withColumn(_STORED, F.lit(False))
    if rule.order_by:
        older = stored.join(rows.select(*renamed.key).distinct(), list(renamed.key), "left_semi")
        marked = marked.unionByName(older.withColumn(_STORED, F.lit(True)))
    keyed = marked.repartition(*map(F.col, renamed.key))
    chosen = keyed.mapInArrow(for_workers(_Chooser(renamed, tuple(safe[name] for name in order))), whole.schema)
    name = f"cojoin_{uuid.uuid4().hex}"
    chosen.createOrReplaceTempView(name)
    settings = {_APP_ID: transaction[0], _APP_VERSION: str(transaction[1]), _METADATA: metadata}
    try:
        with adapter_of(session).with_settings(settings) as copy:
            copy.sql(_statement(table_in_sql(session, location), name, rule, safe))
    except SPARK_ERRORS as error:
        if _BY_ANOTHER in str(error):
            raise QueryFailedError(already_stored(_BY_ANOTHER)) from error
        raise
    finally:
        session.catalog.dropTempView(name)
    return null_keys


def _check_unique(rows: DataFrame, stored: DataFrame, rule: Upsert, keys: Sequence[str]) -> None:
    twice = rows.groupBy(*keys).count().where("count > 1").limit(1).collect()
    again = [] if twice else rows.select(*keys).join(stored, list(keys), "left_semi").limit(1).collect()
    for row, where in [(row, "the batch has it twice") for row in twice] + [(row, "the table has it") for row in again]:
        key = ", ".join(f"{name}={row[column]!r}" for name, column in zip(rule.key, keys, strict=True))
        msg = (
            f"a key must not come twice, by conflict='error', and {where}: {key}; nothing was written: name further "
            f'columns in upsert=, or choose conflict="last" or "first"'
        )
        raise QueryFailedError(msg)


def _statement(table: str, rows: str, rule: Upsert, columns: Mapping[str, str]) -> str:
    """Return the statement that upserts the rows of a view into a table; ``columns`` are the view's, by the table's."""
    pairs = [(f"t.{back_quoted(name)}", f"s.{own}") for name, own in columns.items() if name != rule.deletes]
    condition = " AND ".join(f"t.{back_quoted(name)} = s.{columns[name]}" for name in rule.key)
    mark = None if rule.deletes is None else f"s.{columns[rule.deletes]}"
    update = f"UPDATE SET {', '.join(f'{theirs} = {own}' for theirs, own in pairs)}"
    order = [(f"s.{columns[name]}", f"t.{back_quoted(name)}") for name in rule.order_by]
    clauses = [] if mark is None else [f"WHEN MATCHED AND {mark} THEN DELETE"]
    if rule.conflict == "last":
        clauses.append(f"WHEN MATCHED{f' AND {_not_before(order)}' if order else ''} THEN {update}")
    elif order:
        clauses.append(f"WHEN MATCHED AND {_not_before([(two, one) for one, two in order])} THEN {update}")
    elif rule.conflict == "error":
        clauses.append(f"WHEN MATCHED THEN UPDATE SET {pairs[0][0]} = raise_error('{_BY_ANOTHER}')")
    new = "" if mark is None else f" AND NOT coalesce({mark}, false)"
    names, values = ", ".join(theirs.removeprefix("t.") for theirs, _ in pairs), ", ".join(own for _, own in pairs)
    # The names are quoted, and the location is the user's own, who could run such a statement as well.
    clauses.append(f"WHEN NOT MATCHED{new} THEN INSERT ({names}) VALUES ({values})")  # noqa: S608
    return f"MERGE INTO {table} AS t USING {rows} AS s ON {condition} {' '.join(clauses)}"


def _not_before(pairs: Sequence[tuple[str, str]]) -> str:
    """Return the condition that a row is not before another one, by pairs of their columns, nulls first."""
    (one, two), rest = pairs[0], pairs[1:]
    equal = f"{one} <=> {two}" + (f" AND {_not_before(rest)}" if rest else "")
    return f"({one} > {two} OR ({two} IS NULL AND {one} IS NOT NULL) OR ({equal}))"
