"""The smallest contrast that still differs: fewer rows, then fewer batches, key groups, restarts and watermarks.

Rows are taken away in halves, quarters and so on, down to single ones, until none can be spared (delta debugging). What
makes an error of a difference is not accepted, nor the other way round.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from cojoin.engine.time.watermarks import NONE
from cojoin.testing.determinism.laboratory import Contrast, Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cojoin.testing.determinism.deliveries import Delivery, RowTimes
    from cojoin.testing.determinism.laboratory import Laboratory

__all__ = ["shrink"]

_MOST_SECONDS = 20.0


def shrink(laboratory: Laboratory, seen: Seen) -> Seen:
    """Return the smallest contrast found that differs as the given one does, within 20 seconds."""
    deadline = time.monotonic() + _MOST_SECONDS
    kinds = [output.error is None for output in seen[1:]]

    def attempt(contrast: Contrast) -> Seen | None:
        if time.monotonic() > deadline:
            return None
        found = laboratory.compare(contrast)
        same_kind = found is not None and [output.error is None for output in found[1:]] == kinds
        return found if same_kind else None

    while True:
        before = seen.contrast
        seen = _fewer_rows(seen, laboratory.runner.times, attempt)
        seen = _simpler(seen, attempt)
        if seen.contrast == before:
            return seen


def _fewer_rows(seen: Seen, times: RowTimes, attempt: Callable[[Contrast], Seen | None]) -> Seen:
    rows = seen.contrast.rows
    piece = max(1, len(rows) // 2)
    while True:
        start, before = 0, len(rows)
        while start < len(rows):
            kept = rows[:start] + rows[start + piece :]
            found = attempt(seen.contrast.of_rows(set(kept), times.last_events(kept))) if kept else None
            if found is None:
                start += piece
            else:
                seen, rows = found, kept
        if piece == 1 and len(rows) == before:
            return seen
        piece = max(1, piece // 2)


def _simpler(seen: Seen, attempt: Callable[[Contrast], Seen | None]) -> Seen:
    """Try each simpler contrast, and begin again from each that still differs."""
    tried = {seen.contrast}
    while True:
        for contrast in _simpler_contrasts(seen.contrast):
            if contrast in tried:
                continue
            tried.add(contrast)
            found = attempt(contrast)
            if found is not None:
                seen = found
                break
        else:
            return seen


def _simpler_contrasts(contrast: Contrast) -> Iterator[Contrast]:
    """Yield contrasts with one thing less: in both runs, if they have as many batches, else in one of them."""
    first, second = contrast.first, contrast.second
    alike = len(first.delivery.batches) == len(second.delivery.batches)
    for simpler in _simplifications(second.delivery):
        changed = replace(second, delivery=simpler(second.delivery))
        other = replace(first, delivery=simpler(first.delivery)) if alike else first
        yield Contrast(other, changed, contrast.key)
    if not alike:
        for simpler in _simplifications(first.delivery):
            yield Contrast(replace(first, delivery=simpler(first.delivery)), second, contrast.key)


def _simplifications(delivery: Delivery) -> Iterator[Callable[[Delivery], Delivery]]:
    for number in reversed(range(len(delivery.batches) - 1)):
        yield lambda each, number=number: each.merged(number)  # type: ignore[misc]
    yield lambda each: _each_batch(each, key_groups=1)
    yield lambda each: _each_batch(each, processing_time=0)
    yield lambda each: _each_batch(each, watermarks=(NONE, NONE))
    for number in range(1, len(delivery.batches)):
        yield lambda each, number=number: _one_batch(each, number, restarts=False)  # type: ignore[misc]
    for number in range(len(delivery.batches)):
        yield lambda each, number=number: _one_batch(each, number, watermarks=(NONE, NONE))  # type: ignore[misc]
    groups = max(batch.key_groups for batch in delivery.batches)
    if groups > 2:
        yield lambda each: replace(
            each, batches=tuple(replace(batch, key_groups=min(2, batch.key_groups)) for batch in each.batches)
        )


def _each_batch(delivery: Delivery, **changes: object) -> Delivery:
    return replace(delivery, batches=tuple(replace(batch, **changes) for batch in delivery.batches))  # type: ignore[arg-type]


def _one_batch(delivery: Delivery, number: int, **changes: object) -> Delivery:
    batches = list(delivery.batches)
    batches[number] = replace(batches[number], **changes)  # type: ignore[arg-type]
    return replace(delivery, batches=tuple(batches))
