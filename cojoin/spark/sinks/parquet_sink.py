"""A folder of parquet files as a sink: each batch has its own folder, which is replaced if the batch is run again.

The output is exactly once for readers that read the whole folder between two batches. A file that readers ignore names
the query that writes the folder: batches are counted from 0 in each checkpoint, so a second query would replace the
first one's. A checkpoint that is older than the folder is refused, because its batches would be added to later ones. A
folder without that file and without batches, to which the query has written, was deleted, and is refused. Readers may
move batches away, so of those only the last one's absence is noticed, next to earlier ones; it is a warning.

Writes are not fenced: a driver that was replaced but still runs may replace the folder of the batch that it had begun.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojoin.errors import CheckpointError, ConfigurationError, QueryFailedError
from cojoin.session.sessions import adapter_of, open_store
from cojoin.spark.batch.written_files import FileTarget, check_seen
from cojoin.spark.sinks.sink import OutputId, Position, Sink, SinkWriter
from cojoin.storage.documents import Form, read_document, write_document

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.spark.sinks.batch_marker import BatchMarker
    from cojoin.storage.parquet_files import WrittenFile
    from cojoin.storage.store import Store

_BATCH = "batch_id"
_BATCH_FOLDER = re.compile(rf"{_BATCH}=(\d+)")
# Spark and pyarrow ignore files and folders whose names begin with an underscore.
_UNFINISHED, _OWNER = "_unfinished/", "_cojoin.json"
_LEFT_OUT = "Going on would leave rows out; put the folder back as it was, or restore the query into a new checkpoint"
_FORM = Form("the name of the query whose batches these are", 1, "name a new folder", {"query_id": str})


@dataclass(frozen=True)
class ParquetSink(Sink):
    """A folder of parquet files, with one folder per batch; ``cojoin.sinks.parquet`` makes one.

    Attributes:
        path: The folder.
    """

    path: str

    def open(self, session: SparkSession, output: OutputId) -> ParquetWriter:
        """Return the writer of a query's output to the folder."""
        return ParquetWriter(session, self, output)

    def directory(self) -> str:
        """Return the folder."""
        return self.path

    def describe(self) -> str:
        """Return the folder, for messages."""
        return f"parquet {self.path}"

    def place(self) -> dict[str, Any]:
        """Return the manifest's entry for the folder."""
        return {"parquet": self.path}

    def check_columns(self, schema: pa.Schema, role: str) -> None:
        """Check that no column is called ``batch_id``, since readers derive a column of that name from the folders.

        Raises:
            ConfigurationError: There is such a column.
        """
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
        self._files = open_store(session, sink.path, "parquet folder")
        self._left_over: set[int] = set()
        self._is_ours = False
        self._notes: list[str] = []

    def check(self, position: Position) -> None:
        """Raise a CheckpointError unless the folder has only batches of this query, and none after the next batch.

        Neither may it be gone where the query has written to it.
        """
        batches, owner = self._batches(), owner_of(self._files)
        where = f"checkpoint {position.checkpoint}: output {self._output.name!r}, parquet folder {self._sink.path}"
        # That it is the same folder was checked (``check_unchanged``), however it is spelled.
        last = position.last_batch if "parquet" in position.written else None
        # Release 0.5.0 did not name the query in the folder; then the checkpoint must name the folder.
        if batches and (last is None if owner is None else owner != self._output.query_id):
            msg = (
                f"{where}: it has folders of batches, such as {_BATCH}={min(batches)}, that this query did not write, "
                f"and would replace; name a new folder"
            )
            raise CheckpointError(msg)
        folders = f"delete the folders from {_BATCH}={position.next_batch} on and start again"
        cure = f"{folders}, or put back the newest copy of the checkpoint"
        position.check_not_behind(where, max(batches, default=-1), cure)
        self._left_over = {each for each in batches if each >= position.next_batch}
        self._is_ours = owner == self._output.query_id
        if last is None:
            return
        recorded = f"{where}: the checkpoint records that batch {last} was written to it, and"
        if not batches and owner is None:
            msg = (
                f"{recorded} it has none of the query's batches, nor the file {_OWNER}: it was deleted or moved. "
                f"{_LEFT_OUT}, with restore_from=cojoin.Snapshot({position.checkpoint!r}) and a new output; or, if it "
                f"was emptied on purpose, make an empty folder {_BATCH}={last} in it"
            )
            raise CheckpointError(msg)
        # A batch that is run again is about to be written.
        if last < position.next_batch and last not in batches and min(batches, default=last) < last:
            lacks = f"it has {_BATCH}={max(batches)} and not {_BATCH}={last}"
            self._notes = [f"{recorded} {lacks}: where it was put back from a backup, rows are missing from it"]

    def notes(self) -> list[str]:
        """Return the warning about a folder that lacks the query's last batch."""
        return self._notes

    def write(self, frame: DataFrame, marker: BatchMarker) -> dict[str, Any]:
        """Write the batch's folder, replacing that of an earlier attempt; return the manifest's entry."""
        self._check_exists(marker.batch_id)
        self._claim()
        frame.write.mode("overwrite").parquet(self._folder(marker.batch_id))
        return self._sink.place()

    def target(self, schema: pa.Schema, batch_id: int) -> FileTarget | None:
        """Return a folder for the workers' files that readers ignore; None if the workers can't write to it."""
        target = FileTarget.at(self._session, self._folder(batch_id, _UNFINISHED), schema)
        if target is not None:
            # An earlier attempt may have left files in it.
            shutil.rmtree(target.folder, ignore_errors=True)
        return target

    def commit(self, schema: pa.Schema, files: Sequence[WrittenFile], marker: BatchMarker) -> dict[str, Any]:
        """Move the files to the batch's folder, replacing that of an earlier attempt; return the manifest's entry."""
        del schema
        written = Path(str(adapter_of(self._session).local_path(self._folder(marker.batch_id, _UNFINISHED))))
        try:
            self._check_exists(marker.batch_id)
        except QueryFailedError:
            # The folder may be put back only where it does not exist.
            shutil.rmtree(written.parent, ignore_errors=True)
            with contextlib.suppress(OSError):
                written.parent.parent.rmdir()
            raise
        check_seen(str(written), files)
        self._claim()
        folder = Path(str(adapter_of(self._session).local_path(self._folder(marker.batch_id))))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in files:
            (written / file.name).rename(folder / file.name)
        shutil.rmtree(written)
        return self._sink.place()

    def write_nothing(self, marker: BatchMarker, check: Callable[[], None] = lambda: None) -> None:
        """Remove the batch's folder if an earlier attempt had rows; ``check`` raises if another run has taken over."""
        if marker.batch_id in self._left_over:
            check()
            self._files.delete_directory(f"{_BATCH}={marker.batch_id}")

    def _check_exists(self, batch_id: int) -> None:
        """Raise an error if the folder is gone, with what was written to it."""
        if not self._is_ours:
            return
        owner = owner_of(self._files)
        if owner is None and not self._batches():
            msg = (
                f"parquet folder {self._sink.path}: it has none of the query's batches, nor the file {_OWNER}: it was "
                f"deleted or moved while the query ran. Batch {batch_id} was not written. {_LEFT_OUT} with a new output"
            )
            raise QueryFailedError(msg)
        self._is_ours = owner == self._output.query_id

    def _claim(self) -> None:
        """Write the query's id to a folder that has none; raise a CheckpointError if it has another's."""
        if self._is_ours:
            return
        if owner_of(self._files) is None:
            write_document(self._files, _OWNER, _FORM, {"query_id": self._output.query_id})
        if owner_of(self._files) != self._output.query_id:
            msg = f"parquet folder {self._sink.path}: another query has begun to write to it; name a new folder"
            raise CheckpointError(msg)
        self._is_ours = True

    def _batches(self) -> set[int]:
        """Return the batches that the folder has."""
        return {int(batch[1]) for name in self._files.names("") if (batch := _BATCH_FOLDER.fullmatch(name))}

    def _folder(self, batch_id: int, within: str = "") -> str:
        return f"{self._sink.path.rstrip('/')}/{within}{_BATCH}={batch_id}"


def owner_of(files: Store) -> str | None:
    """Return the id of the query that writes to a folder; None if the folder names none."""
    return read_document(files, _OWNER, _FORM, lambda content: str(content["query_id"]))
