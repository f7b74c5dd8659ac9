"""Write the checkpoints of this release: ``python -m tests.releases.make``, once, before the next one changes anything.

Each is a ``<case>.tar.gz`` beside a ``<case>.json`` with what this release read in it, and what it made of it when it
went on; where pandas can join as the query does, it is compared first.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pandas as pd

import cojoin as cj
from cojoin.checkpoints.manifest import Manifest, Manifests
from tests.conftest import SETTINGS
from tests.releases.queries import CASES, CLOCK_MS, DRAIN, PAUSE, Case, Place, place_of
from tests.releases.unpacked import FOLDER, archive, locked, looked_at, told, unpack
from tests.spark.data import MORNING, SECOND, Folders, Streams, generate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIECES, BEFORE = 5, 3
"""How many pieces the input has, and how many of them come before the checkpoint."""


def main() -> None:
    """Make all, each with a session that knows nothing of the others where it has to die."""
    (FOLDER / cj.__version__).mkdir(exist_ok=True)
    if sys.argv[1:]:
        _run_until_it_is_killed(CASES[sys.argv[1]])
        return
    # A lease has the host's name, which is nobody's business.
    socket.gethostname = lambda: "somewhere"
    spark = _session()
    for case in CASES.values():
        with locked(cj.__version__):
            # What is there stays as it is.
            if not (FOLDER / cj.__version__ / f"{case.name}.tar.gz").exists():
                _make(spark, case)
    # Last the one that waits for the clock.
    for case in sorted(CASES.values(), key=lambda case: case.name == "function"):
        with locked(cj.__version__):
            if not (FOLDER / cj.__version__ / f"{case.name}.json").exists():
                _expect(spark, case)


def _session() -> SparkSession:
    os.environ["PYTHONPATH"] = str(FOLDER.parents[1])
    session = cj.spark_session("releases", master="local[2]", conf=SETTINGS)
    session.sparkContext.setLogLevel("ERROR")
    return session


def _streams() -> Streams:
    return generate(trades=60, customers=20, keys=4, seconds=60, seed=50)


def _lay_out(place: Place) -> None:
    """Write all pieces of the input; a trade of the first has no key, one of the third is late."""
    shutil.rmtree(place.root, ignore_errors=True)
    streams, made = _streams(), Folders(place.root / "made")
    odd = {
        0: pd.DataFrame({"trade_id": [900], "customer_id": [None], "event_time": [MORNING], "position": [900]}),
        2: pd.DataFrame(
            {"trade_id": [901], "customer_id": [1], "event_time": [MORNING - 100 * SECOND], "position": [901]}
        ),
    }
    (place.root / "pieces").mkdir()
    for number in range(PIECES):
        trades = streams.trades.iloc[np.array_split(np.arange(len(streams.trades)), PIECES)[number]]
        customers = streams.customers.iloc[np.array_split(np.arange(len(streams.customers)), PIECES)[number]]
        made.add_trades(pd.concat([trades, odd[number].assign(amount=1.0)]) if number in odd else trades)
        made.add_customers(customers)
        for name, file in zip(("trades", "customers"), made.files[-2:], strict=True):
            file.rename(place.root / "pieces" / f"{number:02d}-{name}.parquet")
    shutil.rmtree(place.root / "made")


def _make(spark: SparkSession, case: Case) -> None:
    place = place_of(cj.__version__, case.name)
    _lay_out(place)
    dies = case.name in {"killed", "half-restored"}
    if dies:
        # With a group of its own, which dies with it, its JVM included.
        done = subprocess.run(
            [sys.executable, "-m", "tests.releases.make", case.name], check=False, start_new_session=True
        )
        assert done.returncode == -signal.SIGKILL, done
    else:
        _run(spark, case, place)
    archive(cj.__version__, case.name)


def _run(spark: SparkSession, case: Case, place: Place) -> None:
    """Run a case until its checkpoint is as it should be."""
    for number in range(BEFORE):
        place.add(spark, number, delta_trades=case.delta_trades)
        is_last = number == BEFORE - 1
        if case.name.endswith("restored"):
            if is_last:
                # It goes on in the same table, so the old query is over.
                case.run(place, restore_from=cj.Snapshot(place.origin), checkpoint_interval=1)
            else:
                case.run(place, key_groups=2, checkpoint=place.origin, checkpoint_interval=1)
            continue
        query = case.run(place, DRAIN if is_last and case.is_over else PAUSE)
        if case.name == "savepoints" and not is_last:
            query.savepoint()


def _run_until_it_is_killed(case: Case) -> None:
    socket.gethostname = lambda: "somewhere"

    def die(*_: Any) -> None:
        os.killpg(0, signal.SIGKILL)

    def killing(self: Manifests, manifest: Manifest) -> None:
        if manifest.batch_id == BEFORE - 1:
            die()
        write(self, manifest)

    write = Manifests.write
    with (
        mock.patch.object(Manifests, "write", killing)
        if case.name == "killed"
        else mock.patch("cojoin.spark.query.start.finish_restoration", die)
    ):
        _run(_session(), case, place_of(cj.__version__, case.name))


def _expect(spark: SparkSession, case: Case) -> None:
    """Note what is read in a checkpoint and what becomes of it."""
    place = unpack(cj.__version__, case.name)
    found: dict[str, Any] = {"looked_at": looked_at(spark, place)}
    if not case.is_over:
        if case.name == "function":
            made = (FOLDER / cj.__version__ / f"{case.name}.tar.gz").stat().st_mtime
            time.sleep(max(0.0, made + CLOCK_MS / 1000 - time.time()))
        for number in range(BEFORE, PIECES):
            place.add(spark, number, delta_trades=case.delta_trades)
        case.run(place, DRAIN)
    found["told"] = told(spark, place)
    _compare(case, found["told"])
    path = FOLDER / cj.__version__ / f"{case.name}.json"
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    shutil.rmtree(place.root)


def _compare(case: Case, found: dict[str, Any]) -> None:
    """See that pandas gives the same, where it can."""
    if case.join is CASES["asof"].join or case.name == "segments":
        chosen = [[row[at] for at in (0, 2, 3, 6, 7)] for row in found["output"]]
        assert chosen == [[*row] for row in _streams().enriched()], (case.name, chosen)


if __name__ == "__main__":
    main()
