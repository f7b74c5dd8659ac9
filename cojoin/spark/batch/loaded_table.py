"""A load of a table as messages of the control input: its rows packed by key group, and closing messages that count.

Spark computes the key group of a row as for any input, and the rows are cut and packed by the same code (``packing``).
Each message begins with the load's id and a checksum of what follows: Arrow rows, or a key group's closing message as
JSON. A key group takes a load when its closing message is there, and only with as many rows as that message counts.
Rows of another load are left out: a run that was fenced off may have written them, and its rows are not the query's.

It costs a copy of the table's rows in the checkpoint until they are in the state, and a checksum of each message.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.key_groups import group_labels
from cojoin.engine.operator import TableLoad
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.codec import read_message
from cojoin.engine.values.rows import back_quoted
from cojoin.errors import CheckpointError
from cojoin.session.sealed import for_workers
from cojoin.spark.batch.packing import GROUP_COLUMN, LOADED_TAG, PACKED_DDL, Packer, key_group

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

    from cojoin.engine.input_spec import InputSpec

__all__ = ["LoadedRows", "closing_messages", "load_id", "packed_load"]

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
    """Return a version's rows as messages of a load (``LOADED_DDL``), and in ``note`` what each task has counted.

    Args:
        frame: The version's rows.
        spec: The input.
        key_groups: The number of key groups.
        name: The load's name.
    """
    keys = [frame[back_quoted(each)] for each in spec.key]
    columns = [frame[back_quoted(each)].alias(f"c{at}") for at, each in enumerate(spec.source_schema.names)]
    packer = Packer(spec, LOADED_TAG, group_labels(key_groups))

    packed = frame.select(*columns, key_group(keys, key_groups).alias(GROUP_COLUMN)).mapInArrow(
        for_workers(packer), PACKED_DDL
    )
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

    Args:
        name: The load's name.
        table_id: The table's id.
        version: The table's version.
        key_groups: The number of key groups.
        notes: What the tasks have counted: the label of a key group, and the control row for it.
    """
    rows: Counter[int] = Counter()
    times: set[int] = set()
    for label, note in notes:
        counted = json.loads(note)
        rows[label] += counted["rows"]
        # Rows without event time have none to tell.
        times.update(each for each in counted["partitions"].values() if each > NONE)
    told = {"load": name, "table_id": table_id, "version": version, "largest": max(times, default=None)}
    labels = list(group_labels(key_groups))
    payloads = [json.dumps({**told, "rows": rows[label]}).encode() for label in labels]
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

    Args:
        spec: The right input.
        batch_id: The micro-batch.
        schema: The columns with which the messages were written; None where they are the input's.
    """

    def __init__(self, spec: InputSpec, batch_id: int, schema: pa.Schema | None = None) -> None:
        self._spec, self._batch_id, self._schema = spec, batch_id, spec.schema if schema is None else schema
        self._pieces: dict[bytes, list[pa.RecordBatch]] = {}
        self._closed: dict[bytes, TableLoad] = {}

    def add(self, message: pa.Buffer) -> None:
        """Add a message.

        Raises:
            CheckpointError: It is damaged.
        """
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

        Raises:
            CheckpointError: The load lacks rows or has too many.
        """
        if not self._closed:
            return None, []
        # Of two, which only runs at the same moment write, the later one holds.
        own_id, load = max(self._closed.items(), key=lambda each: (_number(each[1].load), each[0]))
        pieces = self._pieces.get(own_id, [])
        found = sum(piece.num_rows for piece in pieces)
        if found != load.rows:
            raise self._changed(own_id, f"{found:,} rows in place of {load.rows:,}")
        return load, pieces

    def _changed(self, own_id: bytes, found: str) -> CheckpointError:
        return CheckpointError(
            f"control/ of the checkpoint: the load {own_id.hex()} of input {self._spec.name!r} is not the one that was "
            f"written: got {found}; its files were changed; put the checkpoint back from a backup, or begin the query "
            f"anew"
        )


def _number(name: str) -> int:
    """Return the number in a load's name.

    >>> _number("load-3-0a")
    3
    """
    return int(name.split("-")[1])
