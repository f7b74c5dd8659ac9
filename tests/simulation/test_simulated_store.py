"""The simulated store answers as the real ones do, whatever sequence of operations it gets."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from obstore.store import MemoryStore

from cojoin.session.hadoop_store import HadoopStore
from cojoin.storage.local_store import LocalStore
from cojoin.storage.object_store import ObjectStore
from tests.seeds import SEED
from tests.simulation.simulated_clock import Scheduler
from tests.simulation.simulated_disk import Disk
from tests.simulation.simulated_store import SimulatedStore

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cojoin.storage.store import Store

_FILES = (
    "lease.json",
    "manifest/1.json",
    "manifest/2.json",
    "state/batch_id=1/a.parquet",
    "state/batch_id=2/b.parquet",
)
_FOLDERS = ("manifest", "state", "state/batch_id=1", "state/batch_id=2", "made/here")
_STEPS = 150


class Client:
    """Uses one store, and remembers the tags that it was given."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.tags: dict[str, list[str | None]] = {name: [None] for name in _FILES}

    def do(self, operation: str, name: str, folder: str, content: bytes, back: int) -> Any:
        """Return what an operation answers, without what differs between stores, as the tags do."""
        store = self.store
        if operation == "read":
            found = store.read_tagged(name)
            if found is not None and found.tag != self.tags[name][-1]:
                self.tags[name].append(found.tag)
            return None if found is None else found.content
        if operation == "replace":
            tags = self.tags[name]
            return store.replace(name, content, tags[max(0, len(tags) - 1 - back)])
        if operation == "size of folder":
            return store.size(folder) if store.names(folder) else 0
        simple = {
            "write": lambda: store.write_bytes(name, content),
            "create": lambda: store.create(name, content),
            "delete": lambda: store.delete(name),
            "delete folder": lambda: store.delete_directory(folder),
            "exists": lambda: store.exists(name),
            "make": lambda: store.make_directory("made/here"),
            "made": lambda: store.names("made/here"),
            "place": store.check_place,
            # An object store has no empty folders, so only the files below one are compared.
            "names": lambda: [each for each in store.names(folder) if f"{folder}/{each}" in _FILES],
            "size": lambda: store.size(name) if store.exists(name) else None,
            "text": lambda: store.read(name),
        }
        return simple[operation]()


_OPERATIONS = (
    *("read", "read", "replace", "replace", "write", "create", "delete", "exists", "names", "size", "text"),
    *("delete folder", "make", "made", "place", "size of folder"),
)


def compare(real: Store, number: int, *, has_conditional_writes: bool = True) -> None:
    """Do random operations with a real store and a simulated one, and compare each answer."""
    draw = random.Random(f"{SEED} {number}")
    disk = Disk(Scheduler(random.Random(0), 0.0), has_conditional_writes=has_conditional_writes, loses_power=False)
    clients = Client(real), Client(SimulatedStore(disk, "/lake"))
    done = []
    for step in range(_STEPS):
        operation, name, folder = draw.choice(_OPERATIONS), draw.choice(_FILES), draw.choice(_FOLDERS)
        content, back = f"{step} {'x' * draw.randint(0, 9)}".encode(), draw.choice((0, 0, 1, 2))
        done.append((operation, name, folder, back))
        answers = [client.do(operation, name, folder, content, back) for client in clients]
        assert answers[0] == answers[1], f"{real!r} and the simulated store differ at the end of {done}"


@pytest.mark.parametrize("real", ["local", "memory"])
@pytest.mark.parametrize("number", range(8))
def test_the_same_sequence_gives_the_same_answers(real: str, number: int, tmp_path: Path) -> None:
    compare(LocalStore(str(tmp_path)) if real == "local" else ObjectStore(MemoryStore(), "memory://lake"), number)


@pytest.mark.spark
@pytest.mark.parametrize("number", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in range(1, 8))])
def test_hadoop_gives_the_same_answers_too(spark: SparkSession, number: int, tmp_path: Path) -> None:
    compare(HadoopStore(spark, str(tmp_path)), number, has_conditional_writes=False)


def test_without_compare_and_swap_two_may_both_succeed() -> None:
    disk = Disk(Scheduler(random.Random(0), 0.0), has_conditional_writes=False, loses_power=False)
    store = SimulatedStore(disk, "/lake")
    assert not store.has_conditional_writes
    assert store.create("lease.json", b"1")
    assert not store.create("lease.json", b"2")
    found = store.read_tagged("lease.json")
    assert found is not None
    assert store.replace("lease.json", b"3", found.tag)
    assert not store.replace("lease.json", b"4", found.tag)


def test_a_power_failure_undoes_the_newest_changes_alone() -> None:
    from tests.simulation.simulated_clock import Crash

    disk = Disk(Scheduler(random.Random(0), 0.0), has_conditional_writes=True, loses_power=True)
    store = SimulatedStore(disk, "/lake")
    store.write("a", "first")
    store.write("a", "second")
    store.write("b", "third")
    store.delete("a")
    with pytest.raises(Crash):
        disk._lose_power(3)
    assert (store.read("a"), store.read("b"), store.names("")) == ("first", None, ["a"])
