"""The choice of the keys that a test captures: those that the user names, or a few that cover all cases.

- *match*: a left row that has a match; for a function, one with a right row of its key at or before its time;
- *no_match*: a left row that has none;
- *tie*: two rows of the key, of one input or of both, with the same event time;
- *late*: a row at or below the watermark before its micro-batch, rejected or applied;
- *rejected*: a row that is rejected for another reason;
- *versions*: two or more right rows;
- *null*: a null in a column that is neither key nor event time;
- *timer*: a timer of the function that fired;
- *side_output*: a row of a side output.

It costs a sort of all rows by key and time, and one run of the join or of the function over them, which notes each
key's output and fired timers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow.compute as pc

from cojoin.capture.captured_keys import CapturedKey, name_of, replay_key
from cojoin.capture.history import history_of, key_histories, mask_columns, select_columns
from cojoin.engine.functions import OutputTag, encode_outputs
from cojoin.engine.input_spec import has_null_key
from cojoin.engine.joins.output_columns import output_names
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.local.local_run import LocalRun, decode_states
from cojoin.engine.operator import OUTPUT
from cojoin.engine.values.json_values import row_to_json, value_to_json
from cojoin.engine.values.keys import checked_key, key_values, plain_key
from cojoin.engine.values.rows import decode_rows, dump_json
from cojoin.errors import ConfigurationError, FunctionError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from numpy.typing import NDArray

    from cojoin.capture.history import History
    from cojoin.engine.functions import Context
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.local.key_group import Callback, Observer
    from cojoin.engine.local.local_run import BatchOutput
    from cojoin.engine.plan import Plan


_MOST_ROWS = 10_000
"""The most rows of a test; a harness takes about a second for them."""

_SHOWN, _COMPARED = 5, 10_000
"""The most keys in a message, and the most among which it looks for a similar one."""


@dataclass(frozen=True)
class Reduction:
    """The rows and columns that a test needs, None for all, and the columns whose values become pseudonyms."""

    span: tuple[datetime, datetime] | None
    columns: Mapping[str, Sequence[str]] | None
    mask: Sequence[str]


@dataclass(frozen=True)
class ChosenKeys:
    """The captured keys; ``keys`` and ``sizes`` (numbers of rows) are by key text, ``origin`` describes the source."""

    plan: Plan
    keys: Mapping[str, CapturedKey]
    sizes: Mapping[str, int]
    origin: str


def keys_of_run(
    source: Any, keys: Iterable[Any] | None, covers: Sequence[str], most: int, reduction: Reduction
) -> ChosenKeys:
    """Return the named keys of a join or of a list of steps; if ``keys`` is None, at most ``most`` keys for the cases.

    A named key without rows raises ConfigurationError, and so do too many rows for a test.
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
        chosen = _positions_of(wanted, coverage.keys, history.origin)
    count = int(coverage.sizes[chosen].sum())
    if count > _MOST_ROWS:
        biggest = max(chosen, key=lambda code: int(coverage.sizes[code]))
        name = key_text(coverage.keys[biggest], history.plan.left)
        msg = (
            f"keys: the chosen keys have {count:,} rows, key {name} alone {int(coverage.sizes[biggest]):,}, but a test "
            f"has at most {_MOST_ROWS:,}; choose keys with fewer rows, or a shorter time with span=(start, end)"
        )
        raise ConfigurationError(msg)
    captured = _captured(history, notes, coverage, chosen)
    return _masked(history, coverage, chosen, reduction) if reduction.mask else captured


def _captured(
    history: History, notes: Mapping[Any, Notes] | None, coverage: Coverage, codes: Iterable[int]
) -> ChosenKeys:
    captured, sizes = {}, {}
    for code in codes:
        key = coverage.keys[code]
        text = key_text(key, history.plan.left)
        alone = history.only(*(of_row == code for of_row in coverage.codes))
        replayed = replay_key(alone, _emitted(history, notes, key), f"{name_of(history.plan)}, key {text}")
        captured[text] = CapturedKey(coverage.of_key(code), *replayed)
        sizes[text] = int(coverage.sizes[code])
    return ChosenKeys(history.plan, captured, sizes, history.origin)


