"""``cojoin run``: starts the join of a job file as a query, waits for it, and prints a report at its end.

The job's file is loaded before Spark starts, so that an error in it is reported at once. A run may continue live: this
is the same query, over the same sources without an end.
"""

from __future__ import annotations

import inspect
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.cli import run_report
from cojoin.cli.interrupts import INTERRUPTED, wait_for
from cojoin.cli.jobs import join_of, loaded
from cojoin.cli.run_report import say, tell
from cojoin.engine.descriptions import describe_operation
from cojoin.errors import ConfigurationError, did_you_mean
from cojoin.spark.sources.secrets import without_login
from cojoin.storage.locations import is_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

    from cojoin.api.joined import Joined
    from cojoin.cli.options import Arguments
    from cojoin.engine.batch_report import BatchReport

__all__ = ["Output", "run_job"]


def run_job(arguments: Arguments) -> int:
    """Run a job, and return the exit code: 0, or 130 after Ctrl-C."""
    from cojoin.cli.embedded_spark import session_on_demand  # noqa: PLC0415 - the options need no Spark

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


_KINDS = ("delta", "parquet")


@dataclass(frozen=True)
class Output:
    """An output as it is given on the command line.

    Attributes:
        kind: ``delta`` or ``parquet``; None for a sink of the job's file.
        place: A path or a table's name, or the name of the sink.
    """

    kind: str | None
    place: str

    @classmethod
    def parse(cls, text: str) -> Output:
        """Read ``delta:PATH``, ``parquet:FOLDER``, or the name of a sink.

        Raises:
            ConfigurationError: The text has another form, or the kind is unknown.

        >>> Output.parse("delta:/lake/enriched")
        Output(kind='delta', place='/lake/enriched')
        """
        kind, colon, place = text.partition(":")
        if not colon and text.isidentifier():
            return cls(None, text)
        if not colon or not place:
            msg = (
                f"expected delta:PATH, parquet:FOLDER, or the name of a sink in the job's file, got "
                f"{without_login(text)!r}"
            )
            raise ConfigurationError(msg)
        if kind not in _KINDS:
            topic = "; a topic is a sink in the job's file: write NAME = cojoin.sinks.kafka(...) there, and NAME here"
            msg = f"expected delta or parquet before the colon, got {kind!r}{did_you_mean(kind, _KINDS)}"
            raise ConfigurationError(msg + (topic if kind == "kafka" else ""))
        return cls(kind, place)

    def __str__(self) -> str:
        return without_login(self.place if self.kind is None else f"{self.kind}:{self.place}")

    def check_place(self, conf: Mapping[str, str]) -> None:
        """Check that a table's name has a catalog, since the embedded Spark forgets its tables when it ends.

        Args:
            conf: The settings of Spark.

        Raises:
            ConfigurationError: The output is a table's name, and no setting is about a catalog.
        """
        if self.kind != "delta" or is_path(self.place):
            return
        if not any("catalog" in name or "hive" in name or "metastore" in name for name in conf):
            msg = (
                f"{self}: this is a table's name, and --conf sets no catalog; "
                f"write a path, such as delta:./{self.place}"
            )
            raise ConfigurationError(msg)

    def sink(self, module: ModuleType, option: str) -> Any:
        """Return the sink, as ``Joined.start`` takes it.

        Args:
            module: The module of the job.
            option: The option, for messages.

        Raises:
            ConfigurationError: The module has no such name, or it is not a sink.
        """
        from cojoin.spark.sinks import sinks  # noqa: PLC0415 - so that --help is quick

        if self.kind is not None:
            return sinks.delta(self.place) if self.kind == "delta" else sinks.parquet(self.place)
        found = vars(module).get(self.place)
        if found is None:
            names = [name for name, value in vars(module).items() if isinstance(value, sinks.Sink)]
            msg = (
                f"{option} {self.place}: {module.__file__} has no {self.place!r}{did_you_mean(self.place, names)}; "
                f"expected delta:PATH, parquet:FOLDER, or the name of a sink in this file"
            )
            raise ConfigurationError(msg)
        if not isinstance(found, sinks.Sink) and not _takes_batches(found):
            # The value is not shown: it may hold a login.
            msg = (
                f"{option} {self.place}: expected a sink, such as cojoin.sinks.kafka(...), or a function that takes "
                f"(DataFrame, batch_id), got {type(found).__name__}"
            )
            raise ConfigurationError(msg)
        return found


def _takes_batches(found: Any) -> bool:
    try:
        inspect.signature(found).bind(None, 0)
    except (TypeError, ValueError):
        return False
    return True
