"""A change of the public surface is a change of ``tests/surface.txt``."""

from __future__ import annotations

import pyarrow as pa
import pytest

import cojoin as cj
from tests.surface import FILE, surface

pytest.importorskip("pyspark")


def test_the_surface_is_the_one_that_was_reviewed() -> None:
    known, now = FILE.read_text("utf-8").splitlines(), surface().splitlines()
    assert (sorted({*known} - {*now}), sorted({*now} - {*known})) == ([], []), "python -m tests.surface writes it"
    assert known == now


def test_former_names_work_for_a_release_and_name_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match=r"cojoin.Checkpoint is cojoin.Snapshot now"):
        assert cj.Checkpoint is cj.Snapshot
    frame = pa.table({"k": [1], "t": pa.array([0], pa.timestamp("us", "UTC"))})
    joined = cj.connect(cj.Input(frame, "k", "t"), cj.Input(frame, "k", "t")).asof_join()
    with pytest.warns(DeprecationWarning, match='the main output is "output" now'):
        assert joined.to_arrow("main").num_rows == joined.to_arrow("output").num_rows == 1  # type: ignore[arg-type]
