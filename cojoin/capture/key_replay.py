"""The replay of one key's history, alone: what is written into a test, and whether the key's rows explain it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.values.texts import dump_json
from cojoin.errors import ConfigurationError
from cojoin.testing.expectations import difference
from cojoin.testing.harness import Harness
from cojoin.testing.harness_inputs import HarnessInput
from cojoin.testing.replay import Outcomes, replay

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from cojoin.capture.recorded_history import History
    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.plan import Plan
    from cojoin.testing.replay import CapturedBatch

__all__ = ["name_of", "replay_key"]


def replay_key(
    history: History, emitted: Mapping[str, Sequence[Any]] | None, what: str
) -> tuple[tuple[CapturedBatch, ...], Outcomes]:
    """Return a key's micro-batches, and what they make come out of a new harness.

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
        with _harness(history.plan) as harness:
            outcomes = replay(harness, batches, history.state)
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
    with _harness(history.plan) as harness:
        expected = replay(harness, whole, history.state)
    same = _sorted(expected) == _sorted(outcomes) and list(expected.rejected) == list(outcomes.rejected)
    return (batches, outcomes) if same else (whole, expected)


def _sorted(outcomes: Outcomes) -> list[str]:
    return sorted(dump_json([each.timestamp, each.row]) for each in outcomes.output)


def _harness(plan: Plan) -> Harness:
    first, second = (_declared(spec) for spec in plan.inputs)
    return Harness.of(plan.operation, input1=first, input2=second)


def _declared(spec: InputSpec) -> HarnessInput:
    return HarnessInput(
        spec.schema,
        key=spec.key,
        event_time=spec.event_time,
        name=spec.name,
        sequence=spec.sequence,
        max_ahead=None if spec.max_ahead_ms is None else f"{spec.max_ahead_ms} milliseconds",
        late=spec.late,
        null_key=spec.null_key,
    )


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
