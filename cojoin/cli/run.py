"""``cojoin run``: starts the join of a job file as a query, waits for it, and prints a report at its end.

The job's file is loaded before Spark starts, so that an error in it is reported at once. A run may go on live: this is
the same query, over the same sources without an end.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cojoin.cli import run_report
from cojoin.cli.embedded_spark import session_on_demand
from cojoin.cli.interrupts import INTERRUPTED
from cojoin.cli.jobs import join_of, loaded
from cojoin.cli.run_report import say, tell
from cojoin.cli.waiting import wait_for
from cojoin.engine.plan import describe_operation
from cojoin.spark.sources.secrets import without_login

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cojoin.api.joined import Joined
    from cojoin.cli.arguments import Arguments
    from cojoin.engine.batch_report import BatchReport

__all__ = ["run_job"]


def run_job(arguments: Arguments) -> int:
    """Run a job, and return the exit code: 0, or 130 after Ctrl-C."""
    outputs = {"output": arguments.output, "rejected": arguments.rejected}
    with session_on_demand(tell, arguments) as session:
        with _noted(), loaded(arguments.job) as module:
            sinks = {
                name: None if output is None else output.sink(module, f"--{name}") for name, output in outputs.items()
            }
            joined = join_of(arguments.job, module, session, arguments.settings, on_spark=True)
            if joined.is_streaming:
                session()  # A join that is no function's result has made its own.
        return _run(arguments, joined, sinks)


def _run(arguments: Arguments, joined: Joined, sinks: Mapping[str, Any]) -> int:
    _announce(arguments, joined)
    with _noted():
        query = joined.start(**sinks, **arguments.start)
    goes_on = arguments.start["trigger"].then is not None
    try:
        wait_for(query, history=goes_on)
        _report(query.progress if query.history is None else query.history, goes_on=goes_on)
        if goes_on:
            say()
            tell("Continuing live; Ctrl-C stops.")
            wait_for(query)
    except KeyboardInterrupt:
        query.stop()
        _report(query.progress)
        say("Stopped. The same command continues from here.")
        return INTERRUPTED
    return 0


def _announce(arguments: Arguments, joined: Joined) -> None:
    origin = arguments.start["restore_from"]
    if origin is not None:
        moment = "the newest snapshot" if origin.at is None else f"the snapshot at {origin.at}"
        tell(f"Beginning with {moment} of {without_login(origin.path)} ...")
    left, right = joined.plan.inputs
    operation = describe_operation(joined.plan.operation)
    tell(f"Running {operation} of {left.name} with {right.name} into {arguments.output} ...")
    # A topic beside a table that is loaded whole does not run ahead of it.
    bound = () if right.static else getattr(joined._execution, "bound", ())  # noqa: SLF001 - it is the half of Spark
    topics = [each.source is not None and each.source.format == "cojoin.kafka" for each in bound]
    for topic, other in ((left, right), (right, left)):
        if topics == [topic is left, topic is right]:
            tell(
                f"{other.name} is not a topic, so the two inputs are not read in step: {topic.name} may run ahead, "
                f"and its rows are then buffered in the state."
            )


def _report(progress: BatchReport | None, *, goes_on: bool = False) -> None:
    if progress is None:
        say("\nNo batch has run: neither source had a row.")
        return
    say("\n" + run_report.watermarks(progress) + "\n")
    say(run_report.counts(progress))
    tell(run_report.conservation(progress))
    say()
    tell(run_report.ending(progress, goes_on=goes_on))


@contextmanager
def _noted() -> Iterator[None]:
    """Print the warnings for a user that are raised meanwhile; the others are for programmers of libraries."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            for each in caught:
                tell(f"Note: {each.message}")
