"""The options and the help of ``cojoin diff``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.cli import typed_values
from cojoin.cli.jobs import parse_job

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

__all__ = ["DIFF_ABOUT", "DIFF_EXAMPLES", "add_diff"]

DIFF_ABOUT = """\
Runs two versions of a join or function over the same history, and shows the rows in
which they differ: which rows, which columns, and why, for some of them."""

DIFF_EXAMPLES = """\
jobs:
  MODULE:NAME or FILE.py:NAME names a join in Python, such as the result of asof_join() or
  process(), or a function that returns one. A function that takes an argument gets a Spark
  session. Both jobs read the same inputs: rows in memory, static DataFrames, Delta tables,
  or Kafka topics with to=. The modules beside a file are loaded for each job anew.

examples:
  The version in production with that of a branch:
    cojoin diff ../main/enrich.py:enriched enrich.py:enriched

  Two functions of one module; the rows of a function are told apart by a column:
    cojoin diff jobs:scores jobs:new_scores --keys trade_id --examples 3

Exits with 0 if there is no difference; with 1 if there is one; with 2 for an error that you
can correct; with 3 for an unexpected error.
"""


def add_diff(parser: argparse.ArgumentParser, add_spark: Callable[[Any], None]) -> None:
    """Add the options.

    Args:
        parser: The parser of the command.
        add_spark: Adds the options of Spark to a group.
    """
    for name, about in (("a", "the first version, usually the one in production"), ("b", "the second version")):
        parser.add_argument(name, type=typed_values.reader(parse_job), metavar=f"JOB_{name.upper()}", help=about)
    parser.add_argument(
        "--output",
        default="all",
        metavar="NAME",
        help="compare one output: main, rejected, or a side output's tag id (default: all of them)",
    )
    parser.add_argument(
        "--keys",
        type=typed_values.names,
        metavar="COLUMNS",
        help="the columns of the output that identify a row, separated by commas (default: for joins the left input's)",
    )
    parser.add_argument(
        "--columns",
        type=typed_values.names,
        metavar="COLUMNS",
        help="compare only these columns, besides those of --keys (default: all)",
    )
    parser.add_argument(
        "--examples",
        type=typed_values.count,
        default=10,
        metavar="N",
        help="how many rows of each output to explain (default: 10)",
    )
    parser.add_argument(
        "--write",
        type=typed_values.path,
        metavar="PATH",
        help="write all rows that differ as Parquet files into this directory, which must be empty or new",
    )
    add_spark(parser.add_argument_group("Spark, for jobs that take a session"))
