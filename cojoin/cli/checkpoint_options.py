"""The parsers of ``cojoin checkpoints``, one for each of its commands."""

from __future__ import annotations

import argparse
import textwrap
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cojoin.cli import typed_values

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["add_checkpoints", "add_restore_options", "read_moment"]

_WIDTH = 95

_ABOUT = """\
Shows and keeps the checkpoints of a query: the snapshots that can be restored, the contents
of the state, the progress of the watermarks, and what happened to a row; and takes a
person's key out of the state. Reading does not disturb a running query."""

_EXAMPLES = """\
examples:
  cojoin checkpoints list /lake/_cojoin/enriched
  cojoin checkpoints state /lake/_cojoin/enriched --key 17
  cojoin checkpoints explain /lake/_cojoin/enriched --input trades --row trade_id=4711
  cojoin checkpoints erase /lake/_cojoin/enriched --key 17 --into /lake/_cojoin/without_17
  cojoin checkpoints restore /lake/_cojoin/enriched --at 12 @enriched.args --key-groups 32 \\
    --checkpoint /lake/_cojoin/again --output delta:/lake/enriched_again

`cojoin checkpoints COMMAND --help` shows a command's options. Exits with 0; with 2 for an
error that you can correct; with 3 for an unexpected error; with 130 after Ctrl-C."""

_RESTORE_ABOUT = """\
Begins a new query with the state in a snapshot of an old one; its sources continue at the
offsets of that snapshot. The same as `cojoin run ... --restore-from OLD`, with all options of
`cojoin run`."""

_RESTORE_EXAMPLES = """\
examples:
  cojoin checkpoints restore /lake/_cojoin/enriched --checkpoint /lake/_cojoin/again \\
    --left parquet:/lake/trades --right parquet:/lake/customers --key customer_id \\
    --event-time event_time --output delta:/lake/enriched_again --key-groups 32
"""


def add_checkpoints(
    commands: Any,
    command: Callable[..., argparse.ArgumentParser],
    add_run: Callable[[argparse.ArgumentParser], None],
    add_spark: Callable[[argparse.ArgumentParser], None],
) -> argparse.ArgumentParser:
    """Add ``checkpoints`` with its commands.

    Args:
        commands: The commands of ``cojoin``, to which ``checkpoints`` is added.
        command: A function that adds a command with its help.
        add_run: A function that adds the options of ``cojoin run``.
        add_spark: A function that adds the options of Spark.

    Returns:
        The parser of ``checkpoints restore``, whose options are checked further.
    """
    parser = commands.add_parser(
        "checkpoints",
        help="inspect, keep, restore and remove the snapshots of a query",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    below = parser.add_subparsers(dest="action", metavar="COMMAND", required=True)

    def add(name: str, summary: str) -> argparse.ArgumentParser:
        about = textwrap.fill(f"{summary[0].upper()}{summary[1:]}.", _WIDTH)
        added = command(below, name, summary, about, "")
        added.add_argument("path", type=typed_values.path, metavar="PATH", help="the query's checkpoint directory")
        added.add_argument("--json", action="store_true", help="print JSON, for a script")
        add_spark(added)
        return added

    add("list", "list the snapshots that can be restored")
    _at(
        add(
            "show",
            "show one snapshot: source positions, outputs' versions, sizes, and the run that holds the checkpoint",
        )
    )
    _add_state(add("state", "show the contents of the state: buffered rows, versions, states, timers"))
    progress = add("progress", "show the watermarks and counts of the last batches")
    progress.add_argument(
        "--limit", type=typed_values.positive, default=20, metavar="N", help="how many batches (default: 20)"
    )
    _add_explain(add("explain", "explain what happened to a row, or what a row or a key waits for"))
    add(
        "savepoint",
        "take a snapshot of the state after the last finished batch, kept until it is removed; the query may be "
        "running",
    )
    restore = command(
        below, "restore", "begin a new query with the state of an old one", _RESTORE_ABOUT, _RESTORE_EXAMPLES
    )
    restore.add_argument("restore_from", metavar="OLD", help="the old query's checkpoint directory")
    add_run(restore)
    _add_clean(add("clean", "remove snapshots with their files"))
    _add_erase(
        add(
            "erase",
            "take keys out of the state of a stopped query: write a checkpoint without them, with which the query goes "
            "on (restore), and list where else their rows remain, with what removes them",
        )
    )
    return restore


def add_restore_options(outputs: Any, *, with_origin: bool) -> None:
    """Add the options of a restoration to those of a run.

    Args:
        outputs: The group of options.
        with_origin: Whether to add an option for the old checkpoint.
    """
    if with_origin:
        outputs.add_argument(
            "--restore-from", metavar="PATH", help="begin with the state in this checkpoint of another query"
        )
    outputs.add_argument(
        "--at",
        type=read_moment,
        metavar="MOMENT",
        help="which of its snapshots: a batch's number, or a time such as 2026-01-15T09:00Z for the last one before it "
        "(default: the newest)",
    )
    outputs.add_argument(
        "--cut-back-output",
        action="store_true",
        help="continue in the old query's output table, and roll back what was written after the snapshot",
    )
    outputs.add_argument("--allow-data-loss", action="store_true", help="skip records that the sources no longer have")


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


def _at(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--at",
        type=read_moment,
        metavar="MOMENT",
        help="a batch's number, or a time such as 2026-01-15T09:00Z for the last one before it (default: the newest)",
    )


def _add_state(parser: argparse.ArgumentParser) -> None:
    _at(parser)
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
    parser.add_argument(
        "--limit", type=typed_values.positive, default=20, metavar="N", help="how many rows (default: 20)"
    )


def _add_explain(parser: argparse.ArgumentParser) -> None:
    _at(parser)
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
    which.add_argument("--keep", type=typed_values.positive, metavar="N", help="keep the N newest, and all savepoints")
    which.add_argument("--batch", type=typed_values.count, metavar="BATCH", help="remove the snapshot of this batch")
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
    parser.add_argument("--into", type=typed_values.path, required=True, metavar="NEW", help="an empty directory")
    parser.add_argument(
        "--no-counts", action="store_true", help="do not count the keys' rows in the outputs, which reads these tables"
    )


def _column_value(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    return name, value if equals else None
