"""``cojoin demo``: a day of trades, each joined with the customer record in force at its event time."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cojoin.cli import run_report
from cojoin.cli.day import CUSTOMERS_DDL, DAY, OUT_OF_ORDERNESS, TRADES_DDL, Day, make_day
from cojoin.cli.demo_result import telling_rows, verify
from cojoin.cli.embedded_spark import local_session
from cojoin.cli.run_report import say, tell
from cojoin.cli.waiting import wait_for
from cojoin.delta.table_rows import TableRows
from cojoin.errors import ConfigurationError
from cojoin.storage.local_store import LocalStore

if TYPE_CHECKING:
    from cojoin.api.joined import Joined
    from cojoin.cli.arguments import Arguments
    from cojoin.cli.verification import Verdict

__all__ = ["run_demo"]

_SETTINGS = {
    # A short run gains more from quick compilation than from fast code.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # The tables are written without Delta's jars, so none are fetched.
    "spark.jars.packages": "",
}
_MARK = ".cojoin-demo"


def run_demo(arguments: Arguments) -> int:
    """Run the demo, and return the exit code: 0 if the result equals that of pandas, else 1."""
    started = time.monotonic()
    folder = _folder(arguments)
    kept = arguments.keep or arguments.directory is not None
    try:
        tell("A day of trades: each is joined with the customer record in force at its event time.")
        with local_session(folder, tell, conf=_SETTINGS, log=arguments.log):
            day = make_day(arguments.rows, arguments.seed)
            day.write(folder)
            tell(
                f"Made {day.trades.num_rows:,} trades and {day.customers.num_rows:,} versions of "
                f"{day.customer_count:,} customers: files of {DAY:%Y-%m-%d}, out of order by up to {OUT_OF_ORDERNESS}."
            )
            verdict = _join_and_check(day, folder)
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    if kept:
        say(f"\nThe joined rows are in the Delta table {folder / 'enriched'},")
        say(f"the rejected rows in {folder / 'checkpoint' / 'rejected'}.")
    else:
        say()
        tell("The temporary files were removed; use --keep to keep the Delta table.")
    say(f"Took {time.monotonic() - started:.0f} s.")
    return 0 if verdict.is_equal else 1


def _folder(arguments: Arguments) -> Path:
    """Return a folder for the demo's files alone; the files of an earlier demo are removed."""
    if arguments.directory is None:
        return Path(tempfile.mkdtemp(prefix="cojoin-demo-"))
    folder = Path(arguments.directory).absolute()
    try:
        if folder.exists() and any(folder.iterdir()):
            if not (folder / _MARK).exists():
                msg = f"--directory {arguments.directory}: it is neither empty nor an earlier demo's; choose another"
                raise ConfigurationError(msg)
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARK).touch()
    except OSError as error:
        msg = f"--directory {arguments.directory}: can't write there: {error.strerror or error}"
        raise ConfigurationError(msg) from error
    return folder


def _join_and_check(day: Day, folder: Path) -> Verdict:
    import cojoin as cj  # noqa: PLC0415 - Java is checked before Spark is touched

    enriched = _joined(folder)
    target, checkpoint = str(folder / "enriched"), str(folder / "checkpoint")
    query = enriched.start(output=cj.sinks.delta(target), checkpoint=checkpoint, trigger=cj.Trigger.available_now())
    wait_for(query, total=day.trades.num_rows + day.customers.num_rows)
    paused = query.progress
    assert paused is not None
    say("\n" + run_report.watermarks(paused))
    say()
    tell(run_report.ending(paused))

    say()
    tell("The same query again, drained as by `cojoin run --drain`: all waiting rows are written.")
    trigger = cj.Trigger.available_now(drain=True)
    query = enriched.start(output=cj.sinks.delta(target), checkpoint=checkpoint, trigger=trigger)
    wait_for(query)
    drained = query.progress
    assert drained is not None
    tell(run_report.ending(drained))
    say()
    say(run_report.counts(drained))
    tell(run_report.conservation(drained))

    output = TableRows(LocalStore(target, "Delta table"), "").read(enriched.plan.output)
    shown = telling_rows(output)
    if shown.num_rows:
        say(f"\nOf {output.num_rows:,} joined rows, {shown.num_rows} of customer {shown['customer_id'][0]}:\n")
        say(run_report.rows(shown))
    say()
    return verify(enriched.plan, day, output, drained.watermark)


def _joined(folder: Path) -> Joined:
    import cojoin as cj  # noqa: PLC0415 - Java is checked before Spark is touched

    watermark = cj.WatermarkStrategy.for_bounded_out_of_orderness(OUT_OF_ORDERNESS)
    inputs = [
        cj.Input(
            cj.sources.files(str(folder / name), "parquet", schema=schema, options={"maxFilesPerTrigger": 1}),
            key="customer_id",
            event_time="event_time",
            name=name,
            watermark=watermark,
        )
        for name, schema in (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
    ]
    return cj.connect(*inputs, key_groups=4).asof_join()
