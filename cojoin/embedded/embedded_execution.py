"""Execution in this process: the operators of Spark's workers, over rows in memory, to the end of time.

It keeps all rows in memory. Nothing is late, since there is no watermark before the only batch, and ``max_ahead`` has
no effect, since nothing is ahead of the end of time. A key's output rows are in the order that Spark's static way gives
them. Joins of many rows are split into key groups, one for each core, which run at the same time.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cojoin.embedded.frames import read_frame, size_of
from cojoin.embedded.memory import check_memory
from cojoin.embedded.result import Result
from cojoin.engine.batch_report import BatchReport
from cojoin.engine.garbage_collection import without_garbage_collection
from cojoin.engine.input_columns import InputColumns, check_pair
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.observed import control_of
from cojoin.engine.operator import Batch
from cojoin.engine.time.durations import milliseconds
from cojoin.engine.user_frames import user_traceback
from cojoin.engine.values.choices import check_flag
from cojoin.engine.values.key_hashes import key_hashes
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from cojoin.embedded.cuts import Arrival, Batches, Clock
    from cojoin.embedded.step import Step
    from cojoin.engine.functions import KeyedCoProcessFunction
    from cojoin.engine.input import Input
    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.operator import Sides
    from cojoin.engine.plan import Plan
    from cojoin.engine.time.control_rows import Control
    from cojoin.engine.time.durations import Duration

__all__ = ["EmbeddedExecution", "run_key_group"]

_CURES = {
    "timestamp_ntz": "it has no time zone; say which is meant, such as with .dt.tz_localize('UTC') in pandas",
    "bigint": "turn epoch milliseconds into one: pandas.to_datetime(column, unit='ms', utc=True)",
    "string": "turn it into one: pandas.to_datetime(column, utc=True)",
}
"""What to do about an event-time column, by its type."""

_ROWS_FOR_TWO = 1_000_000
"""The number of rows from which it pays to split a join into key groups."""


@dataclass(frozen=True)
class EmbeddedExecution:
    """Executes plans over two inputs in memory.

    Attributes:
        inputs: The specifications of both inputs, left first.
        rows: Their rows, in Spark's types.
        max_ahead_ms: How far the rows of each input may be ahead of processing time, in milliseconds, in ``steps``;
            None is any distance.
    """

    inputs: tuple[InputSpec, InputSpec]
    rows: Sides
    max_ahead_ms: tuple[int | None, int | None] = (None, None)
    is_streaming: bool = False

    @classmethod
    def of(cls, left: Input, right: Input) -> EmbeddedExecution:
        """Return the execution of two declared inputs, whose rows are read and checked.

        Raises:
            ConfigurationError: The inputs do not fit together, or not into memory.
            SchemaError: A column does not exist or has the wrong type, or the types of the keys differ.
        """
        sizes = [size_of(left.source), size_of(right.source)]
        names = [left.name or "left", right.name or "right"]
        check_memory(0, sum(sizes), f"inputs {names[0]!r} and {names[1]!r}")
        tables = [read_frame(each.source, f"input {name!r}") for each, name in zip((left, right), names, strict=True)]
        first, second = (
            _spec(each, name, table) for each, name, table in zip((left, right), names, tables, strict=True)
        )
        check_pair(first, second, ".astype({type})")
        return cls((first, second), (tables[0], tables[1]), (_max_ahead(left), _max_ahead(right)))

    @property
    def sources(self) -> tuple[str, str]:
        """Where each input's rows are, in words."""
        left, right = self.rows
        return f"{left.num_rows:,} in memory", f"{right.num_rows:,} in memory"

    def output_type(self, declared: Any) -> Any:
        """Return an output type as it is; the engine reads DDL, Arrow schemas and Spark's types."""
        return declared

    def check_function(self, function: KeyedCoProcessFunction) -> None:
        """Accept any function, since it need not leave this process."""

    def run(self, plan: Plan) -> Result:
        """Run a plan over all rows, to the end of time.

        Raises:
            FunctionError: A function raised an error, or returned an invalid value.
        """
        parts = self.parts(plan)
        with ThreadPoolExecutor(len(parts)) as pool:
            running = [pool.submit(run_key_group, plan, *part, number) for number, part in enumerate(parts)]
            outcomes = [each.result() for each in running]
        tables = {
            name: pa.concat_tables([schema.empty_table(), *(each for emitted, _ in outcomes for each in emitted[name])])
            for name, (_, schema) in plan.outputs.items()
        }
        names = (self.inputs[0].name, self.inputs[1].name)
        return Result(plan, tables, BatchReport.merge(0, names, [statistics for _, statistics in outcomes]))

    def steps(
        self,
        plan: Plan,
        batches: Batches,
        *,
        arrival: Arrival,
        every: Duration | None,
        processing_time: Clock,
        drain: bool,
    ) -> Iterator[Step]:
        """Run a plan as a stream, step by step; the arguments are checked now, and ``Joined.steps`` documents them.

        Raises:
            ConfigurationError: An argument is invalid.
            SchemaError: A column by which rows arrive does not exist, has the wrong type, or has a null.
        """
        # The harness, on which steps are built, would take a third of the time of a first join.
        from cojoin.embedded.cuts import cut_batches, processing_times  # noqa: PLC0415
        from cojoin.embedded.stepper import Stepper, run_steps  # noqa: PLC0415

        check_flag("drain", drain)
        cuts = cut_batches(self.inputs, self.rows, batches, arrival, every)
        times = processing_times(cuts, processing_time)
        left, right = (
            replace(spec, max_ahead_ms=limit) for spec, limit in zip(plan.inputs, self.max_ahead_ms, strict=True)
        )
        return run_steps(Stepper(replace(plan, left=left, right=right)), cuts, times, drain=drain)

    def parts(self, plan: Plan, groups: int | None = None) -> list[tuple[Sides, list[Control]]]:
        """Return each key group's rows, with what is known of time.

        Args:
            plan: What is run.
            groups: The number of key groups; None chooses it by the plan and the number of rows.
        """
        (left, right), (first, second) = self.rows, self.inputs
        controls = [control_of(1, left, first), control_of(2, right, second)]
        groups = groups or self._key_groups(plan)
        return [(self.rows, controls)] if groups == 1 else self._split(groups, controls)

    def _key_groups(self, plan: Plan) -> int:
        # A function's calls hold Python's lock, so threads would not help it.
        if isinstance(plan.operation, KeyedCoProcess) or sum(each.num_rows for each in self.rows) < _ROWS_FOR_TWO:
            return 1
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def _split(self, groups: int, controls: Sequence[Control]) -> list[tuple[Sides, list[Control]]]:
        numbers = [_group_numbers(spec.keys(rows), groups) for spec, rows in zip(self.inputs, self.rows, strict=True)]
        parts = []
        for group in range(groups):
            left, right = (
                rows.filter(pa.array(number == group)) for rows, number in zip(self.rows, numbers, strict=True)
            )
            own = [replace(each, rows=part.num_rows) for each, part in zip(controls, (left, right), strict=True)]
            parts.append(((left, right), own))
        return parts


