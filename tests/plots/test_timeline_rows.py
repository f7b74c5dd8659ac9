"""Which version is in force when, against pandas, and which keys are meant."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cojoin as cj
from cojoin.plots.timeline_rows import Version, key_rows, key_text, read_keys, rows_by_key
from tests.plots.drawn import at, pair

# Even minutes, so that the middle of two versions is a whole minute.
VERSIONS = st.lists(st.integers(0, 30).map(lambda each: 2 * each), min_size=1, max_size=6, unique=True)
TRADES = st.lists(st.integers(0, 61), min_size=1, max_size=8)


@settings(max_examples=30)
@given(VERSIONS, TRADES, st.sampled_from(["backward", "forward", "nearest"]), st.sampled_from([None, 7]))
def test_bars_and_matches_are_those_of_merge_asof(
    versions: list[int], trades: list[int], direction: Any, tolerance: int | None
) -> None:
    both = pair([("ann", each, each) for each in trades], [("ann", each, f"v{each}") for each in versions])
    joined = both.asof_join(direction=direction, tolerance=None if tolerance is None else f"{tolerance} minutes")
    execution = joined._embedded("")
    (sides,) = rows_by_key(execution.rows, joined.plan.inputs, [("ann",)])
    found = key_rows(joined.plan, execution, ("ann",), sides)
    left = pd.DataFrame({"time": [at(each) for each in sorted(trades)]})
    right = pd.DataFrame({"time": [at(each) for each in sorted(versions)], "version": sorted(versions)})
    limit = None if tolerance is None else pd.Timedelta(minutes=tolerance)
    said = pd.merge_asof(left, right, on="time", direction=direction, tolerance=limit)
    micros = said["time"].astype("datetime64[us, UTC]").astype("int64")
    for time, version in zip(micros, said["version"], strict=True):
        matched = [] if np.isnan(version) else [int(version)]
        assert [(each - micros_of(0)) // 60_000_000 for each in found.matches.get(time, [])] == matched
        covering = [
            each.label for each in found.right if isinstance(each, Version) and each.begins <= time <= each.ends
        ]
        # At a border both bars meet.
        assert [f"v{each}" for each in matched] == covering or (len(covering) == 2 and f"v{matched[0]}" in covering)


def micros_of(minutes: int) -> int:
    return int(at(minutes).timestamp() * 1_000_000)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=8))
def test_versions_of_a_key_do_not_overlap_and_tombstones_match_nothing(rows: list[tuple[int, bool]]) -> None:
    frame = pd.DataFrame(
        [("ann", at(m), f"v{n}", dead) for n, (m, dead) in enumerate(rows)] or [("ann", at(0), "v", True)]
    )
    frame.columns = pd.Index(["customer", "event_time", "tier", "closed"])
    frame["event_time"] = frame["event_time"].astype("datetime64[us, UTC]")
    trades = pd.DataFrame({"customer": ["ann"] * 6, "event_time": [at(each + 0.5) for each in range(6)]})
    trades["event_time"] = trades["event_time"].astype("datetime64[us, UTC]")
    columns = {"key": "customer", "event_time": "event_time"}
    joined = cj.connect(cj.Input(trades, **columns), cj.Input(frame, **columns)).temporal_join(deletes="closed")
    execution = joined._embedded("")
    (sides,) = rows_by_key(execution.rows, joined.plan.inputs, [("ann",)])
    found = key_rows(joined.plan, execution, ("ann",), sides)
    versions = [each for each in found.right if isinstance(each, Version)]
    assert all(one.ends <= two.begins for one, two in pairwise(versions))
    assert all(each.begins == each.ends for each in versions if each.is_tombstone)
    output = joined.to_pandas()
    for time, tier in zip(output["event_time"], output["tier"], strict=True):
        micros = int(time.timestamp() * 1_000_000)
        covering = [each.label for each in versions if each.begins <= micros < each.ends]
        assert covering == ([] if tier is None else [tier])


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ("ann", ["ann"]),
        (["ann", "bob"], ["ann", "bob"]),
        (("ann", "bob"), ["ann", "bob"]),
        (pd.Series(["bob"]), ["bob"]),
        (np.array(["ann"]), ["ann"]),
    ],
)
def test_keys_are_one_or_several(keys: Any, found: list[str]) -> None:
    spec = pair([("ann", 0, 1)], [("ann", 0, "gold")]).asof_join().plan.left
    assert read_keys(keys, spec) == [(each,) for each in found]


def test_a_composite_key_is_spelled_in_brackets() -> None:
    assert key_text(("ann",)) == "ann"
    assert key_text(("ann", 7, None)) == "(ann, 7, null)"
