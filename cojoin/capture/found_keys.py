"""The keys that a test captures: named or chosen, reduced to what the test needs, replayed, and classified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cojoin.capture.captured_file import CapturedKey
from cojoin.capture.coverage import classify, observe
from cojoin.capture.key_replay import name_of, replay_key
from cojoin.capture.masking import mask_columns, select_columns
from cojoin.capture.recorded_history import history_of, key_histories
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.values.encoding import coercer
from cojoin.engine.values.json_values import value_to_json
from cojoin.engine.values.rows import Row, dump_json
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import ConfigurationError, FunctionError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from numpy.typing import NDArray

    from cojoin.capture.coverage import Coverage, Notes
    from cojoin.capture.recorded_history import History
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.plan import Plan

__all__ = ["FoundKeys", "Reduction", "keys_of_checkpoint", "keys_of_run"]

_MOST_ROWS = 10_000
"""How many rows a test has at most; a harness takes about a second for them."""

_SHOWN, _COMPARED = 5, 10_000
"""How many keys a message shows, and among how many it looks for a similar one."""


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


def named_keys(keys: Iterable[Any], spec: InputSpec) -> list[tuple[Any, ...]]:
    """Return the keys that a user names as tuples of values, each key once.

    Args:
        keys: The value of the key column for each key; a tuple if there are several columns.
        spec: An input whose key columns these are.

    Raises:
        ConfigurationError: There is no key, or one does not fit the key's columns.
    """
    if isinstance(keys, (str, bytes, dict)) or not hasattr(keys, "__iter__"):
        msg = f"keys: expected a list of keys, got {keys!r}; write keys=[{keys!r}]"
        raise ConfigurationError(msg)
    found = [_key(each, spec) for each in keys]
    if not found:
        msg = "keys: expected one or more keys, got none; leave keys= out to have some chosen by what they cover"
        raise ConfigurationError(msg)
    return list(dict.fromkeys(found))


def _key(key: Any, spec: InputSpec) -> tuple[Any, ...]:
    fields = [spec.schema.field(name) for name in spec.key]
    values = (key,) if len(fields) == 1 and not isinstance(key, Row) else key
    if not isinstance(values, (tuple, list)) or len(values) != len(fields):
        msg = f"keys: expected a tuple of {', '.join(spec.key)} for each key, got {key!r}"
        raise ConfigurationError(msg)
    made = []
    for field, value in zip(fields, values, strict=True):
        try:
            fits = value is not None
            made.append(coercer(field.type, "")(value))
        except FunctionError:
            fits = False
        if not fits:
            kind = type_to_ddl(field.type)
            msg = f"keys: key column {field.name!r}: expected {kind}, got {value!r} ({type(value).__name__})"
            raise ConfigurationError(msg)
    return tuple(made)


def places_of_keys(wanted: Sequence[tuple[Any, ...]], known: Sequence[tuple[Any, ...]], where: str) -> list[int]:
    """Return the places of keys among those that have rows.

    Args:
        wanted: The keys.
        known: The keys that have rows.
        where: Where these rows are, for the message.

    Raises:
        ConfigurationError: A key has no rows.
    """
    places = {key: place for place, key in enumerate(known)}
    missing = [key for key in wanted if key not in places]
    if missing:
        texts = [_shown(key) for key in missing[:_SHOWN]]
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        near = ""
        if known and len(known[0]) == 1 and isinstance(missing[0][0], str) and len(known) <= _COMPARED:
            near = did_you_mean(missing[0][0], [str(key[0]) for key in known])
        near = near if "did you mean" in near else ""
        there = f"they have {len(known):,}, such as {', '.join(_shown(key) for key in known[:_SHOWN])}"
        msg = (
            f"keys: {where} have no rows of key{'s' if len(missing) > 1 else ''} {', '.join(texts)}{more}; "
            f"{there if known else 'they have no rows at all'}{near}"
        )
        raise ConfigurationError(msg)
    return [places[key] for key in wanted]


def key_text(key: tuple[Any, ...], spec: InputSpec) -> str:
    """Return a key as text, different for different keys of one input.

    A text is its own, and other values are as in the file of captured rows. Several columns are a JSON list.
    """
    values = [value_to_json(value, spec.schema.field(name).type) for value, name in zip(key, spec.key, strict=True)]
    if len(values) > 1:
        return dump_json(values)
    plain = isinstance(values[0], str) and values[0] and not values[0].startswith('"')
    return values[0] if plain else dump_json(values[0])


def _shown(key: tuple[Any, ...]) -> str:
    return repr(key[0] if len(key) == 1 else key)
