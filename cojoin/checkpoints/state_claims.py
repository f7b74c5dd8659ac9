"""Which writers may still commit to the ``state`` table: transaction ids of Delta's, written with the rows.

Two applications are numbered in the table's log. The runs of the query write an epoch and a batch with every snapshot,
and a run that takes over writes its epoch first. Savepoints write a number that grows with each, and once more when
one counts or a cleaning takes one for interrupted. No two attempts draw the same number. A commit whose number is not
greater than the last is skipped by Delta, or in conflict where the other one came since its transaction began. So a
run that stood still does not write over what its successor has written. A savepoint that stood still does not bring
files back that a cleaning has deleted, nor does it replace the rows of one that counts.

In a session of Spark Connect, Spark's own writer commits, which knows the same ids (``txnAppId``).
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from cojoin.delta_jvm.delta_files import commit_applications, table_log
from cojoin.session.delta_tables import read_table
from cojoin.session.kinds import adapter_of
from cojoin.session.spark_errors import SPARK_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Claim", "end_again", "end_savepoints", "fence_runs", "has_claim", "is_conflict", "next_savepoint"]

_RUNS, _SAVEPOINTS = "cojoin-state-runs", "cojoin-state-savepoints"
_BATCHES = 1 << 32
_DRAWN = 1 << 31
"""From how many numbers above the last one a savepoint draws its own."""
_TRIES = 5
_CONFLICT = "ConcurrentTransactionException"


class Claim(NamedTuple):
    """The transaction id of one commit: an application, and the version that it writes.

    >>> Claim.of_run(3, 7)
    Claim(app_id='cojoin-state-runs', version=12884901896)
    """

    app_id: str
    version: int

    @property
    def savepoint(self) -> int:
        """The number of the savepoint whose claim it is; 0 where it is a run's."""
        return self.version if self.app_id == _SAVEPOINTS else 0

    @classmethod
    def of_run(cls, epoch: int, batch_id: int) -> Claim:
        """Return the claim of a run's snapshot; a later batch or run has a greater one."""
        return cls(_RUNS, epoch * _BATCHES + batch_id + 1)


def is_conflict(error: BaseException) -> bool:
    """Return whether a commit failed because another one has written its application since it began."""
    return _CONFLICT in str(error)


def next_savepoint(spark: SparkSession, path: str) -> Claim:
    """Return the claim of a savepoint that begins now.

    Args:
        spark: The session.
        path: The table's folder.
    """
    return Claim(_SAVEPOINTS, _last_savepoint(spark, path) + 1 + uuid.uuid4().int % _DRAWN)


def _last_savepoint(spark: SparkSession, path: str) -> int:
    table = read_table(spark, path)
    found = None if table is None else table.transaction(_SAVEPOINTS)
    return 0 if found is None else int(found)


def has_claim(spark: SparkSession, path: str, claim: Claim) -> bool:
    """Return whether a commit with a claim is the newest one of its application."""
    table = read_table(spark, path)
    return table is not None and table.transaction(claim.app_id) == claim.version


def end_savepoints(spark: SparkSession, path: str) -> Claim:
    """Let no savepoint commit any more that has begun before; where there is no table yet, nothing happens.

    Args:
        spark: The session.
        path: The table's folder.

    Returns:
        The claim that did so.
    """
    claim = Claim(_SAVEPOINTS, _last_savepoint(spark, path) + 1 + _DRAWN)
    _write(spark, path, claim)
    return claim


def end_again(transaction: Any, ended: Claim) -> Claim | None:
    """Return what a transaction writes to end those savepoints, too, that have begun since others were ended.

    From here on the transaction fails where a savepoint commits before it.

    Args:
        transaction: Delta's transaction on the table.
        ended: What ``end_savepoints`` returned.

    Returns:
        The claim to write; None where a savepoint has committed since.
    """
    if int(transaction.txnVersion(_SAVEPOINTS)) != ended.version:
        return None
    return Claim(_SAVEPOINTS, ended.version + 1 + _DRAWN)


def fence_runs(spark: SparkSession, path: str, epoch: int) -> None:
    """Let no earlier run of the query commit any more; where there is no table yet, nothing happens.

    Args:
        spark: The session.
        path: The table's folder.
        epoch: The epoch of the lease.
    """
    _write(spark, path, Claim(_RUNS, epoch * _BATCHES))


def _write(spark: SparkSession, path: str, claim: Claim) -> None:
    """Write a claim without rows, unless its application has written it or a later one."""
    if not adapter_of(spark).has_delta_classes:
        if read_table(spark, path) is not None:
            rows = spark.read.format("delta").load(path).limit(0)
            writer = rows.write.format("delta").mode("append")
            writer.option("txnAppId", claim.app_id).option("txnVersion", str(claim.version)).save(path)
        return
    for number in range(_TRIES):
        transaction = table_log(spark, path).startTransaction()
        if transaction.readVersion() < 0 or int(transaction.txnVersion(claim.app_id)) >= claim.version:
            return
        try:
            commit_applications(spark, transaction, {claim.app_id: claim.version}, query_id="")
        except SPARK_ERRORS as error:
            if not is_conflict(error) or number == _TRIES - 1:
                raise
            continue
        return
