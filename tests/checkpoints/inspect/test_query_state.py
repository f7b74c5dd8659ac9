"""A checkpoint read by people: the state of a moment, a key's everything, progress; nothing is written by it."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import cojoin as cj
from cojoin.checkpoints.inspect.key_state import find
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.checkpoints.state_table import StateCleaner, StateTable
from cojoin.engine.display import format_time
from cojoin.errors import CheckpointError, ConfigurationError, FunctionError
from cojoin.session.sessions import open_store
from tests.checkpoints.lakes import CLOCK_FAR, asof_lake
from tests.spark.data import MORNING, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.checkpoints.lakes import Lake

pytestmark = pytest.mark.spark


def files_of(lake: Lake) -> dict[str, float]:
    return {str(path): path.stat().st_mtime_ns for path in Path(lake.checkpoint).rglob("*") if path.is_file()}


def test_the_newest_state_is_told_by_input(spark: SparkSession, lake: Lake) -> None:
    before = files_of(lake)
    state = cj.read_state(spark, lake.checkpoint)
    assert (state.batch_id, state.origin, format_time(state.watermark)) == (1, "snapshot", "2024-03-01 07:01:19.999")
    assert rows(state.buffered["trades"], "trade_id", "waits_for") == [(6, "the watermark")]
    assert rows(state.buffered["customers"], "version", "waits_for") == [(4, "the watermark")]
    assert state.versions is not None
    assert rows(state.versions, "version", "event_time") == [(2, MORNING + 5_000_000), (3, MORNING + 60_000_000)]
    assert (state.states, state.timers.columns) == ({}, ["customer_id", "domain", "timestamp", "timestamp_ms"])
    assert state.timers.count() == 0
    assert [tuple(row) for row in state.largest_keys().collect()] == [(1, 3), (2, 1)]
    assert state.report is not None
    assert state.report.is_conserved
    assert files_of(lake) == before, "reading writes nothing"


def test_the_active_session_is_taken_where_none_is_named(spark: SparkSession, lake: Lake) -> None:
    assert str(cj.read_state(lake.checkpoint)) == str(cj.read_state(spark, lake.checkpoint))
    assert cj.read_progress(checkpoint=lake.checkpoint).count() == cj.read_progress(spark, lake.checkpoint).count()
    assert cj.read_state(spark=spark, checkpoint=lake.checkpoint).batch_id == cj.read_state(lake.checkpoint).batch_id
    with pytest.raises(ConfigurationError, match="explain: expected a key, such as key=17, or a row"):
        cj.explain(lake.checkpoint)

    def alone(function: Any, argument: Any) -> str:
        with pytest.raises(ConfigurationError) as caught:
            function(argument)
        return str(caught.value)

    frame = pa.table({"k": [1], "t": pa.array([0], pa.timestamp("us", "UTC"))})
    joined = cj.connect(cj.Input(frame, "k", "t"), cj.Input(frame, "k", "t")).asof_join(suffixes=("", "_r"))
    with ThreadPoolExecutor(1) as pool:
        message = pool.submit(alone, cj.read_state, lake.checkpoint).result()
        of_memory = pool.submit(alone, cj.explain, joined).result()
    assert message.startswith("read_state: no Spark session is active in this thread; make one, such as cojoin.spark_")
    assert of_memory.startswith("explain: expected a checkpoint's path, got Joined; of rows in memory joined.steps(")


def test_the_summary_fits_a_terminal_and_a_notebook(spark: SparkSession, lake: Lake) -> None:
    state = cj.read_state(spark, lake.checkpoint)
    lines = str(state).splitlines()
    assert lines[0].startswith(f"State of {lake.checkpoint} after batch 1, ")
    assert lines[1] == (
        "asof join of 'trades' with 'customers', 3 key groups; watermark 2024-03-01 07:01:19.999, "
        "held back by 'customers'"
    )
    assert [line.split("  ")[0] for line in lines[4:7]] == [
        "trades, waiting for the watermark",
        "customers, waiting for the watermark",
        "customers, versions in force",
    ]
    assert lines[-1].startswith("largest key groups: 1 (")
    shown = state._repr_html_()
    assert re.search("<td[^>]*>customers, versions in force</td><td[^>]*>2</td>", shown)
    assert "&#x27;customers&#x27;" in shown


@pytest.mark.slow
def test_a_key_as_of_an_earlier_batch(spark: SparkSession, lake: Lake) -> None:
    now, then = (cj.read_state(spark, lake.checkpoint, at=at).key(1) for at in (None, 0))
    assert [row.trade_id for row in now.buffered["trades"]] == [6]
    assert [row.trade_id for row in then.buffered["trades"]] == [3]
    assert [row.version for row in then.buffered["customers"]] == [3]
    assert [row.version for row in then.versions] == [1]
    assert "  versions in force\n    customer_id=1, event_time=2024-03-01 07:00:00, version=1" in str(then)
    assert then.as_dict()["buffered"]["trades"][0]["trade_id"] == 3
    nobody = cj.read_state(spark, lake.checkpoint).key(99)
    assert not nobody
    assert "it has nothing" in str(nobody)


def test_content_that_was_changed_is_refused_whoever_looks(spark: SparkSession, lake: Lake) -> None:
    stored = cj.read_state(spark, lake.checkpoint).stored
    for content, told in ((b"", "they are truncated"), (b"no state of cojoin's", "this is not a state of cojoin")):
        contents = spark.createDataFrame([(0, content)], "key_group int, content binary")
        damaged = replace(stored, contents=contents, fingerprints={0: "0"})
        with pytest.raises(CheckpointError, match=f"snapshot of batch 1, key group 0: .*{told}; restore another"):
            find(damaged, {"versions": {"customer_id": 1}}, cj.read_state(spark, lake.checkpoint).inputs)


@pytest.mark.slow
def test_moments(spark: SparkSession, lake: Lake) -> None:
    first, second = (cj.read_state(spark, lake.checkpoint, at=at).taken_at for at in (0, 1))
    assert first is not None
    assert second is not None
    between = first + (second - first) / 2
    assert cj.read_state(spark, lake.checkpoint, at=between).batch_id == 0
    assert cj.read_state(spark, cj.Snapshot(lake.checkpoint, at=second)).batch_id == 1
    with pytest.raises(CheckpointError, match=r"no state of batch 7; it has snapshots of batches 0, 1 and in Spark's"):
        cj.read_state(spark, lake.checkpoint, at=7)
    with pytest.raises(CheckpointError, match="no state at or before 2024-01-01"):
        cj.read_state(spark, lake.checkpoint, at=datetime(2024, 1, 1, tzinfo=timezone.utc))
    with pytest.raises(ConfigurationError, match="expected one moment"):
        cj.read_state(spark, cj.Snapshot(lake.checkpoint, at=1), at=0)


def test_what_is_no_checkpoint_is_refused(spark: SparkSession, lake: Lake) -> None:
    with pytest.raises(CheckpointError, match=r"and no query.json, so it is not a checkpoint of cojoin's"):
        cj.read_state(spark, str(lake.root / "trades"))
    with pytest.raises(CheckpointError, match="the directory does not exist"):
        cj.read_progress(spark, str(lake.root / "nothing"))
    with pytest.raises(CheckpointError, match="the directory does not exist"):
        cj.savepoint(spark, str(lake.root / "nothing"))
    assert not (lake.root / "nothing").exists()
    with pytest.raises(FunctionError, match=r"key: column 'customer_id': expected bigint, got \(1, 2\)"):
        cj.read_state(spark, lake.checkpoint).key((1, 2))
    with pytest.raises(ConfigurationError, match="expected a value of 'customer_id', got None"):
        cj.read_state(spark, lake.checkpoint).key(None)


def test_progress_comes_from_the_table_and_the_manifests(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    progress = cj.read_progress(spark, lake.checkpoint)
    assert [row.batch_id for row in progress.collect()] == [0, 1]
    assert [row.holding_input for row in progress.collect()] == ["customers", "customers"]
    # The same where either is missing: nothing was written to the table yet, or all manifests were cleaned away.
    checkpoint = Path(lake.checkpoint)
    for missing, there in (("progress", "manifest"), ("manifest", "progress")):
        copy = tmp_path / there
        copy.mkdir()
        (copy / "query.json").write_text((checkpoint / "query.json").read_text())
        for file in (checkpoint / there).rglob("*"):
            if file.is_file():
                target = copy / file.relative_to(checkpoint)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())
        assert not (copy / missing).exists()
        alone = cj.read_progress(spark, str(copy))
        assert [row.asDict(recursive=True) for row in alone.collect()] == [
            row.asDict(recursive=True) for row in progress.collect()
        ]
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "query.json").write_text((checkpoint / "query.json").read_text())
    assert cj.read_progress(spark, str(tmp_path / "new")).collect() == []
    with pytest.raises(CheckpointError, match="no batch is finished yet"):
        cj.read_state(spark, str(tmp_path / "new"))


@pytest.mark.slow
def test_a_functions_states_come_without_their_access_times(spark: SparkSession, watched: Lake) -> None:
    state = cj.read_state(spark, watched.checkpoint)
    assert state.origin == "state store"
    assert sorted(state.states) == ["count", "seen", "sums", "tier"]
    assert rows(state.states["count"]) == [(1, 1), (2, 1)]
    assert rows(state.states["tier"]) == [(1, "gold", MORNING), (2, "gold", MORNING + 5_000_000)]
    assert state.states["seen"].columns == ["customer_id", "value", "last_access"]
    assert rows(state.states["seen"], "customer_id", "value") == [(1, [1]), (2, [2])]
    assert rows(state.states["sums"], "customer_id", "value") == [(1, {"all": 1.0}), (2, {"all": 1.0})]
    assert state.states["sums"].schema["last_access"].dataType.simpleString() == "map<string,timestamp>"
    assert state.versions is None


def test_a_functions_timers_are_timestamps_where_they_can_be(spark: SparkSession, watched: Lake) -> None:
    timers = cj.read_state(spark, watched.checkpoint).timers
    hour = 3_600_000_000
    assert rows(timers.where("domain = 'event_time'"), "customer_id", "timestamp", "timestamp_ms") == [
        (1, MORNING + 10_000_000 + hour, (MORNING + 10_000_000 + hour) // 1000),
        (2, None, CLOCK_FAR),
        (2, MORNING + 12_000_000 + hour, (MORNING + 12_000_000 + hour) // 1000),
    ]
    assert timers.where("domain = 'processing_time'").count() == 2


def test_a_functions_key_has_python_values(spark: SparkSession, watched: Lake) -> None:
    key = cj.read_state(spark, watched.checkpoint).key(2)
    assert key.states == {"count": 1, "seen": [2], "sums": {"all": 1.0}, "tier": "gold"}
    assert [(timer.domain, timer.timestamp) for timer in key.timers][::2] == [
        ("event_time", (MORNING + 12_000_000) // 1000 + 3_600_000),
        ("event_time", CLOCK_FAR),
    ]
    assert "\n    sums: {'all': 1.0}\n" in str(key)
    assert json.loads(json.dumps(key.as_dict(), default=str))["states"]["seen"] == [2]


@pytest.mark.slow
def test_a_savepoint_keeps_a_batch(spark: SparkSession, watched: Lake) -> None:
    taken = cj.savepoint(spark, watched.checkpoint)
    state = cj.read_state(spark, taken)
    assert (state.origin, state.batch_id) == ("snapshot", taken.at)
    assert state.key(2).states["seen"] == [2]
    assert rows(state.buffered["trades"], "trade_id") == [(3,)]
    with pytest.raises(ConfigurationError, match="it is taken of the last batch"):
        cj.savepoint(spark, taken)
    later = datetime.now(timezone.utc) + timedelta(days=1)
    assert cj.read_state(spark, watched.checkpoint, at=later).key(2)


@pytest.mark.slow
def test_a_snapshot_that_is_cleaned_while_it_is_read_is_an_error_and_not_fewer_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = asof_lake(tmp_path)
    files = open_store(spark, lake.checkpoint)
    opened = cj.read_state(spark, lake.checkpoint, at=0)
    assert opened.buffered["trades"].count() == 1
    snapshot = Snapshots(files).read(0)
    assert snapshot is not None
    # Between its index and its rows, a query may remove it.
    StateCleaner(spark, files).clean([0])
    with pytest.raises(CheckpointError, match="its query has removed or replaced it while it was read"):
        StateTable(spark, files).pinned(snapshot)
    with pytest.raises((PySparkException, Py4JJavaError)):
        opened.buffered["trades"].collect()
    assert cj.read_state(spark, lake.checkpoint).buffered["trades"].count() == 1
