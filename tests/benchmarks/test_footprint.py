"""What a process tree takes: a process that ends at once is no peak, and one that stays is."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from benchmarks import footprint
from benchmarks.footprint import Footprint

if TYPE_CHECKING:
    from collections.abc import Iterator

MEGABYTE = 1 << 20
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="PSS is Linux's")


def peak_of(samples: Iterator[int], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the peak of what a tree of one process takes, look by look."""
    monkeypatch.setattr(footprint, "_pss", lambda process: next(samples))
    monkeypatch.setattr(footprint, "_tree", lambda process: {process: 0})
    with Footprint() as found:
        time.sleep(1)
    return found.peak


def test_what_only_one_look_sees_is_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    def samples() -> Iterator[int]:
        yield from (100, 100, 100, 200)
        while True:
            yield 101

    assert peak_of(samples(), monkeypatch) == 101


def test_what_stays_is_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    def samples() -> Iterator[int]:
        yield from (100, 100, 100, 200, 199, 198)
        while True:
            yield 101

    assert peak_of(samples(), monkeypatch) == 198


def test_a_child_counts_with_its_parent_and_a_program_that_starts_does_not_count_twice() -> None:
    held = "import subprocess, time; held = bytearray(200 << 20); end = time.monotonic() + 3\n"
    busy = 'while time.monotonic() < end: subprocess.run(["/bin/true"])'
    with Footprint() as alone:
        time.sleep(0.5)
    with Footprint() as found:
        subprocess.run([sys.executable, "-c", held + busy], check=True)
    assert 200 * MEGABYTE <= found.peak - alone.peak < 350 * MEGABYTE
