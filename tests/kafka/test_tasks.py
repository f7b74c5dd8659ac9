"""How a batch is cut into tasks, beside a broker that has given up a part of it."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.kafka.client import Cluster, ClusterOptions, Gap, Span
from cojoin.kafka.tasks import Task, make_tasks
from tests.kafka.replayed import Written, delete_before, make, write
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cojoin.kafka.client import Partition
    from tests.servers.broker import Broker

import cojoin as cj

pytestmark = pytest.mark.kafka

TOPIC = "tasks"
PARTS = [(TOPIC, number) for number in range(4)]
WHAT = "input 'trades'"


@pytest.fixture(scope="module")
def cluster(broker: Broker) -> Iterator[Cluster]:
    """A topic of four partitions, of the last of which the first three records are gone."""
    servers = make(broker, TOPIC, partitions=4)
    write(servers, TOPIC, [Written(b"{}", 3) for _ in range(5)])
    delete_before(servers, TOPIC, 3, partition=3)
    made = Cluster(ClusterOptions(servers), WHAT)
    yield made
    made.close()


def cut(
    cluster: Cluster, begins: dict[Partition, int], ends: dict[Partition, int], mark: int | None = None, **options: Any
) -> list[Task]:
    settings = {"tasks": 4, "label": WHAT, "skips_losses": False} | options
    return make_tasks(cluster, begins, ends, mark, **settings)


def spans(tasks: list[Task]) -> list[list[tuple[int, int, int]]]:
    return [[(span.partition[1], span.begin, span.end) for span in task.spans] for task in tasks]


ranges = st.tuples(st.integers(0, 200_000), st.integers(0, 200_000)).map(sorted)


@given(st.lists(ranges, min_size=1, max_size=3), st.integers(1, 8))
def test_all_is_read_once_by_about_as_many_tasks_as_asked(cluster: Cluster, each: list[list[int]], tasks: int) -> None:
    begins = {part: begin for part, (begin, _) in zip(PARTS, each, strict=False)}
    ends = {part: end for part, (_, end) in zip(PARTS, each, strict=False)}
    made = cut(cluster, begins, ends, tasks=tasks)

    assert len(made) <= tasks
    sizes = [sum(span.end - span.begin for span in task.spans) for task in made]
    assert sum(sizes) == sum(ends.values()) - sum(begins.values())
    assert all(sizes)
    if len(sizes) > 1:
        assert max(sizes) == sizes[0]
        assert len(set(sizes[:-1])) == 1
        assert min(sizes[:-1]) >= 20_000
    at = dict(begins)
    for task in made:
        assert len({span.partition for span in task.spans}) == len(task.spans), "a partition's ranges meet"
        for span in task.spans:
            assert span.begin == at[span.partition] < span.end
            at[span.partition] = span.end
    assert at == ends


def test_few_records_are_one_task(cluster: Cluster) -> None:
    begins = dict.fromkeys(PARTS[:3], 0)
    assert spans(cut(cluster, begins, {PARTS[0]: 5, PARTS[1]: 9, PARTS[2]: 0})) == [[(0, 0, 5), (1, 0, 9)]]
    assert cut(cluster, begins, begins) == []


def test_marks_go_to_partitions_that_ever_held_a_record(cluster: Cluster) -> None:
    ends = {PARTS[0]: 7, PARTS[1]: 30_000, PARTS[2]: 0}
    first, second = cut(cluster, {PARTS[0]: 7, PARTS[1]: 0}, ends, 99, tasks=2)
    assert first.marks == {PARTS[0]: 99, PARTS[1]: 99}
    assert second.marks == {}
    (alone,) = cut(cluster, ends, ends, 99)
    assert (alone.spans, alone.marks) == ([], {PARTS[0]: 99, PARTS[1]: 99})
    (empty,) = cut(cluster, {}, dict.fromkeys(PARTS[:3], 0), 99)
    assert empty.marks == dict.fromkeys(PARTS[:3], 99)
    assert cut(cluster, ends, ends, None) == []


def test_what_is_gone_is_told_or_passed_over(cluster: Cluster) -> None:
    begins, ends = {PARTS[3]: 1, PARTS[0]: 0}, {PARTS[3]: 5, PARTS[0]: 2}
    lost = "topic tasks partition 3: offsets 1 to 2 (2 records)"
    with refused(WHAT, lost, 'data_loss="skip"', kind=cj.QueryFailedError):
        cut(cluster, begins, ends)
    (task,) = cut(cluster, begins, ends, skips_losses=True)
    assert spans([task]) == [[(3, 3, 5), (0, 0, 2)]]
    assert task.gaps == [Gap(PARTS[3], 1, 3)]
    # A whole batch is gone, up to its end and not beyond.
    (task,) = cut(cluster, {PARTS[3]: 0}, {PARTS[3]: 2}, skips_losses=True)
    assert (task.spans, task.gaps) == ([], [Gap(PARTS[3], 0, 2)])


def test_a_partition_that_is_new_begins_where_its_log_does(cluster: Cluster) -> None:
    assert spans(cut(cluster, {}, {PARTS[3]: 5, PARTS[0]: 2})) == [[(3, 3, 5), (0, 0, 2)]]


def test_tasks_travel() -> None:
    task = Task([Span(PARTS[0], 1, 2)], {PARTS[0]: 7}, [Gap(PARTS[1], 0, 3)])
    copy = pickle.loads(pickle.dumps(task))
    assert (copy.spans, copy.marks, copy.gaps) == (task.spans, task.marks, task.gaps)
