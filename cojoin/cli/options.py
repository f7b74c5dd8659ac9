"""The parser of the command line, with its help texts.

``kafka_options`` has the options for Kafka topics, ``checkpoint_options`` the parsers of ``cojoin checkpoints``.
"""

from __future__ import annotations

import argparse
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cojoin import __version__
from cojoin.cli import typed_values
from cojoin.cli.checkpoint_options import add_checkpoints, add_restore_options
from cojoin.cli.diff_options import DIFF_ABOUT, DIFF_EXAMPLES, add_diff
from cojoin.cli.hints import in_options
from cojoin.cli.kafka_options import (
    REPLAY_ABOUT,
    REPLAY_EXAMPLES,
    REPLAY_USAGE,
    add_for_both,
    add_kafka_options,
    add_then_live,
)
from cojoin.cli.typed_locations import Location
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.spark.sources.secrets import Secrets

__all__ = ["build_parser", "read_words"]

_ABOUT = "Deterministic event-time joins of two keyed streams on Spark."

_DEMO_ABOUT = """\
Makes a day of trades and of changes to customers' records as files, out of order,
joins each trade with the record in force at its event time on an embedded Spark,
writes a Delta table, and compares it with pandas' merge_asof. Needs Java 17 or later.
With --local it joins them in this process instead, without Spark and Java.
Exits with 0 if the two are equal, with 1 if they differ."""

_DEMO_EXAMPLES = """\
examples:
  cojoin demo
  cojoin demo --local
  cojoin demo --rows 2000000 --directory ./cojoin-demo
"""

_RUN_USAGE = """\
cojoin run --left KIND:PLACE --right KIND:PLACE --key COLUMNS --event-time COLUMN
                  --output KIND:PATH --checkpoint PATH [further options]"""

_RUN_ABOUT = """\
Joins each row of the left input with the row of the right input in force at its
event time: the newest of the same key that is not later. Runs on an embedded Spark over
the rows that exist now, and pauses: the same command continues from the checkpoint."""

_RUN_EXAMPLES = f"""\
inputs:
  kafka:HOST:PORT[,HOST:PORT]/TOPIC[,TOPIC]   records; JSON values need a schema
  'kafka:HOST:PORT/^PATTERN'                  all topics whose names match, also later ones
  delta:PATH                                  a Delta table
  parquet:FOLDER  orc:FOLDER                  files that contain their schema
  json:FOLDER  csv:FOLDER                     files that need a schema
  --left-schema and --right-schema take a schema as Spark DDL, such as
  'customer_id long, event_time timestamp, tier string'.

examples:
  All rows of two folders of files, checked against pandas:
    cojoin run --left parquet:/lake/trades --right parquet:/lake/customers \\
      --key customer_id --event-time event_time --delay '5 seconds' \\
      --output delta:/lake/enriched --checkpoint /lake/_cojoin/enriched --drain --verify

  A Delta table with a Kafka topic, until Ctrl-C, one batch every 10 seconds:
    cojoin run --left delta:/lake/trades --right kafka:localhost:9092/customers \\
      --right-schema 'id long, changed_at timestamp, tier string' \\
      --left-key customer_id --right-key id \\
      --left-event-time event_time --right-event-time changed_at --delay '5 seconds' \\
      --output delta:/lake/enriched --checkpoint /lake/_cojoin/enriched --every '10 seconds'

  Arguments from a file, quoted as in a shell, which keeps a password off the command line:
    cojoin run @enriched.args

Option values that may be secret are never printed. Exits with 0; with 1 if --verify finds
a difference; with 2 for an error that you can correct; with 3 for an unexpected error;
with 130 after Ctrl-C.
(cojoin {__version__})
"""


