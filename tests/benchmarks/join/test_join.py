"""The benchmark's own parts, without Spark: what it makes, and that it finds what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from benchmarks.join.contender import Job
from benchmarks.join.contenders.in_memory import run_pandas
from benchmarks.join.generate import DISORDER_SECONDS, Size, generate
from benchmarks.join.oracle import INTERVAL_SECONDS, find_faults, prepare
from benchmarks.join.registry import CONTENDERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.join.oracle import Answer

SIZE = Size(5_000, 1_000, 50, 4)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    generate(SIZE, tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.parametrize("side", ["trades", "customers"])
def test_rows_are_out_of_order_by_less_than_the_bound(data: Path, side: str) -> None:
    files = sorted((data / side).glob("*.parquet"))
    times = np.concatenate([pq.read_table(path).column("event_time").cast(pa.int64()).to_numpy() for path in files])
    behind = np.maximum.accumulate(times) - times
    assert 0 < behind.max() < DISORDER_SECONDS * 1_000_000
    assert not (times % 1_000).any()


def test_a_customer_has_one_version_in_a_millisecond(data: Path) -> None:
    versions = pq.read_table(data / "customers").select(["customer_id", "event_time"])
    assert versions.group_by(["customer_id", "event_time"]).aggregate([]).num_rows == SIZE.versions


def test_the_same_seed_gives_the_same_files(data: Path, tmp_path: Path) -> None:
    generate(SIZE, tmp_path / "again")
    for side in ("trades", "customers"):
        assert pq.read_table(data / side).equals(pq.read_table(tmp_path / "again" / side))


def test_a_right_result_has_no_faults_in_any_order(data: Path, tmp_path: Path) -> None:
    path = _joined(data, tmp_path)
    assert find_faults(data, [path]) == {}
    table = pq.read_table(path)
    pq.write_table(table.take(pa.array(np.random.default_rng(1).permutation(table.num_rows))), path)
    assert find_faults(data, [path]) == {}


@pytest.mark.parametrize("answer", ["backward", "forward", "nearest", "interval"])
def test_each_answer_is_what_duckdb_finds(data: Path, answer: Answer) -> None:
    duckdb = pytest.importorskip("duckdb")
    seconds = "epoch_us(c.event_time) - epoch_us(t.event_time)"
    condition, order = {
        "backward": (f"{seconds} <= 0", f"{seconds} DESC"),
        "forward": (f"{seconds} >= 0", seconds),
        "nearest": ("true", f"abs({seconds}), {seconds}"),
        "interval": (f"{seconds} BETWEEN -{INTERVAL_SECONDS} * 1000000 AND 0", None),
    }[answer]
    one = f"QUALIFY row_number() OVER (PARTITION BY t.trade_id ORDER BY {order}) = 1" if order else ""
    expected = duckdb.sql(f"""
        SELECT epoch_us(c.event_time) AS valid_from, tier, credit, t.trade_id
        FROM '{data}/trades/*.parquet' AS t {"LEFT" if order else "INNER"} JOIN '{data}/customers/*.parquet' AS c
        ON t.customer_id = c.customer_id AND {condition} {one} ORDER BY t.trade_id, valid_from
    """).fetchall()
    found = pq.read_table(prepare(data, answer))
    times = found.column("customers_event_time").cast(pa.int64()).to_pylist()
    others = (found.column(name).to_pylist() for name in ("tier", "credit", "trade_id"))
    assert [*zip(times, *others, strict=True)] == expected


@pytest.mark.parametrize(
    ("spoil", "faults"),
    [
        (lambda table: table.slice(3), {"missing": 3}),
        (lambda table: pa.concat_tables([table, table.slice(0, 2)]), {"there twice": 2}),
        (lambda table: _with(table, "credit", pc.add(table.column("credit"), 1.0)), None),
        (lambda table: _with(table, "amount", pc.add(table.column("amount"), 1.0)), {"wrong amount": 5_000}),
    ],
)
def test_what_is_wrong_is_counted(
    data: Path, tmp_path: Path, spoil: Callable[[pa.Table], pa.Table], faults: dict[str, int] | None
) -> None:
    path = _joined(data, tmp_path)
    pq.write_table(spoil(pq.read_table(path)), path)
    found = find_faults(data, [path])
    assert found == faults if faults is not None else 4_000 < found["wrong credit"] <= 5_000


def test_contenders_have_names_of_their_own_and_a_floor() -> None:
    names = [each.name for each in CONTENDERS]
    assert len(set(names)) == len(names)
    assert {each.floor for each in CONTENDERS} <= set(names)


def _joined(data: Path, tmp_path: Path) -> Path:
    job = Job("pandas", "parquet", data, tmp_path)
    job.out.mkdir()
    run_pandas(job)
    return job.out / "joined.parquet"


def _with(table: pa.Table, name: str, column: pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, column)
