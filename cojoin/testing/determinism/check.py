"""``check_determinism``: a join or a function gives one result, however its rows arrive, are cut and are restarted.

Each seed is one run. Half of them run in this process, half in others with other hash seeds and clocks. The first
failing seed is diagnosed, and its rows are reduced to an example. The error names the thing on which the result
depends, the usual cause and the cure, and shows the example's batches with the two outputs, expected against got.

It costs some tens of milliseconds a seed for 50 rows, and some seconds for the other processes.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass
from textwrap import fill, indent
from typing import TYPE_CHECKING, Any, NamedTuple

from cojoin.engine.display import cells, difference, format_table, format_time
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.plan import Plan
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.arguments import Duration, milliseconds
from cojoin.engine.values.rows import decode_rows
from cojoin.errors import ConfigurationError
from cojoin.testing.determinism.deliveries import ASPECTS, Aspect, Delivery, draw_delivery, seeded
from cojoin.testing.determinism.diagnosis import diagnose
from cojoin.testing.determinism.processes import HASH_SEEDS, Clock, Laboratory, Run
from cojoin.testing.events import HarnessError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from cojoin.api.joined import Joined
    from cojoin.engine.operator import Sides
    from cojoin.testing.determinism.deliveries import DeliveryRunner, MicroBatch, RowText, RunOutput
    from cojoin.testing.determinism.diagnosis import Diagnosis
    from cojoin.testing.determinism.processes import Seen


_APART = 2
"""Every second seed runs in another process, so two cores share the work."""

_UNCHANGED = 50
"""Every fiftieth seed varies nothing but the hash seed and the clock."""

_EARLY = 16
"""The number of first seeds of which those of this process run before all others."""

_FIRST_TIME, _LAST_TIME = 1_600_000_000, 1_900_000_000
_PROCESSES = "other hash seeds and clocks"
_SHOWN: dict[Aspect, str] = {
    "arrival": "other orders of arrival",
    "cuts": "cuts into micro-batches",
    "key_groups": "several key groups",
    "restarts": "restarts",
    "processing_time": "processing times",
}


@dataclass(frozen=True)
class DeterminismReport:
    """The runs of a check that has found no difference.

    Attributes:
        name: The name of the function's or join's class.
        rows: The number of rows of both inputs together.
        first_seed: The first seed.
        seeds: The number of seeds that ran, which is smaller than that of the call if the time ran out.
        variations: In how many runs each thing was varied.
        seconds: Its duration.
    """

    name: str
    rows: int
    first_seed: int
    seeds: int
    variations: Mapping[str, int]
    seconds: float

    def __repr__(self) -> str:
        varied = ", ".join(f"{count:,} with {aspect}" for aspect, count in self.variations.items())
        last = self.first_seed + self.seeds - 1
        return (
            f"<{self.name}: one result from {self.rows:,} rows in {self.seeds:,} runs (seeds {self.first_seed} to "
            f"{last}), {self.seconds:.1f} s: {varied}>"
        )


class _Failure(NamedTuple):
    seed: int
    run: Run


def check_determinism(
    joined: Joined, *, seeds: int = 1_000, first_seed: int = 0, timeout: Duration | None = None
) -> DeterminismReport:
    """Check that a function or a join gives the same result however its rows are delivered.

    Each seed is one run. It draws the order in which the rows arrive, the cuts into micro-batches, the watermarks after
    them, the number of key groups, restarts from a snapshot (also into another number of key groups), whether the
    function is kept between micro-batches, as Flink keeps it, or is a new copy, as on Spark, and the processing time.
    No row is late. Half of the seeds run in other processes, with another ``PYTHONHASHSEED`` and at another time of the
    clock. All must give the rows of one run over all rows at once: the same in each output, and each key's in the same
    order, unless ``order="arrival"`` lets a key's rows follow the order of arrival. Of rejected rows the order and the
    watermark are not compared.

    If a run differs, each of these is varied alone, to find what the result depends on, and the rows are reduced to a
    small example.

    The rows of a function with ``order="arrival"`` may depend on the order of arrival by its contract, and those of a
    function with processing-time timers, or a time-to-live in processing time, on the clock. The check reports this
    nevertheless.

    Args:
        joined: A function or a join over inputs in memory, such as
            ``connect(Input(trades, ...), Input(customers, ...)).process(MyFunction(), "...")``. Some 50 rows of a few
            keys find most faults; make event times tie, and let rows of both inputs alternate.
        seeds: The number of runs, one or more.
        first_seed: The first seed. A failing seed can be run again alone: ``seeds=1, first_seed=...``.
        timeout: The time within which runs begin, such as ``"30 seconds"`` or a ``timedelta``; None sets no limit. It
            must be long enough for one run of a seed.

    Returns:
        The number of runs, by what they varied.

    Raises:
        DeterminismError: The result differs. The message says what it depends on, what usually causes this and what to
            do, and shows an example.
        FunctionError: The function failed with all rows at once.
        ConfigurationError: The inputs are Spark's or have no rows, the function can't be pickled or imported in another
            process, the time ran out before any seed ran, or an argument is invalid.
        EnvironmentSetupError: Neither PySpark nor cloudpickle is installed.

    Example:
        >>> check_determinism(pair.process(EnrichTrades(), "trade_id long, tier string"))  # doctest: +SKIP
    """
    plan, rows = _checked(joined)
    for name, value, least in (("seeds", seeds, 1), ("first_seed", first_seed, 0)):
        if type(value) is not int or value < least:
            msg = f"{name}: expected a whole number from {least} on, got {value!r}"
            raise ConfigurationError(msg)
    started = time.monotonic()
    deadline = None if timeout is None else started + _seconds(timeout)
    name = type(getattr(plan.operation, "function", plan.operation)).__name__
    with Laboratory(plan, rows) as laboratory:
        runner = laboratory.runner
        reference = Run(Delivery.at_once(runner.all_rows, runner.times))
        expected = runner.run_or_raise(reference.delivery)
        runs = _Runs(laboratory, reference, expected, deadline)
        failure = _Failure(first_seed, reference) if runs.differ(reference) else runs.run(first_seed, seeds)
        if failure is not None:
            raise determinism_error(name, failure.seed, diagnose(laboratory, reference, failure.run), runner)
    count = len(runner.all_rows)
    if not runs.done:
        msg = (
            f"timeout: {timeout!r} was over before any other delivery of the {count:,} rows ran, so nothing was "
            f"checked; allow more time, or take fewer rows"
        )
        raise ConfigurationError(msg)
    return DeterminismReport(name, count, first_seed, runs.done, dict(runs.varied), time.monotonic() - started)


def _seconds(timeout: Duration) -> float:
    allowed = milliseconds(timeout, "timeout")
    if not allowed:
        msg = f"timeout: must be longer than zero, such as '30 seconds', got {timeout!r}; None sets no limit"
        raise ConfigurationError(msg)
    return allowed / 1_000


def _checked(joined: Any) -> tuple[Plan, Sides]:
    plan = getattr(joined, "plan", None)
    # A result and a step have a plan, too, but no inputs to deliver again.
    has_run = isinstance(plan, Plan) and hasattr(joined, "tables")
    if not isinstance(plan, Plan) or has_run:
        got = f"a {type(joined).__name__}, which has run already" if has_run else repr(joined)
        msg = (
            f"check_determinism: expected a function or a join over inputs in memory, such as "
            f"connect(Input(trades, ...), Input(customers, ...)).process(MyFunction(), ...), got {got}"
        )
        raise ConfigurationError(msg)
    rows: Sides | None = getattr(getattr(joined, "_execution", None), "rows", None)
    if rows is None:
        msg = (
            f"check_determinism runs in this process, and inputs {plan.left.name!r} and {plan.right.name!r} are "
            f"Spark's; connect a few of their rows in memory, such as Input(df.limit(50).toArrow(), ...)"
        )
        raise ConfigurationError(msg)
    if not sum(table.num_rows for table in rows):
        msg = (
            f"inputs {plan.left.name!r} and {plan.right.name!r} have no rows, so nothing could differ; give the check "
            f"some 50 rows of a few keys"
        )
        raise ConfigurationError(msg)
    return plan, rows


class _Runs:
    """The runs of all seeds, and how many varied each thing."""

    def __init__(self, laboratory: Laboratory, reference: Run, expected: RunOutput, deadline: float | None) -> None:
        self._laboratory, self._deadline = laboratory, deadline
        self._reference, self._expected = reference, expected
        self._apart: deque[tuple[int, Run, Future[RunOutput]]] = deque()
        self.done = 0
        self.varied: Counter[str] = Counter()

    def differ(self, run: Run) -> bool:
        """Return whether a run in this process differs from the expected output."""
        return self._differs(run, self._laboratory.run(run))

    def run(self, first: int, count: int) -> _Failure | None:
        """Run seeds until one fails or the time runs out; return the smallest failing one."""
        seeds = range(first, first + count)
        # Most faults show at once, and then no process need be started.
        early = [seed for seed in seeds[:_EARLY] if seed % _APART]
        for seed in [*early, *(seed for seed in seeds if seed not in early)]:
            if self._is_over():
                break
            run = self._of_seed(seed)
            if run.hash_seed is not None:
                self._apart.append((seed, run, self._laboratory.ask(run)))
                continue
            self._count(run)
            if self.differ(run):
                return self._first_apart(seed) or _Failure(seed, run)
            while self._apart and self._apart[0][2].done():
                if failure := self._take():
                    return failure
        return self._first_apart(first + count)

    def _is_over(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    def _first_apart(self, before: int) -> _Failure | None:
        """Return the first failing run of other processes whose seed is below another one."""
        while self._apart and self._apart[0][0] < before:
            if self._is_over() and self._apart[0][2].cancel():
                self._apart.popleft()
            elif failure := self._take():
                return failure
        return None

    def _take(self) -> _Failure | None:
        """Take the next run of another process, after waiting for it; return it if it differs."""
        seed, run, future = self._apart.popleft()
        self._count(run)
        return _Failure(seed, run) if self._differs(run, future.result()) else None

    def _differs(self, run: Run, output: RunOutput) -> bool:
        return self._laboratory.differs(self._reference, self._expected, run, output)

    def _of_seed(self, seed: int) -> Run:
        random, runner = seeded(seed), self._laboratory.runner
        delivery = draw_delivery(random, runner.all_rows, runner.times, ASPECTS)
        if seed % _APART:
            return Run(delivery)
        hash_seed = HASH_SEEDS[seed // _APART % len(HASH_SEEDS)]
        if seed % _UNCHANGED == 0:
            delivery = self._reference.delivery
        return Run(delivery, hash_seed, Clock(random.randrange(_FIRST_TIME, _LAST_TIME)))

    def _count(self, run: Run) -> None:
        self.done += 1
        times = self._laboratory.runner.times
        self.varied.update(_SHOWN[aspect] for aspect in ASPECTS if run.delivery.varies(aspect, times))
        self.varied[_PROCESSES] += run.hash_seed is not None


_WIDTH = 100


class DeterminismError(HarnessError):
    """A result that depends on more than the rows.

    Attributes:
        seed: The seed that failed.
        depends_on: The causes of the difference, in a few words each; the example shows the first.
        rows: The number of rows of the example.
    """

    def __init__(self, message: str, *, seed: int, depends_on: tuple[str, ...], rows: int) -> None:
        super().__init__(message)
        self.seed, self.depends_on, self.rows = seed, depends_on, rows


def determinism_error(name: str, seed: int, diagnosis: Diagnosis, runner: DeliveryRunner) -> DeterminismError:
    """Return the error that explains a diagnosis of a seed; the name is the function's or join's class."""
    seen, (cause, *others) = diagnosis.example, diagnosis.causes
    failed = [output.error for output in (seen.first, seen.second) if output.error is not None]
    verb = "whether it fails depends on" if failed else "its result depends on"
    also = f", and on {' and '.join(other.name for other in others)}" if others else ""
    rows = seen.contrast.rows
    runs = (seen.contrast.first, seen.contrast.second)
    same = runs[0].delivery == runs[1].delivery
    lines = [
        f"{name}: {verb} {cause.name}{also} (found by seed {seed})",
        "",
        fill(f"Usual cause: {cause.usually}", _WIDTH),
        fill(f"Cure: {cause.cure}", _WIDTH),
        "",
        f"The smallest example found has {len(rows)} of {len(runner.all_rows)} rows:",
        indent(rows_text(runner, rows), "  "),
        "",
        f"Expected ({_label(cause.first, runs[0], runs[1])}):",
        indent(batches_text(runner, runs[0].delivery), "  "),
        f"Got ({_label(cause.second, runs[1], runs[0])}):",
        "  the same" if same else indent(batches_text(runner, runs[1].delivery), "  "),
        "",
        differences_text(runner, seen),
        "",
        f"To run this seed again: check_determinism(joined, seeds=1, first_seed={seed})",
    ]
    return DeterminismError(
        "\n".join(lines), seed=seed, depends_on=tuple(each.name for each in diagnosis.causes), rows=len(rows)
    )


def _label(text: str, run: Run, other: Run) -> str:
    """Return the description of a run, with its hash seed or its clock where the other run's differs."""
    words = [text]
    if run.hash_seed != other.hash_seed:
        words.append("in this process" if run.hash_seed is None else f"PYTHONHASHSEED={run.hash_seed}")
    elif run.clock != other.clock and run.clock.at is not None:
        words.append(format_time(run.clock.at * 1_000))
    return ", ".join(words)


