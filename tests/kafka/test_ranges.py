"""``from_`` and ``to``: the values that they take, those that are refused, and the offsets that they become."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import cojoin as cj
from cojoin.kafka.ranges import ALL, LATEST, Point, Range, lost, nearest_point, parsed_points
from tests.kafka.test_client import START, WHAT, cluster, fill, parts

if TYPE_CHECKING:
    from cojoin.kafka.client import Cluster, Partition
    from tests.servers.broker import Broker

UTC = timezone.utc


@pytest.mark.parametrize(
    ("moment", "milliseconds"),
    [
        ("2026-01-05", START),
        (" 2026-01-05T00:00Z", START),
        ("2026-01-05 00:00:00", START),
        ("2026-01-05T00:00:00.5z", START + 500),
        ("2026-01-05T00:00:00,000001", START + 1),
        ("2026-01-05T01:30:00+01:30", START),
        ("2026-01-04T19:00:00-0500", START),
        ("1969-12-31T23:59:59.9995Z", 0),
        ("1969-12-31", -86_400_000),
        (datetime(2026, 1, 5, tzinfo=UTC), START),
        (datetime(2026, 1, 5, 2, tzinfo=timezone(timedelta(hours=2))), START),
        (pd.Timestamp("2026-01-05", tz="UTC"), START),
    ],
)
def test_times(moment: Any, milliseconds: int) -> None:
    assert parsed_points(moment, "from_") == {ALL: Point("time", milliseconds)}


def test_points_by_topic_and_partition() -> None:
    points = parsed_points({"a": "2026-01-05", "b": {0: 7, 2: "latest"}}, "from_")
    assert points == {("a", None): Point("time", START), ("b", 0): Point("offset", 7), ("b", 2): Point("latest")}


def test_the_most_specific_point_counts() -> None:
    points = {ALL: Point("offset", 1), ("a", None): Point("offset", 2), ("a", 0): LATEST}
    assert nearest_point(points, ("a", 0)) == LATEST
    assert nearest_point(points, ("a", 1)) == Point("offset", 2)
    assert nearest_point(points, ("b", 0)) == Point("offset", 1)
    assert nearest_point({("a", 0): LATEST}, ("a", 1)) is None


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        ("earlyest", "expected 'earliest', .* got 'earlyest'; did you mean 'earliest'"),
        ("Latest", ".* got 'Latest'; did you mean 'latest'"),
        ("42", ".* or an offset as an int; got '42'$"),
        ("", ".* got ''"),
        ("2026-13-05", "expected a time of the calendar, got '2026-13-05'"),
        ("2026-01-05T25:00", "expected a time of the calendar"),
        ("20260105", ".* got '20260105'"),
        ("2026-01-05Z", ".* got '2026-01-05Z'"),
        (datetime(2026, 1, 5), "expected a datetime with a zone"),  # noqa: DTZ001 - that is the point
        (-2, "expected an offset of zero or more, got -2"),
        (True, ".* got True"),
        (1.5, ".* got 1.5"),
        (None, ".* got None"),
        ({1: 5}, "expected the names of topics as keys, got 1"),
        ({"a": {"0": 5}}, "topic a: expected the numbers of partitions as keys, got '0'"),
        ({"a": {True: 5}}, "topic a: expected the numbers of partitions as keys, got True"),
        ({"a": {0: {}}}, "topic a partition 0: expected .* got {}"),
        ({"a": {3: "soon"}}, "topic a partition 3: .* got 'soon'"),
    ],
)
def test_what_is_no_point_is_refused(bound: Any, text: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=f"^input 'trades': from_: {text}"):
        parsed_points(bound, "input 'trades': from_")


def test_points_of_all_and_of_some() -> None:
    range_ = Range.of("2026-01-05", label=WHAT)
    assert (range_.from_, range_.from_ms) == ({ALL: Point("time", START)}, START)
    assert (range_.to, range_.to_ms, range_.is_bounded) == (None, None, False)
    range_ = Range.of({"a": "2026-01-05", "b": {0: 7, 2: "latest"}}, {"b": 9}, label=WHAT)
    assert range_.to == {("b", None): Point("offset", 9)}
    assert (range_.from_ms, range_.to_ms, range_.is_bounded) == (None, None, True)
    assert pickle.loads(pickle.dumps(range_)) == range_
    assert Range.of("earliest", "2026-01-05", label=WHAT).to_ms == START


@pytest.mark.parametrize(
    ("from_", "to", "text"),
    [
        ("earlyest", None, "from_: expected 'earliest', .* got 'earlyest'; did you mean 'earliest'"),
        ("earliest", {"a": {3: "soon"}}, "to: topic a partition 3: .* got 'soon'"),
        ("2026-01-26", "2026-01-05", "from_ is after to: .* got 2026-01-26T00:00:00Z and 2026-01-05T00:00:00Z"),
        (9, 8, "from_ is after to: .* got offset 9 and offset 8"),
        ({"a": 9}, {"a": {1: 8}}, "topic a partition 1: from_ is after to: .* offset 9 and offset 8"),
        ("2026-01-26", {"a": "2026-01-05"}, "topic a: from_ is after to"),
        ("2026-01-26", "earliest", "nothing is between from_='2026-01-26T00:00:00Z' and to='earliest'"),
        ("latest", "latest", "nothing is between from_='latest' and to='latest'"),
    ],
)
def test_what_needs_no_broker_to_be_refused(from_: Any, to: Any, text: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=f"^input 'trades': {text}"):
        Range.of(from_, to, label=WHAT)


def test_a_range_may_be_empty() -> None:
    assert Range.of(5, 5, label=WHAT).is_bounded
    assert Range.of("2026-01-05", "2026-01-05", label=WHAT).from_ms == START


def test_what_is_lost() -> None:
    assert lost({("a", 0): 10, ("a", 1): 5}, {("a", 0): 11, ("a", 1): 5}) == [
        "topic a partition 0: offsets 10 to 10 are gone (up to 1 records); the earliest is 11"
    ]


TOPIC = "ranges-trades"
READ = parts(TOPIC)


@pytest.fixture(scope="module")
def asked(broker: Broker) -> Cluster:
    """A topic whose partitions are: full, stopping half way, of one early record, empty."""
    fill(
        broker, TOPIC, {0: [START + 10 * at for at in range(100)], 1: [START + 10 * at for at in range(50)], 2: [START]}
    )
    return cluster(broker)


def time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(START / 1000, UTC) + timedelta(milliseconds=milliseconds)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("from_", "to", "begins", "ends"),
    [
        ("earliest", None, [0, 0, 0, 0], None),
        ("latest", None, [100, 50, 1, 0], None),
        ("earliest", "latest", [0, 0, 0, 0], [100, 50, 1, 0]),
        (time(101), time(201), [11, 11, 1, 0], [21, 21, 1, 0]),
        (time(600), time(700), [60, 50, 1, 0], [70, 50, 1, 0]),
        (time(-1_000), time(0), [0, 0, 0, 0], [0, 0, 0, 0]),
        (time(990), time(5_000), [99, 50, 1, 0], [100, 50, 1, 0]),
        (datetime(1969, 1, 1, tzinfo=UTC), "latest", [0, 0, 0, 0], [100, 50, 1, 0]),
        ({TOPIC: {0: 7, 1: time(20)}}, {TOPIC: {0: 7, 1: 30}}, [7, 2, 0, 0], [7, 30, 1, 0]),
        ({TOPIC: {0: 100, 3: 0}}, None, [100, 0, 0, 0], None),
        # The later beginning was not asked for by place or time: nothing is read.
        ("latest", time(100), [100, 50, 1, 0], [100, 50, 1, 0]),
        # Partitions without records after the time have nothing left, and are no error.
        (time(600), {TOPIC: {0: 80}}, [60, 50, 1, 0], [80, 50, 1, 0]),
    ],
)
def test_resolved(asked: Cluster, from_: Any, to: Any, begins: list[int], ends: list[int] | None) -> None:
    range_ = Range.of(from_, to, label=WHAT)
    assert range_.begin(asked, READ) == dict(zip(READ, begins, strict=True))
    expected = None if ends is None else dict(zip(READ, ends, strict=True))
    assert range_.resolve(asked, READ) == (dict(zip(READ, begins, strict=True)), expected)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("from_", "to", "text"),
    [
        (
            {TOPIC: {1: 51, 2: 1}},
            None,
            "from_ is beyond the end: topic ranges-trades partition 1: got offset 51, .* 50$",
        ),
        (START, None, "from_ is beyond the end: .*; a time is written as a text or a datetime, not as a number"),
        ("earliest", 50, "to is beyond the end: .* partition 2: got offset 50, the end is 1; .* partition 3: .* is 0$"),
        ({"trades": 5}, None, "from_: topic 'trades' is not among those that are read; did you mean 'ranges-trades'"),
        (
            "latest",
            {TOPIC: {9: 5}},
            r"to: partition 9 of topic 'ranges-trades' is not among those read: \[0, 1, 2, 3\]",
        ),
        (
            time(300),
            {TOPIC: {0: 30, 1: 29}},
            r"from_ is after to: .* partition 1: it begins at offset 30 \(from_: .*00.300Z\) and ends before offset 29",
        ),
        ({TOPIC: {0: 31}}, time(300), "from_ is after to: .* partition 0: it begins at offset 31 .* before offset 30"),
    ],
)
def test_what_only_the_broker_can_refuse(asked: Cluster, from_: Any, to: Any, text: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=f"^input 'trades': {text}"):
        Range.of(from_, to, label=WHAT).resolve(asked, READ)


@pytest.mark.kafka
def test_offsets_that_aged_out_are_told_and_skipped_only_if_asked(broker: Broker) -> None:
    topic = "ranges-aging"
    read: list[Partition] = parts(topic)
    fill(broker, topic, {number: [START + at for at in range(10)] for number in range(4)})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    gone = admin.delete_records([TopicPartition(topic, 0, 4), TopicPartition(topic, 3, 10)])
    assert [each.result().low_watermark for each in gone.values()] == [4, 10]
    asked = cluster(broker)

    wanted = Range.of(2, label=WHAT)
    text = (
        r"the records at from_ no longer exist.*: topic ranges-aging partition 0: offsets 2 to 3 are gone \(up to 2 "
        r"records\); the earliest is 4; topic ranges-aging partition 3: offsets 2 to 9 are gone \(up to 8 records\)"
    )
    with pytest.raises(cj.ConfigurationError, match=text):
        wanted.begin(asked, read)
    assert list(wanted.begin(asked, read, skip_lost=True).values()) == [4, 2, 2, 10]
    assert list(Range.of("earliest", label=WHAT).begin(asked, read).values()) == [4, 0, 0, 10]
    since = Range.of("2026-01-05", label=WHAT)
    assert list(since.begin(asked, read).values()) == [4, 0, 0, 10]
    # Partition 3 has no record, so no time from which it has them.
    (told,) = since.aged_out(asked, since.begin(asked, read))
    assert told.startswith(f"{WHAT}: topic ranges-aging partition 0: from_ is 2026-01-05T00:00:00Z, and the oldest ")
    assert "offset 4 of 2026-01-05T00:00:00.004Z. Earlier records are gone from the topic" in told
    oldest = datetime.fromtimestamp((START + 4) / 1000, tz=UTC)
    for begin in (oldest, "earliest", {topic: {0: 4}}):
        exact = Range.of(begin, label=WHAT)
        assert exact.aged_out(asked, exact.begin(asked, read)) == []
    source = cj.kafka.source(broker.bootstrap_servers, topic, schema="id long", from_="2026-01-05")
    assert len(source.check(is_new=True)) == 1
    assert source.check(is_new=False) == replace(source, data_loss="skip").check(is_new=True) == []
    with pytest.raises(
        cj.ConfigurationError, match="partition 0: offsets before 4 are gone, and it is read up to offset 3"
    ):
        Range.of("earliest", {topic: {0: 3}}, label=WHAT).resolve(asked, read)
