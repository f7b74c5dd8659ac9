"""Ctrl-C: said at once, and twice is enough."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from cojoin.cli.interrupts import Interrupts

if TYPE_CHECKING:
    from pathlib import Path

SLOW = """
import os, pathlib, signal, sys, time
import cojoin.__main__ as command_line
from cojoin.cli.interrupts import Interrupts

def slow(arguments):
    # As PySpark's session does it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Interrupts.take_back(pathlib.Path(sys.argv[1]))
    try:
        print("runs", flush=True)
        time.sleep(60)
    finally:
        print("stops", flush=True)
        time.sleep(float(sys.argv[2]))

command_line._run = slow
sys.exit(command_line.main(["demo"]))
"""


@pytest.mark.parametrize("presses", [1, 2])
def test_the_first_ends_in_order_and_the_second_at_once(tmp_path: Path, presses: int) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(scratch), "0.1" if presses == 1 else "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "runs\n"
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stops\n"
        assert process.stderr.readline() + process.stderr.readline() == (
            "\nStopping after the work in progress. Press Ctrl-C again to stop at once.\n"
        )
        if presses == 2:
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert time.monotonic() - started < 20
        assert process.stderr.read().strip() == ("Stopped." if presses == 1 else "Stopped at once.")
        assert scratch.exists() == (presses == 1)
    finally:
        process.kill()
        process.communicate()


def test_who_took_ctrl_c_before_takes_it_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
