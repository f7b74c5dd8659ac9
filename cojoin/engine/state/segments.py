"""Segments: immutable files of a table's rows, sorted by the hash of their key; the state value names them.

A large segment is in several files, each for a range of hashes. A file is an Arrow IPC file of two record batches. The
first has the rows, with the hash as the first column. The second has the *tombstones*: hashes of which this segment has
no row, and whose rows in older segments are deleted. Older rows of a hash that the segment does have are superseded
likewise.

A file is written once. Its name is made of the batch, the key group and a digest of the content, so a task that is run
again gives it the same name. Where the store maps files into memory, only the pages that a search touches are read.
Each process compares a file's length whenever it opens the file, and its digest the first time and whenever the file
was written, or fetched from its store, since. It costs 0.1 ms to open a file, and a binary search for each key.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from cojoin.errors import CheckpointError, CodecError

if TYPE_CHECKING:
    from numpy.typing import NDArray

HASH, MATCHED = "@hash", "@matched"
"""The names of the column of hashes, and of that of an interval join's flags; an input has no column of these names."""

HASHES = 1 << 64
"""The number of hashes. They are spread evenly, so ranges of equal width have about as many rows."""

_FIXES = "restore a snapshot that is whole (`cojoin checkpoints list` shows them)"
COPIES = 16
"""How many times the bytes of rows that are read at a time may be needed with their copies; 5 to 14 were measured."""

_MOST_SLICE_BYTES = 1 << 30
"""The largest slice: the texts of an Arrow column in one piece have 2 GB at most."""

_KNOWN = 100_000
_NEVER = object()

_compared: dict[tuple[str, str], object] = {}
"""The files whose digest this process has compared, by store and name, each with its stamp at that time."""


class SegmentStore(Protocol):
    """The store of segments; the code around the engine implements it."""

    @property
    def place(self) -> str:
        """The directory, for messages."""

    def write(self, name: str, content: pa.Buffer) -> object:
        """Write a file as a whole or not at all, and return its stamp; None where ``open`` fetches it.

        A file that already has this name has the same content. ``CheckpointError`` is raised where it can't be written.
        """

    def open(self, name: str) -> tuple[pa.Buffer, object]:
        """Return a file's bytes, mapped into memory where that is possible, and their stamp, or raise ``OSError``.

        A stamp differs from all others of the file once the file was written, or its bytes were fetched, again.
        """


