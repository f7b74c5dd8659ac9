"""Records that tasks read from a broker: each once, in pieces bounded by bytes, with all their parts."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

import cojoin as cj
from cojoin.kafka.client import Cluster, ClusterOptions, Gap, Span
from cojoin.kafka.offsets_for_times import RecordLookup, first_records
from cojoin.kafka.ranges import Range
from cojoin.kafka.reader import AlignedReader
from cojoin.kafka.records import (
    DECODED,
    FAULT,
    HEADERS,
    KEY,
    MARK,
    PIECE_BYTES,
    PIECE_RECORDS,
    TIME,
    VALUE,
    Record,
    RecordFormat,
    fetched,
    read_task,
)
from cojoin.kafka.tasks import Task
from tests.kafka.logins import allow
from tests.kafka.replayed import MINUTE, SECONDS, START, Written, admin, delete_before, make, write
from tests.kafka.test_client import silent
from tests.seeds import SEED
from tests.servers.broker import USERS
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
        latest = Range.of(label=WHAT)
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
    declared = cj.Input(described, key="id", event_time="timestamp", max_ahead="1 day")
    reader = AlignedReader(described.of_input("trades", declared).reading(1))
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


LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
LOGIN |= {"sasl.username": "morgiana", "sasl.password": USERS["morgiana"]}
RAW = RecordFormat((VALUE,), None, None, keeps_tombstones=True)


def fill(servers: str, topic: str, sizes: list[int], partition: int = 0) -> None:
    """Write records of these sizes."""
    producer = Producer({"bootstrap.servers": servers, "message.max.bytes": 9_000_000, "log_level": 0})
    for number, size in enumerate(sizes):
        producer.produce(topic, bytes([number % 251]) * size, partition=partition, timestamp=START)
        producer.poll(0)
        if number % 50 == 49:
            producer.flush(20)
    assert producer.flush(20) == 0


def pieces(servers: str, spans: list[Span], **settings: str) -> list[list[tuple[str, int, int, int]]]:
    """Read ranges, and return each piece's records: topic, partition, offset, size."""
    options = ClusterOptions(servers, settings)
    cluster = Cluster(options, WHAT)
    return [
        [(each.topic(), each.partition(), each.offset(), len(each.value())) for each in piece]
        for piece in fetched(cluster, spans, options, WHAT)
    ]


def allow_and_wait(broker: Broker, topic: str, *operations: AclOperation) -> None:
    """Let the user do something with a topic, and with nothing else, and wait until the brokers know it."""
    allow(broker, "morgiana", ResourceType.TOPIC, topic, *operations)
    user, deadline = AdminClient({"bootstrap.servers": broker.login_servers, **LOGIN}), time.monotonic() + 20
    while True:
        (described,) = user.describe_topics(TopicCollection([topic]), include_authorized_operations=True).values()
        if described.exception() is None and set(operations) <= set(described.result().authorized_operations):
            break
        assert time.monotonic() < deadline


@pytest.mark.parametrize("seed", [SEED])
def test_a_piece_is_bounded_by_bytes_and_one_huge_record_is_its_own(broker: Broker, seed: int) -> None:
    servers = make(broker, "fetching-sizes")
    client = admin(servers)
    larger = ConfigEntry("max.message.bytes", "30000000", incremental_operation=AlterConfigOpType.SET)
    (done,) = client.incremental_alter_configs(
        [ConfigResource(ConfigResource.Type.TOPIC, "fetching-sizes", incremental_configs=[larger])]
    ).values()
    done.result(20)
    draw = random.Random(seed)
    sizes = [draw.choice([10, 100, 5_000, 900_000]) for _ in range(100)]
    fill(servers, "fetching-sizes", sizes)
    producer = Producer({"bootstrap.servers": servers, "message.max.bytes": 29_000_000, "log_level": 0})
    producer.produce("fetching-sizes", b"x" * (PIECE_BYTES + 1), partition=0, timestamp=START)
    assert producer.flush(20) == 0
    fill(servers, "fetching-sizes", [10] * 3)

    settings = {"fetch.message.max.bytes": "20000000", "receive.message.max.bytes": "99000000"}
    found = pieces(servers, [Span(("fetching-sizes", 0), 0, 104)], **settings)
    sizes += [PIECE_BYTES + 1, 10, 10, 10]
    assert [each[2:] for piece in found for each in piece] == list(enumerate(sizes))
    for piece in found:
        assert len(piece) == 1 or sum(size for *_, size in piece) <= PIECE_BYTES
    assert [(PIECE_BYTES + 1)] in [[size for *_, size in piece] for piece in found]
    # And none is smaller than it must be.
    for piece, following in itertools.pairwise(found):
        assert sum(size for *_, size in piece) + following[0][3] > PIECE_BYTES


