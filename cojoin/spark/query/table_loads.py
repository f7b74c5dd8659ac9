"""The loads of a static side: versions of a Delta table, copied into the checkpoint for the calls to take.

The driver writes a load between two micro-batches, where Spark plans nothing: before the query starts, or after a batch
counted. So the next batch that is planned reads all of it. Spark's log of what the control input has read pins the
files, and a batch that runs again reads the same ones. A load is a folder ``control/load-<number>-<id>`` with the
packed rows, and a file of that name with the closing messages, written last (``spark.batch.control_input``).

The first load is the newest version at the first start, or the one that the source names. A refresh is due once so much
time has passed since the batch that took the last load: by the processing times of the micro-batches, as Spark logged
them, while the query runs, and by the clock at a start. A bounded run plans its reading when it begins, so it looks
for a refresh at its start alone. Where the table has no newer version, nothing is loaded, and the next look is
after the same time.

Files that a killed driver has left are removed at the next start, unless Spark has read them. The files of a load are
removed once a later batch than the one that took it is committed, or has taken the next load: the rows are in the
state.
"""

from __future__ import annotations

import io
import logging
import re
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.control import CONTROL_FOLDER
from cojoin.engine.values.rows import back_quoted
from cojoin.errors import CheckpointError, ConfigurationError, QueryFailedError
from cojoin.session import spark_checkpoint
from cojoin.session.spark_checkpoint import COMMITS, SOURCES, newest_id
from cojoin.session.spark_errors import JAVA_ERRORS, explain
from cojoin.spark.batch.control_input import closing_messages, packed_load
from cojoin.spark.query.input_checks import check_rows_validity
from cojoin.storage.locations import literally

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.engine.batch_report import BatchReport
    from cojoin.engine.input_spec import InputSpec
    from cojoin.spark.sources.delta_static import StaticTable, TableAt
    from cojoin.storage.store import Store

_LOG = logging.getLogger(__name__)

_NAME = re.compile(r"load-(\d+)-[0-9a-f]{32}")
_CLOSED = ".closed.parquet"


@dataclass(frozen=True)
class StaticSide:
    """The right input of a query, if it is a static table joined with a stream; a bounded run does not refresh it."""

    source: StaticTable
    spec: InputSpec
    key_groups: int
    is_bounded: bool

    def frame(self, session: SparkSession, table: TableAt) -> DataFrame:
        """Return a version's rows, checked; a ConfigurationError if they can't be read, lack a column, or overlap."""
        rows = self.source.at(session, table)
        self.source.check_columns(rows, self.spec, table.version)
        check_rows_validity(rows, self.spec)
        return rows


