"""What tasks read from a broker: every offset once, holes passed, all that a record has."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

import cojoin as cj
from cojoin.kafka.client import Cluster, ClusterOptions
from cojoin.kafka.offsets_for_times import RecordLookup, first_records
from cojoin.kafka.ranges import Range
from cojoin.kafka.reader import AlignedReader
from cojoin.kafka.records import (
    DECODED,
    FAULT,
    HEADERS,
    KEY,
    MARK,
    TIME,
    VALUE,
    Record,
    RecordFormat,
    read_task,
)
from cojoin.kafka.tasks import Gap, Span, Task
from tests.kafka.replayed import MINUTE, SECONDS, START, Written, admin, delete_before, make, write
from tests.kafka.test_connection import silent
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers.broker import Broker

pytestmark = pytest.mark.kafka

WHAT = "input 'trades'"
VALUES = RecordFormat((VALUE,), None, None, keeps_tombstones=False)


def read(
    servers: str, spans: list[Span], form: RecordFormat = VALUES, patience_ms: int | None = 60_000, **settings: str
) -> pa.Table:
    options = ClusterOptions(servers, settings, patience_ms)
    table = pa.Table.from_batches(read_task(Task(spans, {}, []), options, form, WHAT), form.schema)
    return table.filter(pc.is_valid(table["offset"]))  # without what is only said of time


def offsets(table: pa.Table) -> list[tuple[int, int]]:
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def decoding(decode: Callable[[Record], Any]) -> RecordFormat:
    return RecordFormat((), decode, pa.struct([("n", pa.int64()), ("s", pa.string())]), keeps_tombstones=False)


def test_ranges_of_several_partitions_and_nothing_beyond(broker: Broker) -> None:
    servers = make(broker, "reading-ranges", partitions=3)
    write(servers, "reading-ranges", [Written(b"%d" % each, each % 2, START + each) for each in range(60_000)])
    begin, end, middle = Span(("reading-ranges", 0), 0, 7), Span(("reading-ranges", 1), 29_990, 30_000), 25_000
    whole = Span(("reading-ranges", 0), 10, 10 + middle)
    assert offsets(read(servers, [begin, end])) == [(0, n) for n in range(7)] + [(1, n) for n in range(29_990, 30_000)]
    found = read(servers, [whole])
    assert found["offset"].to_pylist() == list(range(10, 10 + middle))
    assert found[VALUE].to_pylist() == [b"%d" % (2 * each) for each in range(10, 10 + middle)]
    assert len(found.to_batches()) > 1


def test_all_that_a_record_has(broker: Broker) -> None:
    servers = make(broker, "reading-parts")
    headers = [("a", b"1"), ("a", b"2"), ("b", None)]
    write(servers, "reading-parts", [Written(b"x", key=b"k", time=START + 7, headers=headers), Written(None)])
    form = RecordFormat((VALUE, HEADERS, KEY, TIME), None, None, keeps_tombstones=True)
    found = read(servers, [Span(("reading-parts", 0), 0, 2)], form).to_pylist()
    assert [(each[VALUE], each[KEY], each[FAULT], each[MARK]) for each in found] == [
        (b"x", b"k", None, None),
        (None, None, None, None),
    ]
    assert found[0][HEADERS] == [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}, {"key": "b", "value": None}]
    assert found[1][HEADERS] == []
    assert [each[TIME].timestamp() * 1000 for each in found] == [START + 7, START]
    rejecting = RecordFormat((VALUE,), None, None, keeps_tombstones=False)
    assert read(servers, [Span(("reading-parts", 0), 0, 2)], rejecting)[FAULT].to_pylist() == [
        None,
        "tombstone: the record has no value",
    ]


STAMPS = [START, -1, START * 1_000_000, -5, (1 << 63) - 1, -(1 << 63), 1]
"""What producers write as timestamps: -1 stands for none, and three are beyond what a timestamp of Spark's holds."""


