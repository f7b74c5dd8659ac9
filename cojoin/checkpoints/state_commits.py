"""The commits of the ``state`` table, each together with a claim, which is compared with the table's newest.

They are made without the JVM (``cojoin/delta``) on local disks and object stores: the claim is compared on the very
version on which the commit is made, and with any commit in between it is compared anew. Spark's own writer commits
where only Hadoop reaches the store, where Spark encrypts its files, where a session's default properties for new tables
are others than that writer gives, and where someone has given the table a feature that it does not know. There the
claim is compared right before, and Delta skips a commit whose claim is not greater than the last
(``txnAppId``, ``txnVersion``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cojoin.checkpoints.snapshot_row import STATE_SCHEMA
from cojoin.checkpoints.state_claims import SAVEPOINTS, Claim, ClaimGoneError
from cojoin.checkpoints.state_files import PARTITIONS, STATE_TABLE, StateFolder, data_files, write_rows
from cojoin.delta.delta_errors import TableRefusedError
from cojoin.delta.place import place_of
from cojoin.delta.plainness import why_not_removable
from cojoin.delta.table_log import TableLog
from cojoin.delta.table_writer import Change, NewTable, TableWriter, unknown_properties
from cojoin.session.arrow_types import spark_schema
from cojoin.session.delta_tables import default_properties, quoted_table
from cojoin.session.kinds import adapter_of
from cojoin.session.spark_errors import SPARK_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from cojoin.delta.actions import DataFile
    from cojoin.storage.store import Store

__all__ = ["StateCommits"]

_INTERVAL = {"delta.checkpointInterval": "10"}
"""Few commits are made, and whoever opens the table reads all of them since the last checkpoint of its log."""

_CONFLICT = "ConcurrentTransactionException"


class StateCommits:
    """The commits of one checkpoint's state table.

    Args:
        spark: The session.
        files: The checkpoint.
    """

    def __init__(self, spark: SparkSession, files: Store) -> None:
        self._spark, self._files, self._path = spark, files, files.path(STATE_TABLE)
        self._log = TableLog(files, STATE_TABLE)
        self._made: TableWriter | None = None

    def has_claim(self, claim: Claim) -> bool:
        """Return whether a claim is the newest one of its application."""
        return self._claimed(claim.app_id) == claim.version

    def next_savepoint(self) -> Claim:
        """Return the claim of a savepoint that begins now."""
        return Claim.of_savepoint(self._claimed(SAVEPOINTS) or 0)

    def end_savepoints(self) -> Claim:
        """Let no savepoint commit any more that has begun before; where there is no table yet, nothing happens.

        Returns:
            The claim that did so.
        """
        claim = Claim.above_savepoints(self._claimed(SAVEPOINTS) or 0)
        self._claim(claim)
        return claim

    def fence_runs(self, epoch: int) -> None:
        """Let no earlier run of the query commit any more; where there is no table yet, nothing happens.

        Args:
            epoch: The epoch of the lease.
        """
        self._claim(Claim.of_epoch(epoch))

    def create(self) -> None:
        """Create the empty table where there is none."""
        if self._log.newest() is not None:
            return
        writer, first = self._writer(), Claim.of_epoch(0)
        if writer is not None:
            # Of two that create it at once, one finds a claim there.
            writer.commit(Change(dict([first])), lambda version: version(first.app_id) is not None, new=self._new())
        else:
            empty = self._spark.createDataFrame([], spark_schema(STATE_SCHEMA))
            empty.write.format("delta").mode("append").partitionBy(*PARTITIONS).save(self._path)

    def replace(self, rows: DataFrame, batch_id: int, claim: Claim) -> list[Row] | None:
        """Write a snapshot's rows, in place of those of an earlier attempt, together with a claim, in one commit.

        Args:
            rows: Rows of ``STATE_SCHEMA``.
            batch_id: The batch that all of them have.
            claim: The claim.

        Returns:
            The rows as they were written, without content; None where the table has to be asked, as where the commit
            was there already.

        Raises:
            ClaimGoneError: The claim's application has gone on; the table is as it was.
            QueryFailedError: The errors of ``TableWriter.commit``.
        """
        writer = self._writer()
        if writer is None:
            self._replace_by_spark(rows, batch_id, claim)
            return None
        written = write_rows(rows, StateFolder.of(self._files), batch_id)
        added = data_files(written)

        def change(there: Sequence[DataFile]) -> Change:
            # An earlier attempt's rows must go: their state may be in another order, with other fingerprints.
            former = [each for each in there if _partition(each)[0] == batch_id]
            return Change(dict([claim]), STATE_SCHEMA, added, former)

        try:
            done = writer.commit(change, claim.is_made, new=self._new())
        except TableRefusedError:
            # A cleaning that has ended the claim since it was compared deletes the files; this says so.
            claim.is_made(self._claimed)
            raise
        return written if done.is_new else None

    def files(self) -> dict[str, tuple[int, int | None]]:
        """Return the partition (batch and segment) of each of the table's files; where Spark commits, it finds them."""
        writer = self._writer()
        return {} if writer is None else {each.path: _partition(each) for each in writer.files()}

    def remove(
        self, paths: Collection[str], partitions: Collection[tuple[int, int | None]], ended: Claim | None
    ) -> bool:
        """Remove files, as far as they are still there, and end the savepoints that have begun since others were ended.

        Args:
            paths: The files, as ``files`` returned them.
            partitions: Their partitions (batch and segment), of which Spark removes all rows where it commits.
            ended: What ``end_savepoints`` returned; None where no savepoint must be ended.

        Returns:
            Whether they were removed; False where a savepoint was written since.
        """
        if self._log.newest() is None:
            return True
        again = None if ended is None else Claim.above_savepoints(ended.version)
        writer = self._writer()
        try:
            if writer is None:
                self._remove_by_spark(partitions, ended, again)
                return True

            def change(there: Sequence[DataFile]) -> Change | None:
                gone = [each for each in there if each.path in paths]
                return Change({} if again is None else dict([again]), removed=gone) if gone or again else None

            done = writer.commit(change, lambda version: _is_ended(version, ended, again))
        except ClaimGoneError:
            return False
        # Another cleaning may have written the same claim.
        return done.is_new or not any(each.path in paths for each in writer.files())

    def _claimed(self, app_id: str) -> int | None:
        table = self._log.newest()
        return None if table is None else table.transaction(app_id)

    def _claim(self, claim: Claim) -> None:
        """Write a claim without rows, unless its application has written it or a later one, or there is no table."""
        if self._log.newest() is None or (self._claimed(claim.app_id) or 0) >= claim.version:
            return
        writer = self._writer()
        if writer is not None:
            writer.commit(Change(dict([claim])), lambda version: (version(claim.app_id) or 0) >= claim.version)
            return
        rows = self._spark.read.format("delta").load(self._path).limit(0)
        into = rows.write.format("delta").mode("append").partitionBy(*PARTITIONS)
        into.option("txnAppId", claim.app_id).option("txnVersion", str(claim.version)).save(self._path)

    def _writer(self) -> TableWriter | None:
        """Return the writer without the JVM; None where Spark commits."""
        if place_of(self._files, STATE_TABLE) is None or adapter_of(self._spark).encrypts_files():
            return None
        table = self._log.newest()
        if table is None:
            is_served = not unknown_properties(self._new().properties)
        else:
            is_served = why_not_removable(table.protocol, table.metadata) is None
        if is_served and self._made is None:
            self._made = TableWriter(self._files, STATE_TABLE)
        return self._made if is_served else None

    def _new(self) -> NewTable:
        properties = {} if self._log.newest() is not None else default_properties(self._spark)
        return NewTable(STATE_SCHEMA, PARTITIONS, {**_INTERVAL, **properties})

    def _replace_by_spark(self, rows: DataFrame, batch_id: int, claim: Claim) -> None:
        if claim.is_made(self._claimed):
            return
        writer = rows.write.format("delta").mode("overwrite").partitionBy(*PARTITIONS)
        writer = writer.option("replaceWhere", f"batch_id = {batch_id}")
        try:
            writer.option("txnAppId", claim.app_id).option("txnVersion", str(claim.version)).save(self._path)
        except SPARK_ERRORS as error:
            if _CONFLICT in str(error):
                msg = f"the claim {claim.version} of {claim.app_id} is over: another commit has written it"
                raise ClaimGoneError(msg) from error
            raise
        claim.is_made(self._claimed)

    def _remove_by_spark(
        self, partitions: Collection[tuple[int, int | None]], ended: Claim | None, again: Claim | None
    ) -> None:
        _is_ended(self._claimed, ended, again)
        if partitions:
            # Its rows are found anew: only rows of the same batch's later savepoint are at risk.
            conditions = " OR ".join(f"({_condition(*each)})" for each in partitions)
            self._spark.sql(f"DELETE FROM {quoted_table(self._path)} WHERE {conditions}")  # noqa: S608 - numbers only
        if again is not None:
            self._claim(again)


def _is_ended(version: Callable[[str], int | None], ended: Claim | None, again: Claim | None) -> bool:
    """Return whether the savepoints have been ended once more, since they were ended.

    Raises:
        ClaimGoneError: A savepoint was written since.
    """
    if ended is None or again is None:
        return False
    last = version(ended.app_id)
    if last not in (ended.version, again.version):
        msg = f"a savepoint was written since the claim {ended.version}: the table's is {last}"
        raise ClaimGoneError(msg)
    return last == again.version


def _partition(file: DataFile) -> tuple[int, int | None]:
    batch_id, segment = (file.partition_values[name] for name in PARTITIONS)
    return int(batch_id or -1), None if segment is None else int(segment)


def _condition(batch_id: int, segment: int | None) -> str:
    """Return the condition on the rows of a partition, as SQL."""
    return f"batch_id = {batch_id} AND segment {'IS NULL' if segment is None else f'= {segment}'}"
