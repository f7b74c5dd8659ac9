"""The one call by itself, with PySpark's own state object: what enters and leaves it."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import BinaryType, StructField, StructType

import cojoin as cj
from cojoin.engine.input_spec import REJECTED_SCHEMA, InputSpec
from cojoin.engine.joins.asof import AsofJoin
from cojoin.engine.key_groups import group_labels
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.plan import Plan
from cojoin.engine.values.codec import read_message, write_messages
from cojoin.spark.batch.call import STATISTICS, StaticCall, StreamingCall

TIME = pa.timestamp("us", "UTC")
NOW = 1_768_000_000_000
TRADES = pa.schema([("trade_id", pa.int64()), ("customer_id", pa.int64()), ("event_time", TIME)])
CUSTOMERS = pa.schema([("customer_id", pa.int64()), ("event_time", TIME), ("tier", pa.string())])
PLAN = Plan(
    AsofJoin(),
    InputSpec("trades", TRADES, ("customer_id",), "event_time"),
    InputSpec("customers", CUSTOMERS, ("customer_id",), "event_time"),
    key_groups=4,
)


OUTPUT, REJECTED = (PLAN.outputs[name][0] for name in ("output", "rejected"))


class StoredState(GroupState):
    """PySpark's own ``GroupState``, which needs no JVM, with what it stored, oldest first."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        super().__init__(
            optionalValue=Row(None),
            batchProcessingTimeMs=NOW,
            eventTimeWatermarkMs=0,
            timeoutConf=GroupStateTimeout.NoTimeout,
            hasTimedOut=False,
            watermarkPresent=False,
            defined=False,
            updated=False,
            removed=False,
            timeoutTimestamp=-1,
            keyAsUnsafe=b"",
            valueSchema=StructType([StructField("state", BinaryType())]),
        )

    def update(self, newValue: tuple[bytes]) -> None:  # noqa: N803 - PySpark's name
        super().update(newValue)
        self.stored.append(newValue[0])


def message(tag: int, rows: list[tuple[Any, ...]]) -> tuple[int, bytes]:
    schema = PLAN.inputs[tag - 1].schema
    columns = [
        pa.array(column, pa.int64()).cast(field.type) if field.type == TIME else pa.array(column, field.type)
        for column, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    (payload,) = write_messages(pa.table(columns, schema=schema))
    return tag, payload.to_pybytes()


def control(tag: int, millis: int, rows: int) -> tuple[int, bytes]:
    text = {"input": tag, "partitions": {"[]": millis}, "rows": rows, "processing_time": 0}
    return 0, json.dumps(text).encode()


def call(state: StoredState, *frames: list[tuple[int, bytes]], plan: Plan = PLAN) -> list[tuple[int, Any]]:
    packed = [
        pd.DataFrame({"key_group": 3, "tag": [t for t, _ in rows], "payload": [p for _, p in rows]}) for rows in frames
    ]
    emitted = pd.concat(list(StreamingCall(plan)((group_labels(4)[3],), iter(packed), state)))
    return [
        (int(kind), decode(int(kind), payload)) for kind, payload in zip(emitted.kind, emitted.payload, strict=True)
    ]


def decode(kind: int, payload: bytes) -> Any:
    if kind == STATISTICS:
        return json.loads(payload)
    schema = PLAN.output if kind == OUTPUT else REJECTED_SCHEMA
    return [tuple(row.values()) for row in read_message(pa.py_buffer(payload), schema).to_pylist()]


def test_a_call_keeps_what_waits_and_gives_what_is_due_and_its_statistics() -> None:
    state = StoredState()
    first = call(
        state,
        [message(1, [(1, 7, 10_000), (2, 7, 20_000)]), control(1, 20, 2)],
        [control(2, 15, 1), message(2, [(7, 5_000, "gold")])],
    )
    assert [kind for kind, _ in first] == [OUTPUT, STATISTICS]
    assert [(row[0], row[4]) for row in first[0][1]] == [(1, "gold")]
    statistics = first[1][1]
    assert statistics["key_group"] == 3
    assert statistics["watermark"] == 14
    assert statistics["processing_time"] == NOW
    assert statistics["emitted"] == {"output": 1}
    assert statistics["state_bytes"] == len(state.stored[0])
    assert [each["buffered"] for each in statistics["inputs"]] == [1, 0]
    second = call(state, [control(1, 30, 1), control(2, 30, 0), message(1, [(3, 7, 14_000)])])
    assert {kind for kind, _ in second} == {OUTPUT, REJECTED, STATISTICS}
    assert [row[0] for kind, rows in second if kind == OUTPUT for row in rows] == [2]
    ((name, reason, watermark, _, text),) = next(rows for kind, rows in second if kind == REJECTED)
    assert (name, reason, watermark, json.loads(text)["trade_id"]) == ("trades", "late", 14, 3)
    assert second[-1][1]["inputs"][0] == {
        "rows_in": 3,
        "done": 2,
        "late_applied": 0,
        "rejected": {"late": 1},
        "buffered": 0,
    }
    assert len(state.stored) == 2, "each call stores its state once"


def test_the_end_of_input_gives_all_that_waits() -> None:
    state = StoredState()
    call(state, [message(1, [(1, 7, 10_000)]), control(1, 10, 1)])
    emitted = call(state, [(0, b'{"end_of_input": true}')])
    assert [(row[0], row[4]) for row in emitted[0][1]] == [(1, None)]
    assert {each["status"] for each in emitted[-1][1]["input_watermarks"]} == {"finished"}


def test_a_call_that_fails_stores_no_state_and_closes_its_function() -> None:
    closed = []

    class Failing(cj.KeyedCoProcessFunction):
        def __deepcopy__(self, memo: Any) -> Failing:
            return self

        def process_element1(self, value: Any, ctx: cj.Context) -> None:
            msg = "no"
            raise ValueError(msg)

        def close(self) -> None:
            closed.append(True)

    process = KeyedCoProcess(Failing(), pa.schema([("a", pa.int64())]), "arrival")
    state = StoredState()
    with pytest.raises(cj.FunctionError, match="input 'trades', key 7"):
        call(state, [message(1, [(1, 7, 10_000)])], plan=Plan(process, PLAN.left, PLAN.right, 4))
    assert not state.stored
    assert closed == [True]


def test_a_static_call_runs_to_the_end_of_time() -> None:
    rows = [message(1, [(1, 7, 10_000), (2, 7, 4_000)]), message(2, [(7, 5_000, "gold")]), control(1, 10, 2)]
    packed = pa.table({"key_group": [3] * 3, "tag": [tag for tag, _ in rows], "payload": [text for _, text in rows]})
    emitted = StaticCall(PLAN)(packed).to_pylist()
    output, counts = emitted
    assert (output["kind"], counts["kind"]) == (OUTPUT, STATISTICS)
    assert sorted((row[0], row[4]) for row in decode(OUTPUT, output["payload"])) == [(1, "gold"), (2, None)]
    assert [each["rows_in"] for each in json.loads(counts["payload"])["inputs"]] == [2, 0]