def run_key_group(
    plan: Plan, rows: Sides, controls: Sequence[Control], number: int
) -> tuple[dict[str, list[pa.Table]], dict[str, Any]]:
    """Run one key group's rows in one batch, to the end of time.

    Args:
        plan: What is run.
        rows: The rows of both inputs.
        controls: What is known of time.
        number: The key group's number.

    Returns:
        The pieces of each output by its name, and the statistics.
    """
    emitted: defaultdict[str, list[pa.Table]] = defaultdict(list)
    counts: Counter[str] = Counter()
    operator = plan.create_operator()
    try:
        with without_garbage_collection():
            for emission in operator.process(Batch(rows, controls, end_of_input=True)):
                emitted[emission.kind].append(emission.table)
                counts[emission.kind] += emission.table.num_rows
        statistics = {"key_group": number, "state_bytes": 0, "emitted": dict(counts), **operator.report()}
    except FunctionError as error:
        raise error.with_traceback(user_traceback(error)) from None
    finally:
        operator.close()
    return emitted, statistics


def _group_numbers(keys: pa.Table, groups: int) -> NDArray[np.int64]:
    """Return the key group of each row; rows with a null in their key, which are rejected, belong to the first."""
    filled = keys
    valid = np.ones(keys.num_rows, dtype=bool)
    for column in keys.columns:
        if column.null_count:
            valid &= column.is_valid().to_numpy()
    if not valid.all():
        filled = keys.filter(pa.array(valid))
    numbers = np.zeros(keys.num_rows, dtype=np.int64)
    numbers[valid] = (key_hashes(filled) % np.uint64(groups)).astype(np.int64)
    return numbers


def _max_ahead(declared: Input) -> int | None:
    return None if declared.max_ahead is None else milliseconds(declared.max_ahead, "max_ahead")


def _spec(declared: Input, name: str, table: pa.Table) -> InputSpec:
    what = f"input {name!r}"
    types = {field.name: type_to_ddl(field.type) for field in table.schema}
    columns = InputColumns(what, {field.name: field for field in table.schema}, types, _CURES)
    event_time = declared.event_time
    spec = columns.spec(declared, name, event_time, None)
    spec.watermark.generator.check(spec.schema, what)
    return spec
