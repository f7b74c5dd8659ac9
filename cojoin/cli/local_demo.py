"""``cojoin demo --local``: the demo's day, joined in this process, without Spark and Java."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cojoin.api.connect import connect
from cojoin.cli import run_report
from cojoin.cli.day import DAY, OUT_OF_ORDERNESS, make_day
from cojoin.cli.demo_result import telling_rows, verify
from cojoin.cli.run_report import say, tell
from cojoin.engine.input import Input
from cojoin.errors import ConfigurationError, EnvironmentSetupError
from cojoin.installed_packages import check_pandas

if TYPE_CHECKING:
    from cojoin.cli.arguments import Arguments

__all__ = ["run_local_demo"]


def run_local_demo(arguments: Arguments) -> int:
    """Run the demo, and return the exit code: 1 if the result differs from that of pandas, where it is installed.

    Raises:
        ConfigurationError: An option is about files, of which this demo writes none.
    """
    if arguments.directory is not None or arguments.keep or arguments.log is not None:
        msg = "--local writes no files; leave out --directory, --keep and --log, or leave out --local"
        raise ConfigurationError(msg)
    tell("A day of trades: each is joined with the customer record in force at its event time, in this process.")
    day = make_day(arguments.rows, arguments.seed)
    tell(
        f"Made {day.trades.num_rows:,} trades and {day.customers.num_rows:,} versions of {day.customer_count:,} "
        f"customers: {DAY:%Y-%m-%d}, out of order by up to {OUT_OF_ORDERNESS}."
    )
    started = time.monotonic()
    columns: dict[str, Any] = {"key": "customer_id", "event_time": "event_time"}
    pair = connect(Input(day.trades, **columns, name="trades"), Input(day.customers, **columns, name="customers"))
    joined = pair.asof_join()
    result = joined.run()
    seconds = time.monotonic() - started
    say()
    say(run_report.counts(result.report))
    tell(run_report.conservation(result.report))
    shown = telling_rows(result.output)
    if shown.num_rows:
        say(f"\nOf {result.output.num_rows:,} joined rows, {shown.num_rows} of customer {shown['customer_id'][0]}:\n")
        say(run_report.rows(shown))
    say()
    try:
        check_pandas("The comparison with pandas' merge_asof")
        is_equal = verify(joined.plan, day, result.output, result.report.watermark).is_equal
    except EnvironmentSetupError as missing:
        tell(f"Not compared. {missing}")
        is_equal = True
    tell(f"The join took {seconds:.2f} s, without Spark. The same join on streams: cojoin demo.")
    return 0 if is_equal else 1
