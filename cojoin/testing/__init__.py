"""Unit tests of stateful functions and of joins, in milliseconds and without Spark or a JVM.

A ``Harness`` runs the operator that a query runs, with its watermarks, timers and state. The test moves time::

    from cojoin.testing import Harness, HarnessInput, assert_output

    with Harness(EnrichTrades(), "trade_id long, tier string", input1=trades, input2=customers) as harness:
        harness.process_element2({"customer_id": "a", "tier": "gold"}, 1_000)
        harness.process_element1({"customer_id": "a", "trade_id": 7}, 1_500)
        harness.process_watermark(2_000)
        assert_output(harness, '''
            trade_id | tier
            7        | gold
        ''')

All times are epoch milliseconds. Each call is a separate micro-batch, so a test can move the watermark between two
rows, whereas Spark moves it only between micro-batches. ``process_batch`` sends several rows in one micro-batch.

The harness does not simulate:

- Spark itself: packing, the shuffle, how micro-batches are cut, the order of rows across keys, and the conversion of
  schemas from and to Spark's;
- the real clock: it moves only with ``set_processing_time``, so a source becomes idle by its strategy's timeout only in
  a call after the clock was moved;
- sinks, checkpoints on disk, progress, and the reading of sources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.local.key_group import Rejected
from cojoin.testing.assertions import CapturedKeys, assert_output
from cojoin.testing.determinism.check import DeterminismError, DeterminismReport, check_determinism
from cojoin.testing.events import Element, Event, HarnessError, Record, SideRecord, StatusChange, Timer, Watermark
from cojoin.testing.harness import Harness, RegressingWatermarks
from cojoin.testing.harness_inputs import HarnessInput
from cojoin.testing.harness_tables import parse_table

if TYPE_CHECKING:
    from cojoin.capture.capture import CapturedTest, capture

__all__ = [
    "AsofJoin",
    "CapturedKeys",
    "CapturedTest",
    "DeterminismError",
    "DeterminismReport",
    "Element",
    "Event",
    "Harness",
    "HarnessError",
    "HarnessInput",
    "IntervalJoin",
    "Record",
    "RegressingWatermarks",
    "Rejected",
    "SideRecord",
    "StatusChange",
    "TemporalJoin",
    "Timer",
    "Watermark",
    "assert_output",
    "capture",
    "check_determinism",
    "parse_table",
]


def __getattr__(name: str) -> Any:
    # It needs the joins as users meet them, which a test with a harness does without.
    if name in ("CapturedTest", "capture"):
        from cojoin.capture import capture  # noqa: PLC0415

        return getattr(capture, name)
    msg = f"module 'cojoin.testing' has no attribute {name!r}"
    raise AttributeError(msg)
