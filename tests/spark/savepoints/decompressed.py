"""All bytes of a folder as a reader could find them: files as they are, and everything decompressed in them."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import struct
import zlib
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from cojoin.engine.values import codec
from cojoin.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["places_with"]

_ZLIB = re.compile(rb"\x78[\x01\x9c\xda]")


def places_with(folder: Path, *patterns: bytes) -> list[str]:
    """Return where one of some byte patterns is found below a folder: in a name, in a file, or decompressed in one."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        contents = [("its name", name.encode())]
        if path.is_file():
            contents += [(f"{where}", content) for where, content in _contents(path.read_bytes())]
        found += [f"{name}: {where}" for where, content in contents if any(each in content for each in patterns)]
    return found


def _contents(content: bytes, where: str = "its bytes") -> Iterator[tuple[str, bytes]]:
    yield where, content
    if content[:4] == b"PAR1":
        yield from _of_parquet(content)
    if content[:6] == b"cojoin":
        with contextlib.suppress(CodecError):
            header, tables = codec.decode(content)
            yield f"{where}, header", repr(header).encode()
            for name, table in tables.items():
                yield from _of_table(table, f"{where}, table {name}")
    if content[:2] == b"\x1f\x8b":
        with contextlib.suppress(OSError, EOFError):
            yield from _contents(gzip.decompress(content), f"{where}, gzip")
    if content[:4] == b"\x28\xb5\x2f\xfd":
        with contextlib.suppress(pa.ArrowException, OSError):
            yield from _contents(pa.CompressedInputStream(pa.BufferReader(content), "zstd").read(), f"{where}, zstd")
    # Spark's state: LZ4 blocks behind a magic number, in a file that begins with anything.
    yield from _of_lz4_blocks(content, where)
    for begin in _ZLIB.finditer(content):
        with contextlib.suppress(zlib.error):
            yield f"{where}, zlib at {begin.start()}", zlib.decompressobj().decompress(content[begin.start() :])


def _of_lz4_blocks(content: bytes, where: str) -> Iterator[tuple[str, bytes]]:
    """Yield what LZ4's Java streams hold (``LZ4Block``: a token, two lengths, a checksum, and the block)."""
    magic, place, blocks = b"LZ4Block", content.find(b"LZ4Block"), []
    while place >= 0:
        token = content[place + 8]
        packed, plain = (int.from_bytes(content[place + at : place + at + 4], "little") for at in (9, 13))
        body = content[place + 21 : place + 21 + packed]
        if token & 0xF0 == 0x10:
            blocks.append(body)
        elif plain:
            blocks.append(bytes(pa.decompress(body, decompressed_size=plain, codec="lz4_raw", asbytes=True)))
        place = content.find(magic, place + 21 + packed)
    if blocks:
        whole = b"".join(blocks)
        yield f"{where}, lz4", whole
        inner = whole.find(b"cojoin\x02")
        while inner >= 0:
            yield from _any_state(whole[inner:], f"{where}, lz4, state at {inner}")
            inner = whole.find(b"cojoin\x02", inner + 1)


def _any_state(content: bytes, where: str) -> Iterator[tuple[str, bytes]]:
    """Yield the tables of a state's bytes, which others may follow."""
    _, _, length, _ = struct.unpack_from("<6sBII", content)
    with contextlib.suppress(ValueError, KeyError):
        head = json.loads(content[15 : 15 + length])
        size = 15 + length + sum(each["length"] for each in head["tables"])
        yield from _contents(content[:size], where)


def _of_parquet(content: bytes) -> Iterator[tuple[str, bytes]]:
    file = pq.ParquetFile(io.BytesIO(content))
    # The statistics, with the smallest and largest values, as text.
    groups = range(file.metadata.num_row_groups)
    texts = [str(file.metadata.row_group(group).to_dict()) for group in groups] + [str(file.metadata.metadata)]
    yield "parquet's statistics", "".join(texts).encode()
    yield from _of_table(file.read(), "parquet")


def _of_table(table: pa.Table, where: str) -> Iterator[tuple[str, bytes]]:
    for name, column in zip(table.column_names, table.columns, strict=True):
        yield f"{where}, column {name}", repr(column.to_pylist()).encode()
        for chunk in column.chunks:
            # The buffers too: they may have bytes that belong to no row.
            for buffer in chunk.buffers():
                if buffer is not None:
                    yield f"{where}, buffer of {name}", buffer.to_pybytes()
            if pa.types.is_binary(column.type):
                for value in chunk:
                    if value.as_py() is not None:
                        yield from _contents(value.as_py(), f"{where}, column {name}")
