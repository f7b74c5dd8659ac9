"""The outputs of a query at its start: each is opened, and must be as the checkpoint left it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cojoin.checkpoints.drain_promise import keep_former_runs_from_draining
from cojoin.checkpoints.state_commits import StateCommits
from cojoin.delta.table_batches import FencedOffError
from cojoin.errors import CheckpointError
from cojoin.session.offset_log import OFFSETS, committed_batches
from cojoin.spark.query.batch_protocol import OpenOutput
from cojoin.spark.sinks.sink import OutputId, Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from cojoin.checkpoints.claimed import ClaimedCheckpoint
    from cojoin.engine.plan import Plan
    from cojoin.spark.sinks.sink import Sink

__all__ = ["open_outputs"]


def open_outputs(
    spark: SparkSession, sinks: Mapping[str, Sink], checkpoint: ClaimedCheckpoint, plan: Plan
) -> dict[str, OpenOutput]:
    """Open the outputs, and check that each is as the checkpoint left it.

    Args:
        spark: The session.
        sinks: The sink of each output, by the output's name.
        checkpoint: The query's checkpoint.
        plan: What the workers execute.

    Raises:
        CheckpointError: The manifests are ahead of Spark's commit log, or an output is not as the checkpoint left it.
    """
    files, last, lease = checkpoint.files, checkpoint.last, checkpoint.lease
    next_batch = max(committed_batches(files), default=-1) + 1
    if last is not None and last.batch_id > next_batch:
        msg = (
            f"checkpoint {files.root}: its newest manifest is of batch {last.batch_id}, and Spark's own log ends with "
            f"batch {next_batch - 1}: parts of it are of other moments, as in a copy that was made while the query "
            f"ran; put back a copy of one moment, or restore one of its snapshots into a new checkpoint with "
            f"restore_from=cojoin.Checkpoint({files.root!r})"
        )
        raise CheckpointError(msg)
    # From here on, no earlier run can write a snapshot, or end the inputs.
    keep_former_runs_from_draining(files, lease.epoch)
    if lease.takes_over:
        StateCommits(spark, files).fence_runs(lease.epoch)
    # The first batch of a restored query is planned before it has ever run.
    is_planned = files.exists(f"{OFFSETS}/{next_batch}") and (next_batch > 0 or checkpoint.begins_at is None)
    opened = {}
    try:
        for name, sink in sinks.items():
            _, schema = plan.outputs[name]
            writer = sink.open(spark, OutputId(checkpoint.query_id, name, lease.epoch, lease.takes_over, schema))
            written = {} if last is None else last.outputs.get(name, {})
            writer.check(Position(files.root, next_batch, written, is_planned))
            opened[name] = OpenOutput(sink, writer)
    except FencedOffError as error:
        # A checkpoint that was put back from a backup knows older epochs than its outputs. Others fail here.
        lease.raise_above(error.epoch)
        return open_outputs(spark, sinks, checkpoint, plan)
    lease.note_fenced()
    return opened