def keys_of_checkpoint(source: Any, joined: Any, keys: Iterable[Any] | None, reduction: Reduction) -> ChosenKeys:
    """Return keys of a checkpoint, each with its state at the snapshot and its rows since."""
    if reduction.span is not None or reduction.columns or reduction.mask:
        msg = (
            "span, columns, mask: a checkpoint's state holds whole rows, also from before a span; leave these out, or "
            "capture from the query's sources: capture(joined, ...)"
        )
        raise ConfigurationError(msg)
    if keys is None:
        msg = "keys: the keys of a checkpoint can't be chosen by their cases; name them: capture(..., keys=[...])"
        raise ConfigurationError(msg)
    named = named_keys(keys, joined.plan.left)
    histories = key_histories(source, joined, named)
    captured, sizes = {}, {}
    for key, history in zip(named, histories, strict=True):
        notes, coverage = _classified(history, reduction)
        text = key_text(key, history.plan.left)
        emitted = _emitted(history, notes, key)
        batches, outcomes = replay_key(history, emitted, f"{name_of(history.plan)}, key {text}")
        cases = coverage.of_key(0) if coverage.keys else ()
        if notes is not None and any(each.timers for each in notes.values()) and "timer" not in cases:
            cases = (*cases, "timer")
        captured[text] = CapturedKey(cases, batches, outcomes, history.state)
        sizes[text] = sum(table.num_rows for table in history.rows)
    return ChosenKeys(histories[0].plan, captured, sizes, histories[0].origin)


def _classified(history: History, reduction: Reduction) -> tuple[dict[Any, Notes] | None, Coverage]:
    if not isinstance(history.plan.operation, KeyedCoProcess):
        return None, classify(history, None)
    try:
        notes = observe(history)
    except FunctionError as error:
        if reduction.columns is None:
            raise
        msg = f"{error}; columns= leaves columns out; if the function reads one of them, keep it"
        raise FunctionError(msg) from error
    return notes, classify(history, notes)


def _emitted(history: History, notes: Mapping[Any, Notes] | None, key: tuple[Any, ...]) -> dict[str, list[Any]] | None:
    if notes is None:
        return None
    operation: Any = history.plan.operation
    known = notes.get(plain_key(key))
    return {} if known is None else known.outputs(operation)


def _masked(history: History, coverage: Coverage, chosen: Sequence[int], reduction: Reduction) -> ChosenKeys:
    """Return the chosen keys with pseudonyms; a masked key is identified by the position of one of its rows."""
    rows = [np.isin(codes, chosen) for codes in coverage.codes]
    masked = mask_columns(history.only(*rows), reduction.mask)
    notes, again = _classified(masked, reduction)
    before = np.concatenate([codes[mask] for codes, mask in zip(coverage.codes, rows, strict=True)])
    after = np.concatenate(again.codes)
    return _captured(masked, notes, again, [int(after[before == code][0]) for code in chosen])


def named_keys(keys: Iterable[Any], spec: InputSpec) -> list[tuple[Any, ...]]:
    """Return the keys that a user names as tuples, without duplicates; a key of one column may be a plain value."""
    if isinstance(keys, (str, bytes, dict)) or not hasattr(keys, "__iter__"):
        msg = f"keys: expected a list of keys, got {keys!r}; write keys=[{keys!r}]"
        raise ConfigurationError(msg)
    tuples = [_key(each, spec) for each in keys]
    if not tuples:
        msg = "keys: expected one or more keys, got none; leave keys= out to have some chosen by their cases"
        raise ConfigurationError(msg)
    return list(dict.fromkeys(tuples))


def _key(key: Any, spec: InputSpec) -> tuple[Any, ...]:
    if key_values(key, spec.key) is None:
        msg = f"keys: expected a tuple of {', '.join(spec.key)} for each key, got {key!r}"
        raise ConfigurationError(msg)
    try:
        return checked_key(key, spec.key_schema, "keys: key")
    except FunctionError as error:
        raise ConfigurationError(str(error)) from None


def _positions_of(wanted: Sequence[tuple[Any, ...]], known: Sequence[tuple[Any, ...]], origin: str) -> list[int]:
    """Return the positions of wanted keys among the known keys; the error for a missing key names ``origin``."""
    positions = {key: position for position, key in enumerate(known)}
    missing = [key for key in wanted if key not in positions]
    if missing:
        texts = [repr(plain_key(key)) for key in missing[:_SHOWN]]
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        near = ""
        if known and len(known[0]) == 1 and isinstance(missing[0][0], str) and len(known) <= _COMPARED:
            near = did_you_mean(missing[0][0], [str(key[0]) for key in known])
        near = near if "did you mean" in near else ""
        examples = f"they have {len(known):,} keys, such as {', '.join(repr(plain_key(key)) for key in known[:_SHOWN])}"
        msg = (
            f"keys: {origin} have no rows of key{'s' if len(missing) > 1 else ''} {', '.join(texts)}{more}; "
            f"{examples if known else 'they have no rows at all'}{near}"
        )
        raise ConfigurationError(msg)
    return [positions[key] for key in wanted]


