"""Separate hosts on one machine for the tests: each with a network, a name, disks and a ``/tmp`` of its own.

A host is a set of Linux namespaces that live as long as a small process of it. Its network is a cable to a switch,
which can be pulled out (``cut``). Below ``/srv`` and ``/tmp`` it has disks that no other host sees, and below ``/mnt``
a folder that all of them share. The rest of the file system, such as Spark and Python, is this machine's.

Only root can make such hosts, with ``ip`` and ``unshare``; elsewhere ``why_not`` says why not. Nothing of them is left
when their processes have ended.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from tests.servers import Server, ServerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

__all__ = ["PRIVATE", "SHARED", "Hosts", "HostsCluster", "why_not"]

PRIVATE = "/srv"
"""The folder of each host that no other host sees; the same holds for ``/tmp``."""

SHARED = "/mnt"
"""The folder that all hosts share; for the tests it is ``Hosts.shared``."""

PROJECT = Path(__file__).resolve().parents[2]
START_SECONDS = 90
_NETWORK = "10.77.0"
_PORT = 7077
_NAMESPACES = ("net", "mnt", "uts")
_TOOLS = ("ip", "unshare", "nsenter", "mount")

_HOST = """
set -e
mount --bind {hosts} /etc/hosts
mount --bind {shared} {SHARED}
mount -t tmpfs tmpfs {PRIVATE}
mount -t tmpfs -o mode=1777 tmpfs /tmp
hostname {name}
ip link set lo up
echo ready
exec cat
"""
_SWITCH = "set -e; ip link add switch type bridge; ip link set switch up; ip link set lo up; echo ready; exec cat"


@functools.cache
def why_not() -> str | None:
    """Return why this machine can't make hosts; None if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "separate hosts are namespaces of Linux, which only root makes"
    missing = [each for each in _TOOLS if shutil.which(each) is None]
    if missing:
        return f"separate hosts need {', '.join(missing)}"
    for path in (PROJECT, Path(sys.executable).absolute(), Path(pyspark.__file__)):
        if any(path.is_relative_to(each) for each in (PRIVATE, SHARED, "/tmp")):
            return f"separate hosts have folders of their own below {PRIVATE}, {SHARED} and /tmp, and {path} is there"
    commands = (
        "mount -t tmpfs tmpfs /tmp && ip link add switch type bridge && ip link add end1 type veth peer name end2"
        " && hostname another"
    )
    tried = subprocess.run(
        ["unshare", "-n", "-m", "-u", "sh", "-c", commands], capture_output=True, text=True, check=False
    )
    return f"no namespaces are made on this machine: {tried.stderr.strip()}" if tried.returncode else None


