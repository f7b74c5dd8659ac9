"""A driver that dies by SIGKILL while it writes a refresh: ``python -m tests.spark.killed_refresh FOLDER``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks.session import make_session
from cojoin.spark.query import table_loads
from tests.spark.shop import Shop


def die(*arguments: Any) -> Any:
    """End this process, in the middle of a load."""
    del arguments
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    shop = Shop(make_session("killed", folder), folder)
    table_loads.closing_messages = die
    shop.run(shop.connect(refresh="1 millisecond").asof_join())
