"""What a source takes and refuses, and what becomes of records that are no rows."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

import cojoin as cj
from tests.kafka.replayed import (
    LEFT,
    MINUTE,
    RIGHT,
    START,
    Written,
    delete_before,
    inputs,
    join,
    make,
    pairs,
    rejected,
    row,
    run,
    start,
    version,
    write,
)
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cojoin.kafka import Record
    from tests.servers.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

DRAIN = cj.Trigger.available_now(drain=True)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"topics": None}, ("source kafka", "expected topics")),
        ({"topics": [1]}, ("topics: expected a topic's name", "[1]")),
        ({"topic_pattern": "("}, ("topic_pattern: expected a regular expression",)),
        ({"partitions": {"a": []}}, ("partitions: expected topics with their partitions' numbers",)),
        ({"bootstrap_servers": " "}, ("bootstrap_servers: expected such as 'localhost:9092'",)),
        ({"schema": None}, ("source kafka trades: expected schema=",)),
        ({"undecodable": "failed"}, ("undecodable: expected 'reject' or 'fail', got 'failed'", "did you mean 'fail'")),
        ({"tombstones": "kept"}, ("tombstones: expected 'reject' or 'keep'", "did you mean 'keep'")),
        ({"data_loss": True}, ("data_loss: expected 'fail' or 'skip', got True",)),
        ({"max_records": 0}, ("max_records: expected a whole number of 1 or more, got 0",)),
        ({"max_records": True}, ("max_records: ", "True")),
        ({"max_drift": "ten"}, ("max_drift", "'ten'")),
        ({"patience": -1}, ("patience", "-1")),
        ({"decode": 7}, ("decode: expected a function of a Record, got 7",)),
        ({"decode": (each for each in "a").__next__}, ("decode can't be sent to the workers",)),
        ({"columns": {"c": "key"}}, ("column 'c': expected cojoin.kafka.key(), header() or timestamp(), got 'key'",)),
        ({"from_": "2026-01-06", "to": "2026-01-05"}, ("source kafka trades: from_ is after to",)),
        ({"from_": "yesterday"}, ("from_: expected", "'yesterday'")),
    ],
)
def test_values_that_cant_be_right(arguments: dict[str, Any], parts: tuple[str, ...]) -> None:
    with refused(*parts):
        cj.kafka.source(**({"bootstrap_servers": "nobody:1", "topics": "trades", "schema": LEFT} | arguments))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"schema": "id long, offset long"}, "offset"),
        ({"schema": "id lng"}, "lng"),
        ({"schema": LEFT, "columns": {"id": cj.kafka.key()}}, "id"),
        ({"schema": LEFT, "columns": {"partition": cj.kafka.timestamp()}}, "partition"),
    ],
)
def test_columns_that_dont_go_together(arguments: dict[str, Any], part: str) -> None:
    with refused(part, kind=cj.SchemaError):
        cj.kafka.source("nobody:1", "trades", **arguments)
    with refused("the record's key", "struct<a: long>", kind=cj.SchemaError):
        cj.kafka.key("struct<a: long>")


def test_both_inputs_have_one_drift(spark: SparkSession, broker: Broker) -> None:
    del spark
    servers = make(broker, "source-drift-l", "source-drift-r")
    left, right = inputs(servers, "source-drift-l", "source-drift-r")
    longer = cj.kafka.source(servers, "source-drift-r", schema=RIGHT, max_drift="1 hour")
    with refused("max_drift: source kafka source-drift-l has 600000 ms, source kafka source-drift-r has 3600000 ms"):
        cj.connect(left, replace(right, source=longer))


def test_what_is_not_there_is_told_before_the_start(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    servers = make(broker, "source-there-l", "source-there-r")
    there = inputs(servers, "source-there-l", "source-there-r")
    for topics, parts in (
        ({"topics": "source-there-ll"}, ("topic 'source-there-ll' does not exist", "did you mean 'source-there-l'")),
        ({"topic_pattern": "source-nothing-.*"}, ("no topic matches 'source-nothing-.*'",)),
        ({"partitions": {"source-there-l": [0, 3]}}, ("topic 'source-there-l' has no partition 3; it has [0]",)),
    ):
        with refused("source kafka", *parts):
            cj.Input(cj.kafka.source(servers, schema=LEFT, **topics), key="k", event_time="at").source.open()
        with refused("source kafka", *parts):
            left = cj.Input(cj.kafka.source(servers, schema=LEFT, **topics), key="k", event_time="at", name="left")
            cj.connect(left, there[1])
    for bounds, parts in (
        ({"from_": 7}, ("from_ is beyond the end", "partition 0: got offset 7, the end is 0")),
        ({"to": 3}, ("to is beyond the end", "got offset 3")),
        ({"from_": {"elsewhere": 0}}, ("from_: topic 'elsewhere' is not among those that are read",)),
    ):
        with refused("source kafka", *parts):
            start(join(servers, "source-there-l", "source-there-r", **bounds), tmp_path)
        assert not (tmp_path / "checkpoint").exists()
    del spark


@pytest.mark.slow  # Empty topics and ranges; what they give is of the reader alone.
def test_topics_without_records_are_no_error(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    servers = make(broker, "source-empty-l", "source-empty-r")
    query = run(join(servers, "source-empty-l", "source-empty-r"), tmp_path)
    assert query.progress is not None
    assert [each.rows_in for each in query.progress.inputs] == [0, 0]
    write(servers, "source-empty-l", [row(1, 0)])
    run(join(servers, "source-empty-l", "source-empty-r"), tmp_path, drain=True)
    assert pairs(spark, tmp_path) == [(1, None)]


class AtTheEnd(cj.KeyedCoProcessFunction):
    """Emits its rate for each left row, when the row's timer fires: an hour later, so in a drain."""

    rate = 1

    def process_element1(self, row: Any, ctx: cj.Context) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 3_600_000)

    def process_element2(self, row: Any, ctx: cj.Context) -> None: ...

    def on_timer(self, timestamp: int, ctx: cj.OnTimerContext) -> Any:
        yield (self.rate,)


