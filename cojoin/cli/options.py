"""The options of the command line: the parser with its help texts, checks of several options together, and secrets.

``parse_arguments`` checks the options of ``cojoin run`` that depend on each other before Spark starts. An invalid value
raises argparse's error, which names the option.

Spark or the parser may quote an option's value (``--conf spark.hadoop.fs.s3a.secret.key=...``) in an error. A value is
treated as secret if its name suggests it, and, with an option that takes settings of Spark, also if it is long.
Misspelled options are recognised, too, as far as their names contain "opt" or "conf".
"""

from __future__ import annotations

import argparse
import re
import shlex
import textwrap
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cojoin import __version__
from cojoin.cli.jobs import Output, parse_job
from cojoin.engine.values.arguments import milliseconds
from cojoin.errors import ConfigurationError
from cojoin.spark.query.triggers import Trigger
from cojoin.spark.sources.options import Secrets, logins
from cojoin.storage.locations import may_be_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_WIDTH = 95

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

_JOBS = """\
jobs:
  FILE.py:NAME or MODULE:NAME names a join in Python: the result of asof_join(), process() or
  another method of connect(), or a function that returns one. The function's argument without
  a default gets the Spark session; --set NAME=VALUE sets another one to a text. The modules
  in a file's folder are loaded with it.
"""

_RUN_ABOUT = """\
Runs the join of a job file on an embedded Spark over the rows that exist now, and pauses: the
same command continues from the checkpoint. `cojoin init` writes a job file to begin with."""

_RUN_EXAMPLES = f"""\
{_JOBS}
outputs:
  delta:PATH      a Delta table, exactly once
  parquet:FOLDER  a folder of parquet files
  NAME            a sink in the job's file, such as a topic, exactly once, with its login:
                  NAME = cojoin.sinks.kafka("host:9092", "enriched", key="customer_id")

examples:
  All rows that exist, then the end; without --drain it pauses, and continues with the next run:
    cojoin run job.py:enriched --output delta:/lake/enriched \\
      --checkpoint /lake/_cojoin/enriched --drain

  The history of topics, then new records until Ctrl-C, one batch every 10 seconds:
    cojoin run job.py:enriched --output delta:/lake/enriched \\
      --checkpoint /lake/_cojoin/enriched --then-live '10 seconds'

  Three weeks of them, where the job's function has the arguments since and to:
    cojoin run job.py:enriched --set since=2026-01-05 --set to=2026-01-26 --drain \\
      --output delta:/lake/january --checkpoint /lake/_cojoin/january

  A new query with the state of an old one after its batch 12, in other key groups if the job
  has them:
    cojoin run job.py:enriched --restore-from /lake/_cojoin/enriched --at 12 \\
      --output delta:/lake/enriched_again --checkpoint /lake/_cojoin/again

  Options from a file, quoted as in a shell, which keeps a password off the command line:
    cojoin run job.py:enriched @enriched.args

Messages name the arguments of Joined.start; the options have the same names, such as
--cut-back-output for cut_back_output=True, and --restore-from PATH --at 12 for
restore_from=cojoin.Snapshot('PATH', at=12). Option values that may be secret are never
printed. Exits with 0; with 2 for an error that you can correct; with 3
for an unexpected error; with 130 after Ctrl-C.
(cojoin {__version__})
"""

_INIT_ABOUT = """\
Writes a job file to begin with: a join of trades with the customer record in force, commented,
for `cojoin run FILE:enriched`. Its inputs are the files of `cojoin demo --directory
./cojoin-demo`, Delta tables, or Kafka topics."""

_INIT_EXAMPLES = """\
examples:
  Files, as the demo makes them, joined into a Delta table:
    cojoin demo --directory ./cojoin-demo
    cojoin init job.py
    cojoin run job.py:enriched --output delta:./enriched --checkpoint ./_cojoin/enriched

  Two topics:
    cojoin init --kafka topics.py
"""

_DIFF_ABOUT = """\
Runs two versions of a join or function over the same history, and shows the rows in
which they differ: which rows, which columns, and why, for some of them."""

