"""The rows of one key between positions of a query's sources, batch by batch, as Spark's own streams read them.

Delta tables and folders of files are read by a stream of Spark's with a checkpoint of its own in a temporary folder:
one micro-batch is planned there that reads, for each batch of the real query, exactly from its begin to its end. So
whatever a position means to a source means the same here. Other sources read their positions themselves
(``Source.between``). The query's own checkpoint is only read.

It costs one Spark job over all rows between the first position and the last, and a source of Spark's for each batch.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.inspect.state_rows import having
from cojoin.engine.values.rows import back_quoted
from cojoin.engine.values.tables import concat
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.session import source_logs
from cojoin.session.failures import explain
from cojoin.session.kinds import adapter_of
from cojoin.session.offset_log import NOTHING_READ, plan_interrupted
from cojoin.session.stores import open_store
from cojoin.spark.query.history import snapshot_of
from cojoin.storage.locations import literally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from cojoin.checkpoints.inspect.state_rows import Values
    from cojoin.engine.operator import Sides
    from cojoin.spark.bound_input import BoundInput
    from cojoin.spark.sources.sources import Source
    from cojoin.storage.store import Store

__all__ = ["ReplayedRows", "Span"]

_NOTHING = (NOTHING_READ, "null", "")
_BATCH = "batch"
_CLEANS = "cleansource"
"""The option of file sources that deletes or moves what was read; here it must not."""


@dataclass(frozen=True)
class Span:
    """What one batch read of both sources.

    Attributes:
        batch_id: The batch.
        begins: The position of each source before it, as a line of Spark's offset log.
        ends: The position of each source after it.
    """

    batch_id: int
    begins: Sequence[str]
    ends: Sequence[str]


@dataclass(frozen=True)
class ReplayedRows:
    """Reads one key's rows.

    Attributes:
        spark: The session.
        files: The query's checkpoint, which has the log of what was read of folders.
        inputs: Both inputs.
        key: The key's values by each input's column names.
        key_hash: Spark's hash of the key (``xxhash64``).
    """

    spark: SparkSession
    files: Store
    inputs: tuple[BoundInput, BoundInput]
    key: tuple[Values, Values]
    key_hash: int

    def check_sources(self) -> None:
        """Check that both inputs have sources.

        Raises:
            ConfigurationError: An input is a bare DataFrame.
        """
        for bound in self.inputs:
            _source_of(bound)

    def read(self, spans: Sequence[Span]) -> dict[int, Sides]:
        """Return the key's rows of some batches, in no order.

        Args:
            spans: The batches, one following the other.

        Returns:
            The rows of both inputs by batch, for all batches that are given.

        Raises:
            CheckpointError: A source no longer has the rows.
            ConfigurationError: A source that the replay needs is a bare DataFrame.
        """
        pieces: defaultdict[tuple[int, int], list[pa.Table]] = defaultdict(list)
        leaves: list[_Leaf] = []
        for side, bound in enumerate(self.inputs):
            moved = [each for each in spans if each.begins[side] != each.ends[side]]
            if not moved:
                continue
            what, source = f"input {bound.spec.name!r}", _source_of(bound)
            begin = None if moved[0].begins[side] in _NOTHING else moved[0].begins[side]
            self._check(source, what, moved[0].batch_id, begin)
            static = source.between(what, begin, [each.ends[side] for each in moved])
            if static is None:
                leaves += [
                    _Leaf(side, span.batch_id, span.begins[side], span.ends[side], self._entries(source, side, span))
                    for span in moved
                ]
            else:
                frame, places = static
                rows = self._rows(side, self._of_key(side, bound.rows_of(frame)).toArrow())
                at = pa.array(places(rows))
                for place, span in enumerate(moved):
                    mine = self._changes(side, rows.filter(pc.equal(at, place)), span.begins[side], span.ends[side])
                    pieces[span.batch_id, side].append(mine)
        for leaf, rows in self._stream(leaves) if leaves else ():
            pieces[leaf.batch_id, leaf.side].append(self._changes(leaf.side, rows, leaf.begin, leaf.end))
        return {span.batch_id: self._sides(pieces, span.batch_id) for span in spans}

    def _changes(self, side: int, rows: pa.Table, begin: str, end: str) -> pa.Table:
        """Return rows of a source as the versions and deletes that they are between two positions."""
        changes = self.inputs[side].spec.changes
        if changes is None:
            return rows
        snapshot = snapshot_of(begin, end) if changes.begins_with_snapshot else None
        return changes.from_the_beginning(changes.expanded(rows)[0], snapshot)

    def _sides(self, pieces: dict[tuple[int, int], list[pa.Table]], batch_id: int) -> Sides:
        left, right = (
            concat([bound.spec.schema.empty_table(), *pieces.get((batch_id, side), ())])
            for side, bound in enumerate(self.inputs)
        )
        return left, right

    def _check(self, source: Source, what: str, batch_id: int, begin: str | None) -> None:
        lost = source.lost_since(self.spark, what, begin)
        if lost:
            msg = (
                f"debug: rows that batch {batch_id} and those after it have read no longer exist: {'; '.join(lost)}; "
                f"begin with a later snapshot, at="
            )
            raise CheckpointError(msg)

    def _of_key(self, side: int, rows: DataFrame) -> DataFrame:
        """Return the rows of the key, and perhaps some of other keys with the same hash."""
        key = {name: rows[back_quoted(name)] for name in self.inputs[side].spec.key}
        condition = F.xxhash64(*key.values()) == F.lit(self.key_hash)
        for name, column in key.items():
            value = self.key[side][name]
            # Files can be skipped by their statistics for a comparison with a value, and not for one with a hash.
            if type(value) is int or (type(value) is str and value.isascii()):
                condition &= column == F.lit(value)
        return rows.where(condition)

    def _rows(self, side: int, table: pa.Table) -> pa.Table:
        spec = self.inputs[side].spec
        schema = spec.source_schema
        rows = table.rename_columns(schema.names).cast(schema)
        return having(rows, self.key[side])

    def _entries(self, source: Source, side: int, span: Span) -> list[dict[str, Any]]:
        """Return the files that a batch read of a folder, from the query's own log; none for other sources."""
        if not source.has_log:
            return []
        begin, end = (
            -1 if line in _NOTHING else int(json.loads(line)["logOffset"])
            for line in (span.begins[side], span.ends[side])
        )
        found = source_logs.entries(self.files, side)
        return [{**each, "batchId": 0} for each in found if begin < each["batchId"] <= end]

    def _stream(self, leaves: Sequence[_Leaf]) -> list[tuple[_Leaf, pa.Table]]:
        """Return the key's rows of each leaf, read by one micro-batch."""
        frames = [self._frame(number, leaf) for number, leaf in enumerate(leaves)]
        whole = reduce(lambda one, two: one.unionByName(two, allowMissingColumns=True), frames)
        found: list[pa.Table] = []

        def take(rows: DataFrame, _: int) -> None:
            found.append(rows.toArrow())

        def write(rows: DataFrame, _: int) -> None:
            rows.write.parquet(taken)

        with tempfile.TemporaryDirectory(prefix="cojoin-debug-") as folder:
            place = open_store(self.spark, Path(folder).as_uri(), "temporary folder")
            taken = place.path("rows")
            interval = source_logs.compact_interval(self.spark)
            for number, leaf in enumerate(leaves):
                if leaf.entries:
                    source_logs.write_log(place, number, leaf.entries, 0, interval=interval)
            begins, ends = zip(*(leaf.positions for leaf in leaves), strict=True)
            plan_interrupted(self.spark, place, begins, ends)
            try:
                # With Spark Connect the function is called in another process.
                to = take if adapter_of(self.spark).runs_batches else write
                stream = whole.writeStream.foreachBatch(to).option("checkpointLocation", place.path("spark"))
                stream.queryName(f"cojoin debug {uuid.uuid4().hex[:8]}").trigger(once=True).start().awaitTermination()
                if to is write:
                    found.append(self.spark.read.parquet(literally(taken)).toArrow())
            except PySparkException as error:
                names = " and ".join(repr(each.spec.name) for each in self.inputs)
                msg = (
                    f"debug: the rows that {names} had after batch {leaves[0].batch_id - 1} can't be read again: "
                    f"{explain(error)}; begin with a later snapshot, at="
                )
                raise CheckpointError(msg) from error
        table = concat(found)
        pieces = []
        for number, leaf in enumerate(leaves):
            mine = table.filter(pc.equal(table.column(_BATCH), number))
            columns = [name for name in table.column_names if name.startswith(f"c{leaf.side}_")]
            pieces.append((leaf, self._rows(leaf.side, mine.select(columns))))
        return pieces

    def _frame(self, number: int, leaf: _Leaf) -> DataFrame:
        bound = self.inputs[leaf.side]
        source = _source_of(bound)
        quiet = {name: value for name, value in source.options.items() if name.lower() != _CLEANS}
        rows = self._of_key(leaf.side, bound.rows_of(replace(source, options=quiet).open()))
        # Named by position, since both inputs may have a name, and names may have dots.
        columns: list[Column] = [
            rows[back_quoted(name)].alias(f"c{leaf.side}_{at}")
            for at, name in enumerate(bound.spec.source_schema.names)
        ]
        return rows.select(F.lit(number).alias(_BATCH), *columns)


