"""The arguments of ``Joined.start``, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cojoin.checkpoints.checkpoint import Snapshot
from cojoin.checkpoints.snapshot_row import SnapshotCadence
from cojoin.engine.functions import OutputTag
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.values.arguments import check_flag
from cojoin.errors import ConfigurationError, did_you_mean
from cojoin.spark.query.triggers import Trigger
from cojoin.spark.savepoints.restore import RestoreOptions
from cojoin.spark.sinks.sinks import as_sink, delta
from cojoin.storage.locations import as_location

if TYPE_CHECKING:
    from collections.abc import Callable

    from cojoin.engine.batch_report import BatchReport
    from cojoin.engine.plan import Plan
    from cojoin.engine.values.arguments import Duration
    from cojoin.spark.sinks.sink import Sink
    from cojoin.storage.store import Store


@dataclass(frozen=True)
class QueryOptions:
    """The arguments of ``Joined.start``; a value that is not allowed raises a ConfigurationError."""

    output: Any
    checkpoint: Any
    trigger: Trigger
    rejected: Any = None
    side_outputs: Mapping[OutputTag, Any] = field(default_factory=dict)
    name: str | None = None
    checkpoint_interval: Duration | int | None = None
    retained_checkpoints: int = 1
    restore_from: Snapshot | None = None
    restore: RestoreOptions = field(default_factory=RestoreOptions)
    on_progress: Callable[[BatchReport], Any] | None = None
    evolve: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.trigger, Trigger):
            msg = (
                f"trigger: expected Trigger.available_now() or Trigger.processing_time('10 seconds'), "
                f"got {self.trigger!r}"
            )
            raise ConfigurationError(msg)
        place = as_location(self.checkpoint, "checkpoint", expected="the path of a directory")
        object.__setattr__(self, "checkpoint", place)
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            msg = f"name: expected a text or None, got {self.name!r}"
            raise ConfigurationError(msg)
        if self.on_progress is not None and not callable(self.on_progress):
            msg = f"on_progress: expected a function of a batch's report, or None, got {self.on_progress!r}"
            raise ConfigurationError(msg)
        check_flag("evolve", self.evolve)
        SnapshotCadence.of(self.checkpoint_interval)
        retained = self.retained_checkpoints
        if isinstance(retained, bool) or not isinstance(retained, int) or retained < 1:
            msg = f"retained_checkpoints: expected a whole number of 1 or more, got {retained!r}"
            raise ConfigurationError(msg)
        if self.restore_from is not None and not isinstance(self.restore_from, Snapshot):
            msg = f"restore_from: expected a cojoin.Snapshot('/path/of/one', at=batch), got {self.restore_from!r}"
            raise ConfigurationError(msg)

    def sinks(self, plan: Plan, files: Store) -> dict[str, Sink]:
        """Return the sink of each of the plan's outputs, by name, checked."""
        rejected = delta(files.path("rejected")) if self.rejected is None else as_sink(self.rejected, "rejected")
        sinks = {OUTPUT: as_sink(self.output, "output"), REJECTED: rejected, **self._side_sinks(plan, files)}
        for name, sink in sinks.items():
            role = name if name in (OUTPUT, REJECTED) else f"side output {name!r}"
            sink.check_columns(plan.outputs[name][1], role)
            sink.check_order(plan.outputs[name][1], plan.output_order if name == OUTPUT else None, role)
        return sinks

    def _side_sinks(self, plan: Plan, files: Store) -> dict[str, Sink]:
        known, declared = [tag.tag_id for tag in plan.side_outputs], self.side_outputs
        if not isinstance(declared, Mapping):
            msg = f"side_outputs: expected a dict from OutputTag to sink, got {declared!r}"
            raise ConfigurationError(msg)
        for tag in declared:
            if not isinstance(tag, OutputTag):
                msg = f"side_outputs: expected a dict from OutputTag to sink, got the key {tag!r}"
                raise ConfigurationError(msg)
            if tag not in plan.side_outputs:
                spelled = tag.tag_id
                near = did_you_mean(spelled, known) if known else "; declare it with process(..., side_outputs=[tag])"
                msg = f"side_outputs: the query has no side output {spelled!r} with these columns{near}"
                raise ConfigurationError(msg)
        return {
            tag.tag_id: as_sink(declared[tag], f"side output {tag.tag_id!r}")
            if tag in declared
            else delta(files.path(f"side_outputs/{tag.tag_id}"))
            for tag in plan.side_outputs
        }
