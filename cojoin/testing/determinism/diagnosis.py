"""The cause of a result that depends on more than its rows.

One thing is varied at a time, and the first that matters is shrunk to an example. The causes are tried in an order in
which none is mistaken for another. If a run differs when it is repeated, that explains everything, and nothing else is
tried.

The example is the smallest contrast that still differs: fewer rows, then fewer batches, key groups, restarts and
watermarks. Rows are taken away in halves, quarters and so on, down to single ones, until none can be spared (delta
debugging). A simpler contrast counts only if the same runs fail in it as before.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING

from cojoin.engine.time.watermarks import NONE
from cojoin.testing.determinism.deliveries import Delivery, MicroBatch, draw_delivery, seeded
from cojoin.testing.determinism.processes import HASH_SEEDS, Clock, Contrast, Run, Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from cojoin.testing.determinism.deliveries import Aspect, RowTimes
    from cojoin.testing.determinism.processes import Laboratory


@dataclass(frozen=True)
class Cause:
    """A cause of a difference; its name follows "depends on"; ``first`` and ``second`` describe the two runs."""

    name: str
    usually: str
    cure: str
    first: str
    second: str


CLOCK = Cause(
    "the clock",
    "the function calls time.time(), datetime.now(), date.today() or current_processing_time(); or it sets timers of "
    "processing time, or keeps state with a time-to-live in processing time.",
    "take the time from the rows: ctx.timestamp(), or ctx.timer_service().current_watermark(); and use timers and "
    "time-to-live in event time.",
    "at one time of the clock",
    "at another time",
)
CHANCE = Cause(
    "random numbers",
    "the function calls random, numpy.random, uuid4() or os.urandom().",
    "draw from a generator with a seed that is made of the row, such as random.Random(trade.trade_id); make an id from "
    "the row's columns, such as with uuid5().",
    "the first run",
    "the same run again",
)
LEFTOVERS = Cause(
    "what earlier runs left behind in the process",
    "the function changes an attribute of its class or a global variable of its module, or uses id() or the default "
    "hash() of objects, which are memory addresses.",
    "keep what must last in a keyed state, which open() gets from its context; nothing else may change what it yields.",
    "the first run",
    "the same run again in the same process",
)
HASH_SEED = Cause(
    "the order in which a set is iterated",
    "the function iterates over a set or frozenset of strings, or calls hash() on one. Python orders them differently "
    "in each process, by PYTHONHASHSEED.",
    "iterate over sorted(the_set), or keep a dict or a list, which have an order.",
    "one hash seed",
    "another hash seed",
)
KEYS = Cause(
    "which keys are processed together, and so on the number of key groups",
    "the function keeps something of one key for the next one in an attribute, such as a counter, a dict or the last "
    "row in self.",
    "keep it in a keyed state, which open() gets from its context. If it is meant to span keys, put these rows under "
    "one key.",
    "the key alone",
    "the key among other keys",
)
RESTARTS = Cause(
    "where micro-batches begin, and where it is restarted",
    "the function keeps something in an attribute from one row to the next, or does something in open() for every "
    "batch. On Spark each micro-batch has a new copy of the function, and after a restart it is new everywhere.",
    "keep it in a keyed state, which open() gets from its context.",
    "the function kept from batch to batch",
    "a new copy of the function in some batches",
)
ARRIVAL = Cause(
    "the order in which rows arrive",
    'with order="arrival" a row is processed as soon as it arrives, with whatever has arrived before it.',
    'use order="event_time"; or make the function indifferent to the order, such as with sets, sums and largest times. '
    'With order="arrival" this is the contract: if it is meant, don\'t check this function.',
    "in the order of event time",
    "in another order",
)
CUTS = Cause(
    "where the stream is cut into micro-batches",
    "the function looks at current_watermark(), which advances only between micro-batches in arrival order; or it "
    "counts its calls in open() or close().",
    'use order="event_time", where time advances row by row; and compare event times, such as ctx.timestamp().',
    "in one micro-batch",
    "in several micro-batches",
)
MIXED = Cause(
    "how its rows are delivered",
    "the function keeps something in an attribute, or goes by the order of arrival.",
    'keep it in a keyed state, which open() gets from its context, and use order="event_time".',
    "all rows in one micro-batch",
    "the delivery below",
)


_REPETITIONS, _TRIES, _MOST_KEYS, _MOST_BATCHES = 3, 12, 60, 25
_MOST_SECONDS = 30.0
_SOME_TIME, _LONGEST_SHIFT = 1_700_000_000, 5 * 366 * 86_400


@dataclass(frozen=True)
class Diagnosis:
    """The causes that make a difference alone, and the smallest contrast found, which shows the first."""

    causes: tuple[Cause, ...]
    example: Seen


def diagnose(laboratory: Laboratory, reference: Run, failing: Run) -> Diagnosis:
    """Return the causes by which a run differs from the reference, all rows at once, or would have differed."""
    search = _Search(laboratory)
    again = [Contrast(reference, reference)] * _REPETITIONS + [Contrast(failing, failing)] * _REPETITIONS
    seen = search.first(again)
    if seen is not None:
        cause, clearer = _unsteady(search, reference)
        return Diagnosis((cause,), shrink(laboratory, clearer or seen))
    times, rows = laboratory.runner.times, laboratory.runner.all_rows
    local = Run(failing.delivery)
    probes: list[tuple[Cause, Iterable[Contrast]]] = [
        (CLOCK, _other_processing_times(reference, local)),
        (KEYS, _keys_apart(laboratory)),
        (RESTARTS, _with_restarts(rows, times)),
        (ARRIVAL, _in_other_orders(rows, times)),
        (CUTS, _cut(rows, times)),
        (MIXED, [Contrast(reference, local)]),
    ]
    if laboratory.compare(Contrast(reference, local)) is None:
        # The delivery does not matter in this process, so it is something of the other one.
        probes = [
            (HASH_SEED, _other_hash_seeds(reference, failing)),
            (CLOCK, _other_clocks(reference, failing)),
            (HASH_SEED, [Contrast(local, replace(local, hash_seed=failing.hash_seed))]),
        ]
    for cause, contrasts in probes:
        seen = search.first(contrasts)
        if seen is not None:
            return Diagnosis((cause, *_others(cause, search)), shrink(laboratory, seen))
    # It differed once and does so no more. Only time has changed since.
    outputs = laboratory.run(reference), laboratory.run(failing)
    return Diagnosis((CLOCK,), Seen(Contrast(reference, failing), *outputs))


class _Search:
    """Looks for contrasts that differ, for a limited time, but at least one of each kind."""

    def __init__(self, laboratory: Laboratory) -> None:
        self.laboratory = laboratory
        self._deadline = time.monotonic() + _MOST_SECONDS

    def first(self, contrasts: Iterable[Contrast]) -> Seen | None:
        """Return the first of some contrasts that differs."""
        for contrast in contrasts:
            seen = self.laboratory.compare(contrast)
            if seen is not None or time.monotonic() > self._deadline:
                return seen
        return None


def _others(cause: Cause, search: _Search) -> Iterator[Cause]:
    """Yield the causes besides one: restarts where keys depend on each other, cuts where arrival matters."""
    runner = search.laboratory.runner
    if cause is KEYS:
        busiest = max(dict.fromkeys(runner.keys), key=runner.keys.count)
        rows = [row for row in runner.all_rows if runner.keys[row] == busiest]
        if search.first(_with_restarts(rows, runner.times)) is not None:
            yield RESTARTS
    elif cause is ARRIVAL and search.first(_cut(runner.all_rows, runner.times)) is not None:
        yield CUTS


def _unsteady(search: _Search, reference: Run) -> tuple[Cause, Seen | None]:
    """Return why a repeated run differs: the clock if stopping it ends that, chance if a seed does, else leftovers."""
    elsewhere = replace(reference, hash_seed=HASH_SEEDS[0])

    def steady(clock: Clock) -> bool:
        run = replace(elsewhere, clock=clock)
        return search.first([Contrast(run, run)] * _REPETITIONS) is None

    if steady(Clock(_SOME_TIME, stands_still=True)):
        return CLOCK, search.first(_other_clocks(reference))
    return (CHANCE if steady(Clock(_SOME_TIME, stands_still=True, seeds_random=True)) else LEFTOVERS), None


def _other_hash_seeds(*runs: Run) -> Iterator[Contrast]:
    for run in runs:
        elsewhere = [replace(run, hash_seed=seed, clock=Clock(_SOME_TIME, stands_still=True)) for seed in HASH_SEEDS]
        for one, two in pairwise(elsewhere):
            yield Contrast(one, two)


def _other_clocks(*runs: Run) -> Iterator[Contrast]:
    random = seeded(_SOME_TIME)
    for run in runs:
        elsewhere = replace(run, hash_seed=HASH_SEEDS[0], clock=Clock(_SOME_TIME, stands_still=True))
        for _ in range(_TRIES):
            epoch_seconds = _SOME_TIME + random.randrange(_LONGEST_SHIFT)
            yield Contrast(elsewhere, replace(elsewhere, clock=Clock(epoch_seconds, stands_still=True)))


def _other_processing_times(reference: Run, failing: Run) -> Iterator[Contrast]:
    """Yield all rows at once, then the run that failed, without and with a processing time."""
    (batch,) = reference.delivery.batches
    clocked = replace(batch, processing_time=_SOME_TIME * 1_000)
    yield Contrast(reference, Run(replace(reference.delivery, batches=(clocked,))))
    batches = tuple(replace(batch, processing_time=0) for batch in failing.delivery.batches)
    yield Contrast(Run(replace(failing.delivery, batches=batches)), failing)


def _keys_apart(laboratory: Laboratory) -> Iterator[Contrast]:
    """Yield each key's rows alone against the same among all others, then more key groups."""
    runner = laboratory.runner
    whole = Delivery.at_once(runner.all_rows, runner.times)
    for key in islice(dict.fromkeys(runner.keys), _MOST_KEYS):
        own = {row for row in runner.all_rows if runner.keys[row] == key}
        yield Contrast(Run(whole.of_rows(own)), Run(whole), key)
    for groups in (2, 3, 5):
        batches = tuple(replace(batch, key_groups=groups) for batch in whole.batches)
        yield Contrast(Run(whole), Run(replace(whole, batches=batches)))