def key_text(key: tuple[Any, ...], spec: InputSpec) -> str:
    """Return a key as text, different for different keys of one input.

    A string is unchanged, other values are as in the file of captured rows. Several columns become a JSON list.
    """
    values = [value_to_json(value, spec.schema.field(name).type) for value, name in zip(key, spec.key, strict=True)]
    if len(values) > 1:
        return dump_json(values)
    plain = isinstance(values[0], str) and values[0] and not values[0].startswith('"')
    return values[0] if plain else dump_json(values[0])


Case: TypeAlias = Literal["match", "no_match", "tie", "late", "rejected", "versions", "null", "timer", "side_output"]
"""A case that a key can be an example of; the module describes each."""

CASES: tuple[Case, ...] = get_args(Case)
"""All cases."""


_EXAMPLES = 3
"""The number of chosen keys that are examples of each case."""


@dataclass
class Notes:
    """The values that a function's callbacks yielded for one key, in order, and the number of timers that fired."""

    yielded: list[Any] = field(default_factory=list)
    timers: int = 0

    @property
    def uses_side_outputs(self) -> bool:
        """Whether a row went to a side output."""
        return any(type(each) is tuple and len(each) == 2 and isinstance(each[0], OutputTag) for each in self.yielded)

    def outputs(self, process: KeyedCoProcess) -> dict[str, list[Any]]:
        """Return the rows of each output that has any, as JSON objects; the main output is ``output``."""
        pieces = encode_outputs(self.yielded, process.output, process.side_outputs, "function")
        return {
            name or "output": [row_to_json(row, table.schema, sort_maps=True) for row in decode_rows(table)]
            for name, table in pieces
            if table.num_rows
        }


@dataclass(frozen=True)
class Coverage:
    """The keys of a history and their cases.

    ``codes`` has, for both inputs, the code of each row's key. The others are by code: ``keys`` has each key's values,
    ``sizes`` its number of rows, and ``cases``, for each case, whether the key is an example of it.
    """

    codes: Sequence[NDArray[np.int64]]
    keys: Sequence[tuple[Any, ...]]
    sizes: NDArray[np.int64]
    cases: Mapping[str, NDArray[np.bool_]]

    def of_key(self, code: int) -> tuple[str, ...]:
        """Return the cases that a key is an example of."""
        return tuple(name for name, members in self.cases.items() if members[code])

    def choose(self, wanted: Iterable[str], most: int) -> list[int]:
        """Return the codes of at most ``most`` keys that are examples of the wanted cases.

        Each case gets a first key, the rarest case first, then each a second and a third. A key that is an example of
        several cases counts for each. Keys with fewer rows are taken first; of equal ones, the one that came first.
        """
        chosen: list[int] = []
        by_size = np.argsort(self.sizes, kind="stable")
        # The rarest case comes first, since its keys are often examples of the others, too.
        cases = sorted((self.cases[case] for case in wanted if case in self.cases), key=np.count_nonzero)
        smallest = [by_size[members[by_size]][:most].tolist() for members in cases]
        for count in range(1, _EXAMPLES + 1):
            for members, candidates in zip(cases, smallest, strict=True):
                if len(chosen) < most and members[chosen].sum() < count:
                    chosen += [code for code in candidates if code not in chosen][:1]
        return chosen


def applicable(plan: Plan) -> tuple[Case, ...]:
    """Return the cases that can occur with a join, or with a function and its side outputs."""
    lacking: set[Case] = set()
    if not isinstance(plan.operation, KeyedCoProcess):
        lacking.add("timer")
    if not plan.side_outputs:
        lacking.add("side_output")
    return tuple(case for case in CASES if case not in lacking)


def classify(history: History, notes: Mapping[Any, Notes] | None) -> Coverage:
    """Return the keys of a history and their cases; ``notes`` are a function's notes by key, None for a join."""
    codes, count = history.keys()
    keys = _keys(history, codes, count)
    numbers = {key: code for code, key in enumerate(keys)}
    micros = [spec.micros(table) for spec, table in zip(history.plan.inputs, history.rows, strict=True)]

    def of_rows(masks: Iterable[NDArray[np.bool_]]) -> NDArray[np.int64]:
        return np.concatenate([side[mask] for side, mask in zip(codes, masks, strict=True)])

    cases = {
        "tie": _ties(history, codes, micros),
        "late": of_rows(history.late()),
        "rejected": of_rows(history.rejected()),
        "versions": np.flatnonzero(np.bincount(codes[1], minlength=count) > 1),
        "null": of_rows(_nulls(history)),
    }
    if notes is None:
        cases["match"], cases["no_match"] = _matches_of_join(history, numbers)
    else:
        cases["match"], cases["no_match"] = _earlier_right_row(codes, micros, count)
        named = {key if isinstance(key, tuple) else (key,): each for key, each in notes.items()}
        cases["timer"] = _codes((key for key, each in named.items() if each.timers), numbers)
        cases["side_output"] = _codes((key for key, each in named.items() if each.uses_side_outputs), numbers)
    masks: dict[str, NDArray[np.bool_]] = {}
    for case in applicable(history.plan):
        masks[case] = np.zeros(count, dtype=bool)
        masks[case][cases[case]] = True
    sizes = np.bincount(np.concatenate(codes), minlength=count)
    return Coverage(codes, keys, sizes, masks)


