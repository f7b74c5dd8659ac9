"""A join or a function over two inputs, ready to run: on Spark as a DataFrame or a query, or in this process."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

from cojoin.embedded.embedded_execution import EmbeddedExecution
from cojoin.engine.batch_report import rejections
from cojoin.engine.display import Display, Shown, display_of
from cojoin.engine.functions import OutputTag
from cojoin.engine.operator import REJECTED
from cojoin.engine.plan import describe_columns, describe_inputs, describe_operation
from cojoin.errors import ConfigurationError, MissingRowsWarning
from cojoin.installed_packages import check_pandas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from cojoin.checkpoints.checkpoint import Snapshot
    from cojoin.embedded.micro_batches import Arrival, Batches, Clock
    from cojoin.embedded.result import Result
    from cojoin.embedded.steps import Step
    from cojoin.engine.batch_report import BatchReport
    from cojoin.engine.functions import KeyedCoProcessFunction
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.plan import Plan
    from cojoin.engine.values.arguments import Duration
    from cojoin.spark.query.query import Query
    from cojoin.spark.query.triggers import Trigger
    from cojoin.spark.sinks.sinks import SinkLike
    from cojoin.spark.spark_execution import SparkExecution
    from cojoin.storage.locations import Location

OutputName: TypeAlias = Literal["output", "rejected"] | OutputTag
"""An output: ``"output"``, ``"rejected"``, or the ``OutputTag`` of a side output."""


class Execution(Protocol):
    """The execution of plans over two inputs: on Spark, or in this process."""

    @property
    def inputs(self) -> tuple[InputSpec, InputSpec]:
        """The specifications of both inputs, left first."""

    @property
    def is_streaming(self) -> bool:
        """Whether the inputs are streams."""

    @property
    def sources(self) -> tuple[str, str]:
        """The description of each input's rows."""

    def output_type(self, declared: Any) -> Any:
        """Return a function's output type as the engine takes it."""

    def check_function(self, function: KeyedCoProcessFunction) -> None:
        """Check that a function can run where this execution runs it."""


