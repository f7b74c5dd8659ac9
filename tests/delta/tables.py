"""Tables of the tests: files written by pyarrow, and logs written by hand."""

from __future__ import annotations

import json
import struct
import time
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from cojoin.delta.actions import DataFile
from cojoin.delta.table_writer import Change, NewTable, TableWriter
from cojoin.storage.local_store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cojoin.delta.table_writer import Committed

SCHEMA = pa.schema([("id", pa.int64())])
FIELDS = ({"name": "id", "type": "long", "nullable": True, "metadata": {}},)
APP = "cojoin-0b8e-output"
PLAIN = {"minReaderVersion": 1, "minWriterVersion": 2}


def data_file(folder: Path, ids: Sequence[int] = (1,), name: str | None = None, **values: str | None) -> DataFile:
    """Write a file of rows into a table's folder."""
    name = name or f"part-{uuid.uuid4()}.parquet"
    place = folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": list(ids)}, schema=SCHEMA), place)
    statistics = json.dumps({"numRecords": len(ids), "nullCount": {"id": 0}})
    return DataFile(name, place.stat().st_size, int(1000 * time.time()), statistics, values)


def writer(folder: Path, **options: Any) -> TableWriter:
    return TableWriter(LocalStore(str(folder), "table"), "", **options)


def append(
    to: TableWriter, folder: Path, batch_id: int, *, app_id: str = APP, properties: Mapping[str, str] | None = None
) -> Committed:
    """Append a batch of one row, the batch's number, unless the table has it."""
    change = Change({app_id: batch_id}, SCHEMA, [data_file(folder, [batch_id])], metadata=f"batch {batch_id}")
    new = NewTable(SCHEMA, properties=properties or {})
    return to.commit(change, lambda version: (found := version(app_id)) is not None and found >= batch_id, new=new)


def ids(folder: Path) -> list[int]:
    """Return a table's rows as ``deltalake`` reads them."""
    found = QueryBuilder().register("rows", DeltaTable(str(folder))).execute("select id from rows").read_all()
    return sorted(pa.table(found)["id"].to_pylist())


def by_hand(
    folder: Path,
    protocol: Mapping[str, Any] = PLAIN,
    *,
    fields: Sequence[Mapping[str, Any]] = FIELDS,
    properties: Mapping[str, str] | None = None,
    partitions: Sequence[str] = (),
    actions: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write a table's first commit by hand."""
    metadata = {
        "id": "0b8e",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": list(fields)}),
        "partitionColumns": list(partitions),
        "configuration": dict(properties or {}),
        "createdTime": 1,
    }
    commit(folder, 0, {"commitInfo": {"timestamp": 1}}, {"protocol": protocol}, {"metaData": metadata}, *actions)
    return folder


def commit(folder: Path, version: int, *actions: Mapping[str, Any]) -> None:
    """Write a commit by hand."""
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020d}.json").write_text("".join(f"{json.dumps(each)}\n" for each in actions))


def deleting(*rows: int) -> dict[str, Any]:
    """Return a deletion vector of some rows of a file, as it is written into a log (Delta's protocol)."""
    bitmap = struct.pack(f"<IIHHI{len(rows)}H", 12346, 1, 0, len(rows) - 1, 16, *rows)
    content = struct.pack("<IqI", 1681511377, 1, 0) + bitmap
    content += bytes(-len(content) % 4)
    digits = [str(n) for n in range(10)] + [chr(n) for n in (*range(97, 123), *range(65, 91))]
    digits += ".-:+=^!/*?&<>()[]{}@%$#"
    words = [word for (word,) in struct.iter_unpack(">I", content)]
    text = "".join(digits[word // 85**place % 85] for word in words for place in range(4, -1, -1))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(content), "cardinality": len(rows)}


def features(*writer: str, reader: Sequence[str] = ()) -> dict[str, Any]:
    """Return a protocol with features by name."""
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": list(reader),
        "writerFeatures": [*writer, *reader],
    }