@dataclass(frozen=True)
class _Leaf:
    """What one batch read of one source: a source of its own in the replaying stream.

    Attributes:
        side: 0 is the left input, 1 the right.
        batch_id: The batch.
        begin: The position before it.
        end: The position after it.
        entries: For a folder, the files that it read, all as of the first number of a log.
    """

    side: int
    batch_id: int
    begin: str
    end: str
    entries: Sequence[dict[str, Any]]

    @property
    def positions(self) -> tuple[str, str]:
        """The positions in the replaying stream, whose log of files has only this batch's."""
        if self.entries:
            return NOTHING_READ, json.dumps({"logOffset": 0})
        return (NOTHING_READ if self.begin in _NOTHING else self.begin), self.end


def _source_of(bound: BoundInput) -> Source:
    if bound.source is None:
        msg = (
            f"debug: input {bound.spec.name!r} is a DataFrame, so it is not known how its rows are read again; "
            f"give cojoin.Input a source: cojoin.kafka.source, cojoin.sources.delta or files"
        )
        raise ConfigurationError(msg)
    if bound.spec.static:
        msg = (
            f"debug: input {bound.spec.name!r} is a static side, whose rows are in the state and not in batches; "
            f"read_state() and explain() show what a key's rows were joined with"
        )
        raise ConfigurationError(msg)
    return bound.source
