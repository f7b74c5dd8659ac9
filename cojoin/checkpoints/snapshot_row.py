"""One key group's part of a snapshot, as a row of the ``state`` table; the row is made in the task that has the state.

The *content* of a row is the tables of the key group's state. Rows that the state value has in files are not copied:
the content names their files, as the state value does, and they are kept as long as the snapshot (``segment_files``).
So a snapshot costs as much as a state value, however large the state is. The content is written only if its fingerprint
has changed since the previous snapshot; otherwise the row points to the snapshot that has it. The *header*, with the
watermarks, the counters and the names of the content's files, is small and always changes, so every row has it. The
index of the snapshot lists the files that its rows name, which protects them from deletion. The batch's manifest is not
enough for that: a task that is run again may give its files other names.

Each key group's call decides from its state whether a batch ends with a snapshot (``SnapshotCadence``). The driver
predicts this from the last snapshots (``DueSnapshots``).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.state.named_files import SEGMENTS, NamedFiles
from cojoin.engine.values import codec
from cojoin.engine.values.arguments import Duration, milliseconds
from cojoin.engine.values.types import schema_to_ddl
from cojoin.errors import CodecError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cojoin.checkpoints.snapshots import SnapshotIndex

STATE_SCHEMA = pa.schema(
    [
        ("batch_id", pa.int64()),
        ("key_group", pa.int32()),
        ("segment", pa.int32()),
        ("header", pa.string()),
        ("content_batch_id", pa.int64()),
        ("fingerprint", pa.string()),
        ("seal", pa.string()),
        ("content", pa.binary()),
        ("content_bytes", pa.int64()),
        (
            "tables",
            pa.list_(
                pa.struct(
                    [("name", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64()), ("columns", pa.string())]
                )
            ),
        ),
    ]
)
"""A row of the ``state`` table.

- *batch_id*, *key_group*: the snapshot and the key group.
- *segment*: the key group again where the row has the content, else null; the table is partitioned by it.
- *header*: watermarks and counters, and under ``"files"`` the names of the content's files if there are any, as JSON.
- *content_batch_id*: the snapshot whose row has the content; *fingerprint*: the content's BLAKE2b; *content_bytes*: its
  size in bytes.
- *seal*: the BLAKE2b of header, fingerprint and the description of the tables; the snapshot's index file has a BLAKE2b
  of all seals.
- *content*: the tables, in the format of ``cojoin.engine.values.codec``; its header names the files with other rows.
- *tables*: the tables' names, rows, bytes (in memory, and of the files), and columns as DDL.
"""


_FILES = "files"
_NOT_OF_HEADERS = ("saved", SEGMENTS, codec.RUNS, _FILES)
"""The entries that a row's header does not copy from the header of a state value or of another row."""


@dataclass(frozen=True)
class SnapshotCadence:
    """The rule by which a snapshot is due. It depends on the state alone, so all key groups and a repeated batch agree.

    The interval is in batches, or in milliseconds of the batches' processing time; if both are None, none is ever due.

    >>> SnapshotCadence.of("10 minutes").interval_ms, SnapshotCadence.of(5).batches
    (600000, 5)
    """

    batches: int | None = None
    interval_ms: int | None = None

    @classmethod
    def of(cls, declared: Duration | int | None) -> SnapshotCadence:
        """Return the cadence of a user's setting: a duration, a number of batches, or None for never."""
        if declared is None:
            return cls()
        if isinstance(declared, int) and not isinstance(declared, bool):
            if declared < 1:
                msg = f"checkpoint_interval: expected at least 1 batch, got {declared}; None takes only savepoints"
                raise ConfigurationError(msg)
            return cls(batches=declared)
        interval = milliseconds(declared, "checkpoint_interval")  # type: ignore[arg-type]
        if not interval:
            msg = "checkpoint_interval: must be longer than zero; 1 takes a snapshot with every batch"
            raise ConfigurationError(msg)
        return cls(interval_ms=interval)

    def is_due(self, saved: Mapping[str, Any] | None, batch_id: int, now: int) -> bool:
        """Return whether a batch, at a processing time in epoch milliseconds, ends with a snapshot.

        ``saved`` is the header's entry about the last snapshot, or about the beginning of the state.
        """
        if self.batches is not None:
            return batch_id - (-1 if saved is None else int(saved["batch_id"])) >= self.batches
        return self.interval_ms is not None and saved is not None and now - int(saved["time"]) >= self.interval_ms


