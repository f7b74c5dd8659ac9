"""The reading of ranges: bounded by bytes, each record once, and by rights on topics alone."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

import cojoin as cj
from cojoin.kafka.client import Cluster, ClusterOptions
from cojoin.kafka.records import PIECE_BYTES, PIECE_RECORDS, VALUE, RecordFormat, fetched, read_task
from cojoin.kafka.tasks import Span, Task
from tests.kafka.logins import allow
from tests.kafka.replayed import START, admin, make
from tests.seeds import SEED
from tests.servers.broker import USERS
from tests.spark.refused import refused

if TYPE_CHECKING:
    from tests.servers.broker import Broker

pytestmark = pytest.mark.kafka

WHAT = "input 'trades'"
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
    with refused(WHAT, "do not let this user read topic 'fetching-hidden', or there is none", wanted):
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
        from cojoin.kafka.client import ClusterOptions
        from cojoin.kafka.records import VALUE, RecordFormat, read_task
        from cojoin.kafka.tasks import Span, Task
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        task, form = Task([Span(("fetching-memory", 0), 0, 600)], {}, []), RecordFormat((VALUE,), None, None, True)
        rows = sum(len(batch) for batch in read_task(task, ClusterOptions(sys.argv[1]), form, "input", {}))
        print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    done = subprocess.run([sys.executable, "-c", code, servers], capture_output=True, text=True, check=True)
    rows, megabytes = map(int, done.stdout.split())
    assert rows == 601  # one says the newest time
    assert megabytes < 250
