"""Checkpoints of earlier releases, unpacked where they were written, and what is compared of them."""

from __future__ import annotations

import fcntl
import json
import shutil
import tarfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cojoin as cj
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.session.delta_tables import session_with_long_history
from cojoin.session.sessions import open_store
from tests.releases.queries import Place, place_of
from tests.spark.data import rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

__all__ = ["FOLDER", "RELEASES", "archive", "expected", "locked", "looked_at", "told", "unpack"]

FOLDER = Path(__file__).parent
RELEASES = sorted(path.name for path in FOLDER.iterdir() if path.name[0].isdigit())

_COMPARED = ("kind", "input", "output", "values", "batch_id", "reason", "matched")
"""What an explanation says; its sentences may be worded anew."""


@contextmanager
def locked(release: str) -> Iterator[None]:
    """Hold the place of a release's checkpoints, which all processes of a machine share."""
    path = place_of(release, "lock").root
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def archive(release: str, case: str) -> None:
    """Pack a checkpoint with all that its query reads and writes."""
    root = place_of(release, case).root
    with tarfile.open(FOLDER / release / f"{case}.tar.gz", "w:gz", compresslevel=9) as packed:
        packed.add(root, case, filter=_nobodys)
    shutil.rmtree(root)


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack(release: str, case: str) -> Place:
    """Unpack a checkpoint in place of what is there; only while its place is locked."""
    place = place_of(release, case)
    shutil.rmtree(place.root, ignore_errors=True)
    with tarfile.open(FOLDER / release / f"{case}.tar.gz") as packed:
        packed.extractall(place.root.parent, filter="data")
    return place


def expected(release: str, case: str) -> dict[str, Any]:
    """Return what the release itself read, and made of it when it went on."""
    found: dict[str, Any] = json.loads((FOLDER / release / f"{case}.json").read_text("utf-8"))
    return found


def told(
    spark: SparkSession,
    place: Place,
    *,
    checkpoint: str | None = None,
    output: str | None = None,
    versions: Mapping[str, int | None] | None = None,
) -> dict[str, Any]:
    """Return the rows of a query's outputs.

    Args:
        spark: The session.
        place: Where it lies.
        checkpoint: Its checkpoint, if it is another.
        output: Its output, if it is another.
        versions: Each output's version; None for what is there now.
    """
    beside = Path(checkpoint or place.checkpoint)
    places = {
        "output": Path(output or place.output),
        "rejected": beside / "rejected",
        "new-customers": beside / "side_outputs" / "new-customers",
    }
    found: dict[str, Any] = {}
    for name, path in places.items():
        version = None if versions is None else versions.get(name)
        if not (path / "_delta_log").exists() or (versions is not None and version is None):
            found[name] = []
            continue
        with session_with_long_history(spark) as session:
            reader = session.read.format("delta")
            frame = (reader if version is None else reader.option("versionAsOf", version)).load(str(path))
            # When a row was rejected is of no interest.
            found[name] = rows(frame, *(("input", "reason", "row") if name == "rejected" else ()))
    return _as_json(found)


def looked_at(spark: SparkSession, place: Place) -> dict[str, Any]:
    """Return what is read of a checkpoint: its states, the keys in it, its progress, what is explained."""
    files = open_store(spark, place.checkpoint)
    state = cj.read_state(spark, place.checkpoint)
    progress = cj.read_progress(spark, place.checkpoint).select("batch_id", "drained", "rows_out", "emitted")
    late = cj.explain(spark, place.checkpoint, input="trades", row={"trade_id": 901})
    return _as_json(
        {
            "snapshots": Snapshots(files).batch_ids(),
            "batch": state.batch_id,
            "origin": state.origin,
            "watermark": state.watermark,
            "tables": [[name, count] for name, count, _ in state.tables()],
            "key": state.key(1).as_dict(),
            "progress": [row.asDict() for row in progress.collect()],
            "explained": [{name: each[name] for name in _COMPARED} for each in late.as_dict()["findings"]],
        }
    )


def _as_json(values: Any) -> Any:
    return json.loads(json.dumps(values, default=str, sort_keys=True))
