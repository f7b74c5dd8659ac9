"""A function that is called with each batch's report: in order, beside the query, whatever it does."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from cojoin.spark.progress import progress_hook
from cojoin.spark.progress.progress_hook import ProgressHook
from tests.spark.progress.runs import report

if TYPE_CHECKING:
    import pytest

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
        f"the query goes on, and further errors of it are not told"
    )


def test_one_that_hangs_keeps_neither_the_batches_nor_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_hook, "_MOST_WAITING", 5)
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
