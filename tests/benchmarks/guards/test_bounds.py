"""What a guard says, and when it tries again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks.guards import bounds
from benchmarks.guards.bounds import Bound, excess, record

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def bounds_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bounds, "_FILE", tmp_path / "bounds.json")
    record({"asof": 1.234, "static": 0.5})
    return tmp_path / "bounds.json"


def test_a_bound_is_what_was_measured_with_room_for_noise(bounds_file: Path) -> None:
    assert Bound.of("asof") == Bound(1.23, 1.85)
    assert list(json.loads(bounds_file.read_text())) == ["asof", "static"]


def test_a_way_within_its_bound_is_tried_once() -> None:
    tries = iter([1.8, 9.0])
    assert excess("asof", tries) == ""
    assert next(tries) == 9.0


def test_a_disturbed_try_is_made_again() -> None:
    assert excess("asof", iter([9.0, 1.8])) == ""


def test_five_tries_over_the_bound_are_reported() -> None:
    said = "asof took 9.00 and 2.00 and 3.00 and 4.00 and 5.00 times as long as its floor; it was 1.23 when the bound "
    assert excess("asof", iter([9.0, 2.0, 3.0, 4.0, 5.0, 1.0])) == f"{said}of 1.85 was set"
