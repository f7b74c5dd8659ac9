"""When silence is idleness."""

from __future__ import annotations

from typing import Any

import pytest

from cojoin.engine.time.idleness import Idleness, IdlenessTimer
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.errors import ConfigurationError


def test_silence_counts_from_the_first_look_that_finds_it() -> None:
    timer = IdlenessTimer(10)
    timer.activity()
    assert [timer.is_idle(now) for now in (1, 6, 11, 16, 17)] == [False, False, False, False, True]
    timer.activity()
    assert [timer.is_idle(now) for now in (18, 19, 29, 30)] == [False, False, False, True]


def test_silence_survives_a_restart_and_a_pause_forgets_it() -> None:
    timer, other = IdlenessTimer(10), IdlenessTimer(10)
    timer.is_idle(0)
    other.restore(timer.snapshot())
    assert other.is_idle(11)
    other.restart()
    assert not other.is_idle(12)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout_ms": 0}, "idle timeout: expected milliseconds above zero, got 0"),
        ({"timeout_ms": "1 s"}, "idle timeout: expected milliseconds above zero, got '1 s'"),
        ({"timeout_ms": 1, "returning": "hld"}, "returning: expected 'hold' or 'skip', got 'hld'; did you mean 'hold'"),
        ({"timeout_ms": 1, "even_if_silent": 1}, "even_if_silent: expected True or False, got 1"),
    ],
)
def test_idleness_made_by_hand_is_checked_as_well(options: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Idleness(**options)
    with pytest.raises(ConfigurationError, match=r"idleness: expected an Idleness, got 5; write .with_idleness"):
        WatermarkStrategy(idleness=5)  # type: ignore[arg-type]
