"""The batch that an earlier run has planned, run with the settings of then before the query continues as it is now.

The settings of time and of rejection may differ from run to run (``plan_settings``), and columns may have been added.
A batch that is planned and not committed may be in the outputs already, so it is run with the settings with which it
was planned, and without the new columns: they are null in its rows, and its outputs do not have them. All later batches
are of the query as it is now. It costs a start of Spark's stream, where something has changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.checkpoints.identity import check_description, note_last_batch, note_sources
from cojoin.checkpoints.query_changes import added_columns
from cojoin.engine.operator import OUTPUT
from cojoin.engine.plan import clock_needs, plan_settings, with_settings
from cojoin.engine.values.types import parse_schema
from cojoin.errors import CheckpointError
from cojoin.session.spark_checkpoint import OFFSETS, newest_id, planned_batch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.checkpoints.identity import SourceDescription
    from cojoin.checkpoints.lease import Lease
    from cojoin.engine.plan import Plan
    from cojoin.spark.bound_input import BoundInput
    from cojoin.spark.query.triggers import Trigger
    from cojoin.storage.store import Store


@dataclass(frozen=True)
class PlannedBatch:
    """A batch that is planned, with the plan and inputs that it had then."""

    batch_id: int
    plan: Plan
    inputs: tuple[BoundInput, BoundInput]


@dataclass(frozen=True)
class Transition:
    """The steps from the checkpoint that the run before has left to the query as it is now.

    Attributes:
        plan: What the workers execute.
        planned: The batch that is planned, if settings or columns have changed since.
        last_planned: The newest batch that is planned; None where there is none.
        added: The columns of each input that were added, left first.
        description: The query's description.
        is_noted: Whether the checkpoint has the query and its settings as they are now.
        follows_clock: Whether the run before is known to have followed the clock, so that the checkpoint has the batch
            with which it began.
    """

    plan: Plan
    planned: PlannedBatch | None
    last_planned: int | None
    added: Sequence[Sequence[str]]
    description: Mapping[str, Any]
    is_noted: bool
    follows_clock: bool

    @classmethod
    def of(
        cls,
        files: Store,
        plan: Plan,
        inputs: Sequence[BoundInput],
        stored: Mapping[str, Any],
        description: Mapping[str, Any],
        trigger: Trigger,
        *,
        is_restoring: bool,
    ) -> Transition:
        """Return the transition of a query whose start holds the lease.

        ``stored`` is the content of ``query.json`` as the run before has left it, ``description`` describes the query
        now. ``is_restoring`` means that it is about to begin with another query's state. A CheckpointError means that
        the query can't continue with this checkpoint.
        """
        settings = stored.get("settings") or {}
        had_clock = bool(settings.get("needs_clock"))
        if (stored["query"], settings) == (description, plan_settings(plan)):
            return cls(plan, None, None, ((), ()), description, is_noted=True, follows_clock=had_clock)
        last_planned = newest_id(files, OFFSETS)
        # It is decided with the first batch.
        has_timeouts = plan.needs_clock if last_planned is None else bool(stored["query"].get("needs_clock"))
        plan = replace(plan, state_has_timeouts=has_timeouts)
        _check_clock(files.named, plan, trigger)
        planned = None if is_restoring else _changed_since_planned(files, plan, inputs, stored, description)
        added = added_columns(stored["query"], description)
        return cls(plan, planned, last_planned, added, description, is_noted=False, follows_clock=had_clock)

    def begin(self, files: Store, lease: Lease) -> None:
        """Record that the planned batch is the first one whose state has the columns that were added."""
        if self.planned is not None and any(self.added):
            lease.check()
            note_last_batch(files, lease.epoch, self.planned.batch_id - 1)

    def note(self, files: Store, sources: Sequence[SourceDescription], lease: Lease) -> int | None:
        """Record the query as it is now, for the batches planned from now on; return the epoch of the description.

        It returns None where the checkpoint has all of it already. A later run's description stays (QueryFailedError).
        """
        if self.is_noted:
            return None
        lease.check()
        # The planned batch has run as the query is now, so its state has the new columns.
        last = self.last_planned if self.planned is None else self.planned.batch_id - 1
        note_sources(
            files, sources, lease.epoch, query=self.description, settings=plan_settings(self.plan), last_batch=last
        )
        return int(check_description(files, 0).get("epoch", 0))


def _changed_since_planned(
    files: Store, plan: Plan, inputs: Sequence[BoundInput], stored: Mapping[str, Any], description: Mapping[str, Any]
) -> PlannedBatch | None:
    """Return the batch that is planned and not committed, if settings or columns have changed since.

    None also means that this is not known: the descriptions of earlier releases have no settings. A CheckpointError
    means that the batch can't be run as it was planned.
    """
    batch_id = planned_batch(files)
    added = added_columns(stored["query"], description)
    settings = stored.get("settings") or plan_settings(plan)
    is_same = not any(added) and all(
        stored["query"].get(name) == description.get(name) for name in ("output", "side_outputs")
    )
    if batch_id is None or (is_same and settings == plan_settings(plan)):
        return None
    try:
        former = with_settings(plan, settings)
    except CheckpointError as error:
        msg = f"{files.named}: batch {batch_id} is planned and not finished: {error}"
        raise CheckpointError(msg) from None
    specs = former.inputs
    outputs = {OUTPUT: stored["query"]["output"], **stored["query"].get("side_outputs", {})}
    columns = {
        name: tuple(parse_schema(ddl, label=name).names)
        for name, ddl in outputs.items()
        if parse_schema(ddl, label=name).names != former.outputs[name][1].names
    }
    loaded = pa.schema([field for field in specs[1].schema if field.name not in added[1]]) if added[1] else None
    former = replace(former, emitted_columns=columns, loaded_schema=loaded)
    left, right = (bound.planned_as(spec, names) for bound, spec, names in zip(inputs, specs, added, strict=True))
    return PlannedBatch(batch_id, former, (left, right))


def _check_clock(checkpoint: str, plan: Plan, trigger: Trigger) -> None:
    """Raise a CheckpointError if a query without end needs batches without rows, for which its state lacks timeouts."""
    needs = clock_needs(plan)
    if not needs or plan.has_timeouts or (trigger.is_bounded and trigger.then is None):
        return
    msg = (
        f"{checkpoint}: {'; '.join(needs)}: a query that runs on needs micro-batches while no rows come for this, "
        f"and a checkpoint has them only where the query that began it needed them. Run it with "
        f"Trigger.available_now() without then= (`cojoin run` without --then-live and --every), whose runs end with a "
        f"look at the clock, or take the state into a new checkpoint with restore_from= (--restore-from)"
    )
    raise CheckpointError(msg)
