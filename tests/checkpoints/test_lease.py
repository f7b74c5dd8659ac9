"""A checkpoint has one live holder; a dead one's is taken over, and whoever lost it finds out."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.checkpoints import lease as lease_module
from cojoin.checkpoints.lease import Lease, end, ended, holder, is_live
from cojoin.storage.documents import write_document
from cojoin.storage.small_files import CheckpointFiles
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

on_linux = pytest.mark.skipif(
    lease_module._process_started(os.getpid()) is None, reason="only /proc tells of another process"
)


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> CheckpointFiles:
    return CheckpointFiles(spark, f"{tmp_path}/checkpoint")


def stored(files: CheckpointFiles) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(files.read("lease.json") or "")["content"]
    return values


def said(files: CheckpointFiles, epoch: int = 1) -> dict[str, Any]:
    """Return what a holder's own file says."""
    text = files.read(f"beats/{epoch:012d}.json")
    values: dict[str, Any] = {"beat": 0} if text in {None, "[]"} else json.loads(text or "")["content"]
    return values


def says(files: CheckpointFiles, **values: Any) -> None:
    """Write the own file of ``held_by``'s other process."""
    content = {"owner": "someone else", "beat": 3, "released": False, "ended": None}
    write_document(files, f"beats/{7:012d}.json", lease_module._BEAT_FORM, content | values)


def held_by(files: CheckpointFiles, **values: Any) -> None:
    """Write another process's lease."""
    record = {
        "epoch": 7,
        "owner": "someone else",
        "host": "elsewhere",
        "pid": 11,
        "process_started": None,
        "beat": 0,
        "beat_seconds": 0.1,
        "released": False,
        "ended": None,
    }
    write_document(files, "lease.json", lease_module._FORM, record | values)


