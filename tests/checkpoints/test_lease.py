"""A checkpoint has one live holder; a dead one's is taken over, and whoever lost it finds out."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from cojoin.checkpoints.lease import Lease, LeaseRecord, end, ended, forget_owner, holder, is_live, process_started
from cojoin.storage.local_store import LocalStore
from cojoin.storage.store import Store
from tests.checkpoints.leases import held_by, on_linux, said, stored
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("damage", ["", '{"format": 1}', "[]"])
def test_who_can_not_tell_whether_another_runs_does_not_run(files: Store, damage: str) -> None:
    lease = Lease.acquire(files)
    files.write("lease.json", damage)
    told = ("lease.json, the lease that keeps a second query away, is damaged", "no query runs", "delete this file")
    for look in (Lease.acquire, is_live, holder, ended, lambda files: end(files, "restored elsewhere")):
        with refused(*told, kind=cj.CheckpointError):
            look(files)
    with refused(*told, "This query held epoch 1 and stops", kind=cj.QueryFailedError):
        lease.check()
    lease.release()
    assert files.read("lease.json") == damage
    files.delete("lease.json")
    Lease.acquire(files).release()


def test_a_beat_that_nobody_can_read_is_the_holder_s_to_write_anew(files: Store) -> None:
    lease = Lease.acquire(files, beat_seconds=0.5)
    deadline = time.monotonic() + 60
    while not files.names("beats"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    files.write("beats/000000000001.json", "[]")
    for look in (Lease.acquire, is_live, holder, ended):
        with refused("beats/000000000001.json, the sign of life", "delete this file", kind=cj.CheckpointError):
            look(files)
    lease.check()
    while said(files).get("beat", 0) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    lease.release()
    assert holder(files) is None


def test_a_lease_of_release_0_5_0_holds(files: Store) -> None:
    here = process_started(os.getppid())
    record = LeaseRecord(7, "someone", socket.gethostname(), os.getppid(), here)
    files.write("lease.json", json.dumps({"format": 1, **asdict(record)}))
    with refused(f"process {os.getppid()}, epoch 7", kind=cj.CheckpointError):
        Lease.acquire(files, patience_seconds=0.1)


def test_a_newer_format_asks_for_an_upgrade(files: Store) -> None:
    files.write("lease.json", '{"format": 3}')
    with refused("lease.json", "has the format 3, which is newer than 2: upgrade cojoin", kind=cj.CheckpointError):
        Lease.acquire(files)


def test_a_free_checkpoint_is_taken_held_and_given_back(files: Store) -> None:
    assert holder(files) is None
    assert not is_live(files)
    lease = Lease.acquire(files, beat_seconds=0.05)
    assert (lease.epoch, lease.is_held) == (1, True)
    assert holder(files) == f"host {socket.gethostname()!r}, process {os.getpid()}, epoch 1"
    assert is_live(files)
    lease.check()
    deadline = time.monotonic() + 10
    while said(files)["beat"] < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with refused("another query runs on it", f"process {os.getpid()}, epoch 1", kind=cj.CheckpointError):
        Lease.acquire(files)
    lease.release()
    lease.release()
    assert not lease.is_held
    assert holder(files) is None
    assert not is_live(files)
    before = said(files)
    time.sleep(0.2)
    assert said(files) == before, "no beat after the release"

    second = Lease.acquire(files)
    assert second.epoch == 2
    assert files.names("beats") == ["000000000002.json"], "those of former holders are gone"
    lease.release()
    second.check()
    with refused("fenced off: another query took over at epoch 2", kind=cj.QueryFailedError):
        lease.check()
    second.release()


def test_what_a_holder_finds_after_another_has_taken_over_is_explained_by_that(files: Store) -> None:
    lease = Lease.acquire(files, beat_seconds=0.05)
    error = cj.CheckpointError("a file is gone; put it back from a backup")
    assert lease.explained(error) is error
    held_by(files)
    explained = lease.explained(error)
    assert isinstance(explained, cj.QueryFailedError)
    assert "fenced off: another query took over at epoch 7" in str(explained)
    assert "put it back" not in str(explained)
    files.write("lease.json", "{")
    assert lease.explained(error) is error, "it is not known"
    lease.release()


def test_its_epoch_rises_above_that_of_an_output(files: Store) -> None:
    lease = Lease.acquire(files, beat_seconds=0.05)
    lease.raise_above(8)
    assert (lease.epoch, stored(files)["epoch"], lease.is_held) == (9, 9, True)
    assert files.names("beats") == ["000000000009.json"]
    deadline = time.monotonic() + 10
    while said(files, 9)["beat"] < 4:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    lease.check()
    lease.release()
    second = Lease.acquire(files)
    assert second.epoch == 10
    held_by(files, epoch=11)
    with refused("fenced off: another query took over at epoch 11", kind=cj.QueryFailedError):
        second.raise_above(12)
    assert stored(files)["epoch"] == 11


def test_a_run_that_fails_before_it_has_fenced_leaves_that_to_the_next(files: Store) -> None:
    held_by(files)
    failed = Lease.acquire(files, patience_seconds=0.1)
    assert failed.takes_over
    failed.release()
    second = Lease.acquire(files)
    assert second.takes_over, "the first holder may still be suspended, and nothing fences it off yet"
    second.note_fenced()
    assert not second.takes_over
    second.release()
    third = Lease.acquire(files)
    assert not third.takes_over
    third.release()


def test_of_two_that_take_it_at_once_one_holds_it(files: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = LocalStore.replace

    def replace_second(self: LocalStore, name: str, content: bytes, tag: str | None) -> bool:
        """Another process writes right before, after this one has looked."""
        monkeypatch.setattr(LocalStore, "replace", replace)
        held_by(files, epoch=1)
        return replace(self, name, content, tag)

    monkeypatch.setattr(LocalStore, "replace", replace_second)
    with refused("host 'elsewhere', process 11, epoch 1", kind=cj.CheckpointError):
        Lease.acquire(files)
    assert stored(files)["owner"] == "someone else"


def test_without_compare_and_swap_the_one_that_reads_anothers_record_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unswapping(LocalStore):
        has_conditional_writes = False

        def replace(self, name: str, content: bytes, tag: str | None) -> bool:
            """Another process writes right after, as it had looked before."""
            self.write_bytes(name, content)
            held_by(self, epoch=1)
            return True

    files = Unswapping(str(tmp_path))
    with refused("host 'elsewhere', process 11, epoch 1", kind=cj.CheckpointError):
        Lease.acquire(files)
    assert stored(files)["owner"] == "someone else"


def test_a_takeover_whose_answer_was_lost_is_one(files: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = LocalStore.replace

    def lose_the_answer(self: LocalStore, name: str, content: bytes, tag: str | None) -> bool:
        replace(self, name, content, tag)
        msg = "the network is gone"
        raise cj.CheckpointError(msg)

    monkeypatch.setattr(LocalStore, "replace", lose_the_answer)
    lease = Lease.acquire(files)
    lease.check()
    lease.release()

    def refuse(*_: object) -> bool:
        msg = "the network is gone"
        raise cj.CheckpointError(msg)

    monkeypatch.setattr(LocalStore, "replace", refuse)
    with refused("the network is gone", kind=cj.CheckpointError):
        Lease.acquire(files)


def test_threads_that_take_it_at_once(files: Store) -> None:
    held: list[Lease] = []
    refusals: list[str] = []

    def take() -> None:
        try:
            held.append(Lease.acquire(files, patience_seconds=0.1))
        except cj.CheckpointError as error:
            refusals.append(str(error))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) + len(refusals) == 4, refusals
    assert len(held) == 1
    held[0].check()
    held[0].release()


def test_who_is_taken_over_finds_out_and_never_writes_again(files: Store) -> None:
    lease = Lease.acquire(files, beat_seconds=0.05)
    lease.check()
    held_by(files)
    with refused(
        "fenced off: another query took over at epoch 7 (host 'elsewhere', process 11, epoch 7); this query held "
        "epoch 1",
        kind=cj.QueryFailedError,
    ):
        lease.check()
    lease.release()
    time.sleep(0.2)
    assert stored(files)["owner"] == "someone else"
    assert ended(files) is None


@on_linux
@pytest.mark.parametrize("ends", [False, True])
def test_a_holder_that_stood_still_overwrites_nobody(files: Store, monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    """It is stopped between its look and its beat; meanwhile another takes over, or the checkpoint is ended."""
    write, still, goes_on = Store.write, threading.Event(), threading.Event()

    def stand_still(self: Store, name: str, text: str) -> None:
        if threading.current_thread().name == "cojoin-lease" and not still.is_set():
            still.set()
            assert goes_on.wait(60)
        write(self, name, text)

    first = Lease.acquire(files, beat_seconds=0.05)
    monkeypatch.setattr(Store, "write", stand_still)
    assert still.wait(60)
    forget_owner(first._record.owner)  # as another process sees it
    if ends:
        end(files, "restored elsewhere")
    else:
        second = Lease.acquire(files, beat_seconds=60)
    goes_on.set()
    deadline = time.monotonic() + 60
    while first.is_held:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with refused("fenced off", "ended" if ends else "epoch 2", kind=cj.QueryFailedError):
        first.check()
    first.release()
    assert ended(files) == ("restored elsewhere" if ends else None)
    if not ends:
        second.check()
        second.release()
        assert holder(files) is None


def test_a_deleted_checkpoint_stops_its_query(files: Store) -> None:
    lease = Lease.acquire(files)
    files.delete("lease.json")
    with refused("fenced off: lease.json is gone", kind=cj.QueryFailedError):
        lease.check()
    assert not lease.is_held


def test_epochs_go_on_where_a_damaged_record_was_deleted(files: Store) -> None:
    for epoch in (1, 2):
        lease = Lease.acquire(files)
        assert lease.epoch == epoch
        lease.release()
    files.delete("lease.json")
    assert Lease.acquire(files).epoch == 3


def test_a_former_record_is_refused(files: Store) -> None:
    Lease.acquire(files).release()
    former = files.read("lease.json")
    Lease.acquire(files).release()
    files.write("lease.json", former or "")
    with refused("lease.json", "epoch 1", "former version", "delete this file", kind=cj.CheckpointError):
        Lease.acquire(files)


def test_a_record_from_before_the_end_is_refused(files: Store) -> None:
    Lease.acquire(files).release()
    former = files.read("lease.json")
    end(files, "restored elsewhere")
    files.write("lease.json", former or "")
    with refused("lease.json", "former version", kind=cj.CheckpointError):
        Lease.acquire(files)


def test_an_ended_checkpoint_can_not_be_taken(files: Store) -> None:
    Lease.acquire(files)
    end(files, "its output goes on in '/lake/b'")
    assert holder(files) is None
    with refused("was ended for good: its output goes on in '/lake/b'; start with another", kind=cj.CheckpointError):
        Lease.acquire(files)
    end(files, "another reason")
    assert ended(files) == "its output goes on in '/lake/b'"


def test_ending_it_from_outside_fences_the_holder_off(files: Store) -> None:
    lease = Lease.acquire(files)
    end(files, "restored elsewhere")
    assert not is_live(files)
    with refused("fenced off: the checkpoint was ended: restored elsewhere", kind=cj.QueryFailedError):
        lease.check()
    lease.release()
    assert ended(files) == "restored elsewhere"


def test_a_checkpoint_without_a_lease_can_be_ended(files: Store) -> None:
    end(files, "restored elsewhere")
    with refused("was ended for good: restored elsewhere", kind=cj.CheckpointError):
        Lease.acquire(files)


def test_a_beat_survives_what_it_meets(files: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease.acquire(files, beat_seconds=0.05)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "read_tagged", lambda *_: 1 / 0)
        time.sleep(0.2)
    before = said(files)["beat"]
    deadline = time.monotonic() + 10
    while said(files)["beat"] == before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    lease.release()