def _with_restarts(rows: Sequence[int], times: RowTimes) -> Iterator[Contrast]:
    """Yield deliveries whose operators are kept against the same with new ones in each batch."""
    for delivery in chain([_row_by_row(rows, times)], _drawn(rows, times, ["cuts"])):
        batches = tuple(replace(batch, restarts=number > 0) for number, batch in enumerate(delivery.batches))
        yield Contrast(Run(delivery), Run(replace(delivery, batches=batches)))


def _in_other_orders(rows: Sequence[int], times: RowTimes) -> Iterator[Contrast]:
    """Yield deliveries of few rows in each batch, without watermarks, in the order of event time and in others."""
    by_row = _row_by_row(rows, times)
    pieces = tuple(replace(batch, watermarks=(NONE, NONE)) for batch in by_row.batches)
    in_time = replace(by_row, batches=pieces)
    random = seeded(_SOME_TIME)
    for _ in range(_TRIES):
        other = random.sample(pieces, len(pieces))
        yield Contrast(Run(in_time), Run(replace(in_time, batches=tuple(other))))


def _cut(rows: Sequence[int], times: RowTimes) -> Iterator[Contrast]:
    """Yield all rows in one batch against several, in the order of event time."""
    whole = Delivery.at_once(times.in_time(rows), times)
    for delivery in chain([_row_by_row(rows, times)], _drawn(rows, times, ["cuts"])):
        yield Contrast(Run(whole), Run(delivery))


