"""A user's script passes ``mypy --strict`` against the installed package, and a wrong one does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cojoin

SCRIPT = """
from collections.abc import Iterator
from typing import Any

import cojoin as cj
from cojoin.testing import Harness, HarnessInput


class Count(cj.KeyedCoProcessFunction):
    def open(self, ctx: cj.RuntimeContext) -> None:
        self.seen = ctx.get_state(cj.ValueStateDescriptor("seen", "long"))

    def process_element1(self, trade: Any, ctx: cj.Context) -> Iterator[tuple[int, int]]:
        count = (self.seen.value() or 0) + 1
        self.seen.update(count)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1_000)
        yield trade.trade_id, count

    def process_element2(self, customer: Any, ctx: cj.Context) -> None:
        self.seen.clear()


def run(trades: cj.Input, customers: cj.Input) -> int:
    query = cj.connect(trades, customers).asof_join(tolerance="1 hour").start(
        output=cj.sinks.delta("/lake/enriched"),
        checkpoint="/lake/_cojoin/enriched",
        trigger=cj.Trigger.available_now(drain=True),
    )
    query.await_termination()
    return 0 if query.progress is None else query.progress.rows_out


topic = cj.kafka.source("localhost:9092", "trades", schema="trade_id long", from_="earliest")
source = cj.Input(topic, key="trade_id", event_time="event_time", watermark=cj.WatermarkStrategy.no_watermarks())
LEFT, RIGHT = HarnessInput("k int, trade_id long", key="k"), HarnessInput("k int", key="k")
harness = Harness(Count(), "trade_id long, count long", input1=LEFT, input2=RIGHT)
harness.process_element1({"k": 1, "trade_id": 1}, 1_000)
"""
WRONG = """
import cojoin as cj

cj.Trigger.available_now(drain="yes")
cj.connect(1, 2)
"""


@pytest.mark.slow
def test_a_users_script_is_typed_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT, "utf-8")
    (tmp_path / "wrong.py").write_text(WRONG, "utf-8")
    # What cojoin itself builds on is left out, as in the project's own settings: it takes most of the time.
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\n[mypy-pyspark.*,pandas.*,pyarrow.*,numpy.*]\nfollow_imports = skip\n", "utf-8"
    )
    # In a folder of its own, so that mypy finds the package where it is installed, by its py.typed.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir=cache", "job.py", "wrong.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line.split(":")[:2] for line in errors] == [["wrong.py", "4"], ["wrong.py", "5"], ["wrong.py", "5"]], (
        done.stdout
    )
    assert 'Argument "drain"' in errors[0]
    assert (Path(cojoin.__file__).parent / "py.typed").exists()