def test_a_timestamp_of_minus_one_is_none_and_one_that_no_column_holds_is_a_fault_of_its_record(broker: Broker) -> None:
    servers, part = make(broker, "reading-stamps"), ("reading-stamps", 0)
    write(servers, "reading-stamps", [Written(b"%d" % at, time=stamp) for at, stamp in enumerate(STAMPS)])
    spans = [Span(part, 0, len(STAMPS))]
    timed = RecordFormat((VALUE, TIME), None, None, keeps_tombstones=False)
    found = read(servers, spans, timed)
    assert found[TIME].cast(pa.int64()).to_pylist() == [1000 * START, None, None, -5_000, None, None, 1_000]
    assert [at for at, fault in enumerate(found[FAULT].to_pylist()) if fault is not None] == [2, 4, 5]
    assert found[FAULT][2].as_py() == (
        f"undecodable: the record's timestamp is {START * 1_000_000}: expected milliseconds since 1970, of at most "
        f"9223372036854775; see that its producer does not write nanoseconds"
    )
    # Who does not ask for the timestamp reads the record.
    assert read(servers, spans)[FAULT].null_count == len(STAMPS)
    seen = read(servers, spans, decoding(lambda record: (record.timestamp, "")))
    assert [each["n"] for each in seen[DECODED].to_pylist()] == [None if stamp == -1 else stamp for stamp in STAMPS]
    cluster = Cluster(ClusterOptions(servers), WHAT)
    peeking = RecordLookup(cluster, WHAT)
    try:
        assert peeking.stamps({part: 0}, {part: len(STAMPS)}, None) == {part: [(0, START), (3, -5), (6, 1)]}
        assert peeking.next_records({part: 1}, {part: 3}, None) == {part: None}
        # The broker's answers are the records that are stamped in nanoseconds.
        latest = Range.of(what=WHAT)
        assert latest.span(cluster, [part]) == (START, START)
        for moment, offset in ((1, 0), (START, 0), (START + 1, None)):
            first = first_records(cluster, peeking, [part], moment, latest.trusted_until)[part]
            assert (None if first is None else first[0]) == offset
    finally:
        peeking.close()


def test_marks_and_gaps_are_rows_without_a_record(broker: Broker) -> None:
    task = Task([], {("a", 0): 5, ("b", 1): 5}, [Gap(("a", 2), 3, 9)])
    found = [
        row
        for each in read_task(task, ClusterOptions(broker.bootstrap_servers), VALUES, WHAT)
        for row in each.to_pylist()
    ]
    gone = "gone: topic a partition 2: offsets 3 to 8 (6 records)"
    assert [(each["topic"], each["partition"], each["offset"], each[MARK], each[FAULT]) for each in found] == [
        ("a", 0, None, 5, None),
        ("b", 1, None, 5, None),
        ("a", 2, 3, None, gone),
    ]


def test_holes_of_transactions_are_passed(broker: Broker) -> None:
    servers = make(broker, "reading-transactions")
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "reading", "log_level": 0})
    producer.init_transactions(SECONDS)
    for value, commits in ((b"1", True), (b"2", False), (b"3", True)):
        producer.begin_transaction()
        producer.produce("reading-transactions", value)
        producer.produce("reading-transactions", value)
        producer.flush(SECONDS)
        producer.commit_transaction(SECONDS) if commits else producer.abort_transaction(SECONDS)
    part, end = ("reading-transactions", 0), 9  # a marker ends each transaction, some time after it
    cluster, deadline = Cluster(ClusterOptions(servers), WHAT), time.monotonic() + 20
    while cluster.latest([part])[part] < end:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    found = read(servers, [Span(part, 0, end)])
    assert found["offset"].to_pylist() == [0, 1, 6, 7]
    # Ranges that end, or begin, in a hole, or are nothing else.
    for begin, stop, held in ((0, 3, [0, 1]), (2, 7, [6]), (2, 6, []), (8, 9, []), (4, 5, [])):
        assert read(servers, [Span(part, begin, stop)])["offset"].to_pylist() == held
    assert len(read(servers, [Span(part, 0, end)], **{"isolation.level": "read_uncommitted"})) == 6


@pytest.mark.slow
def test_a_compacted_topic_has_holes_too(broker: Broker) -> None:
    servers = broker.bootstrap_servers
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "1",
        "min.cleanable.dirty.ratio": "0.001",
        "min.compaction.lag.ms": "0",
        "file.delete.delay.ms": "0",
    }
    client = admin(servers)
    (made,) = client.create_topics([NewTopic("reading-compacted", 1, 1, config=config)]).values()
    made.result(SECONDS)
    part = ("reading-compacted", 0)
    for each in range(6):  # a file of its own each, all but the last of which are cleaned
        write(servers, part[0], [Written(b"%d" % each, key=b"a", time=START + 1_000 * each)])
    deadline = time.monotonic() + 40
    while len(read(servers, [Span(part, 0, 6)])) == 6:
        assert time.monotonic() < deadline, "the broker has compacted nothing"
        time.sleep(0.5)
    kept = read(servers, [Span(part, 0, 6)])["offset"].to_pylist()
    assert kept[-1] == 5
    assert len(kept) < 6
    assert read(servers, [Span(part, 0, 2)])["offset"].to_pylist() == [each for each in kept if each < 2]


