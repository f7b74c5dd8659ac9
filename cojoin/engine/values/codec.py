"""Arrow tables as bytes: the state of an operator, and the messages in which rows cross between the JVM and Python.

A state is ``b"cojoin"``, one version byte, the header's length and CRC-32 (4 bytes each, little endian), the header,
then each table as an Arrow IPC stream. The header holds small JSON values and each table's name, length and CRC-32, so
that any damage is detected. Tables are read without copying them. Nothing is pickled, so reading runs no code.

A message is one Arrow record batch without its schema, which both ends know. The messages of a table are small on
average, so code that carries many may count messages instead of bytes. A row is never split.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cojoin.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MESSAGE_BYTES = 128 << 10


def write_messages(table: pa.Table) -> Iterator[pa.Buffer]:
    """Yield a table's rows as messages of 128 kB on average, or of one row where rows are larger."""
    rows = max(1, table.num_rows * _MESSAGE_BYTES // max(1, table.nbytes))
    for batch in table.combine_chunks().to_batches(max_chunksize=rows):
        yield batch.serialize()


def read_message(message: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return a message's rows, without copying them."""
    return pa.ipc.read_record_batch(message, schema)


def binary_column(contents: Sequence[Any]) -> pa.Array:
    """Return buffers or bytes as a binary column, copied once; going through Python's ``bytes`` would copy twice."""
    offsets = np.cumsum([0, *(memoryview(content).nbytes for content in contents)], dtype=np.int64)
    if not offsets[-1] or offsets[-1] >= 1 << 31:
        return pa.array([bytes(memoryview(content)) for content in contents], pa.binary())
    joined = np.concatenate(
        [np.frombuffer(content, dtype=np.uint8) for content in contents if memoryview(content).nbytes]
    )
    return pa.Array.from_buffers(
        pa.binary(), len(contents), [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(joined)]
    )


VERSION, _VERSION_OF_FILES = 2, 3
RUNS = "runs"
"""The header's entry of rows that lie in runs, which may be none.

A state that names files has it, and so a format that earlier releases refuse by name.
"""

WRITTEN = "written"
"""The header's entry about who wrote a state value, which is not a part of the state: key group, batch and query."""

_MAGIC = b"cojoin"
_PREFIX = struct.Struct("<6sBII")


def encode(header: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> bytes:
    """Return JSON values and tables as bytes.

    >>> header, tables = decode(encode({"watermark": 5}, {"buffer": pa.table({"a": [1]})}))
    >>> header["watermark"], tables["buffer"].to_pydict()
    (5, {'a': [1]})
    """
    bodies = [write_table(table) for table in tables.values()]
    index = [
        {"name": name, "length": body.size, "crc32": zlib.crc32(body)}
        for name, body in zip(tables, bodies, strict=True)
    ]
    head = json.dumps({"header": dict(header), "tables": index}).encode()
    prefix = _PREFIX.pack(_MAGIC, _VERSION_OF_FILES if RUNS in header else VERSION, len(head), zlib.crc32(head))
    return b"".join([prefix, head, *(memoryview(body) for body in bodies)])


def decode(data: bytes) -> tuple[dict[str, Any], dict[str, pa.Table]]:
    """Return the header's values and the tables that some bytes encode.

    Raises:
        CodecError: The bytes are not a state of cojoin, are truncated or damaged, or have another format version.
    """
    buffer = pa.py_buffer(data)
    if len(data) < _PREFIX.size:
        msg = f"state bytes: expected at least {_PREFIX.size} bytes, got {len(data)}: they are truncated"
        raise CodecError(msg)
    magic, version, length, checksum = _PREFIX.unpack_from(data)
    if magic != _MAGIC:
        msg = f"state bytes: expected them to begin with {_MAGIC!r}, got {magic!r}: this is not a state of cojoin"
        raise CodecError(msg)
    if version not in (VERSION, _VERSION_OF_FILES):
        older = "continue with the version of cojoin that wrote them, or start with a new checkpoint"
        action = "upgrade cojoin" if version > VERSION else older
        known = f"{VERSION} or {_VERSION_OF_FILES}"
        msg = f"state bytes: expected format {known}, which this version of cojoin reads, got {version}; {action}"
        raise CodecError(msg)
    text = data[_PREFIX.size : _PREFIX.size + length]
    if len(text) < length or zlib.crc32(text) != checksum:
        msg = "state bytes: the header is truncated or damaged"
        raise CodecError(msg)
    head = json.loads(text)
    tables, offset = {}, _PREFIX.size + length
    for entry in head["tables"]:
        body = buffer[offset : offset + entry["length"]]
        if body.size < entry["length"] or zlib.crc32(body) != entry["crc32"]:
            msg = f"state bytes: table {entry['name']!r} is truncated or damaged at byte {offset}"
            raise CodecError(msg)
        tables[entry["name"]] = read_table(body)
        offset += entry["length"]
    if offset != len(data):
        msg = f"state bytes: expected {offset} bytes, got {len(data)}: something was appended to them"
        raise CodecError(msg)
    return head["header"], tables


def write_table(table: pa.Table) -> pa.Buffer:
    """Write a table as a self-describing Arrow stream: one batch, however many chunks the table has."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue()


def read_table(body: pa.Buffer | bytes) -> pa.Table:
    """Return the table that ``write_table`` wrote."""
    with pa.ipc.open_stream(body) as reader:
        return reader.read_all()
