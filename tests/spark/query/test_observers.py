"""Observers follow a run's counted batches, the newest positions win, and nothing of it stops the run."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from cojoin.errors import ConfigurationError, QueryFailedError
from cojoin.metrics.query_metrics import process_instruments
from cojoin.spark.query import observers
from cojoin.spark.query.observers import MonitoredInput, Monitoring, Observers, ProgressHook
from tests.spark.query.runs import report

if TYPE_CHECKING:
    from collections.abc import Callable

    from cojoin.engine.batch_report import BatchReport


def reports(number: int) -> list[BatchReport]:
    return [replace(report(1), batch_id=each) for each in range(number)]


def test_it_is_called_with_each_report_in_order_in_one_thread() -> None:
    seen: list[tuple[int, threading.Thread]] = []
    hook = ProgressHook(lambda each: seen.append((each.batch_id, threading.current_thread())), "enrich")
    hook.finish(1)
    for each in reports(100):
        hook.put(each)
    hook.finish(10)
    assert [number for number, _ in seen] == [*range(100)]
    assert {thread.name for _, thread in seen} == {"cojoin-on-progress"}
    assert not hook.is_this_thread


def test_it_may_fail_and_is_called_again(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def tell(each: BatchReport) -> None:
        seen.append(each.batch_id)
        if each.batch_id == 1:
            raise SystemExit(1)
        {}["no such key"]

    hook = ProgressHook(tell, "enrich")
    for each in reports(4):
        hook.put(each)
    hook.finish(10)
    assert seen == [0, 1, 2, 3]
    (told,) = caplog.records
    assert told.levelno == logging.WARNING
    line = tell.__code__.co_firstlineno + 4
    assert told.getMessage() == (
        f"query enrich: on_progress failed at batch 0: KeyError: 'no such key' ({__file__}:{line}, in tell); "
        f"the query continues, its further errors are not logged"
    )


def test_one_that_hangs_keeps_neither_the_batches_nor_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "_MOST_WAITING", 5)
    begun, release, seen = threading.Event(), threading.Event(), []

    def hang(each: BatchReport) -> None:
        seen.append(each.batch_id)
        begun.set()
        release.wait(30)

    hook = ProgressHook(hang, "enrich")
    first, *rest = reports(20)
    hook.put(first)
    assert begun.wait(10)
    for each in rest:
        hook.put(each)
    hook.finish(0.1)
    release.set()
    slow, left = [each.getMessage() for each in caplog.records]
    assert "takes longer than the batches: 5 reports wait for it, and older ones are left out" in slow
    assert "5 reports were not passed to it" in left
    hook._thread.join(10)  # type: ignore[union-attr]
    assert seen == [0]


class Recorder:
    """A source that notes what is committed, and refuses it while it has a reason."""

    def __init__(self, *, commits: bool = True) -> None:
        self.commits = commits
        self.committed: list[str] = []
        self.tries = self.closed = 0
        self.refusal: Exception | None = None
        self.open = threading.Event()
        self.open.set()

    def commit(self, position: str) -> None:
        self.tries += 1
        assert self.open.wait(30)
        if self.refusal is not None:
            raise self.refusal
        self.committed.append(position)

    def unread(self, position: str) -> int:
        return 100 - int(position)

    def close(self) -> None:
        self.closed += 1


class Noted:
    """Takes what the thread counts, as ``QueryMetrics`` does."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.failures: list[str] = []
        self.lags: dict[str, int] = {}

    def count_group_failure(self, name: str) -> None:
        self.failures.append(name)

    def set_offset_lags(self, lags: dict[str, int]) -> None:
        self.lags = lags


def made(*recorders: Recorder, check: Callable[[], None] = lambda: None) -> tuple[Monitoring, Any]:
    noted: Any = Noted()
    inputs = [MonitoredInput(f"input-{at}", each, at) for at, each in enumerate(recorders)]
    return Monitoring(inputs, len(recorders), noted, "enrich", check), noted


def wait_until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_newest_is_committed_and_those_between_are_not() -> None:
    slow, other = Recorder(), Recorder()
    slow.open.clear()
    told, _ = made(slow, other)
    told.note(["0", "-", "control"])
    wait_until(lambda: slow.tries)
    for number in range(1, 50):
        told.note([str(number), str(2 * number), "control"])
    slow.open.set()
    told.finish()
    assert slow.committed == ["0", "49"]
    # Of the other nothing was read at first.
    assert other.committed == ["98"]
    assert (slow.closed, other.closed) == (1, 1)


def test_lines_that_belong_to_no_input_are_left_alone() -> None:
    recorder = Recorder()
    told, _ = made(recorder)
    told.note(["1", "2", "control"])
    told.finish()
    assert recorder.tries == 0


def test_a_refusal_is_told_once_counted_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(observers, "_AGAIN_SECONDS", 0.01)
    recorder = Recorder()
    recorder.refusal = ConfigurationError("input 'trades': consumer group 'lags' has members")
    told, noted = made(recorder)
    told.note(["7", "control"])
    wait_until(lambda: recorder.tries >= 3)
    recorder.refusal = None
    wait_until(lambda: recorder.committed)
    told.finish()
    assert recorder.committed == ["7"]
    assert len(noted.failures) >= 3
    (warning,) = caplog.records
    assert warning.getMessage() == (
        "query enrich: could not commit the offsets that input 'input-0' has read; the query continues: "
        "input 'trades': consumer group 'lags' has members"
    )


def test_a_run_that_was_taken_over_commits_nothing() -> None:
    recorder = Recorder()

    def fenced() -> None:
        raise QueryFailedError

    told, noted = made(recorder, check=fenced)
    told.note(["7", "control"])
    told.finish()
    assert (recorder.tries, noted.failures) == (0, ["input-0"] * len(noted.failures))


def test_the_lag_is_asked_for_once_somebody_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observers, "_AGAIN_SECONDS", 0.01)
    recorder = Recorder(commits=False)
    told, noted = made(recorder)
    told.note(["7", "control"])
    time.sleep(0.1)
    assert noted.lags == {}
    noted.is_asked.set()
    wait_until(lambda: noted.lags == {"input-0": 93})
    told.finish()
    assert recorder.tries == 0


def test_offsets_are_committed_again_before_kafka_forgets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observers, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(observers, "_REPEAT_SECONDS", 0.02)
    recorder = Recorder()
    told, _ = made(recorder)
    told.note(["7", "control"])
    wait_until(lambda: len(recorder.committed) >= 3)
    told.finish()


def outside(
    *sources: Any, on_progress: Callable[[Any], Any] | None = None, last: Any = None, lines: tuple[int, int] = (1, 1)
) -> Observers:
    """Watch a run of a query in a checkpoint, whose inputs have these sources."""
    inputs = [SimpleNamespace(name=name) for name in ("trades", "customers")]
    plan: Any = SimpleNamespace(inputs=inputs, outputs={"output": (1, None)})
    lease = SimpleNamespace(epoch=1, check=lambda: None)
    checkpoint: Any = SimpleNamespace(lease=lease, last=last, begins_at=None)
    checkpoint.last_report = None if last is None else last.report
    return Observers("enrich", plan, checkpoint, (*sources, None, None)[:2], lines, on_progress)


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
    assert warning.endswith("its metrics can't be counted, the query continues: MemoryError('the collector is full')")
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
