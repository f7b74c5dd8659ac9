"""Messages of the control input that carry rows: the initial state of a restored query, and the loads of a table.

Spark computes the key group of a row as for any input. The initial state is one message for all key groups, with the
header (watermarks, counters) and the columns of the tables, and messages with rows of a table for one key group. The
query's first batch reads nothing else.

A load's rows are cut and packed as those of an input (``packing``). Each message begins with the load's id and a
checksum of the rest: Arrow rows, or a key group's closing message as JSON. A key group takes a load when its closing
message has come, and only with as many rows as that message counts. Rows of another load, which a fenced-off run may
have written, are left out. A load costs a copy of the table's rows in the checkpoint until they are in the state.
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
import zlib
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.control import CONTROL_DDL
from cojoin.checkpoints.segment_files import SegmentFolder
from cojoin.engine import rescaling
from cojoin.engine.joins.interval import IntervalJoinOperator
from cojoin.engine.key_groups import group_labels
from cojoin.engine.operator import TableLoad
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values import codec
from cojoin.engine.values.codec import binary_column, read_message
from cojoin.engine.values.rows import back_quoted
from cojoin.errors import CheckpointError
from cojoin.session.sealed import for_workers
from cojoin.spark.batch.packing import GROUP_COLUMN, LOADED_TAG, PACKED_DDL, Packer, key_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Self

    from cojoin.checkpoints.stored_state import StoredState
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.operator import Operator

_HEADER, _FOR = "restored", "for"
"""The header's entries: the state's header; and the query and the label for which the message is, and its id."""
_MAGIC = codec.encode({}, {})[:6]
_MESSAGE = pa.schema([("key_group", pa.int32()), ("payload", pa.binary())])


def is_restored_state(message: pa.Buffer) -> bool:
    """Return whether a message of the control input carries restored state; the others are JSON."""
    return bool(message.slice(0, min(message.size, len(_MAGIC))).to_pybytes() == _MAGIC)


class RestoredState:
    """The restored state of one key group, collected from messages; it is true once it has a message.

    The label and the query's id are compared with those of the messages. Rows of more than ``most_bytes`` lie on the
    local disk of this process, inside the ``with`` block; None keeps all in memory.
    """

    def __init__(
        self, label: int, query_id: str | None, inputs: tuple[InputSpec, InputSpec], most_bytes: int | None = None
    ) -> None:
        self._label, self._query_id = label, query_id
        self._header: dict[str, Any] | None = None
        self._ids: set[str | None] = set()
        self._tables = rescaling.SpilledTables(inputs, most_bytes, self._open_folder)
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def _open_folder(self) -> SegmentFolder:
        # Spark's own places for what does not fit into memory, which it removes with the executor.
        places = [each for each in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if each]
        first = os.getpid() % len(places) if places else 0
        errors = []
        for place in (*places[first:], *places[:first], None):
            try:
                # Some file systems keep the name of a file that is mapped.
                self._folder = tempfile.TemporaryDirectory(
                    prefix="cojoin-restored-", dir=place, ignore_cleanup_errors=True
                )
            except OSError as error:  # noqa: PERF203 - there are one or two
                errors.append(str(error))
            else:
                return SegmentFolder(Path(self._folder.name).as_uri())
        msg = (
            f"a restored state of more than a task's memory needs a folder on the local disk: {'; '.join(errors)}; set "
            f"spark.local.dir to folders in which Spark's workers may write, and start the query again"
        )
        raise CheckpointError(msg)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def __bool__(self) -> bool:
        return bool(self._ids)

    def add(self, message: pa.Buffer) -> None:
        """Add a message; it is an error if it is damaged, of another query or key group, or was added already."""
        header, tables = codec.decode(message.to_pybytes())
        query_id, label, own_id = header.get(_FOR, (None, None, None))
        is_other = self._query_id is not None and query_id not in (None, self._query_id)
        is_other |= label not in (None, self._label)
        if is_other or (own_id is not None and own_id in self._ids):
            msg = (
                f"control/restored of the checkpoint: expected messages for the key group with the label {self._label} "
                f"of the query {self._query_id}, each once, got one for {label} of {query_id}: its files were changed "
                f"or exchanged; restore once more with restore_from= into an empty directory"
            )
            raise CheckpointError(msg)
        self._ids.add(own_id)
        self._header = header.get(_HEADER, self._header)
        self._tables.add(tables, message.size)

    def load_into(self, operator: Operator, *, keeps_counts: bool) -> None:
        """Load the state into a new operator; exactly one key group keeps the counters of done and rejected rows.

        A CheckpointError means that the header is missing, or that the query can't use this state.
        """
        # Release 0.5.0 wrote messages without ids; of one restoration all have one or none has.
        if self._header is None or (None in self._ids and len(self._ids) > 1):
            label = "the message with the header is missing" if self._header is None else "some are of another kind"
            msg = (
                f"control/restored of the checkpoint: {label}: its files were changed or exchanged; restore once more "
                f"with restore_from= into an empty directory"
            )
            raise CheckpointError(msg)
        operator.load_spilled(self._header, self._tables, keeps_counts=keeps_counts)
        operator.check_states()


def state_messages(
    spark: SparkSession,
    state: StoredState,
    inputs: tuple[InputSpec, InputSpec],
    key_groups: int,
    query_id: str | None = None,
) -> DataFrame:
    """Return a state as messages of the control input (``CONTROL_DDL``): one header, and the rows per key group.

    ``inputs``, ``key_groups`` and ``query_id`` are those of the restored query; each message carries the id.
    """
    labels = group_labels(key_groups)
    columns = {name: table.schema for name, table in state.tables.items()}
    header = _header_message(_with_ended(rescaling.merged_header(state.headers), state), columns, query_id)
    messages = spark.createDataFrame(pa.table([pa.array([None], pa.int32()), pa.array([header])], schema=_MESSAGE))
    for name, table in state.tables.items():
        if table.rows:
            messages = messages.unionByName(_pieces(state, name, inputs, labels, query_id))
    return messages


def _with_ended(header: dict[str, Any], state: StoredState) -> dict[str, Any]:
    """Return a whole state's header that counts rows as done which are in segments, and that no reader returns.

    A join of versions counts a version as done when it comes; the rows of an interval join wait until they have ended.
    """
    if header["operator"] == IntervalJoinOperator.__name__:
        for counts, name in zip(header["counts"], ("left", "right"), strict=True):
            if (counted := state.tables[name].rows) > 0:
                counts["done"] += counted - state.rows(name).count()
    return header


def _pieces(
    state: StoredState, name: str, inputs: tuple[InputSpec, InputSpec], labels: tuple[int, ...], query_id: str | None
) -> DataFrame:
    schema = state.tables[name].schema
    # Columns are named by position, since names may have dots or differ only in case.
    hashed, spread = (
        [F.col(f"c{schema.names.index(column)}") for column in columns]
        for columns in (rescaling.key_columns(name, inputs), rescaling.spreading_columns(name, inputs, schema))
    )
    group = key_group(hashed, len(labels), spread).alias("group")

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _pack(batches, name, schema, inputs, labels, query_id)

    return state.numbered(name).select("*", group).mapInArrow(for_workers(pack), CONTROL_DDL)


def _pack(
    batches: Iterable[pa.RecordBatch],
    name: str,
    schema: pa.Schema,
    inputs: tuple[InputSpec, InputSpec],
    labels: tuple[int, ...],
    query_id: str | None,
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = pa.Table.from_batches([batch]).select(range(len(schema))).rename_columns(schema.names).cast(schema)
        groups: NDArray[np.int64] = batch.column(batch.num_columns - 1).to_numpy()
        pieces = rescaling.cut({name: rows}, inputs, partial(_known, groups), len(labels))
        filled = {labels[at]: piece[name] for at, piece in enumerate(pieces) if piece[name].num_rows}
        messages = binary_column(
            [codec.encode({_FOR: [query_id, label, uuid.uuid4().hex]}, {name: rows}) for label, rows in filled.items()]
        )
        yield pa.RecordBatch.from_arrays([pa.array([*filled], pa.int32()), messages], names=_MESSAGE.names)


def _known(groups: NDArray[np.int64], _: pa.Table) -> NDArray[np.int64]:
    return groups


def _header_message(header: Mapping[str, Any], columns: Mapping[str, pa.Schema], query_id: str | None) -> bytes:
    """Return the message for all key groups: the merged header of the old ones, and the columns of each table."""
    empty = {name: schema.empty_table() for name, schema in columns.items()}
    return codec.encode({_HEADER: dict(header), _FOR: [query_id, None, uuid.uuid4().hex]}, empty)


_ID_BYTES, _HEAD_BYTES = 16, 24
_SCHEMA = pa.schema(
    [
        ("key_group", pa.int32()),
        ("payload", pa.binary()),
        ("tag", pa.int8()),
        ("load", pa.binary()),
        ("checksum", pa.int64()),
    ]
)


def load_id(name: str) -> bytes:
    """Return the id in a load's name, with which its messages begin.

    >>> load_id("load-3-" + "0a" * 16).hex()
    '0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a'
    """
    return bytes.fromhex(name.rpartition("-")[2])


def packed_load(frame: DataFrame, spec: InputSpec, key_groups: int, name: str) -> DataFrame:
    """Return a version's rows as messages of the load ``name`` (``LOADED_DDL``), and its control rows in ``note``."""
    keys = [frame[back_quoted(column)] for column in spec.key]
    columns = [frame[back_quoted(column)].alias(f"c{at}") for at, column in enumerate(spec.source_schema.names)]
    rows = frame.select(*columns, key_group(keys, key_groups).alias(GROUP_COLUMN))
    packed = rows.mapInArrow(for_workers(Packer(spec, LOADED_TAG, group_labels(key_groups))), PACKED_DDL)
    is_row = F.col("tag") == F.lit(LOADED_TAG)
    return packed.select(
        "key_group",
        F.when(is_row, F.col("payload")).alias("payload"),
        "tag",
        F.when(is_row, F.lit(load_id(name))).alias("load"),
        F.when(is_row, F.crc32("payload")).alias("checksum"),
        F.when(~is_row, F.col("payload").cast("string")).alias("note"),
    )


