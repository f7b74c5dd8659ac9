"""The one call: a key group's packed rows in, packed outputs and new state bytes out.

The same operator runs in two surroundings: ``StreamingCall`` inside ``applyInPandasWithState``, where the operator is
restored from the state bytes and a micro-batch is one call a key group; ``StaticCall`` inside ``applyInArrow``, where
it runs once, to the end of time. Emits ``(kind, payload)``: an Arrow message of output or rejected rows, or the
call's statistics as JSON. Nothing else leaves a call.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa

from cojoin.messages import binary_column, read_message, write_messages
from cojoin.operator import Batch, Operator, concat
from cojoin.spark.key_groups import group_labels
from cojoin.spark.packing import CONTROL_TAG, read_control

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cojoin.inputs import InputSpec
    from cojoin.watermarks import Control

__all__ = [
    "EMITTED_DDL",
    "OUTPUT",
    "REJECTED",
    "STATE_DDL",
    "STATISTICS",
    "Operation",
    "Plan",
    "StaticCall",
    "StreamingCall",
]

EMITTED_DDL = "kind tinyint, payload binary"
STATE_DDL = "state binary"
OUTPUT, REJECTED, STATISTICS = 0, 1, 2

_KINDS = {"output": OUTPUT, "rejected": REJECTED}
_EMITTED_SCHEMA = pa.schema([("kind", pa.int8()), ("payload", pa.binary())])


class Operation(Protocol):
    """What is done with the two inputs: the configuration of a join, or of a function's run."""

    def output_schema(self, left: InputSpec, right: InputSpec) -> pa.Schema:
        """Give the columns of the output."""

    def create_operator(self, left: InputSpec, right: InputSpec) -> Operator:
        """Make the operator of one key group."""

    def describe(self) -> dict[str, Any]:
        """Give what makes two operations the same query, as JSON values."""


@dataclass(frozen=True)
class Plan:
    """All that a worker must know: it travels with the call.

    Attributes:
        operation: What is done.
        left: The left input.
        right: The right input.
        key_groups: How many key groups there are.
    """

    operation: Operation
    left: InputSpec
    right: InputSpec
    key_groups: int

    @property
    def inputs(self) -> tuple[InputSpec, InputSpec]:
        """The two inputs, left first."""
        return self.left, self.right

    @property
    def output(self) -> pa.Schema:
        """The columns of the output."""
        return self.operation.output_schema(self.left, self.right)


class StreamingCall:
    """Runs one key group's part of a micro-batch inside ``applyInPandasWithState``."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._numbers = {label: number for number, label in enumerate(group_labels(plan.key_groups))}

    def __call__(self, key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        """Restore the operator, run the batch, store the operator."""
        started = time.perf_counter()
        operator = self._plan.operation.create_operator(*self._plan.inputs)
        try:
            if state.exists:
                operator.restore(state.get[0])
            packed = (
                (tag, payload) for frame in frames for tag, payload in zip(frame["tag"], frame["payload"], strict=True)
            )
            batch = replace(_unpack_batch(self._plan, packed), processing_time=state.getCurrentProcessingTimeMs())
            emitted: Counter[str] = Counter()
            for emission in operator.process(batch):
                emitted[emission.kind] += emission.table.num_rows
                for payload in write_messages(emission.table):
                    yield _frame(_KINDS[emission.kind], payload)
            snapshot = operator.snapshot()
        finally:
            operator.close()
        state.update((snapshot,))
        statistics = {
            "key_group": self._numbers[int(key[0])],
            "state_bytes": len(snapshot),
            "call_ms": round(1000 * (time.perf_counter() - started), 1),
            "emitted": dict(emitted),
            **operator.report(),
        }
        yield _frame(STATISTICS, json.dumps(statistics).encode())


class StaticCall:
    """Runs one key group's rows once, to the end of time, inside ``applyInArrow``."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __call__(self, packed: pa.Table) -> pa.Table:
        """Run the operator over a whole group."""
        operator = self._plan.operation.create_operator(*self._plan.inputs)
        tags, payloads = packed.column("tag").to_pylist(), packed.column("payload")
        try:
            batch = _unpack_batch(self._plan, zip(tags, payloads, strict=True))
            to_the_end = Batch(batch.rows, batch.controls, end_of_input=True)
            emitted = [
                (_KINDS[emission.kind], payload)
                for emission in operator.process(to_the_end)
                for payload in write_messages(emission.table)
            ]
        finally:
            operator.close()
        kinds, outputs = [kind for kind, _ in emitted], [payload for _, payload in emitted]
        return pa.Table.from_arrays([pa.array(kinds, pa.int8()), binary_column(outputs)], schema=_EMITTED_SCHEMA)


def _unpack_batch(plan: Plan, packed: Iterable[tuple[int, Any]]) -> Batch:
    pieces: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])
    controls: list[Control] = []
    ended = False
    for tag, payload in packed:
        buffer = payload.as_buffer() if isinstance(payload, pa.Scalar) else pa.py_buffer(payload)
        if tag == CONTROL_TAG:
            control = read_control(buffer.to_pybytes())
            ended |= control is None
            controls += [control] if control else []
        else:
            pieces[tag - 1].append(read_message(buffer, plan.inputs[tag - 1].schema))
    left, right = (
        concat([spec.schema.empty_table(), *(pa.Table.from_batches([piece]) for piece in side)])
        for spec, side in zip(plan.inputs, pieces, strict=True)
    )
    return Batch((left, right), controls, end_of_input=ended)


def _frame(kind: int, payload: Any) -> pd.DataFrame:
    content = payload.to_pybytes() if isinstance(payload, pa.Buffer) else payload
    frame: pd.DataFrame = pd.DataFrame({"kind": np.array([kind], dtype=np.int8), "payload": [content]})
    return frame
