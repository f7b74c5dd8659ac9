"""The replay by Flink's own Kafka source and a KeyedCoProcessFunction in Java (``flink_java``), into parquet files.

It has everything on the heap and takes no checkpoints, where cojoin's replays keep theirs in Delta tables: nothing is
faster in Flink. The sources are not aligned, because Flink lets aligned ones go on once a second.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.join.contenders.flink_java import FLINK, flink_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["FlinkRun", "missing", "run_flink"]


@dataclass(frozen=True)
class FlinkRun:
    """What Flink did.

    Attributes:
        seconds: From the job's start to its end, without the cluster's start.
        cpu_seconds: What was used of the processors in that time.
        rows: The result.
    """

    seconds: float
    cpu_seconds: float
    rows: pa.Table


def missing() -> str | None:
    """Return why Flink can't run here; None if it can."""
    return FLINK.missing()


def run_flink(job: Path, work: Path, cpu_seconds: Callable[[], float]) -> FlinkRun:
    """Replay two topics.

    Args:
        job: The replay, as a file.
        work: A folder for the result.
        cpu_seconds: Returns what this process and its children have used until now.

    Raises:
        RuntimeError: Flink failed.
    """
    command, errors = flink_command("replay.Replay", str(job), str(work)), work / "flink.txt"
    used: dict[str, float] = {}
    seconds = 0.0
    with errors.open("w") as told:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=told, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            used[event["event"]] = cpu_seconds()
            seconds = event.get("seconds", seconds)
    if process.wait() or "finished" not in used:
        msg = f"Flink ended with exit code {process.returncode}: {errors.read_text()[-4000:]}"
        raise RuntimeError(msg)
    return FlinkRun(seconds, used["finished"] - used["started"], pq.read_table(work / "out"))
