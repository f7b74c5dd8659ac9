"""The initial state of a restored query, as messages of the control input.

One message for all key groups contains the header (watermarks, counters) and the columns of the tables. Each of the
others contains rows of a table for one key group. Spark computes the new key group of a row as it does for an input.
The query's first batch reads these messages and nothing else.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.control import CONTROL_DDL
from cojoin.engine import rescaling
from cojoin.engine.key_groups import group_labels
from cojoin.engine.values import codec
from cojoin.engine.values.codec import binary_column
from cojoin.errors import CheckpointError
from cojoin.session.sealed import for_workers
from cojoin.spark.batch.packing import key_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.stored_state import StoredState
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.operator import Operator

__all__ = ["RestoredState", "is_restored_state", "state_messages"]

_HEADER, _FOR = "restored", "for"
"""The header's entries: the state's header; and whom the message is for: the query, the label, and its own id."""
_MAGIC = codec.encode({}, {})[:6]
_MESSAGE = pa.schema([("key_group", pa.int32()), ("payload", pa.binary())])


def is_restored_state(message: pa.Buffer) -> bool:
    """Return whether a message of the control input carries restored state; the others are JSON."""
    return bool(message.slice(0, min(message.size, len(_MAGIC))).to_pybytes() == _MAGIC)


class RestoredState:
    """The restored state of one key group, collected from messages; it is true once it has a message.

    Args:
        label: The key group's label.
        query_id: The query that is restored; None where that is not known.
    """

    def __init__(self, label: int | None = None, query_id: str | None = None) -> None:
        self._label, self._query_id = label, query_id
        self._header: dict[str, Any] | None = None
        self._pieces: list[dict[str, pa.Table]] = []
        self._ids: set[str | None] = set()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, message: pa.Buffer) -> None:
        """Add a message.

        Raises:
            CodecError: The message is truncated or damaged.
            CheckpointError: It is for another query or another key group, or was added already.
        """
        header, tables = codec.decode(message.to_pybytes())
        query_id, label, own_id = header.get(_FOR, (None, None, None))
        is_other = self._query_id is not None and query_id not in (None, self._query_id)
        is_other |= self._label is not None and label not in (None, self._label)
        if is_other or (own_id is not None and own_id in self._ids):
            msg = (
                f"control/restored of the checkpoint: expected messages for the key group with the label {self._label} "
                f"of the query {self._query_id}, each once, got one for {label} of {query_id}: its files were changed "
                f"or exchanged; restore once more with restore_from= into an empty directory"
            )
            raise CheckpointError(msg)
        self._ids.add(own_id)
        self._header = header.get(_HEADER, self._header)
        self._pieces.append(tables)

    def load_into(self, operator: Operator, *, keeps_counts: bool) -> None:
        """Load the state into an operator.

        Args:
            operator: A new operator.
            keeps_counts: Whether it gets the counters of done and rejected rows; exactly one key group must.

        Raises:
            CheckpointError: The header is missing, or the query can't use this state; the message says which.
        """
        # Release 0.5.0 wrote messages without ids; of one restoration all have one or none has.
        if self._header is None or (None in self._ids and len(self._ids) > 1):
            what = "the message with the header is missing" if self._header is None else "some are of another kind"
            msg = (
                f"control/restored of the checkpoint: {what}: its files were changed or exchanged; restore once more "
                f"with restore_from= into an empty directory"
            )
            raise CheckpointError(msg)
        operator.load_parts(self._header, rescaling.assemble(self._pieces), keeps_counts=keeps_counts)
        operator.check_states()


def state_messages(
    spark: SparkSession,
    state: StoredState,
    inputs: tuple[InputSpec, InputSpec],
    key_groups: int,
    query_id: str | None = None,
) -> DataFrame:
    """Return a state as messages of the control input (``CONTROL_DDL``): one header, and the rows per key group.

    Args:
        spark: The session.
        state: The state.
        inputs: The inputs of the restored query.
        key_groups: The number of its key groups.
        query_id: Its id, which each message carries.
    """
    labels = group_labels(key_groups)
    columns = {name: table.schema for name, table in state.tables.items()}
    header = _header_message(rescaling.merged_header(state.headers), columns, query_id)
    messages = spark.createDataFrame(pa.table([pa.array([None], pa.int32()), pa.array([header])], schema=_MESSAGE))
    for name, table in state.tables.items():
        if table.rows:
            messages = messages.unionByName(_pieces(state, name, inputs, labels, query_id))
    return messages


def _pieces(
    state: StoredState,
    name: str,
    inputs: tuple[InputSpec, InputSpec],
    labels: tuple[int, ...],
    query_id: str | None,
) -> DataFrame:
    schema = state.tables[name].schema
    # Columns are named by position, since names may have dots or differ only in case.
    numbered = state.rows(name).toDF(*(f"c{position}" for position in range(len(schema))))
    hashed, spread = (
        [F.col(f"c{schema.names.index(column)}") for column in columns]
        for columns in (rescaling.key_columns(name, inputs), rescaling.spreading_columns(name, inputs, schema))
    )
    group = key_group(hashed, len(labels), spread).alias("group")

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _pack(batches, name, schema, inputs, labels, query_id)

    return numbered.select("*", group).mapInArrow(for_workers(pack), CONTROL_DDL)


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
    """Return the message for all key groups.

    Args:
        header: The merged header of the old key groups.
        columns: The columns of each table.
        query_id: The restored query.
    """
    empty = {name: schema.empty_table() for name, schema in columns.items()}
    return codec.encode({_HEADER: dict(header), _FOR: [query_id, None, uuid.uuid4().hex]}, empty)