_DIFF_EXAMPLES = f"""\
{_JOBS}
  Both jobs read the same inputs: rows in memory, static DataFrames, Delta tables, or Kafka
  topics with to=.

examples:
  The version in production with that of a branch:
    cojoin diff ../main/enrich.py:enriched enrich.py:enriched

  Two functions of one module, where the column trade_id identifies a row:
    cojoin diff jobs:scores jobs:new_scores --keys trade_id --examples 3

Exits with 0 if the versions do not differ; with 1 if they do; with 2 for an error that you
can correct; with 3 for an unexpected error.
"""

_CHECKPOINTS_ABOUT = """\
Shows and keeps the checkpoints of a query: the snapshots that can be restored, the contents
of the state, the progress of the watermarks, and what happened to a row; and takes a
person's key out of the state. Reading does not disturb a running query."""

_CHECKPOINTS_EXAMPLES = """\
examples:
  cojoin checkpoints list /lake/_cojoin/enriched
  cojoin checkpoints state /lake/_cojoin/enriched --key 17
  cojoin checkpoints explain /lake/_cojoin/enriched --input trades --row trade_id=4711
  cojoin checkpoints erase /lake/_cojoin/enriched --key 17 --into /lake/_cojoin/without_17

`cojoin run JOB --restore-from PATH --at 12 ...` begins a new query with a snapshot's state.

`cojoin checkpoints COMMAND --help` shows a command's options. Exits with 0; with 2 for an
error that you can correct; with 3 for an unexpected error; with 130 after Ctrl-C."""


def read_words(argv: Sequence[str]) -> list[str]:
    """Return the words of the command line, with each ``@file`` replaced by the words in the file."""
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


