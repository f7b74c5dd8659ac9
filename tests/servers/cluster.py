"""A standalone Spark cluster for the tests: a master and workers from the installed PySpark, in processes of their own.

What works with `local[2]` may still fail here: executors have other working directories, share no globals with the
driver, and import what they run by themselves. A driver runs in a process of its own, too, since one Python process
can hold only one Spark context, and the tests' session has it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from tests.servers import Server, ServerError, free_ports

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

START_SECONDS = 90
PROJECT = Path(__file__).resolve().parents[2]


class Cluster:
    """A master and its workers on this machine, running inside the `with` block."""

    def __init__(
        self,
        workers: int = 2,
        cores: int = 1,
        memory: str = "2g",
        hosts: Sequence[str] = ("127.0.0.1",),
        paths: Sequence[str] = (),
    ) -> None:
        """Choose the addresses; nothing runs yet.

        Args:
            workers: How many worker processes there are.
            cores: The cores each of them offers.
            memory: The memory each of them offers to executors.
            hosts: This machine's own addresses, which the workers take in turn: Spark runs no second try of a slow task
                on the first one's host.
            paths: Each worker's PYTHONPATH; those beyond have the project's.
        """
        self.workers, self._hosts, self._paths = workers, hosts, paths
        self._worker_options = ["-c", str(cores), "-m", memory]
        self._port, self._page_port = free_ports(2)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._servers: list[Server] = []

    @property
    def master_url(self) -> str:
        """What `SparkSession.builder.master` takes."""
        return f"spark://127.0.0.1:{self._port}"

    @property
    def pids(self) -> list[int]:
        """The process ids of the master and of the workers, in this order."""
        return [server.pid for server in self._servers]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the master, then the workers, and wait until all of them are registered."""
        self._folder = tempfile.TemporaryDirectory(prefix="cojoin-cluster-")
        try:
            address = ["--port", str(self._port), "--webui-port", str(self._page_port)]
            self._launch("master", ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", *address])
            self._servers[0].wait_until(partial(self._has_registered, 0), START_SECONDS)
            for number in range(self.workers):
                name = f"worker-{number}"
                host = self._hosts[number % len(self._hosts)]
                place = ["--host", host, "--webui-port", "0", "-d", str(Path(self._folder.name) / name)]
                worker = ["org.apache.spark.deploy.worker.Worker", *place, *self._worker_options, self.master_url]
                own = {"PYTHONPATH": self._paths[number]} if number < len(self._paths) else {}
                self._launch(name, worker, own)
            for number, server in enumerate(self._servers[1:], start=1):  # each, so that a dead one shows its log
                server.wait_until(partial(self._has_registered, number), START_SECONDS)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the workers, which end their executors, then the master; a second call does nothing."""
        while self._servers:
            self._servers.pop().stop()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def run_driver(self, script: Path, *arguments: str, submit: Sequence[str] = (), seconds: float = 300) -> str:
        """Run a Python program in its own folder, the master's address its first argument; return what it printed.

        Args:
            script: The program.
            arguments: Its other arguments.
            submit: Options with which ``spark-submit`` runs it; without any it is run as a plain program.
            seconds: How long it may take.

        Raises:
            ServerError: If it fails or takes longer than `seconds`; the message holds the end of its log.
        """
        launcher = [sys.executable]
        if submit:
            launcher = [
                str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
                "--master",
                self.master_url,
                *submit,
            ]
        command = [*launcher, str(script), self.master_url, *arguments]
        env = _environment()
        try:
            run = subprocess.run(
                command, cwd=script.parent, env=env, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired as error:
            msg = f"the driver {script.name} took more than {seconds:g} s:\n{(error.stderr or b'')[-4000:]!r}"
            raise ServerError(msg) from error
        if run.returncode != 0:
            msg = f"the driver {script.name} failed with exit code {run.returncode}:\n{run.stderr[-4000:]}"
            raise ServerError(msg)
        return run.stdout

    def _launch(self, name: str, arguments: list[str], own: Mapping[str, str] | None = None) -> None:
        if self._folder is None:
            msg = "the cluster is not running: use it inside its `with` block"
            raise ServerError(msg)
        launcher = Path(pyspark.__file__).parent / "bin" / "spark-class"  # it becomes the Java process: same id
        self._servers.append(
            Server(name, [str(launcher), *arguments], Path(self._folder.name), _environment() | (own or {}))
        )

    def _has_registered(self, workers: int) -> bool:
        """Return whether the master's page calls at least so many workers alive; it does not while it is not whole."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy reaches this machine's ports
        with opener.open(f"http://127.0.0.1:{self._page_port}/json/", timeout=10) as page:
            try:
                return int(json.load(page)["aliveworkers"]) >= workers
            except ValueError:
                return False  # the master's web server is there before what it shows


def _environment() -> dict[str, str]:
    """The environment of all parts: this Spark, this Python, and the project's own modules, from any folder."""
    path = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path),
    }
