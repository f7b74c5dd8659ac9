"""``cojoin run`` and ``cojoin replay``: an as-of join of two sources, with a report at its end.

A replay may go on live: that is the same query, from the same checkpoint, over the same topics without an end.
"""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojoin.cli import run_report
from cojoin.cli.embedded_spark import local_session
from cojoin.cli.interrupts import INTERRUPTED
from cojoin.cli.kafka_arguments import up_to
from cojoin.cli.run_report import say, tell
from cojoin.cli.verification import compare, expected_rows, without_rejected
from cojoin.cli.waiting import wait_for
from cojoin.engine.time.durations import milliseconds
from cojoin.engine.time.watermarks import NONE
from cojoin.errors import MissingRowsWarning
from cojoin.spark.sources.secrets import without_login
from cojoin.storage.locations import is_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.api.joined import Joined
    from cojoin.checkpoints.checkpoint import Checkpoint
    from cojoin.cli.arguments import Arguments, SideArguments
    from cojoin.cli.typed_locations import Location
    from cojoin.engine.batch_report import BatchReport
    from cojoin.spark.query.query import Query
    from cojoin.spark.query.triggers import Trigger
    from cojoin.spark.sources.sources import Source

__all__ = ["run_join"]


def run_join(arguments: Arguments) -> int:
    """Run the join, and return the exit code."""
    for side in arguments.sides:
        if side.kafka is not None:
            from cojoin.kafka.cluster_options import check_installed  # noqa: PLC0415 - it is an extra

            check_installed(f"input {side.name!r}")  # It is checked before Spark starts, which takes a while.
    for name, location in (("--output", arguments.output), ("--rejected", arguments.rejected)):
        if location is not None and location.kind == "kafka":
            from cojoin.kafka.cluster_options import check_installed  # noqa: PLC0415 - it is an extra

            check_installed(name)
    with (
        tempfile.TemporaryDirectory(prefix="cojoin-run-", ignore_cleanup_errors=True) as folder,
        local_session(Path(folder), tell, master=arguments.master, conf=arguments.conf, log=arguments.log) as spark,
    ):
        return _Run(arguments, spark).result()


