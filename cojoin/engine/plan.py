"""The plan of a run: an operation, its two inputs, and how they are split and timed; picklable, and without Spark."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from cojoin.engine.inputs import REJECTED_SCHEMA, STAMPED_SCHEMA
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.side_outputs import OutputTag
from cojoin.engine.state.segments import SegmentOptions
from cojoin.engine.time.operator_watermark import TimePolicy
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.operator import Operator

__all__ = ["Operation", "Plan"]


class Operation(Protocol):
    """What is done with the two inputs: the configuration of a join or of a function."""

    def output_schema(self, left: InputSpec, right: InputSpec) -> pa.Schema:
        """Return the columns of the output."""

    def create_operator(self, left: InputSpec, right: InputSpec, time: TimePolicy | None = None) -> Operator:
        """Return a new operator for one key group."""

    def describe(self) -> dict[str, Any]:
        """Return a description as JSON values; operations with equal descriptions may use the same checkpoint."""


@dataclass(frozen=True)
class Plan:
    """The operation and its inputs, as they are sent to the workers with the call.

    Attributes:
        operation: The join or function.
        left: The left input.
        right: The right input.
        key_groups: The number of key groups.
        time: How the operator's watermark follows its inputs' watermarks.
        segments: The flush and compaction settings, for a query with a checkpoint of cojoin's; None disables segments.
        stamps_rejected: Whether rejected rows have their micro-batch and its processing time.
        state_has_timeouts: Whether Spark's state has timeouts, as the checkpoint's first batch decided; None where this
            plan decides.
        emitted_columns: The columns of some outputs, by name, to which these are limited: a batch that was planned
            before others were added has these.
        loaded_schema: The columns of the right input's rows in a load that was written before others were added; None
            where they are the input's.
    """

    operation: Operation
    left: InputSpec
    right: InputSpec
    key_groups: int
    time: TimePolicy = field(default_factory=TimePolicy)
    segments: SegmentOptions | None = field(default_factory=SegmentOptions)
    stamps_rejected: bool = False
    state_has_timeouts: bool | None = None
    emitted_columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    loaded_schema: pa.Schema | None = None

    @property
    def inputs(self) -> tuple[InputSpec, InputSpec]:
        """The two inputs, left first."""
        return self.left, self.right

    def with_inputs(self, **changes: Any) -> Plan:
        """Return the plan with some attributes of both inputs changed."""
        left, right = (replace(spec, **changes) for spec in self.inputs)
        return replace(self, left=left, right=right)

    @property
    def output(self) -> pa.Schema:
        """The columns of the main output."""
        return self.operation.output_schema(self.left, self.right)

    @property
    def side_outputs(self) -> tuple[OutputTag, ...]:
        """The tags of a function's side outputs."""
        return getattr(self.operation, "side_outputs", ())

    @property
    def outputs(self) -> dict[str, tuple[int, pa.Schema]]:
        """Each output's name, with the number of its kind, from 1 on, and its columns."""
        beside = {tag.tag_id: tag.schema for tag in self.side_outputs}
        rejected = STAMPED_SCHEMA if self.stamps_rejected else REJECTED_SCHEMA
        schemas = {OUTPUT: self.output, REJECTED: rejected, **beside}
        for name, columns in self.emitted_columns.items():
            schemas[name] = pa.schema([schemas[name].field(column) for column in columns])
        return {name: (kind, schema) for kind, (name, schema) in enumerate(schemas.items(), start=1)}

    @property
    def follows_clock(self) -> bool:
        """Whether the watermark or idleness of an input depends on processing time (its strategy ``needs_clock``).

        The property of the same name of a watermark generator does not include idleness.
        """
        return any(spec.watermark.needs_clock for spec in self.inputs)

    @property
    def needs_clock(self) -> bool:
        """Whether the query needs no-data batches: it ``follows_clock``, or a function sets processing-time timers."""
        return self.follows_clock or bool(getattr(self.operation, "sets_processing_time_timers", False))

    @property
    def has_timeouts(self) -> bool:
        """Whether Spark's state has timeouts, by which key groups are called in batches without rows."""
        return self.needs_clock if self.state_has_timeouts is None else self.state_has_timeouts

    def create_operator(self) -> Operator:
        """Return a new operator for one key group."""
        return self.operation.create_operator(self.left, self.right, self.time)

    def output_name(self, output: Any) -> str:
        """Return the name of an output that a user asks for.

        Args:
            output: ``"main"``, ``"rejected"``, or the ``OutputTag`` of a side output.

        Raises:
            ConfigurationError: There is no such output.
        """
        name = output.tag_id if isinstance(output, OutputTag) else OUTPUT if output == "main" else str(output)
        if name not in self.outputs or (isinstance(output, OutputTag) and output not in self.side_outputs):
            tags = "".join(f", or the tag {tag.tag_id!r}" for tag in self.side_outputs)
            msg = f"output: expected 'main' or 'rejected'{tags}, got {output!r}"
            raise ConfigurationError(msg)
        return name
