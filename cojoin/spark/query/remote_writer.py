"""The driver's part of each micro-batch of a query in a session of Spark Connect.

Spark Connect's server calls the function of ``foreachBatch`` in a Python process of its own, beside the server. That
process executes and writes the batches there (``batch_writer``), in a session that it opens at the same server. The
process that started the query keeps the lease alive, and this one checks it: if the former ends, the query goes on
until another start takes the lease over.

Each phase of a query has a new process, which continues from the newest manifest. What the calls need to know of their
batch reaches the workers in a setting of the session, since only a driver within the JVM can set Spark's local
properties.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from cojoin.checkpoints.claimed import ClaimedCheckpoint
from cojoin.checkpoints.lease import Lease
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.progress_table import ProgressTable
from cojoin.errors import ConfigurationError
from cojoin.session.pickling import pickling_error
from cojoin.session.shared_places import begun
from cojoin.session.stores import open_store
from cojoin.spark.batch.batch_facts import BatchFacts
from cojoin.spark.query.batch_writer import BatchWriter
from cojoin.spark.query.history import HistoryHolds
from cojoin.spark.query.opened_outputs import open_outputs
from cojoin.spark.query.output_places import shared_places
from cojoin.spark.query.table_loads import TableLoads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from cojoin.checkpoints.lease_record import LeaseRecord
    from cojoin.engine.plan import Plan
    from cojoin.session.shared_places import SharedPlaces
    from cojoin.spark.query.history import InputStreams
    from cojoin.spark.query.table_loads import StaticSide
    from cojoin.spark.sinks.sink import Sink

    _Opened: TypeAlias = tuple[BatchWriter, HistoryHolds, TableLoads | None, SharedPlaces | None]

__all__ = ["RemoteWriter", "setting_of"]


def setting_of(query_id: str) -> str:
    """Return the setting by which a query's calls learn of their micro-batch."""
    # Spark passes on to the workers what begins with its own name.
    return f"spark.cojoin.batch.{query_id}"


@dataclass
class RemoteWriter:
    """Executes and writes micro-batches; it is sent to the server, and opens the checkpoint there.

    Attributes:
        plan: What the workers execute.
        sinks: The sink of each output, by the output's name.
        checkpoint: The directory of the checkpoint.
        query_id: The id of the query.
        lease: The holder of the lease.
        streams: What the inputs read.
        retained: How many snapshots are kept, not counting savepoints.
        begins_at: For a query that was restored: the source offsets after its first batch, one JSON line each.
        described: The epoch of the run that last wrote ``query.json``.
        side: The right input, if it is a table beside a stream.
    """

    plan: Plan
    sinks: Mapping[str, Sink]
    checkpoint: str
    query_id: str
    lease: LeaseRecord
    streams: InputStreams
    retained: int
    begins_at: tuple[str, ...] | None = None
    described: int = 0
    side: StaticSide | None = None
    _opened: _Opened | None = field(default=None, init=False, repr=False)

    def check(self) -> None:
        """Check that all of it can be sent to the server.

        Raises:
            ConfigurationError: A sink's function, or the plan, can't be pickled.
        """
        for name, sink in self.sinks.items():
            reason = pickling_error(sink)
            if reason is not None:
                msg = (
                    f"{name}: {sink.describe()} can't be sent to the Spark Connect server, which calls it: {reason}; "
                    f"make what can't be pickled inside of the function"
                )
                raise ConfigurationError(msg)

    def __call__(self, emitted: DataFrame, batch_id: int) -> None:
        """Execute and write a micro-batch; Spark commits it afterwards."""
        session: Any = emitted.sparkSession
        if self._opened is None:
            self._opened = self._open(session)
        writer, holds, tables, places = self._opened
        limits, loads = holds.after(session, batch_id)
        told = None if places is None else places.told()
        facts = BatchFacts(batch_id, limits, writer.state_before(batch_id), loads, places=told)
        session.conf.set(setting_of(self.query_id), facts.to_json())
        # The server may end this process after any batch.
        with contextlib.nullcontext() if places is None else begun(places, session, to_the_end=True):
            writer.and_then(tables)(emitted, batch_id)
        writer.finish()

    def _open(self, session: Any) -> _Opened:
        files = open_store(session, self.checkpoint)
        manifests = Manifests(files)
        progress = ProgressTable(session, files, manifests)
        progress.recover()
        lease = Lease(files, self.lease, takes_over=True)
        lease.check()
        last = manifests.last()
        opened = ClaimedCheckpoint(
            files, self.query_id, lease, manifests, progress, last, self.begins_at, self.described
        )
        outputs = open_outputs(session, self.sinks, opened, self.plan)
        writer = BatchWriter(self.plan, opened, outputs, _ignore, self.retained, row_limit_only=False)
        tables = None if self.side is None else TableLoads(self.side, files, lease.check)
        places = shared_places(session, files, self.sinks)
        return writer, HistoryHolds(self.streams, files, self.begins_at), tables, places


def _ignore(manifest: object) -> None:
    """Do nothing: the process that started the query reads the manifests."""
