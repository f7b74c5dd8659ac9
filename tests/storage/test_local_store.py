"""A lock between processes, which the system frees when its holder ends."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from cojoin.storage.local_store import locked

if TYPE_CHECKING:
    from pathlib import Path

HOLDER = """
import sys, time
from pathlib import Path
from cojoin.storage.local_store import locked
with locked(Path(sys.argv[1]), lambda: None):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_holder_holds_no_more_and_who_waits_says_so_once(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        said: list[int] = []

        def waiting() -> None:
            said.append(holder.pid)
            holder.kill()

        with locked(path, waiting):
            assert said == [holder.pid]
    with locked(path, lambda: None):
        assert path.exists()