_MOST_ROWS = 20


def rows_text(runner: DeliveryRunner, rows: Sequence[int]) -> str:
    """Return rows as a table for each input, each row after its name."""
    parts = []
    for side, table in enumerate(runner.tables):
        own = [row for row in rows if (row >= runner.left) == bool(side)]
        if own:
            shown = table.take([row - runner.left * side for row in own])
            values = map(cells, decode_rows(shown, str))
            lines = [(row_name(runner, row), *line) for row, line in zip(own, values, strict=True)]
            parts.append(format_table(["row", *table.column_names], lines))
    return "\n\n".join(parts)


def row_name(runner: DeliveryRunner, row: int) -> str:
    """Return a row's name: its input, and its number in that input from 0 on."""
    side = row >= runner.left
    return f"{runner.plan.inputs[side].name} {row - runner.left * side}"


def batches_text(runner: DeliveryRunner, delivery: Delivery) -> str:
    """Return the batches of a delivery, a line for each."""
    last = len(delivery.batches) - 1
    return "\n".join(
        f"batch {number + 1}: {_batch_text(runner, batch, first=number == 0, last=number == last)}"
        for number, batch in enumerate(delivery.batches)
    )


def _batch_text(runner: DeliveryRunner, batch: MicroBatch, *, first: bool, last: bool) -> str:
    parts = []
    if batch.restarts and not first:
        parts.append("after a restart")
    if (first or batch.restarts) and batch.key_groups > 1:
        parts.append(f"in {batch.key_groups} key groups")
    if batch.processing_time:
        parts.append(f"at processing time {format_time(batch.processing_time)}")
    parts.append(", ".join(row_name(runner, row) for row in batch.rows) or "no rows")
    if last:
        parts.append("then the inputs end")
    elif batch.watermarks != (NONE, NONE):
        left, right = map(format_time, batch.watermarks)
        names = [spec.name for spec in runner.plan.inputs]
        both = f"the watermark {left}" if left == right else f"the watermarks {left} ({names[0]}), {right} ({names[1]})"
        parts.append(f"then {both}")
    return "; ".join(parts)