def test_a_users_own_decoding(broker: Broker) -> None:
    servers = make(broker, "reading-decode")
    seen = (b"5", b"", b"x", b"none", b"tuple", b"long", b"misfit", b"no text", b"untold")
    records = [Written(each, key=b"key", time=START + 1, headers=[("h", b"v")]) for each in seen]
    write(servers, "reading-decode", [*records, Written(None)])

    def decode(record: Record) -> Any:
        special = {
            b"none": None,
            b"tuple": (1, "a"),
            b"long": (1, "a", 2),
            b"misfit": {"n": "text", "s": 1},
            b"no text": (1, "\ud800"),
        }
        if record.value == b"untold":
            msg = "\udcff"  # what is left of bytes that are no text
            raise ValueError(msg)
        if record.value in special:
            return special[record.value]
        spelled = f"{record.topic} {record.partition} {record.offset} {record.timestamp} {record.key} {record.headers}"
        return {"n": int(record.value), "s": spelled}

    found = read(servers, [Span(("reading-decode", 0), 0, 10)], decoding(decode)).to_pylist()
    assert found[0][DECODED] == {"n": 5, "s": f"reading-decode 0 0 {START + 1} b'key' [('h', b'v')]"}
    assert [each[DECODED] for each in found[1:]] == [None, None, None, {"n": 1, "s": "a"}, *[None] * 5]
    faults = [each[FAULT] for each in found]
    assert [fault is None for fault in faults] == [True, False, False, True, True, *[False] * 5]
    assert faults[1] == "undecodable: ValueError: invalid literal for int() with base 10: b''"
    assert faults[5].startswith("undecodable: ")
    assert "decode" in faults[6]
    assert "'text'" in faults[6]
    assert "surrogates not allowed" in faults[7]
    assert faults[8] == r"undecodable: ValueError: \udcff"
    assert faults[9] == "tombstone: the record has no value"


def test_a_broker_that_falls_silent_ends_a_task_after_its_patience(broker: Broker) -> None:
    servers = make(broker, "reading-silent")
    write(servers, "reading-silent", [Written(b"%d" % each) for each in range(3)])
    span = [Span(("reading-silent", 0), 0, 3)]
    begin = time.monotonic()
    parts = (WHAT, servers, "gave no record for 1 s", "topic reading-silent partition 0 up to offset 2", "patience=")
    with silent(broker), refused(*parts, kind=cj.QueryFailedError):
        read(servers, span, patience_ms=1_000)
    assert time.monotonic() - begin < 10
    with silent(broker, 1.5):
        assert len(read(servers, span, patience_ms=None)) == 3


def test_records_that_go_while_they_are_to_be_read(broker: Broker) -> None:
    servers = make(broker, "reading-gone")
    write(servers, "reading-gone", [Written(b"%d" % each) for each in range(5)])
    delete_before(servers, "reading-gone", 3)
    with refused(WHAT, "topic reading-gone partition 0", "offset 1", "deleted", kind=cj.QueryFailedError):
        read(servers, [Span(("reading-gone", 0), 1, 5)])


@pytest.mark.parametrize(("to", "marked"), [(2, None), ("2026-01-05T01:30:00Z", START + 90 * MINUTE - 10 * MINUTE)])
def test_only_an_end_in_time_says_how_far_time_has_come(broker: Broker, to: Any, marked: int | None) -> None:
    topic = f"ends-{marked}"
    broker.create_topic(topic, 1)
    records = [Written({"id": hour}, time=START + 60 * MINUTE * hour) for hour in range(4)]
    write(broker.bootstrap_servers, topic, records)
    described = cj.kafka.source(broker.bootstrap_servers, topic, schema="id long", to=to)
    reader = AlignedReader(described.reading(1))
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    # Behind an end that is an offset there may be records of any time.
    assert (end["positions"], end["mark"]) == ({topic: {"0": 2}}, marked)
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    reader.stop()


def test_a_checkpoint_of_an_earlier_release_whose_time_is_far_ahead_goes_on(broker: Broker) -> None:
    topic = "once-far"
    broker.create_topic(topic, 1)
    records = [Written({"id": hour}, time=START + 60 * MINUTE * hour) for hour in range(4)]
    write(broker.bootstrap_servers, topic, records)
    described = cj.kafka.source(broker.bootstrap_servers, topic, schema="id long", max_records=2)
    reader = AlignedReader(described.with_max_ahead(24 * 60 * MINUTE).reading(1))
    reader.prepareForTriggerAvailableNow()
    # As release 0.5.0 wrote it: with nothing of what is trusted_until.
    offset = {"time": START + 100 * 365 * 24 * 60 * MINUTE, "mark": None, "positions": {topic: {"0": 1}}, "unread": {}}
    tomorrow = 1000 * time.time() + 24 * 60 * MINUTE
    read = []
    for _ in range(4):
        offset = reader.latestOffset(offset, reader.getDefaultReadLimit())
        read.append(offset["positions"][topic]["0"])
        assert offset["time"] <= tomorrow
        assert offset["mark"] is None or offset["mark"] < tomorrow
    assert read == [3, 4, 4, 4]
    reader.stop()
