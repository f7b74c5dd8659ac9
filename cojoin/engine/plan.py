"""The plan of a run: an operation, its two inputs, key groups and watermark policy; picklable, and without Spark.

A few of its settings may change from run to run: watermark strategies with their bounds and idleness, ``max_ahead``,
``late``, ``null_key``, and how the operator's watermark is computed from the inputs'. A checkpoint stores them as JSON
values with its query. So a batch that was planned with them is repeated with them, even if the next run has others.

Descriptions of inputs, operations and sources are a few words for people, without secrets, made without reading a row.
"""

from __future__ import annotations

import warnings
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from cojoin.engine.display import Display, display_of, format_span
from cojoin.engine.functions import OutputTag
from cojoin.engine.input_spec import REJECTED_SCHEMA, STAMPED_SCHEMA
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.state.segments import SegmentOptions
from cojoin.engine.time.operator_watermark import TimePolicy
from cojoin.engine.time.watermark_strategies import (
    BoundedOutOfOrderness,
    ClockLag,
    NoWatermarks,
    Punctuated,
    StrategyIsCodeError,
    as_written,
    describe_strategy,
    described_strategy,
)
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import CheckpointError, ConfigurationError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.operator import Operator
    from cojoin.engine.time.watermark_strategies import WatermarkStrategy


class Operation(Protocol):
    """The operation on the two inputs: the configuration of a join or of a function."""

    def output_schema(self, left: InputSpec, right: InputSpec) -> pa.Schema:
        """Return the columns of the output."""

    def create_operator(self, left: InputSpec, right: InputSpec, time: TimePolicy | None = None) -> Operator:
        """Return a new operator for one key group."""

    def describe(self) -> dict[str, Any]:
        """Return a description as JSON values; operations with equal descriptions may use the same checkpoint."""


@dataclass(frozen=True)
class Plan:
    """The operation and its inputs; they are serialized and sent to the workers.

    Attributes:
        operation: The join or function.
        left: The left input.
        right: The right input.
        key_groups: The number of key groups.
        time: How the operator's watermark is computed from its inputs' watermarks.
        segments: The flush and compaction settings, for a query with a checkpoint of cojoin's; None disables segments.
        stamps_rejected: Whether rejected rows have their micro-batch and its processing time.
        state_has_timeouts: Whether Spark's state has timeouts, as the checkpoint's first batch decided; None where this
            plan decides.
        emitted_columns: For some outputs, by name, the columns that they had when the batch was planned; columns added
            later are not emitted.
        loaded_schema: The columns of the right input's rows if they were loaded before further columns were added; None
            if they are the input's columns.
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
    def output_order(self) -> tuple[str, ...] | None:
        """The columns of the main output by which its rows are emitted in order, over all batches; None without any."""
        order = getattr(self.operation, "output_order", None)
        return None if order is None else order(self.left, self.right)

    @property
    def side_outputs(self) -> tuple[OutputTag, ...]:
        """The tags of a function's side outputs."""
        return getattr(self.operation, "side_outputs", ())

    @property
    def outputs(self) -> dict[str, tuple[int, pa.Schema]]:
        """Each output's name, with the number of its kind, from 1 on, and its columns."""
        schemas = {
            OUTPUT: self.output,
            REJECTED: STAMPED_SCHEMA if self.stamps_rejected else REJECTED_SCHEMA,
            **{tag.tag_id: tag.schema for tag in self.side_outputs},
        }
        for name, columns in self.emitted_columns.items():
            schemas[name] = pa.schema([schemas[name].field(column) for column in columns])
        return {name: (kind, schema) for kind, (name, schema) in enumerate(schemas.items(), start=1)}

    @property
    def follows_clock(self) -> bool:
        """Whether the watermark or idleness of an input depends on processing time (its strategy ``needs_clock``)."""
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
        """Return the name of an output that a user asks for: ``"output"``, ``"rejected"`` or an ``OutputTag``."""
        if output == "main":
            msg = 'the main output is "output" now, as in start(output=); "main" goes with release 0.7.0'
            warnings.warn(msg, DeprecationWarning, stacklevel=3)
            output = OUTPUT
        name = output.tag_id if isinstance(output, OutputTag) else str(output)
        if name not in self.outputs or (isinstance(output, OutputTag) and output not in self.side_outputs):
            tags = "".join(f", or the tag {tag.tag_id!r}" for tag in self.side_outputs)
            msg = f"output: expected 'output' or 'rejected'{tags}, got {output!r}"
            raise ConfigurationError(msg)
        return name


def plan_settings(plan: Plan) -> dict[str, Any]:
    """Return the settings of a plan that may change from run to run."""
    inputs = [
        {
            "watermark": describe_strategy(spec.watermark),
            "max_ahead_ms": spec.max_ahead_ms,
            "late": spec.late,
            "null_key": spec.null_key,
        }
        for spec in plan.inputs
    ]
    # Later runs read from needs_clock whether this run depended on processing time.
    return {"inputs": inputs, "time": asdict(plan.time), "needs_clock": plan.needs_clock}


def with_settings(plan: Plan, settings: Mapping[str, Any]) -> Plan:
    """Return a plan with the ``plan_settings`` of an earlier one; the plan must still have a user's own generator."""
    left, right = (_with(spec, values) for spec, values in zip(plan.inputs, settings["inputs"], strict=True))
    return replace(plan, left=left, right=right, time=TimePolicy(**settings["time"]))