def build_parser(secrets: Secrets) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Return the parser, and that of ``cojoin run``, whose options are checked further."""
    _Parser.secrets = secrets
    parser = _Parser(prog="cojoin", description=_ABOUT, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"cojoin {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    demo = _command(commands, "demo", "join a day of made-up trades, and check the result", _DEMO_ABOUT, _DEMO_EXAMPLES)
    _add_demo(demo)
    _add_init(_command(commands, "init", "write a job file to begin with", _INIT_ABOUT, _INIT_EXAMPLES))
    run = _command(commands, "run", "run the join of a job file", _RUN_ABOUT, _RUN_EXAMPLES)
    run.usage = "cojoin run JOB --output OUTPUT --checkpoint PATH [further options]"
    _add_run(run)
    _add_diff(_command(commands, "diff", "compare two versions of a join", _DIFF_ABOUT, _DIFF_EXAMPLES))
    _add_checkpoints(commands)
    return parser, run


class _Parser(argparse.ArgumentParser):
    """A parser whose error messages are masked, since argparse quotes words that it does not know."""

    secrets: Secrets

    def error(self, message: str) -> NoReturn:
        self.exit(2, self.secrets.mask(f"{self.prog}: {message}\n`{self.prog} --help` shows the usage.\n"))


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
    return parser


def _add_log(group: Any) -> None:
    group.add_argument("--log", type=Path, metavar="FILE", help="write Spark's log to this file")


def _add_demo(parser: argparse.ArgumentParser) -> None:
    _add_log(parser)
    parser.add_argument(
        "--rows", type=_positive, default=200_000, metavar="N", help="how many trades (default: 200000)"
    )
    parser.add_argument("--seed", type=_count, default=7, metavar="N", help="the seed of the random rows (default: 7)")
    parser.add_argument(
        "--directory", metavar="PATH", help="write the files to this folder and keep them (default: a temporary one)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder, and print its path")
    parser.add_argument("--local", action="store_true", help="join in this process, without Spark; writes no files")


def _add_init(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_mutually_exclusive_group()
    for kind, about in (("files", "folders of files (default)"), ("delta", "Delta tables"), ("kafka", "Kafka topics")):
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=f"a join of {about}")
    parser.set_defaults(kind="files")
    parser.add_argument("file", nargs="?", default="job.py", metavar="FILE", help="a new file (default: job.py)")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", type=_reader(parse_job), metavar="JOB", help="FILE.py:NAME or MODULE:NAME")
    _add_set(parser)
    add = parser.add_argument
    add(
        "--output",
        type=_reader(Output.parse),
        required=True,
        metavar="OUTPUT",
        help="delta:PATH, parquet:FOLDER, or the name of a sink in the job's file",
    )
    add(
        "--rejected",
        type=_reader(Output.parse),
        metavar="OUTPUT",
        help="where rejected rows go (default: the Delta table 'rejected' in the checkpoint)",
    )
    add(
        "--checkpoint",
        type=_path,
        required=True,
        metavar="PATH",
        help="the directory of this query's checkpoint; keep it between runs",
    )
    add(
        "--checkpoint-interval",
        type=_reader(_interval),
        default="10 minutes",
        metavar="HOW_OFTEN",
        help="how often to take a snapshot of the state: a duration, a number of batches, or 'none' "
        "(default: 10 minutes)",
    )
    add(
        "--retained-checkpoints",
        type=_positive,
        default=3,
        metavar="N",
        help="how many snapshots are kept, besides savepoints (default: 3)",
    )
    add("--name", metavar="NAME", help="the query's name in Spark's UI and in metrics (default: that of the job)")
    add(
        "--evolve",
        action="store_true",
        help="take up columns that were added to the inputs since the checkpoint's last run",
    )
    _add_trigger(parser.add_argument_group("when it ends (default: it pauses after the rows that exist now)"))
    _add_restore(parser.add_argument_group("beginning with another query's state"))
    _add_spark(parser.add_argument_group("Spark"))


def _add_trigger(group: Any) -> None:
    ends = group.add_mutually_exclusive_group()
    ends.add_argument(
        "--drain",
        action="store_true",
        help="finish both inputs at the end of this run: all waiting rows are written, and the query can't be started "
        "again",
    )
    ends.add_argument(
        "--then-live",
        type=_reader(_duration),
        metavar="DURATION",
        help="after the rows that exist now, continue with new rows until Ctrl-C, with one batch per interval, such as "
        "'10 seconds'",
    )
    ends.add_argument(
        "--every",
        type=_reader(_duration),
        metavar="DURATION",
        help="run until Ctrl-C, with one batch per interval from the start",
    )


def _add_restore(group: Any) -> None:
    group.add_argument("--restore-from", metavar="PATH", help="the checkpoint of the other query")
    _add_at(group, "which of its snapshots: ")
    group.add_argument(
        "--cut-back-output",
        action="store_true",
        help="continue in the other query's output table, and roll back what was written after the snapshot",
    )
    group.add_argument("--allow-data-loss", action="store_true", help="skip records that the sources no longer have")


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        dest="settings",
        type=_pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of a job's function, as a text; repeatable",
    )


def _add_spark(group: Any) -> None:
    _add_log(group)
    group.add_argument(
        "--master",
        metavar="URL",
        help="Spark's master (default: that of Spark's own settings, or else all cores of this machine)",
    )
    group.add_argument(
        "--conf", type=_pair, action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark; repeatable"
    )


def _add_diff(parser: argparse.ArgumentParser) -> None:
    for name, about in (("a", "the first version, usually the one in production"), ("b", "the second version")):
        parser.add_argument(name, type=_reader(parse_job), metavar=f"JOB_{name.upper()}", help=about)
    parser.add_argument(
        "--output",
        default="all",
        metavar="NAME",
        help="compare one output: output, rejected, or a side output's tag id (default: all of them)",
    )
    parser.add_argument(
        "--keys",
        type=_names,
        metavar="COLUMNS",
        help="the columns of the output that identify a row, separated by commas (default: for joins the left input's)",
    )
    parser.add_argument(
        "--columns",
        type=_names,
        metavar="COLUMNS",
        help="compare only these columns, besides those of --keys (default: all)",
    )
    parser.add_argument(
        "--examples", type=_count, default=10, metavar="N", help="how many rows of each output to explain (default: 10)"
    )
    parser.add_argument(
        "--write",
        type=_path,
        metavar="PATH",
        help="write all rows that differ as Parquet files into this directory, which must be empty or new",
    )
    _add_set(parser)
    _add_spark(parser.add_argument_group("Spark, for jobs that take a session"))


def _add_checkpoints(commands: Any) -> None:
    parser = commands.add_parser(
        "checkpoints",
        help="inspect, keep and remove the snapshots of a query",
        description=_CHECKPOINTS_ABOUT,
        epilog=_CHECKPOINTS_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    below = parser.add_subparsers(dest="action", metavar="COMMAND", required=True)

    def add(name: str, summary: str) -> argparse.ArgumentParser:
        about = textwrap.fill(f"{summary[0].upper()}{summary[1:]}.", _WIDTH)
        added = _command(below, name, summary, about, "")
        added.add_argument("path", type=_path, metavar="PATH", help="the query's checkpoint directory")
        added.add_argument("--json", action="store_true", help="print JSON, for a script")
        _add_spark(added)
        return added

    add("list", "list the snapshots that can be restored")
    _add_at(
        add(
            "show",
            "show one snapshot: source positions, outputs' versions, sizes, and the run that holds the checkpoint",
        )
    )
    _add_state(add("state", "show the contents of the state: buffered rows, versions, states, timers"))
    progress = add("progress", "show the watermarks and counts of the last batches")
    progress.add_argument("--limit", type=_positive, default=20, metavar="N", help="how many batches (default: 20)")
    _add_explain(add("explain", "explain what happened to a row, or what a row or a key waits for"))
    add(
        "savepoint",
        "take a snapshot of the state after the last finished batch, kept until it is removed; the query may be "
        "running",
    )
    _add_clean(add("clean", "remove snapshots with their files"))
    _add_erase(
        add(
            "erase",
            "take keys out of the state of a stopped query: write a checkpoint without them, with which the query "
            "continues (run --restore-from), and list where else their rows remain, with what removes them",
        )
    )


def read_moment(text: str) -> int | datetime:
    """Read a batch's number, or a time with its time zone."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.removesuffix("Z") + "+00:00" if text.endswith("Z") else text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        msg = f"expected a batch's number, or a time with its zone such as 2026-01-15T09:00:00Z, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return moment