def _row_by_row(rows: Sequence[int], times: RowTimes) -> Delivery:
    """Return the delivery of few rows in each batch, in the order of event time, each with the largest watermark."""
    ordered = times.in_time(rows)
    width = -(-len(ordered) // _MOST_BATCHES)
    batches = []
    for start in range(0, len(ordered), width):
        following = times.times[ordered[start + width]] if start + width < len(ordered) else None
        mark = NONE if following is None else following - 1
        batches.append(MicroBatch(tuple(ordered[start : start + width]), (mark, mark)))
    return Delivery(tuple(batches), times.last_events(rows))


def _drawn(rows: Sequence[int], times: RowTimes, aspects: Collection[Aspect]) -> Iterator[Delivery]:
    random = seeded(_SOME_TIME)
    for _ in range(_TRIES):
        yield draw_delivery(random, rows, times, aspects)


_SHRINKING_SECONDS = 20.0


def shrink(laboratory: Laboratory, seen: Seen) -> Seen:
    """Return the smallest contrast found within 20 seconds that differs in the same way."""
    deadline = time.monotonic() + _SHRINKING_SECONDS
    kinds = [output.error is None for output in seen[1:]]

    def attempt(contrast: Contrast) -> Seen | None:
        if time.monotonic() > deadline:
            return None
        outcome = laboratory.compare(contrast)
        same_kind = outcome is not None and [output.error is None for output in outcome[1:]] == kinds
        return outcome if same_kind else None

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
            smaller = attempt(seen.contrast.of_rows(set(kept), times.last_events(kept))) if kept else None
            if smaller is None:
                start += piece
            else:
                seen, rows = smaller, kept
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
            simpler = attempt(contrast)
            if simpler is not None:
                seen = simpler
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
        yield lambda simplified, number=number: simplified.merged(number)  # type: ignore[misc]
    yield lambda simplified: _each_batch(simplified, key_groups=1)
    yield lambda simplified: _each_batch(simplified, processing_time=0)
    yield lambda simplified: _each_batch(simplified, watermarks=(NONE, NONE))
    for number in range(1, len(delivery.batches)):
        yield lambda simplified, number=number: _one_batch(simplified, number, restarts=False)  # type: ignore[misc]
    for number in range(len(delivery.batches)):
        yield lambda simplified, number=number: _one_batch(simplified, number, watermarks=(NONE, NONE))  # type: ignore[misc]
    groups = max(batch.key_groups for batch in delivery.batches)
    if groups > 2:
        yield lambda simplified: replace(
            simplified,
            batches=tuple(replace(batch, key_groups=min(2, batch.key_groups)) for batch in simplified.batches),
        )


def _each_batch(delivery: Delivery, **changes: object) -> Delivery:
    return replace(delivery, batches=tuple(replace(batch, **changes) for batch in delivery.batches))  # type: ignore[arg-type]


def _one_batch(delivery: Delivery, number: int, **changes: object) -> Delivery:
    batches = list(delivery.batches)
    batches[number] = replace(batches[number], **changes)  # type: ignore[arg-type]
    return replace(delivery, batches=tuple(batches))
