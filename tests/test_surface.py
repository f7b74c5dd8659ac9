"""A change of the public surface is a change of ``tests/surface.txt``."""

from __future__ import annotations

import pytest

from tests.surface import FILE, surface

pytest.importorskip("pyspark")


def test_the_surface_is_the_one_that_was_reviewed() -> None:
    known, now = FILE.read_text("utf-8").splitlines(), surface().splitlines()
    assert (sorted({*known} - {*now}), sorted({*now} - {*known})) == ([], []), "python -m tests.surface writes it"
    assert known == now
