"""Which cases each key is an example of, and a small choice of keys that covers them all.

The cases are:

- *match*: a left row that has a match; for a function, one with a right row of its key at or before its time;
- *no_match*: a left row that has none;
- *tie*: two rows of the key, of one input or of both, with the same event time;
- *late*: a row at or below the watermark before its micro-batch, whether it was rejected or applied;
- *rejected*: a row that is rejected for another reason;
- *versions*: two or more right rows;
- *null*: a null in a column that is neither key nor event time;
- *timer*: a timer of the function that fired;
- *side_output*: a row of a side output.

One run of a function over all keys notes, for each key, what it emitted and how many timers fired. The notes also show
whether a key's rows alone make the same rows come out: if not, the function depends on something else, and a test of
one key would prove nothing.

It costs a sort of all rows by key and time, and one run of the join or of the function over them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from cojoin.engine.functions import OutputTag, encode_outputs
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.local.local_run import LocalRun, decode_states
from cojoin.engine.operator import OUTPUT
from cojoin.engine.values.json_values import row_to_json
from cojoin.engine.values.rows import decode_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from cojoin.capture.recorded_history import History
    from cojoin.engine.functions import Context
    from cojoin.engine.local.key_group import Callback, Observer
    from cojoin.engine.local.local_run import BatchOutput
    from cojoin.engine.plan import Plan

__all__ = ["CASES", "Case", "Coverage", "Notes", "applicable", "classify", "observe"]

Case: TypeAlias = Literal["match", "no_match", "tie", "late", "rejected", "versions", "null", "timer", "side_output"]
"""A case that a key can be an example of; the module describes each."""

CASES: tuple[Case, ...] = get_args(Case)
"""All cases."""


_EXAMPLES = 3
"""How many chosen keys are examples of each case."""


@dataclass
class Notes:
    """What a function did for one key.

    Attributes:
        yielded: What its callbacks yielded, in order.
        timers: How many timers fired.
    """

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

    Attributes:
        codes: The code of each row's key, for both inputs.
        keys: Each key's values, by code.
        sizes: How many rows each key has, by code.
        cases: For each case, whether a key is an example of it, by code.
    """

    codes: Sequence[NDArray[np.int64]]
    keys: Sequence[tuple[Any, ...]]
    sizes: NDArray[np.int64]
    cases: Mapping[str, NDArray[np.bool_]]

    def of_key(self, code: int) -> tuple[str, ...]:
        """Return the cases that a key is an example of."""
        return tuple(name for name, members in self.cases.items() if members[code])

    def choose(self, wanted: Iterable[str], most: int) -> list[int]:
        """Return the codes of a few keys that are examples of as many cases as possible.

        Each case gets three keys, the rarest case first, as far as there are so many. A key that is an example of
        several cases counts for each. Keys with few rows are taken first; of several the one that came first.

        Args:
            wanted: The cases.
            most: The largest number of keys.
        """
        chosen: list[int] = []
        # The rarest case comes first, since its keys are often examples of the others, too.
        for members in sorted((self.cases[case] for case in wanted if case in self.cases), key=np.count_nonzero):
            candidates = np.flatnonzero(members)
            by_size = candidates[np.argsort(self.sizes[candidates], kind="stable")].tolist()
            lacking = _EXAMPLES - int(members[chosen].sum())
            chosen += [code for code in by_size if code not in chosen][: max(0, min(lacking, most - len(chosen)))]
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
    """Return the keys of a history and their cases.

    Args:
        history: The rows.
        notes: What a function did for each key; None for a join.
    """
    codes, count = history.keys()
    keys = _keys(history, codes, count)
    numbers = {key: code for code, key in enumerate(keys)}
    micros = [spec.micros(table) for spec, table in zip(history.plan.inputs, history.rows, strict=True)]
    late, rejected = history.late(), history.rejected()
    cases = {
        "tie": _ties(history, codes, micros),
        "late": np.concatenate([side[each] for side, each in zip(codes, late, strict=True)]),
        "rejected": np.concatenate([side[each] for side, each in zip(codes, rejected, strict=True)]),
        "versions": np.flatnonzero(np.bincount(codes[1], minlength=count) > 1),
        "null": np.concatenate([side[each] for side, each in zip(codes, _nulls(history), strict=True)]),
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
    found: list[tuple[Any, ...]] = [()] * count
    for side in (1, 0):
        distinct, first = np.unique(codes[side], return_index=True)
        rows = history.plan.inputs[side].keys(history.rows[side]).take(first)
        for code, key in zip(distinct.tolist(), decode_rows(rows), strict=True):
            found[code] = tuple(key)
    return found


def _codes(keys: Iterable[tuple[Any, ...]], numbers: Mapping[tuple[Any, ...], int]) -> NDArray[np.int64]:
    return np.array([numbers[tuple(key)] for key in keys], dtype=np.int64)


def _ties(
    history: History, codes: Sequence[NDArray[np.int64]], micros: Sequence[NDArray[np.int64]]
) -> NDArray[np.int64]:
    timed = [
        np.full(len(each), spec.event_time is not None) for each, spec in zip(codes, history.plan.inputs, strict=True)
    ]
    kept = np.concatenate(timed)
    key, time = np.concatenate(codes)[kept], np.concatenate(micros)[kept]
    order = np.lexsort([time, key])
    key, time = key[order], time[order]
    found: NDArray[np.int64] = key[1:][(key[1:] == key[:-1]) & (time[1:] == time[:-1])]
    return found


def _nulls(history: History) -> Iterator[NDArray[np.bool_]]:
    for spec, table in zip(history.plan.inputs, history.rows, strict=True):
        found = np.zeros(table.num_rows, dtype=bool)
        for name in table.column_names:
            if name not in spec.key and name != spec.event_time and table.column(name).null_count:
                found |= table.column(name).is_null().to_numpy()
        yield found


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
        # A state can't be restored by another join, and this one may emit no row without a match.
        return np.array([], dtype=np.int64), np.array([], dtype=np.int64)
    operation: Any = history.plan.operation
    plan = replace(history.plan, operation=replace(operation, how="left"))
    left, right = plan.inputs
    left_out = {*right.key, getattr(operation, "deletes", None), *right.technical}
    place = len(left.schema) + [name for name in right.schema.names if name not in left_out].index(
        str(right.event_time)
    )
    found: tuple[set[tuple[Any, ...]], set[tuple[Any, ...]]] = (set(), set())
    for output in _outputs(plan, history):
        table = output.tables()[OUTPUT]
        keys = table.select([left.schema.names.index(name) for name in left.key])
        is_matched = table.column(place).is_valid()
        for members, mask in zip(found, (is_matched, _inverted(is_matched)), strict=True):
            distinct = keys.filter(mask).group_by(keys.column_names).aggregate([])
            members.update(map(tuple, decode_rows(distinct)))
    return _codes(found[0], numbers), _codes(found[1], numbers)


def _inverted(mask: pa.ChunkedArray) -> NDArray[np.bool_]:
    inverted: NDArray[np.bool_] = ~mask.to_numpy()
    return inverted


def observe(history: History) -> dict[Any, Notes]:
    """Return what a function did for each key that had a timer or a row of output.

    Args:
        history: The rows; its plan's operation is a ``KeyedCoProcess``.

    Raises:
        FunctionError: The function raised an error, or returned an invalid value.
    """
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
    """Run a plan over a history, and yield what each micro-batch emits."""
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