class _Run:
    """One run, from its sources to its exit code."""

    def __init__(self, arguments: Arguments, spark: SparkSession) -> None:
        self._arguments, self._spark = arguments, spark
        self._sides: tuple[SideArguments, SideArguments] = arguments.sides
        self._sources = [self._source(side) for side in self._sides]

    def result(self) -> int:
        arguments = self._arguments
        self._announce()
        joined = self._joined(self._sources)
        if arguments.trigger.is_bounded:
            # The start warns of it, too; a command shows no warnings, since most are for programmers.
            for held_back in [each for source in self._sources for each in source.held_back()]:
                tell(f"Note: {held_back}")
        trigger, then = arguments.trigger, arguments.trigger.then
        # What is verified must stand still.
        first = replace(trigger, then=None) if arguments.verify else trigger
        query = self._start(joined, first, arguments.restore_from)
        try:
            wait_for(query, history=then is not None)
            progress = query.progress if query.history is None else query.history
            self._report(progress)
            if progress is not None:
                say()
                tell(run_report.ending(progress, goes_on=then is not None))
            code = self._verify(joined, progress) if arguments.verify else 0
            if code or then is None:
                return code
            say()
            tell("Continuing live; Ctrl-C stops.")
            query = self._start(joined, trigger) if first.then is None else query
            wait_for(query)
        except KeyboardInterrupt:
            return self._stopped(query)
        return 0

    def _stopped(self, query: Query) -> int:
        query.stop()
        progress = query.progress
        self._report(progress)
        if progress is not None:
            say()
            tell(run_report.ending(progress))
        say("Stopped. The same command continues from here.")
        return INTERRUPTED

    def _announce(self) -> None:
        arguments = self._arguments
        left, right = self._sides
        origin = arguments.restore_from
        if origin is not None:
            moment = "the newest snapshot" if origin.at is None else f"the snapshot at {origin.at}"
            tell(f"Beginning with {moment} of {without_login(origin.path)} ...")
        tell(f"Joining {left.name} ({left.location}) with {right.name} ({right.location}) into {arguments.output} ...")
        for side, other in ((left, right), (right, left)):
            if side.kafka is None and other.kafka is not None:
                tell(
                    f"{side.name} is not a topic, so the two inputs are not read in step: {other.name} may run ahead, "
                    f"and its rows are then buffered in the state."
                )

    def _source(self, side: SideArguments) -> Source:
        if side.kafka is None:
            return side.location.source(self._spark, side.schema, side.options)
        archive = side.kafka.archive
        made = side.kafka.source(None if archive is None else archive.source(self._spark, None, {}))
        ahead = self._arguments.max_ahead
        return made if ahead is None else made.with_max_ahead(milliseconds(ahead, "--max-ahead"))

    def _joined(self, sources: Sequence[Source]) -> Joined:
        from cojoin.api.connect import connect  # noqa: PLC0415 - Java is checked before Spark is touched
        from cojoin.engine.input import Input  # noqa: PLC0415

        left, right = (Input(source, **side.declared) for side, source in zip(self._sides, sources, strict=True))
        arguments = self._arguments
        pair = connect(left, right, key_groups=arguments.key_groups, when_all_idle=arguments.when_all_idle)
        return pair.asof_join(**vars(arguments.join))

    def _start(self, joined: Joined, trigger: Trigger, restore_from: Checkpoint | None = None) -> Query:
        arguments, options = self._arguments, dict(self._arguments.output_option)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", MissingRowsWarning)
            query = joined.start(
                output=arguments.output.sink(arguments.output_key or joined.plan.left.key, options),
                rejected=None if arguments.rejected is None else arguments.rejected.sink((), options),
                trigger=trigger,
                name="cojoin-run",
                restore_from=restore_from,
                **arguments.start,
            )
        for each in caught:
            tell(f"Note: {each.message}")
        return query

    def _report(self, progress: BatchReport | None) -> None:
        if progress is None:
            say("\nNo batch has run: neither source had a row.")
            return
        output = self._written(self._arguments.output)
        if self._arguments.show and output is not None:
            say("\nSome joined rows:\n\n" + run_report.rows(output.limit(self._arguments.show).toArrow()))
        say("\n" + run_report.watermarks(progress) + "\n")
        say(run_report.counts(progress))
        tell(run_report.conservation(progress))

    def _verify(self, joined: Joined, progress: BatchReport | None) -> int:
        """Compare with pandas over all rows of the sources, or those read from topics; return the exit code."""
        plan = joined.plan
        place = self._arguments.rejected or _default_rejected(self._arguments.checkpoint)
        rejected_frame = self._written(place)
        rejected = None if rejected_frame is None else rejected_frame.drop("batch_id").toArrow()
        left, right = (
            without_rejected(_whole(source), spec, rejected)
            for source, spec in zip(self._read_so_far(), plan.inputs, strict=True)
        )
        watermark = NONE if progress is None else progress.watermark
        expected = expected_rows(self._arguments.join, plan.inputs, (left, right), watermark)
        output = self._written(self._arguments.output)
        verdict = compare(expected, expected.slice(0, 0) if output is None else output.toArrow())
        say("\n" + run_report.verdict(verdict))
        late = 0 if progress is None else sum(each.late_applied for each in progress.inputs)
        if late and not verdict.is_equal:
            say(f"\n{late:,} rows of {plan.right.name} were late, and were applied only to later rows;")
            say("a larger --delay avoids this.")
        return 0 if verdict.is_equal else 1

    def _read_so_far(self) -> list[Source]:
        """Return the sources; those of topics, which may have grown since, end at the query's offset."""
        from cojoin.checkpoints.manifest import Manifests  # noqa: PLC0415
        from cojoin.session.stores import open_store  # noqa: PLC0415 - Java is checked before Spark

        last = Manifests(open_store(self._spark, self._arguments.checkpoint)).last()
        if last is None:
            return self._sources
        return [
            source if side.kafka is None else up_to(source, offset)
            for side, source, offset in zip(self._sides, self._sources, last.offsets, strict=False)
        ]

    def _written(self, location: Location) -> DataFrame | None:
        """Return the rows of an output; None where nothing was written yet, and for a topic."""
        if location.kind == "kafka":
            return None
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - so that --help is quick

        reader: Any = self._spark.read.format(location.kind)
        try:
            frame: DataFrame = reader.load(location.place) if _is_path(location) else reader.table(location.place)
        except AnalysisException:
            return None
        return frame if frame.columns else None


def _whole(source: Source) -> pa.Table:
    return source.open(streaming=False).toArrow()


def _default_rejected(checkpoint: str) -> Location:
    from cojoin.cli.typed_locations import Location  # noqa: PLC0415

    return Location("delta", f"{checkpoint.rstrip('/')}/rejected")


def _is_path(location: Location) -> bool:
    return location.kind != "delta" or is_path(location.place)
