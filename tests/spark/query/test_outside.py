"""What others see of a run follows its counted batches, and nothing of it stops the run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from cojoin.metrics.query_metrics import process_instruments
from cojoin.spark.query.outside import Outside
from tests.spark.progress.runs import report
from tests.spark.query.test_monitoring import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable


def outside(
    *sources: Any, on_progress: Callable[[Any], Any] | None = None, last: Any = None, lines: tuple[int, int] = (1, 1)
) -> Outside:
    """Watch a run of a query in a checkpoint, whose inputs have these sources."""
    inputs = [SimpleNamespace(name=name) for name in ("trades", "customers")]
    plan: Any = SimpleNamespace(inputs=inputs, outputs={"output": (1, None)})
    lease = SimpleNamespace(epoch=1, check=lambda: None)
    checkpoint: Any = SimpleNamespace(lease=lease, last=last, begins_at=None)
    checkpoint.last_report = None if last is None else last.report
    return Outside("enrich", plan, checkpoint, (*sources, None, None)[:2], lines, on_progress)


def batch(number: int, *offsets: str) -> Any:
    counted = replace(report(10 * number), batch_id=number)
    return SimpleNamespace(report=counted, durations_ms={"execute": 1.0}, offsets=[*offsets, "control"])


def source(recorder: Recorder) -> Any:
    return SimpleNamespace(monitor=lambda what: recorder)


def test_a_start_commits_what_the_run_before_has_left_out() -> None:
    left, right = Recorder(), Recorder()
    told = outside(source(left), source(right), last=batch(3, "7", "-"))
    told.finish()
    assert (left.committed, right.committed) == (["7"], [])


def test_the_lines_of_a_frame_with_several_streams_are_passed_over() -> None:
    right = Recorder()
    told = outside(None, source(right), lines=(2, 1))
    told.count(batch(0, "1", "2", "3"))
    told.finish()
    assert right.committed == ["3"]


def test_metrics_that_fail_stop_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []
    told = outside(on_progress=lambda each: seen.append(each.batch_id))

    def fail(*_: Any) -> None:
        msg = "the collector is full"
        raise MemoryError(msg)

    monkeypatch.setattr(process_instruments(), "add", fail)
    for number in range(3):
        told.count(batch(number, "1", "2"))
    told.finish()
    assert seen == [0, 1, 2]
    (warning,) = [each.getMessage() for each in caplog.records]
    assert warning.endswith("its metrics can't be counted, the query goes on: MemoryError('the collector is full')")
    # A run that begins while they fail has none, and a commit that fails is still only told.
    left = Recorder()
    left.refusal = OSError("no way")
    begun = outside(source(left))
    begun.count(batch(0, "1", "2"))
    begun.finish()
    assert left.tries > 0


def test_a_start_that_fails_leaves_no_thread() -> None:
    left = Recorder()
    told = outside(source(left), None, last=batch(3, "7", "1"))
    with pytest.raises(ValueError, match="invalid literal"), told.ended_by_errors():
        int("no")
    assert left.closed == 1
    assert not told.is_calling