def test_many_small_records_are_pieces_of_a_number(broker: Broker) -> None:
    servers = make(broker, "fetching-small")
    fill_quickly(servers, "fetching-small", PIECE_RECORDS + 10)
    found = pieces(servers, [Span(("fetching-small", 0), 0, PIECE_RECORDS + 10)])
    assert [len(piece) for piece in found] == [PIECE_RECORDS, 10]


def fill_quickly(servers: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 0, "linger.ms": 50})
    for _ in range(count):
        producer.produce(topic, b"{}", partition=0, timestamp=START)
    assert producer.flush(20) == 0


def test_several_ranges_of_a_partition_are_read_each_once(broker: Broker) -> None:
    servers = make(broker, "fetching-ranges", partitions=2)
    for number in (0, 1):
        fill(servers, "fetching-ranges", [10] * 60, number)
    one, two = ("fetching-ranges", 0), ("fetching-ranges", 1)
    spans = [Span(one, 0, 10), Span(one, 30, 40), Span(one, 40, 41), Span(two, 5, 60), Span(one, 58, 60)]
    found = [each[1:3] for piece in pieces(servers, spans) for each in piece]
    assert [offset for number, offset in found if number == 0] == [*range(10), *range(30, 41), 58, 59]
    assert [offset for number, offset in found if number == 1] == list(range(5, 60))


def test_rights_on_topics_suffice(broker: Broker) -> None:
    make(broker, "fetching-rights")
    fill(broker.bootstrap_servers, "fetching-rights", [10] * 20)
    allow_and_wait(broker, "fetching-rights", AclOperation.READ)
    options = ClusterOptions(broker.login_servers, LOGIN)
    assert Cluster(options, WHAT).partitions(["fetching-rights"])["fetching-rights"] == [0]
    span = Span(("fetching-rights", 0), 0, 20)

    def messages() -> Any:
        """Wait for the refusal of the group before the records are looked at."""
        cluster = Cluster(options, WHAT)
        made = cluster.consumer

        def consumer() -> Any:
            found = made()
            found.assign([])
            time.sleep(0.6)
            return found

        cluster.consumer = consumer  # type: ignore[method-assign]
        return fetched(cluster, [span], options, WHAT)

    assert [each.offset() for piece in messages() for each in piece] == list(range(20))
    task = Task([span], {}, [])
    rows = [row for batch in read_task(task, options, RAW, WHAT, {}) for row in batch.column("offset").to_pylist()]
    assert rows[:20] == list(range(20))


def test_a_topic_that_may_not_be_read_is_not_one_that_is_not_there(broker: Broker) -> None:
    make(broker, "fetching-hidden", "fetching-seen")
    allow_and_wait(broker, "fetching-seen", AclOperation.DESCRIBE)
    asked = Cluster(ClusterOptions(broker.login_servers, LOGIN), WHAT)
    wanted = "grant it READ and DESCRIBE on the topic"
    with refused(WHAT, "do not let this user read topic 'fetching-hidden', or it does not exist", wanted):
        asked.partitions(["fetching-hidden"])
    with refused("do not let this user read topic 'fetching-hidden'", wanted):
        asked.latest([("fetching-hidden", 0)])
    with refused("do not let this user read topic 'fetching-seen'", wanted):
        asked.describe(["fetching-seen"])
    fill(broker.bootstrap_servers, "fetching-seen", [10])
    with refused("do not let this user read topic 'fetching-seen'", wanted):
        pieces(broker.login_servers, [Span(("fetching-seen", 0), 0, 1)], **LOGIN)
    for name in ("fetching-hidden", "fetching-seen"):
        with refused(f"source kafka {name}", f"do not let this user read topic {name!r}", kind=cj.ConfigurationError):
            cj.kafka.source(broker.login_servers, name, schema="id long", options=LOGIN).check(is_new=True)


@pytest.mark.slow  # it writes and reads half a gigabyte
def test_memory_is_bounded_whatever_the_records_sizes(broker: Broker) -> None:
    servers = make(broker, "fetching-memory")
    fill(servers, "fetching-memory", [900_000] * 600)
    code = """if True:
        import resource, sys
        from cojoin.kafka.client import ClusterOptions, Span
        from cojoin.kafka.records import VALUE, RecordFormat, read_task
        from cojoin.kafka.tasks import Task
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        task, form = Task([Span(("fetching-memory", 0), 0, 600)], {}, []), RecordFormat((VALUE,), None, None, True)
        rows = sum(len(batch) for batch in read_task(task, ClusterOptions(sys.argv[1]), form, "input", {}))
        print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    done = subprocess.run([sys.executable, "-c", code, servers], capture_output=True, text=True, check=True)
    rows, megabytes = map(int, done.stdout.split())
    assert rows == 601  # one says the newest time
    assert megabytes < 250