def differences_text(runner: DeliveryRunner, seen: Seen) -> str:
    """Return the rows of each output and key that differ, expected against got, or the error."""
    for which, output in (("expected", seen.first), ("other", seen.second)):
        if output.error is not None:
            return f"The {which} run failed: {output.error}"
    return "\n".join(_differences(runner, seen.first, seen.second))


def _differences(runner: DeliveryRunner, first: RunOutput, second: RunOutput) -> Iterator[str]:
    outputs = runner.plan.outputs
    for output in dict.fromkeys([*first.rows, *second.rows]):
        one, two = first.rows.get(output, {}), second.rows.get(output, {})
        for key in dict.fromkeys([*one, *two]):
            expected, got = one.get(key, []), two.get(key, [])
            if expected != got:
                of_key = f" of key {key}" if key else ""
                order = ", the same rows in another order" if sorted(expected) == sorted(got) else ""
                name = "the main output" if output == OUTPUT else f"output {output!r}"
                names = [name for name in outputs[output][1].names if output != REJECTED or name != "watermark"]
                table = _marked(names, expected, got)
                yield f"In {name}{of_key}{order} (- is expected, + is got):\n{indent(table, '  ')}"


def _marked(names: Sequence[str], expected: Sequence[RowText], got: Sequence[RowText]) -> str:
    lines = (difference(names, expected, got) or "").split("\n")
    most = _MOST_ROWS + 2  # the header and the rule below it
    return "\n".join(lines if len(lines) <= most else [*lines[:most], f"… and {len(lines) - most} more"])
