"""The thread that tells sources how far a query is: the newest wins, and nothing that fails stops it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from cojoin.errors import ConfigurationError, QueryFailedError
from cojoin.spark.query import monitoring
from cojoin.spark.query.monitoring import MonitoredInput, Monitoring

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


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
    monkeypatch.setattr(monitoring, "_AGAIN_SECONDS", 0.01)
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
        "query enrich: the offsets that input 'input-0' has read could not be committed, the query goes on: "
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
    monkeypatch.setattr(monitoring, "_AGAIN_SECONDS", 0.01)
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
    monkeypatch.setattr(monitoring, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(monitoring, "_REPEAT_SECONDS", 0.02)
    recorder = Recorder()
    told, _ = made(recorder)
    told.note(["7", "control"])
    wait_until(lambda: len(recorder.committed) >= 3)
    told.finish()
