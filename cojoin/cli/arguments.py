"""What was typed, read and checked before Spark is started."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from cojoin.checkpoints.checkpoint import Checkpoint
from cojoin.cli.hints import in_options
from cojoin.cli.kafka_arguments import KafkaArguments, check_kafka, kafka_arguments
from cojoin.cli.options import build_parser
from cojoin.engine.joins.asof import AsofJoin
from cojoin.engine.time.durations import milliseconds
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.errors import ConfigurationError
from cojoin.spark.query.triggers import Trigger
from cojoin.storage.locations import is_path

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cojoin.cli.secrets import Secrets
    from cojoin.cli.typed_locations import Location

__all__ = [
    "Arguments",
    "CheckpointsArguments",
    "DemoArguments",
    "RunArguments",
    "SideArguments",
    "parse_arguments",
]


@dataclass(frozen=True)
class DemoArguments:
    """What ``cojoin demo`` was asked.

    Attributes:
        rows: How many trades.
        directory: Where its files go; None makes a temporary folder.
        keep: Whether a temporary folder stays.
        seed: What the rows are made from.
        verbose: Whether a traceback is shown with an error.
        log: Where Spark's log is kept.
    """

    rows: int
    directory: str | None
    keep: bool
    seed: int
    verbose: bool
    log: Path | None


@dataclass(frozen=True)
class SideArguments:
    """What ``cojoin run`` or ``cojoin replay`` was told of one input.

    Attributes:
        location: Where its rows come from.
        name: Its name.
        key: Its key columns.
        event_time: Its event-time column.
        watermark: How its watermark follows its rows.
        schema: The columns as DDL, where they are not known.
        options: Spark's options for the source; they may hold secrets.
        partition: The columns that tell the source partition.
        sequence: The columns that order rows at the source.
        kafka: How its topics are read; None where it is no topic.
    """

    location: Location
    name: str
    key: tuple[str, ...]
    event_time: str
    watermark: WatermarkStrategy
    schema: str | None
    options: Mapping[str, str] = field(repr=False)
    partition: tuple[str, ...]
    sequence: tuple[str, ...]
    kafka: KafkaArguments | None


@dataclass(frozen=True)
class RunArguments:
    """What ``cojoin run`` or ``cojoin replay`` was asked.

    Attributes:
        left: The left input.
        right: The right input.
        join: The join.
        key_groups: Into how many parts the keys are hashed.
        output: Where joined rows go.
        rejected: Where rejected rows go; None is beside the checkpoint.
        checkpoint: The checkpoint's directory.
        checkpoint_interval: How often a snapshot is taken: a duration, a number of batches, or never.
        retained_checkpoints: How many snapshots are kept.
        restore_from: The checkpoint of another query to begin with.
        cut_back_output: Whether the output may be taken back to the moment of that checkpoint.
        allow_data_loss: Whether records that the sources no longer have may be passed over.
        trigger: When it runs, and what happens at its end.
        then_live: When it runs after its end; None is over then.
        max_ahead: How far a row may be ahead of the clock; None is any distance.
        show: How many joined rows are shown.
        verify: Whether the output is compared with pandas'.
        master: Spark's master.
        conf: Settings of Spark's; they may hold secrets.
        verbose: Whether a traceback is shown with an error.
        log: Where Spark's log is kept.
    """

    left: SideArguments
    right: SideArguments
    join: AsofJoin
    key_groups: int
    output: Location
    rejected: Location | None
    checkpoint: str
    checkpoint_interval: str | int | None
    retained_checkpoints: int
    restore_from: Checkpoint | None
    cut_back_output: bool
    allow_data_loss: bool
    trigger: Trigger
    then_live: Trigger | None
    max_ahead: str | None
    show: int
    verify: bool
    master: str | None
    conf: Mapping[str, str] = field(repr=False)
    verbose: bool
    log: Path | None


@dataclass(frozen=True)
class CheckpointsArguments:
    """What ``cojoin checkpoints`` was asked, but for ``restore``, which is a run.

    Attributes:
        action: The command, such as ``"list"``.
        path: The checkpoint's directory.
        json: Whether JSON is printed.
        verbose: Whether a traceback is shown with an error.
        log: Where Spark's log is kept.
        master: Spark's master.
        conf: Settings of Spark's; they may hold secrets.
        at: Which moment; None is the newest.
        limit: How many rows or batches are shown.
        key: A key, as it was typed.
        name: Which part of the state.
        input: The input of a row.
        row: The row's columns, as they were typed; None is null.
        keep: How many snapshots are kept.
        batch: The snapshot to remove.
        savepoints: Whether savepoints are cleaned as the others are.
        dry_run: Whether nothing is removed.
    """

    action: str
    path: str
    json: bool
    verbose: bool
    log: Path | None
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    at: int | datetime | None = None
    limit: int = 20
    key: str | None = None
    name: str | None = None
    input: str | None = None
    row: Sequence[tuple[str, str | None]] = ()
    keep: int | None = None
    batch: int | None = None
    savepoints: bool = False
    dry_run: bool = False


Arguments: TypeAlias = "DemoArguments | RunArguments | CheckpointsArguments"


def parse_arguments(words: Sequence[str], secrets: Secrets) -> Arguments:
    """Read the words of the command line; what is wrong with them ends the process with the exit code 2."""
    parser, checked = build_parser(secrets)
    typed = parser.parse_args(words)
    if typed.command == "demo":
        return DemoArguments(typed.rows, typed.directory, typed.keep, typed.seed, typed.verbose, typed.log)
    try:
        if typed.command == "checkpoints" and typed.action != "restore":
            values = {name: value for name, value in vars(typed).items() if name != "command"}
            return CheckpointsArguments(**{**values, "conf": dict(typed.conf)})
        return _run_arguments(typed)
    except ConfigurationError as error:
        checked[typed.command].error(in_options(str(error)))


def _run_arguments(typed: argparse.Namespace) -> RunArguments:
    if typed.max_ahead != "none":
        milliseconds(typed.max_ahead, "--max-ahead")
    conf = dict(typed.conf)
    for location in (typed.left, typed.right, typed.output, typed.rejected):
        _refuse_tables(location, conf)
    check_kafka(vars(typed))
    left, right = _names_of_inputs(typed)
    every, then_live = vars(typed).get("every"), vars(typed).get("then_live")
    return RunArguments(
        left=_side(typed, "left", left),
        right=_side(typed, "right", right),
        join=AsofJoin(typed.how, typed.tolerance, not typed.no_exact_matches, typed.suffixes),
        key_groups=typed.key_groups,
        output=typed.output,
        rejected=typed.rejected,
        checkpoint=typed.checkpoint,
        checkpoint_interval=typed.checkpoint_interval,
        retained_checkpoints=typed.retained_checkpoints,
        restore_from=_origin(typed),
        cut_back_output=typed.cut_back_output,
        allow_data_loss=typed.allow_data_loss,
        trigger=Trigger.processing_time(every) if every else Trigger.available_now(drain=typed.drain),
        then_live=Trigger.processing_time(then_live) if then_live else None,
        max_ahead=None if typed.max_ahead == "none" else typed.max_ahead,
        show=typed.show,
        verify=typed.verify,
        master=typed.master,
        conf=conf,
        verbose=typed.verbose,
        log=typed.log,
    )


def _origin(typed: argparse.Namespace) -> Checkpoint | None:
    if typed.restore_from is not None:
        return Checkpoint(typed.restore_from, typed.at)
    given = {"--at": typed.at, "--cut-back-output": typed.cut_back_output, "--allow-data-loss": typed.allow_data_loss}
    for option, value in given.items():
        # A batch may be 0.
        if value is not None and value is not False:
            msg = f"{option}: that is said of the checkpoint in --restore-from, which is missing"
            raise ConfigurationError(msg)
    return None


def _side(typed: argparse.Namespace, side: str, name: str) -> SideArguments:
    values = vars(typed)

    def either(argument: str) -> Any:
        own = values[f"{side}_{argument}"]
        return values[argument] if own is None else own

    for argument in ("key", "event_time"):
        if either(argument) is None:
            spelled = argument.replace("_", "-")
            msg = f"input {name!r}: expected --{spelled}, or --{side}-{spelled}"
            raise ConfigurationError(msg)
    delay = milliseconds(either("delay") or "0 seconds", f"input {name!r}: --delay")
    watermark = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(milliseconds=delay))
    if either("idleness") is not None:
        idleness = milliseconds(either("idleness"), f"input {name!r}: --idleness")
        watermark = watermark.with_idleness(timedelta(milliseconds=idleness))
    schema, options = values[f"{side}_schema"], dict(values[f"{side}_option"])
    return SideArguments(
        location=values[side],
        name=name,
        key=either("key"),
        event_time=either("event_time"),
        watermark=watermark,
        schema=schema,
        options=options,
        partition=values[f"{side}_partition"],
        sequence=values[f"{side}_sequence"],
        kafka=kafka_arguments(values, side, name, schema, options),
    )


def _names_of_inputs(typed: argparse.Namespace) -> tuple[str, str]:
    left, right = typed.left_name or typed.left.name or "left", typed.right_name or typed.right.name or "right"
    if left == right and not (typed.left_name and typed.right_name):
        return typed.left_name or "left", typed.right_name or "right"
    return left, right


def _refuse_tables(location: Location | None, conf: Mapping[str, str]) -> None:
    """Refuse a table by name in a Spark of one's own, which forgets it at its end, unless a catalogue is set."""
    if location is None or location.kind != "delta" or is_path(location.place):
        return
    if not any("catalog" in name or "hive" in name or "metastore" in name for name in conf):
        msg = (
            f"{location}: that is a table's name, and no catalogue is set with --conf; "
            f"write a path, such as delta:./{location.place}"
        )
        raise ConfigurationError(msg)
