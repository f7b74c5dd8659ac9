"""What the lease's files say: damaged ones let nobody run, and those of other releases are read or refused."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from cojoin.checkpoints.lease import Lease, end
from cojoin.checkpoints.lease_liveness import is_live, process_started
from cojoin.checkpoints.lease_record import LeaseRecord, ended, holder
from tests.checkpoints.leases import said
from tests.spark.refused import refused

if TYPE_CHECKING:
    from cojoin.storage.store import Store


@pytest.mark.parametrize("damage", ["", '{"format": 1}', "[]"])
def test_who_can_not_tell_whether_another_runs_does_not_run(files: Store, damage: str) -> None:
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