class Hosts:
    """Hosts by their names, which find each other by them; they exist inside the ``with`` block.

    Args:
        names: The names.
    """

    def __init__(self, *names: str) -> None:
        self.names = names
        self._holders: dict[str, subprocess.Popen[str]] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def folder(self) -> Path:
        """The folder of this machine with the logs of the hosts' servers."""
        if self._folder is None:
            msg = "the hosts do not exist: use them inside their `with` block"
            raise ServerError(msg)
        return Path(self._folder.name)

    @property
    def shared(self) -> Path:
        """The folder that all hosts see at ``SHARED``."""
        return self.folder / "shared"

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="cojoin-hosts-", ignore_cleanup_errors=True)
        self.shared.mkdir()
        addresses = [f"{self.address(name)} {name}" for name in self.names]
        hosts = self.folder / "hosts"
        hosts.write_text("\n".join(["127.0.0.1 localhost", *addresses, ""]))
        try:
            self._hold("", ["-n"], _SWITCH)
            for name in self.names:
                given = {"hosts": hosts, "shared": self.shared, "name": name, "PRIVATE": PRIVATE, "SHARED": SHARED}
                self._hold(name, ["-n", "-m", "-u"], _HOST.format(**given))
                self._plug_in(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for name in self.names:
            self.kill(name)
        for holder in reversed(self._holders.values()):
            holder.kill()
            holder.wait()
            for pipe in (holder.stdin, holder.stdout):
                if pipe is not None:
                    pipe.close()
        self._holders = {}
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def address(self, name: str) -> str:
        """Return a host's address."""
        return f"{_NETWORK}.{self.names.index(name) + 2}"

    def command(self, name: str, *command: str) -> list[str]:
        """Return a command such that it runs on a host; its process is that of the command."""
        pid = self._holders[name].pid
        namespaces = [f"--{'mount' if each == 'mnt' else each}=/proc/{pid}/ns/{each}" for each in _NAMESPACES]
        return ["nsenter", *(namespaces if name else namespaces[:1]), "--", *command]

    def server(self, name: str, what: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> Server:
        """Start a server on a host, whose log is ``{what}.log`` in ``folder``."""
        return Server(what, self.command(name, *command), self.folder, environment() if env is None else env)

    def run(
        self, name: str, *command: str, env: Mapping[str, str] | None = None, seconds: float = 300, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end.

        Args:
            name: The host.
            command: The command.
            env: Its environment, by default ``environment()``.
            seconds: How long it may take.
            check: Whether it must succeed.

        Raises:
            ServerError: It took longer, or failed; the message holds the end of what it said.
        """
        try:
            done = subprocess.run(
                self.command(name, *command),
                env=environment() if env is None else env,
                cwd="/",
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            msg = f"{command[:3]} on {name} took more than {seconds:g} s:\n{(error.stderr or b'')[-4000:]!r}"
            raise ServerError(msg) from error
        if check and done.returncode != 0:
            msg = f"{command[:3]} on {name} failed with exit code {done.returncode}:\n{done.stderr[-4000:]}"
            raise ServerError(msg)
        return done

    def mount(self, name: str, source: str | Path, target: str | Path, *, read_only: bool = False) -> None:
        """Let a host see a file or folder of its own at another place, which is there already."""
        self.run(name, "mount", "--bind", str(source), str(target))
        if read_only:
            self.run(name, "mount", "-o", "remount,bind,ro", str(target))

    def cut(self, name: str) -> None:
        """Pull the cable out of a host: what is sent to it, and by it, is lost."""
        self.run("", "ip", "link", "set", f"to{self.names.index(name)}", "down")

    def join(self, name: str) -> None:
        """Put the cable of a host in again."""
        self.run("", "ip", "link", "set", f"to{self.names.index(name)}", "up")

    def pids(self, name: str, *, of: str = "") -> list[int]:
        """Return the ids of a host's processes, without the one that holds it.

        Args:
            name: The host.
            of: What their command lines have in them.
        """
        if name not in self._holders:
            return []
        holder, found = self._holders[name].pid, []
        here = _network(holder)
        for each in Path("/proc").iterdir():
            if each.name.isdigit() and int(each.name) != holder and _network(int(each.name)) == here is not None:
                with contextlib.suppress(OSError):
                    if of in (each / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                        found.append(int(each.name))
        return found

    def kill(self, name: str, *, of: str = "") -> None:
        """End processes of a host at once, as a power failure does; see ``pids``."""
        deadline = time.monotonic() + 10
        while (pids := self.pids(name, of=of)) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)  # those that nobody has waited for yet have no network any more

    def _hold(self, name: str, options: Sequence[str], commands: str) -> None:
        """Start the process with which a host's namespaces live: it ends with this process, whatever ends that."""
        command = ["unshare", *options, *(["--propagation", "private"] if "-m" in options else []), "sh", "-c"]
        holder = subprocess.Popen([*command, commands], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._holders[name] = holder
        if holder.stdout is None or holder.stdout.readline() != "ready\n":
            msg = f"the host {name!r} can't be made"
            raise ServerError(msg)

    def _plug_in(self, name: str) -> None:
        number, pid = self.names.index(name), self._holders[name].pid
        self.run("", "ip", "link", "add", f"to{number}", "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self.run("", "ip", "link", "set", f"to{number}", "master", "switch", "up")
        self.run(name, "ip", "address", "add", f"{self.address(name)}/24", "dev", "eth0")
        self.run(name, "ip", "link", "set", "eth0", "up")


class HostsCluster(Hosts):
    """A standalone Spark cluster of hosts: ``master``, ``driver``, and a host for each worker, named ``worker-1`` etc.

    Args:
        workers: How many hosts for workers there are.
        cores: The cores that each worker offers.
        memory: The memory that each worker offers to executors.
        start: How many workers are started at once, the first ones; the others by ``start_worker``.
        others: The names of other hosts.
    """

    master_url = f"spark://master:{_PORT}"

    def __init__(
        self,
        workers: int = 2,
        cores: int = 1,
        memory: str = "1g",
        start: int | None = None,
        others: Sequence[str] = (),
    ) -> None:
        super().__init__("master", "driver", *(f"worker-{number + 1}" for number in range(workers)), *others)
        self._options = ["-c", str(cores), "-m", memory]
        self._start = workers if start is None else start
        self._servers: list[Server] = []

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            command = ["org.apache.spark.deploy.master.Master", "--host", "master", "--port", str(_PORT)]
            master = self.server("master", "master", [_launcher(), *command, "--webui-port", "0"])
            self._servers.append(master)
            master.wait_until(lambda: "New state: ALIVE" in self.log("master"), START_SECONDS)
            for number in range(self._start):
                self.start_worker(f"worker-{number + 1}", wait=False)
            for number in range(self._start):
                self.wait_for_worker(f"worker-{number + 1}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        while self._servers:
            self._servers.pop().stop()
        super().__exit__(*error)

    def start_worker(self, name: str, *, env: Mapping[str, str] | None = None, wait: bool = True) -> None:
        """Start the worker of a host.

        Args:
            name: The host.
            env: What differs in its environment, which its executors and their Python have, too.
            wait: Whether to wait until the master knows it.
        """
        command = ["org.apache.spark.deploy.worker.Worker", "--host", name, "--webui-port", "0"]
        place = ["-d", f"{PRIVATE}/spark"]
        given = environment() | dict(env or {})
        worker = self.server(name, name, [_launcher(), *command, *place, *self._options, self.master_url], given)
        self._servers.append(worker)
        if wait:
            self.wait_for_worker(name)

    def wait_for_worker(self, name: str) -> None:
        """Wait until the master knows the worker of a host."""
        server = next(each for each in reversed(self._servers) if each.name == name)
        server.wait_until(lambda: "Successfully registered with master" in self.log(name), START_SECONDS)

    def driver(
        self,
        script: Path,
        *arguments: str,
        host: str = "driver",
        seconds: float = 300,
        check: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a Python program on a host, the master's address its first argument; see ``run``."""
        command = [sys.executable, str(script), self.master_url, *arguments]
        return self.run(host, *command, seconds=seconds, check=check, env=environment() | dict(env or {}))

    def log(self, what: str) -> str:
        """Return what a server has said so far, by the name of its log."""
        return (self.folder / f"{what}.log").read_text(errors="replace")


def environment() -> dict[str, str]:
    """Return the environment of what runs on a host: this Spark, this Python, and the project's own modules."""
    path = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_LOCAL_")}
    return given | {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path),
        "TMPDIR": "/tmp",
        "no_proxy": "*",
    }


def _launcher() -> str:
    return str(Path(pyspark.__file__).parent / "bin" / "spark-class")  # it becomes the Java process: same id


def _network(pid: int) -> str | None:
    """Return which network a process is in; None where it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")  # noqa: PTH115 - it is no file that a path leads to
    except OSError:
        return None
