"""What a difference tells of the arguments of two functions: plain values, never secrets, never an address."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any

import numpy as np
import pytest

from cojoin.comparison.comparison import changed_arguments

CYCLE: list[Any] = []
CYCLE.append(CYCLE)


class Level(Enum):
    HIGH = 1
    LOW = 2


class Alert:
    def __init__(self, limit: Any = 5, **more: Any) -> None:
        self.limit = limit
        vars(self).update(more)


@dataclass
class Settings:
    limit: int = 5
    api_token: str = "opensesame"
    cache: dict[str, int] = field(default_factory=dict, repr=False)


class Slotted:
    __slots__ = ("limit",)

    def __init__(self, limit: int) -> None:
        self.limit = limit


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (Alert(5), Alert(6), {"limit": ("5", "6")}),
        (Alert(5), Alert(5), {}),
        (Alert(np.int64(5)), Alert(5), {}),
        (Alert(), Alert(unit="s"), {"unit": ("none", "'s'")}),
        (Slotted(1), Slotted(2), {"limit": ("1", "2")}),
        (Settings(5), Settings(6, cache={"a": 1}), {"limit": ("5", "6")}),
        (
            Alert(timedelta(days=1)),
            Alert(timedelta(days=2)),
            {"limit": ("datetime.timedelta(days=1)", "datetime.timedelta(days=2)")},
        ),
        (Alert({"b", "a"}), Alert({"a", "c"}), {"limit": ("{'a', 'b'}", "{'a', 'c'}")}),
        (Alert([1, (2, 3)]), Alert([1, (2, 4)]), {"limit": ("[1, (2, 3)]", "[1, (2, 4)]")}),
        (Alert(Level.HIGH), Alert(Level.LOW), {"limit": ("Level.HIGH", "Level.LOW")}),
        (Alert(object()), Alert(object()), {}),
        (Alert(lambda: 1), Alert(lambda: 2), {}),
        (Alert([object()]), Alert([object()]), {}),
        (Alert(CYCLE), Alert([1]), {}),
        (
            Alert(changed_arguments),
            Alert(Level),
            {
                "limit": (
                    "cojoin.comparison.comparison.changed_arguments",
                    "tests.comparison.test_comparison.Level",
                )
            },
        ),
        (
            Alert("x" * 300 + "1" + "y" * 300),
            Alert("x" * 300 + "2" + "y" * 300),
            {"limit": (f"...{'x' * 20}1{'y' * 79}...", f"...{'x' * 20}2{'y' * 79}...")},
        ),
    ],
)
def test_what_is_told(one: Any, other: Any, expected: dict[str, tuple[str, str]]) -> None:
    assert changed_arguments(one, other) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Alert(password="opensesame"), Alert(password="abracadabra")),
        (Alert(Settings()), Alert(Settings(api_token="abracadabra"))),
        (Alert({"url": 1, "sasl.password": "opensesame"}), Alert({"url": 1, "sasl.password": "abracadabra"})),
        (Alert("s3a://me:opensesame@lake/trades"), Alert("s3a://me:abracadabra@lake/trades")),
        (Alert('user="me" password="opensesame";'), Alert('user="me" password="abracadabra";')),
        (Alert(["https://lake?sig=opensesame"]), Alert(["https://lake?sig=abracadabra"])),
        (Alert({"headers": "Bearer opensesame"}), Alert({"headers": "Bearer abracadabra"})),
    ],
)
def test_a_changed_secret_is_told_and_not_shown(one: Any, other: Any) -> None:
    ((first, second),) = changed_arguments(one, other).values()
    assert "***" in first
    assert second == f"another {first}"
    assert "opensesame" not in first
    assert "abracadabra" not in second
