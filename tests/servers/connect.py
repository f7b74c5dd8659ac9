"""A Spark Connect server in a process of its own, as a cluster's administrator starts it, with Delta's jars."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cojoin.session.launch_settings import find_spark_home
from tests.servers.jars import delta_jars

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["connect_server"]

PROJECT = Path(__file__).parents[2]
_START_SECONDS = 120.0


@contextlib.contextmanager
def connect_server(folder: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """Run a server, and yield its address, such as ``sc://127.0.0.1:15002``.

    Args:
        folder: The folder of its warehouse and its log.
        settings: Spark's settings; ``spark.jars`` takes the place of Delta's.
    """
    port = _free_port()
    made = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    command = [str(find_spark_home() / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in {"spark.jars": ",".join(map(str, delta_jars())), **settings, **made}.items():
        command += ["--conf", f"{name}={value}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(PROJECT)}
    log = folder / "connect-server.txt"
    with log.open("w") as said:
        server = subprocess.Popen([*command, "spark-internal"], env=environment, stdout=said, stderr=said, cwd=folder)
    try:
        _wait_for(server, port, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=60)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait_for(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    msg = f"the Spark Connect server did not start within {_START_SECONDS:.0f} seconds:\n{log.read_text()[-4000:]}"
    raise RuntimeError(msg)
