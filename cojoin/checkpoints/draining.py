"""The drain's last batch, planned in Spark's offset log: every source as it stands, and the end of input on the control source.

Spark runs a batch that is planned and not committed exactly as it was planned, whatever came since. So the driver plans the last
batch by hand: a crash in between runs the same batch again, and nothing newer is read. The offset log is Spark's ``v1`` text: a
line with the version, a line of metadata, then a line a source in the order of the plan, the control input last.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from cojoin.checkpoints.files import CheckpointFiles

__all__ = ["drain_is_planned", "plan_drain", "source_offsets"]

_OFFSETS, _COMMITS = "spark/offsets", "spark/commits"


def source_offsets(files: CheckpointFiles, batch_id: int) -> list[str]:
    """Give where each source stands at the end of a batch, a line each, as Spark logged it."""
    text = files.read(f"{_OFFSETS}/{batch_id}")
    return [] if text is None else text.splitlines()[2:]


def drain_is_planned(files: CheckpointFiles, offset: dict[str, Any]) -> bool:
    """Tell whether the newest planned batch is the drain's last one."""
    newest = _newest(files, _OFFSETS)
    lines = [] if newest is None else source_offsets(files, newest)
    return bool(lines) and lines[-1] != "-" and json.loads(lines[-1]) == offset


def plan_drain(files: CheckpointFiles, offset: dict[str, Any]) -> bool:
    """Plan the drain's last batch after the last committed one.

    Args:
        files: The checkpoint.
        offset: The control input's offset that ends all inputs.

    Returns:
        False where no batch ever ran, so there is nothing to end.

    Raises:
        CheckpointError: The offset log is not as this version knows it; nothing was written.
    """
    newest, committed = _newest(files, _OFFSETS), _newest(files, _COMMITS)
    if newest is None:
        return False
    if newest != committed:
        msg = f"checkpoint {files.root}: batch {newest} is planned but not committed; let a run finish it before a drain"
        raise CheckpointError(msg)
    text = files.read(f"{_OFFSETS}/{newest}") or ""
    lines = text.splitlines()
    if lines[:1] != ["v1"] or "messages" not in lines[-1]:
        msg = f"checkpoint {files.root}: the offset log's batch {newest} is not in the form v1 with a control input; got {lines[:1]}"
        raise CheckpointError(msg)
    files.write(f"{_OFFSETS}/{newest + 1}", "\n".join([*lines[:-1], json.dumps(offset)]))
    return True


def _newest(files: CheckpointFiles, directory: str) -> int | None:
    ids = [int(name) for name in files.names(directory) if name.isdigit()]
    return max(ids, default=None)