def _with(spec: InputSpec, values: Mapping[str, Any]) -> InputSpec:
    try:
        watermark = described_strategy(values["watermark"], spec.watermark)
    except StrategyIsCodeError as error:
        msg = (
            f"input {spec.name!r}: a batch was planned with the watermark strategy {error}, whose code a checkpoint "
            f"does not keep, but the query now has {as_written(spec.watermark)}; start the query once with the former "
            f"strategy and Trigger.available_now(), and then with the new strategy"
        )
        raise CheckpointError(msg) from None
    return replace(
        spec, watermark=watermark, max_ahead_ms=values["max_ahead_ms"], late=values["late"], null_key=values["null_key"]
    )


def clock_needs(plan: Plan) -> list[str]:
    """Return the settings of a plan that need batches without rows, as a user wrote them."""
    needs = [
        f"input {spec.name!r}: watermark={as_written(spec.watermark)}"
        for spec in plan.inputs
        if spec.watermark.needs_clock
    ]
    if plan.needs_clock and not needs:
        needs = ["the function's processing-time timers (if it sets none: processing_time_timers=False in process())"]
    return needs


_MANY_COLUMNS = 12


def describe_operation(operation: Any) -> str:
    """Return the name of a join or a function, with its settings that are not the default.

    >>> from cojoin.engine.joins import AsofJoin
    >>> describe_operation(AsofJoin("inner", tolerance="1 hour"))
    "asof_join(how='inner', tolerance='1 hour')"
    """
    name = str(operation.describe()["operator"])
    if isinstance(operation, KeyedCoProcess):
        more = "" if operation.order == "event_time" else f", order={operation.order!r}"
        return f"{name}({type(operation.function).__name__}(){more})"
    changed = [each for each in fields(operation) if getattr(operation, each.name) != _default(each)]
    return f"{name}({', '.join(f'{each.name}={getattr(operation, each.name)!r}' for each in changed)})"


def describe_watermark(strategy: WatermarkStrategy) -> str:
    """Return the description of a watermark strategy.

    >>> from cojoin.engine.time.watermark_strategies import WatermarkStrategy
    >>> describe_watermark(WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_idleness("1 minute"))
    'up to 5 s out of order, idle after 1 min 0 s'
    """
    generator = strategy.generator
    if isinstance(generator, BoundedOutOfOrderness):
        bound = generator.out_of_orderness_ms
        text = f"up to {format_span(bound)} out of order" if bound else "in the order of event time"
    elif isinstance(generator, ClockLag):
        text = f"{format_span(generator.lag_ms)} behind the clock"
    elif isinstance(generator, Punctuated):
        text = f"column {generator.column!r}"
    else:
        text = "none" if isinstance(generator, NoWatermarks) else type(generator).__name__
    idle = strategy.idleness
    return text if idle is None else f"{text}, idle after {format_span(idle.timeout_ms)}"


def describe_inputs(inputs: Iterable[InputSpec], sources: Iterable[str]) -> list[tuple[str, ...]]:
    """Return a table that describes both inputs and their sources, the header first."""
    rows = [
        (
            spec.name,
            source,
            ", ".join(spec.key) or "none",
            _times(spec),
            describe_watermark(spec.watermark),
            describe_columns(spec.schema),
        )
        for spec, source in zip(inputs, sources, strict=True)
    ]
    return [("input", "rows", "key", "event time", "watermark", "columns"), *rows]


def _times(spec: InputSpec) -> str:
    if spec.changes is not None and spec.changes.valid_from is not None:
        return f"{spec.changes.valid_from} to {spec.changes.valid_to}"
    known = "" if spec.known is None else f", known {spec.known.spelled()}"
    return f"{spec.event_time or 'none'}{known}"


def describe_columns(schema: pa.Schema) -> str:
    """Return columns with their types as DDL; of more than 12 columns only the first 12."""
    return _shortened([f"{field.name} {_type(field)}" for field in schema])


def describe_source(source: Any) -> str:
    """Return the kind and size of an input's frame, or a source's own name.

    It runs no query. A Spark DataFrame is described by its columns. A frame whose size needs a query, such as a DuckDB
    relation, is described by its kind only.
    """
    kind = f"{type(source).__module__.partition('.')[0]} {type(source).__name__}"
    title = getattr(source, "title", None) if kind.startswith("cojoin ") else None
    if isinstance(title, str):
        return title
    if kind.startswith("pyspark "):
        return display_of(lambda: Display(_describe_dataframe(source)), "DataFrame of Spark's").head
    if kind in {"pandas DataFrame", "polars DataFrame", "pyarrow Table", "pyarrow RecordBatch"}:
        rows, columns = source.shape
        return f"{kind}, {rows:,} x {columns:,}"
    return kind


def _describe_dataframe(frame: Any) -> str:
    kind = "streaming" if frame.isStreaming else "static"
    return f"{kind} Spark DataFrame: {_shortened([f'{name} {dtype}' for name, dtype in frame.dtypes])}"


def _default(setting: Field[Any]) -> Any:
    return setting.default_factory() if setting.default_factory is not MISSING else setting.default


def _shortened(columns: Sequence[str]) -> str:
    more = f", and {len(columns) - _MANY_COLUMNS:,} more" if len(columns) > _MANY_COLUMNS else ""
    return ", ".join(columns[:_MANY_COLUMNS]) + more


def _type(field: pa.Field) -> str:
    try:
        return type_to_ddl(field.type)
    except SchemaError:
        return str(field.type)