class Joined(Shown):
    """A join or a function over two inputs, not yet started.

    With inputs of Spark, ``start`` runs it as a query with outputs, progress and snapshots, and ``to_dataframe``
    returns a plain DataFrame. With inputs in memory, ``run``, ``to_arrow`` and ``to_pandas`` run it in this process to
    the end of time, and ``steps`` runs it as a stream.
    """

    def __init__(self, plan: Plan, execution: Execution) -> None:
        self._plan, self._execution = plan, execution
        self._has_warned = False

    @property
    def plan(self) -> Plan:
        """The operation and its inputs, as the workers receive them."""
        return self._plan

    @property
    def is_streaming(self) -> bool:
        """Whether the inputs are streams."""
        return self._execution.is_streaming

    def __repr__(self) -> str:
        return display_of(lambda: Display(self._line()), "Joined").text()

    def _line(self) -> str:
        left, right = self._plan.inputs
        return f"Joined: {describe_operation(self._plan.operation)} of {left.name!r} with {right.name!r}, not yet run"

    def _display(self) -> Display:
        ways = "start(...) or to_dataframe() runs" if self.is_streaming else "to_dataframe() runs"
        if isinstance(self._execution, EmbeddedExecution):
            ways = "run(), to_pandas() or to_arrow() runs"
        notes = [f"Output: {describe_columns(self._plan.output)}", f"{ways} it."]
        return Display(self._line(), describe_inputs(self._plan.inputs, self._execution.sources), notes)

    def _embedded(self, method: str) -> EmbeddedExecution:
        if isinstance(self._execution, EmbeddedExecution):
            return self._execution
        left, right = self._plan.left.name, self._plan.right.name
        msg = (
            f"{method} runs in this process, and inputs {left!r} and {right!r} are Spark's; use to_dataframe() or "
            f"start(), or connect inputs in memory, such as Input(df.toArrow(), ...)"
        )
        raise ConfigurationError(msg)

    def _spark(self, method: str) -> SparkExecution:
        if not isinstance(self._execution, EmbeddedExecution):
            execution: SparkExecution = cast("Any", self._execution)
            return execution
        left, right = self._plan.left.name, self._plan.right.name
        msg = (
            f"{method} runs on Spark, and inputs {left!r} and {right!r} are in memory; use to_pandas() or to_arrow(), "
            f"or connect DataFrames of Spark's: Input(spark.createDataFrame(...), ...)"
        )
        raise ConfigurationError(msg)

    def run(self) -> Result:
        """Run the join in this process, to the end of time, and return all its outputs.

        No row is late, ``max_ahead`` has no effect, and no Java is needed. The rows, their types and the order of a
        key's rows are those of ``to_dataframe`` from static DataFrames.

        Returns:
            The output, the rejected rows, the side outputs and the counts of one run.

        Raises:
            ConfigurationError: The inputs are Spark's.
            FunctionError: The function raised an error, or returned an invalid value.

        Warns:
            MissingRowsWarning: Rows were rejected; each join warns once.
        """
        return self._run("run()", "run().rejected")

    def _run(self, method: str, where: str, *, warns: bool = True) -> Result:
        """Run the plan in this process, and warn of rejected rows at the line of the user's call."""
        result = self._embedded(method).run(self._plan)
        inputs = result.report.inputs
        sentence = rejections(((each.name, each.rows_in, each.rejected) for each in inputs), where) if warns else None
        if sentence is not None and not self._has_warned:
            self._has_warned = True
            warnings.warn(sentence, MissingRowsWarning, stacklevel=3)
        return result

    def steps(
        self,
        batches: Batches = None,
        *,
        arrival: Arrival = None,
        every: Duration | None = None,
        processing_time: Clock = None,
        drain: bool = True,
    ) -> Iterator[Step]:
        """Run the join as a stream in this process, one micro-batch with each step.

        Each step is what Spark makes of a micro-batch with the same rows and processing time, late rows and
        ``max_ahead`` included. It runs when the iterator comes to it. Rows are cut in one of these ways:

        - ``batches``: in the order in which they are given.
        - ``arrival``: in the order of a column, where rows with one value come together.
        - ``arrival`` and ``every``: in the order of a column of times, each window of it in one batch.
        - ``every``: in the order of event time, each window of it in one batch. A row without event time comes with
          the row before it.

        Windows are aligned to 1970, as those of Spark's ``window``, and windows without rows make no batch.

        Args:
            batches: A number of batches, into which both inputs are cut as evenly as possible; or a pair for each
                batch with how many of the next rows it takes from the left and from the right. None, where rows are
                not cut by time, is one batch.
            arrival: The name of a column of numbers, timestamps or dates in both inputs, or a pair of names, left and
                right.
            every: The length of a window, such as ``"10 minutes"`` or a ``timedelta``.
            processing_time: The clock: a datetime with a time zone or epoch milliseconds, for all batches or one for
                each; it must not go back. None is the end of each batch's arrivals where ``arrival`` has times, and
                else unknown, as is 0. While it is unknown no row is too far ahead, and no input becomes idle.
            drain: Whether one more step ends both inputs after the last batch, so that timers fire and waiting rows
                are emitted, as with ``Trigger.available_now(drain=True)``. Its processing time is the last batch's.

        Returns:
            The steps, lazily. Each has the rows that came in, each output, the rows that wait, the watermarks, timers,
            states and counts, and shows them when it is printed.

        Raises:
            ConfigurationError: The inputs are Spark's, or an argument is invalid.
            SchemaError: A column by which rows arrive does not exist, has the wrong type, or has a null.
            FunctionError: While it runs: the function raised an error, or returned an invalid value.

        >>> import pandas as pd
        >>> import cojoin as cj
        >>> at = lambda *times: pd.to_datetime(["2026-01-15 " + each for each in times], utc=True)
        >>> trades = pd.DataFrame({"id": [7, 7], "event_time": at("09:30", "10:30"), "amount": [20, 50]})
        >>> customers = pd.DataFrame({"id": [7, 7], "event_time": at("09:00", "10:00"), "tier": ["silver", "gold"]})
        >>> settings = {"key": "id", "event_time": "event_time"}
        >>> joined = cj.connect(cj.Input(trades, **settings), cj.Input(customers, **settings)).asof_join()
        >>> [step.output.num_rows for step in joined.steps(batches=[(1, 1), (1, 1)])]
        [0, 1, 1]
        """
        return self._embedded("steps()").steps(
            self._plan, batches, arrival=arrival, every=every, processing_time=processing_time, drain=drain
        )

    def to_arrow(self, output: OutputName = "output") -> pa.Table:
        """Run the join in this process and return one output as an Arrow table; see ``run``.

        Args:
            output: As in ``to_dataframe``.
        """
        name = self._plan.output_name(output)
        return self._run("to_arrow()", 'to_arrow("rejected")', warns=name != REJECTED).tables[name]

    @property
    def __arrow_c_stream__(self) -> Callable[[object], object]:
        """The main output by Arrow's interface, so that any library reads a join in memory: ``polars.from_arrow``.

        It runs the join, as ``to_arrow`` does. A join on Spark does not have it.
        """
        if not isinstance(self._execution, EmbeddedExecution):
            msg = "a join on Spark has no __arrow_c_stream__; use to_dataframe()"
            raise AttributeError(msg)  # noqa: TRY004 - so that it has no such attribute
        return self._export

    def _export(self, requested_schema: object = None) -> object:
        table = self._run("to_arrow()", 'to_arrow("rejected")').output
        return table.__arrow_c_stream__(requested_schema)

    def to_pandas(self, output: OutputName = "output") -> pd.DataFrame:
        """Run the join in this process and return one output as a pandas DataFrame; see ``run``.

        Times with a zone are ``datetime64[us, UTC]``. A column of whole numbers with nulls is one of pandas' nullable
        integers, such as ``Int64``, so that no number is rounded.

        Args:
            output: As in ``to_dataframe``.

        Raises:
            EnvironmentSetupError: pandas is missing or too old.
        """
        check_pandas("to_pandas()")
        name = self._plan.output_name(output)
        return self._run("to_pandas()", 'to_pandas("rejected")', warns=name != REJECTED).to_pandas(output)

    def to_dataframe(self, output: OutputName = "output") -> DataFrame:
        """Return one output as a plain DataFrame.

        From static inputs the DataFrame is static: the operator runs once, to the end of time. From streams it is
        streaming and takes any of Spark's sinks and triggers, in append mode. Rows that still wait for the watermark
        when the stream stops remain in its state.

        A streaming DataFrame has no checkpoint of cojoin's, which has these consequences:

        - If processing time matters (processing-time timers, idleness, a watermark that follows the clock), it runs
          micro-batches without rows and never ends by itself. Use a ``processingTime`` trigger.
        - The time between two runs counts as idle time of the inputs.
        - A Delta table whose initial snapshot has more files than one micro-batch reads must be in the order of event
          time, or rows are late. ``start`` does not need this order.

        Args:
            output: ``"output"``; ``"rejected"`` for the rejected rows with their reasons; or a side output's
                ``OutputTag``. Each DataFrame runs the operator by itself, whereas ``start`` writes all outputs of one
                run.

        Returns:
            The rows of the output. Those of ``"rejected"`` have no batch and no processing time, which only the table
            of a query has (``read_rejected``).

        Raises:
            ConfigurationError: The output does not exist.

        Warns:
            MissingRowsWarning: From static inputs, once the first action on the DataFrame has ended, if it has
                rejected rows: at the line of this call, with the counts of that action. Not with Spark Connect.
        """
        name = self._plan.output_name(output)
        return self._spark("to_dataframe()").to_dataframe(self._plan, name)

    def start(
        self,
        *,
        output: SinkLike,
        checkpoint: Location,
        trigger: Trigger,
        rejected: SinkLike | None = None,
        side_outputs: Mapping[OutputTag, SinkLike] | None = None,
        name: str | None = None,
        checkpoint_interval: Duration | int | None = "10 minutes",
        retained_checkpoints: int = 3,
        restore_from: Snapshot | None = None,
        cut_back_output: bool = False,
        allow_data_loss: bool = False,
        on_progress: Callable[[BatchReport], object] | None = None,
        evolve: bool = False,
    ) -> Query:
        """Start a streaming query that writes the output, the side outputs, the rejected rows and the progress.

        Outputs in Delta and Kafka are exactly once. Start a stopped query again with the same ``checkpoint``; it
        resumes after its last micro-batch. Watermark strategies, ``max_ahead``, ``late``, triggers and sinks may then
        differ: a micro-batch that was planned is run as it was planned, and no watermark goes back.

        Args:
            output: The sink of the main output: ``cojoin.sinks.delta(...)``, ``kafka(...)`` or ``parquet(...)``, or a
                callable that takes ``(DataFrame, batch_id)``. In a session of Spark Connect the callable is sent to the
                server, and called in a process next to it.
            checkpoint: The directory of the query's checkpoint, as a text or a ``pathlib.Path``. Each query has its own
                and keeps it between runs. An output must not be in this directory, except for ``rejected`` and side
                outputs in their default places; nor may it be another output or a table that an input reads. Outputs
                must not move between runs, which can't be checked for callables. To write elsewhere, start a new
                query with ``restore_from``. On a cluster, the driver and all workers must see it and the outputs by the
                same path, which is checked.
            trigger: ``Trigger.available_now()``, ``Trigger.available_now(drain=True)``,
                ``Trigger.processing_time("10 seconds")``, or both one after the other:
                ``Trigger.available_now(then=Trigger.processing_time("10 seconds"))``.
            rejected: The sink of the rejected rows; by default a Delta table ``rejected`` in the checkpoint directory.
            side_outputs: The sinks of a function's side outputs, by tag; by default Delta tables
                ``side_outputs/<tag id>`` in the checkpoint directory.
            name: The query's name in Spark's UI and in its metrics, where two queries of one process need two names; by
                default they show the id that its checkpoint keeps.
            checkpoint_interval: The interval of snapshots of the state: after an interval of processing time, such
                as ``"10 minutes"``, or after a number of micro-batches. None takes only savepoints. Snapshots are for
                ``restore_from`` and inspection; ordinary restarts do not need them.
            retained_checkpoints: The number of the newest snapshots to keep, in addition to savepoints.
            restore_from: The snapshot of another query to start from: its state, and its sources' positions at that
                time. ``checkpoint`` must then be a new directory. The number of key groups and of shuffle partitions
                may differ. The query may have an additional keyed state, nullable column or side output, or a wider
                type. To continue after a stop, start the query again with the same ``restore_from``.
            cut_back_output: With ``restore_from``, whether an output that continues in the old query's Delta table may
                remove what was written there after the snapshot.
            allow_data_loss: With ``restore_from``, whether records that the sources no longer have may be skipped.
            on_progress: A function that is called with the report of each batch, as ``Query.progress`` has it, once
                the batch counts: in their order, in a separate thread, in the process that started the query. An
                error of it is logged once, and the query continues. The end of the query waits for it, 10 seconds at
                most. It may call ``query.stop()``.
            evolve: Whether nullable columns that the checkpoint does not have may have been added to the inputs and to
                the outputs. Rows that wait have null there, and a micro-batch that was planned before is run without
                them. A Delta output gets them where its sink has ``options={"mergeSchema": "true"}``, or once its table
                has them. It may stay set. A column that is gone, has another type or meaning, or has become a key is
                refused by its name.

        Returns:
            The running query.

        Raises:
            ConfigurationError: The inputs are not streams, a sink or trigger is invalid, or the place of an output is
                not allowed.
            CheckpointError: The checkpoint is in use by another run, or was written by another query, by an
                incompatible version of this one, or by one that was drained; an output has moved; or the snapshot
                can't be restored by this query.
            QueryFailedError: The workers could not load the restored state.
        """
        execution = self._spark("start()")
        if not self.is_streaming:
            msg = (
                f"inputs {self._plan.left.name!r} and {self._plan.right.name!r} are static, start() runs streams; "
                f"use to_dataframe(), or read them with spark.readStream"
            )
            raise ConfigurationError(msg)
        from cojoin.spark.query.query_options import QueryOptions  # noqa: PLC0415 - rows in memory need no Spark
        from cojoin.spark.savepoints.restore import RestoreOptions  # noqa: PLC0415

        options = QueryOptions(
            output=output,
            checkpoint=checkpoint,
            trigger=trigger,
            rejected=rejected,
            side_outputs={} if side_outputs is None else side_outputs,
            name=name,
            checkpoint_interval=checkpoint_interval,
            retained_checkpoints=retained_checkpoints,
            restore_from=restore_from,
            restore=RestoreOptions(cut_back_output, allow_data_loss),
            on_progress=on_progress,
            evolve=evolve,
        )
        return execution.start(self._plan, options)
