"""The arguments of the command line: parsed, checked together, and completed before Spark starts.

``argparse`` parses each option by itself (``options``), and the commands receive its namespace. What depends on several
options is checked here and added to the namespace: for a run its two inputs, its join and its triggers.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cojoin.cli.kafka_arguments import KafkaArguments, check_kafka, check_topics_written, kafka_arguments
from cojoin.cli.known_columns import check_known_columns
from cojoin.cli.options import build_parser
from cojoin.engine.joins.asof import AsofJoin
from cojoin.engine.time.durations import milliseconds
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.errors import ConfigurationError
from cojoin.installed_packages import check_packages
from cojoin.spark.query.triggers import Trigger
from cojoin.storage.locations import is_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.checkpoints.checkpoint import Checkpoint
    from cojoin.cli.typed_locations import Location
    from cojoin.spark.sources.secrets import Secrets

__all__ = ["Arguments", "SideArguments", "parse_arguments"]

_START = ("checkpoint", "checkpoint_interval", "retained_checkpoints", "cut_back_output", "allow_data_loss", "evolve")
"""The options that are arguments of ``Joined.start`` as they are."""


@dataclass(frozen=True)
class SideArguments:
    """The arguments of one input of ``cojoin run`` or ``cojoin replay``.

    Attributes:
        location: Where the rows come from.
        declared: The arguments of ``cojoin.Input``, without the source.
        schema: The columns as DDL, for a source that does not know them.
        options: Spark's options for the source; they may hold secrets.
        kafka: How topics are read; None for another source.
    """

    location: Location
    declared: Mapping[str, Any]
    schema: str | None
    options: Mapping[str, str] = field(repr=False)
    kafka: KafkaArguments | None

    @property
    def name(self) -> str:
        """The input's name."""
        return str(self.declared["name"])


class Arguments(argparse.Namespace):
    """The options of a command by their names; the ``repr`` shows only the command, since options may hold secrets."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(command={self.command!r})"


def parse_arguments(words: Sequence[str], secrets: Secrets) -> Arguments:
    """Parse the words of the command line; an error in them ends the process with the exit code 2.

    Returns:
        The options of the command by their names (``cojoin run --help`` and so on describe them). For ``run``,
        ``replay`` and ``checkpoints restore`` it also has ``sides``, the two ``SideArguments``; ``join``, the
        ``AsofJoin``; ``trigger``; ``restore_from``, a ``Checkpoint`` or None; and ``start``, further arguments of
        ``Joined.start``.
    """
    parser, checked = build_parser(secrets)
    typed = parser.parse_args(words, Arguments())
    if typed.command == "demo":
        return typed
    typed.conf = dict(typed.conf)
    if typed.command == "diff" or (typed.command == "checkpoints" and typed.action != "restore"):
        return typed
    try:
        _complete(typed)
    except ConfigurationError as error:
        checked[typed.command].error(str(error))
    return typed


def _complete(typed: Arguments) -> None:
    check_packages(f"cojoin {typed.command}", "spark")
    if typed.max_ahead == "none":
        typed.max_ahead = None
    else:
        milliseconds(typed.max_ahead, "--max-ahead")
    for location in (typed.left, typed.right, typed.output, typed.rejected):
        _refuse_tables(location, typed.conf)
    check_kafka(vars(typed))
    check_topics_written(vars(typed))
    names = _names_of_inputs(typed)
    left, right = (_side(typed, side, name) for side, name in zip(("left", "right"), names, strict=True))
    typed.sides = left, right
    typed.join = AsofJoin(typed.how, typed.tolerance, not typed.no_exact_matches, typed.suffixes)
    check_known_columns(left, right, typed.join)
    if typed.when_all_idle == "max" and not any(side.declared["watermark"].idleness for side in typed.sides):
        msg = "--when-all-idle max needs --idleness, such as '1 minute', which is missing: without it no input is idle"
        raise ConfigurationError(msg)
    typed.restore_from = _origin(typed)
    every, then_live = vars(typed).get("every"), vars(typed).get("then_live")
    then = Trigger.processing_time(then_live) if then_live else None
    typed.trigger = Trigger.processing_time(every) if every else Trigger.available_now(drain=typed.drain, then=then)
    typed.start = {name: vars(typed)[name] for name in _START}


def _origin(typed: Arguments) -> Checkpoint | None:
    if typed.restore_from is not None:
        # Imported here so that commands without Spark need not wait for its import.
        from cojoin.checkpoints.checkpoint import Checkpoint  # noqa: PLC0415

        return Checkpoint(typed.restore_from, typed.at)
    given = {"--at": typed.at, "--cut-back-output": typed.cut_back_output, "--allow-data-loss": typed.allow_data_loss}
    for option, value in given.items():
        # Batch 0 is a valid value.
        if value is not None and value is not False:
            msg = f"{option} needs --restore-from, which is missing"
            raise ConfigurationError(msg)
    return None


def _side(typed: Arguments, side: str, name: str) -> SideArguments:
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
    declared = {
        "name": name,
        "key": either("key"),
        "event_time": either("event_time"),
        "partition": values[f"{side}_partition"],
        "sequence": values[f"{side}_sequence"],
        "watermark": watermark,
        "max_ahead": typed.max_ahead,
    }
    return SideArguments(values[side], declared, schema, options, kafka_arguments(values, side, name, schema, options))


def _names_of_inputs(typed: Arguments) -> tuple[str, str]:
    left, right = typed.left_name or typed.left.name or "left", typed.right_name or typed.right.name or "right"
    if left == right and not (typed.left_name and typed.right_name):
        return typed.left_name or "left", typed.right_name or "right"
    return left, right


def _refuse_tables(location: Location | None, conf: Mapping[str, str]) -> None:
    """Refuse a table's name where no catalog is set, since the embedded Spark forgets its tables when it ends."""
    if location is None or location.kind != "delta" or is_path(location.place):
        return
    if not any("catalog" in name or "hive" in name or "metastore" in name for name in conf):
        msg = (
            f"{location}: that is a table's name, and --conf sets no catalog; "
            f"write a path, such as delta:./{location.place}"
        )
        raise ConfigurationError(msg)