@contextmanager
def beating(files: CheckpointFiles, seconds: float) -> Iterator[None]:
    """Let the other process's beat grow meanwhile."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(seconds):
            says(files, beat=said(files, 7)["beat"] + 1)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_free_checkpoint_is_taken_held_and_given_back(files: CheckpointFiles) -> None:
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
    assert files.names("beats") == []
    lease.release()
    second.check()
    with refused("fenced off: another query took over at epoch 2", kind=cj.QueryFailedError):
        lease.check()
    second.release()


@on_linux
def test_a_lease_that_this_process_forgot_is_taken_at_once(files: CheckpointFiles) -> None:
    here = lease_module._process_started(os.getpid())
    held_by(files, host=socket.gethostname(), pid=os.getpid(), process_started=here)
    Lease.acquire(files).release()
    assert stored(files)["epoch"] == 8


@on_linux
@pytest.mark.parametrize("reaped", [True, False])
def test_a_process_that_was_killed_holds_nothing(files: CheckpointFiles, reaped: bool) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        started = lease_module._process_started(process.pid)
        held_by(files, host=socket.gethostname(), pid=process.pid, process_started=started)
        before = time.monotonic()
        with refused("another query runs on it", f"process {process.pid}, epoch 7", kind=cj.CheckpointError):
            Lease.acquire(files)
        process.kill()
        if reaped:
            process.wait()
        while lease_module._process_started(process.pid) is not None:
            time.sleep(0.01)
        lease = Lease.acquire(files)
        assert time.monotonic() - before < 10, "nobody's beat was watched"
    assert lease.epoch == 8
    lease.release()


@on_linux
def test_a_number_that_another_process_has_now_is_not_the_holder(files: CheckpointFiles) -> None:
    started = (lease_module._process_started(os.getpid()) or "").rpartition("/")[0] + "/1"
    held_by(files, host=socket.gethostname(), pid=os.getppid(), process_started=started)
    assert not is_live(files)


def test_a_beat_that_moves_elsewhere_holds(files: CheckpointFiles) -> None:
    held_by(files)
    with beating(files, 0.3):
        assert is_live(files, patience_seconds=20)
        with refused("(host 'elsewhere', process 11, epoch 7); stop it", kind=cj.CheckpointError):
            Lease.acquire(files, patience_seconds=20)


def test_a_beat_that_stands_still_does_not(files: CheckpointFiles) -> None:
    held_by(files)
    assert not is_live(files, patience_seconds=0.4)
    before = time.monotonic()
    lease = Lease.acquire(files, patience_seconds=0.5)
    assert time.monotonic() - before >= 0.5
    assert lease.epoch == 8
    lease.release()


def test_a_slow_beat_has_its_time(files: CheckpointFiles) -> None:
    held_by(files, beat_seconds=0.5)
    before = time.monotonic()
    assert not is_live(files, patience_seconds=0)
    assert time.monotonic() - before >= 1.5


@pytest.mark.parametrize("damage", ["", '{"format": 1}', "[]"])
def test_who_can_not_tell_whether_another_runs_does_not_run(files: CheckpointFiles, damage: str) -> None:
    lease = Lease.acquire(files)
    files.write("lease.json", damage)
    told = ("lease.json, the lease that keeps a second query away, is damaged", "no query runs", "delete this file")
    for look in (Lease.acquire, is_live, holder, ended, lambda files: end(files, "restored elsewhere")):
        with refused(*told, kind=cj.CheckpointError):
            look(files)
    with refused(*told, "This query held epoch 1 and stops here", kind=cj.QueryFailedError):
        lease.check()
    lease.release()
    assert files.read("lease.json") == damage
    files.delete("lease.json")
    Lease.acquire(files).release()


def test_a_beat_that_nobody_can_read_is_the_holder_s_to_write_anew(files: CheckpointFiles) -> None:
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


def test_a_lease_of_release_0_5_0_holds(files: CheckpointFiles) -> None:
    here = lease_module._process_started(os.getppid())
    record = lease_module._Record(7, "someone", socket.gethostname(), os.getppid(), here)
    files.write("lease.json", json.dumps({"format": 1, **asdict(record)}))
    with refused(f"process {os.getppid()}, epoch 7", kind=cj.CheckpointError):
        Lease.acquire(files, patience_seconds=0.1)


def test_of_two_that_take_it_at_once_one_holds_it(files: CheckpointFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    write = CheckpointFiles.write

    def write_first(self: CheckpointFiles, name: str, text: str) -> None:
        """Another process writes right after."""
        write(self, name, text)
        monkeypatch.setattr(CheckpointFiles, "write", write)
        held_by(files, epoch=1)

    monkeypatch.setattr(CheckpointFiles, "write", write_first)
    with refused("host 'elsewhere', process 11, epoch 1", kind=cj.CheckpointError):
        Lease.acquire(files)
    assert stored(files)["owner"] == "someone else"


def test_threads_that_take_it_at_once(files: CheckpointFiles) -> None:
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
    # On a machine that stands still for a moment two may believe in it: the next check tells.
    holding = []
    for lease in held:
        with suppress(cj.QueryFailedError):
            lease.check()
            holding.append(lease)
    assert len(holding) == 1
    holding[0].release()


def test_who_is_taken_over_finds_out_and_never_writes_again(files: CheckpointFiles) -> None:
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
    lease.end("never")
    time.sleep(0.2)
    assert stored(files)["owner"] == "someone else"
    assert ended(files) is None


@on_linux
@pytest.mark.parametrize("ends", [False, True])
def test_a_holder_that_stood_still_overwrites_nobody(
    files: CheckpointFiles, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """It is stopped between its look and its beat; meanwhile another takes over, or the checkpoint is ended."""
    write, still, goes_on = CheckpointFiles.write, threading.Event(), threading.Event()

    def stand_still(self: CheckpointFiles, name: str, text: str) -> None:
        if threading.current_thread().name == "cojoin-lease" and not still.is_set():
            still.set()
            assert goes_on.wait(60)
        write(self, name, text)

    first = Lease.acquire(files, beat_seconds=0.05)
    monkeypatch.setattr(CheckpointFiles, "write", stand_still)
    assert still.wait(60)
    with lease_module._live_lock:
        del lease_module._live[first._record.owner]  # as another process sees it
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
    first.end("never")
    assert ended(files) == ("restored elsewhere" if ends else None)
    if not ends:
        second.check()
        second.release()
        assert holder(files) is None


def test_a_deleted_checkpoint_stops_its_query(files: CheckpointFiles) -> None:
    lease = Lease.acquire(files)
    files.delete("lease.json")
    with refused("fenced off: lease.json is gone", kind=cj.QueryFailedError):
        lease.check()
    assert not lease.is_held


def test_an_ended_checkpoint_can_not_be_taken(files: CheckpointFiles) -> None:
    Lease.acquire(files).end("its output goes on in '/lake/b'")
    assert holder(files) is None
    with refused("was ended for good: its output goes on in '/lake/b'; start with another", kind=cj.CheckpointError):
        Lease.acquire(files)
    end(files, "another reason")
    assert ended(files) == "its output goes on in '/lake/b'"


def test_ending_it_from_outside_fences_the_holder_off(files: CheckpointFiles) -> None:
    lease = Lease.acquire(files)
    end(files, "restored elsewhere")
    assert not is_live(files)
    with refused("fenced off: the checkpoint was ended: restored elsewhere", kind=cj.QueryFailedError):
        lease.check()
    lease.release()
    assert ended(files) == "restored elsewhere"


def test_a_checkpoint_without_a_lease_can_be_ended(files: CheckpointFiles) -> None:
    end(files, "restored elsewhere")
    with refused("was ended for good: restored elsewhere", kind=cj.CheckpointError):
        Lease.acquire(files)


def test_a_newer_format_asks_for_an_upgrade(files: CheckpointFiles) -> None:
    files.write("lease.json", '{"format": 3}')
    with refused("lease.json", "has the format 3, which is newer than 2: upgrade cojoin", kind=cj.CheckpointError):
        Lease.acquire(files)


def test_a_beat_survives_what_it_meets(files: CheckpointFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease.acquire(files, beat_seconds=0.05)
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFiles, "read", lambda *_: 1 / 0)
        time.sleep(0.2)
    before = said(files)["beat"]
    deadline = time.monotonic() + 10
    while said(files)["beat"] == before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    lease.release()
