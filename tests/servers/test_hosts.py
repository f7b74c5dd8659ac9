from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers.hosts import PRIVATE, SHARED, Hosts, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

_LISTEN = "import socket; server = socket.create_server(('', 7000)); server.accept()[0].sendall(b'here')"
_ASK = "import socket; print(socket.create_connection(('second', 7000), 1).recv(9).decode())"


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if why_not():
        pytest.skip(str(why_not()))
    with Hosts("first", "second") as made:
        yield made


def test_hosts_have_disks_of_their_own_and_share_one_folder(hosts: Hosts) -> None:
    for folder in (PRIVATE, SHARED, "/tmp"):
        hosts.run("first", "touch", f"{folder}/of-first")
    found = [hosts.run("second", "test", "-e", f"{each}/of-first", check=False) for each in (PRIVATE, SHARED, "/tmp")]
    assert [each.returncode for each in found] == [1, 0, 1]
    assert (hosts.shared / "of-first").exists()
    assert not Path(PRIVATE, "of-first").exists()
    assert hosts.run("second", "hostname").stdout == "second\n"


def test_a_host_is_cut_off_joined_again_and_killed(hosts: Hosts) -> None:
    listening = hosts.server("second", "listening", ["python3", "-c", _LISTEN])
    listening.wait_until(lambda: bool(hosts.run("second", "ss", "-Hltn", "sport", "=", "7000").stdout.strip()), 10)
    hosts.cut("second")
    assert hosts.run("first", "python3", "-c", _ASK, check=False).returncode == 1
    hosts.join("second")
    assert hosts.run("first", "python3", "-c", _ASK).stdout == "here\n"
    left = hosts.server("second", "left", ["sleep", "60"])
    listening.stop()
    # It is the host's once it has entered its network.
    left.wait_until(lambda: left.pid in hosts.pids("second", of="sleep"), 10)
    hosts.kill("second", of="sleep")
    with pytest.raises(Exception, match="ended with exit code -9"):
        left.wait_until(lambda: False, 5)
