"""A query whose session has an event log: ``python -m tests.spark.logged_query FOLDER ENDPOINT ROOT`` prints its texts.

The folder has the inputs and gets the log; the endpoint is that of a server of S3's protocol, on which the root is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cojoin as cj
from benchmarks.session import make_session
from tests.spark.data import Folders, asof, connect
from tests.spark.saved import DRAIN, Saved


def main(folder: Path, endpoint: str, root: str) -> None:
    """Run it in two runs, the second one with a table on the store as an input."""
    log = folder / "events"
    log.mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log.as_uri(),
        "spark.eventLog.compress": "false",
    }
    spark = make_session("logged", folder, s3=endpoint, conf=settings)
    spark.conf.set("spark.sql.maxPlanStringLength", str(1 << 24))
    saved = Saved(spark, f"{root}/query", Folders(folder / "data"))
    joined = asof(connect(*saved.folders.sources(2)))
    joined.to_dataframe().explain("extended")
    query = saved.run(joined)
    query = saved.run(asof(connect(*saved.folders.sources(2))), trigger=DRAIN)
    sys.stdout.write(f"{query.progress} {json.dumps(query.progress.as_dict() if query.progress else {})}\n")
    saved.output().explain("extended")
    inputs = [
        cj.Input(cj.sources.delta(f"{root}/query/out"), "trade_id", "event_time", name=name) for name in ("one", "two")
    ]
    again = cj.connect(*inputs, key_groups=2).asof_join(suffixes=("", "_two"))
    again.to_dataframe().explain("extended")
    other = again.start(output=cj.sinks.delta(f"{root}/again"), checkpoint=f"{root}/checkpoint", trigger=DRAIN)
    other.await_termination(progress=False)
    sys.stdout.write(f"{other.progress} {again}\n")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
