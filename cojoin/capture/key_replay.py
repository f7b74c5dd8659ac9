"""The replay of one key's history, alone: what is written into a test, and whether the key's rows explain it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cojoin.capture.captured_file import Outcomes, TimedRow
from cojoin.engine.display import difference
from cojoin.engine.input_spec import control_of
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.local.local_run import LocalRun, decode_states
from cojoin.engine.operator import OUTPUT
from cojoin.engine.values.encoding import encode_rows
from cojoin.engine.values.json_values import row_from_json, row_to_json
from cojoin.engine.values.rows import dump_json
from cojoin.errors import ConfigurationError, FunctionError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from cojoin.capture.captured_file import CapturedBatch
    from cojoin.capture.recorded_history import History
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.local.key_group import EmittedRow, Rejected
    from cojoin.engine.plan import Plan

__all__ = ["name_of", "replay", "replay_key"]


def replay(
    run: LocalRun, batches: Iterable[CapturedBatch], state: bytes | None = None, *, processing_time: int = 0
) -> Outcomes:
    """Run a key's captured batches, and return what came out.

    Args:
        run: A new run that notes rows, whose inputs have the columns of the rows and make no watermarks of their own.
        batches: The micro-batches in their order.
        state: What was kept before them, as a snapshot of a harness or stepper; None if there was nothing.
        processing_time: The clock in epoch milliseconds until a batch says another; 0 if it is unknown.

    Raises:
        CheckpointError: The state can't become that of the run.
        SchemaError: A row does not fit its input's columns.
        FunctionError: The function raised an error.
    """
    now = processing_time
    if state is not None:
        states, now, _ = decode_states(state)
        run.restore(states)
    rows: list[EmittedRow] = []
    rejected: list[Rejected] = []
    for number, batch in enumerate(batches):
        now = batch.processing_time or now
        left, right = (
            _table(given, spec, f"batch {number}: input {spec.name!r}")
            for given, spec in zip(batch.rows, run.plan.inputs, strict=True)
        )
        timed = zip((1, 2), (left, right), run.plan.inputs, strict=True)
        observed = [control_of(side, table, spec, now) for side, table, spec in timed if table.num_rows]  # type: ignore[arg-type]
        controls, ends = [*observed, *batch.controls()], batch.last_event is not None
        output = run.process((left, right), controls, processing_time=now, end_of_input=ends)
        rows += [row for group in output.groups for row in group.rows()]
        rejected += [row for group in output.groups for row in group.rejected()]
    schemas = {OUTPUT: run.plan.output, **{tag.tag_id: tag.schema for tag in run.plan.side_outputs}}
    found: dict[str, list[TimedRow]] = {name: [] for name in schemas}
    for row in rows:
        found[row.output].append(TimedRow(row.timestamp, row_to_json(row.value, schemas[row.output], sort_maps=True)))
    return Outcomes(found.pop(OUTPUT), found, rejected)


def _table(rows: Sequence[Mapping[str, Any]], spec: InputSpec, what: str) -> pa.Table:
    values = [row_from_json(row, spec.schema, what) for row in rows]
    try:
        return encode_rows(values, spec.schema, f"input {spec.name!r}")
    except FunctionError as error:
        raise SchemaError(str(error).replace(": output field ", ": column ")) from None


def replay_key(
    history: History, emitted: Mapping[str, Sequence[Any]] | None, what: str
) -> tuple[tuple[CapturedBatch, ...], Outcomes]:
    """Return a key's micro-batches, and what they make come out.

    Micro-batches are merged as far as the same rows are rejected and the same rows come out.

    Args:
        history: The history of the key.
        emitted: What a function emitted for the key in the run over all keys, by output; None is not compared.
        what: The function and the key, for the message.

    Raises:
        ConfigurationError: The function emits something else for the key's rows alone.
        FunctionError: The function raised an error.
    """
    told = ""
    for batches in _cuts(history):
        outcomes = replay(_new_run(history.plan), batches, history.state)
        if emitted is None:
            return _checked_join(history, batches, outcomes)
        told = _difference(emitted, outcomes)
        if not told:
            return batches, outcomes
    msg = (
        f"{what}: the rows of this key alone do not make the rows come out that came out among all keys, so a test of "
        f"the key would prove nothing. The function depends on something else: an attribute that keys share, the real "
        f"clock, or chance. Keep it in a keyed state, or take the time from ctx. - came out among all keys, + alone:\n"
        f"{told}"
    )
    raise ConfigurationError(msg)


def _cuts(history: History) -> Iterator[tuple[CapturedBatch, ...]]:
    """Yield the micro-batches with few cuts, with those that have rows, and with all."""
    told_apart = [place[late | other] for place, late, other in _judged(history)]
    starts = {*np.concatenate(told_apart).tolist(), len(history.batches) - 1}
    yield history.captured_batches(starts)
    yield history.captured_batches()
    yield history.captured_batches(range(len(history.batches)))


def _judged(history: History) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
    return zip(history.places, history.late(), history.rejected(), strict=True)


def _checked_join(
    history: History, batches: tuple[CapturedBatch, ...], outcomes: Outcomes
) -> tuple[tuple[CapturedBatch, ...], Outcomes]:
    """Return merged micro-batches of a join if they make the same rows come out, or else those that were not merged."""
    whole = history.captured_batches()
    if len(whole) == len(batches):
        return batches, outcomes
    expected = replay(_new_run(history.plan), whole, history.state)
    same = _sorted(expected) == _sorted(outcomes) and list(expected.rejected) == list(outcomes.rejected)
    return (batches, outcomes) if same else (whole, expected)


def _sorted(outcomes: Outcomes) -> list[str]:
    return sorted(dump_json([each.timestamp, each.row]) for each in outcomes.output)


def _new_run(plan: Plan) -> LocalRun:
    """Return a run as a harness makes it, whose inputs' rows are what they are."""
    return LocalRun(plan.with_inputs(static=False, refreshes=False, changes=None, reading=None), notes_rows=True)


def _difference(emitted: Mapping[str, Sequence[Any]], outcomes: Outcomes) -> str:
    found = {"output": outcomes.output, **outcomes.side_outputs}
    for name, rows in found.items():
        wanted = [(dump_json(row),) for row in emitted.get(name, ())]
        told = difference([name], wanted, [(dump_json(each.row),) for each in rows], context=1)
        if told is not None:
            return told
    return ""


def name_of(plan: Plan) -> str:
    """Return the name of a function's class, or of a join."""
    operation: Any = plan.operation
    return type(operation.function if isinstance(operation, KeyedCoProcess) else operation).__name__