def _keys(history: History, codes: Sequence[NDArray[np.int64]], count: int) -> list[tuple[Any, ...]]:
    """Return each key's values, by code."""
    values: list[tuple[Any, ...]] = [()] * count
    for side in (1, 0):
        distinct, first = np.unique(codes[side], return_index=True)
        rows = history.plan.inputs[side].keys(history.rows[side]).take(first)
        for code, key in zip(distinct.tolist(), decode_rows(rows), strict=True):
            values[code] = tuple(key)
    return values


def _codes(keys: Iterable[tuple[Any, ...]], numbers: Mapping[tuple[Any, ...], int]) -> NDArray[np.int64]:
    return np.array([numbers[tuple(key)] for key in keys], dtype=np.int64)


def _ties(
    history: History, codes: Sequence[NDArray[np.int64]], micros: Sequence[NDArray[np.int64]]
) -> NDArray[np.int64]:
    timed = [
        np.full(len(side_codes), spec.event_time is not None)
        for side_codes, spec in zip(codes, history.plan.inputs, strict=True)
    ]
    kept = np.concatenate(timed)
    key, time = np.concatenate(codes)[kept], np.concatenate(micros)[kept]
    order = np.lexsort([time, key])
    key, time = key[order], time[order]
    ties: NDArray[np.int64] = key[1:][(key[1:] == key[:-1]) & (time[1:] == time[:-1])]
    return ties


def _nulls(history: History) -> Iterator[NDArray[np.bool_]]:
    for spec, table in zip(history.plan.inputs, history.rows, strict=True):
        yield has_null_key(table, [name for name in table.column_names if name not in (*spec.key, spec.event_time)])


def _earlier_right_row(
    codes: Sequence[NDArray[np.int64]], micros: Sequence[NDArray[np.int64]], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the codes of left rows with and without a right row of their key at or before their time."""
    first = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first, codes[1], micros[1])
    matched = first[codes[0]] <= micros[0]
    return codes[0][matched], codes[0][~matched]


def _matches_of_join(
    history: History, numbers: Mapping[tuple[Any, ...], int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the codes of the keys with a left row that has a match, and of those with one that has none."""
    if history.state is not None:
        # The join runs as a left join, which can't restore a state of another join. So no case is known.
        return np.array([], dtype=np.int64), np.array([], dtype=np.int64)
    operation: Any = history.plan.operation
    plan = replace(history.plan, operation=replace(operation, how="left"))
    of_left, of_right = output_names(plan)
    members_by_kind: tuple[set[tuple[Any, ...]], set[tuple[Any, ...]]] = (set(), set())
    for output in _outputs(plan, history):
        table = output.tables()[OUTPUT]
        keys = table.select([of_left[name] for name in plan.left.key])
        is_matched = table.column(of_right[str(plan.right.event_time)]).is_valid()
        for members, mask in zip(members_by_kind, (is_matched, pc.invert(is_matched)), strict=True):
            distinct = keys.filter(mask).group_by(keys.column_names).aggregate([])
            members.update(map(tuple, decode_rows(distinct)))
    return _codes(members_by_kind[0], numbers), _codes(members_by_kind[1], numbers)


def observe(history: History) -> dict[Any, Notes]:
    """Return a function's output and timers for each key that had any."""
    notes: defaultdict[Any, Notes] = defaultdict(Notes)

    def note(callback: Callback, context: Context) -> None:
        if callback.side is None or callback.yielded:
            own = notes[context.get_current_key()]
            own.timers += callback.side is None
            own.yielded += callback.yielded

    for _ in _outputs(history.plan, history, note):
        pass
    return dict(notes)


def _outputs(plan: Plan, history: History, observer: Observer | None = None) -> Iterator[BatchOutput]:
    """Run a plan over a history, and yield the output of each micro-batch."""
    with LocalRun(plan, keeps_operators=True, observer=observer) as run:
        if history.state is not None:
            run.restore(decode_states(history.state).states, resumed=False)
        for number, batch in enumerate(history.batches):
            yield run.process(
                history.of_batch(number),
                batch.controls(),
                processing_time=batch.processing_time,
                end_of_input=batch.last_event is not None,
            )
