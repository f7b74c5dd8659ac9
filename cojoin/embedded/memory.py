"""The memory that a run in this process needs, estimated from its inputs' sizes before it starts."""

from __future__ import annotations

import os
from pathlib import Path

from cojoin.engine.formats import format_bytes
from cojoin.errors import ConfigurationError

__all__ = ["available_memory", "check_memory"]

_PEAK = 3
"""How many times its inputs' bytes a run needs at least: the inputs, their sorted copies and the output."""

_CGROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def check_memory(held: int, coming: int, what: str) -> None:
    """Check that a run over rows of known sizes fits into memory.

    Args:
        held: The bytes of the rows that are in memory already.
        coming: The bytes that are still to be copied or read.
        what: The inputs, for the message.

    Raises:
        ConfigurationError: It does not fit.
    """
    free = available_memory()
    needed = (_PEAK - 1) * held + _PEAK * coming
    if free is not None and needed > free:
        msg = (
            f"{what}: their {format_bytes(held + coming)} would need about {format_bytes(needed)} more memory in this "
            f"process, and {format_bytes(free)} are free; select fewer columns or a shorter time, or join them on "
            f"Spark, which spills to disk: Input(spark.read.parquet(...), ...)"
        )
        raise ConfigurationError(msg)


def available_memory() -> int | None:
    """Return how many bytes this process may still use, by the machine and by its container; None if unknown."""
    found = [free for free in (_of_machine(), *(_of_cgroup(*files) for files in _CGROUP_LIMITS)) if free is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _of_cgroup(limit: str, used: str) -> int | None:
    try:
        return int(Path(limit).read_text("ascii")) - int(Path(used).read_text("ascii"))
    except (OSError, ValueError):
        return None