def read_words(argv: Sequence[str]) -> list[str]:
    """Return the words of the command line, with each ``@file`` replaced by the words in the file.

    Raises:
        ConfigurationError: A file can't be read.
    """
    words: list[str] = []
    for word in argv:
        if not word.startswith("@"):
            words.append(word)
            continue
        try:
            words += shlex.split(Path(word[1:]).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            msg = f"{word}: the file of arguments can't be read: {reason}"
            raise ConfigurationError(msg) from error
    return words


def build_parser(secrets: Secrets) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser, and by name the parsers of the commands whose options are checked further."""
    _Parser.secrets = secrets
    parser = _Parser(prog="cojoin", description=_ABOUT, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"cojoin {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    demo = _command(commands, "demo", "join a day of made-up trades, and check the result", _DEMO_ABOUT, _DEMO_EXAMPLES)
    _add_demo(demo)
    run = _command(commands, "run", "join two sources of your own", _RUN_ABOUT, _RUN_EXAMPLES)
    run.usage = _RUN_USAGE
    _add_run(run)
    replay = _command(commands, "replay", "join the history of Kafka topics", REPLAY_ABOUT, REPLAY_EXAMPLES)
    replay.usage = REPLAY_USAGE
    _add_run(replay, replays=True)
    add_diff(_command(commands, "diff", "compare two versions of a join", DIFF_ABOUT, DIFF_EXAMPLES), _add_spark)
    restore = add_checkpoints(commands, _command, partial(_add_run, restores=True), _add_spark)
    return parser, {"run": run, "replay": replay, "checkpoints": restore}


class _Parser(argparse.ArgumentParser):
    """A parser whose error messages name options, and are masked, since argparse quotes words that it does not know."""

    secrets: Secrets

    def error(self, message: str) -> NoReturn:
        self.exit(2, self.secrets.mask(f"{self.prog}: {in_options(message)}\n`{self.prog} --help` shows the usage.\n"))


def _command(commands: Any, name: str, summary: str, about: str, examples: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=about,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--verbose", action="store_true", help="show a traceback with an error")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write Spark's log to this file")
    return parser


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows", type=typed_values.positive, default=200_000, metavar="N", help="how many trades (default: 200000)"
    )
    parser.add_argument(
        "--seed", type=typed_values.count, default=7, metavar="N", help="the seed of the random rows (default: 7)"
    )
    parser.add_argument(
        "--directory", metavar="PATH", help="write the files here and keep them (default: a temporary folder)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder, and print its path")
    parser.add_argument("--local", action="store_true", help="join in this process, without Spark; writes no files")


def _add_run(parser: argparse.ArgumentParser, *, restores: bool = False, replays: bool = False) -> None:
    inputs = parser.add_argument_group("inputs (see below)")
    for side in ("left", "right"):
        inputs.add_argument(f"--{side}", type=typed_values.reader(Location.parse), required=True, metavar="KIND:PLACE")
    add_for_both(inputs, "key", "COLUMNS", "the key's column, or several separated by commas", typed_values.names)
    add_for_both(inputs, "event-time", "COLUMN", "the column with the event time, a timestamp")
    add_for_both(
        inputs, "delay", "DURATION", "by how much rows may be out of order, such as '5 seconds' (default: not at all)"
    )
    add_for_both(
        inputs,
        "idleness",
        "DURATION",
        "a source partition without rows for this long no longer holds event time back, such as '1 minute', while "
        "another one has rows; for when none has any, see --when-all-idle (default: no such limit)",
    )
    for side in ("left", "right"):
        add = inputs.add_argument
        add(
            f"--{side}-name",
            metavar="NAME",
            help="the input's name in messages and columns (default: that of the topic, table or folder)",
        )
        add(
            f"--{side}-schema",
            type=typed_values.reader(typed_values.schema),
            metavar="DDL",
            help="the input's columns, for a source that does not know them",
        )
        add(
            f"--{side}-option",
            type=typed_values.pair,
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="an option of Spark's source, or of librdkafka for a topic, such as security.protocol; repeatable",
        )
        add(
            f"--{side}-partition",
            type=typed_values.names,
            default=(),
            metavar="COLUMNS",
            help="the columns that identify the source partition of a row",
        )
        add(
            f"--{side}-sequence",
            type=typed_values.names,
            default=(),
            metavar="COLUMNS",
            help="the columns that order rows at the source; they break ties of event time",
        )
    inputs.add_argument(
        "--max-ahead",
        default="1 day",
        metavar="DURATION",
        help="reject rows whose event time is further ahead of the clock; 'none' rejects none (default: 1 day)",
    )
    inputs.add_argument(
        "--when-all-idle",
        choices=("hold", "max"),
        default="hold",
        help="what event time does once all source partitions have been without rows for --idleness: it stays, and the "
        "last rows wait for new ones (hold, default), or it advances to the newest rows, less --delay (max)",
    )
    add_kafka_options(parser, replays=replays)

    join = parser.add_argument_group("the join")
    join.add_argument(
        "--how",
        choices=("left", "inner"),
        default="left",
        help="what happens to left rows without a match: kept with nulls (left, default), or dropped (inner)",
    )
    join.add_argument(
        "--tolerance",
        type=typed_values.reader(typed_values.duration),
        metavar="DURATION",
        help="the largest age of a match, such as '1 hour' (default: any age)",
    )
    join.add_argument(
        "--no-exact-matches", action="store_true", help="a right row of the same microsecond does not match"
    )
    join.add_argument(
        "--suffixes",
        type=typed_values.suffixes,
        metavar="LEFT,RIGHT",
        help="suffixes that distinguish equal column names, such as ',_customer'",
    )
    join.add_argument(
        "--key-groups",
        type=typed_values.key_groups,
        default=8,
        metavar="N",
        help="the number of units of parallel work and state; it can only be changed by restoring the checkpoint "
        "(default: 8)",
    )

    outputs = parser.add_argument_group("outputs")
    outputs.add_argument(
        "--output",
        type=typed_values.reader(typed_values.sink),
        required=True,
        metavar="KIND:PATH",
        help="delta:PATH, parquet:PATH, or kafka:HOST:PORT/TOPIC for JSON records, exactly once",
    )
    outputs.add_argument(
        "--output-key",
        type=typed_values.names,
        metavar="COLUMNS",
        help="the columns of the key of the records that a topic as --output gets (default: the left input's key)",
    )
    outputs.add_argument(
        "--output-option",
        type=typed_values.pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of librdkafka for a topic as --output or --rejected, such as security.protocol; repeatable",
    )
    outputs.add_argument(
        "--rejected",
        type=typed_values.reader(typed_values.sink),
        metavar="KIND:PATH",
        help="where rejected rows go (default: the Delta table 'rejected' in the checkpoint)",
    )
    outputs.add_argument(
        "--checkpoint",
        type=typed_values.path,
        required=True,
        metavar="PATH",
        help="the directory of this query's checkpoint; keep it between runs",
    )
    outputs.add_argument(
        "--show", type=typed_values.count, default=5, metavar="N", help="how many joined rows to show (default: 5)"
    )
    outputs.add_argument(
        "--verify",
        action="store_true",
        help="compare the output with pandas' merge_asof; reads both sources whole into memory",
    )

    outputs.add_argument(
        "--checkpoint-interval",
        type=typed_values.reader(typed_values.interval),
        default="10 minutes",
        metavar="HOW_OFTEN",
        help="how often to take a snapshot of the state: a duration, a number of batches, or 'none' "
        "(default: 10 minutes)",
    )
    outputs.add_argument(
        "--retained-checkpoints",
        type=typed_values.positive,
        default=3,
        metavar="N",
        help="how many snapshots are kept, besides savepoints (default: 3)",
    )
    outputs.add_argument(
        "--evolve",
        action="store_true",
        help="take up columns that were added to the inputs since the checkpoint's last run; a Delta table gets them "
        "with --conf spark.databricks.delta.schema.autoMerge.enabled=true",
    )
    restoring = parser.add_argument_group("beginning with another query's state")
    add_restore_options(restoring, with_origin=not restores)

    running = parser.add_argument_group("running")
    ends = running.add_mutually_exclusive_group()
    ends.add_argument(
        "--drain",
        action="store_true",
        help="finish both inputs at the end of this run: all waiting rows are written, and the query can't be started "
        "again",
    )
    if replays:
        add_then_live(ends)
    else:
        ends.add_argument(
            "--every",
            type=typed_values.reader(typed_values.duration),
            metavar="DURATION",
            help="run until Ctrl-C, with one batch per interval, such as '10 seconds'",
        )
    _add_spark(running)


def _add_spark(running: Any) -> None:
    running.add_argument(
        "--master",
        metavar="URL",
        help="Spark's master (default: that of Spark's own settings, or else all cores of this machine)",
    )
    running.add_argument(
        "--conf",
        type=typed_values.pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark; repeatable",
    )