def closing_messages(
    name: str, table_id: str, version: int, key_groups: int, notes: Iterable[tuple[int, str]]
) -> pa.Table:
    """Return the closing messages of a load, one for each key group (``LOADED_DDL``).

    ``notes`` has the control rows of the load's tasks, each with the label of its key group.
    """
    rows: Counter[int] = Counter()
    times: set[int] = set()
    for label, note in notes:
        counted = json.loads(note)
        rows[label] += counted["rows"]
        times.update(largest for largest in counted["partitions"].values() if largest > NONE)
    load = {"load": name, "table_id": table_id, "version": version, "largest": max(times, default=None)}
    labels = list(group_labels(key_groups))
    payloads = [json.dumps({**load, "rows": rows[label]}).encode() for label in labels]
    return pa.table(
        [
            pa.array(labels, pa.int32()),
            pa.array(payloads, pa.binary()),
            pa.array([LOADED_TAG] * len(labels), pa.int8()),
            pa.array([load_id(name)] * len(labels), pa.binary()),
            pa.array([zlib.crc32(payload) for payload in payloads], pa.int64()),
        ],
        schema=_SCHEMA,
    )


class LoadedRows:
    """The messages of loads that a call has met in its micro-batch.

    ``schema`` has the columns with which the messages were written; None means those of the right input, ``spec``.
    """

    def __init__(self, spec: InputSpec, batch_id: int, schema: pa.Schema | None = None) -> None:
        self._spec, self._batch_id, self._schema = spec, batch_id, spec.schema if schema is None else schema
        self._pieces: dict[bytes, list[pa.RecordBatch]] = {}
        self._closed: dict[bytes, TableLoad] = {}

    def add(self, message: pa.Buffer) -> None:
        """Add a message; raise a CheckpointError if it is damaged."""
        head, body = bytes(memoryview(message)[:_HEAD_BYTES]), message.slice(min(message.size, _HEAD_BYTES))
        own_id, checksum = head[:_ID_BYTES], int.from_bytes(head[_ID_BYTES:], "big")
        if not body.size or zlib.crc32(body) != checksum:
            raise self._changed(own_id, "a message with another checksum")
        if body.slice(0, 1).to_pybytes() == b"{":
            self._closed[own_id] = TableLoad(**json.loads(body.to_pybytes()), batch_id=self._batch_id)
        else:
            rows = read_message(body, self._schema)
            self._pieces.setdefault(own_id, []).append(rows)

    def take(self) -> tuple[TableLoad | None, list[pa.RecordBatch]]:
        """Return the load that the batch brings, and its rows; None where it brings none.

        A CheckpointError means that the load lacks rows or has too many.
        """
        if not self._closed:
            return None, []
        # Only two runs at the same moment write two loads; the one with the larger number in its name counts.
        own_id, load = max(self._closed.items(), key=lambda item: (int(item[1].load.split("-")[1]), item[0]))
        pieces = self._pieces.get(own_id, [])
        rows = sum(piece.num_rows for piece in pieces)
        if rows != load.rows:
            raise self._changed(own_id, f"{rows:,} rows in place of {load.rows:,}")
        return load, pieces

    def _changed(self, own_id: bytes, instead: str) -> CheckpointError:
        return CheckpointError(
            f"control/ of the checkpoint: the load {own_id.hex()} of input {self._spec.name!r} is not the one that was "
            f"written: got {instead}; its files were changed; put the checkpoint back from a backup, or start a new "
            f"query"
        )
