"""A folder of parquet files as a sink, with a folder for each batch, which is replaced when the batch is run again.

Exactly once for readers of the whole folder, between batches. The folder names the query that writes it in a file that
readers pass over: another query's batches would be taken for its own, since batches are counted from 0 in each
checkpoint. A checkpoint that is older than the folder is refused, as its batches would stand beside the later ones.
Not fenced: a driver that was taken for dead may still replace the folder of the batch that it had begun.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.spark.sinks.sink import OutputId, Position, Sink, SinkWriter
from cojoin.spark.sinks.written_files import FileTarget, local_path
from cojoin.storage.documents import Form, read_document, write_document
from cojoin.storage.small_files import CheckpointFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.spark.sinks.batch_marker import BatchMarker
    from cojoin.storage.delta_files import WrittenFile

__all__ = ["ParquetSink", "ParquetWriter"]

_BATCH = "batch_id"
_BATCH_FOLDER = re.compile(rf"{_BATCH}=(\d+)")
# Spark and pyarrow read nothing that begins with an underscore.
_UNFINISHED, _OWNER = "_unfinished/", "_cojoin.json"
_FORM = Form("the name of the query whose batches these are", 1, "name a new folder", {"query_id": str})


@dataclass(frozen=True)
class ParquetSink(Sink):
    """A folder of parquet files, with a folder for each batch.

    Attributes:
        path: The folder.
    """

    path: str

    def open(self, session: SparkSession, output: OutputId) -> ParquetWriter:
        """Return what writes an output of one query into the folder."""
        return ParquetWriter(session, self, output)

    def directory(self) -> str:
        """Return the folder."""
        return self.path

    def describe(self) -> str:
        """Return where it writes."""
        return f"parquet {self.path}"

    def place(self) -> dict[str, Any]:
        """Return the folder."""
        return {"parquet": self.path}

    def check_columns(self, schema: pa.Schema, role: str) -> None:
        """Refuse a column that readers would not see: the folders' names give the batch as one of that name."""
        for name in schema.names:
            if name.lower() == _BATCH:
                msg = (
                    f"{role}: it has a column {name!r}, and cojoin.sinks.parquet({self.path!r}) writes a folder "
                    f"{_BATCH}=N for each batch, which readers take for a column of that name: theirs would hide "
                    f"yours; call the column something else, or write to cojoin.sinks.delta(...)"
                )
                raise ConfigurationError(msg)


class ParquetWriter(SinkWriter):
    """Writes one output of a query into a folder of parquet files."""

    def __init__(self, session: SparkSession, sink: ParquetSink, output: OutputId) -> None:
        self._session, self._sink, self._output = session, sink, output
        self._left_over: set[int] = set()
        self._is_ours = False

    def check(self, position: Position) -> None:
        """Refuse a folder that has batches of another query, or of this one that the checkpoint knows nothing of."""
        files = CheckpointFiles(self._session, self._sink.path)
        batches = {int(found[1]) for name in files.names("") if (found := _BATCH_FOLDER.fullmatch(name))}
        where = f"checkpoint {position.checkpoint}: output {self._output.name!r}, parquet folder {self._sink.path}"
        known = str(position.written.get("parquet", "")).rstrip("/")
        is_known = known == self._sink.path.rstrip("/") and position.last_batch is not None
        owner = self._owner(files)
        # Release 0.5.0 did not name the query: then the checkpoint must know the folder.
        if batches and (not is_known if owner is None else owner != self._output.query_id):
            msg = (
                f"{where}: it has folders of batches, such as {_BATCH}={min(batches)}, that this query did not write, "
                f"and would replace; name a new folder"
            )
            raise CheckpointError(msg)
        if batches and max(batches) > position.next_batch:
            msg = (
                f"{where}: it has the query's batches up to {max(batches)}, and the checkpoint goes on with batch "
                f"{position.next_batch}: the checkpoint is older than its output, as one that was put back from a "
                f"backup. Going on would write rows twice; delete the folders from {_BATCH}={position.next_batch} on "
                f"and start again, or put back the newest copy of the checkpoint"
            )
            raise CheckpointError(msg)
        self._left_over = {each for each in batches if each >= position.next_batch}
        self._is_ours = owner == self._output.query_id

    def write(self, frame: DataFrame, marker: BatchMarker) -> dict[str, Any]:
        """Write the batch's folder, in place of an earlier try's."""
        self._claim()
        frame.write.mode("overwrite").parquet(self._folder(marker.batch_id))
        return self._sink.place()

    def target(self, schema: pa.Schema, batch_id: int) -> FileTarget | None:
        """Return a folder beside the batches' own that readers pass over, where any worker may write one."""
        target = FileTarget.at(self._session, self._folder(batch_id, _UNFINISHED), schema)
        if target is not None:
            # What an earlier try left there counts for nothing.
            shutil.rmtree(target.folder, ignore_errors=True)
        return target

    def commit(self, schema: pa.Schema, files: Sequence[WrittenFile], marker: BatchMarker) -> dict[str, Any]:
        """Put the files in the batch's folder, in place of an earlier try's."""
        del schema
        self._claim()
        written = Path(str(local_path(self._session, self._folder(marker.batch_id, _UNFINISHED))))
        folder = Path(str(local_path(self._session, self._folder(marker.batch_id))))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for each in files:
            (written / each.name).rename(folder / each.name)
        shutil.rmtree(written)
        return self._sink.place()

    def write_nothing(self, marker: BatchMarker) -> None:
        """Remove the folder of the same batch, where an earlier try of it had rows."""
        if marker.batch_id in self._left_over:
            CheckpointFiles(self._session, self._sink.path).delete_directory(f"{_BATCH}={marker.batch_id}")

    def _claim(self) -> None:
        """Name the query in the folder, before the first batch is written there."""
        if self._is_ours:
            return
        files = CheckpointFiles(self._session, self._sink.path)
        if self._owner(files) is None:
            write_document(files, _OWNER, _FORM, {"query_id": self._output.query_id})
        if self._owner(files) != self._output.query_id:
            msg = f"parquet folder {self._sink.path}: another query has begun to write there; name a new folder"
            raise CheckpointError(msg)
        self._is_ours = True

    def _owner(self, files: CheckpointFiles) -> str | None:
        """Return the id of the query that writes the folder; None where none is named."""
        return read_document(files, _OWNER, _FORM, lambda content: str(content["query_id"]))

    def _folder(self, batch_id: int, within: str = "") -> str:
        return f"{self._sink.path.rstrip('/')}/{within}{_BATCH}={batch_id}"
