"""The keys that a test captures: chosen, reduced to what the test needs, replayed, and classified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cojoin.capture.captured_sources import history_of, key_histories
from cojoin.capture.chosen_keys import key_text, named_keys, places_of_keys
from cojoin.capture.coverage import classify
from cojoin.capture.key_replay import name_of, replay_key
from cojoin.capture.masking import mask_columns, select_columns
from cojoin.capture.observed_run import observe
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.errors import ConfigurationError, FunctionError
from cojoin.testing.captured_file import CapturedKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from numpy.typing import NDArray

    from cojoin.capture.coverage import Coverage
    from cojoin.capture.observed_run import Notes
    from cojoin.capture.recorded_history import History
    from cojoin.engine.plan import Plan

__all__ = ["FoundKeys", "Reduction", "keys_of_checkpoint", "keys_of_run"]

_MOST_ROWS = 10_000
"""How many rows a test has at most; a harness takes about a second for them."""


@dataclass(frozen=True)
class Reduction:
    """What of the rows a test needs.

    Attributes:
        span: The span of event time; None for all.
        columns: The columns to keep by input; None for all.
        mask: The columns whose values are replaced by pseudonyms.
    """

    span: tuple[datetime, datetime] | None
    columns: Mapping[str, Sequence[str]] | None
    mask: Sequence[str]


@dataclass(frozen=True)
class FoundKeys:
    """The keys that a test captures.

    Attributes:
        plan: What is tested, with inputs as the harness takes them.
        keys: The keys by their texts.
        sizes: How many rows each key has.
        origin: Where the rows come from, for people.
    """

    plan: Plan
    keys: Mapping[str, CapturedKey]
    sizes: Mapping[str, int]
    origin: str


def keys_of_run(
    source: Any, keys: Iterable[Any] | None, covers: Sequence[str], most: int, reduction: Reduction
) -> FoundKeys:
    """Return keys of a run or of a stream's steps.

    Args:
        source: A ``Joined``, or a list of steps.
        keys: The keys that the user names; None chooses some.
        covers: The cases of which the chosen keys are examples.
        most: The largest number of chosen keys.
        reduction: What of their rows the test needs.

    Raises:
        ConfigurationError: A key has no rows, or the rows can't be captured.
        FunctionError: The function raised an error.
    """
    plan: Plan = source[0].plan if isinstance(source, list) else source.plan
    wanted = None if keys is None else named_keys(keys, plan.left)
    history = select_columns(history_of(source, wanted, reduction.span).within(reduction.span), reduction.columns)
    notes, coverage = _classified(history, reduction)
    if wanted is None:
        chosen = coverage.choose(covers, most)
        if not chosen:
            msg = f"capture: none of the {len(coverage.keys):,} keys of {history.origin} covers {', '.join(covers)}"
            raise ConfigurationError(msg)
    else:
        chosen = places_of_keys(wanted, coverage.keys, history.origin)
    count = int(coverage.sizes[chosen].sum())
    if count > _MOST_ROWS:
        biggest = max(chosen, key=lambda code: int(coverage.sizes[code]))
        name = key_text(coverage.keys[biggest], history.plan.left)
        msg = (
            f"keys: they have {count:,} rows, key {name} alone {int(coverage.sizes[biggest]):,}, and a test holds "
            f"{_MOST_ROWS:,}; choose keys with fewer rows, or a shorter time with span=(start, end)"
        )
        raise ConfigurationError(msg)
    part = history.only(*(np.isin(codes, chosen) for codes in coverage.codes))
    batches = {}
    for code in chosen:
        alone = history.only(*(codes == code for codes in coverage.codes))
        key = coverage.keys[code]
        emitted = _emitted(history, notes, key)
        batches[code] = replay_key(alone, emitted, f"{name_of(history.plan)}, key {key_text(key, history.plan.left)}")
    if not reduction.mask:
        found = {
            key_text(coverage.keys[code], history.plan.left): CapturedKey(coverage.of_key(code), *batches[code])
            for code in chosen
        }
        sizes = [int(coverage.sizes[code]) for code in chosen]
        return FoundKeys(history.plan, found, dict(zip(found, sizes, strict=True)), history.origin)
    return _masked(part, coverage, chosen, reduction)


def keys_of_checkpoint(source: Any, joined: Any, keys: Iterable[Any] | None, reduction: Reduction) -> FoundKeys:
    """Return keys of a checkpoint, each with its state at the snapshot and its rows since.

    Raises:
        ConfigurationError: An argument does not fit a checkpoint, or it has nothing of a key.
        CheckpointError: The checkpoint can't be read, or is that of another query.
    """
    if reduction != Reduction(None, None, ()):
        msg = (
            "span, columns, mask: a checkpoint's state holds whole rows, and those before any span; leave them out, or "
            "capture from the query's sources: capture(joined, ...)"
        )
        raise ConfigurationError(msg)
    if keys is None:
        msg = "keys: a checkpoint's keys are not chosen by what they cover; name them: capture(..., keys=[...])"
        raise ConfigurationError(msg)
    named = named_keys(keys, joined.plan.left)
    histories = key_histories(source, joined, named)
    found, sizes = {}, {}
    for key, history in zip(named, histories, strict=True):
        notes, coverage = _classified(history, reduction)
        text = key_text(key, history.plan.left)
        emitted = _emitted(history, notes, key)
        batches, outcomes = replay_key(history, emitted, f"{name_of(history.plan)}, key {text}")
        cases = coverage.of_key(0) if coverage.keys else ()
        if notes is not None and any(each.timers for each in notes.values()) and "timer" not in cases:
            cases = (*cases, "timer")
        found[text] = CapturedKey(cases, batches, outcomes, history.state)
        sizes[text] = sum(table.num_rows for table in history.rows)
    return FoundKeys(histories[0].plan, found, sizes, histories[0].origin)


def _classified(history: History, reduction: Reduction) -> tuple[dict[Any, Notes] | None, Coverage]:
    if not isinstance(history.plan.operation, KeyedCoProcess):
        return None, classify(history, None)
    try:
        notes = observe(history)
    except FunctionError as error:
        if reduction.columns is None:
            raise
        msg = f"{error}; columns= left out what is not named there: keep the columns that the function reads"
        raise FunctionError(msg) from error
    return notes, classify(history, notes)


def _emitted(history: History, notes: Mapping[Any, Notes] | None, key: tuple[Any, ...]) -> dict[str, list[Any]] | None:
    if notes is None:
        return None
    operation: Any = history.plan.operation
    known = notes.get(key[0] if len(key) == 1 else key)
    return {} if known is None else known.outputs(operation)


def _masked(part: History, coverage: Coverage, chosen: Sequence[int], reduction: Reduction) -> FoundKeys:
    """Return the chosen keys with pseudonyms; a key is found again by the place of one of its rows."""
    masked = mask_columns(part, reduction.mask)
    notes, again = _classified(masked, reduction)
    before = [np.isin(codes, chosen) for codes in coverage.codes]
    codes_before = [codes[mask] for codes, mask in zip(coverage.codes, before, strict=True)]
    found, sizes = {}, {}
    for code in chosen:
        new = _same_key(codes_before, again.codes, code)
        key = again.keys[new]
        alone = masked.only(*(codes == new for codes in again.codes))
        text = key_text(key, masked.plan.left)
        captured = replay_key(alone, _emitted(masked, notes, key), f"{name_of(masked.plan)}, key {text}")
        found[text] = CapturedKey(again.of_key(new), *captured)
        sizes[text] = int(again.sizes[new])
    return FoundKeys(masked.plan, found, sizes, masked.origin)


def _same_key(before: Sequence[NDArray[np.int64]], after: Sequence[NDArray[np.int64]], code: int) -> int:
    for old, new in zip(before, after, strict=True):
        places = np.flatnonzero(old == code)
        if len(places):
            return int(new[places[0]])
    msg = f"key code {code} has no row"
    raise AssertionError(msg)
