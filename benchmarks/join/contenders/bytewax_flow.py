"""bytewax, two processes of one worker each: a stateful operator for each customer, fed in lists of rows.

A trade waits for a later version of its own customer or for the end: exact here, and for ever on a stream that goes on.
One process reads the trades and one the versions. Nothing is kept for recovery.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from datetime import timedelta

from benchmarks.join.contender import Contender, Job, timed
from benchmarks.join.environments import Virtual

CONTENDERS = (
    Contender(
        "bytewax",
        "bytewax: two processes; no global watermark, no recovery",
        __name__,
        environment=Virtual("bytewax", ("bytewax==0.21.1", "pyarrow==26.0.1")),
    ),
)
PROCESSES = 2
EPOCH = timedelta(seconds=60)


def main() -> None:
    """Run the first process, which starts the second and begins when that has loaded everything, too."""
    from bytewax.testing import cluster_main  # noqa: PLC0415

    from benchmarks.join.bytewax_parts import build_flow  # noqa: PLC0415

    job, ports = Job.of_arguments(), sys.argv[5:]
    if ports:
        flow = build_flow(job, 1)
        print("ready", flush=True)
        cluster_main(flow, _addresses(ports), 1, epoch_interval=EPOCH, worker_count_per_proc=1)
        return
    job.out.mkdir()
    ports = _free_ports()
    words = [sys.executable, "-m", "benchmarks.join.contenders.bytewax_flow", *sys.argv[1:5], *ports]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "ready"
        flow = build_flow(job, 0)
        with timed():
            cluster_main(flow, _addresses(ports), 0, epoch_interval=EPOCH, worker_count_per_proc=1)
            other.wait()
    raise SystemExit(other.returncode)


def _addresses(ports: list[str]) -> list[str]:
    return [f"127.0.0.1:{port}" for port in ports]


def _free_ports() -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(PROCESSES)]
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


if __name__ == "__main__":
    main()
