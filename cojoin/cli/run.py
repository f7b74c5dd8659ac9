"""The commands that run the joins of job files: ``cojoin run`` and ``cojoin diff``.

``run`` starts a join as a query, waits for it, and prints a report at its end. The job's file is loaded before Spark
starts, so that an error in it is reported at once. A run that continues live after the history is the same query
over the same sources, which then have no end. ``diff`` compares two versions of a join over the same history; its exit
code is 1 if they differ.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from cojoin.cli import run_report
from cojoin.cli.embedded_spark import session_on_demand
from cojoin.cli.interrupts import INTERRUPTED, wait_for
from cojoin.cli.jobs import join_of, load_job, loaded
from cojoin.cli.run_report import say, tell
from cojoin.comparison.diff import diff
from cojoin.comparison.difference import difference_text
from cojoin.engine.plan import describe_operation
from cojoin.errors import ConfigurationError
from cojoin.storage.locations import without_login
from cojoin.storage.parquet_files import columns_with_statistics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame

    from cojoin.api.joined import Joined
    from cojoin.cli.options import Arguments
    from cojoin.comparison.difference import Difference
    from cojoin.engine.batch_report import BatchReport
    from cojoin.engine.functions import OutputTag
    from cojoin.spark.query.query import Query


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
                session()  # a job file whose join is a variable has already created the session
        return _run(arguments, joined, sinks)


def _run(arguments: Arguments, joined: Joined, sinks: Mapping[str, Any]) -> int:
    _announce(arguments, joined)
    with _noted():
        query = joined.start(**sinks, **arguments.start)
    goes_on = arguments.start["trigger"].then is not None
    try:
        wait_for(query, history=goes_on)
        _report(query, query.progress if query.history is None else query.history, goes_on=goes_on)
        if goes_on:
            say()
            tell("Continuing live; Ctrl-C stops.")
            wait_for(query)
    except KeyboardInterrupt:
        query.stop()
        _report(query, query.progress)
        say("Stopped. The same command continues from the checkpoint.")
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
    # A topic does not run ahead of a right table that is loaded as a whole.
    bound = () if right.static else getattr(joined._execution, "bound", ())  # noqa: SLF001 - only Spark's has it
    topics = [each.source is not None and each.source.format == "cojoin.kafka" for each in bound]
    for topic, other in ((left, right), (right, left)):
        if topics == [topic is left, topic is right]:
            tell(
                f"{other.name} is not a topic, so the two inputs are not read in step: {topic.name} may run ahead, "
                f"and its rows are then buffered in the state."
            )


def _report(query: Query, progress: BatchReport | None, *, goes_on: bool = False) -> None:
    if progress is None:
        say("\nNo batch was finished.")
        return
    say("\n" + run_report.watermarks(progress) + "\n")
    say(run_report.counts(progress))
    tell(run_report.conservation(progress))
    say()
    tell(run_report.ending(progress, goes_on=goes_on, before=query.progress_before))


@contextmanager
def _noted() -> Iterator[None]:
    """Print the UserWarnings of the block at its end; other warnings are ignored, since they are for programmers."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            for warning in caught:
                tell(f"Note: {warning.message}")


_KINDS = ("changed", "only_in_a", "only_in_b")


def run_diff(arguments: Arguments) -> int:
    """Compare two jobs, and return the exit code: 1 if they differ, else 0."""
    _check_folder(arguments.write)
    with session_on_demand(tell, arguments) as spark:
        a = load_job(arguments.a, spark, arguments.settings)
        b = a if arguments.a == arguments.b else load_job(arguments.b, spark, arguments.settings)
        tell(f"a is {':'.join(arguments.a)}, b is {':'.join(arguments.b)}.")
        difference = diff(
            a,
            b,
            output=_output(a, arguments.output),
            keys=arguments.keys,
            columns=arguments.columns,
            examples=arguments.examples,
        )
        say(difference_text(difference))
        if arguments.write is not None and not difference.equal:
            _write(difference, Path(arguments.write))
            say()
            tell(f"All rows that differ are in {arguments.write}.")
        return 0 if difference.equal else 1


def _output(joined: Joined, name: str) -> Any:
    """Return an output as ``diff`` takes it: its name, or the tag of a side output."""
    tags: dict[str, OutputTag] = {tag.tag_id: tag for tag in joined.plan.side_outputs}
    return tags.get(name, name)


def _check_folder(folder: str | None) -> None:
    if folder is None:
        return
    if "://" in folder:
        msg = f"--write {folder}: expected a directory on this machine"
        raise ConfigurationError(msg)
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        msg = f"--write {folder}: it is a file or a directory that is not empty; choose another directory"
        raise ConfigurationError(msg)


def _write(difference: Difference, folder: Path) -> None:
    for name, output in difference.outputs.items():
        for kind in _KINDS:
            if not getattr(output.counts, kind):
                continue
            target, rows = (folder / name / kind).absolute(), getattr(output, kind)
            if not isinstance(rows, pa.Table) and not _sees_this_disk(rows):
                rows = rows.toArrow()
            if isinstance(rows, pa.Table):
                target.mkdir(parents=True)
                # With statistics of floats, readers that filter would skip NaN (``parquet_files.file_statistics``).
                kept = columns_with_statistics(rows.schema)
                pq.write_table(rows, target / "rows.parquet", write_statistics=kept)
            else:
                # Without the scheme, the path would be on Spark's default file system.
                rows.write.parquet(f"file:{target}")


def _sees_this_disk(rows: DataFrame) -> bool:
    """Return whether the workers of a DataFrame's session have this process's disk."""
    from cojoin.session.sessions import adapter_of  # noqa: PLC0415 - jobs in memory need no Spark

    adapter = adapter_of(rows.sparkSession)
    return adapter.shares_paths and not adapter.has_other_hosts
