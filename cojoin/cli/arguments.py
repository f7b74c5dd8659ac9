"""The arguments of the command line: parsed, checked together, and completed before Spark starts.

``argparse`` parses each option by itself (``options``), and the commands receive its namespace. What depends on several
options of ``cojoin run`` is checked here and added to the namespace.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cojoin.cli.options import build_parser
from cojoin.errors import ConfigurationError
from cojoin.spark.query.triggers import Trigger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.spark.sources.secrets import Secrets

__all__ = ["Arguments", "parse_arguments"]

_START = ("checkpoint", "checkpoint_interval", "retained_checkpoints", "cut_back_output", "allow_data_loss", "evolve")
"""The options that are arguments of ``Joined.start`` as they are."""


class Arguments(argparse.Namespace):
    """The options of a command by their names; the ``repr`` shows only the command, since options may hold secrets."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(command={self.command!r})"


def parse_arguments(words: Sequence[str], secrets: Secrets) -> Arguments:
    """Parse the words of the command line; an error in them ends the process with the exit code 2.

    Returns:
        The options of the command by their names (``cojoin run --help`` and so on describe them). For ``run`` it also
        has ``start``, arguments of ``Joined.start``: all but the sinks.
    """
    parser, run = build_parser(secrets)
    typed = parser.parse_args(words, Arguments())
    for pairs in ("conf", "settings"):
        if pairs in typed:
            setattr(typed, pairs, dict(getattr(typed, pairs)))
    if typed.command == "run":
        try:
            _complete(typed)
        except ConfigurationError as error:
            run.error(str(error))
    return typed


def _complete(typed: Arguments) -> None:
    for output in (typed.output, typed.rejected):
        if output is not None:
            output.check_place(typed.conf)
    given = {"--at": typed.at, "--cut-back-output": typed.cut_back_output, "--allow-data-loss": typed.allow_data_loss}
    for option, value in given.items():
        # Batch 0 is a valid value.
        if typed.restore_from is None and value is not None and value is not False:
            msg = f"{option} needs --restore-from, which is missing"
            raise ConfigurationError(msg)
    typed.start = {name: vars(typed)[name] for name in _START}
    typed.start |= {"trigger": _trigger(typed), "name": typed.name or typed.job[1], "restore_from": None}
    if typed.restore_from is not None:
        # Imported here so that commands without Spark need not wait for its import.
        from cojoin.checkpoints.checkpoint import Checkpoint  # noqa: PLC0415

        typed.start["restore_from"] = Checkpoint(typed.restore_from, typed.at)


def _trigger(typed: Arguments) -> Trigger:
    if typed.every is not None:
        return Trigger.processing_time(typed.every)
    then = None if typed.then_live is None else Trigger.processing_time(typed.then_live)
    return Trigger.available_now(drain=typed.drain, then=then)