class TableLoads:
    """Writes the loads of one query's static side; ``check`` raises an error where another run has taken over."""

    def __init__(self, side: StaticSide, files: Store, check: Callable[[], None]) -> None:
        self._side, self._files, self._check = side, files, check
        self._looked_at: int | None = None
        self._written = 0
        self._uncleaned = True

    def at_start(self, session: SparkSession, last: BatchReport | None) -> list[str]:
        """Write the load that the run begins with, where one is due, and return warnings for the user.

        Files that a killed driver has left are removed. ``last`` is the report of the last batch that counts; None
        before the first.
        """
        loaded = _loaded(last)
        read, closed = self._read()
        for name in self._files.names(CONTROL_FOLDER):
            load = _NAME.match(name)
            if load is not None and load[0] not in read:
                self._delete(name)
        self._clean(loaded)
        self._written = max([_number_of(loaded), *map(_number, read)])
        if any(_number(each) > _number_of(loaded) for each in closed):
            # Spark has it in its log and has not yet processed it: the next batch does.
            return []
        if loaded is not None:
            pinned = self._side.source.pinned
            if pinned not in (None, loaded["version"]):
                msg = (
                    f"{self._files.named}: input {self._side.spec.name!r}: versionAsOf is {pinned}, and the state has "
                    f"version {loaded['version']} of the table; set it to that, or start a new query with another "
                    f"checkpoint="
                )
                raise CheckpointError(msg)
            refresh = self._side.source.refresh_ms
            if refresh is None or int(1000 * time.time()) - loaded["loaded_at"] < refresh:
                return []
        table = self._newest(session, loaded)
        return [] if table is None else self._write(session, table)

    def check_all_taken(self, last: BatchReport | None) -> None:
        """Raise a CheckpointError if a load that no batch has taken yet lacks columns that were added since.

        A crash between Spark's look at a load and the plan of the batch that takes it leaves a load like that.
        """
        loaded = _loaded(last)
        waiting = [name for name in self._read()[1] if _number(name) > _number_of(loaded)]
        if waiting:
            msg = (
                f"{self._files.named}: input {self._side.spec.name!r}: a version of its table was read "
                f"before columns were added, and no batch has taken it yet ({waiting[0]}): start the query once with "
                f"the table's former columns, or take the state into a new checkpoint with restore_from="
            )
            raise CheckpointError(msg)

    def after(self, session: SparkSession, report: BatchReport | None) -> None:
        """Remove files that are no longer needed, and write the next load where it is due, once a batch counts."""
        loaded, refresh = _loaded(report), self._side.source.refresh_ms
        if report is None or loaded is None:
            return
        self._written = max(self._written, _number_of(loaded))
        if self._uncleaned:
            self._clean(loaded)
        if refresh is None or self._side.is_bounded or report.drained or self._written > _number_of(loaded):
            return
        now, since = report.processing_time, max(loaded["loaded_at"], self._looked_at or 0)
        if now - since < refresh:
            return
        try:
            table = self._newest(session, loaded)
            for warning in [] if table is None else self._write(session, table):
                _LOG.warning("%s", warning)
        except (ConfigurationError, *JAVA_ERRORS) as error:
            msg = (
                f"refresh of input {self._side.spec.name!r}: {explain(error)}. The state has version "
                f"{loaded['version']}; batch {report.batch_id} counts, and nothing is lost. Start the query again once "
                f"the table can be read; without refresh= it continues with that version"
            )
            raise QueryFailedError(msg) from error
        self._looked_at = now

    def _newest(self, session: SparkSession, loaded: Mapping[str, Any] | None) -> TableAt | None:
        """Return the version to load; None where it is loaded already."""
        newest = self._side.source.newest(session)
        if loaded is None:
            return newest
        if newest.table_id != loaded["table_id"]:
            msg = (
                f"the table is another one than before: its id was {loaded['table_id']} and is {newest.table_id}, so "
                f"it was replaced, or dropped and created again; put the former one back, or start a new query with "
                f"another checkpoint="
            )
            raise ConfigurationError(msg)
        return None if newest.version == loaded["version"] else newest

    def _write(self, session: SparkSession, table: TableAt) -> list[str]:
        """Write a load, and return warnings."""
        side = self._side
        numbers = [_number(name) for name in self._files.names(CONTROL_FOLDER) if _NAME.match(name)]
        number = 1 + max(self._written, *numbers, 0)
        name = f"load-{number}-{uuid.uuid4().hex}"
        folder = f"{CONTROL_FOLDER}/{name}"
        frame = side.frame(session, table)
        warnings = [] if side.spec.event_time is not None else _repeated(frame, side.spec, table.version)
        self._check()
        packed = packed_load(frame, side.spec, side.key_groups, name)
        packed.write.option("compression", "snappy").parquet(self._files.path(folder))
        notes = session.read.schema("key_group int, note string").parquet(literally(self._files.path(folder)))
        counted = [(row.key_group, row.note) for row in notes.where(F.col("note").isNotNull()).collect()]
        closing = io.BytesIO()
        pq.write_table(closing_messages(name, table.table_id, table.version, side.key_groups, counted), closing)
        self._check()
        self._files.write_bytes(f"{folder}{_CLOSED}", closing.getvalue())
        self._written, self._uncleaned = number, True
        return warnings

    def _read(self) -> tuple[set[str], set[str]]:
        """Return the loads of which Spark's log has files, and those of which it has the closing messages."""
        control = newest_id(self._files, SOURCES)
        entries = [] if control is None else spark_checkpoint.source_entries(self._files, control)
        loads = {entry["path"]: name[0] for entry in entries if (name := _NAME.search(entry["path"])) is not None}
        return {*loads.values()}, {name for path, name in loads.items() if path.endswith(_CLOSED)}

    def _clean(self, loaded: Mapping[str, Any] | None) -> None:
        """Remove the files of loads that no batch reads again.

        Those are the loads before the one that was taken last, and that one, once a later batch is committed.
        """
        if loaded is None:
            return
        committed = newest_id(self._files, COMMITS)
        is_over = committed is not None and committed > loaded["batch_id"]
        self._uncleaned = not is_over
        for name in self._files.names(CONTROL_FOLDER):
            if _NAME.match(name) and _number(name) < _number_of(loaded) + is_over:
                self._delete(name)

    def _delete(self, name: str) -> None:
        self._check()
        if name.endswith(_CLOSED):
            self._files.delete(f"{CONTROL_FOLDER}/{name}")
        else:
            self._files.delete_directory(f"{CONTROL_FOLDER}/{name}")


def _loaded(report: BatchReport | None) -> Mapping[str, Any] | None:
    return None if report is None else report.inputs[1].table


def _number(name: str) -> int:
    return int(name.split("-")[1])


def _number_of(loaded: Mapping[str, Any] | None) -> int:
    return 0 if loaded is None else _number(loaded["load"])


def _repeated(frame: DataFrame, spec: InputSpec, version: int) -> list[str]:
    """Return a warning if keys of a table without event time have several rows, with an example."""
    note = (
        "without event time the last in the order of their content is in force. Name the column that orders the rows "
        "by age as event_time=, or leave one row a key in the table"
    )
    if not spec.key:
        count = frame.count()
        rows = f"input {spec.name!r}: version {version} of the table has {count:,} rows, all of one key (key=())"
        return [f"{rows}: {note}"] if count > 1 else []
    key = [frame[back_quoted(name)].alias(f"k{at}") for at, name in enumerate(spec.key)]
    # Hashes are counted first, as they usually all differ, and then no key is read.
    hashes = frame.select(F.xxhash64(*key).alias("hash")).groupBy("hash").count().where("count > 1")
    if not hashes.limit(1).collect():
        return []
    names = [f"k{at}" for at in range(len(key))]
    keyed = frame.select(*key).dropna()
    several = keyed.groupBy(*names).count().where("count > 1")
    counts = several.agg(
        F.count(F.lit(1)).alias("keys"), F.max_by(F.struct(*names), "count").alias("key"), F.max("count").alias("most")
    )
    row: Any = counts.first()
    if not row["keys"]:
        return []
    shown = ", ".join(f"{name}={value!r}" for name, value in zip(spec.key, row["key"], strict=True))
    several_keys = "1 key has" if row["keys"] == 1 else f"{row['keys']:,} keys have"
    subject = f"input {spec.name!r}: {several_keys} several rows in version {version} of the table"
    return [f"{subject}, such as {shown} with {row['most']:,}: {note}"]