def snapshot_row(
    key_group: int, batch_id: int, header: Mapping[str, Any], tables: Mapping[str, pa.Table]
) -> tuple[pa.Table, dict[str, Any]]:
    """Return a key group's row after a batch, and the ``"saved"`` entry for the header of its state.

    ``header`` and ``tables`` are those of the state value. The header's ``"saved"`` is the entry that this function
    returned for the last snapshot.
    """
    saved, files = header.get("saved") or {}, NamedFiles.of(header)
    # Release 0.6 and earlier ones read content that names no files, and refuse content that does.
    content = codec.encode(files.header(), tables)
    fingerprint = _digest(content)
    is_new = saved.get("fingerprint") != fingerprint
    of_row = {name: value for name, value in header.items() if name not in _NOT_OF_HEADERS}
    names = sorted(file.name for file in files.files())
    text = json.dumps({**of_row, _FILES: names} if names else of_row)
    described = describe_content(files, tables)
    row = {
        "batch_id": batch_id,
        "key_group": key_group,
        "segment": key_group if is_new else None,
        "header": text,
        "content_batch_id": batch_id if is_new else saved["content_batch_id"],
        "fingerprint": fingerprint,
        "seal": _row_seal(text, fingerprint, len(content), described),
        "content": content if is_new else None,
        "content_bytes": len(content),
        "tables": described,
    }
    remembered = {
        "batch_id": batch_id,
        "time": header["processing_time"],
        "content_batch_id": row["content_batch_id"],
        "fingerprint": fingerprint,
    }
    return pa.Table.from_pylist([row], schema=STATE_SCHEMA), remembered


def files_of(header: str) -> list[str]:
    """Return the names of the files that a row's header names."""
    names: list[str] = json.loads(header).get(_FILES, [])
    return names


def describe_content(files: NamedFiles, tables: Mapping[str, pa.Table]) -> list[dict[str, Any]]:
    """Return a row's description of its content: ``tables``, whose other rows are in ``files``."""
    return [
        {"name": size.name, "rows": size.rows, "bytes": size.bytes, "columns": schema_to_ddl(size.schema)}
        for size in files.sizes(tables)
    ]


def are_whole(rows: Sequence[Any], snapshot: SnapshotIndex) -> bool:
    """Return whether rows, sorted by key group and without content, are those for which a snapshot's index was made."""
    holders = {group: int(batch_id) for batch_id, groups in snapshot.content_batch_ids.items() for group in groups}
    return (
        seal_of(*(row.seal for row in rows)) == snapshot.seal
        and all(_is_sealed(row.asDict()) for row in rows)
        and holders == {row.key_group: row.content_batch_id for row in rows}
        and snapshot.rows == sum(table.rows for row in rows for table in row.tables)
    )


def _is_sealed(row: Mapping[str, Any]) -> bool:
    """Return whether a row of the ``state`` table fits its seal.

    Release 0.5.0 sealed header and fingerprint alone. A newer seal can't be replaced by such a weaker one unnoticed,
    since the index has the BLAKE2b of all seals.
    """
    header, fingerprint = row["header"], row["fingerprint"]
    described = [each.asDict() if hasattr(each, "asDict") else each for each in row["tables"]]
    return row["seal"] in (
        _row_seal(header, fingerprint, row["content_bytes"], described),
        seal_of(header, fingerprint),
    )


def _row_seal(header: str, fingerprint: str, content_bytes: int, described: Sequence[Mapping[str, Any]]) -> str:
    tables = [[each[name] for name in ("name", "rows", "bytes", "columns")] for each in described]
    return seal_of(header, fingerprint, json.dumps([content_bytes, tables]))


def seal_of(*texts: str) -> str:
    """Return the BLAKE2b of a sequence of texts.

    >>> seal_of("a", "b") == seal_of("ab", "")
    False
    """
    return _digest(json.dumps(texts).encode())


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def open_content(content: bytes | None, fingerprint: str, where: str) -> tuple[NamedFiles, dict[str, pa.Table]]:
    """Return the files that a row's content names, and its tables, checked by their fingerprint.

    Raises ``CodecError`` where the content is missing, was changed, or has a newer version; the message begins with
    ``where``.
    """
    if content is None:
        msg = f"{where}: its content is missing; the table's files were removed; restore another snapshot"
        raise CodecError(msg)
    actual = _digest(content)
    try:
        # Decoded before the comparison: an error about a newer version helps more than a differing fingerprint.
        header, tables = codec.decode(content)
    except CodecError as error:
        msg = f"{where}: {error}; restore another snapshot"
        raise CodecError(msg) from None
    if actual != fingerprint:
        msg = (
            f"{where}: expected content with the fingerprint {fingerprint}, got {actual}: it was changed; "
            f"restore another snapshot"
        )
        raise CodecError(msg)
    return NamedFiles.of(header), tables


class DueSnapshots:
    """The last snapshot of each key group, as one run's calls reported it; with ``is_new`` none has a state yet."""

    def __init__(self, cadence: SnapshotCadence, key_groups: int, *, is_new: bool) -> None:
        self._cadence, self._key_groups = cadence, key_groups
        self._last: dict[int, Mapping[str, Any] | None] = dict.fromkeys(range(key_groups)) if is_new else {}

    def may_have(self, batch_id: int, now: int) -> bool:
        """Return whether a batch may end with a snapshot; its processing time is at most ``now`` (epoch ms)."""
        if len(self._last) < self._key_groups:
            return True
        return any(self._cadence.is_due(last, batch_id, now) for last in self._last.values())

    def observe(self, statistics: Iterable[Mapping[str, Any]]) -> None:
        """Record the snapshots that a batch's calls have reported."""
        self._last.update((each["key_group"], each["saved"]) for each in statistics)