def _add_at(group: Any, about: str = "") -> None:
    which = "a batch's number, or a time such as 2026-01-15T09:00Z for the last one before it (default: the newest)"
    group.add_argument("--at", type=read_moment, metavar="MOMENT", help=about + which)


def _add_state(parser: argparse.ArgumentParser) -> None:
    _add_at(parser)
    parser.add_argument(
        "--key",
        metavar="VALUES",
        help="show everything in the state under this key; values of several columns separated by commas",
    )
    parser.add_argument(
        "--name",
        metavar="TABLE",
        help="show the rows of one part: an input's name, 'versions', 'timers', 'keys' (the largest), or a state's "
        "name",
    )
    parser.add_argument("--limit", type=_positive, default=20, metavar="N", help="how many rows (default: 20)")


def _add_explain(parser: argparse.ArgumentParser) -> None:
    _add_at(parser)
    parser.add_argument("--key", metavar="VALUES", help="the key; values of several columns separated by commas")
    parser.add_argument("--input", metavar="NAME", help="the input of the row")
    parser.add_argument(
        "--row",
        type=_column_value,
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="a column's value in the row; repeatable; without =VALUE it is null",
    )


def _add_clean(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--keep", type=_positive, metavar="N", help="keep the N newest, and all savepoints")
    which.add_argument("--batch", type=_count, metavar="BATCH", help="remove the snapshot of this batch")
    parser.add_argument("--savepoints", action="store_true", help="with --keep: treat savepoints like other snapshots")
    parser.add_argument("--dry-run", action="store_true", help="print what would be removed, and remove nothing")


def _add_erase(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--key",
        action="append",
        required=True,
        metavar="VALUES",
        help="a key to take out; values of several columns separated by commas; repeatable",
    )
    parser.add_argument("--into", type=_path, required=True, metavar="NEW", help="an empty directory")
    parser.add_argument(
        "--no-counts", action="store_true", help="do not count the keys' rows in the outputs, which reads these tables"
    )


def _column_value(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    return name, value if equals else None


def _reader(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser that raises cojoin's errors as argparse's, which name the option."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ConfigurationError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def _duration(text: str) -> str:
    milliseconds(text, "duration")
    return text


def _interval(text: str) -> str | int | None:
    """Read the interval of snapshots: a number of batches, a duration, or None for the word ``none``."""
    if text.isdecimal():
        return _positive(text)
    if text == "none":
        return None
    milliseconds(text, "checkpoint_interval")
    return text


def _names(text: str) -> tuple[str, ...]:
    columns = tuple(name.strip() for name in text.split(",") if name.strip())
    if not columns:
        msg = "expected a column's name, or several separated by commas"
        raise argparse.ArgumentTypeError(msg)
    return columns


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        # The text is not quoted: it may be a password.
        msg = "expected NAME=VALUE"
        raise argparse.ArgumentTypeError(msg)
    return name.strip(), value


def _path(text: str) -> str:
    if not text.strip():
        msg = "expected the path of a directory, got none"
        raise argparse.ArgumentTypeError(msg)
    return text


def _positive(text: str) -> int:
    number = _count(text)
    if number < 1:
        msg = f"expected a whole number of 1 or more, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return number


def _count(text: str) -> int:
    digits = text.replace(",", "").replace("_", "")
    if not digits.isdecimal():
        msg = f"expected a whole number, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(digits)


_START = ("checkpoint", "checkpoint_interval", "retained_checkpoints", "cut_back_output", "allow_data_loss", "evolve")
"""The options that are arguments of ``Joined.start`` as they are."""


class Arguments(argparse.Namespace):
    """The options of a command by their names; the ``repr`` shows only the command, since options may hold secrets."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(command={self.command!r})"


def parse_arguments(words: Sequence[str], secrets: Secrets) -> Arguments:
    """Parse the words of the command line; an error in them ends the process with the exit code 2.

    For ``run`` the result also has ``start``, the arguments of ``Joined.start`` except the sinks.
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
    options = {"--at": typed.at, "--cut-back-output": typed.cut_back_output, "--allow-data-loss": typed.allow_data_loss}
    for option, value in options.items():
        # Batch 0 is a valid value.
        if typed.restore_from is None and value is not None and value is not False:
            msg = f"{option} needs --restore-from, which is missing"
            raise ConfigurationError(msg)
    typed.start = {name: vars(typed)[name] for name in _START}
    typed.start |= {"trigger": _trigger(typed), "name": typed.name or typed.job[1], "restore_from": None}
    if typed.restore_from is not None:
        # Imported here so that commands without Spark need not wait for its import.
        from cojoin.checkpoints.checkpoint import Snapshot  # noqa: PLC0415

        typed.start["restore_from"] = Snapshot(typed.restore_from, typed.at)


def _trigger(typed: Arguments) -> Trigger:
    if typed.every is not None:
        return Trigger.processing_time(typed.every)
    then = None if typed.then_live is None else Trigger.processing_time(typed.then_live)
    return Trigger.available_now(drain=typed.drain, then=then)


_PAIR = re.compile(r"(?P<name>[\w.-]+)=(?P<value>.+)", re.DOTALL)
_OPTION = re.compile(r"--[\w-]*(?:opt|conf)[\w-]*(?:=.*)?", re.DOTALL)
_LONG = 12


def secrets_of(words: Sequence[str]) -> Secrets:
    """Return the values among the words of a command line that must not be shown."""
    secrets: set[str] = set()
    follows_option = False
    for word in words:
        option = _OPTION.fullmatch(word)
        rest = word.partition("=")[2]
        if option is not None:
            secrets |= _values(rest, is_option=True)
        elif follows_option or not word.startswith("-"):
            secrets |= _values(word, is_option=follows_option)
        elif "=" in rest:
            secrets |= _values(rest, is_option=True)
        secrets |= logins(word)
        follows_option = option is not None and "=" not in word
    return Secrets(secrets)


def _values(text: str, *, is_option: bool) -> set[str]:
    """Return the secret in ``name=value``: a value whose name suggests it, or a long value of an option."""
    pair = _PAIR.fullmatch(text)
    if pair is None:
        # Without a name, the whole text was meant as the option's value.
        return {text} if is_option else set()
    value = pair["value"]
    return {value} if may_be_secret(pair["name"]) or (is_option and len(value) >= _LONG) else set()
