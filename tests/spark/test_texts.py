"""Texts that are not UTF-8, as ``cast(X'ff41' as string)`` makes them: the same bytes on every way through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import cojoin as cj
from cojoin.spark.sinks.batch_marker import BatchMarker
from cojoin.spark.sinks.sink import OutputId
from tests.spark.data import table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

KEY = "\udcffA"
"""The key ff41, as Python has it."""

TRADES = """
    (1L, cast(X'ff41' as string), timestamp'2024-01-01 00:00:10Z', cast(X'fe' as string), array(string(X'c3'))),
    (2L, 'ok',                    timestamp'2024-01-01 00:00:20Z', 'plain',               array('a')),
    (3L, cast(X'ff41' as string), timestamp'2024-01-01 00:00:30Z', cast(X'8180' as string), array(string(X'ff'))),
    (4L, null,                    timestamp'2024-01-01 00:00:30Z', cast(X'80' as string), array(string(X'ff')))
    as t(id, k, ts, v, tags)"""

CUSTOMERS = """
    (cast(X'ff41' as string), timestamp'2024-01-01 00:00:05Z', cast(X'fffe' as string)),
    (cast(X'ff41' as string), timestamp'2024-01-01 00:00:05Z', cast(X'ee8080' as string)),
    ('ok',                    timestamp'2024-01-01 00:00:05Z', 'w')
    as t(k, ts, w)"""

JOINED = [
    (1, b"\xffA", b"\xfe", b"\xc3", b"\xff\xfe"),
    (2, b"ok", b"plain", b"a", b"w"),
    (3, b"\xffA", b"\x81\x80", b"\xff", b"\xff\xfe"),
]
"""Of two versions of one moment the later by its bytes is in force."""

OUTPUT = "id bigint, k string, v string, tags array<string>, w string"


class Enrich(cj.KeyedCoProcessFunction):
    def open(self, ctx: cj.RuntimeContext) -> None:
        self.customer = ctx.get_state(cj.ValueStateDescriptor("customer", "w string, all array<string>"))
        self.seen = ctx.get_map_state(cj.MapStateDescriptor("seen", "string", "bigint"))

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        self.seen.put(trade.v, trade.id)
        yield trade.id, ctx.get_current_key(), trade.v, trade.tags, self.customer.value().w

    def process_element2(self, customer: Any, ctx: cj.Context) -> None:
        self.customer.update((customer.w, [customer.w]))


def hexed(frame: DataFrame) -> list[tuple[Any, ...]]:
    columns = ("binary(k) k", "binary(v) v", "binary(tags[0]) t", "binary(w) w")
    return sorted(tuple(map(plain, row)) for row in frame.selectExpr("id", *columns).collect())


def plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def connect(trades: Any, customers: Any) -> cj.ConnectedInputs:
    left = cj.Input(trades, key="k", event_time="ts", name="trades", partition="v")
    return cj.connect(left, cj.Input(customers, key="k", event_time="ts", name="customers"), key_groups=2)


def test_static_inputs_keep_every_byte(spark: SparkSession) -> None:
    pair = connect(*(spark.sql(f"select * from values {rows}") for rows in (TRADES, CUSTOMERS)))
    assert hexed(pair.asof_join().to_dataframe()) == JOINED
    assert hexed(pair.process(Enrich(), OUTPUT).to_dataframe()) == JOINED
    (rejected,) = pair.asof_join().to_dataframe("rejected").collect()
    assert rejected.row.startswith('{"id": 4, "k": null, "ts": "2024-01-01T00:00:30+00:00", "v": "\\udc80", ')


def test_a_text_that_would_name_a_folder_is_refused_and_not_changed(spark: SparkSession, tmp_path: Path) -> None:
    def write(shown: DataFrame, batch_id: int, **options: Any) -> None:
        writer = cj.sinks.delta(tmp_path, **options).open(spark, OutputId("query", "output"))
        writer.write(shown, BatchMarker(batch_id, 1, 0, "offsets"))

    frame = spark.sql(f"select id, v from values {TRADES}")
    with pytest.raises(PySparkException, match="INVALID_UTF8_STRING"):
        write(frame, 0, partition_by="V")
    write(frame.where("v = 'plain'"), 0, partition_by="V")
    assert table(spark, tmp_path).count() == 1
    # The table says by what it is partitioned, whatever the sink does.
    with pytest.raises(PySparkException, match="INVALID_UTF8_STRING"):
        write(frame, 1)


@pytest.mark.slow  # Two runs; the static join goes through the same packing and the same engine.
def test_streams_states_and_files_keep_every_byte(spark: SparkSession, tmp_path: Path) -> None:
    for name, rows in (("trades", TRADES), ("customers", CUSTOMERS)):
        spark.sql(f"select * from values {rows}").coalesce(1).write.format("delta").save(str(tmp_path / name))
    sources = [cj.sources.delta(tmp_path / name) for name in ("trades", "customers")]
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"

    def run(*, drain: bool) -> None:
        function = connect(*sources).process(Enrich(), OUTPUT)
        trigger = cj.Trigger.available_now(drain=drain)
        function.start(output=cj.sinks.delta(out), checkpoint=checkpoint, trigger=trigger).await_termination()

    run(drain=False)
    assert spark.read.parquet(str(checkpoint / "rejected")).count() == 1
    state = cj.read_state(spark, checkpoint)
    held = state.key(KEY)
    assert [trade.id for trade in held.buffered["trades"]] == [1, 3]
    str(held).encode()
    assert r"k=\xffA" in str(held)
    cj.savepoint(spark, checkpoint)
    for missing in "abcd":  # of both key groups
        with pytest.warns(UserWarning, match="has nothing of key"):
            cj.debug(checkpoint, connect(*sources).process(Enrich(), OUTPUT), key=missing)
    found = cj.explain(spark, checkpoint, input="trades", row={"v": "\udcfe"})
    assert [each.kind for each in found.findings] == ["buffered"]
    rejected = cj.explain(spark, checkpoint, input="trades", row={"v": "\udc80"})
    assert [each.kind for each in rejected.findings] == ["rejected"]
    str(rejected).encode()
    run(drain=True)
    assert hexed(table(spark, out)) == JOINED
    assert [table(spark, out).where(each).count() for each in ("binary(v) = X'fe'", "v = 'plain'")] == [1, 1]
    emitted = cj.explain(spark, checkpoint, input="trades", row={"v": "\udcfe"})
    assert [(each.kind, each.output) for each in emitted.findings] == [("emitted", "output")]
