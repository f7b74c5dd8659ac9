"""Two inputs of Spark as one execution: the checks that need both, and the warnings before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cojoin.engine.input import check_pair
from cojoin.engine.values.arguments import milliseconds
from cojoin.errors import ConfigurationError, SchemaError
from cojoin.session.kinds import active_session, adapter_of
from cojoin.session.session_settings import pipeline_refusals
from cojoin.session.warming import warm_up
from cojoin.spark.bound_input import BoundInput, SparkAdvice
from cojoin.spark.sources.sources import Source
from cojoin.spark.spark_execution import SparkExecution

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cojoin.engine.input import Input

__all__ = ["bind_inputs"]

_KEY_GROUPS = 32
"""The number of key groups if the user names none; for static inputs the largest."""

_BYTES_FOR_GROUP = 256 << 10
"""How many bytes of static inputs make a key group worth its cost; with fewer, one call is quicker than two."""

_CALL_MS = 1.5, 4.0
"""The lower and the usual upper bound of what a key group costs per micro-batch, in milliseconds, even without rows."""

_LONG_SECONDS = 5
"""The estimated seconds per micro-batch from which the user is warned."""


def bind_inputs(left: Input, right: Input, key_groups: int | None) -> tuple[SparkExecution, int, list[str]]:
    """Return the execution of two inputs of Spark, the number of key groups, and warnings for the user.

    Args:
        left: The left input.
        right: The right input.
        key_groups: The number of key groups that the user named, or None.

    Raises:
        ConfigurationError: An input can't be opened, or the inputs do not fit together.
        SchemaError: A column does not exist or has the wrong type, or the types of the keys differ.
    """
    session = active_session()
    if session is not None:
        warm_up(session)
    left, right = _together(left, right)
    with pipeline_refusals("connect()"):
        first, second = BoundInput(left, "left", 1), BoundInput(right, "right", 2)
    _check(first, second)
    groups = _KEY_GROUPS if key_groups is None else key_groups
    if not first.is_streaming:
        groups = min(groups, 1 + sum(_size(each) for each in (first, second)) // _BYTES_FOR_GROUP)
    padded = [f"key: {told.format('only texts that fill it match')}" for told, _ in _padded(first, second)]
    return SparkExecution(first, second), groups, [*_changed_columns(first, second), *padded, *_cost(groups, first)]


def _size(bound: BoundInput) -> int:
    """Return the size of a static input in bytes, as Spark estimates it; of an unknown one, Spark says the largest."""
    return adapter_of(bound.frame.sparkSession).plan_bytes(bound.frame)


def _check(left: BoundInput, right: BoundInput) -> None:
    one, two = left.spec, right.spec
    if one.static and not left.is_streaming and right.is_streaming:
        msg = (
            f"input {one.name!r} is a static side, and it is on the left: its rows would be looked up in the stream "
            f"{two.name!r}, which never ends; make the stream the left input, and the table the right one"
        )
        raise ConfigurationError(msg)
    beside = left.is_streaming and two.static
    if left.is_streaming != right.is_streaming and one.name != two.name and not beside:
        stream, static = (one.name, two.name) if left.is_streaming else (two.name, one.name)
        msg = (
            f"input {stream!r} is a stream, input {static!r} is static; both must be of one kind: "
            f"read {static!r} with spark.readStream, or {stream!r} with spark.read; or have the stream on the left, "
            f"and on the right a Delta table of which one version is pinned: cojoin.sources.delta(..., static=True)"
        )
        raise ConfigurationError(msg)
    for each in (one, two):
        if each.refreshes and not beside:
            msg = f"refresh: input {each.name!r} is not beside a stream, so it is read once; leave refresh= out"
            raise ConfigurationError(msg)
    for told, never in _padded(left, right):
        if never:
            msg = f"the key types differ: {told.format('no two keys would be equal')}"
            raise SchemaError(msg)
    check_pair(one, two, (SparkAdvice(), SparkAdvice()))


def _padded(left: BoundInput, right: BoundInput) -> Iterator[tuple[str, bool]]:
    """Yield a message for each key column that one side pads with blanks as the other does not, and whether none match.

    Spark's own joins pad the shorter of two ``char`` columns; they compare a ``char`` with other texts as it is.
    """
    for one, two in zip(left.spec.key, right.spec.key, strict=False):
        types = left.length_type(one), right.length_type(two)
        if types[0] == types[1] or not any(each.startswith("char") for each in types):
            continue
        padded = [int(each[5:-1]) for each in types if each.startswith("char")]
        limit = next((int(each[8:-1]) for each in types if each.startswith("varchar")), padded[0])
        cures = dict.fromkeys((_trimmed(left, one), _trimmed(right, two)))
        yield (
            (
                f"{one!r} of input {left.spec.name!r} is {types[0]}, {two!r} of input {right.spec.name!r} is "
                f"{types[1]}, and a char(n) is padded with blanks to n characters: {{}}; leave the blanks out on both "
                f"sides: "
                f"{' and '.join(cures)}"
            ),
            len(padded) > 1 or limit < padded[0],
        )


def _trimmed(bound: BoundInput, column: str) -> str:
    if bound.source is None:
        return f"df.withColumn({column!r}, F.rtrim({column!r}))"
    return f"ALTER TABLE ... ALTER COLUMN {column} TYPE string"


def _together(left: Input, right: Input) -> tuple[Input, Input]:
    """Return both inputs with sources that know of their inputs and of each other, since Kafka's are read in step."""
    left, right = _told(left, "left"), _told(right, "right")
    one, two = getattr(left, "source", None), getattr(right, "source", None)
    if not (isinstance(one, Source) and isinstance(two, Source)):
        return left, right
    return replace(left, source=one.together_with(two)), replace(right, source=two.together_with(one))


def _told(declared: Input, default_name: str) -> Input:
    """Return an input whose source knows its name, its key and ``max_ahead``."""
    source = getattr(declared, "source", None)
    if not isinstance(source, Source):
        return declared
    key = [declared.key] if isinstance(declared.key, str) else declared.key
    # What is no name is refused once the columns are known.
    names = key if isinstance(key, Sequence) else ()
    source = source.of_input(declared.name or default_name)
    source = source.with_key(tuple(each for each in names if isinstance(each, str)))
    if declared.max_ahead is not None:
        source = source.with_max_ahead(milliseconds(declared.max_ahead, "max_ahead"))
    return replace(declared, source=source)


def _changed_columns(*inputs: BoundInput) -> Iterator[str]:
    """Yield a warning for each column whose collation is lost."""
    for each in inputs:
        for name, collation in each.collated.items():
            yield (
                f"input {each.spec.name!r}: column {name!r} has the collation {collation}, which results and state do "
                f"not keep: its texts stay as they are, and come out as UTF8_BINARY; collate the result anew where it "
                f"matters"
            )


def _cost(key_groups: int, left: BoundInput) -> Iterator[str]:
    """Yield a warning if the calls of all key groups, with or without rows, take long."""
    if key_groups * max(_CALL_MS) < 1000 * _LONG_SECONDS:
        return
    cores = adapter_of(left.frame.sparkSession).parallel_tasks()
    low, high = (key_groups * each / cores / 1000 for each in _CALL_MS)
    if high >= _LONG_SECONDS:
        yield (
            f"key_groups={key_groups}: {'each micro-batch' if left.is_streaming else 'a run'} will take {low:,.0f} to "
            f"{high:,.0f} seconds on {cores} cores however few its rows are, since a key group costs some "
            f"milliseconds; results do not depend on their number, and a few for each core are right, such as "
            f"key_groups={min(key_groups, max(32, 4 * cores))}"
        )