@dataclass(frozen=True)
class SegmentOptions:
    """The limits above which memtables are flushed, segments are merged, and waiting rows are written as runs.

    Attributes:
        limit_bytes: How large a memtable may grow in a key group's state value. A megabyte of state costs 10 ms a
            batch, and a file costs some 1 ms to write: at half a megabyte both are below what a call costs anyway.
        ratio: A segment is merged with the newer ones once it is less than this many times as large as they are. A
            larger ratio makes fewer segments and writes each row more often: with 4 a row is written some 4 times a
            level, and there are 3 levels between half a megabyte and 32.
        memory_bytes: What a task may use for rows that it reads from runs and segments, and merges, in bytes of memory.
    """

    limit_bytes: int = 512 * 1024
    ratio: float = 4.0
    memory_bytes: int = 1 << 30

    @property
    def waiting_bytes(self) -> int:
        """The limit for an input's rows that wait in a key group's state value; with more, all are written as a run."""
        return min(16 * self.limit_bytes, self.slice_bytes // 4)

    @property
    def slice_bytes(self) -> int:
        """The bytes of rows that are processed at a time, or merged into one file; each is copied several times."""
        return min(self.key_bytes, _MOST_SLICE_BYTES)

    @property
    def key_bytes(self) -> int:
        """The bytes of one key's rows, which are always read at a time, for which the memory is surely enough."""
        return self.memory_bytes // COPIES

    def ratio_of(self, key_group: int) -> float:
        """Return a key group's own ratio, from 3/4 to 5/4 of it, so that largest merges fall into different batches.

        >>> [round(SegmentOptions().ratio_of(group), 2) for group in (0, 1, 2)]
        [3.0, 4.24, 3.47]
        """
        return self.ratio * (0.75 + 0.5 * (key_group * 0.618033988749895 % 1))


@dataclass(frozen=True)
class SegmentContext:
    """The use of segments by one key group in one batch; without options memtables are never flushed.

    ``written`` has the names of the files that were written, also of those that were merged in the same batch.
    """

    store: SegmentStore
    options: SegmentOptions | None = None
    key_group: int = 0
    batch_id: int = 0
    written: list[str] = field(default_factory=list, compare=False)


@dataclass(frozen=True)
class Segment:
    """The record of a file in the state value; ``rows`` counts superseded ones, and the digest is BLAKE2b.

    The file is a segment, a part of one, or a run of waiting rows (``waiting_rows``). ``last`` is the largest hash of a
    part's range, which begins after that of the part before it; None for the last part.
    """

    name: str
    rows: int
    tombstones: int
    bytes: int
    digest: str
    last: int | None = None

    def as_list(self) -> list[Any]:
        """Return the attributes as JSON values."""
        values = [self.name, self.rows, self.tombstones, self.bytes, self.digest]
        return values if self.last is None else [*values, self.last]

    def open(self, store: SegmentStore) -> OpenSegment:
        """Return the segment, opened; see ``content``."""
        return OpenSegment(self.content(store))

    def content(self, store: SegmentStore) -> pa.Buffer:
        """Return the file's bytes, after comparing their length, and their digest the first time."""
        where = f"segment {store.place}/{self.name}"
        try:
            content, stamp = store.open(self.name)
        except FileNotFoundError as error:
            msg = f"{where}: the state names this file of {self.bytes:,} bytes, which is missing; {_FIXES}"
            raise CheckpointError(msg) from error
        except (OSError, pa.ArrowException) as error:
            msg = f"{where}: the state names this file, and it can't be read: {error}"
            raise CheckpointError(msg) from error
        if content.size != self.bytes:
            msg = f"{where}: expected {self.bytes:,} bytes, got {content.size:,}: it was changed or cut off; {_FIXES}"
            raise CodecError(msg)
        known = (store.place, self.name)
        if _compared.get(known, _NEVER) != stamp:
            digest = _digest(content)
            if digest != self.digest:
                msg = f"{where}: expected content with the digest {self.digest}, got {digest}: it was changed; {_FIXES}"
                raise CodecError(msg)
            _note(known, stamp)
        return content


class OpenSegment:
    """A segment's content, of which only what is used is read."""

    def __init__(self, content: pa.Buffer) -> None:
        self._reader = pa.ipc.open_file(content)

    @cached_property
    def table(self) -> pa.Table:
        """The rows, with their hashes as the first column, sorted by hash."""
        return pa.Table.from_batches([self._reader.get_batch(0)])

    @cached_property
    def hashes(self) -> NDArray[np.uint64]:
        """The rows' hashes."""
        return self._reader.get_batch(0).column(0).to_numpy()  # type: ignore[no-any-return]

    @cached_property
    def tombstones(self) -> NDArray[np.uint64]:
        """The hashes whose rows in older segments are deleted, sorted."""
        return self._reader.get_batch(1).column(0).to_numpy()  # type: ignore[no-any-return]


def between(hashes: NDArray[np.uint64], first: int, last: int) -> tuple[int, int]:
    """Return the positions of a range in sorted hashes: that of its first, and the one after its last."""
    if (first, last) == (0, HASHES - 1):
        return 0, len(hashes)
    return int(np.searchsorted(hashes, np.uint64(first))), int(np.searchsorted(hashes, np.uint64(last), "right"))


def write_segment(
    segmenting: SegmentContext, hashes: NDArray[np.uint64], rows: pa.Table, tombstones: NDArray[np.uint64]
) -> Segment:
    """Write a segment, and return its record for the state value; rows and tombstones are sorted by hash."""
    schema = pa.schema([pa.field(HASH, pa.uint64()), *rows.schema])
    columns = [_one_piece(column) for column in rows.columns]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([pa.array(hashes), *columns], schema=schema))
        nothing = [pa.nulls(len(tombstones), field.type) for field in rows.schema]
        writer.write_batch(pa.RecordBatch.from_arrays([pa.array(tombstones), *nothing], schema=schema))
    content = sink.getvalue()
    name, digest = write_file(segmenting, content)
    return Segment(name, rows.num_rows, len(tombstones), content.size, digest)


def write_file(segmenting: SegmentContext, content: pa.Buffer) -> tuple[str, str]:
    """Write a file, and return its name and digest."""
    digest = _digest(content)
    name = f"{segmenting.batch_id:012d}-{segmenting.key_group:05d}-{digest}.arrow"
    _note((segmenting.store.place, name), segmenting.store.write(name, content))
    segmenting.written.append(name)
    return name, digest


def _one_piece(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _digest(content: pa.Buffer) -> str:
    return hashlib.blake2b(memoryview(content), digest_size=16).hexdigest()


def _note(known: tuple[str, str], stamp: object) -> None:
    if len(_compared) >= _KNOWN:
        _compared.clear()
    _compared[known] = stamp
