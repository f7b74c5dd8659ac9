"""A holder is alive by its process on this machine, and by its heartbeat on another."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from cojoin.checkpoints.lease import Lease, is_live, process_started
from tests.checkpoints.leases import beating, held_by, on_linux, stored
from tests.spark.refused import refused

if TYPE_CHECKING:
    from cojoin.storage.store import Store


@on_linux
def test_a_lease_that_this_process_forgot_is_taken_at_once(files: Store) -> None:
    here = process_started(os.getpid())
    held_by(files, host=socket.gethostname(), pid=os.getpid(), process_started=here)
    Lease.acquire(files).release()
    assert stored(files)["epoch"] == 8


@on_linux
@pytest.mark.parametrize("reaped", [True, False])
def test_a_process_that_was_killed_holds_nothing(files: Store, reaped: bool) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        started = process_started(process.pid)
        held_by(files, host=socket.gethostname(), pid=process.pid, process_started=started)
        before = time.monotonic()
        with refused("another query runs on it", f"process {process.pid}, epoch 7", kind=cj.CheckpointError):
            Lease.acquire(files)
        process.kill()
        if reaped:
            process.wait()
        while process_started(process.pid) is not None:
            time.sleep(0.01)
        lease = Lease.acquire(files)
        assert time.monotonic() - before < 10, "nobody's beat was watched"
    assert lease.epoch == 8
    lease.release()


@on_linux
def test_a_number_that_another_process_has_now_is_not_the_holder(files: Store) -> None:
    started = (process_started(os.getpid()) or "").rpartition("/")[0] + "/1"
    held_by(files, host=socket.gethostname(), pid=os.getppid(), process_started=started)
    assert not is_live(files)


def test_a_beat_that_moves_elsewhere_holds(files: Store) -> None:
    held_by(files)
    with beating(files, 0.3):
        assert is_live(files, patience_seconds=20)
        with refused("(host 'elsewhere', process 11, epoch 7); stop it", kind=cj.CheckpointError):
            Lease.acquire(files, patience_seconds=20)


def test_a_beat_that_stands_still_does_not(files: Store) -> None:
    held_by(files)
    assert not is_live(files, patience_seconds=0.4)
    before = time.monotonic()
    lease = Lease.acquire(files, patience_seconds=0.5)
    assert time.monotonic() - before >= 0.5
    assert lease.epoch == 8
    lease.release()


def test_a_slow_beat_has_its_time(files: Store) -> None:
    held_by(files, beat_seconds=0.5)
    before = time.monotonic()
    assert not is_live(files, patience_seconds=0)
    assert time.monotonic() - before >= 1.5