@pytest.mark.slow
def test_what_is_changed_after_the_start_counts_in_no_batch(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    servers = make(broker, "source-rate-l", "source-rate-r")
    write(servers, "source-rate-l", [row(1, 0), row(2, 1, key=2)])
    function = AtTheEnd()
    joined = cj.connect(*inputs(servers, "source-rate-l", "source-rate-r")).process(function, "rate int")
    query = start(joined, tmp_path, cj.Trigger.available_now(drain=True), name="rates")
    # It can't be copied any more, and says something else.
    function.rate, function.lock = 2, threading.Lock()  # type: ignore[attr-defined]
    query.await_termination(progress=False)
    assert [each.rate for each in spark.read.format("delta").load(f"{tmp_path}/out").collect()] == [1, 1]


def test_what_cant_be_decoded_is_rejected_with_its_place(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    servers = make(broker, "source-bad-l", "source-bad-r", partitions=2)
    good = row(0, 0).value
    bad = {
        "text": b"so much for JSON" + 1_000 * b"!",
        "cut off": b'{"id": 1, "k": 1, "at": "2026-01-0',
        "wrong type": {**good, "id": "seven"},
        "wrong time": {**good, "at": "at noon"},
        "not UTF-8": b'{"id": 1, "k": 1, "at": "2026-01-05T00:00:00Z", "x": "\xff\xfe"}\xff',
        "only bytes": bytes(range(128, 256)),
        "half of a pair": {**good, "x": "\ud83d"},
        "the other half": {**good, "x": "\\\ude00"},
        "empty": b"",
        "blank": b"  ",
        "null": b"null",
        "a number": b"17",
        "a list": b'[{"id": 1, "k": 1, "at": "2026-01-05T00:00:00Z"}, {"id": 2, "k": 1, "at": "2026-01-05T00:00:00Z"}]',
    }
    spoilt = [Written(each, 1, START) for each in bad.values()]
    write(servers, "source-bad-l", [row(1, 1), *spoilt, Written(None, 1), row(2, 2, 1)])
    # What no schema forbids: fields that are missing, or more than asked for; nulls of the key and of the time.
    right = [{"k": 1, "at": good["at"], "more": 1}, {"k": None, "at": good["at"], "v": 5}, {"k": 1, "at": None}, {}]
    write(servers, "source-bad-r", [Written(each, 0, START + MINUTE) for each in right])

    query = run(join(servers, "source-bad-l", "source-bad-r"), tmp_path, drain=True)
    assert pairs(spark, tmp_path) == [(1, None), (2, None)]
    found = rejected(spark, tmp_path)
    left = [(reason, known) for name, reason, known in found if name == "left"]
    assert [reason for reason, _ in left] == ["undecodable"] * len(bad) + ["tombstone"]
    for offset, (value, (_, known)) in enumerate(zip([*bad.values(), None], left, strict=True)):
        assert {name: known[name] for name in ("topic", "partition", "offset")} == {
            "topic": "source-bad-l",
            "partition": 1,
            "offset": offset,
        }
        if value is None:
            assert known["error"] == "the record has no value"
        else:
            assert known["error"].startswith("the value is not JSON of the schema: got "), known
            assert len(known["error"]) < 300
    assert '"id": "seven"' in left[2][1]["error"]
    assert [(reason, known["offset"]) for name, reason, known in found if name == "right"] == [
        ("null_key", 1),
        ("null_event_time", 2),
        ("null_event_time", 3),
    ]
    assert query.progress is not None
    assert query.progress.is_conserved
    assert [dict(each.rejected) for each in query.progress.inputs] == [
        {"undecodable": len(bad), "tombstone": 1},
        {"null_key": 1, "null_event_time": 2},
    ]
    assert "13 undecodable" in query.progress.table()

    said = "input 'left': topic source-bad-l partition 1 offset 0: undecodable"
    with refused(said, "so much for JSON", kind=cj.QueryFailedError):
        run(join(servers, "source-bad-l", "source-bad-r", undecodable="fail"), tmp_path / "failing")
    static = cj.kafka.source(servers, "source-bad-l", schema=LEFT, tombstones="keep").open(streaming=False)
    assert static.columns == ["id", "k", "at", "topic", "partition", "offset"]
    assert sorted((each.partition, each.offset, each.id) for each in static.collect()) == [
        (0, 0, 1),
        (1, len(bad), None),
        (1, len(bad) + 1, 2),
    ]


@pytest.mark.slow  # test_reading shows the same records without a query.
@pytest.mark.parametrize("way", ["direct", "spark", "without a bound"])
def test_records_without_a_time_or_of_one_that_can_not_be_are_rejected(
    spark: SparkSession, broker: Broker, tmp_path: Path, way: str
) -> None:
    left, right = f"stamped-l-{way[:6]}", f"stamped-r-{way[:6]}"
    servers = make(broker, left, right)
    minutes = [Written({"n": number, "k": 1}, 0, START + number * MINUTE) for number in range(4)]
    none, nanos = [Written({"n": n, "k": 1}, 0, time) for n, time in ((90, -1), (91, START * 1_000_000))]
    write(servers, left, [none, *minutes[:2], nanos, *minutes[2:], none])
    # Without a time this is no version; as one of 1969 it would be in force for the first trades.
    write(servers, right, [none, nanos, *minutes[2:]])

    def side(name: str, topic: str) -> cj.Input:
        source = cj.kafka.source(
            servers, topic, schema=f"n long, k long, {name} string", columns={"at": cj.kafka.timestamp()}, max_records=3
        )
        strategy = cj.WatermarkStrategy.for_bounded_out_of_orderness("1 second")
        more = {"max_ahead": None} if way == "without a bound" else {}
        return cj.Input(source, key="k", event_time="at", name=name, watermark=strategy, **more)

    if way == "spark":
        spark.conf.set("spark.cojoin.kafka", "spark")
    try:
        joined = cj.connect(side("left", left), side("right", right), key_groups=2).asof_join(suffixes=("", "_right"))
        query = run(joined, tmp_path, drain=True)
    finally:
        spark.conf.unset("spark.cojoin.kafka")
    rows = spark.read.format("delta").load(f"{tmp_path}/out").orderBy("n").collect()
    assert [(each.n, each.n_right) for each in rows] == [(0, None), (1, None), (2, 2), (3, 3)]
    found = rejected(spark, tmp_path)
    assert [(name, reason, known["topic"], known["partition"], known["offset"]) for name, reason, known in found] == [
        ("left", "null_event_time", left, 0, 0),
        ("left", "undecodable", left, 0, 3),
        ("left", "null_event_time", left, 0, 6),
        ("right", "null_event_time", right, 0, 0),
        ("right", "undecodable", right, 0, 1),
    ]
    assert query.progress is not None
    assert query.progress.is_conserved
    # A whole topic whose producer gives no times is read in bounded batches all the same.
    if way == "without a bound":
        write(servers, right, [none] * 20)
        static = cj.kafka.source(servers, right, schema="n long", columns={"at": cj.kafka.timestamp()})
        assert [each.at for each in static.open(streaming=False).where("n = 90").collect()] == [None] * 21


@pytest.mark.slow
def test_key_headers_timestamp_and_a_users_own_decoding(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    servers = make(broker, "source-columns-l", "source-columns-r")
    left = [
        (b"1", b"10", [("id", b"1"), ("id", b"2")]),
        (b"2", None, [("id", b"3")]),
        (b"3", b"eleven", [("id", b"4")]),
        (b"4", b"10", [("id", b"four")]),
        (b"5", b"10", []),
        (b"raises", b"10", [("id", b"6")]),
        (b"misfit", b"10", [("id", b"7")]),
    ]
    write(servers, "source-columns-l", [Written(v, 0, START + 5, k, h) for v, k, h in left])
    write(servers, "source-columns-r", [Written({"v": 7}, 0, START + 1, b"10"), Written(None, 0, START + 9, b"10")])

    def decode(record: Record) -> Any:
        if record.value == b"raises":
            msg = "this one is raised"
            raise LookupError(msg)
        return ["no", "row", "at", "all"] if record.value == b"misfit" else {"number": int(record.value)}

    columns = {"k": cj.kafka.key("long"), "at": cj.kafka.timestamp()}
    one = cj.kafka.source(
        servers,
        "source-columns-l",
        schema="number int",
        decode=decode,
        columns={**columns, "id": cj.kafka.header("id", "int"), "raw": cj.kafka.key("binary")},
    )
    other = cj.kafka.source(servers, "source-columns-r", schema="v int", columns=columns, tombstones="keep")
    trades, versions = (
        cj.Input(source, key="k", event_time="at", name=name) for source, name in ((one, "left"), (other, "right"))
    )
    joined = cj.connect(trades, versions, key_groups=2).temporal_join(null_payload_deletes=False, suffixes=("", "_r"))
    run(joined, tmp_path, drain=True)

    rows = (
        spark.read.format("delta")
        .load(str(tmp_path / "out"))
        .selectExpr("number", "k", "id", "cast(raw AS string) AS raw", "unix_millis(at) - 1767571200000 AS at", "v")
    )
    assert sorted(map(tuple, rows.collect())) == [(1, 10, 2, "10", 5, 7), (5, 10, None, "10", 5, 7)]
    found = [(reason, known["offset"], known.get("error", "")) for _, reason, known in rejected(spark, tmp_path)]
    assert [(reason, offset) for reason, offset, _ in found] == [
        ("null_key", 1),
        *[("undecodable", offset) for offset in (2, 3, 5, 6)],
    ]
    texts = [error for _, _, error in found[1:]]
    assert texts[0] == "the record's key is not of type long, for column 'k': got eleven"
    assert texts[1] == "header 'id' is not of type int, for column 'id': got four"
    assert texts[2] == "LookupError: this one is raised"
    assert "decode" in texts[3]


@pytest.mark.slow  # Three runs; test_losses has it without a query.
def test_records_that_aged_out_end_the_query_or_are_told(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    servers = make(broker, "source-gone-l", "source-gone-r")
    write(servers, "source-gone-l", [row(each, each) for each in range(4)])
    write(servers, "source-gone-r", [version(7, 0)])
    run(join(servers, "source-gone-l", "source-gone-r"), tmp_path)
    write(servers, "source-gone-l", [row(each, each) for each in range(4, 9)])
    delete_before(servers, "source-gone-l", 7)

    parts = ("topic source-gone-l partition 0: offsets 4 to 6 (3 records)", "gone", 'data_loss="skip"')
    with refused(*parts, kind=cj.QueryFailedError):
        run(join(servers, "source-gone-l", "source-gone-r"), tmp_path)
    query = run(join(servers, "source-gone-l", "source-gone-r", data_loss="skip"), tmp_path, drain=True)
    assert pairs(spark, tmp_path) == [(each, 7) for each in (0, 1, 2, 3, 7, 8)]
    ((name, reason, known),) = rejected(spark, tmp_path)
    assert (name, reason, known["topic"], known["partition"], known["offset"]) == (
        "left",
        "gone",
        "source-gone-l",
        0,
        4,
    )
    assert known["error"] == "topic source-gone-l partition 0: offsets 4 to 6 (3 records)"
    assert query.progress is not None
    assert dict(query.progress.inputs[0].rejected) == {"gone": 1}
    assert query.progress.is_conserved


@pytest.mark.slow
def test_event_times_are_whole_numbers_or_local_as_records_have_them(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    servers = make(broker, "axis-l", "axis-r")
    minutes = range(0, 40, 4)
    times = {at: START + at * MINUTE for at in minutes}
    write(servers, "axis-l", [Written({"id": at, "k": 1, "ms": time}, time=time) for at, time in times.items()])
    berlin = [datetime.fromtimestamp(START / 1_000 + (at - 1) * 60, ZoneInfo("Europe/Berlin")) for at in minutes]
    versions = [
        Written({"k": 1, "local": f"{local:%Y-%m-%dT%H:%M:%S}", "v": at}, time=START + (at - 1) * MINUTE)
        for at, local in zip(minutes, berlin, strict=True)
    ]
    write(servers, "axis-r", versions)
    left = cj.sources.kafka(servers, "axis-l", schema="id long, k long, ms long")
    right = cj.sources.kafka(servers, "axis-r", schema="k long, local timestamp_ntz, v long")
    pair = cj.connect(
        cj.Input(left, "k", "ms", "left", time_unit="ms"),
        cj.Input(right, "k", "local", "right", time_zone="Europe/Berlin"),
        key_groups=2,
    )
    query = run(pair.asof_join(suffixes=("", "_right")), tmp_path, drain=True)
    assert pairs(spark, tmp_path) == [(at, at) for at in minutes]
    assert query.progress is not None
    assert query.progress.inputs[0].reading == "direct"
    output = spark.read.format("delta").load(str(tmp_path / "out"))
    assert dict(output.dtypes)["ms"] == "bigint"
    assert dict(output.dtypes)["local"] == "timestamp_ntz"
