"""A checkpoint while its query runs: what the parts of the query share, and the preparations of its first batch.

Before a run plans its first batch, it writes down that batch's number, because a batch that is executed again belongs
to the run that planned it. It also deletes the temporary files, a day old, of killed processes: a file is written under
a temporary name and renamed, so a process that ends in between leaves one, which does no harm.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.errors import CheckpointError
from cojoin.session.spark_checkpoint import COMMITS, OFFSETS, SOURCES, newest_id
from cojoin.storage.documents import Form, damaged, write_fenced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.checkpoints.lease import Lease
    from cojoin.checkpoints.manifest import Manifest, Manifests
    from cojoin.checkpoints.progress_table import ProgressTable
    from cojoin.engine.batch_report import BatchReport
    from cojoin.storage.store import Store

_DIRECTORIES = (
    "",
    "beats",
    "control",
    "manifest",
    "progress",
    "segments",
    "snapshots",
    "snapshots_removed",
    "spark",
    COMMITS,
    OFFSETS,
)
"""The directories in which cojoin itself writes files."""
_RUNS_FILE, _KEPT_RUNS = "runs.json", 5
_RUNS = Form(
    "the batches with which the last runs began",
    1,
    "put it back from a backup of the checkpoint, or delete it where the last run of the query has ended properly",
    {"starts": list},
    unsealed=0,
)


def delete_abandoned_files(files: Store) -> None:
    """Delete old temporary files of a checkpoint; where that fails, the next start tries again."""
    with contextlib.suppress(CheckpointError):
        sources = [f"{SOURCES}/{name}" for name in files.names(SOURCES)]
        for directory in (*_DIRECTORIES, *sources):
            files.delete_abandoned(directory)


def resumed_batches(files: Store, epoch: int = 0, counted: int = 0) -> frozenset[int]:
    """Write down that a run starts, and return the first batch of each of the last five runs, this one included.

    A batch that an earlier run planned belongs to that run: executed again by this run, it is not its first batch.

    Args:
        files: The checkpoint.
        epoch: The lease epoch of this run.
        counted: The epoch of the run that wrote the last manifest; 0 where that run may not have written this file.

    Raises:
        CheckpointError: The file about the earlier runs is damaged, or a former version of itself.
    """
    newest = newest_id(files, OFFSETS)
    begins_with = 0 if newest is None else newest + 1

    def epoch_of(content: Mapping[str, Any]) -> int:
        return int(content.get("epoch", counted))

    def over(content: Mapping[str, Any]) -> dict[str, Any]:
        if (written := epoch_of(content)) < counted:
            why = f"the run of epoch {counted} has written it, and this is a former version, of epoch {written}"
            raise damaged(files, _RUNS_FILE, _RUNS, why)
        # Without repetitions: however often a run fails before it plans a batch, earlier runs' starts are kept.
        starts[:] = [*dict.fromkeys([*map(int, content["starts"]), begins_with])][-_KEPT_RUNS:]
        return {"starts": [*starts], "epoch": epoch}

    starts: list[int] = []
    first = over({"starts": [], "epoch": counted})
    write_fenced(files, _RUNS_FILE, _RUNS, first, "has begun", epoch_of=epoch_of, over=over)
    return frozenset(starts)


@dataclass(frozen=True)
class ClaimedCheckpoint:
    """A checkpoint that a query has claimed and leased.

    ``last`` is the manifest of the last batch when this run began; None before the first batch. ``begins_at`` has the
    source offsets after a restored query's first batch, one JSON line each. ``described`` is the epoch of the run that
    last wrote ``query.json``.
    """

    files: Store
    query_id: str
    lease: Lease
    manifests: Manifests
    progress: ProgressTable
    last: Manifest | None
    begins_at: Sequence[str] | None = None
    described: int = 0

    @property
    def last_report(self) -> BatchReport | None:
        """The report of the last batch when this run began; None before the first batch."""
        return None if self.last is None else self.last.report
